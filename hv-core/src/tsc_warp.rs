//! Do the time-stamp counters of two CPUs agree? Guests compare readings of different vCPUs if they are told that they
//! may.
//!
//! One CPU stamps a question, the other one its answer, and the first one that it has heard it. If both count alike the
//! answer's stamp is between the other two, however long either took. If it is not, one of them is ahead of the other,
//! by more than a message takes: somebody could see time go back. What is less than that nobody sees.

/// How many exchanges are enough.
pub const EXCHANGES: u32 = 200;
/// A difference is one if it was seen so many times. One that is there is seen nearly each time; a stamp that was taken
/// out of order is not.
const SIGHTINGS: u32 = 4;

/// The stamps of one exchange.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// When it was asked, by the counter of the one that asks.
    pub asked: u64,
    /// By the counter of the one that answers.
    pub answered: u64,
    /// When the answer was there, by the counter of the one that asks.
    pub heard: u64,
}

impl Exchange {
    /// By how many ticks the one that asks is ahead at least; less than 0: behind.
    fn ahead(&self) -> i64 {
        let distance = |a: u64, b: u64| a.wrapping_sub(b) as i64;
        distance(self.asked, self.answered).max(0) + distance(self.heard, self.answered).min(0)
    }
}

/// What came of the exchanges of two CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct TscWarp {
    seen: u32,
    worst: i64,
}

impl TscWarp {
    /// Takes one exchange in.
    pub fn note(&mut self, exchange: Exchange) {
        let ahead = exchange.ahead();
        if ahead != 0 {
            self.seen += 1;
        }
        if ahead.unsigned_abs() > self.worst.unsigned_abs() {
            self.worst = ahead;
        }
    }

    /// By how many ticks the one that asked is ahead at least; less than 0: behind. `None`: nobody sees a difference.
    pub fn ahead(&self) -> Option<i64> {
        (self.seen >= SIGHTINGS).then_some(self.worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The CPU that asks is `offset` ticks ahead; question and answer take so many.
    fn exchanges(offset: i64, ways: impl Iterator<Item = (u64, u64)>) -> TscWarp {
        let mut warp = TscWarp::default();
        let mut now = 1_000_000u64;
        for (there, back) in ways {
            let own = |now: u64| now.wrapping_add_signed(offset);
            warp.note(Exchange { asked: own(now), answered: now + there, heard: own(now + there + back) });
            now += there + back + 500;
        }
        warp
    }

    fn ways() -> impl Iterator<Item = (u64, u64)> {
        (0..u64::from(EXCHANGES)).map(|i| (80 + i * 37 % 50, 80 + i * 53 % 50))
    }

    #[test]
    fn a_counter_that_is_behind_is_noticed() {
        let behind = exchanges(-1000, ways()).ahead().unwrap();
        assert!((-920..-800).contains(&behind), "{behind}");
        let ahead = exchanges(1000, ways()).ahead().unwrap();
        assert!((800..=920).contains(&ahead), "{ahead}");
        // It began to count at another time, or has passed zero.
        assert!(exchanges(-1_500_000, ways()).ahead().unwrap() < -1_000_000);
        assert!(exchanges(1 << 60, ways()).ahead().unwrap() > 1 << 59);
    }

    #[test]
    fn one_that_is_only_far_away_is_not() {
        assert_eq!(exchanges(0, ways()).ahead(), None);
        // Another hypervisor stops a CPU on the way, now and then, or always.
        assert_eq!(exchanges(0, ways().map(|(there, back)| (there * 10_000, back))).ahead(), None);
        assert_eq!(exchanges(0, ways().map(|(there, back)| (there, back + 50_000_000))).ahead(), None);
        // A difference that no message is fast enough for.
        assert_eq!(exchanges(70, ways()).ahead(), None);
        assert_eq!(exchanges(-70, ways()).ahead(), None);
    }

    #[test]
    fn a_stamp_that_was_taken_out_of_order_is_no_difference() {
        let mut warp = exchanges(0, ways());
        warp.note(Exchange { asked: 1000, answered: 990, heard: 1100 });
        assert_eq!(warp.ahead(), None);
    }
}
