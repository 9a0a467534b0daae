//! The elevator: in which order requests that wait are passed on.
//!
//! Requests that wait at one time are passed on in one *sweep*, the one with the lowest sector first. What comes
//! meanwhile, because the back end's ring is full, waits for the next sweep. So nobody is passed over by more requests
//! than those of the sweep that is under way when he comes, and of his own: fewer than twice [`PLACES`]. Nothing waits
//! for a sweep to begin.

use super::journal::PLACES;

/// What is left of a sweep: places of requests, by their first sectors.
#[derive(Default)]
pub struct Sweep {
    places: [(u64, u8); PLACES],
    at: u8,
    end: u8,
}

impl Sweep {
    /// Nothing is left of it.
    pub fn clear(&mut self) {
        (self.at, self.end) = (0, 0);
    }

    /// The request whose turn it is.
    #[inline]
    pub fn first(&self) -> Option<u8> {
        self.places[..usize::from(self.end)].get(usize::from(self.at)).map(|(_, place)| *place)
    }

    /// All of that is passed on.
    #[inline]
    pub fn advance(&mut self) {
        self.at += 1;
        if self.at >= self.end {
            self.clear();
        }
    }

    /// A request joins a sweep that has not begun. Of those of one sector, the first that joined is the first.
    #[inline]
    pub fn join(&mut self, place: u8, sector: u64) {
        let nr = usize::from(self.end);
        if nr == PLACES {
            debug_assert!(false, "a place joins twice");
            return;
        }
        // They are few as a rule.
        let mut at = nr;
        while let Some(before) = at.checked_sub(1).map(|at| self.places[at]).filter(|(other, _)| *other > sector) {
            self.places[at] = before;
            at -= 1;
        }
        self.places[at] = (sector, place);
        self.end += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_sector_is_first_and_of_one_sector_who_came_first() {
        let mut sweep = Sweep::default();
        for (place, sector) in [(3, 50), (1, 7), (9, u64::MAX), (2, 50), (0, 0), (31, 49)] {
            sweep.join(place, sector);
        }
        for place in [0, 1, 31, 3, 2, 9] {
            assert_eq!(sweep.first(), Some(place));
            sweep.advance();
        }
        assert_eq!(sweep.first(), None);
        (0..32).for_each(|place| sweep.join(place, 32 - u64::from(place)));
        assert_eq!(sweep.first(), Some(31));
        sweep.clear();
        assert_eq!(sweep.first(), None);
    }
}
