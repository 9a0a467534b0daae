//! gzip (RFC 1952); the deflate stream inside is decoded by the `miniz_oxide` crate.

use crate::bytes::{u16_at, u32_at, u8_at};
use crate::crc32::crc32;
use alloc::boxed::Box;
use miniz_oxide::inflate::core::{
    decompress, inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF, DecompressorOxide,
};
use miniz_oxide::inflate::TINFLStatus;

const ENDS_EARLY: &str = "the data ends early";
const FLAG_HEADER_CRC: u8 = 2;
const FLAG_EXTRA: u8 = 4;
const FLAG_NAME: u8 = 8;
const FLAG_COMMENT: u8 = 16;

/// Unpacks one member into `out`; returns the number of bytes written.
pub(crate) fn unpack(data: &[u8], out: &mut [u8]) -> Result<usize, &'static str> {
    let body = data.get(header_len(data)?..).ok_or(ENDS_EARLY)?;
    let mut inflator = Box::<DecompressorOxide>::default();
    let (status, used, written) = decompress(&mut inflator, body, out, 0, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF);
    match status {
        TINFLStatus::Done => {}
        TINFLStatus::HasMoreOutput => return Err("more data than stated"),
        TINFLStatus::FailedCannotMakeProgress | TINFLStatus::NeedsMoreInput => return Err(ENDS_EARLY),
        _ => return Err("invalid deflate data"),
    }
    let unpacked = out.get(..written).ok_or("more data than stated")?;
    if u32_at(body, used).ok_or(ENDS_EARLY)? != crc32(unpacked) {
        return Err("checksum mismatch");
    }
    Ok(written)
}

fn header_len(data: &[u8]) -> Result<usize, &'static str> {
    const DEFLATE: u8 = 8;
    if u8_at(data, 2).ok_or(ENDS_EARLY)? != DEFLATE {
        return Err("unknown method");
    }
    let flags = u8_at(data, 3).ok_or(ENDS_EARLY)?;
    let mut at = 10;
    if flags & FLAG_EXTRA != 0 {
        at += 2 + usize::from(u16_at(data, at).ok_or(ENDS_EARLY)?);
    }
    for text in [FLAG_NAME, FLAG_COMMENT] {
        if flags & text != 0 {
            let rest = data.get(at..).ok_or(ENDS_EARLY)?;
            at += rest.iter().position(|&b| b == 0).ok_or(ENDS_EARLY)? + 1;
        }
    }
    if flags & FLAG_HEADER_CRC != 0 {
        at += 2;
    }
    Ok(at)
}
