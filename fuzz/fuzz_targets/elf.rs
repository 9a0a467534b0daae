//! Any ELF file: refused, or the domain built from it has consistent page tables.
#![no_main]

libfuzzer_sys::fuzz_target!(|file: &[u8]| kernel_image::oracle::check_elf(file));
