//! The software translation table: what is behind a miss.
//!
//! The table that the code looks into has one entry per hash; behind it is the list of all pages mapped for the twin, so that
//! a page which lost its entry to another one is found again without being mapped anew (the paper's hash chain). A page is
//! mapped together with the one that follows it, because an access may straddle two.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use twin_abi::layout::{PAGE_SIZE, STLB_ENTRIES, STLB_NO_TAG};

use crate::memory::Fault;

/// Maps pages for the twin, and owns the table that the twin reads.
pub trait Mapper {
    /// Maps the domain page at `page` and the one after it to two consecutive pages, each with no more than the domain's
    /// own rights; returns their address. If the second page cannot be mapped, it is left inaccessible.
    ///
    /// # Errors
    /// If the first page is not the domain's to access.
    fn map_pair(&mut self, page: u64) -> Result<u64, Fault>;

    /// Undoes [`Self::map_pair`], on all CPUs that run this instance.
    fn unmap_pair(&mut self, mapped: u64);

    /// Writes entry `index` of the table; the tag last.
    fn set_entry(&mut self, index: usize, tag: u64, mapped: u64);
}

/// Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Misses that found the page mapped already.
    pub collisions: u64,
    /// Misses that mapped a page.
    pub mapped: u64,
    /// Pages thrown out for lack of room.
    pub evicted: u64,
    /// Misses refused.
    pub refused: u64,
}

/// The state behind the table of one instance.
#[derive(Debug)]
pub struct Stlb {
    /// Domain page to mapped address.
    pages: BTreeMap<u64, u64>,
    /// Which page each entry holds.
    entries: Vec<Option<u64>>,
    /// The order in which pages were mapped, for eviction.
    order: alloc::collections::VecDeque<u64>,
    limit: usize,
    hole: u64,
    /// Counts.
    pub counts: Counts,
}

impl Stlb {
    /// An empty table that keeps at most `limit` pairs mapped. `hole` is the address of two unmapped pages.
    #[must_use]
    pub fn new(limit: usize, hole: u64) -> Self {
        Self {
            pages: BTreeMap::new(),
            entries: alloc::vec![None; STLB_ENTRIES as usize],
            order: alloc::collections::VecDeque::new(),
            limit: limit.max(1),
            hole,
            counts: Counts::default(),
        }
    }

    /// Translates `address` after a miss and fills the entry.
    ///
    /// # Errors
    /// If the address is not the domain's to access.
    pub fn miss(&mut self, address: u64, mapper: &mut impl Mapper) -> Result<u64, Fault> {
        let page = address & !(PAGE_SIZE - 1);
        let index = index(page);
        let mapped = match self.pages.get(&page) {
            Some(mapped) => {
                self.counts.collisions += 1;
                *mapped
            }
            None => self.map(address, page, mapper)?,
        };
        if let Some(entry) = self.entries.get_mut(index) {
            *entry = Some(page);
        }
        mapper.set_entry(index, page, mapped);
        Ok(mapped + (address - page))
    }

    fn map(&mut self, address: u64, page: u64, mapper: &mut impl Mapper) -> Result<u64, Fault> {
        while self.pages.len() >= self.limit {
            let Some(oldest) = self.order.pop_front() else { break };
            self.counts.evicted += 1;
            self.drop_page(oldest, mapper);
        }
        let mapped = mapper.map_pair(page).map_err(|fault| {
            self.counts.refused += 1;
            Fault { address, ..fault }
        })?;
        self.counts.mapped += 1;
        self.pages.insert(page, mapped);
        self.order.push_back(page);
        Ok(mapped)
    }

