//! The software translation table: what is behind a miss.
//!
//! The table that the code looks into has one entry per hash; behind it is the list of all pages mapped for the twin,
//! so that a page which lost its entry to another one is found again without being mapped anew (the paper's hash
//! chain). A page is mapped together with the one that follows it, because an access may straddle two.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

use twin_abi::layout::{PAGE_SIZE, STLB_ENTRIES, STLB_NO_TAG};

use crate::memory::Fault;

/// Maps pages for the twin, and owns the table that the twin reads.
pub trait Mapper {
    /// Maps the domain page at `page` and the one after it to two consecutive pages, each with no more than the
    /// domain's own rights; returns their address. If the second page cannot be mapped, it is left inaccessible.
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

/// A pair that is mapped, or room for one.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Domain page; [`NO_PAGE`] in a free slot.
    page: u64,
    mapped: u64,
    /// The next slot of the same entry, towards older ones; or [`END`].
    next: u32,
}

/// No page has this address.
const NO_PAGE: u64 = 1;
/// Ends a chain.
const END: u32 = u32::MAX;
/// Most pairs that share an entry. A driver that asks for more of them loses the oldest, so that no miss takes long.
const CHAIN: usize = 32;

/// The state behind the table of one instance. All memory is taken at the start: a miss allocates nothing.
#[derive(Debug)]
pub struct Stlb {
    slots: Vec<Slot>,
    /// The newest slot of each entry, or [`END`].
    chains: Vec<u32>,
    /// Which page each entry of the table shows, or [`NO_PAGE`].
    shown: Vec<u64>,
    /// The slot that is used next: the oldest one.
    hand: usize,
    hole: u64,
    /// Counts.
    pub counts: Counts,
}

impl Stlb {
    /// An empty table that keeps at most `limit` pairs mapped. `hole` is the address of two unmapped pages.
    ///
    /// # Errors
    /// If there is no memory for it (24 bytes a pair and 48 KiB).
    pub fn new(limit: usize, hole: u64) -> Result<Self, TryReserveError> {
        let entries = STLB_ENTRIES as usize;
        Ok(Self {
            slots: filled(limit.clamp(1, END as usize), Slot { page: NO_PAGE, mapped: 0, next: END })?,
            chains: filled(entries, END)?,
            shown: filled(entries, NO_PAGE)?,
            hand: 0,
            hole,
            counts: Counts::default(),
        })
    }

    /// Translates `address` after a miss and fills the entry.
    ///
    /// # Errors
    /// If the address is not the domain's to access.
    pub fn miss(&mut self, address: u64, mapper: &mut impl Mapper) -> Result<u64, Fault> {
        let page = address & !(PAGE_SIZE - 1);
        let index = index(page);
        let found = self.chain(index).find(|(_, slot)| slot.page == page);
        let mapped = match found {
            Some((_, slot)) => {
                self.counts.collisions += 1;
                slot.mapped
            }
            None => self.map(address, page, mapper)?,
        };
        if let Some(shown) = self.shown.get_mut(index) {
            *shown = page;
        }
        mapper.set_entry(index, page, mapped);
        Ok(mapped + (address - page))
    }

    /// The pairs that share an entry, newest first.
    fn chain(&self, index: usize) -> impl Iterator<Item = (usize, Slot)> + '_ {
        let mut at = self.chains.get(index).copied().unwrap_or(END);
        core::iter::from_fn(move || {
            let here = at as usize;
            let slot = self.slots.get(here).copied()?;
            at = slot.next;
            Some((here, slot))
        })
        .take(CHAIN + 1)
    }

    fn map(&mut self, address: u64, page: u64, mapper: &mut impl Mapper) -> Result<u64, Fault> {
        let oldest = self.slots.get(self.hand).map_or(NO_PAGE, |slot| slot.page);
        let crowd = self.chain(index(page)).nth(CHAIN - 1).map_or(NO_PAGE, |(_, slot)| slot.page);
        for evicted in [oldest, crowd] {
            self.counts.evicted += u64::from(self.drop_page(evicted, mapper));
        }
        let mapped = mapper.map_pair(page).map_err(|fault| {
            self.counts.refused += 1;
            Fault { address, ..fault }
        })?;
        self.counts.mapped += 1;
        let here = u32::try_from(self.hand).unwrap_or(END);
        if let (Some(slot), Some(first)) = (self.slots.get_mut(self.hand), self.chains.get_mut(index(page))) {
            *slot = Slot { page, mapped, next: *first };
            *first = here;
        }
        self.hand = (self.hand + 1) % self.slots.len().max(1);
        Ok(mapped)
    }

    /// The domain loses `page`, or its rights change: nothing that covers it may stay.
    pub fn invalidate(&mut self, page: u64, mapper: &mut impl Mapper) {
        for page in [page, page.wrapping_sub(PAGE_SIZE)] {
            self.drop_page(page, mapper);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self, mapper: &mut impl Mapper) {
        for n in 0..self.slots.len() {
            let page = self.slots.get(n).map_or(NO_PAGE, |slot| slot.page);
            self.drop_page(page, mapper);
        }
    }

    /// Takes a page out of the chain and the table, and unmaps it. Returns whether it was there.
    fn drop_page(&mut self, page: u64, mapper: &mut impl Mapper) -> bool {
        let index = index(page);
        let mut before = None;
        let found = self.chain(index).find(|(n, slot)| {
            let hit = slot.page == page;
            before = if hit { before } else { Some(*n) };
            hit
        });
        let Some((n, slot)) = found else { return false };
        let link = match before.and_then(|n| self.slots.get_mut(n)) {
            Some(newer) => Some(&mut newer.next),
            None => self.chains.get_mut(index),
        };
        if let Some(link) = link {
            *link = slot.next;
        }
        if let Some(slot) = self.slots.get_mut(n) {
            slot.page = NO_PAGE;
        }
        if let Some(shown) = self.shown.get_mut(index).filter(|shown| **shown == page) {
            *shown = NO_PAGE;
            mapper.set_entry(index, STLB_NO_TAG, self.hole);
        }
        mapper.unmap_pair(slot.mapped);
        true
    }
}

