//! A short sorted list of address ranges, in place, for when there is no heap: RAM as the loader describes it, and the
//! early allocator that serves until the frame allocator has its tables.

/// Ranges that a list holds: more than a loader's regions, because what is taken from a range may leave two.
const MAX_RANGES: usize = 256;

/// Half-open, sorted, disjoint ranges of machine addresses. What does not fit is lost, from the highest address down.
#[derive(Clone)]
pub struct Ranges {
    list: [(u64, u64); MAX_RANGES],
    count: usize,
    is_cut: bool,
}

impl Default for Ranges {
    fn default() -> Self {
        Self::new()
    }
}

impl Ranges {
    /// No ranges.
    pub const fn new() -> Self {
        Self { list: [(0, 0); MAX_RANGES], count: 0, is_cut: false }
    }

    /// The ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.list[..self.count].iter().copied()
    }

    /// Bytes in all ranges.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(start, end)| end - start).sum()
    }

    /// End of the last range.
    pub fn end(&self) -> u64 {
        self.iter().next_back().map_or(0, |(_, end)| end)
    }

    /// Was anything lost?
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Adds `start..end`, joining what it touches.
    pub fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (first, behind) = self.those(|(_, e)| *e < start, |(s, _)| *s <= end);
        let joined = match &self.list[first..behind] {
            [(s, _), .., (_, e)] | [(s, e)] => (start.min(*s), end.max(*e)),
            [] => (start, end),
        };
        self.replace(first, behind, &[joined]);
    }

    /// Removes `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (first, behind) = self.those(|(_, e)| *e <= start, |(s, _)| *s < end);
        let ([(s, _), .., (_, e)] | [(s, e)]) = self.list[first..behind] else { return };
        match (s < start, end < e) {
            (true, true) => self.replace(first, behind, &[(s, start), (end, e)]),
            (true, false) => self.replace(first, behind, &[(s, start)]),
            (false, true) => self.replace(first, behind, &[(end, e)]),
            (false, false) => self.replace(first, behind, &[]),
        }
    }

    /// Takes `bytes` aligned to `align` from the highest place below `limit`.
    pub fn take(&mut self, bytes: u64, align: u64, limit: u64) -> Option<u64> {
        let found = self.iter().rev().find_map(|(start, end)| {
            let at = end.min(limit).checked_sub(bytes)? & !(align - 1);
            (at >= start).then_some(at)
        })?;
        self.remove(found, found + bytes);
        Some(found)
    }

    /// Places of the ranges that are neither `before` something nor behind it: those behind the first that are `up_to`
    /// it.
    fn those(&self, before: impl Fn(&(u64, u64)) -> bool, up_to: impl Fn(&(u64, u64)) -> bool) -> (usize, usize) {
        let list = &self.list[..self.count];
        let first = list.partition_point(before);
        (first, list.partition_point(up_to).max(first))
    }

    /// Puts `new` in the place of the ranges from `first` up to `behind`.
    fn replace(&mut self, first: usize, behind: usize, new: &[(u64, u64)]) {
        let to = first + new.len();
        let kept = (self.count - behind).min(MAX_RANGES.saturating_sub(to));
        self.is_cut |= to > MAX_RANGES || kept < self.count - behind;
        if kept > 0 {
            self.list.copy_within(behind..behind + kept, to);
        }
        self.list[first..].iter_mut().zip(new).for_each(|(slot, range)| *slot = *range);
        self.count = (to + kept).min(MAX_RANGES);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, reason = "small numbers")]

    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn a_map_of_many_pieces_is_kept_and_can_be_taken_from() {
        // As a loader lists it: RAM, and between any two pieces of it something that is reserved.
        let mut ranges = Ranges::new();
        for n in 0..130 {
            ranges.add(n << 20, (n << 20) + 0x8_0000);
        }
        assert_eq!((ranges.iter().count(), ranges.bytes(), ranges.end()), (130, 130 << 19, (129 << 20) + 0x8_0000));
        for n in 0..100 {
            ranges.remove((n << 20) + 0x1000, (n << 20) + 0x2000);
        }
        assert_eq!((ranges.iter().count(), ranges.is_cut()), (230, false));
        assert_eq!(ranges.take(4096, 4096, 64 << 20), Some((63 << 20) + 0x7_f000));
    }

    #[test]
    fn what_does_not_fit_is_lost_at_the_end_and_that_is_known() {
        let mut ranges = Ranges::new();
        (0..256).for_each(|n| ranges.add(n * 16, n * 16 + 8));
        assert!(!ranges.is_cut());
        let mut more = ranges.clone();
        more.add(256 * 16, 256 * 16 + 8);
        assert!(more.is_cut() && more.iter().eq(ranges.iter()));
        let mut split = ranges.clone();
        split.remove(2, 4);
        assert!(split.is_cut());
        assert_eq!((split.iter().nth(1), split.iter().count(), split.end()), (Some((4, 8)), 256, 254 * 16 + 8));
    }

    proptest! {
        #[test]
        fn ranges_are_a_set(steps in prop::collection::vec((any::<bool>(), 0_u64..64, 0_u64..20), 0..40)) {
            let (mut ranges, mut set) = (Ranges::new(), [false; 96]);
            for (is_added, start, len) in steps {
                let end = start + len;
                if is_added {
                    ranges.add(start, end);
                } else {
                    ranges.remove(start, end);
                }
                (start..end).for_each(|n| set[n as usize] = is_added);
                let list: Vec<(u64, u64)> = ranges.iter().collect();
                prop_assert!(list.iter().all(|(s, e)| s < e) && list.windows(2).all(|w| w[0].1 < w[1].0), "{list:?}");
                let has = |n: u64| list.iter().any(|(s, e)| (*s..*e).contains(&n));
                prop_assert!((0..96).all(|n| has(n) == set[n as usize]), "{list:?}");
            }
        }
    }
}
