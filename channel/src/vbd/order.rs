//! In which order requests were taken: a list of places, from which any may go.

use super::journal::PLACES;

/// Stands for both ends of the list.
#[allow(clippy::cast_possible_truncation, reason = "32")]
const END: u8 = PLACES as u8;
/// Places and [`END`], rounded up: a place needs no check then.
const SIZE: usize = 2 * PLACES;
const _: () = assert!(SIZE.is_power_of_two());

/// See the module's documentation. A place is less than [`PLACES`].
pub struct Order {
    after: [u8; SIZE],
    before: [u8; SIZE],
}

impl Default for Order {
    fn default() -> Self {
        Order { after: [END; SIZE], before: [END; SIZE] }
    }
}

impl Order {
    /// A place that is not in the list becomes the last one.
    #[inline]
    pub fn push(&mut self, place: u8) {
        let last = self.before[at(END)];
        self.join(last, place);
        self.join(place, END);
    }

    /// A place that is in the list goes.
    #[inline]
    pub fn remove(&mut self, place: u8) {
        self.join(self.before[at(place)], self.after[at(place)]);
    }

    #[inline]
    fn join(&mut self, first: u8, second: u8) {
        self.after[at(first)] = second;
        self.before[at(second)] = first;
    }

    /// Places, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        self.from(self.after[at(END)])
    }

    /// Places from this one on.
    #[inline]
    pub fn from(&self, place: u8) -> impl Iterator<Item = u8> + '_ {
        core::iter::successors(Some(place), |place| Some(self.after[at(*place)])).take_while(|place| *place != END)
    }

    /// The first one of `places`, a bit each, which are in the list. It is looked for from the end: those that came
    /// last are near.
    #[inline]
    pub fn first_of(&self, places: u32) -> u8 {
        let (mut rest, mut place) = (places, END);
        while rest != 0 {
            place = self.before[at(place)];
            if place == END {
                debug_assert!(false, "they are in the list");
                break;
            }
            rest &= !(1 << place);
        }
        place
    }
}

fn at(place: u8) -> usize {
    usize::from(place) % SIZE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn places_leave_from_anywhere_and_the_rest_keep_their_order() {
        let (mut order, mut model, mut seed) = (Order::default(), Vec::<u8>::new(), 7_u32);
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let place = (seed >> 27) as u8;
            match model.iter().position(|p| *p == place) {
                Some(at) => {
                    model.remove(at);
                    order.remove(place);
                }
                None => {
                    model.push(place);
                    order.push(place);
                }
            }
            assert_eq!(order.iter().collect::<Vec<_>>(), model);
            let wanted = model.iter().filter(|p| seed >> (*p % 16) & 1 == 1).fold(0, |all, p| all | 1 << p);
            let first = model.iter().copied().find(|p| wanted >> p & 1 == 1);
            assert_eq!(order.first_of(wanted), first.unwrap_or(END));
            let tail: Vec<_> = model.iter().copied().skip_while(|p| Some(*p) != first).collect();
            assert_eq!(order.from(order.first_of(wanted)).collect::<Vec<_>>(), tail);
        }
    }
}
