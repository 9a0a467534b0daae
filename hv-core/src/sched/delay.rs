//! Delayed preemption: who must not be interrupted just now keeps its pCPU for a moment longer.
//!
//! A kernel that is preempted while its interrupts are off holds a lock most often, and whoever wants that lock waits
//! until it runs again, which may be several turns later. (Uhlig, LeVasseur, Skoglund and Dannowski, VM 2004;
//! LeVasseur, Uhlig, Stoess and Goetz, OSDI 2004, of driver domains.) So the one that is to be preempted goes on until
//! it may be interrupted, or until the bound: a kernel is not believed that it never may be.
//!
//! What it runs meanwhile is charged as any other time, so shares stay those of the weights. There is one delay in a
//! turn, from when a vCPU gets a pCPU until it leaves it. One that sleeps, yields, or may no longer run on the pCPU
//! leaves as always.

use super::*;

/// For so long at most, if nothing else is said, in us. Whoever is woken by an interrupt is not late by that
/// ([`LATE_NS`]).
pub const PREEMPT_DELAY_US: u32 = 30;
const _: () = assert!(PREEMPT_DELAY_US as u64 * 1000 <= LATE_NS);

/// Whether a preemption was delayed in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delay {
    /// Not yet.
    Unused,
    /// It is, up to this time.
    Until(u64),
    /// It was.
    Used,
}

/// How often a vCPU's preemption was delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// How often.
    pub count: u64,
    /// How often it was preempted only at the bound.
    pub to_bound: u64,
    /// How often it should not have been interrupted then either.
    pub cut_off: u64,
}

impl Delay {
    /// There is nobody to wait for it any more.
    #[inline]
    pub fn end(&mut self) {
        if matches!(self, Delay::Until(_)) {
            *self = Delay::Used;
        }
    }

    /// Until when it lasts; 0: it does not.
    #[inline]
    pub fn until(self) -> u64 {
        match self {
            Delay::Until(end) => end,
            Delay::Unused | Delay::Used => 0,
        }
    }
}

impl Scheduler {
    /// An event has come while a vCPU's preemption was delayed. It borrows time for it, as if it had been preempted at
    /// once and the event had come then: nobody is told of those that come before it has taken this one.
    pub fn wake_delayed(&mut self, id: VcpuId, now: u64) {
        let Some(e) = entry_mut(&mut self.entries, id) else { return };
        let is_delayed = e.state == State::OnCpu && matches!(self.cpus[usize::from(e.cpu)].delay, Delay::Until(_));
        if is_delayed && e.may_borrow_more() {
            let ran = e.charge(now);
            self.budgets[usize::from(e.domain)].spend(ran, now);
            e.try_warp(now);
        }
    }

    /// The vCPU on `cpu` is to leave it. If it would go on, and must not be interrupted: until when that waits.
    #[inline]
    pub(super) fn delayed_until(
        &mut self,
        cpu: PcpuId,
        now: u64,
        is_uninterruptible: impl FnOnce() -> bool,
    ) -> Option<u64> {
        let c = &mut self.cpus[cpu];
        let e = self.entries.get(usize::from(c.current))?;
        if !e.runnable || e.yielded || e.affinity & bit(cpu) == 0 || self.params.preempt_delay_ns == 0 {
            return None;
        }
        let end = match c.delay {
            Delay::Unused => now.saturating_add(self.params.preempt_delay_ns),
            Delay::Until(end) => end,
            Delay::Used => return None,
        };
        let (is_off, delays) = (is_uninterruptible(), &mut self.delays[usize::from(c.current)]);
        if now >= end {
            delays.to_bound += 1;
            delays.cut_off += u64::from(is_off);
            return None;
        }
        if is_off && c.delay == Delay::Unused {
            delays.count += 1;
            c.delay = Delay::Until(end);
        }
        is_off.then_some(end)
    }
}
