//! Images as files: recognised, unpacked, parsed, or refused with a line that says why.

#![allow(clippy::cast_possible_truncation, reason = "small test data")]

mod common;

use common::*;
use kernel_image::{Compression, Error, Image, Kernel};
use lzma_rust2::{CheckType, FilterType, XzOptions, XzWriter};
use std::io::Write;
use std::process::{Command, Stdio};

fn xz(data: &[u8]) -> Vec<u8> {
    let mut options = XzOptions::with_preset(6);
    options.set_check_sum_type(CheckType::Crc32);
    options.prepend_pre_filter(FilterType::BcjX86, 0);
    let mut writer = XzWriter::new(Vec::new(), options).unwrap();
    writer.write_all(data).unwrap();
    writer.finish().unwrap()
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut crc = !0u32;
    for &byte in data {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    let mut file = vec![0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 2, 3];
    file.extend(b"vmlinux\0");
    file.extend(miniz_oxide::deflate::compress_to_vec(data, 9));
    file.extend((!crc).to_le_bytes());
    file.extend((data.len() as u32).to_le_bytes());
    file
}

fn zstd(data: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
}

fn lz4(data: &[u8]) -> Vec<u8> {
    let mut file = 0x184c_2102u32.to_le_bytes().to_vec();
    for block in data.chunks(8 << 20) {
        let mut room = vec![0; lz4_flex::block::get_maximum_output_size(block.len())];
        let len = lz4_flex::block::compress_into(block, &mut room).unwrap();
        let block = &room[..len];
        file.extend((block.len() as u32).to_le_bytes());
        file.extend(block);
    }
    file
}

fn unpack(image: &[u8]) -> Result<Vec<u8>, Error> {
    match Image::parse(image)? {
        Image::Elf(elf) => Ok(elf.to_vec()),
        Image::Packed(payload) => {
            let mut out = vec![0; payload.unpacked_len];
            payload.unpack(&mut out)?;
            Ok(out)
        }
    }
}

fn packed_images(kernel: &[u8]) -> Vec<(Compression, Vec<u8>)> {
    let size = Some(kernel.len() as u32);
    vec![
        (Compression::Xz, bzimage(&xz(kernel), size)),
        (Compression::Gzip, bzimage(&gzip(kernel), None)),
        (Compression::Zstd, bzimage(&zstd(kernel), size)),
        (Compression::Lz4, bzimage(&lz4(kernel), size)),
    ]
}

#[test]
fn every_compression_unpacks_to_the_kernel() {
    let kernel = small_kernel(&linux_notes());
    for (compression, image) in packed_images(&kernel) {
        let Ok(Image::Packed(payload)) = Image::parse(&image) else { panic!("{compression:?} is not found") };
        assert_eq!(payload.compression, compression);
        assert_eq!(unpack(&image).as_deref(), Ok(kernel.as_slice()), "{compression:?}");
    }
}

#[test]
fn an_elf_file_needs_no_unpacking() {
    let kernel = small_kernel(&linux_notes());
    assert_eq!(unpack(&kernel), Ok(kernel));
}

/// With the tools that the kernel's build uses, where they are installed.
#[test]
fn the_host_tools_output_unpacks() {
    let kernel = small_kernel(&linux_notes());
    let tools: [(&str, &[&str], bool); 4] = [
        ("gzip", &["-n", "-f", "-9", "-c"], false),
        ("xz", &["--check=crc32", "--x86", "--lzma2=dict=32MiB", "-c"], true),
        ("zstd", &["-q", "-22", "--ultra", "-c"], true),
        ("lz4", &["-q", "-l", "-9", "-c"], true),
    ];
    for (tool, arguments, has_size) in tools {
        let child = Command::new(tool).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = child else {
            println!("{tool} is not installed");
            continue;
        };
        let mut input = child.stdin.take().unwrap();
        let data = kernel.clone();
        let writer = std::thread::spawn(move || input.write_all(&data).unwrap());
        let packed = child.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(packed.status.success(), "{tool}");
        let image = bzimage(&packed.stdout, has_size.then_some(kernel.len() as u32));
        assert_eq!(unpack(&image).as_deref(), Ok(kernel.as_slice()), "{tool}");
    }
}

#[test]
fn damage_is_noticed() {
    let kernel = small_kernel(&linux_notes());
    for (compression, image) in packed_images(&kernel) {
        // Legacy lz4 frames have no checksum.
        if compression == Compression::Lz4 {
            continue;
        }
        let payload = 512 * 3 + 16;
        for at in (payload + 20..image.len() - 50).step_by(97) {
            let mut damaged = image.clone();
            damaged[at] ^= 0x10;
            // A flipped bit that changes nothing, as an unused header field, is no damage.
            if let Ok(unpacked) = unpack(&damaged) {
                assert!(unpacked == kernel, "{compression:?}, byte {at}");
            }
        }
    }
}

#[test]
fn wrong_sizes_are_refused() {
    let kernel = small_kernel(&linux_notes());
    let len = kernel.len() as u32;
    for (packed, what) in [(xz(&kernel), "xz"), (zstd(&kernel), "zstd"), (lz4(&kernel), "lz4")] {
        assert!(unpack(&bzimage(&packed, Some(len - 1))).is_err(), "{what}: too small");
        let larger = unpack(&bzimage(&packed, Some(len + 1)));
        assert_eq!(larger, Err(Error::WrongUnpackedSize { stated: len as usize + 1, found: len as usize }), "{what}");
        assert_eq!(unpack(&bzimage(&packed, Some(0))), Err(Error::BadUnpackedSize { stated: 0 }));
        assert_eq!(unpack(&bzimage(&packed, Some(!0))), Err(Error::BadUnpackedSize { stated: 0xffff_ffff }));
    }
}

fn refusal(image: &[u8]) -> String {
    match Image::parse(image) {
        Err(error) => error.to_string(),
        Ok(_) => unpack(image).and_then(|elf| Kernel::parse(&elf)?.check_dom0()).expect_err("accepted").to_string(),
    }
}

#[test]
fn refusals_name_the_cause() {
    let kernel = small_kernel(&linux_notes());
    let image = bzimage(&xz(&kernel), Some(kernel.len() as u32));
    let with_payload = |start: &[u8]| bzimage(start, Some(1000));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"hello, I am a text".to_vec(), "neither a bzImage nor an ELF file (starts with 68 65 6c 6c)"),
        (Vec::new(), "neither a bzImage nor an ELF file (starts with 00 00 00 00)"),
        (image[..1800].to_vec(), "image is truncated: it ends before the kernel payload's end"),
        (image[..0x240].to_vec(), "image is truncated: it ends before the boot header's end"),
        (with_payload(b"BZh91AY"), "payload is compressed with bzip2; supported are gzip, xz, zstd and lz4"),
        (with_payload(&[0x5d, 0, 0, 0, 4]), "payload is compressed with lzma; supported are gzip, xz, zstd and lz4"),
        (with_payload(b"\x89LZO\0\r\n\x1a\n"), "payload is compressed with lzo; supported are gzip, xz, zstd and lz4"),
        (with_payload(b"what"), "payload has an unknown compression (starts with 77 68 61 74)"),
        (kernel[..40].to_vec(), "image is truncated: it ends before the ELF header's end"),
        (kernel[..100].to_vec(), "image is truncated: it ends before the program headers' end"),
        (kernel[..2000].to_vec(), "image is truncated: it ends before a segment's end"),
        (small_kernel(&[]), "no Xen ELF notes: the kernel is not built for paravirtual Xen (CONFIG_XEN_PV)"),
        (small_kernel(&without(linux_notes(), 5)), "the kernel's Xen notes lack XEN_VERSION \"xen-3.0\""),
    ];
    for (image, expected) in cases {
        assert_eq!(refusal(&image), expected);
    }

    let mut elf32 = kernel.clone();
    elf32[4] = 1;
    assert_eq!(refusal(&elf32), "32-bit kernel; only 64-bit PV kernels are supported");
    let mut old = image.clone();
    old[0x206..0x208].copy_from_slice(&0x0207u16.to_le_bytes());
    assert_eq!(refusal(&old), "bzImage with boot protocol 2.07, 2.08 or later needed");
    let mut for_arm = kernel.clone();
    for_arm[18] = 183;
    assert_eq!(refusal(&for_arm), "unusable ELF file: not for x86-64");
}

