//! What a card's runner does, in the mirror: handlers, polls, packets.

use super::attached::Attached;
use super::lines;
use super::link::hooks;
use super::place::{Drive, Job, Place, Progress, Waits};
use super::queue::Outgoing;
use super::receive::OnCard;
use crate::arch::tsc;
use crate::cpu::Interruptible;
use crate::guest_warn;
use crate::sync::MutexGuard;
use crate::twin::counts::{Count, Ending};
use crate::twin::instance::Slot;
use crate::twin::run::{self, Begin, How};
use crate::twin::session::Session;
use crate::twin::table::Loaded;
use core::sync::atomic::Ordering;
use twin_runtime::linux::queue::Begun;
use twin_runtime::linux::skb::{Packet, GSO_TCP_V4, GSO_TCP_V6};
use twin_runtime::linux::{lock, Stop as RoutineStop};
use twin_runtime::Reason;

/// Until a lock of the domain's is tried again, in ns.
pub const BUSY_NS: u64 = 100_000;
/// What a turn may cost: packets that are received or sent, and invocations.
const BUDGET: u32 = 192;
/// Packets that are sent at once, before it is looked whether something came.
const SEND_AT_ONCE: usize = 64;
/// Until a stopped queue is looked at again although nobody woke it, in ns: its own driver may have, on the domain's side.
const STOPPED_NS: u64 = 1_000_000;
/// Until an interrupt is tried again whose vCPU does not take events, in ns.
const EARS_NS: u64 = 50_000;
/// From one look at what the domain has freed itself to the next, in ns.
const RECLAIM_NS: u64 = 50_000_000;
/// A packet that has waited for so long for a stopped queue is lost.
const MOST_NS: u64 = 2_000_000_000;
/// What a transmit routine returns is below this if it has taken the packet, and negative if it has lost it.
const NOT_TAKEN: i32 = 0x10;

/// What a handler returns if it was its device that asked.
const IRQ_HANDLED: u32 = 1;

/// How a turn ended.
pub enum Ended {
    /// There is nothing to do.
    Quiet,
    /// There is more to do.
    More,
    /// There is nothing to do before this time, in ns.
    Until(u64),
    /// The twin is disabled.
    Disabled,
}

/// Why a turn ends early.
pub enum Stop {
    /// An invocation waits.
    Waits,
    /// The twin is disabled.
    Ends,
}

/// A turn.
pub struct Turn<'a> {
    number: usize,
    place: &'a Place,
    loaded: &'a Loaded,
    attached: &'a Attached,
    progress: &'a mut Progress,
    instance: usize,
    slot: MutexGuard<'a, Slot>,
    session: Session<'a>,
    budget: u32,
    interruptible: Interruptible<'a>,
}

