//! How long an invocation may take.

use core::cell::Cell;

/// An invocation has so much more time, in ns, whenever what it may take is found to be over, for the machine itself
/// may have stood still, as one that is emulated or nested does: then it is found so once. What runs in circles is
/// found so every time.
const GRACE_NS: u64 = 5_000_000;
/// So often, if steps were charged in between each time: a machine that is slow all the time does hand on packets. How
/// many steps there are is bounded by the budget.
const GRACES: u32 = 100;
/// One without a step since the one before counts as so many.
const STANDS_STILL: u32 = 10;

/// See the module. Times are the embedder's, in ns.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimit {
    deadline_ns: u64,
    /// Graces.
    left: u32,
    /// Steps left of the budget when the time was found to be over.
    steps: Option<i64>,
}

impl TimeLimit {
    /// Nothing runs.
    pub const NONE: Self = Self { deadline_ns: u64::MAX, left: 0, steps: None };

    /// Of an invocation that begins, or goes on, at `now`, and may take `limit_ns`.
    pub fn from(now: u64, limit_ns: u64) -> Self {
        Self { deadline_ns: now.saturating_add(limit_ns), left: GRACES, steps: None }
    }

    /// It may take until then; then [`Self::is_over`] is to be asked.
    pub fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Must it end at `now`, with so many steps left of its budget? If not, the deadline may be another than before.
    pub fn is_over(&mut self, now: u64, steps: i64) -> bool {
        if now < self.deadline_ns {
            return false;
        }
        let cost = if self.steps.replace(steps) == Some(steps) { STANDS_STILL } else { 1 };
        let Some(left) = self.left.checked_sub(cost) else { return true };
        self.left = left;
        self.deadline_ns = now.saturating_add(GRACE_NS);
        false
    }
}

/// The timer fires on the way to a gate or back, where nobody can leave the twin. It is not armed again for what is
/// over, so that is known until the invocation ends, whoever asks.
#[derive(Clone, Debug, Default)]
pub struct Unheard(Cell<bool>);

impl Unheard {
    /// It may have fired.
    pub fn note(&self) {
        self.0.set(true);
    }

    /// Is the time over, as `has_no_time_left` says, who is only asked if the timer may have fired? If it is not, that
    /// was heard.
    #[inline(always)]
    pub fn is_over(&self, has_no_time_left: impl FnOnce() -> bool) -> bool {
        self.0.get() && self.ask(has_no_time_left)
    }

    #[cold]
    #[inline(never)]
    fn ask(&self, has_no_time_left: impl FnOnce() -> bool) -> bool {
        let is_over = has_no_time_left();
        self.0.set(is_over);
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_NS: u64 = 100_000_000;

    /// When one ends that begins at 7 s, is asked each `each_ns`, and takes so many steps meanwhile; in ns after it
    /// began.
    fn ends(each_ns: u64, steps: i64) -> u64 {
        let begin = 7_000_000_000;
        let mut limit = TimeLimit::from(begin, LIMIT_NS);
        let (mut now, mut budget) = (begin, 1_000_000);
        while !limit.is_over(now, budget) {
            now += each_ns;
            budget -= steps;
        }
        now - begin
    }

    #[test]
    fn what_runs_in_circles_ends_after_ten_graces() {
        for each_ns in [1_000, 1_000_000, GRACE_NS] {
            let least = LIMIT_NS + u64::from(GRACES / STANDS_STILL) * GRACE_NS;
            let took = ends(each_ns, 0);
            assert!((least..=least + GRACE_NS + 100_000).contains(&took), "{took}, looked at each {each_ns} ns");
        }
    }

    #[test]
    fn what_advances_has_more_time_and_ends_too() {
        let least = LIMIT_NS + u64::from(GRACES) * GRACE_NS;
        for each_ns in [1_000, 1_000_000, GRACE_NS] {
            let took = ends(each_ns, 1);
            assert!((least..=least + GRACE_NS + 100_000).contains(&took), "{took}, looked at each {each_ns} ns");
        }
    }

    /// 64 packets, for each of which a slow machine takes 7 ms.
    #[test]
    fn a_slow_machine_may_hand_on_a_round_of_packets() {
        let mut limit = TimeLimit::from(0, LIMIT_NS);
        for packet in 1..=64_i64 {
            assert!(!limit.is_over(packet.cast_unsigned() * 7_000_000, 100_000 - 10 * packet), "packet {packet}");
        }
    }

    #[test]
    fn a_machine_that_stood_still_is_excused() {
        let mut limit = TimeLimit::from(0, LIMIT_NS);
        assert!(!limit.is_over(60_000_000_000, 5));
        assert_eq!(limit.deadline_ns(), 60_000_000_000 + GRACE_NS);
        assert!(!limit.is_over(60_000_000_001, 5), "its grace runs");
        assert!(!limit.is_over(120_000_000_000, 5), "and it may stand still again");
    }

    #[test]
    fn what_was_found_to_be_over_stays_so_and_what_was_not_is_asked_once() {
        let unheard = Unheard::default();
        assert!(!unheard.is_over(|| unreachable!("the timer has not fired")));
        unheard.note();
        assert_eq!(
            [unheard.is_over(|| true), unheard.is_over(|| true), unheard.is_over(|| false)],
            [true, true, false]
        );
        assert!(!unheard.is_over(|| unreachable!("that was heard")));
    }

    #[test]
    fn nothing_is_over_where_nothing_runs() {
        let mut none = TimeLimit::NONE;
        assert!(!none.is_over(u64::MAX - 1, 0));
    }
}
