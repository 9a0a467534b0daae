//! The x86 branch filter: the packer replaces the relative targets of CALL and JMP by absolute ones, which repeat more
//! often; this turns them back.
//!
//! An opcode byte (E8, E9) may itself be part of an earlier one's operand. The format says which of those count: a
//! candidate is skipped if another candidate, one to three bytes before it, was left alone and its operand's top byte,
//! as seen from here, looks like a plausible address. `earlier` has a bit for each such position: bit 0 one byte
//! before.

#![allow(clippy::cast_possible_truncation, reason = "positions wrap at 32 bits by definition")]

/// Converts all of `data`, whose first byte has filter position 0.
pub(super) fn decode(data: &mut [u8]) {
    // A candidate needs its four operand bytes.
    let Some(end) = data.len().checked_sub(4) else {
        return;
    };
    let mut earlier = 0u32;
    // One past the last candidate.
    let mut after_last = 0;
    let mut at = 0;
    while let Some(found) = next_opcode(data, at, end) {
        let gap = found - after_last;
        earlier = if gap > 2 { 0 } else { earlier << gap & 7 };
        after_last = found + 1;
        at = found + 1;
        let [b0, b1, b2, top] = operand(data, found);
        if may_convert(earlier, [b0, b1, b2]) && is_sign(top) {
            let position = (found as u32).wrapping_add(5);
            let target = relative(u32::from_le_bytes([b0, b1, b2, top]), position, earlier);
            data[found + 1..found + 5].copy_from_slice(&target.to_le_bytes());
            at = found + 5;
            after_last = at;
            earlier = 0;
        } else {
            earlier = earlier << 1 | 1;
        }
    }
}

/// Position of the next opcode byte in `at..end`.
#[inline(always)]
fn next_opcode(data: &[u8], mut at: usize, end: usize) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = LOW << 7;
    while let Some(word) = data.get(at..end).and_then(|rest| rest.first_chunk::<8>()) {
        // Bytes that are E8 or E9 become zero; the lowest zero byte is found exactly.
        let zeros = (u64::from_le_bytes(*word) & (LOW * 0xfe)) ^ (LOW * 0xe8);
        let marks = zeros.wrapping_sub(LOW) & !zeros & HIGH;
        if marks != 0 {
            return Some(at + marks.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    (at..end).find(|&i| data[i] & 0xfe == 0xe8)
}

/// The four bytes behind an opcode byte that has them all.
#[inline(always)]
fn operand(data: &[u8], opcode: usize) -> [u8; 4] {
    data[opcode + 1..].first_chunk().copied().unwrap_or_default()
}

/// Is this the top byte of a small positive or negative number?
fn is_sign(byte: u8) -> bool {
    byte == 0 || byte == 0xff
}

/// How many bytes before this candidate the earliest of the candidates in `earlier` stands; 0 if there is none.
fn earliest(earlier: u32) -> u32 {
    u32::BITS - earlier.leading_zeros()
}

/// Whether the candidates nearby leave this one alone; `low` are the operand's lower bytes.
#[inline(always)]
fn may_convert(earlier: u32, low: [u8; 3]) -> bool {
    match earlier {
        0 => true,
        // Its top operand byte, in this candidate's operand.
        1 => !is_sign(low[2]),
        2 => !is_sign(low[1]),
        4 => !is_sign(low[0]),
        // Two or more.
        _ => false,
    }
}

/// The operand that `absolute` was made of, for an instruction that ends at `position`.
fn relative(absolute: u32, position: u32, earlier: u32) -> u32 {
    let mut target = absolute.wrapping_sub(position);
    if earlier != 0 {
        // The packer had to keep the byte that is the earlier candidate's top byte from looking like a sign.
        let above = 8 * earliest(earlier);
        let byte = (target >> (24 - above)) as u8;
        if is_sign(byte) {
            target = (target ^ (u32::MAX >> above)).wrapping_sub(position);
        }
    }
    // 25 bits with sign.
    let low = target & 0x01ff_ffff;
    low | (low & 0x0100_0000).wrapping_neg()
}
