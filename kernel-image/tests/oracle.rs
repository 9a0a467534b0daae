//! The fuzz targets' oracles, for a second.

#![allow(clippy::cast_possible_truncation, reason = "small test data")]

mod common;

use common::{bzimage, elf, linux_notes, without, Note, Segment};
use kernel_image::oracle::{check_elf, check_image, check_stream};
use kernel_image::{Kernel, Layout, Request};
use proptest::prelude::*;

/// A kernel of a few pages at 64 KiB, so that whole domains fit in a test.
fn tiny_kernel() -> Vec<u8> {
    let mut notes = without(without(linux_notes(), 1), 15);
    notes.push(Note::number(1, 0xffff_ffff_8001_0040));
    elf(&[Segment::load(0x10000, vec![0x90; 6000]), Segment::bss(0x13000, 0x2800), Segment::notes(&notes)])
}

/// Changes a few bytes, preferably where the headers and notes are.
fn damaged(file: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), prop_oneof![Just(0u8), Just(0xff), any::<u8>()], any::<bool>());
    prop::collection::vec(change, 0..6).prop_map(move |changes| {
        let mut file = file.clone();
        for (at, value, is_header) in changes {
            let area = if is_header { file.len().min(240) } else { file.len() };
            file[at.index(area)] = value;
        }
        file
    })
}

#[test]
fn the_tiny_kernel_is_a_good_one() {
    let kernel = Kernel::parse(&tiny_kernel()).unwrap();
    assert!(Layout::plan(&kernel, &Request { nr_pages: 4096, initrd_bytes: 0, cmd_line: b"" }).is_ok());
    check_elf(&tiny_kernel());
}

proptest! {
    #[test]
    fn damaged_kernels(file in damaged(tiny_kernel())) {
        check_elf(&file);
    }

    #[test]
    fn damaged_images(file in damaged(bzimage(&[0xfd, b'7', b'z', b'X', b'Z', 0, 0, 1, 0x69, 0x22, 0xde, 0x36, 2, 0], Some(99)))) {
        check_image(&file);
    }

    #[test]
    fn any_stream(data in prop::collection::vec(any::<u8>(), 0..400)) {
        check_stream(&data);
    }
}
