//! LZMA2: a sequence of chunks, each either stored or LZMA-coded, with explicit sizes and resets.

use super::lzma::Lzma;
use crate::bytes::u8_at;

const ENDS_EARLY: &str = "the data ends early";

/// Unpacks chunks up to the end marker into `out`, which is the dictionary too. Returns the number of bytes read, with
/// the marker, and of bytes written.
pub(super) fn unpack(input: &[u8], out: &mut [u8]) -> Result<(usize, usize), &'static str> {
    let mut lzma = Lzma::new();
    let mut at = 0;
    let mut written = 0;
    // Start of what matches may refer to; a dictionary reset moves it.
    let mut dictionary = 0;
    // Before these have happened once, chunks that rely on them are invalid.
    let mut needs_dictionary_reset = true;
    let mut needs_properties = true;
    loop {
        let control = u8_at(input, at).ok_or(ENDS_EARLY)?;
        at += 1;
        if control == 0 {
            return Ok((at, written));
        }
        if control == 1 || control >= 0xe0 {
            dictionary = written;
            needs_dictionary_reset = false;
            needs_properties = true;
        }
        if needs_dictionary_reset {
            return Err("the first chunk does not reset the dictionary");
        }
        if control < 0x80 {
            if control > 2 {
                return Err("unknown chunk type");
            }
            let len = usize::from(be16(input, at)?) + 1;
            at += 2;
            let stored = input.get(at..).and_then(|rest| rest.get(..len)).ok_or(ENDS_EARLY)?;
            let to = out.get_mut(written..).and_then(|rest| rest.get_mut(..len)).ok_or("more data than stated")?;
            to.copy_from_slice(stored);
            at += len;
            written += len;
            continue;
        }
        let unpacked = (usize::from(control & 0x1f) << 16) + usize::from(be16(input, at)?) + 1;
        let packed = usize::from(be16(input, at + 2)?) + 1;
        at += 4;
        match control & 0x60 {
            0x00 => {}
            0x20 => lzma.reset_state(),
            _ => {
                lzma.set_properties(u8_at(input, at).ok_or(ENDS_EARLY)?)?;
                at += 1;
                needs_properties = false;
            }
        }
        if needs_properties {
            return Err("the first coded chunk has no properties");
        }
        let chunk = input.get(at..).and_then(|rest| rest.get(..packed)).ok_or(ENDS_EARLY)?;
        let end = written + unpacked;
        let window = out.get_mut(dictionary..end).ok_or("more data than stated")?;
        lzma.chunk(chunk, window, written - dictionary)?;
        at += packed;
        written = end;
    }
}

fn be16(input: &[u8], at: usize) -> Result<u16, &'static str> {
    crate::bytes::array_at(input, at).map(u16::from_be_bytes).ok_or(ENDS_EARLY)
}
