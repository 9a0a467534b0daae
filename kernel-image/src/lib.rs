//! Guest kernel images: bzImage and ELF in every compression that distributions use, ELF notes, initial-domain layout.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "fuzzing"))]
extern crate std;

pub mod builder;
mod bytes;
mod bzimage;
mod compression;
mod crc32;
mod crc64;
mod elf;
mod error;
mod gzip;
pub mod hypercall_page;
mod kernel;
mod layout;
mod lz4;
mod notes;
#[cfg(feature = "fuzzing")]
pub mod oracle;
mod xz;
mod zstd;

pub use bzimage::{Image, Payload};
pub use compression::Compression;
pub use elf::Segment;
pub use error::Error;
pub use kernel::Kernel;
pub use layout::{Layout, Request};
pub use notes::Notes;
