//! A vCPU's periodic timer: it ticks while the vCPU runs. For the time in which it did not run it gets one tick when it
//! goes on, if one was due; the phase is kept.

use core::sync::atomic::{AtomicU64, Ordering};

/// Its period, and when it ticks next. The vCPU's CPU changes it, or who holds the vCPU. Times are in ns of system
/// time.
#[derive(Debug)]
pub struct Periodic {
    /// 0: it is off.
    period_ns: AtomicU64,
    due_ns: AtomicU64,
}

/// How it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// It ticks then.
    pub next_ns: u64,
    /// A tick was due meanwhile.
    pub missed: bool,
}

impl Periodic {
    /// A tick is due at once, and then one each `period_ns`.
    pub const fn new(period_ns: u64) -> Self {
        Self { period_ns: AtomicU64::new(period_ns), due_ns: AtomicU64::new(0) }
    }

    /// Is it on?
    #[inline]
    pub fn is_on(&self) -> bool {
        self.period_ns() != 0
    }

    /// 0: it is off.
    #[inline]
    pub fn period_ns(&self) -> u64 {
        self.period_ns.load(Ordering::Relaxed)
    }

    /// So long it is at `now_ns` until the next tick.
    pub fn left_ns(&self, now_ns: u64) -> u64 {
        self.due_ns.load(Ordering::Relaxed).saturating_sub(now_ns)
    }

    /// Makes it another one, which is due at `due_ns` next; or turns it off, by a period of 0.
    pub fn set(&self, period_ns: u64, due_ns: u64) {
        self.period_ns.store(period_ns, Ordering::Relaxed);
        self.due_ns.store(due_ns, Ordering::Relaxed);
    }

    /// The vCPU begins to run.
    pub fn resume(&self, now_ns: u64) -> Resumed {
        let (period, due) = (self.period_ns(), self.due_ns.load(Ordering::Relaxed));
        let missed = due <= now_ns;
        let next_ns = if missed { next_tick(due, period, now_ns) } else { due.min(now_ns.saturating_add(period)) };
        self.due_ns.store(next_ns, Ordering::Relaxed);
        Resumed { next_ns, missed }
    }

    /// It has ticked, as was due at `due_ns`. When it ticks next; `None` if somebody else has seen to that meanwhile,
    /// or turned it off.
    pub fn ticked(&self, due_ns: u64, now_ns: u64) -> Option<u64> {
        let next_ns = next_tick(due_ns, self.period_ns(), now_ns);
        let changed = self.due_ns.compare_exchange(due_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed);
        changed.is_ok().then_some(next_ns).filter(|_| self.is_on())
    }
}

/// The first tick after `now` of a periodic timer that was due at `due`. Ticks that were missed are skipped, and the
/// phase is kept. A period of 0 never ticks.
fn next_tick(due: u64, period: u64, now: u64) -> u64 {
    if period == 0 {
        return u64::MAX;
    }
    if now < due {
        return due;
    }
    let missed = (now - due) / period;
    due.saturating_add(period.saturating_mul(missed.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_skip_what_was_missed_and_saturate() {
        assert_eq!(next_tick(100, 10, 100), 110);
        assert_eq!(next_tick(100, 10, 99), 100);
        assert_eq!(next_tick(100, 10, 139), 140);
        assert_eq!(next_tick(100, 0, 139), u64::MAX);
        assert_eq!(next_tick(u64::MAX - 5, 10, u64::MAX - 1), u64::MAX);
        assert_eq!(next_tick(0, 1, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_tick_that_came_does_not_come_again() {
        let timer = Periodic::new(0);
        timer.set(10, 110);
        assert_eq!(timer.resume(100), Resumed { next_ns: 110, missed: false });
        assert_eq!(timer.ticked(110, 111), Some(120));
        assert_eq!(timer.ticked(120, 120), Some(130));
        // It stops running, and goes on twice before the next one is due, then after that.
        assert_eq!(timer.left_ns(125), 5);
        assert_eq!(timer.resume(125), Resumed { next_ns: 130, missed: false });
        assert_eq!(timer.resume(128), Resumed { next_ns: 130, missed: false });
        assert_eq!(timer.resume(157), Resumed { next_ns: 160, missed: true });
        assert_eq!(timer.resume(158), Resumed { next_ns: 160, missed: false });
    }

    #[test]
    fn who_changed_it_meanwhile_sees_to_the_next_tick() {
        let timer = Periodic::new(10);
        assert!(timer.is_on());
        assert_eq!(timer.resume(1005), Resumed { next_ns: 1010, missed: true }, "one that is new is due at once");
        timer.set(7, 2000);
        assert_eq!(timer.ticked(1010, 1011), None);
        assert_eq!(timer.left_ns(1011), 989);
        timer.set(0, 2000);
        assert_eq!(timer.ticked(2000, 2000), None);
        assert!(!timer.is_on());
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_put_it_off() {
        let timer = Periodic::new(10);
        timer.set(10, 1000);
        assert_eq!(timer.resume(500), Resumed { next_ns: 510, missed: false });
    }
}
