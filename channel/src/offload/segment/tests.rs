#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::*;
use crate::grants::Frames;
use crate::offload::checksum::complete;
use crate::oracle::frames::{slow_sum, Shape};
use crate::oracle::memory::Memory;
use crate::packet::{Fragment, GsoKind, Packet};
use proptest::prelude::*;
use std::vec::Vec;

/// The packet, its begin copied and the rest in pieces of at most `piece` bytes.
fn packet(memory: &Memory, bytes: &[u8], piece: usize, gso: Gso) -> Packet<u32> {
    let mut packet = Packet::default();
    let copied = bytes.len().min(HEADER_BYTES);
    packet.extend_header(copied).copy_from_slice(&bytes[..copied]);
    for (frame, part) in (1..).zip(bytes[copied..].chunks(piece)) {
        let offset = (4096 - part.len()) as u16;
        memory.write(frame, offset, part);
        packet.push(Fragment { frame, offset, len: part.len() as u16 });
    }
    packet.gso = Some(gso);
    assert_eq!(packet.len() as usize, bytes.len());
    packet
}

/// The bytes of a segment, with its checksum.
fn bytes(memory: &Memory, view: &View<'_, u32>) -> Vec<u8> {
    let mut all = view.header.to_vec();
    for piece in view.pieces() {
        let mut part = std::vec![0; piece.len.into()];
        memory.read(piece.frame, piece.offset, &mut part);
        all.extend(part);
    }
    assert_eq!(all.len(), view.len() as usize);
    let (at, checksum) = complete(view, memory).expect("blank");
    all[at..at + 2].copy_from_slice(&checksum);
    all
}

proptest! {
    #[test]
    fn segments_are_those_of_the_reference(
        payload in 0usize..40_000, size in 1u16..9000, piece in 1usize..4096, is_v6: bool, is_tcp: bool, options in 0u8..41,
        tags in 0u8..3, seed: u32,
    ) {
        let shape = Shape { to: [2; 6], from: [4; 6], tags, is_v6, is_tcp, options, payload, seed };
        let frame = shape.blank();
        let piece = piece.max(frame.len() / 18);
        prop_assume!(piece <= 4096 && payload / usize::from(size) < 300);
        let memory = Memory::new(32);
        let kind_of = |is_tcp| match (is_tcp, is_v6) {
            (false, _) => GsoKind::Udp,
            (true, true) => GsoKind::TcpV6,
            (true, false) => GsoKind::TcpV4,
        };
        let mut packet = packet(&memory, &frame, piece, Gso { kind: kind_of(!is_tcp), size });
        prop_assert!(Cutter::new(packet.view()).is_none(), "it is another protocol's");
        packet.gso = Some(Gso { kind: kind_of(is_tcp), size });
        let cutter = Cutter::new(packet.view()).unwrap();
        let expected = shape.segments(size.into());
        prop_assert_eq!(cutter.nr_segments() as usize, expected.len());
        for (i, expected) in (0..).zip(expected) {
            let mut buffer = [0xaa; HEADER_BYTES];
            let segment = cutter.segment(i, &mut buffer);
            prop_assert_eq!(bytes(&memory, &segment), expected, "segment {}", i);
        }
    }

    #[test]
    fn sums_are_those_of_the_dullest_code(bytes in prop::collection::vec(any::<u8>(), 0..100), cut in 0usize..100) {
        // 0 and 2^16 - 1 are the same number.
        let same = |a: u16, b: u16| a % 0xffff == b % 0xffff;
        prop_assert!(same(sum(&bytes), slow_sum(&[&bytes])));
        let (a, b) = bytes.split_at(cut.min(bytes.len()));
        let mut parts = crate::offload::checksum::Sum::default();
        parts.add_bytes(a);
        parts.add_bytes(b);
        prop_assert!(same(parts.fold(), slow_sum(&[&bytes])));
    }

    /// Whatever bytes a packet begins with: no panic, and headers that lie in it.
    #[test]
    fn garbage_has_headers_inside_or_none(mut bytes in prop::collection::vec(any::<u8>(), 0..192), kind in 0u8..8) {
        if bytes.len() > 30 && kind > 0 {
            let ethertype: [u8; 2] = [[8, 0], [0x86, 0xdd], [0x81, 0]][usize::from(kind % 3)];
            bytes[12..14].copy_from_slice(&ethertype);
            bytes[14] = if kind % 2 == 0 { 0x45 } else { 0x60 } | kind >> 2;
            (bytes[20], bytes[23]) = (if kind % 2 == 0 { 0 } else { 60 }, 6);
        }
        if let Some(h) = parse(&bytes) {
            prop_assert!(h.l3 < h.l4 && h.l4 + 8 <= h.payload && h.payload <= bytes.len());
            prop_assert!(h.l4 + h.protocol.field() + 2 <= bytes.len());
        }
        let memory = Memory::new(2);
        let mut packet = Packet::<u32>::default();
        packet.extend_header(bytes.len()).copy_from_slice(&bytes);
        packet.gso = Some(Gso { kind: GsoKind::TcpV4, size: 3 });
        if let Some(cutter) = Cutter::new(packet.view()) {
            let mut buffer = [0; HEADER_BYTES];
            let total: u32 = (0..cutter.nr_segments()).map(|i| cutter.segment(i, &mut buffer).len()).sum();
            prop_assert!(total >= packet.len());
            let _ = complete(&cutter.segment(0, &mut buffer), &memory);
        }
    }
}
