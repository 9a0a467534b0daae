//! Who runs: a pCPU picks, for how long, and who is left alone meanwhile.

use super::*;

impl Scheduler {
    /// Decides who runs on `cpu` from `now` on.
    ///
    /// `is_saved`: the registers of the vCPU that is on `cpu` are stored already, as it went to sleep. If it still
    /// sleeps nothing is left to save; if it was woken meanwhile, it may be picked again like any other.
    ///
    /// `is_uninterruptible`: must the vCPU that is on `cpu` not be interrupted now? Asked only if it is to be
    /// preempted.
    #[inline]
    pub fn pick(
        &mut self,
        cpu: PcpuId,
        now: u64,
        is_saved: bool,
        is_uninterruptible: impl FnOnce() -> bool,
    ) -> Decision {
        if cpu >= MAX_PCPUS || self.online & bit(cpu) == 0 {
            return Decision { next: None, slice_until_ns: u64::MAX, save: None, kick: None, is_delayed: false };
        }
        self.kicked &= !bit(cpu);
        self.unpark(now);
        let current = self.cpus[cpu].current;
        let mut keep = NIL;
        // The one that runs here is going to be parked, once it is saved.
        let mut parks = false;
        if current != NIL {
            let e = &mut self.entries[usize::from(current)];
            let ran = e.charge(now);
            let budget = &mut self.budgets[usize::from(e.domain)];
            budget.spend(ran, now);
            let is_spent = budget.left(now) == Some(0);
            parks = e.runnable && is_spent;
            if e.runnable && e.affinity & bit(cpu) != 0 && !is_spent {
                keep = current;
            }
        }
        let waiting = self.first_allowed(cpu, now);
        let next = match (keep, waiting) {
            (NIL, w) => w,
            (k, NIL) => k,
            (k, w) => self.contest(k, w, now),
        };
        if next != current {
            if let Some(until) = self.delayed_until(cpu, now, is_uninterruptible) {
                self.cpus[cpu].slice_until = until;
                let (next, kick) = (self.id(current), self.spread());
                return Decision { next, slice_until_ns: until, save: None, kick, is_delayed: true };
            }
        }
        let mut save = None;
        if next != current {
            if current != NIL && self.leave(cpu, current, now, is_saved) {
                save = self.id(current);
            }
            self.start(cpu, next, now);
        } else if next != NIL {
            self.entries[usize::from(next)].yielded = false;
            self.cpus[cpu].delay.end();
        }
        let mut slice_until_ns = self.slice(cpu, next, now);
        if parks {
            slice_until_ns = slice_until_ns.min(cap::next_period(now));
        }
        self.cpus[cpu].slice_until = slice_until_ns;
        let kick = self.spread();
        Decision { next: self.id(next), slice_until_ns, save, kick, is_delayed: false }
    }

    /// The registers of the vCPU that [`Scheduler::pick`] moved off `cpu` are stored: others may run it now. Returns a
    /// pCPU to kick for it.
    pub fn context_saved(&mut self, cpu: PcpuId, now: u64) -> Option<PcpuId> {
        let c = self.cpus.get_mut(cpu)?;
        let left = core::mem::replace(&mut c.leaving, NIL);
        let e = self.entries.get_mut(usize::from(left))?;
        if e.runnable {
            let floor = self.floor(left);
            let e = &mut self.entries[usize::from(left)];
            e.owe_no_more(floor, &self.params);
            if e.is_fresh() {
                e.try_warp(now);
            }
            self.enqueue(left);
            // One whose budget is used up is parked by whoever looks at it next.
            let domain = usize::from(self.entries[usize::from(left)].domain);
            if self.budgets[domain].left(now) == Some(0) {
                self.park(left);
                // This one watches only if it knew; and it may have to leave that to others.
                return self.find_watcher(left, now);
            }
            self.find_cpu(left, now)
        } else {
            e.state = State::Asleep;
            None
        }
    }

    /// `keep` runs and `waiting` is first on the queue: who goes on?
    fn contest(&mut self, keep: u16, waiting: u16, now: u64) -> u16 {
        let w = &self.entries[usize::from(waiting)];
        let (w_effective, w_actual) = (w.effective, w.actual);
        let w_turn = w.to_virtual(self.params.allowance_ns);
        let grace = self.grace(w);
        let left_alone_until = self.left_alone_until(keep, w);
        let k = &mut self.entries[usize::from(keep)];
        if k.yielded {
            return waiting;
        }
        if now < left_alone_until {
            return keep;
        }
        // Signed distance: how far the running one is ahead of the waiting one.
        let ahead = distance(k.effective_now(), w_effective);
        // A sixteenth less, so that a timer that fires a little early does not cost a second round.
        let limit = distance(k.to_virtual(grace - grace / 16), 0);
        if ahead >= limit {
            return waiting;
        }
        // Weights that cannot be met (one vCPU cannot use two pCPUs) must not pile up a claim on the future.
        let oldest = w_actual.wrapping_sub(w_turn.saturating_mul(2).saturating_add(100_000_000));
        if later(oldest, k.actual) {
            k.actual = oldest;
        }
        keep
    }

    /// How far ahead of `waiting` another may be before it must let it go first.
    pub(super) fn grace(&self, waiting: &Entry) -> u64 {
        if waiting.is_fresh() {
            self.params.wake_margin_ns
        } else {
            self.params.allowance_ns
        }
    }

