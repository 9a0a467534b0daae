//! The pages between guest and back end that nothing goes through now.
//!
//! A request's pages follow each other if there are so many that do, and so do those of requests that come together. A
//! stock back end that keeps pages mapped then has neighbours in its own memory, too, and hands its device one piece of
//! memory in place of many. Whether it has depends on the order in which it maps them: Linux takes pages to map others'
//! at from a heap whose top has the highest number. So a back end gets the last page first, and each further one before
//! those that it has had.

use super::request::MAX_SEGMENTS;
use alloc::vec::Vec;

/// Number of a page between guest and back end.
pub type PageNr = u16;

/// Pages whose bits are in one word.
const EACH: usize = u64::BITS as usize;
const _: () = assert!(MAX_SEGMENTS < EACH);

/// Not enough memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// See the module's documentation. Pages are numbered from 0 on.
#[derive(Default)]
pub struct Pool {
    /// A bit for each page: nothing goes through it.
    free: Vec<u64>,
    /// This back end has had the pages from here on.
    had_from: usize,
    nr_pages: usize,
    nr_free: usize,
}

impl Pool {
    /// So many pages, all of them free.
    pub fn new(nr_pages: usize) -> Result<Pool, NoMemory> {
        let mut free = Vec::new();
        free.try_reserve_exact(nr_pages.div_ceil(EACH)).map_err(|_| NoMemory)?;
        free.extend((0..nr_pages.div_ceil(EACH)).map(|at| first_bits(nr_pages - at * EACH)));
        Ok(Pool { free, had_from: nr_pages, nr_pages, nr_free: nr_pages })
    }

    /// How many are free.
    pub fn nr_free(&self) -> usize {
        self.nr_free
    }

    /// Another back end has had none of them.
    pub fn begin_again(&mut self) {
        self.had_from = self.nr_pages;
    }

    /// Takes as many pages as there are places, at most [`MAX_SEGMENTS`]. `false`: there are not so many.
    #[inline]
    pub fn take(&mut self, places: &mut [PageNr]) -> bool {
        if places.is_empty() {
            return true;
        }
        match self.run(places.len()) {
            Some((at, bit)) => {
                self.use_up(at, first_bits(places.len()) << bit, places.len());
                places.iter_mut().zip(at * EACH + bit as usize..).for_each(|(place, page)| *place = number(page));
                true
            }
            None => self.take_new_ones(places),
        }
    }

    /// Takes one.
    #[inline]
    pub fn take_one(&mut self) -> Option<PageNr> {
        let mut place = [0];
        self.take(&mut place).then_some(place[0])
    }

    /// A run of so many pages that this back end has had, and that are free.
    #[inline]
    fn run(&self, nr: usize) -> Option<(usize, u32)> {
        let mut behind = u64::MAX << (self.had_from % EACH);
        for at in self.had_from / EACH..self.free.len() {
            if let Some(bit) = self.free.get(at).and_then(|word| run_in(word & behind, nr)) {
                return Some((at, bit));
            }
            behind = u64::MAX;
        }
        None
    }

    /// Takes pages that this back end has not had, as far as there are some.
    fn take_new_ones(&mut self, places: &mut [PageNr]) -> bool {
        if places.len() > self.nr_free || places.len() > MAX_SEGMENTS {
            return false;
        }
        for place in places {
            match self.take_new().or_else(|| self.take_one()) {
                Some(page) => *place = page,
                None => return false,
            }
        }
        true
    }

    /// The last page that this back end has not had.
    fn take_new(&mut self) -> Option<PageNr> {
        let (last, before) = (self.had_from / EACH, first_bits(self.had_from % EACH));
        let words = self.free.iter().enumerate().take(last + 1).rev();
        let (at, word) = words
            .map(|(at, word)| (at, if at == last { word & before } else { *word }))
            .find(|(_, word)| *word != 0)?;
        let bit = word.ilog2();
        self.use_up(at, 1 << bit, 1);
        self.had_from = at * EACH + bit as usize;
        Some(number(self.had_from))
    }

    /// Pages of a word, whose bits these are, `nr` of them.
    #[inline]
    fn use_up(&mut self, at: usize, bits: u64, nr: usize) {
        if let Some(free) = self.free.get_mut(at) {
            *free &= !bits;
            self.nr_free -= nr;
        }
    }

