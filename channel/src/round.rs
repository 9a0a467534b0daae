//! Who is looked at next, of many that are numbered.

/// Those of whom a bit is set, in a round that begins with number `first`.
pub fn round<const WORDS: usize>(bits: &[u64; WORDS], first: usize) -> impl Iterator<Item = usize> + '_ {
    let first = first % (WORDS * 64);
    let (word, bit) = (first / 64, first % 64);
    // That word comes twice: its last bits at first, and its first ones at last.
    (0..=WORDS).flat_map(move |n| {
        let at = (word + n) % WORDS;
        let mask = match n {
            0 => u64::MAX << bit,
            n if n == WORDS => !(u64::MAX << bit),
            _ => u64::MAX,
        };
        let mut left = bits[at] & mask;
        core::iter::from_fn(move || {
            let next = (left != 0).then(|| at * 64 + left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(next)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::round;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn everybody_comes_once_and_begins_where_it_is_said(bits: [u64; 3], first in 0usize..400) {
            let start = first % 192;
            let is_set = |n: &usize| bits[n / 64] >> (n % 64) & 1 == 1;
            let wanted: Vec<usize> = (start..192).chain(0..start).filter(is_set).collect();
            prop_assert_eq!(round(&bits, first).collect::<Vec<_>>(), wanted);
        }
    }
}
