//! The container: stream header, block headers, checks, index and footer.

use super::{lzma2, x86_filter};
use crate::bytes::{u32_at, u8_at};
use crate::crc32::crc32;
use crate::crc64::crc64;

type Result<T> = core::result::Result<T, &'static str>;

const ENDS_EARLY: &str = "the data ends early";
const FILTER_X86: u64 = 4;
const FILTER_LZMA2: u64 = 0x21;

/// The integrity check that follows every block.
#[derive(Clone, Copy, PartialEq)]
enum Check {
    None,
    Crc32,
    Crc64,
}

impl Check {
    fn from_id(id: u8) -> Result<Self> {
        match id {
            0 => Ok(Self::None),
            1 => Ok(Self::Crc32),
            4 => Ok(Self::Crc64),
            _ => Err("unsupported integrity check"),
        }
    }

    /// Verifies `data` against the check at the start of `stored`; returns the check's length.
    fn verify(self, data: &[u8], stored: &[u8]) -> Result<usize> {
        let (len, matches) = match self {
            Self::None => (0, true),
            Self::Crc32 => (4, stored.first_chunk() == Some(&crc32(data).to_le_bytes())),
            Self::Crc64 => (8, stored.first_chunk() == Some(&crc64(data).to_le_bytes())),
        };
        if matches {
            Ok(len)
        } else {
            Err("checksum mismatch")
        }
    }
}

/// Unpacks the first stream in `data` into `out`; returns the number of bytes written. Bytes behind the stream are not
/// looked at.
pub(crate) fn unpack(data: &[u8], out: &mut [u8]) -> Result<usize> {
    let header = data.get(..12).ok_or(ENDS_EARLY)?;
    if header[6] != 0 || u32_at(header, 8) != Some(crc32(&header[6..8])) {
        return Err("bad stream header");
    }
    let check = Check::from_id(header[7])?;
    let mut input = &data[12..];
    let mut written = 0;
    let mut nr_blocks = 0;
    // A block header starts with its size; a zero there starts the index instead.
    while *input.first().ok_or(ENDS_EARLY)? != 0 {
        let free = out.get_mut(written..).ok_or(ENDS_EARLY)?;
        let (used, unpacked) = block(input, check, free)?;
        input = input.get(used..).ok_or(ENDS_EARLY)?;
        written += unpacked;
        nr_blocks += 1;
    }
    index_and_footer(input, &header[6..8], nr_blocks)?;
    Ok(written)
}

/// Unpacks one block; returns the bytes it took and the bytes it gave.
fn block(input: &[u8], check: Check, out: &mut [u8]) -> Result<(usize, usize)> {
    let header_len = (usize::from(*input.first().ok_or(ENDS_EARLY)?) + 1) * 4;
    let header = input.get(..header_len).ok_or(ENDS_EARLY)?;
    let (fields, stored) = header.split_at(header_len - 4);
    if u32_at(stored, 0) != Some(crc32(fields)) {
        return Err("bad block header");
    }
    let has_x86 = filters(fields)?;
    let body = &input[header_len..];
    let (packed, unpacked) = lzma2::unpack(body, out)?;
    let unpacked_data = &mut out[..unpacked];
    if has_x86 {
        x86_filter::decode(unpacked_data);
    }
    let padding = packed.wrapping_neg() & 3;
    let after = body.get(packed..).ok_or(ENDS_EARLY)?;
    let (zeros, after) = after.split_at_checked(padding).ok_or(ENDS_EARLY)?;
    if zeros.iter().any(|&b| b != 0) {
        return Err("bad block padding");
    }
    let check_len = check.verify(unpacked_data, after)?;
    Ok((header_len + packed + padding + check_len, unpacked))
}

/// Reads a block header's flags and filters: `fields` is the header without its CRC. Returns whether the x86 filter is
/// used. The optional sizes are redundant here: the output buffer bounds one, the end marker of LZMA2 gives the other.
fn filters(fields: &[u8]) -> Result<bool> {
    let flags = u8_at(fields, 1).ok_or("bad block header")?;
    let mut at = 2;
    for bit in [0x40, 0x80] {
        if flags & bit != 0 {
            number(fields, &mut at)?;
        }
    }
    let mut has_x86 = false;
    for left in (0..=flags & 3).rev() {
        let id = number(fields, &mut at)?;
        let len = usize::try_from(number(fields, &mut at)?).map_err(|_| "bad filter")?;
        let properties = fields.get(at..).and_then(|rest| rest.get(..len)).ok_or("bad filter")?;
        at += len;
        match (id, left) {
            // A start offset of zero may be left out or spelled.
            (FILTER_X86, 1) if properties.iter().all(|&b| b == 0) => has_x86 = true,
            (FILTER_LZMA2, 0) if len == 1 => {}
            _ => return Err("unsupported filter"),
        }
    }
    Ok(has_x86)
}

/// A variable-length number: seven bits a byte, least significant first; bit 7 says that more follow.
fn number(data: &[u8], at: &mut usize) -> Result<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let byte = u8_at(data, *at).ok_or(ENDS_EARLY)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("number too long")
}

/// Checks that the stream ends as it should, so that a cut-off file is noticed.
fn index_and_footer(input: &[u8], stream_flags: &[u8], nr_blocks: u64) -> Result<()> {
    let mut at = 1;
    if number(input, &mut at)? != nr_blocks {
        return Err("the index counts other blocks");
    }
    for _ in 0..nr_blocks {
        number(input, &mut at)?;
        number(input, &mut at)?;
    }
    at = at.next_multiple_of(4);
    let index = input.get(..at).ok_or(ENDS_EARLY)?;
    if u32_at(input, at) != Some(crc32(index)) {
        return Err("bad index");
    }
    let footer = input.get(at + 4..at + 16).ok_or(ENDS_EARLY)?;
    if u32_at(footer, 0) != Some(crc32(&footer[4..10])) || &footer[8..10] != stream_flags || &footer[10..] != b"YZ" {
        return Err("bad stream footer");
    }
    Ok(())
}
