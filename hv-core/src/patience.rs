//! How long an answer is waited for that a domain owes.
//!
//! It is looked for at intervals, and each look that finds nothing counts. So a machine that stands still, as one that
//! is emulated does, costs one look however long it stands; and while the domain cannot answer, because it is paused or
//! others have the CPUs, none counts. What it owes to nobody but itself, as that it takes events, is looked for more
//! and more rarely ([`Interval`]).

/// Looks for an answer until they are used up.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    look_at_ns: u64,
    interval_ns: u64,
    left: u32,
}

impl Patience {
    /// From `now_ns` on: `looks` of them, `interval_ns` nanoseconds apart.
    pub const fn new(now_ns: u64, interval_ns: u64, looks: u32) -> Self {
        Self { look_at_ns: now_ns.saturating_add(interval_ns), interval_ns, left: looks }
    }

    /// When the next look is due, in ns.
    pub const fn look_at_ns(&self) -> u64 {
        self.look_at_ns
    }

    /// There is no answer at `now_ns`. Is that the end? `may_answer` is asked if a look is due.
    pub fn is_over(&mut self, now_ns: u64, may_answer: impl FnOnce() -> bool) -> bool {
        if now_ns < self.look_at_ns {
            return false;
        }
        self.look_at_ns = now_ns.saturating_add(self.interval_ns);
        if may_answer() {
            self.left = self.left.saturating_sub(1);
        }
        self.left == 0
    }
}

/// The time from one look to the next for what may not come at all: each is twice as long as the one before, up to a
/// longest.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    ns: u64,
}

impl Interval {
    /// The first one, in ns.
    pub const SHORTEST_NS: u64 = 50_000;
    /// The longest one in ns, if who is waited for can do something: he may be about to.
    pub const LONGEST_NS: u64 = 400_000;
    /// The same while he cannot.
    pub const LONGEST_ABSENT_NS: u64 = 6_400_000;

    /// The first look is to come.
    pub const FIRST: Self = Self { ns: Self::SHORTEST_NS };

    /// How long it is until the next look, in ns. `may_answer`: who is waited for can do something.
    pub fn next_ns(&mut self, may_answer: bool) -> u64 {
        let longest = if may_answer { Self::LONGEST_NS } else { Self::LONGEST_ABSENT_NS };
        let ns = self.ns.min(longest);
        self.ns = ns.saturating_mul(2);
        ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_looks_find_nothing() {
        let mut patience = Patience::new(1000, 100, 3);
        let is_over: std::vec::Vec<bool> = (1000..=1300).map(|now| patience.is_over(now, || true)).collect();
        assert_eq!(is_over.iter().position(|over| *over), Some(300));
    }

    #[test]
    fn a_machine_that_stands_still_costs_one_look() {
        let mut patience = Patience::new(0, 100, 3);
        assert!(!patience.is_over(5000, || true));
        assert_eq!(patience.look_at_ns(), 5100);
        assert!(!patience.is_over(5100, || true));
        assert!(patience.is_over(9000, || true));
    }

    #[test]
    fn what_does_not_come_is_looked_for_more_and_more_rarely() {
        let mut interval = Interval::FIRST;
        assert_eq!([true; 6].map(|may| interval.next_ns(may) / 1000), [50, 100, 200, 400, 400, 400]);
        assert_eq!([false; 6].map(|may| interval.next_ns(may) / 1000), [800, 1600, 3200, 6400, 6400, 6400]);
        assert_eq!([true, true, false].map(|may| interval.next_ns(may) / 1000), [400, 400, 800], "he is back");
    }

    #[test]
    fn who_cannot_answer_owes_none() {
        let mut patience = Patience::new(0, 100, 2);
        assert!((1..1000).all(|look| !patience.is_over(look * 100, || false)));
        assert!(!patience.is_over(100_000, || true));
        assert!(patience.is_over(100_100, || true));
    }
}