/// So many of `value`.
fn filled<T: Clone>(count: usize, value: T) -> Result<Vec<T>, TryReserveError> {
    let mut all = Vec::new();
    all.try_reserve_exact(count)?;
    all.resize(count, value);
    Ok(all)
}

/// The entry of a page.
fn index(page: u64) -> usize {
    usize::try_from(page / PAGE_SIZE % u64::from(STLB_ENTRIES)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

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
        let mut stlb = Stlb::new(16, 0xdead_0000).expect("memory");
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
        let mut stlb = Stlb::new(16, 0).expect("memory");
        assert_eq!(stlb.miss(SPAN + 8, &mut fake), Err(Fault { address: SPAN + 8, write: false }));
        assert!(fake.table.is_empty());
    }

    #[test]
    fn room_is_made_by_dropping_the_oldest() {
        let mut fake = Fake { limit: SPAN, ..Fake::default() };
        let mut stlb = Stlb::new(2, 0xdead_0000).expect("memory");
        for page in 0..3 {
            stlb.miss(page * PAGE_SIZE, &mut fake).expect("mapped");
        }
        assert_eq!(fake.live.len(), 2);
        assert_eq!(fake.table[&0], (STLB_NO_TAG, 0xdead_0000), "entry cleared before the page goes");
    }

    #[test]
    fn invalidation_drops_both_pairs_that_cover_a_page() {
        let mut fake = Fake { limit: SPAN, ..Fake::default() };
        let mut stlb = Stlb::new(16, 0xdead_0000).expect("memory");
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

    #[test]
    fn pages_that_share_an_entry_are_few() {
        let mut fake = Fake { limit: 4096 * SPAN, ..Fake::default() };
        let mut stlb = Stlb::new(100, 0xdead_0000).expect("memory");
        for n in 0..CHAIN as u64 + 2 {
            stlb.miss(n * SPAN, &mut fake).expect("mapped");
        }
        assert_eq!((fake.live.len(), stlb.counts.evicted), (CHAIN, 2));
        assert!(fake.live.values().all(|page| *page >= 2 * SPAN), "the oldest went");
        stlb.miss(0, &mut fake).expect("mapped again");
        assert_eq!(stlb.counts.collisions, 0);
    }

    /// A naive table says what is mapped; misses, invalidations and evictions in any order keep both alike.
    #[test]
    fn what_is_shown_is_what_is_mapped() {
        let mut fake = Fake { limit: 64 * SPAN, ..Fake::default() };
        let mut stlb = Stlb::new(24, 0xdead_0000).expect("memory");
        let mut dice = 7u64;
        for _ in 0..20_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let page = (dice >> 40) % 8 * SPAN + (dice >> 50) % 6 * PAGE_SIZE;
            match (dice >> 33) % 8 {
                0 => stlb.invalidate(page, &mut fake),
                _ => {
                    let mapped = stlb.miss(page, &mut fake).expect("mapped");
                    assert_eq!(fake.live.get(&mapped), Some(&page));
                }
            }
            assert!(fake.live.len() <= 24);
            let pages: alloc::collections::BTreeSet<u64> = fake.live.values().copied().collect();
            assert_eq!(pages.len(), fake.live.len(), "each page is mapped once");
            for (index, (tag, mapped)) in &fake.table {
                let right =
                    if *tag == STLB_NO_TAG { *mapped == 0xdead_0000 } else { fake.live.get(mapped) == Some(tag) };
                assert!(right, "entry {index}");
            }
        }
        stlb.clear(&mut fake);
        assert!(fake.live.is_empty());
    }
}
