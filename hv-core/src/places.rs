//! Numbered places for what domains make, of which no domain has them all.

use xen_abi::layout::DomId;

/// `N` places, of which one domain has at most `EACH`.
#[derive(Debug)]
pub struct Places<const N: usize, const EACH: usize> {
    owners: [Option<DomId>; N],
}

impl<const N: usize, const EACH: usize> Places<N, EACH> {
    /// All of them free.
    #[must_use]
    pub const fn new() -> Self {
        Self { owners: [None; N] }
    }

    /// The first free place is `owner`'s. `None` if none is free, or if it has as many as it may have.
    pub fn take(&mut self, owner: DomId) -> Option<usize> {
        if self.owners.iter().filter(|has| **has == Some(owner)).count() >= EACH {
            return None;
        }
        let place = self.owners.iter().position(Option::is_none)?;
        self.owners[place] = Some(owner);
        Some(place)
    }

    /// A place is free again.
    pub fn give_back(&mut self, place: usize) {
        if let Some(owner) = self.owners.get_mut(place) {
            *owner = None;
        }
    }
}

impl<const N: usize, const EACH: usize> Default for Places<N, EACH> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_takes_all_it_gets_leaves_places_to_others() {
        let (greedy, other) = (DomId(3), DomId(4));
        let mut places = Places::<8, 3>::new();
        for n in 0..3 {
            assert_eq!(places.take(greedy), Some(n));
        }
        assert_eq!(places.take(greedy), None, "it has three");
        assert_eq!(places.take(other), Some(3));
        places.give_back(1);
        assert_eq!(places.take(greedy), Some(1), "it has two again");
        assert_eq!(places.take(greedy), None);
    }

    #[test]
    fn there_are_no_more_than_there_are() {
        let mut places = Places::<4, 3>::new();
        for n in 0..4 {
            assert_eq!(places.take(DomId(u16::try_from(n).unwrap())), Some(n));
        }
        assert_eq!(places.take(DomId(9)), None);
        places.give_back(7);
        assert_eq!(places.take(DomId(9)), None, "there is no such place");
        places.give_back(2);
        assert_eq!(places.take(DomId(9)), Some(2));
    }
}
