//! The Linux boot image ("bzImage"): finds the compressed kernel inside.
//!
//! Layout (Linux, Documentation/arch/x86/boot.rst): real-mode setup sectors, then the protected-mode part, in which
//! `payload_offset` and `payload_length` locate the compressed `vmlinux`. The payload is followed by its unpacked size
//! as a little-endian `u32`; for gzip these are the last four bytes of the stream itself.

use crate::bytes::{magic, u16_at, u32_at, u8_at};
use crate::compression::Compression;
use crate::error::Error;

const SETUP_SECTS: usize = 0x1f1;
const HEADER_MAGIC: usize = 0x202;
const VERSION: usize = 0x206;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
/// `payload_offset` exists from this boot protocol on.
const MIN_VERSION: u16 = 0x0208;
/// No kernel unpacks to more.
const MAX_UNPACKED: u32 = 1 << 30;

/// Where the kernel's ELF file comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image<'a> {
    /// The file is an ELF file already.
    Elf(&'a [u8]),
    /// The file is a bzImage.
    Packed(Payload<'a>),
}

/// The compressed kernel of a bzImage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<'a> {
    /// How it is compressed.
    pub compression: Compression,
    /// The compressed stream.
    pub data: &'a [u8],
    /// Its unpacked size in bytes, as the image states it; `unpack` refuses any other.
    pub unpacked_len: usize,
}

impl<'a> Image<'a> {
    /// Recognises an image by its magic numbers. Errors: not a kernel, truncated, or a compression that is not
    /// supported.
    pub fn parse(file: &'a [u8]) -> Result<Self, Error> {
        if file.starts_with(b"\x7fELF") {
            return Ok(Image::Elf(file));
        }
        if file.get(HEADER_MAGIC..HEADER_MAGIC + 4) != Some(b"HdrS".as_slice()) {
            return Err(Error::NotAKernel { magic: magic(file) });
        }
        Payload::parse(file).map(Image::Packed)
    }
}

impl<'a> Payload<'a> {
    fn parse(file: &'a [u8]) -> Result<Self, Error> {
        const HEADER: Error = Error::Truncated("the boot header's end");
        let version = u16_at(file, VERSION).ok_or(HEADER)?;
        if version < MIN_VERSION {
            return Err(Error::OldBootProtocol { version });
        }
        // Zero means four, for the sake of very old loaders.
        let setup_sects = match u8_at(file, SETUP_SECTS).ok_or(HEADER)? {
            0 => 4,
            n => usize::from(n),
        };
        let offset = u32_at(file, PAYLOAD_OFFSET).ok_or(HEADER)? as usize;
        let length = u32_at(file, PAYLOAD_LENGTH).ok_or(HEADER)? as usize;
        let start = (setup_sects + 1) * SECTOR + offset;
        let payload = file.get(start..start + length).ok_or(Error::Truncated("the kernel payload's end"))?;
        let compression = Compression::detect(payload)?;
        let (data, size) =
            payload.split_at_checked(length.wrapping_sub(4)).ok_or(Error::Truncated("the payload's size"))?;
        let stated = u32_at(size, 0).ok_or(Error::Truncated("the payload's size"))?;
        if stated == 0 || stated > MAX_UNPACKED {
            return Err(Error::BadUnpackedSize { stated: stated.into() });
        }
        // A gzip stream ends with its size, so nothing is appended to it.
        let data = if compression == Compression::Gzip { payload } else { data };
        Ok(Self { compression, data, unpacked_len: stated as usize })
    }

    /// Unpacks into `out`, whose length must be `unpacked_len`. On an error `out` holds garbage.
    pub fn unpack(&self, out: &mut [u8]) -> Result<(), Error> {
        let found = self.compression.unpack(self.data, out)?;
        if found != self.unpacked_len || out.len() != self.unpacked_len {
            return Err(Error::WrongUnpackedSize { stated: self.unpacked_len, found });
        }
        Ok(())
    }
}