    /// The domain loses `page`, or its rights change: nothing that covers it may stay.
    pub fn invalidate(&mut self, page: u64, mapper: &mut impl Mapper) {
        for page in [page, page.wrapping_sub(PAGE_SIZE)] {
            self.order.retain(|p| *p != page);
            self.drop_page(page, mapper);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self, mapper: &mut impl Mapper) {
        while let Some(page) = self.order.pop_front() {
            self.drop_page(page, mapper);
        }
    }

    fn drop_page(&mut self, page: u64, mapper: &mut impl Mapper) {
        let Some(mapped) = self.pages.remove(&page) else { return };
        let index = index(page);
        if let Some(entry) = self.entries.get_mut(index).filter(|entry| **entry == Some(page)) {
            *entry = None;
            mapper.set_entry(index, STLB_NO_TAG, self.hole);
        }
        mapper.unmap_pair(mapped);
    }
}

/// The entry of a page.
fn index(page: u64) -> usize {
    usize::try_from(page / PAGE_SIZE % u64::from(STLB_ENTRIES)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages below `limit` belong to the domain; each pair is mapped at a fresh address.
    #[derive(Default)]
    struct Fake {
        limit: u64,
        next: u64,
        live: BTreeMap<u64, u64>,
        table: BTreeMap<usize, (u64, u64)>,
    }

    impl Mapper for Fake {
        fn map_pair(&mut self, page: u64) -> Result<u64, Fault> {
            if page >= self.limit {
                return Err(Fault { address: page, write: false });
            }
            self.next += 2 * PAGE_SIZE;
            self.live.insert(self.next, page);
            Ok(self.next)
        }
        fn unmap_pair(&mut self, mapped: u64) {
            assert!(self.live.remove(&mapped).is_some(), "unmapped twice");
        }
        fn set_entry(&mut self, index: usize, tag: u64, mapped: u64) {
            self.table.insert(index, (tag, mapped));
        }
    }

    const SPAN: u64 = STLB_ENTRIES as u64 * PAGE_SIZE;

    #[test]
    fn a_page_is_mapped_once_and_found_again_after_a_collision() {
        let mut fake = Fake { limit: 8 * SPAN, ..Fake::default() };
        let mut stlb = Stlb::new(16, 0xdead_0000);
        let first = stlb.miss(0x5123, &mut fake).expect("mapped");
        assert_eq!(first % PAGE_SIZE, 0x123);
        stlb.miss(SPAN + 0x5000, &mut fake).expect("mapped");
        assert_eq!(fake.table[&5].0, SPAN + 0x5000, "displaced");
        assert_eq!(stlb.miss(0x5456, &mut fake), Ok(first - 0x123 + 0x456));
        assert_eq!(stlb.counts, Counts { collisions: 1, mapped: 2, evicted: 0, refused: 0 });
    }

    #[test]
    fn a_foreign_page_is_refused_and_leaves_no_entry() {
        let mut fake = Fake { limit: SPAN, ..Fake::default() };
        let mut stlb = Stlb::new(16, 0);
        assert_eq!(stlb.miss(SPAN + 8, &mut fake), Err(Fault { address: SPAN + 8, write: false }));
        assert!(fake.table.is_empty());
    }

    #[test]
    fn room_is_made_by_dropping_the_oldest() {
        let mut fake = Fake { limit: SPAN, ..Fake::default() };
        let mut stlb = Stlb::new(2, 0xdead_0000);
        for page in 0..3 {
            stlb.miss(page * PAGE_SIZE, &mut fake).expect("mapped");
        }
        assert_eq!(fake.live.len(), 2);
        assert_eq!(fake.table[&0], (STLB_NO_TAG, 0xdead_0000), "entry cleared before the page goes");
    }

    #[test]
    fn invalidation_drops_both_pairs_that_cover_a_page() {
        let mut fake = Fake { limit: SPAN, ..Fake::default() };
        let mut stlb = Stlb::new(16, 0xdead_0000);
        for page in 4..8 {
            stlb.miss(page * PAGE_SIZE, &mut fake).expect("mapped");
        }
        stlb.invalidate(6 * PAGE_SIZE, &mut fake);
        let left: Vec<u64> = fake.live.values().map(|page| page / PAGE_SIZE).collect();
        assert_eq!(left, [4, 7]);
        assert_eq!((fake.table[&5].0, fake.table[&6].0), (STLB_NO_TAG, STLB_NO_TAG));
        stlb.clear(&mut fake);
        assert!(fake.live.is_empty());
    }
}
