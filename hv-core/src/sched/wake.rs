//! Who wants to run: events, sleep, and the pCPU that should look at a vCPU that waits.

use super::*;

impl Scheduler {
    /// An event for a vCPU: it becomes runnable, with warp if it may. Returns the pCPU to kick, if one is to run it (or
    /// to shorten its slice for it). A vCPU that runs already is left alone: see [`Scheduler::running_on`].
    #[inline]
    pub fn wake(&mut self, id: VcpuId, now: u64) -> Option<PcpuId> {
        let disturbed = self.disturb(id, now);
        self.wake_up(id, now).or_else(|| self.mark_kicked(disturbed?))
    }

    /// As [`Scheduler::wake`], but it was the vCPU on `cpu` that sent the event. A sender has often more to send: it
    /// goes on for a while before a receiver takes its place, which then finds all of it. As long as it sends one by
    /// one, every packet would cost two switches.
    #[inline]
    pub fn wake_from(&mut self, cpu: PcpuId, id: VcpuId, now: u64) -> Option<PcpuId> {
        self.wake_up_after(cpu, id, self.params.sender_run_ns, now)
    }

    /// As [`Scheduler::wake`], for an interrupt that is also, and more likely, for the vCPU on `cpu`, as they share a
    /// line. It goes on for a while before `id` comes, for nothing as a rule.
    #[inline]
    pub fn wake_beside(&mut self, cpu: PcpuId, id: VcpuId, now: u64) -> Option<PcpuId> {
        let disturbed = self.disturb(id, now);
        self.wake_up_after(cpu, id, self.params.sharer_run_ns, now).or_else(|| self.mark_kicked(disturbed?))
    }

    /// Wakes `id`, which comes after the vCPU on `cpu` has gone on for `ns`.
    #[inline]
    fn wake_up_after(&mut self, cpu: PcpuId, id: VcpuId, ns: u64, now: u64) -> Option<PcpuId> {
        let goes_on_until = self.go_on(cpu, id, ns, now);
        let kick = self.wake_up(id, now);
        if goes_on_until > now {
            entry_mut(&mut self.entries, id)?.come_after(goes_on_until);
        }
        kick
    }

    /// The vCPU on `cpu` is left alone for `ns`, if `id` sleeps and would take its place. Returns until when it goes
    /// on.
    #[inline]
    fn go_on(&mut self, cpu: PcpuId, id: VcpuId, ns: u64, now: u64) -> u64 {
        let is_asleep = entry(&self.entries, id).is_some_and(|e| e.state == State::Asleep);
        if !is_asleep || cpu >= MAX_PCPUS || self.kicked & bit(cpu) != 0 {
            return 0;
        }
        let alone = self.queue.first_for(&self.entries, bit(cpu)) == NIL;
        let c = &mut self.cpus[cpu];
        // Once a turn while others wait, or it could send for ever.
        if c.sends_until == 0 || alone && c.sends_until <= now {
            c.sends_until = now.saturating_add(ns);
            self.sending |= bit(cpu);
        }
        c.sends_until
    }

    /// Something else than a sender wants `id` to run: nobody that it could take the place of goes on sending. Returns
    /// where one did.
    #[inline]
    fn disturb(&mut self, id: VcpuId, now: u64) -> Option<PcpuId> {
        let e = entry_mut(&mut self.entries, id)?;
        e.come_at_once(now);
        let mut sending = e.affinity & self.sending;
        if sending == 0 || !matches!(e.state, State::Asleep | State::Queued) {
            return None;
        }
        self.sending &= !sending;
        // One that was kicked and has not picked since finds it then.
        let not_kicked = sending & !self.kicked;
        while sending != 0 {
            self.cpus[take_lowest(&mut sending)].sends_until = 0;
        }
        (not_kicked != 0).then(|| lowest(not_kicked))
    }

    #[inline]
    fn wake_up(&mut self, id: VcpuId, now: u64) -> Option<PcpuId> {
        let e = entry_mut(&mut self.entries, id)?;
        match e.state {
            State::Free => None,
            State::OnCpu => {
                e.runnable = true;
                None
            }
            State::Leaving => {
                e.note_event(now);
                e.runnable = true;
                e.enter(Runstate::Runnable, now);
                None
            }
            State::Parked => None,
            State::Queued => {
                e.note_event(now);
                if !e.may_borrow_more() {
                    return None;
                }
                e.try_warp(now);
                self.queue.remove(&mut self.entries, id.slot);
                self.enqueue(id.slot);
                self.find_cpu(id.slot, now)
            }
            State::Asleep => {
                e.note_event(now);
                e.runnable = true;
                e.enter(Runstate::Runnable, now);
                let floor = self.floor(id.slot);
                let e = &mut self.entries[id.index()];
                if later(floor, e.actual) {
                    e.actual = floor;
                }
                e.owe_no_more(floor, &self.params);
                e.try_warp(now);
                self.enqueue(id.slot);
                self.find_cpu(id.slot, now)
            }
        }
    }

