//! Caps: how much of a pCPU the vCPUs of a domain may use together, idle machine or not.
//!
//! Each domain with a cap has a budget for every period. Running uses it up; a vCPU whose domain has none left is
//! *parked* until the next period begins. What a vCPU runs too much (two of them may use the same rest up) is missing
//! in the periods after.
//!
//! For every vCPU that is parked, a pCPU that it may run on picks when the period ends, or before. One that picks
//! knows: its slice ends then while anybody is parked. One that does not is kicked.

use super::entry::{later, State};
use super::queue::NIL;
use super::{bit, lowest, take_lowest, PcpuId, Scheduler};

/// Length of a period.
pub const PERIOD_NS: u64 = 10_000_000;

/// The budget of a domain.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// For a period; 0: no cap.
    per_period: u64,
    left: i64,
    /// The period that `left` is for.
    period: u64,
}

/// The start of the period after the one that `now` is in.
pub(super) fn next_period(now: u64) -> u64 {
    (now / PERIOD_NS + 1).saturating_mul(PERIOD_NS)
}

impl Budget {
    /// Sets the cap in percent of one pCPU; 0 is none. A new cap begins with a full budget.
    pub fn set_cap(&mut self, percent: u32, now: u64) {
        let per_period = PERIOD_NS / 100 * u64::from(percent);
        *self = Budget { per_period, left: per_period as i64, period: now / PERIOD_NS };
    }

    pub fn is_capped(&self) -> bool {
        self.per_period != 0
    }

    fn refill(&mut self, now: u64) {
        let period = now / PERIOD_NS;
        let passed = period.saturating_sub(self.period);
        if passed != 0 {
            let full = self.per_period as i64;
            let more = full.saturating_mul(i64::try_from(passed).unwrap_or(i64::MAX));
            // What is not used is lost.
            self.left = self.left.saturating_add(more).min(full);
            self.period = period;
        }
    }

    /// `ran` ns, which ended at `now`, are used up.
    #[inline]
    pub fn spend(&mut self, ran: u64, now: u64) {
        if self.is_capped() {
            self.refill(now);
            self.left = self.left.saturating_sub(i64::try_from(ran).unwrap_or(i64::MAX));
        }
    }

    /// How long may be run now; `None`: as long as one likes.
    #[inline]
    pub fn left(&mut self, now: u64) -> Option<u64> {
        if !self.is_capped() {
            return None;
        }
        self.refill(now);
        Some(u64::try_from(self.left).unwrap_or(0))
    }
}

impl Scheduler {
    /// The first on the queue for `cpu` whose domain has time left; those before it are parked.
    pub(super) fn first_allowed(&mut self, cpu: PcpuId, now: u64) -> u16 {
        loop {
            let first = self.queue.first_for(&self.entries, bit(cpu));
            let Some(e) = self.entries.get(usize::from(first)) else { return NIL };
            if self.budgets[usize::from(e.domain)].left(now) != Some(0) {
                return first;
            }
            self.park(first);
        }
    }

    /// Takes `who` off the queue until its domain has time again.
    pub(super) fn park(&mut self, who: u16) {
        self.queue.remove(&mut self.entries, who);
        self.entries[usize::from(who)].state = State::Parked;
        self.parked.insert(&mut self.entries, who);
    }

    /// Which pCPU should look when the period ends, for `who`, which is parked: none if one that it may run on does
    /// anyway.
    pub(super) fn find_watcher(&mut self, who: u16, now: u64) -> Option<PcpuId> {
        let e = &self.entries[usize::from(who)];
        let (last, allowed) = (usize::from(e.cpu), e.affinity & self.online);
        let mut rest = allowed;
        while rest != 0 {
            let cpu = take_lowest(&mut rest);
            // One that was kicked picks soon, and then knows of those that are parked.
            if self.kicked & bit(cpu) != 0 || self.cpus[cpu].slice_until <= next_period(now) {
                return None;
            }
        }
        if allowed == 0 {
            // The first that comes online looks.
            return None;
        }
        self.mark_kicked(if allowed & bit(last) != 0 { last } else { lowest(allowed) })
    }

    /// Puts those parked back whose domain has time. They did not want to wait, but others ran meanwhile: as after a
    /// sleep, they start where those are.
    pub(super) fn unpark(&mut self, now: u64) {
        let mut at = self.parked.first();
        while let Some(e) = self.entries.get(usize::from(at)) {
            let (who, next, domain) = (at, e.next, usize::from(e.domain));
            if self.budgets[domain].left(now) != Some(0) {
                self.parked.remove(&mut self.entries, who);
                let floor = self.floor(who);
                let e = &mut self.entries[usize::from(who)];
                if later(floor, e.actual) {
                    e.actual = floor;
                }
                self.enqueue(who);
            }
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_renewed_and_overdrafts_are_paid_back() {
        let mut b = Budget::default();
        assert_eq!(b.left(5), None);
        b.set_cap(25, 5);
        assert_eq!(b.left(5), Some(2_500_000));
        b.spend(6_000_000, 6_000_005);
        assert_eq!(b.left(6_000_005), Some(0));
        assert_eq!(b.left(PERIOD_NS), Some(0), "one million is still owed");
        assert_eq!(b.left(2 * PERIOD_NS), Some(1_500_000));
        assert_eq!(b.left(9 * PERIOD_NS), Some(2_500_000), "not more than one period's");
        b.set_cap(0, 9 * PERIOD_NS);
        assert_eq!(b.left(9 * PERIOD_NS), None);
    }

    #[test]
    fn times_at_the_end_of_the_world() {
        let mut b = Budget::default();
        b.set_cap(u32::MAX, u64::MAX);
        b.spend(u64::MAX, u64::MAX);
        b.set_cap(1, 0);
        b.spend(u64::MAX, u64::MAX);
        assert_eq!(b.left(u64::MAX), Some(0));
        assert_eq!(next_period(u64::MAX), u64::MAX);
    }
}