#[test]
fn refusals_by_notes() {
    let with = |note: Note| {
        let mut notes = without(linux_notes(), note.0);
        notes.push(note);
        refusal(&small_kernel(&notes))
    };
    assert_eq!(with(Note::number(17, 0x8001)), "the kernel does not support running as domain 0 (CONFIG_XEN_DOM0)");
    assert_eq!(
        with(Note::text(10, "!supervisor_mode_kernel")),
        "the kernel requires Xen feature 3, which is not supported"
    );
    assert_eq!(with(Note::number(1, 0x1234)), "the kernel's Xen note ENTRY has the unusable value 0x1234");
    assert_eq!(
        with(Note::number(2, 0xffff_ffff_8100_0010)),
        "the kernel's Xen note HYPERCALL_PAGE has the unusable value 0xffffffff81000010"
    );
    assert_eq!(
        with(Note::number(3, 0xffff_8300_0000_0000)),
        "unusable ELF file: segments in the hypervisor's address range"
    );
}

#[test]
fn the_notes_of_linux_are_understood() {
    let kernel = Kernel::parse(&small_kernel(&linux_notes())).unwrap();
    assert_eq!(kernel.check_dom0(), Ok(()));
    assert_eq!(kernel.virt_base, 0xffff_ffff_8000_0000);
    assert_eq!(kernel.virt, 0xffff_ffff_8100_0000..0xffff_ffff_8120_3000);
    assert_eq!(kernel.entry, 0xffff_ffff_8100_0040);
    assert_eq!(kernel.notes.init_p2m, Some(0x80_0000_0000));
    assert!(kernel.notes.has_mod_start_pfn && kernel.notes.has_high_root);
    assert_eq!(kernel.notes.required, 1);
    assert_eq!(kernel.notes.supported, 0x8811);
    assert_eq!(kernel.notes.hypercall_page, None);
}

#[test]
fn notes_in_a_section_are_found() {
    let mut file = elf(&[Segment::load(0x1000000, vec![1; 100])]);
    let notes: Vec<u8> = linux_notes().iter().flat_map(Note::bytes).collect();
    let at = file.len();
    file.extend(&notes);
    let table = file.len();
    let mut header = vec![0u8; 64];
    header[4..8].copy_from_slice(&7u32.to_le_bytes());
    header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
    header[32..40].copy_from_slice(&(notes.len() as u64).to_le_bytes());
    file.extend(header);
    file[40..48].copy_from_slice(&(table as u64).to_le_bytes());
    file[60..62].copy_from_slice(&1u16.to_le_bytes());
    assert_eq!(Kernel::parse(&file).unwrap().entry, 0xffff_ffff_8100_0040);
}
