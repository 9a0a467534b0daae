//! The compressions in which distributions ship kernels: which one is it, and one function to unpack them all.

use crate::bytes::magic;
use crate::error::Error;
use crate::{gzip, lz4, xz, zstd};

/// A supported compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// gzip (RFC 1952).
    Gzip,
    /// xz with the x86 branch filter, as the kernel's build makes it.
    Xz,
    /// zstd (RFC 8878).
    Zstd,
    /// The legacy frame format of lz4, which the kernel's build uses.
    Lz4,
}

const SUPPORTED: [(&[u8], Compression); 4] = [
    (&[0x1f, 0x8b], Compression::Gzip),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], Compression::Xz),
    (&[0x28, 0xb5, 0x2f, 0xfd], Compression::Zstd),
    (&[0x02, 0x21, 0x4c, 0x18], Compression::Lz4),
];

/// What the kernel's build can make too, but distributions do not use.
const REFUSED: [(&[u8], &str); 3] =
    [(b"BZh", "bzip2"), (&[0x5d, 0, 0], "lzma"), (&[0x89, b'L', b'Z', b'O', 0, 0x0d, 0x0a, 0x1a, 0x0a], "lzo")];

impl Compression {
    /// Recognises the compression by the payload's first bytes.
    pub fn detect(payload: &[u8]) -> Result<Self, Error> {
        if let Some((_, found)) = SUPPORTED.iter().find(|(magic, _)| payload.starts_with(magic)) {
            return Ok(*found);
        }
        match REFUSED.iter().find(|(magic, _)| payload.starts_with(magic)) {
            Some((_, compression)) => Err(Error::Unsupported { compression }),
            None => Err(Error::UnknownCompression { magic: magic(payload) }),
        }
    }

    /// The name that users know.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }

    /// Unpacks `data` into `out`; returns the number of bytes written. Never writes past `out`: more data than fits is
    /// an error. Checksums inside the stream are verified.
    pub fn unpack(self, data: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let unpacked = match self {
            Self::Gzip => gzip::unpack(data, out),
            Self::Xz => xz::unpack(data, out),
            Self::Zstd => zstd::unpack(data, out),
            Self::Lz4 => lz4::unpack(data, out),
        };
        unpacked.map_err(|why| Error::Corrupt { compression: self.name(), why })
    }
}