impl<'a> Turn<'a> {
    /// Of the card in place `number`, in an instance whose slot is the caller's. `None`: the domain is gone.
    pub fn begin(
        (number, place, loaded): (usize, &'a Place, &'a Loaded),
        Drive { attached, progress, passing }: &'a mut Drive,
        (instance, slot): (usize, MutexGuard<'a, Slot>),
        interruptible: Interruptible<'a>,
    ) -> Option<Self> {
        let session = Session::enter(loaded, instance, Some(OnCard { attached, passing }))?;
        Some(Self { number, place, loaded, attached, progress, instance, slot, session, budget: BUDGET, interruptible })
    }

    /// Does what there is to do, as far as the budget goes.
    pub fn run(&mut self, now: u64) -> Result<Ended, Stop> {
        if let Some(waits) = self.progress.waits.take() {
            if !self.take_lock(&waits)? {
                self.progress.waits = Some(waits);
                return Ok(Ended::Until(now.saturating_add(BUSY_NS)));
            }
            self.resume(0)?;
        }
        loop {
            let mut lines = self.progress.lines;
            while lines != 0 {
                let n = lines.trailing_zeros() as usize;
                lines &= !(1 << n);
                let Some((irq, line)) = self.attached.irq(n) else { continue };
                if !lines::may_handle(self.attached.owner, line) {
                    continue;
                }
                self.progress.lines &= !(1 << n);
                self.call(
                    (Job::Line(n), &self.loaded.counts.handlers),
                    irq.handler,
                    [irq.number.into(), irq.argument],
                )?;
            }
            // Each once: those that are to run again come after the others.
            let mut polls = self.progress.polls;
            while polls != 0 {
                let n = polls.trailing_zeros() as usize;
                polls &= !(1 << n);
                self.progress.polls &= !(1 << n);
                let Some(napi) = self.attached.napi(n) else { continue };
                self.call((Job::Poll(n), &self.loaded.counts.polls), napi.poll, [napi.napi, napi.weight.into()])?;
            }
            self.send_all(now)?;
            let came = self.place.lines.lock().take();
            self.progress.lines |= came;
            let can_send = self.progress.may_send && self.progress.send_at_ns <= now;
            if came | self.progress.polls == 0 && !can_send {
                break;
            }
            if self.budget == 0 {
                return Ok(Ended::More);
            }
        }
        self.reclaim(now)?;
        self.wake_senders();
        let at = |is_wanted: bool, at: u64| if is_wanted { at } else { u64::MAX };
        let is_out = self.loaded.common.with_pool(|pool| pool.transmitting() != 0);
        let next = at(self.progress.may_send, self.progress.send_at_ns)
            .min(at(self.progress.lines != 0, now.saturating_add(EARS_NS)))
            .min(at(is_out, self.progress.reclaim_at_ns));
        Ok(if next == u64::MAX { Ended::Quiet } else { Ended::Until(next) })
    }

    /// Calls a function for the card, and does what its end asks for.
    fn call(&mut self, (job, count): (Job, &Count), function: u64, [first, second]: [u64; 2]) -> Result<(), Stop> {
        self.budget = self.budget.saturating_sub(1);
        count.add();
        self.progress.job = Some(job);
        self.go(Begin::Call { function, args: [first, second, 0, 0, 0, 0] }).map(|_| ())
    }

    /// Goes on with the card's invocation that waited, and does what its end asks for.
    pub fn resume(&mut self, result: u64) -> Result<(), Stop> {
        self.go(Begin::Resume { result })?;
        self.unlock()
    }

    fn go(&mut self, begin: Begin) -> Result<(), Stop> {
        let ran = self.session.run(&mut self.slot, begin, self.interruptible.again());
        let domain = &mut self.session.domain;
        let passed = domain.pass_on().map_err(Reason::from);
        self.progress.polls |= core::mem::take(&mut domain.polls);
        if core::mem::take(&mut domain.is_woken) {
            self.progress.send_at_ns = 0;
        }
        self.check(passed)?;
        // The functions were looked up when the card came.
        let Ok(ended) = ran else { return self.ends(Reason::Busy) };
        match ended.how {
            How::Returned(value) => match self.progress.job.take() {
                Some(job) => self.finish(job, value),
                None => Ok(()),
            },
            How::Waits(to_call) => {
                self.note_wait(to_call);
                Err(Stop::Waits)
            }
            How::Aborted(abort) => {
                self.loaded.disable(Ending::from(&abort));
                guest_warn!("d{}: twin {} is disabled: {abort}", self.attached.owner, self.number);
                Err(Stop::Ends)
            }
        }
    }

    fn note_wait(&mut self, to_call: run::ToCall) {
        let lock = to_call.is_lock.then_some(to_call.args[0]);
        let counts = &self.loaded.counts;
        match lock {
            Some(_) => counts.lock_waits.add(),
            None => _ = counts.upcalls.fetch_add(1, Ordering::Relaxed),
        }
        self.progress.waits = Some(Waits { instance: self.instance, lock, since_ns: tsc::now_ns() });
        if let Some(waiting) = &mut self.slot.waiting {
            waiting.to_fetch = lock.is_none().then_some(to_call);
        }
    }

    /// A routine found what must not be.
    fn ends<T>(&mut self, reason: Reason) -> Result<T, Stop> {
        self.loaded.disable(Ending::from(&reason));
        guest_warn!("d{}: twin {} is disabled: {reason:x?}", self.attached.owner, self.number);
        Err(Stop::Ends)
    }

    fn check<T>(&mut self, result: Result<T, Reason>) -> Result<T, Stop> {
        result.or_else(|reason| self.ends(reason))
    }

    /// What the end of an invocation asks for that returned `value`.
    fn finish(&mut self, job: Job, value: u64) -> Result<(), Stop> {
        #[allow(clippy::cast_possible_truncation, reason = "an int")]
        let value = value as u32;
        match job {
            Job::Line(n) => {
                if let Some((_, line)) = self.attached.irq(n) {
                    lines::handled(self.attached.owner, line, value & IRQ_HANDLED != 0);
                }
                Ok(())
            }
            Job::Poll(n) => self.polled(n, value),
            Job::Send(packet) => self.sent(packet, value.cast_signed()),
        }
    }

    /// A poll has dealt with `work` packets. With as many as it may it is still the hypervisor's, and there is more.
    fn polled(&mut self, n: usize, work: u32) -> Result<(), Stop> {
        self.budget = self.budget.saturating_sub(work);
        let Some(napi) = self.attached.napi(n).filter(|napi| work >= napi.weight) else { return Ok(()) };
        let ended = self.loaded.common.support.end_stopped_poll(&mut self.session.domain, napi.napi);
        if !self.check(ended)? {
            self.progress.polls |= 1 << n;
        }
        Ok(())
    }

    /// Sends what waits, as far as it goes.
    fn send_all(&mut self, now: u64) -> Result<(), Stop> {
        if !self.progress.may_send || self.progress.send_at_ns > now {
            return Ok(());
        }
        for _ in 0..SEND_AT_ONCE {
            let Some(packet) = self.place.queue.lock().next() else {
                self.progress.may_send = false;
                break;
            };
            if !self.may_send(now)? {
                self.place.queue.lock().put_back(packet);
                self.expire(now);
                break;
            }
            self.send(packet)?;
            if self.progress.send_at_ns > now {
                break;
            }
        }
        self.unlock()
    }

    /// Takes the transmit lock, if it is not held. `false`: somebody has it, or the queue is stopped.
    fn may_send(&mut self, now: u64) -> Result<bool, Stop> {
        let (support, queue) = (&self.loaded.common.support, self.attached.queue);
        if self.progress.has_lock {
            let is_open = support.is_open(&self.session.domain, queue);
            let is_open = self.check(is_open)?;
            if !is_open {
                self.progress.send_at_ns = now.saturating_add(STOPPED_NS);
            }
            return Ok(is_open);
        }
        let begun = support.begin_transmit(&mut self.session.domain, queue);
        let wait_ns = match self.check(begun)? {
            Begun::Open => {
                self.progress.has_lock = true;
                return Ok(true);
            }
            Begun::Stopped => STOPPED_NS,
            Begun::Busy => BUSY_NS,
        };
        self.progress.send_at_ns = now.saturating_add(wait_ns);
        Ok(false)
    }

    /// Gives the transmit lock back, if it is held.
    fn unlock(&mut self) -> Result<(), Stop> {
        if !core::mem::take(&mut self.progress.has_lock) {
            return Ok(());
        }
        let ended = self.loaded.common.support.end_transmit(&mut self.session.domain, self.attached.queue, true);
        self.check(ended)
    }

    /// Hands a packet to the driver; the transmit lock is held.
    fn send(&mut self, packet: Outgoing) -> Result<(), Stop> {
        let Outgoing { skb, cookie, about, .. } = packet;
        let device = self.attached.device;
        let checksum = about.checksum.map(|sum| (sum.start, sum.offset));
        let segmentation = about.segments.map(|s| (s.size, s.count, if s.is_v6 { GSO_TCP_V6 } else { GSO_TCP_V4 }));
        let what = Packet { device, header: &[], fragments: &[], checksum, segmentation, queue: 0, cookie };
        let bytes = (about.len, about.more);
        let prepared = self.loaded.common.support.prepare_reserved(&mut self.session.domain, skb, bytes, &what);
        if !self.check(prepared)? {
            self.session.domain.sent(cookie);
            return Ok(());
        }
        self.call((Job::Send(packet), &self.loaded.counts.packets), self.attached.start_xmit, [skb, device])
    }

    /// The transmit routine has returned `value`.
    fn sent(&mut self, packet: Outgoing, value: i32) -> Result<(), Stop> {
        let is_refused = value >= NOT_TAKEN;
        if is_refused && self.loaded.common.with_pool(|pool| pool.take_over(packet.skb, packet.cookie)) {
            self.place.queue.lock().put_back(packet);
            self.progress.send_at_ns = tsc::now_ns().saturating_add(STOPPED_NS);
        }
        Ok(())
    }

    /// What has waited for too long is lost.
    fn expire(&mut self, now: u64) {
        loop {
            let Some(packet) = self.place.queue.lock().next_before(now.saturating_sub(MOST_NS)) else { break };
            self.loaded.common.with_pool(|pool| pool.unreserve(packet.skb));
            self.session.domain.sent(packet.cookie);
        }
    }

    /// Now and then takes back what the domain's own kernel has freed: packets that it found to be sent, too.
    fn reclaim(&mut self, now: u64) -> Result<(), Stop> {
        if now < self.progress.reclaim_at_ns {
            return Ok(());
        }
        self.progress.reclaim_at_ns = now.saturating_add(RECLAIM_NS);
        let (common, domain) = (&self.loaded.common, &mut self.session.domain);
        let mut cookies = [0; 64];
        let mut count = 0;
        let keep = |cookie| match cookies.get_mut(count) {
            Some(to) => {
                (*to, count) = (cookie, count + 1);
                true
            }
            None => false,
        };
        let found = common.with_pool(|pool| pool.reclaim(domain, &common.support.offsets, keep));
        cookies[..count].iter().for_each(|cookie| domain.sent(*cookie));
        self.check(found.map_err(Reason::from)).map(|_| ())
    }

    /// Who found no room hears if there is some.
    fn wake_senders(&mut self) {
        let has_room = self.loaded.common.with_pool(|pool| pool.free().0 > pool.whole() / 4);
        if has_room && self.place.queue.lock().take_starved() {
            if let Some(hooks) = hooks() {
                (hooks.transmitted)(self.attached.card, &[]);
            }
        }
    }

    /// Tries to take the lock for which an invocation waits.
    fn take_lock(&mut self, waits: &Waits) -> Result<bool, Stop> {
        let Some(address) = waits.lock else { return Ok(false) };
        let args = [address, 0, 0, 0, 0, 0];
        match lock::try_lock(&self.loaded.common.support, &mut self.session.domain, &args) {
            Ok(taken) => Ok(taken != 0),
            Err(RoutineStop::Abort(reason)) => self.ends(reason),
            Err(RoutineStop::Upcall) => Ok(false),
        }
    }
}
