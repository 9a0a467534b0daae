//! CRC-32 (ISO 3309, as in gzip and xz), for a kernel of 60 MB in few instructions and without SIMD.
//!
//! A table-driven CRC needs a look-up per byte, 200 million instructions for a kernel. This one folds whole words
//! instead. With P the CRC's polynomial, x^3006 + x^2866 + x^2215 + 1 is a multiple of P (the smallest with four terms;
//! a test verifies it). Squaring is linear over GF(2), so the same holds for y = x^64. Therefore a 64-bit word may be
//! struck from the message if it is added to the words 140, 791 and 3006 places on: the remainder stays the same. When
//! only the last 3006 words are left, the table takes over.

#![allow(clippy::cast_possible_truncation, reason = "a CRC is shifted out byte by byte")]

use alloc::vec;

const POLYNOMIAL: u32 = 0xedb8_8320;
/// Distances, in words, at which a struck word reappears.
const FOLDS: [usize; 3] = [140, 791, 3006];
const WORD: usize = 8;
/// Words that are left for the table; the largest of `FOLDS`.
const TAIL: usize = FOLDS[2];
/// Words folded between two moves of the history to the front of its buffer.
const STRIDE: usize = 28 * FOLDS[0];
/// Below this size folding is not worth its set-up.
const MIN_FOLDED_BYTES: usize = 1 << 16;

const TABLE: [u32; 256] = {
    let wide = crate::bytes::crc_table(POLYNOMIAL as u64);
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = wide[i] as u32;
        i += 1;
    }
    table
};

/// CRC-32 of `data`.
pub(crate) fn crc32(data: &[u8]) -> u32 {
    if data.len() < MIN_FOLDED_BYTES {
        !update(!0, data)
    } else {
        !folded(data)
    }
}

/// The register after `data`, byte by byte.
fn update(crc: u32, data: &[u8]) -> u32 {
    data.iter().fold(crc, |crc, &byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

/// The register after `data`, which has at least `TAIL` words.
fn folded(data: &[u8]) -> u32 {
    let (mut to_fold, tail) = data.split_at((data.len() / WORD - TAIL) * WORD);
    // The last TAIL struck words, then room for STRIDE more. Before the message all words are zero.
    let mut history = vec![0u64; TAIL + STRIDE];
    // The initial register value is added to the first bytes.
    let mut start = u64::from(u32::MAX);
    while !to_fold.is_empty() {
        let (now, later) = to_fold.split_at(to_fold.len().min(STRIDE * WORD));
        let mut filled = TAIL;
        for block in now.chunks(FOLDS[0] * WORD) {
            fold_block(&mut history, filled, block, &mut start);
            filled += block.len() / WORD;
        }
        history.copy_within(filled - TAIL..filled, 0);
        to_fold = later;
    }
    // What the struck words leave behind in the tail: word i of the tail gets the struck words FOLDS places before it.
    let mut crc = 0;
    let mut words = tail.chunks_exact(WORD);
    for (i, bytes) in words.by_ref().enumerate() {
        let mut sum = word(bytes);
        for fold in FOLDS {
            if fold > i {
                sum ^= history[TAIL + i - fold];
            }
        }
        crc = update(crc, &sum.to_le_bytes());
    }
    update(crc, words.remainder())
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_le_bytes).unwrap_or_default()
}

/// Strikes `block`, at most `FOLDS[0]` words: `history[filled..]` gets their values with all earlier folds added.
fn fold_block(history: &mut [u64], filled: usize, block: &[u8], start: &mut u64) {
    let (before, new) = history.split_at_mut(filled);
    let near = &before[filled - FOLDS[0]..];
    let middle = &before[filled - FOLDS[1]..];
    let far = &before[filled - FOLDS[2]..];
    let words = block.chunks_exact(WORD).map(word);
    for ((((new, word), near), middle), far) in new.iter_mut().zip(words).zip(near).zip(middle).zip(far) {
        *new = word ^ near ^ middle ^ far;
    }
    if let Some(first) = new.first_mut() {
        *first ^= core::mem::take(start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn check_value() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn folding_polynomial_is_a_multiple() {
        // x^n mod P, unreflected.
        let power =
            |n: usize| (0..n).fold(1u64, |v, _| if v & 1 << 31 != 0 { (v << 1) ^ 0x1_04c1_1db7 } else { v << 1 });
        assert_eq!(power(TAIL) ^ power(TAIL - FOLDS[0]) ^ power(TAIL - FOLDS[1]) ^ 1, 0);
    }

    #[test]
    fn folding_agrees_with_the_table() {
        let mut state = 1u32;
        let mut data = Vec::new();
        for len in [MIN_FOLDED_BYTES, MIN_FOLDED_BYTES + 3, TAIL * 8 + STRIDE * 8 * 2, 200_001] {
            data.resize_with(len, || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            });
            assert_eq!(crc32(&data), !update(!0, &data), "{len} bytes");
            data.clear();
        }
    }
}
