//! The decoder against an independent encoder, and against damage.

use super::unpack;
use alloc::vec;
use alloc::vec::Vec;
use lzma_rust2::{CheckType, FilterType, LzmaOptions, XzOptions, XzWriter};
use proptest::prelude::*;
use std::io::Write;

fn pack(data: &[u8], check: CheckType, has_x86: bool, (lc, lp, pb): (u32, u32, u32)) -> Vec<u8> {
    let mut options = XzOptions::with_preset(6);
    options.lzma_options = LzmaOptions { lc, lp, pb, dict_size: 1 << 16, ..LzmaOptions::with_preset(6) };
    options.set_check_sum_type(check);
    if has_x86 {
        options.prepend_pre_filter(FilterType::BcjX86, 0);
    }
    let mut writer = XzWriter::new(Vec::new(), options).unwrap();
    writer.write_all(data).unwrap();
    writer.finish().unwrap()
}

/// Bytes in which everything the coder models occurs: runs, repeats near and far, and opcodes with plausible operands.
fn kernel_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..60),
        3 => prop::collection::vec(prop::sample::select(vec![0xe8u8, 0xe9, 0, 0xff, 1, 0x90]), 0..60),
        1 => (any::<u8>(), 1usize..3000).prop_map(|(byte, len)| vec![byte; len]),
        2 => (0u8..4, 1usize..500).prop_map(|(seed, len)| (0..len).map(|i| (i as u8).wrapping_mul(7) ^ seed).collect()),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn check_type() -> impl Strategy<Value = CheckType> {
    prop_oneof![Just(CheckType::None), Just(CheckType::Crc32), Just(CheckType::Crc64)]
}

fn properties() -> impl Strategy<Value = (u32, u32, u32)> {
    prop_oneof![4 => Just((3, 0, 2)), 1 => Just((0, 2, 0)), 1 => Just((1, 3, 4)), 1 => Just((4, 0, 3))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn unpacks_what_was_packed(data in kernel_like(), check in check_type(), has_x86: bool, props in properties()) {
        let packed = pack(&data, check, has_x86, props);
        let mut out = vec![0; data.len()];
        prop_assert_eq!(unpack(&packed, &mut out), Ok(data.len()));
        prop_assert_eq!(out, data);
    }

    #[test]
    fn damage_is_noticed(data in kernel_like(), has_x86: bool, at: prop::sample::Index, flip in 1u8..) {
        let mut packed = pack(&data, CheckType::Crc32, has_x86, (3, 0, 2));
        let at = at.index(packed.len());
        // The container is found by its magic number before this code sees it.
        prop_assume!(at >= 6);
        packed[at] ^= flip;
        let mut out = vec![0; data.len()];
        prop_assert!(unpack(&packed, &mut out).is_err());
    }

    #[test]
    fn truncation_is_noticed(data in kernel_like(), at: prop::sample::Index) {
        let packed = pack(&data, CheckType::Crc32, true, (3, 0, 2));
        let mut out = vec![0; data.len()];
        prop_assert!(unpack(&packed[..at.index(packed.len())], &mut out).is_err());
    }

    #[test]
    fn never_writes_more_than_stated(data in kernel_like(), room: prop::sample::Index) {
        prop_assume!(!data.is_empty());
        let packed = pack(&data, CheckType::Crc32, true, (3, 0, 2));
        let mut out = vec![0; room.index(data.len())];
        prop_assert!(unpack(&packed, &mut out).is_err());
    }
}

#[test]
fn several_chunks_and_stored_chunks() {
    // Incompressible data is stored; more than 2 MiB of anything takes several chunks.
    let mut state = 1u64;
    let mut data: Vec<u8> = (0..300_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    data.extend((0..3_000_000u32).map(|i| (i / 1000) as u8));
    let packed = pack(&data, CheckType::Crc32, true, (3, 0, 2));
    let mut out = vec![0; data.len()];
    assert_eq!(unpack(&packed, &mut out), Ok(data.len()));
    assert!(out == data);
}

#[test]
fn foreign_filters_are_refused() {
    let mut options = XzOptions::with_preset(1);
    options.prepend_pre_filter(FilterType::BcjArm, 0);
    let mut writer = XzWriter::new(Vec::new(), options).unwrap();
    writer.write_all(b"some data").unwrap();
    assert_eq!(unpack(&writer.finish().unwrap(), &mut [0; 9]), Err("unsupported filter"));
}
