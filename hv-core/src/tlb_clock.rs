//! Which CPUs may still know a translation: a clock of flushes.
//!
//! A frame that loses its last use remembers the clock; a CPU whose last complete flush has a later clock value cannot
//! hold a translation from that use. A flush reads (or advances) the clock *before* it begins. The clock only advances
//! if somebody remembered its present value, so it is slow.
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
        // What ended the use may be a plain store, which others do not see yet: a CPU that flushes now, later than the
        // clock that we would read, could still find the entry as it was.
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

    /// The end of a use that has this stamp. A CPU whose last complete flush was at that time, or before, may know it
    /// still. Whoever ends a use from now on remembers another time, also if no CPU has to flush.
    ///
    /// That is so before anybody flushes: a flush moves the clock on unless another CPU is about to, and what a CPU
    /// comes to know after its flush and does not know any more at once must not have the stamp for which it has
    /// flushed.
    ///
    /// The last time with such a lower half: if the use ended earlier, by the whole of a turn, more CPUs flush than
    /// would have to.
    #[inline]
    pub fn pass(&self, stamp: u32) -> u64 {
        let now = self.now.load(Ordering::SeqCst);
        let end = now.saturating_sub(lower(now).wrapping_sub(stamp).into());
        if end == now {
            let _ = self.now.compare_exchange(end, end + 1, Ordering::SeqCst, Ordering::SeqCst);
        }
        end
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
        assert_eq!((stamp, clock.stamp()), (1, 1));
        assert_eq!((clock.flush_begins(), clock.flush_begins(), clock.pass(stamp)), (2, 2, 1));
        assert_eq!(clock.flush_begins(), 2, "it has passed that");
        assert_eq!((clock.pass(2), clock.flush_begins()), (2, 3));
    }

    /// A frame that has not been used since has the stamp that it had. If it has been, by a CPU that had just flushed
    /// for it, it must have another.
    #[test]
    fn a_use_behind_a_flush_ends_later_than_the_one_before() {
        let clock = TlbClock::at(5);
        let stamp = clock.stamp();
        // A third CPU begins a flush, and has not got further.
        clock.is_used.store(false, Ordering::SeqCst);
        let end = clock.pass(stamp);
        assert_eq!(end, 5);
        assert!(clock.flush_begins() > end);
        assert_ne!(clock.stamp(), stamp);
    }

    /// One that spins in its guest for days, without a flush, while others flush.
    #[test]
    fn whoever_has_not_flushed_for_long_is_asked() {
        for behind in [0, 1, TURN / 2 - 1, TURN / 2, TURN / 2 + 1, TURN - 1, TURN, 3 * TURN / 2, 5 * TURN] {
            let clock = TlbClock::at(7 + behind);
            let stamp = clock.stamp();
            assert!(clock.pass(stamp) >= 7, "{behind} behind");
        }
    }

    /// What happens to a translation that two CPUs know.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        /// Its use ends, and another begins.
        Ends,
        /// A CPU flushes.
        Flushes(usize),
        /// A third CPU, which knows nothing, gets to the middle of beginning to flush, or from there to the end.
        Halfway,
        /// The frame gets another use: who may know the last one flushes. If `is_late`, that one came and went again
        /// behind the flushes.
        Asks { is_late: bool },
        /// Much else happens.
        Passes(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            Just(Event::Ends),
            (0_usize..2).prop_map(Event::Flushes),
            Just(Event::Halfway),
            any::<bool>().prop_map(|is_late| Event::Asks { is_late }),
            prop_oneof![0..3_u64, TURN / 2 - 2..TURN / 2 + 2, TURN - 2..TURN + 2].prop_map(Event::Passes),
        ]
    }

    proptest! {
        /// After each question no CPU knows a translation of the use before, however far the clock went, and who asked
        /// sees a use that came in between by its stamp.
        #[test]
        fn nobody_who_may_know_it_is_left_out(start in prop_oneof![1..3_u64, TURN - 3..TURN + 3], events in prop::collection::vec(event(), 1..60)) {
            let mut clock = TlbClock::at(start);
            let (mut last, mut knows, mut stamp) = ([clock.flush_begins(); 2], [false; 2], None);
            let mut is_halfway = false;
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
                    Event::Halfway if is_halfway => {
                        clock.now.fetch_add(1, Ordering::SeqCst);
                        is_halfway = false;
                    }
                    Event::Halfway => is_halfway = clock.is_used.swap(false, Ordering::SeqCst),
                    Event::Asks { is_late } => {
                        let Some(before) = stamp.take() else { continue };
                        let end = clock.pass(before);
                        let asked: Vec<usize> = (0..2).filter(|cpu| end >= last[*cpu]).collect();
                        for cpu in asked {
                            last[cpu] = clock.flush_begins();
                            knows[cpu] = false;
                        }
                        prop_assert_eq!(knows, [false; 2]);
                        if is_late {
                            knows = [true; 2];
                            let late = clock.stamp();
                            let is_a_turn_later = clock.now.load(Ordering::SeqCst) - end >= TURN;
                            prop_assert!(late != before || is_a_turn_later, "a use that ended at {late} goes unseen");
                            stamp = Some(late);
                        }
                    }
                    Event::Passes(by) => clock = TlbClock { now: AtomicU64::new(clock.now.into_inner() + by), is_used: clock.is_used },
                }
            }
        }
    }
}
