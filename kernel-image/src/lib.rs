//! Guest kernel images: bzImage and ELF in every compression that distributions use, ELF notes, initial-domain layout.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;
