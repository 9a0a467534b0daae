//! What came at once for several receivers, or went back to several senders at once, is dealt with lot by lot: each is
//! locked, and hears of it, once, and not each time that another's comes between. What is one's stays in order.

use core::array;

/// Most that come at once.
pub const MOST: usize = 32;

/// Those that are left of what came at once, by number; each has a key, which says whose it is.
pub struct Lots<K> {
    /// Keys, each in the place that its last bits say or, if another has that, in the next free one.
    keys: [K; MOST],
    /// What is theirs.
    lots: [Lot; MOST],
    /// Places that are in use; of others nothing above is looked at.
    used: Lot,
    /// Whose turn it is: his are given at once, others' are put off.
    turn: Option<K>,
}

impl<K: Copy + PartialEq + Default> Default for Lots<K> {
    #[inline]
    fn default() -> Self {
        Self { keys: array::from_fn(|_| K::default()), lots: [Lot(0); MOST], used: Lot(0), turn: None }
    }
}

impl<K: Copy + PartialEq + Into<u32>> Lots<K> {
    /// Number `n`, which is below [`MOST`] and was not named before, is for `key`. `true`: it is his turn. Else it is
    /// put off.
    #[inline]
    pub fn is_turn(&mut self, n: usize, key: K) -> bool {
        let is_his = *self.turn.get_or_insert(key) == key;
        if !is_his {
            self.put_off(n, key);
        }
        is_his
    }

    /// The same; it is put off, whoever's turn it is.
    #[inline]
    pub fn put_off(&mut self, n: usize, key: K) {
        debug_assert!(n < MOST, "more than come at once");
        let first = key.into() as usize;
        // There are no more keys than numbers, so one of the places is his or free.
        for at in (0..MOST).map(|more| first.wrapping_add(more) % MOST) {
            if !self.used.has(at) {
                self.used.add(at);
                (self.keys[at], self.lots[at]) = (key, Lot(0));
            }
            if self.keys[at] == key {
                return self.lots[at].add(n);
            }
        }
    }

    /// Takes what was put off: somebody's, all of them, and so on. Then nothing is put off, and it is nobody's turn.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = (K, Lot)> + '_ {
        self.turn = None;
        let used = core::mem::take(&mut self.used);
        used.map(|at| (self.keys[at], self.lots[at]))
    }
}

/// Numbers below [`MOST`], in order.
#[derive(Clone, Copy, Default)]
pub struct Lot(u32);

impl Lot {
    #[inline]
    fn has(self, n: usize) -> bool {
        self.0 & 1 << (n % MOST) != 0
    }

    #[inline]
    fn add(&mut self, n: usize) {
        self.0 |= 1 << (n % MOST);
    }
}

const _: () = assert!(MOST == u32::BITS as usize);

impl Iterator for Lot {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let first = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (first < MOST).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Some have the same place, and the last places are taken.
    const KEYS: [u16; 6] = [0, 1, 32, 33, 63, 95];

    /// What is done with a frame.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Does {
        /// Somebody's lot begins.
        Begins(u16),
        Gives(u16, usize),
        /// It goes to all.
        Floods(usize),
    }

    /// Who deals.
    #[derive(Default)]
    struct Hand {
        lots: Lots<u16>,
        at: Option<u16>,
        did: Vec<Does>,
    }

    impl Hand {
        fn give(&mut self, key: u16, n: usize) {
            if self.at != Some(key) {
                self.at = Some(key);
                self.did.push(Does::Begins(key));
            }
            self.did.push(Does::Gives(key, n));
        }

        fn give_rest(&mut self) {
            let lots: Vec<_> = self.lots.drain().collect();
            for (key, lot) in lots {
                lot.for_each(|n| self.give(key, n));
            }
        }
    }

    /// Frames for these receivers, or for all, come at once.
    fn deal(frames: &[Option<u16>]) -> Vec<Does> {
        let mut hand = Hand::default();
        for (n, frame) in frames.iter().enumerate() {
            match frame {
                Some(key) if hand.lots.is_turn(n, *key) => hand.give(*key, n),
                Some(_) => {}
                None => {
                    hand.give_rest();
                    hand.at = None;
                    hand.did.push(Does::Floods(n));
                }
            }
        }
        hand.give_rest();
        hand.did
    }

    proptest! {
        /// Each receiver gets his, once and in order, also with those that are for all; and between two of these he is
        /// asked once.
        #[test]
        fn everybody_gets_his_in_order_and_at_once(
            frames in prop::collection::vec(prop::option::weighted(0.9, prop::sample::select(&KEYS[..])), 0..=MOST),
        ) {
            let did = deal(&frames);
            for key in KEYS {
                let wanted: Vec<usize> = (0..frames.len()).filter(|n| frames[*n].is_none_or(|k| k == key)).collect();
                let got: Vec<usize> = did.iter().filter_map(|does| match does {
                    Does::Gives(k, n) if *k == key => Some(*n),
                    Does::Floods(n) => Some(*n),
                    _ => None,
                }).collect();
                prop_assert_eq!(got, wanted);
            }
            prop_assert_eq!(did.iter().filter(|d| matches!(d, Does::Gives(..))).count(), frames.iter().flatten().count());
            let is_flood = |does: &Does| matches!(does, Does::Floods(_));
            for between in did.split(is_flood) {
                for key in KEYS {
                    prop_assert!(between.iter().filter(|does| **does == Does::Begins(key)).count() <= 1);
                }
            }
        }
    }

    #[test]
    fn what_is_put_off_comes_by_lots() {
        let mut lots = Lots::default();
        [5u16, 7, 5, 5, 9, 7].into_iter().enumerate().for_each(|(n, key)| lots.put_off(n, key));
        let got: Vec<_> = lots.drain().map(|(key, lot)| (key, lot.collect::<Vec<_>>())).collect();
        assert_eq!(got, [(5, [0, 2, 3].to_vec()), (7, [1, 5].to_vec()), (9, [4].to_vec())]);
        assert!(lots.drain().next().is_none());
    }

    #[test]
    fn frames_in_turns_become_one_lot_each() {
        let frames: Vec<Option<u16>> = (0u16..32).map(|n| Some(n % 4)).collect();
        let did = deal(&frames);
        assert_eq!(did.iter().filter(|does| matches!(does, Does::Begins(_))).count(), 4);
        assert_eq!(did[..3], [Does::Begins(0), Does::Gives(0, 0), Does::Gives(0, 4)]);
        assert_eq!(did.last(), Some(&Does::Gives(3, 31)));
    }
}
