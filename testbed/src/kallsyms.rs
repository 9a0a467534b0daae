//! The names of a Linux kernel's functions, out of the tables that it has of them itself (CONFIG_KALLSYMS). Nothing
//! says where they are, so they are found by what they must look like.
//!
//! A name is a length and so many bytes, each of which stands for a token: a piece of text from a table of 256. Behind
//! the tokens are the offsets of them in that table. Where the names begin, there are the number of them and, before
//! it, what their addresses count from and the addresses. Layout: the kernel's scripts/kallsyms.c, since 6.1 (lengths
//! of two bytes).

use anyhow::{Context, Result};

/// Names lie no further before the tokens than this, in bytes.
const NAMES_WITHIN: usize = 16 << 20;
/// A kernel has so many symbols.
const NR_SYMBOLS: std::ops::RangeInclusive<usize> = 1_000..=1_000_000;

/// Addresses and names of the functions of `vmlinux` (unpacked), sorted, one name an address.
pub fn functions(vmlinux: &[u8]) -> Result<Vec<(u64, String)>> {
    let (tokens_at, tokens) = tokens(vmlinux).context("the kernel has no table of tokens")?;
    let first = tokens_at.saturating_sub(NAMES_WITHIN).next_multiple_of(8);
    let found = (first..tokens_at).step_by(8).find_map(|at| symbols(vmlinux, at, tokens_at, &tokens));
    let mut all = found.context("the kernel has no table of symbols")?;
    all.sort();
    all.dedup_by_key(|(address, _)| *address);
    Ok(all)
}

fn word<const N: usize>(image: &[u8], at: usize) -> Option<[u8; N]> {
    image.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Where the tokens are, and they.
fn tokens(image: &[u8]) -> Option<(usize, Vec<&[u8]>)> {
    // A character that names have and that no token was needed for stands for itself: digits always do.
    let digits = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
    let mut from = 0;
    while let Some(n) = image.get(from..)?.windows(digits.len()).position(|bytes| bytes == digits) {
        let at = from + n;
        // 48 others come before that of 0.
        let ends: Vec<usize> = (0..at).rev().filter(|i| image[*i] == 0).take(49).collect();
        if let Some(start) = ends.get(48).map(|end| end + 1) {
            if let Some(tokens) = tokens_from(image, start) {
                return Some((start, tokens));
            }
        }
        from = at + 1;
    }
    None
}

/// The tokens, if they begin at `start`: their offsets come behind them.
fn tokens_from(image: &[u8], start: usize) -> Option<Vec<&[u8]>> {
    let mut at = start;
    let mut tokens = Vec::new();
    let mut offsets = Vec::new();
    for _ in 0..256 {
        let length = image.get(at..)?.iter().take(1 << 10).position(|byte| *byte == 0)?;
        offsets.extend(u16::try_from(at - start).ok()?.to_le_bytes());
        tokens.push(&image[at..at + length]);
        at += length + 1;
    }
    (at..at + 16).any(|at| image.get(at..at + offsets.len()) == Some(&offsets)).then_some(tokens)
}

/// The functions, if the number of symbols is at `at`.
fn symbols(image: &[u8], at: usize, end: usize, tokens: &[&[u8]]) -> Option<Vec<(u64, String)>> {
    let count = usize::try_from(u64::from_le_bytes(word(image, at)?)).ok().filter(|n| NR_SYMBOLS.contains(n))?;
    let base = u64::from_le_bytes(word(image, at.checked_sub(8)?)?);
    // A kernel is in the upper half.
    if base >> 47 != 0x1_ffff {
        return None;
    }
    let addresses = (at - 8).checked_sub((count * 4).next_multiple_of(8))?;
    let mut name = at + 8;
    let mut found = Vec::new();
    for n in 0..count {
        let mut length = usize::from(*image.get(name)?);
        name += 1;
        if length & 0x80 != 0 {
            length = length & 0x7f | usize::from(*image.get(name)?) << 7;
            name += 1;
        }
        let bytes = image.get(name..name + length).filter(|bytes| !bytes.is_empty() && name + bytes.len() <= end)?;
        name += length;
        let text: Vec<u8> = bytes.iter().flat_map(|byte| tokens[usize::from(*byte)]).copied().collect();
        let (kind, text) = text.split_first()?;
        if !matches!(kind, b'T' | b't' | b'W' | b'w') {
            continue;
        }
        // Those of a CPU's own data are no addresses, and not negative.
        let offset = i32::from_le_bytes(word(image, addresses + n * 4)?);
        let address =
            if offset < 0 { base.wrapping_sub(1).wrapping_add(u64::from(offset.unsigned_abs())) } else { continue };
        found.push((address, String::from_utf8(text.to_vec()).ok()?));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables as a kernel has them, of `count` functions; `wrong` spoils the offsets of the tokens.
    fn image(count: usize, wrong: bool) -> Vec<u8> {
        let mut out = vec![0xcc; 64];
        for n in 0..count {
            out.extend((-1 - i32::try_from(n * 16).unwrap()).to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend(0xffff_ffff_8100_0000u64.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
        for n in 0..count {
            // Token 1 is `Tfunction_`; every tenth name is long, every seventh data.
            let digits = format!("{n}");
            let long = if n % 10 == 3 { "x".repeat(200) } else { String::new() };
            let length = 1 + digits.len() + long.len();
            match length {
                0..=127 => out.extend(u8::try_from(length)),
                _ => out.extend([length & 0x7f | 0x80, length >> 7].map(|part| u8::try_from(part).unwrap())),
            }
            out.push(if n % 7 == 5 { 2 } else { 1 });
            out.extend(digits.bytes());
            out.extend(long.bytes());
        }
        out.resize(out.len().next_multiple_of(8), 0);
        let mut offsets = Vec::new();
        let start = out.len();
        for n in 0..=255u8 {
            offsets.extend((u16::try_from(out.len() - start).unwrap() + u16::from(wrong)).to_le_bytes());
            match n {
                1 => out.extend(b"Tfunction_"),
                2 => out.extend(b"ddata_"),
                b'0'..=b'9' | b'x' => out.push(n),
                _ => {}
            }
            out.push(0);
        }
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend(offsets);
        out
    }

    #[test]
    fn functions_are_found_with_their_addresses() {
        let found = functions(&image(3000, false)).unwrap();
        assert_eq!(found[0], (0xffff_ffff_8100_0000, "function_0".into()));
        assert_eq!(found[3], (0xffff_ffff_8100_0030, format!("function_3{}", "x".repeat(200))));
        assert_eq!(found[5].1, "function_6");
        assert_eq!(found.len(), (0..3000).filter(|n| n % 7 != 5).count());
    }

    #[test]
    fn what_only_looks_like_such_tables_is_refused() {
        assert!(functions(&image(3000, true)).is_err());
        assert!(functions(&image(999, false)).is_err());
        assert!(functions(&[]).is_err());
        let good = image(3000, false);
        for cut in [70, 12_100, good.len() - 1] {
            assert!(functions(&good[..cut]).is_err(), "{cut}");
        }
    }
}
