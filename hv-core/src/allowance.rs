//! How much a CPU works before it lets interrupts in.
//!
//! While the hypervisor works for a guest no interrupt comes. So its work is counted where it is done, whoever asked
//! for it: if each request had an allowance of its own, a list of requests would have as many. Who goes on after a
//! piece of work asks first whether the allowance is used up; and where interrupts are let in it is made full again.
//! Nowhere else, but for one: a routine of a twin that finds its domain's page tables in the middle of other work waits
//! for that, a portion at a time, as often as it may.
//!
//! It is work that is counted, not time: to read a clock takes longer than most requests do.

use core::cell::Cell;

/// A step: some ten thousand instructions. A page table that is validated or taken down is worth one. A frame that is
/// only looked at is 1.
pub const STEP: u32 = 512;
/// A page that is wiped or copied, or a table that is read.
pub const PAGE: u32 = STEP / 8;
/// A frame that goes or comes back, counted where it does: accounts, the M2P, lists under locks, and its part of a
/// flush.
pub const MOVED: u32 = STEP / 16;
/// Another CPU that is to do something at once, or an IOMMU that is to forget: some microseconds until that is done.
pub const CALL: u32 = STEP / 2;
/// A turn of a loop in which a CPU waits for that, should it take longer.
pub const TURN: u32 = 4;
/// All of it.
const FULL: u32 = 64 * STEP;

/// What a CPU has worked since it let interrupts in. All zero: nothing.
#[derive(Debug, Default)]
pub struct Allowance {
    /// Of 64 bits: nobody can spend so much that it begins anew.
    spent: Cell<u64>,
}

impl Allowance {
    /// Interrupts were let in.
    #[inline(always)]
    pub fn refill(&self) {
        self.spent.set(0);
    }

    /// `work` was done, or will be before anybody asks.
    #[inline]
    pub fn spend(&self, work: u32) {
        self.spent.set(self.spent.get().wrapping_add(work.into()));
    }

    /// The same for `count` pieces of `work` each.
    #[inline]
    pub fn spend_each(&self, count: u64, work: u32) {
        self.spend(u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(work));
    }

    /// Something was done that may take as long as all that is allowed.
    #[inline]
    pub fn spend_all(&self) {
        self.spend(FULL);
    }

    /// Are interrupts to be let in before there is more work?
    #[inline(always)]
    pub fn is_used_up(&self) -> bool {
        self.spent.get() >= u64::from(FULL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of `work` until an allowance is used up.
    fn pieces(allowance: &Allowance, spend: impl Fn(&Allowance)) -> u32 {
        let mut done = 0;
        while !allowance.is_used_up() {
            spend(allowance);
            done += 1;
        }
        done
    }

    #[test]
    fn all_work_comes_out_of_one_allowance() {
        let allowance = Allowance::default();
        assert_eq!(pieces(&allowance, |a| a.spend(STEP)), 64, "tables");
        allowance.refill();
        assert_eq!(pieces(&allowance, |a| a.spend_each(1, PAGE)), 512, "pages");
        allowance.refill();
        allowance.spend_each(256, PAGE);
        assert_eq!(pieces(&allowance, |a| a.spend(STEP)), 32, "tables after pages");
        allowance.refill();
        assert_eq!(pieces(&allowance, Allowance::spend_all), 1);
        allowance.refill();
        assert_eq!(pieces(&allowance, |a| a.spend(CALL)), 128, "CPUs that answer at once");
        allowance.refill();
        assert_eq!(pieces(&allowance, |a| a.spend_each(8000, TURN)), 2, "CPUs that do not");
    }

    #[test]
    fn more_work_than_can_be_counted_uses_it_up() {
        let allowance = Allowance::default();
        for _ in 0..3 {
            allowance.spend_each(u64::MAX, PAGE);
            allowance.spend(STEP);
            assert!(allowance.is_used_up());
        }
        allowance.refill();
        assert!(!allowance.is_used_up());
    }
}
