//! A set of `u64` as sorted disjoint ranges: I/O ports, I/O memory frames and interrupts that a domain may use.
//!
//! Ranges are inclusive at both ends, as the ABI's are, so the whole of `u64` can be said.

use alloc::vec::Vec;

/// A range with both ends included; `first <= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Lowest element.
    pub first: u64,
    /// Highest element.
    pub last: u64,
}

/// A change was refused; the set is as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// The first element is after the last.
    Reversed,
    /// The set would have more ranges than it may.
    TooMany,
    /// There is no memory for one range more.
    NoMemory,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Sorted; no two touch.
    ranges: Vec<Range>,
}

/// A set never has more ranges: what a guest or the tools can make us store is bounded.
pub const MAX_RANGES: usize = 1024;

impl RangeSet {
    /// The empty set.
    pub const fn new() -> RangeSet {
        RangeSet { ranges: Vec::new() }
    }

    /// Adds all of `first ..= last`.
    pub fn insert(&mut self, first: u64, last: u64) -> Result<(), RangeError> {
        if first > last {
            return Err(RangeError::Reversed);
        }
        // Everything that overlaps or touches becomes one.
        let from = self.ranges.partition_point(|r| r.last < first && r.last + 1 < first);
        let to = self.ranges.partition_point(|r| r.first <= last.saturating_add(1));
        let merged = match self.ranges.get(from..to) {
            Some([a, .., b]) => Range { first: a.first.min(first), last: b.last.max(last) },
            Some([a]) => Range { first: a.first.min(first), last: a.last.max(last) },
            _ => Range { first, last },
        };
        if from >= to {
            self.make_room()?;
        }
        self.ranges.splice(from..to.max(from), [merged]);
        Ok(())
    }

    /// Takes all of `first ..= last` out.
    pub fn remove(&mut self, first: u64, last: u64) -> Result<(), RangeError> {
        if first > last {
            return Err(RangeError::Reversed);
        }
        let from = self.ranges.partition_point(|r| r.last < first);
        let to = self.ranges.partition_point(|r| r.first <= last);
        if from >= to {
            return Ok(());
        }
        let before = Some(self.ranges[from].first).filter(|f| *f < first).map(|f| Range { first: f, last: first - 1 });
        let after = Some(self.ranges[to - 1].last).filter(|l| *l > last).map(|l| Range { first: last + 1, last: l });
        if before.is_some() && after.is_some() && to - from == 1 {
            self.make_room()?;
        }
        self.ranges.splice(from..to, before.into_iter().chain(after));
        Ok(())
    }

    /// One range more can be stored, and takes no memory.
    fn make_room(&mut self) -> Result<(), RangeError> {
        if self.ranges.len() >= MAX_RANGES {
            return Err(RangeError::TooMany);
        }
        self.ranges.try_reserve(1).map_err(|_| RangeError::NoMemory)
    }

    /// Is `x` in the set?
    pub fn contains(&self, x: u64) -> bool {
        self.contains_all(x, x)
    }

    /// Is all of `first ..= last` in the set? `false` if the ends are in the wrong order.
    pub fn contains_all(&self, first: u64, last: u64) -> bool {
        let at = self.ranges.partition_point(|r| r.last < first);
        first <= last && self.ranges.get(at).is_some_and(|r| r.first <= first && last <= r.last)
    }

    /// Is anything of `first ..= last` in the set?
    pub fn overlaps(&self, first: u64, last: u64) -> bool {
        let at = self.ranges.partition_point(|r| r.last < first);
        first <= last && self.ranges.get(at).is_some_and(|r| r.first <= last)
    }

    /// The ranges, lowest first; no two touch.
    pub fn iter(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().copied()
    }

    /// Has the set no element?
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_ends_of_the_number_range_are_ordinary() {
        let mut s = RangeSet::new();
        s.insert(0, u64::MAX).unwrap();
        assert!(s.contains(0) && s.contains(u64::MAX));
        s.remove(u64::MAX, u64::MAX).unwrap();
        s.remove(0, 0).unwrap();
        assert_eq!(s.iter().collect::<Vec<_>>(), [Range { first: 1, last: u64::MAX - 1 }]);
        s.insert(u64::MAX, u64::MAX).unwrap();
        assert!(s.contains_all(1, u64::MAX));
        assert_eq!(s.insert(2, 1), Err(RangeError::Reversed));
        assert_eq!(s.remove(2, 1), Err(RangeError::Reversed));
        assert!(!s.contains_all(2, 1));
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let mut s = RangeSet::new();
        for i in 0..MAX_RANGES as u64 {
            s.insert(4 * i, 4 * i + 2).unwrap();
        }
        assert_eq!(s.insert(1 << 40, 1 << 40), Err(RangeError::TooMany));
        assert_eq!(s.remove(1, 1), Err(RangeError::TooMany));
        s.insert(3, 3).unwrap();
        s.remove(0, 0).unwrap();
        s.insert(1 << 40, 1 << 40).unwrap();
    }

    /// Where what it has room for is not moved, it took no memory: the range more had its place before it was stored.
    #[test]
    fn a_change_takes_no_memory_behind_the_one_that_is_asked_for() {
        let mut s = RangeSet::new();
        s.insert(0, 1000).unwrap();
        for i in 0..200 {
            s.make_room().unwrap();
            let place = s.ranges.as_ptr();
            if i & 1 == 0 {
                s.remove(4 * i + 2, 4 * i + 2).unwrap();
            } else {
                s.insert(2000 + 2 * i, 2000 + 2 * i).unwrap();
            }
            assert_eq!(s.ranges.as_ptr(), place);
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(ops in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..12), 1..100), q in 0u64..64, n in 0u64..8) {
            let mut s = RangeSet::new();
            let mut model = BTreeSet::new();
            for (add, first, len) in ops {
                if add {
                    s.insert(first, first + len).unwrap();
                    model.extend(first..=first + len);
                } else {
                    s.remove(first, first + len).unwrap();
                    model.retain(|x| !(first..=first + len).contains(x));
                }
                prop_assert_eq!(s.iter().flat_map(|r| r.first..=r.last).collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                let ranges: Vec<_> = s.iter().collect();
                prop_assert!(ranges.windows(2).all(|w| w[0].last + 1 < w[1].first), "sorted, none touch");
            }
            prop_assert_eq!(s.contains_all(q, q + n), (q..=q + n).all(|x| model.contains(&x)));
            prop_assert_eq!(s.overlaps(q, q + n), (q..=q + n).any(|x| model.contains(&x)));
        }
    }
}
