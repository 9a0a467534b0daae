//! Watchdogs of a domain (SCHEDOP_watchdog): unless it winds one up again in time, the domain is shut down.

use xen_abi::errno::Errno;

/// Watchdogs that a domain may have.
pub const NR_WATCHDOGS: usize = 2;
const NS_PER_S: u64 = 1_000_000_000;

/// When each of a domain's watchdogs bites, in ns of system time.
#[derive(Clone, Debug, Default)]
pub struct Watchdogs {
    deadlines: [Option<u64>; NR_WATCHDOGS],
}

impl Watchdogs {
    /// None is wound up.
    pub const fn new() -> Self {
        Self { deadlines: [None; NR_WATCHDOGS] }
    }

    /// Winds watchdog `id` (from 1 on; 0: a new one, whose number is returned) up for `timeout_s` seconds from `now`,
    /// or lets it go for 0. EINVAL for a new one without a time, and for one that is not in use; ENOSPC when all are.
    pub fn set(&mut self, id: u32, timeout_s: u32, now: u64) -> Result<u32, Errno> {
        let deadline = (timeout_s != 0).then(|| now.saturating_add(u64::from(timeout_s) * NS_PER_S));
        let Some(index) = (id as usize).checked_sub(1) else {
            let deadline = deadline.ok_or(Errno::EINVAL)?;
            let (id, free) = (1..).zip(&mut self.deadlines).find(|(_, slot)| slot.is_none()).ok_or(Errno::ENOSPC)?;
            *free = Some(deadline);
            return Ok(id);
        };
        let slot = self.deadlines.get_mut(index).filter(|slot| slot.is_some()).ok_or(Errno::EINVAL)?;
        *slot = deadline;
        Ok(0)
    }

    /// The same ones, each `by` ns later.
    pub fn later(&self, by: u64) -> Self {
        Self { deadlines: self.deadlines.map(|deadline| deadline.map(|at| at.saturating_add(by))) }
    }

    /// When the next one bites.
    pub fn next(&self) -> Option<u64> {
        self.deadlines.iter().flatten().min().copied()
    }

    /// Does one bite by `now`?
    pub fn bites(&self, now: u64) -> bool {
        self.next().is_some_and(|deadline| deadline <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_ones_have_as_much_time_left() {
        let mut dogs = Watchdogs::new();
        assert_eq!(dogs.set(0, 30, 5), Ok(1));
        let mut later = dogs.later(100);
        assert_eq!((dogs.next(), later.next()), (Some(30 * NS_PER_S + 5), Some(30 * NS_PER_S + 105)));
        assert_eq!(later.set(1, 0, 0), Ok(0));
        assert_eq!(later.next(), None);
    }

    #[test]
    fn two_can_be_wound_up_again_and_let_go() {
        let mut dogs = Watchdogs::new();
        assert_eq!(dogs.set(0, 0, 5), Err(Errno::EINVAL));
        assert_eq!(dogs.set(1, 5, 5), Err(Errno::EINVAL));
        assert_eq!(dogs.set(0, 30, 5), Ok(1));
        assert_eq!(dogs.set(0, 10, 5), Ok(2));
        assert_eq!(dogs.set(0, 10, 5), Err(Errno::ENOSPC));
        assert_eq!(dogs.next(), Some(10 * NS_PER_S + 5));
        assert!(!dogs.bites(10 * NS_PER_S + 4) && dogs.bites(10 * NS_PER_S + 5));
        assert_eq!(dogs.set(2, 60, 5), Ok(0));
        assert_eq!(dogs.next(), Some(30 * NS_PER_S + 5));
        assert_eq!((dogs.set(1, 0, 6), dogs.set(2, 0, 6)), (Ok(0), Ok(0)));
        assert_eq!(dogs.next(), None);
        assert!(!dogs.bites(u64::MAX));
        assert_eq!(dogs.set(2, 0, 6), Err(Errno::EINVAL));
        for id in [3, u32::MAX] {
            assert_eq!(dogs.set(id, 1, 0), Err(Errno::EINVAL));
        }
    }
}
