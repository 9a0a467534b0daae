//! A short sorted list of address ranges: RAM as the loader describes it, and the early allocator that serves until the
//! frame allocator has its tables.

const MAX_RANGES: usize = 96;

/// Half-open, sorted, disjoint ranges of machine addresses.
#[derive(Clone)]
pub struct Ranges {
    list: [(u64, u64); MAX_RANGES],
    count: usize,
}

impl Ranges {
    /// No ranges.
    pub const fn new() -> Self {
        Self { list: [(0, 0); MAX_RANGES], count: 0 }
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

    /// Adds `start..end`, joining what it touches. Ranges beyond the list's capacity are lost.
    pub fn add(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        let mut kept = Self::new();
        for (s, e) in self.iter() {
            if e < start || end < s {
                kept.push(s, e);
            } else {
                start = start.min(s);
                end = end.max(e);
            }
        }
        kept.push(start, end);
        kept.list[..kept.count].sort_unstable();
        *self = kept;
    }

    /// Removes `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let mut kept = Self::new();
        for (s, e) in self.iter() {
            kept.push(s, e.min(start));
            kept.push(s.max(end), e);
        }
        *self = kept;
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

    fn push(&mut self, start: u64, end: u64) {
        if start < end && self.count < MAX_RANGES {
            self.list[self.count] = (start, end);
            self.count += 1;
        }
    }
}