    /// Nothing goes through a page any more.
    #[inline]
    pub fn give(&mut self, page: PageNr) {
        let (at, bit) = (usize::from(page) / EACH, 1 << (usize::from(page) % EACH));
        if let Some(word) = self.free.get_mut(at).filter(|word| **word & bit == 0) {
            *word |= bit;
            self.nr_free += 1;
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "MAX_PAGES")]
fn number(page: usize) -> PageNr {
    page as PageNr
}

/// The first `nr` bits of a word, or all.
fn first_bits(nr: usize) -> u64 {
    if nr < EACH {
        (1 << nr) - 1
    } else {
        u64::MAX
    }
}

/// The first bit of the first run of so many that are set.
#[inline]
fn run_in(word: u64, nr: usize) -> Option<u32> {
    // Bit n: so many from n on are set.
    let (mut runs, mut so_many) = (word, 1);
    while so_many < nr && runs != 0 {
        let more = so_many.min(nr - so_many);
        runs &= runs >> more;
        so_many += more;
    }
    (runs != 0).then(|| runs.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pool: &mut Pool, nr: usize) -> Option<Vec<PageNr>> {
        let mut places = std::vec![PageNr::MAX; nr];
        pool.take(&mut places).then_some(places)
    }

    #[test]
    fn new_pages_come_backwards_and_those_that_a_back_end_has_had_follow_each_other() {
        for nr_pages in [40u16, 64, 100, 128, 200] {
            let mut pool = Pool::new(nr_pages.into()).expect("memory");
            let last = |n: u16| nr_pages - n;
            assert_eq!(taken(&mut pool, 3), Some(std::vec![last(1), last(2), last(3)]));
            assert_eq!(taken(&mut pool, 1), Some(std::vec![last(4)]));
            assert_eq!(taken(&mut pool, 0), Some(std::vec![]));
            (1..=4).for_each(|n| pool.give(last(n)));
            assert_eq!(taken(&mut pool, 4), Some(std::vec![last(4), last(3), last(2), last(1)]));
            (1..=4).for_each(|n| pool.give(last(n)));
            // Those of requests that come one after the other, too.
            let again: Vec<_> = (0..4).map(|_| pool.take_one()).collect();
            assert_eq!(again, [4, 3, 2, 1].map(|n| Some(last(n))));
            assert_eq!(taken(&mut pool, 2), Some(std::vec![last(5), last(6)]));
            pool.begin_again();
            (1..=4).for_each(|n| pool.give(last(n)));
            assert_eq!(taken(&mut pool, 2), Some(std::vec![last(1), last(2)]));
        }
    }

    #[test]
    fn pages_that_are_apart_will_do_and_none_is_taken_unless_all_are_there() {
        let mut pool = Pool::new(130).expect("memory");
        let all: Vec<_> = (0..130).map(|_| pool.take_one()).collect();
        assert_eq!(all, (0..130).rev().map(Some).collect::<Vec<_>>());
        assert_eq!((pool.take_one(), pool.nr_free()), (None, 0));
        [5, 6, 63, 64, 129].into_iter().for_each(|page| pool.give(page));
        // What is given twice is there once.
        pool.give(64);
        assert_eq!((taken(&mut pool, 6), pool.nr_free()), (None, 5));
        assert_eq!(taken(&mut pool, 2), Some(std::vec![5, 6]));
        assert_eq!(taken(&mut pool, 3), Some(std::vec![63, 64, 129]));
    }

    #[test]
    fn what_was_taken_is_nobody_elses() {
        let mut pool = Pool::new(100).expect("memory");
        let (mut used, mut seed) = (Vec::<Vec<PageNr>>::new(), 1u32);
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (nr, which) = ((seed >> 24) as usize % (MAX_SEGMENTS + 1), (seed >> 8) as usize & 0xff);
            let nr_used: usize = used.iter().map(Vec::len).sum();
            assert_eq!(pool.nr_free(), 100 - nr_used);
            match taken(&mut pool, nr) {
                Some(pages) => used.push(pages),
                None => assert!(nr_used + nr > 100, "{nr} pages beside {nr_used}"),
            }
            let mut all: Vec<_> = used.iter().flatten().copied().collect();
            all.sort_unstable();
            assert!(all.windows(2).all(|two| two[0] < two[1]) && all.last().is_none_or(|last| *last < 100));
            if which.is_multiple_of(2) && !used.is_empty() {
                used.swap_remove(which % used.len()).into_iter().for_each(|page| pool.give(page));
            }
            if which == 0xff {
                pool.begin_again();
            }
        }
    }

    #[test]
    fn runs_are_found_wherever_they_are() {
        for nr in 1..=MAX_SEGMENTS {
            for bit in 0..=EACH - nr {
                let run = first_bits(nr) << bit;
                assert_eq!(run_in(run, nr), u32::try_from(bit).ok());
                assert_eq!(run_in(run & !(1 << (bit + nr / 2)), nr), None);
            }
        }
    }
}
