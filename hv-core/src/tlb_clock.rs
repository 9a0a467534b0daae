//! Which CPUs may still know a translation: a clock of flushes.
//!
//! A frame that loses its last use remembers the clock; a CPU whose last complete flush has a later clock value cannot hold a
//! translation from that use. A flush reads (or advances) the clock *before* it begins. The clock only advances if somebody
//! remembered its present value, so it is slow.
//!
//! Frames remember its lower half only, in a stamp. The clock itself has 64 bits, and never wraps.

use core::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering};

/// The clock.
pub struct TlbClock {
    now: AtomicU64,
    /// Has its present value been remembered by anybody?
    is_used: AtomicBool,
}

impl TlbClock {
    /// One that reads `now`.
    pub const fn at(now: u64) -> Self {
        Self { now: AtomicU64::new(now), is_used: AtomicBool::new(false) }
    }

    /// What is to be remembered as the end of a use.
    #[inline]
    pub fn stamp(&self) -> u32 {
        // What ended the use may be a plain store, which others do not see yet: a CPU that flushes now, later than the clock
        // that we would read, could still find the entry as it was.
        fence(Ordering::SeqCst);
        let now = self.now.load(Ordering::SeqCst);
        // Only after reading it: then either the clock has moved on already, or the next flush moves it.
        if !self.is_used.load(Ordering::SeqCst) {
            self.is_used.store(true, Ordering::SeqCst);
        }
        lower(now)
    }

    /// The time of a flush that begins now.
    #[inline]
    pub fn flush_begins(&self) -> u64 {
        if self.is_used.load(Ordering::SeqCst) {
            // A use that is remembered in between has the old value, or sets the mark again.
            self.is_used.store(false, Ordering::SeqCst);
            self.now.fetch_add(1, Ordering::SeqCst).wrapping_add(1)
        } else {
            self.now.load(Ordering::SeqCst)
        }
    }

    /// The end of a use that has this stamp. A CPU whose last complete flush was at that time, or before, may know it still.
    ///
    /// The last time with such a lower half: if the use ended earlier, by the whole of a turn, more CPUs flush than would have to.
    #[inline]
    pub fn end_of(&self, stamp: u32) -> u64 {
        let now = self.now.load(Ordering::SeqCst);
        now.saturating_sub(lower(now).wrapping_sub(stamp).into())
    }

    /// Whoever ends a use from now on remembers another time than `end`.
    #[inline]
    pub fn pass(&self, end: u64) {
        let _ = self.now.compare_exchange(end, end + 1, Ordering::SeqCst, Ordering::SeqCst);
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the lower half is meant")]
const fn lower(time: u64) -> u32 {
    time as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const TURN: u64 = 1 << 32;

    #[test]
    fn it_moves_when_its_value_is_remembered() {
        let clock = TlbClock::at(1);
        assert_eq!((clock.flush_begins(), clock.flush_begins()), (1, 1), "nobody has looked");
        let stamp = clock.stamp();
        assert_eq!((stamp, clock.stamp(), clock.end_of(stamp)), (1, 1, 1));
        assert_eq!((clock.flush_begins(), clock.flush_begins(), clock.end_of(stamp)), (2, 2, 1));
        clock.pass(1);
        assert_eq!(clock.flush_begins(), 2, "it has passed that");
        clock.pass(2);
        assert_eq!(clock.flush_begins(), 3);
    }

    /// One that spins in its guest for days, without a flush, while others flush.
    #[test]
    fn whoever_has_not_flushed_for_long_is_asked() {
        for behind in [0, 1, TURN / 2 - 1, TURN / 2, TURN / 2 + 1, TURN - 1, TURN, 3 * TURN / 2, 5 * TURN] {
            let clock = TlbClock::at(7 + behind);
            let stamp = clock.stamp();
            assert!(clock.end_of(stamp) >= 7, "{behind} behind");
        }
    }

    /// What happens to a translation that two CPUs know.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// Its use ends, and another begins.
        Ends,
        /// A CPU flushes.
        Flushes(usize),
        /// The frame gets another use: who may know the last one flushes.
        Asks,
        /// Much else happens.
        Passes(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Ends),
            (0_usize..2).prop_map(Event::Flushes),
            Just(Event::Asks),
            prop_oneof![0..3_u64, TURN / 2 - 2..TURN / 2 + 2, TURN - 2..TURN + 2].prop_map(Event::Passes),
        ]
    }

    proptest! {
        /// After each question no CPU knows a translation of the use before, however far the clock went.
        #[test]
        fn nobody_who_may_know_it_is_left_out(start in prop_oneof![1..3_u64, TURN - 3..TURN + 3], events in prop::collection::vec(event(), 1..60)) {
            let mut clock = TlbClock::at(start);
            let (mut last, mut knows, mut stamp) = ([clock.flush_begins(); 2], [false; 2], None);
            for event in events {
                match event {
                    Event::Ends => {
                        knows = [true; 2];
                        stamp = Some(clock.stamp());
                    }
                    Event::Flushes(cpu) => {
                        last[cpu] = clock.flush_begins();
                        knows[cpu] = false;
                    }
                    Event::Asks => {
                        let Some(stamp) = stamp.take() else { continue };
                        let end = clock.end_of(stamp);
                        let asked: Vec<usize> = (0..2).filter(|cpu| end >= last[*cpu]).collect();
                        for cpu in asked {
                            last[cpu] = clock.flush_begins();
                            knows[cpu] = false;
                        }
                        clock.pass(end);
                        prop_assert_eq!(knows, [false; 2]);
                    }
                    Event::Passes(by) => clock = TlbClock { now: AtomicU64::new(clock.now.into_inner() + by), is_used: clock.is_used },
                }
            }
        }
    }
}
