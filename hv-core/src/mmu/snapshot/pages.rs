//! Lists that are as long as a domain has frames, in pages: there may be no memory in larger pieces. What has the pages
//! in their order cannot be in pages itself, so it is asked for as well.

use super::Keep;
use crate::snapshot::Stop;
use alloc::vec::Vec;
use x86::Mfn;

const PAGE: usize = 4096;

/// A list in the order of frames' numbers.
#[derive(Debug)]
pub(super) struct Pages<T> {
    parts: Vec<Vec<T>>,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Pages<T> {
    /// Elements of a page.
    const PART: usize = PAGE / size_of::<T>();

    /// Nothing yet.
    pub const fn new() -> Self {
        Self { parts: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.parts.len().saturating_sub(1) * Self::PART + self.parts.last().map_or(0, Vec::len)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, place: usize) -> Option<&T> {
        self.parts.get(place / Self::PART)?.get(place % Self::PART)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flatten()
    }

    /// The element of frame `mfn`, if there is one; `of` says whose an element is.
    pub fn find_mut(&mut self, mfn: Mfn, of: impl Fn(&T) -> Mfn) -> Option<&mut T> {
        let part = self.parts.partition_point(|part| part.last().is_some_and(|last| of(last) < mfn));
        let part = self.parts.get_mut(part)?;
        let place = part.binary_search_by_key(&mfn, of).ok()?;
        part.get_mut(place)
    }

    /// Adds an element, of a frame behind all others. [`Stop::NoMemory`]: nothing has changed.
    pub fn push(&mut self, element: T, keep: &impl Keep) -> Result<(), Stop> {
        if self.parts.last().is_none_or(|part| part.len() == Self::PART) {
            self.add_part(keep)?;
        }
        if let Some(part) = self.parts.last_mut() {
            part.push(element);
        }
        Ok(())
    }

    fn add_part(&mut self, keep: &impl Keep) -> Result<(), Stop> {
        let len = self.parts.len();
        // Twice as long as before, so that it is seldom written anew.
        let longer = if len == self.parts.capacity() { (2 * len).max(PAGE / size_of::<Vec<T>>()) } else { 0 };
        if !keep.has_room(PAGE + longer * size_of::<Vec<T>>()) {
            return Err(Stop::NoMemory);
        }
        let mut part = Vec::new();
        part.try_reserve_exact(Self::PART).map_err(|_| Stop::NoMemory)?;
        self.parts.try_reserve_exact(longer.saturating_sub(len)).map_err(|_| Stop::NoMemory)?;
        self.parts.push(part);
        Ok(())
    }

    /// Forgets the last element.
    pub fn pop(&mut self) {
        if let Some(part) = self.parts.last_mut() {
            part.pop();
        }
    }

    /// Takes the last page out.
    pub fn pop_part(&mut self) -> Option<Vec<T>> {
        self.parts.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mmu::fake::Machine;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_list_asks_for_all_that_it_takes_and_for_no_more() {
        const PAGES: usize = 400;
        let m = Machine::new(4);
        let mut list = Pages::<Mfn>::new();
        let nr = PAGES * Pages::<Mfn>::PART;
        let mut refused = 0;
        for n in 0..nr as u64 {
            // As if there were only single pages.
            m.room.store(PAGE, Ordering::SeqCst);
            if list.push(Mfn::new(2 * n), &m) == Err(Stop::NoMemory) {
                assert_eq!(list.len() as u64, n, "nothing has changed");
                refused += 1;
                m.room.store(usize::MAX, Ordering::SeqCst);
                list.push(Mfn::new(2 * n), &m).unwrap();
            }
        }
        let held = list.parts.iter().map(|part| part.capacity() * size_of::<Mfn>()).sum::<usize>();
        let (at_first, entry) = (PAGE / size_of::<Vec<Mfn>>(), size_of::<Vec<Mfn>>());
        assert_eq!((refused, list.parts.capacity()), (3, 4 * at_first), "twice as long each time");
        assert_eq!(m.asked.load(Ordering::SeqCst), held + 7 * at_first * entry);
        assert_eq!((list.len(), list.iter().count(), list.get(nr - 1)), (nr, nr, Some(&Mfn::new(2 * nr as u64 - 2))));
        for n in [0, 511, 512, 513, nr as u64 - 1] {
            assert_eq!(list.find_mut(Mfn::new(2 * n), |mfn| *mfn), Some(&mut Mfn::new(2 * n)));
            assert_eq!(list.find_mut(Mfn::new(2 * n + 1), |mfn| *mfn), None);
        }
    }
}
