//! The pages between guest and back end that nothing goes through now.
//!
//! A request's pages follow each other if there are so many that do. A stock back end that keeps pages mapped then has neighbours in its own memory,
//! too, and hands its device one piece of memory in place of many. Whether it has depends on the order in which it maps them: Linux takes pages to
//! map others' at from a heap whose top has the highest number, so of pages that it has not mapped yet the last one goes first.

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
    /// A bit for each page: this back end has not had it.
    fresh: Vec<u64>,
    nr_pages: usize,
    nr_free: usize,
}

impl Pool {
    /// So many pages, all of them free.
    pub fn new(nr_pages: usize) -> Result<Pool, NoMemory> {
        let (mut free, mut fresh) = (Vec::new(), Vec::new());
        for words in [&mut free, &mut fresh] {
            words.try_reserve_exact(nr_pages.div_ceil(EACH)).map_err(|_| NoMemory)?;
            words.extend((0..nr_pages.div_ceil(EACH)).map(|at| first_bits(nr_pages - at * EACH)));
        }
        Ok(Pool { free, fresh, nr_pages, nr_free: nr_pages })
    }

    /// How many are free.
    pub fn nr_free(&self) -> usize {
        self.nr_free
    }

    /// Another back end has had none of them.
    pub fn begin_again(&mut self) {
        for (at, word) in self.fresh.iter_mut().enumerate() {
            *word = first_bits(self.nr_pages - at * EACH);
        }
    }

    /// Takes as many pages as there are places, at most [`MAX_SEGMENTS`]. `false`: there are not so many.
    #[inline]
    pub fn take(&mut self, places: &mut [PageNr]) -> bool {
        match places {
            [] => true,
            [place] => self.take_last().map(|page| *place = page).is_some(),
            places => self.take_some(places),
        }
    }

    /// Takes one, the last.
    #[inline]
    pub fn take_last(&mut self) -> Option<PageNr> {
        let (at, word) = self.free.iter().enumerate().rev().find(|(_, word)| **word != 0)?;
        #[allow(clippy::cast_possible_truncation, reason = "MAX_PAGES")]
        let page = (at * EACH + word.ilog2() as usize) as PageNr;
        self.use_up(at, 1 << word.ilog2());
        Some(page)
    }

    fn take_some(&mut self, places: &mut [PageNr]) -> bool {
        if places.len() > self.nr_free || places.len() > MAX_SEGMENTS {
            return false;
        }
        if let Some((at, bit)) =
            self.free.iter().enumerate().find_map(|(at, word)| Some((at, run_in(*word, places.len())?)))
        {
            let run = first_bits(places.len()) << bit;
            let is_fresh = self.fresh[at] & run == run;
            let first = at * EACH + bit as usize;
            let last = first + places.len() - 1;
            for (nr, place) in places.iter_mut().enumerate() {
                #[allow(clippy::cast_possible_truncation, reason = "MAX_PAGES")]
                let page = if is_fresh { last - nr } else { first + nr } as PageNr;
                *place = page;
            }
            self.use_up(at, run);
            return true;
        }
        for place in places.iter_mut().rev() {
            match self.take_last() {
                Some(page) => *place = page,
                None => return false,
            }
        }
        true
    }

    fn use_up(&mut self, at: usize, bits: u64) {
        if let (Some(free), Some(fresh)) = (self.free.get_mut(at), self.fresh.get_mut(at)) {
            *free &= !bits;
            *fresh &= !bits;
            self.nr_free -= bits.count_ones() as usize;
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
    fn pages_that_a_back_end_has_had_follow_each_other_and_those_it_has_not_go_backwards() {
        let mut pool = Pool::new(40).expect("memory");
        assert_eq!(taken(&mut pool, 3), Some(std::vec![2, 1, 0]));
        assert_eq!(taken(&mut pool, 4), Some(std::vec![6, 5, 4, 3]));
        assert_eq!(taken(&mut pool, 1), Some(std::vec![39]));
        assert_eq!(taken(&mut pool, 0), Some(std::vec![]));
        (0..7).for_each(|page| pool.give(page));
        assert_eq!(taken(&mut pool, 6), Some((0..6).collect()));
        (0..6).for_each(|page| pool.give(page));
        pool.begin_again();
        assert_eq!(taken(&mut pool, 2), Some(std::vec![1, 0]));
    }

    #[test]
    fn pages_that_are_apart_will_do_and_none_is_taken_unless_all_are_there() {
        let mut pool = Pool::new(130).expect("memory");
        let all: Vec<_> = (0..130).map(|_| pool.take_last()).collect();
        assert_eq!(all, (0..130).rev().map(Some).collect::<Vec<_>>());
        assert_eq!((pool.take_last(), pool.nr_free()), (None, 0));
        [5, 6, 63, 64, 129].into_iter().for_each(|page| pool.give(page));
        // What is given twice is there once.
        pool.give(64);
        assert_eq!((taken(&mut pool, 6), pool.nr_free()), (None, 5));
        assert_eq!(taken(&mut pool, 2), Some(std::vec![5, 6]));
        assert_eq!(taken(&mut pool, 3), Some(std::vec![63, 64, 129]));
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