    /// How long a turn lasts at least if `waiting` is next. Loans are bounded; whoever wakes without one must not make
    /// a pCPU do nothing but switch.
    fn min_run_before(&self, waiting: &Entry) -> u64 {
        if waiting.is_fresh() && !waiting.warped {
            self.params.min_run_ns.max(self.params.wake_margin_ns)
        } else {
            self.params.min_run_ns
        }
    }

    /// Until when `running`, which is on a pCPU, is not preempted for `waiting`.
    pub(super) fn left_alone_until(&self, running: u16, waiting: &Entry) -> u64 {
        let Some(r) = self.entries.get(usize::from(running)) else { return 0 };
        let sends_until = self.cpus.get(usize::from(r.cpu)).map_or(0, |c| c.sends_until);
        r.left_alone_until(self.min_run_before(waiting)).max(sends_until)
    }

    /// Takes `current` off `cpu`. True if it is [`State::Leaving`]: to be saved, or saved but to be queued again.
    fn leave(&mut self, cpu: PcpuId, current: u16, now: u64, is_saved: bool) -> bool {
        let e = &mut self.entries[usize::from(current)];
        e.yielded = false;
        let to = e.left_for();
        e.enter(to, now);
        if is_saved && !e.runnable {
            e.state = State::Asleep;
            return false;
        }
        e.state = State::Leaving;
        // A shell that never says "saved" would lose a vCPU here; it is a bug of the shell, so be loud in tests only.
        debug_assert!(self.cpus[cpu].leaving == NIL, "pick without context_saved");
        if self.cpus[cpu].leaving != NIL {
            self.context_saved(cpu, now);
        }
        self.cpus[cpu].leaving = current;
        true
    }

    /// Puts `next` (from the queue, or nobody) on `cpu`.
    fn start(&mut self, cpu: PcpuId, next: u16, now: u64) {
        self.cpus[cpu].current = next;
        self.cpus[cpu].sends_until = 0;
        self.cpus[cpu].delay = Delay::Unused;
        self.sending &= !bit(cpu);
        if next == NIL {
            if self.idle & bit(cpu) == 0 {
                self.idle |= bit(cpu);
                self.idle_since[cpu] = now;
            }
            return;
        }
        if self.idle & bit(cpu) != 0 {
            self.idle &= !bit(cpu);
            self.idle_ns[cpu] = self.idle_ns[cpu].saturating_add(now.saturating_sub(self.idle_since[cpu]));
        }
        self.queue.remove(&mut self.entries, next);
        let e = &mut self.entries[usize::from(next)];
        e.start(cpu, now);
        self.cpus[cpu].level = e.actual;
        if !e.warped && later(e.actual, self.level) {
            self.level = e.actual;
        }
    }

    /// When `cpu`, on which `running` runs now, must pick again.
    fn slice(&mut self, cpu: PcpuId, running: u16, now: u64) -> u64 {
        let mut end = self.turn(cpu, running, now);
        if let Some(r) = self.entries.get(usize::from(running)) {
            if let Some(left) = self.budgets[usize::from(r.domain)].left(now) {
                end = end.min(now.saturating_add(left.max(self.params.min_slice_ns)));
            }
        }
        if self.parked.is_empty() {
            end
        } else {
            end.min(cap::next_period(now))
        }
    }

    /// When the turn of the vCPU that now runs on `cpu` ends.
    fn turn(&self, cpu: PcpuId, running: u16, now: u64) -> u64 {
        let Some(r) = self.entries.get(usize::from(running)) else { return u64::MAX };
        // The one that has just left is about to be queued again.
        let leaving = self.entries.get(usize::from(self.cpus[cpu].leaving)).filter(|e| e.runnable);
        let queued = self.entries.get(usize::from(self.queue.first_for(&self.entries, bit(cpu))));
        let w = match (queued, leaving) {
            (None, None) => return u64::MAX,
            (Some(w), None) | (None, Some(w)) => w,
            (Some(q), Some(l)) if later(q.effective, l.effective_now()) => l,
            (Some(q), Some(_)) => q,
        };
        let left_alone_until = self.left_alone_until(running, w);
        if now < left_alone_until {
            // Whoever should run by then does so then.
            return left_alone_until;
        }
        let lead = distance(w.effective_now(), r.effective_now());
        let turn = r.to_real(u64::try_from(lead).unwrap_or(0)).saturating_add(self.grace(w));
        let turn = turn.min(r.loan_left().unwrap_or(u64::MAX));
        now.saturating_add(turn.min(self.params.max_slice_ns).max(self.params.min_slice_ns))
    }

    /// Work conservation where affinities differ: an idle pCPU that nobody has kicked, and a vCPU that could run there.
    fn spread(&mut self) -> Option<PcpuId> {
        let idle = self.idle & self.online & !self.kicked;
        if idle == 0 || self.queue.is_empty() {
            return None;
        }
        let who = self.queue.first_for(&self.entries, idle);
        let e = self.entries.get(usize::from(who))?;
        self.mark_kicked(lowest(e.affinity & idle))
    }

    pub(super) fn mark_kicked(&mut self, cpu: PcpuId) -> Option<PcpuId> {
        self.kicked |= bit(cpu);
        Some(cpu)
    }
}
