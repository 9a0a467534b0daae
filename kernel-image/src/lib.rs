//! Guest kernel images: bzImage and ELF in every compression that distributions use, ELF notes, initial-domain layout.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod bytes;
mod bzimage;
mod compression;
mod crc32;
mod crc64;
mod error;
mod gzip;
mod lz4;
mod xz;
mod zstd;

pub use bzimage::{Image, Payload};
pub use compression::Compression;
pub use error::Error;