    /// A vCPU no longer wants to run. If it is on a pCPU it stays there until that pCPU picks: returned, to be kicked
    /// (the caller's own is returned too).
    pub fn sleep(&mut self, id: VcpuId, why: Sleep, now: u64) -> Option<PcpuId> {
        let e = entry_mut(&mut self.entries, id)?;
        e.asleep = why;
        e.runnable = false;
        match e.state {
            State::Free => None,
            State::OnCpu => Some(e.cpu.into()),
            State::Leaving | State::Asleep => {
                e.enter(why.into(), now);
                None
            }
            State::Queued => {
                e.enter(why.into(), now);
                e.state = State::Asleep;
                self.queue.remove(&mut self.entries, id.slot);
                None
            }
            State::Parked => {
                e.enter(why.into(), now);
                e.state = State::Asleep;
                self.parked.remove(&mut self.entries, id.slot);
                None
            }
        }
    }

    /// Something stopped a vCPU, whose registers are stored, if `is_stopped` still says so. Whoever did may not have
    /// come to
    /// [`Scheduler::sleep`] yet: it sleeps all the same, and what he says later changes nothing. Returns as that does.
    #[inline]
    pub fn sleep_untold(&mut self, id: VcpuId, is_stopped: impl FnOnce() -> bool, now: u64) -> Option<PcpuId> {
        if self.is_runnable(id) && is_stopped() {
            self.sleep(id, Sleep::Offline, now)
        } else {
            None
        }
    }

    /// The vCPU lets the next one go first, once. Pick afterwards.
    pub fn yield_(&mut self, id: VcpuId) {
        if let Some(e) = entry_mut(&mut self.entries, id) {
            e.yielded = e.state == State::OnCpu;
        }
    }

    /// Where the virtual time of a waking vCPU starts at least: the lowest among those it competes with, be they on a
    /// pCPU or waiting. Of the waiting ones, the first that has not borrowed is the lowest.
    pub(super) fn floor(&self, who: u16) -> u64 {
        let affinity = self.entries[usize::from(who)].affinity;
        let mut floor = self.queue.first_unwarped(&self.entries, affinity & self.online);
        let mut busy = affinity & self.online & !self.idle;
        while busy != 0 {
            let level = self.cpus[take_lowest(&mut busy)].level;
            if floor.is_none_or(|floor| later(floor, level)) {
                floor = Some(level);
            }
        }
        // What it did not get while it waited for its turn it need not give up for a short sleep.
        floor.unwrap_or(self.level).wrapping_sub(self.params.allowance_ns)
    }

    pub(super) fn enqueue(&mut self, who: u16) {
        let e = &mut self.entries[usize::from(who)];
        e.state = State::Queued;
        e.effective = e.effective_now();
        self.queue.insert(&mut self.entries, who);
    }

    /// Which pCPU should look at the queue for `who`, which is on it: an idle one, the one it ran on if possible, else
    /// the one that runs the least urgent vCPU, if that must go now or has a slice that ends too late.
    pub(super) fn find_cpu(&mut self, who: u16, now: u64) -> Option<PcpuId> {
        let e = &self.entries[usize::from(who)];
        let allowed = e.affinity & self.online & !self.kicked;
        let idle = allowed & self.idle;
        if idle != 0 {
            let last = usize::from(e.cpu);
            let cpu = if idle & bit(last) != 0 { last } else { lowest(idle) };
            return self.mark_kicked(cpu);
        }
        let (cpu, running) = self.least_urgent(allowed, now)?;
        let r = &self.entries[usize::from(self.cpus[cpu].current)];
        let grace = self.grace(e);
        let ahead = distance(running, e.effective);
        let left_alone_until = self.left_alone_until(self.cpus[cpu].current, e).max(self.cpus[cpu].delay.until());
        let is_behind = ahead > distance(r.to_virtual(grace), 0);
        let must_go = is_behind && now >= left_alone_until;
        let fair_end = if is_behind {
            left_alone_until
        } else {
            now.saturating_add(grace)
                .saturating_add(r.to_real(u64::try_from(ahead.saturating_neg()).unwrap_or(0)))
                .max(left_alone_until)
        };
        if must_go || self.cpus[cpu].slice_until > fair_end.saturating_add(self.params.min_slice_ns) {
            return self.mark_kicked(cpu);
        }
        // One that was alone has no slice. Now it is not: its claim on the future must be looked at from time to time.
        let mut rest = allowed;
        while rest != 0 {
            let cpu = take_lowest(&mut rest);
            if self.cpus[cpu].slice_until == u64::MAX {
                return self.mark_kicked(cpu);
            }
        }
        None
    }

    /// The pCPU of `cpus` that runs the vCPU with the highest effective time, and that time.
    fn least_urgent(&self, cpus: u64, now: u64) -> Option<(PcpuId, u64)> {
        let mut rest = cpus;
        let mut found: Option<(PcpuId, u64)> = None;
        while rest != 0 {
            let cpu = take_lowest(&mut rest);
            let Some(r) = self.entries.get(usize::from(self.cpus[cpu].current)) else { continue };
            let effective = r.effective_at(now);
            if found.is_none_or(|(_, highest)| later(effective, highest)) {
                found = Some((cpu, effective));
            }
        }
        found
    }
}
