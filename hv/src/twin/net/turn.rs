//! What a lane's runner does, in the mirror: handlers, polls, packets.

mod send;

use super::attached::Attached;
use super::lane::{wanted, Awaits, Drive, Job, Lane, Own, Progress, Waits};
use super::lines;
use super::place::{want, Place};
use super::receive::OnCard;
use crate::arch::tsc;
use crate::cpu::Interruptible;
use crate::guest_warn;
use crate::sync::MutexGuard;
use crate::twin::counts::{Count, Ending, LaneCounts};
use crate::twin::instance::Slot;
use crate::twin::run::{self, Early};
use crate::twin::session::Session;
use crate::twin::table::Loaded;
use crate::twin::view::LATE;
use core::sync::atomic::Ordering;
use hv_core::patience::Interval;
use twin_runtime::gate::Function;
use twin_runtime::linux::{lock, Stop as RoutineStop};
use twin_runtime::Reason;

/// Until a lock of the domain's is tried again, in ns.
pub const BUSY_NS: u64 = 100_000;
/// What a turn may cost: packets that are received or sent, and invocations.
const BUDGET: u32 = 192;
/// A poll that has dealt with so many packets took as long as several invocations.
const MANY: u32 = 16;

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
    lane: &'a Lane,
    loaded: &'a Loaded,
    counts: &'a LaneCounts,
    attached: &'a Attached,
    own: Own,
    progress: &'a mut Progress,
    instance: usize,
    slot: MutexGuard<'a, Slot>,
    session: Session<'a>,
    budget: u32,
    /// Its time is over.
    is_late: bool,
    /// Packets that may be sent before it is looked whether something came.
    left_to_send: usize,
    /// A packet went to the driver.
    has_sent: bool,
    interruptible: Interruptible<'a>,
}

impl<'a> Turn<'a> {
    /// Of a lane of the card in place `number`, in an instance whose slot is the caller's. `None`: the domain is gone.
    #[inline(always)]
    pub fn begin(
        (number, place, lane): (usize, &'a Place, &'a Lane),
        loaded: &'a Loaded,
        Drive { attached, own, progress, passing }: &'a mut Drive,
        (instance, slot): (usize, MutexGuard<'a, Slot>),
        interruptible: Interruptible<'a>,
    ) -> Option<Self> {
        let (own, attached, counts) = (*own, &**attached, &loaded.counts.lanes[own.number]);
        let session = Session::enter(loaded, instance, Some(OnCard { attached, passing }))?;
        Some(Self {
            number,
            place,
            lane,
            loaded,
            counts,
            attached,
            own,
            progress,
            instance,
            slot,
            session,
            budget: BUDGET,
            is_late: false,
            left_to_send: 0,
            has_sent: false,
            interruptible,
        })
    }

    /// Does what there is to do, as far as the budget goes, and until `until` (ns).
    pub fn run(&mut self, now: u64, until: u64) -> Result<Ended, Stop> {
        self.session.domain.late_ns = until;
        if let Some(lock) = self.progress.waits.as_ref().map(Waits::lock) {
            // If that ends the twin, who takes the card away ends what waits, and releases its other locks.
            if !self.take_lock(lock)? {
                return Ok(Ended::Until(now.saturating_add(BUSY_NS)));
            }
            self.progress.waits = None;
            self.resume(0)?;
        }
        loop {
            let mut lines = self.progress.lines;
            while lines != 0 && !self.is_late {
                let n = lines.trailing_zeros() as usize;
                lines &= !(1 << n);
                let Some((irq, line)) = self.attached.irq(n) else { continue };
                if !lines::may_handle(self.attached.owner, line) {
                    continue;
                }
                self.progress.lines &= !(1 << n);
                self.call((Job::Line(n), &self.counts.handlers), irq.handler, [irq.number.into(), irq.argument])?;
            }
            // Each once: those that are to run again come after the others.
            let mut polls = self.progress.polls;
            while polls != 0 && !self.is_late {
                let n = polls.trailing_zeros() as usize;
                polls &= !(1 << n);
                self.progress.polls &= !(1 << n);
                let Some(napi) = self.attached.napi(n) else { continue };
                self.call((Job::Poll(n), &self.counts.polls), napi.poll, [napi.napi, napi.weight.into()])?;
            }
            if !self.is_late {
                send::send_all(self, now)?;
            }
            if self.is_late {
                return Ok(Ended::More);
            }
            let came = self.place.take_lines(self.own.lines);
            self.progress.lines |= came;
            let can_send = self.progress.may_send && self.progress.send_at_ns <= now;
            if came | self.progress.polls == 0 && !can_send {
                break;
            }
            if self.budget == 0 {
                return Ok(Ended::More);
            }
        }
        send::reclaim(self, now)?;
        let is_starved = send::wake_senders(self);
        let at = |is_wanted: bool, at: u64| if is_wanted { at } else { u64::MAX };
        let is_deaf = self.progress.lines != 0;
        // From now on it is asked before the mirror is entered.
        self.progress.ears = is_deaf.then_some(self.progress.ears.unwrap_or(Interval::FIRST));
        let is_out = self.has_sent || self.loaded.common.with_pool(|pool| pool.transmitting() != 0);
        let next = at(self.progress.may_send, self.progress.send_at_ns)
            .min(at(is_deaf, now.saturating_add(Interval::SHORTEST_NS)))
            .min(at(is_out || is_starved, self.attached.reclaim_at_ns.load(Ordering::Relaxed)));
        Ok(if next == u64::MAX { Ended::Quiet } else { Ended::Until(next) })
    }

    /// Calls a function for the card, and does what its end asks for. Not of a twin that another lane has disabled
    /// meanwhile.
    #[inline(always)]
    fn call(&mut self, (job, count): (Job, &Count), function: Function, [first, second]: [u64; 2]) -> Result<(), Stop> {
        if self.loaded.disabled.load(Ordering::Relaxed) {
            return Err(Stop::Ends);
        }
        self.budget = self.budget.saturating_sub(1);
        count.add();
        self.progress.job = Some(job);
        if let Job::Poll(n) = job {
            self.progress.polling = 1 << n;
        }
        let args = [first, second, 0, 0, 0, 0];
        let returned = self.session.call(&mut self.slot, function, &args, self.interruptible.again());
        self.hear();
        match returned {
            Some(value) => {
                self.progress.job = None;
                self.finish(job, value)
            }
            None => self.ended_early(),
        }
    }

    /// Goes on with the card's invocation that waited, and does what its end asks for.
    pub fn resume(&mut self, result: u64) -> Result<(), Stop> {
        let returned = self.session.resume(&mut self.slot, result, self.interruptible.again());
        self.hear();
        match (returned, self.progress.job) {
            (None, _) => self.ended_early()?,
            (Some(_), None) => {}
            (Some(value), Some(job)) => {
                self.progress.job = None;
                self.finish(job, value)?;
            }
        }
        send::unlock(self)
    }

    /// What an invocation has come to beside its value.
    #[inline(always)]
    fn hear(&mut self) {
        let domain = &mut self.session.domain;
        domain.pass_on();
        let (polls, woken) = (core::mem::take(&mut domain.polls), core::mem::take(&mut domain.woken));
        self.progress.polling &= !core::mem::take(&mut domain.completed);
        if polls != 0 {
            self.schedule(polls);
        }
        if woken != 0 {
            self.wake(woken);
        }
    }

    /// Polls were scheduled: those that are another lane's it is told of.
    fn schedule(&mut self, mut polls: u32) {
        let own = self.own.number;
        while polls != 0 {
            let n = polls.trailing_zeros() as usize;
            polls &= polls - 1;
            let home = self.attached.lanes.home(n, own);
            if home == own {
                self.progress.polls |= 1 << n;
            } else {
                self.place.lanes[home].polls.fetch_or(1 << n, Ordering::SeqCst);
                want(self.number, home, wanted::POLLS);
            }
        }
    }

    /// Transmit queues were woken, which others are told of, too; or the time is over.
    #[cold]
    fn wake(&mut self, woken: u32) {
        if woken & LATE != 0 {
            (self.is_late, self.left_to_send) = (true, 0);
        }
        for lane in (0..self.attached.lanes.count()).filter(|lane| woken >> lane & 1 != 0) {
            if lane == self.own.number {
                self.progress.send_at_ns = 0;
            } else {
                want(self.number, lane, wanted::WAKE);
            }
        }
    }

    #[cold]
    fn ended_early(&mut self) -> Result<(), Stop> {
        match self.session.early.take() {
            None => Ok(()),
            // The instance is the card's.
            Some(Early::NotBegun(_)) => self.ends(Reason::Busy),
            Some(Early::Waits(to_call)) => {
                self.note_wait(to_call);
                Err(Stop::Waits)
            }
            Some(Early::Aborted(abort)) => {
                // Of several lanes the first says so.
                if self.loaded.disable(Ending::from(&abort)) {
                    guest_warn!("d{}: twin {} is disabled: {abort}", self.attached.owner, self.number);
                }
                Err(Stop::Ends)
            }
        }
    }

    fn note_wait(&mut self, to_call: run::ToCall) {
        let awaits = if to_call.is_lock {
            self.counts.lock_waits.add();
            Awaits::Lock(to_call.args[0])
        } else {
            self.loaded.counts.upcalls.fetch_add(1, Ordering::Relaxed);
            Awaits::Function(to_call.function)
        };
        self.progress.waits = Some(Waits::new(self.instance, awaits, tsc::now_ns()));
        if let Some(waiting) = &mut self.slot.waiting {
            waiting.lane = Some(self.own.number);
            waiting.to_fetch = (!to_call.is_lock).then_some(to_call);
            waiting.is_atomic = matches!(self.progress.job, Some(Job::Line(_) | Job::Send));
        }
    }

    /// A routine found what must not be.
    #[cold]
    fn ends<T>(&mut self, reason: Reason) -> Result<T, Stop> {
        if self.loaded.disable(Ending::from(&reason)) {
            guest_warn!("d{}: twin {} is disabled: {reason:x?}", self.attached.owner, self.number);
        }
        Err(Stop::Ends)
    }

    #[inline(always)]
    fn check<T>(&mut self, result: Result<T, Reason>) -> Result<T, Stop> {
        result.or_else(|reason| self.ends(reason))
    }

    /// What the end of an invocation asks for that returned `value`.
    #[inline(always)]
    fn finish(&mut self, job: Job, value: u64) -> Result<(), Stop> {
        #[allow(clippy::cast_possible_truncation, reason = "an int")]
        let value = value as u32;
        match job {
            Job::Line(n) => {
                if let Some((_, line)) = self.attached.irq(n) {
                    lines::answered(self.attached.owner, (n, line), value, &mut self.progress.unclaimed);
                }
                Ok(())
            }
            Job::Poll(n) => self.polled(n, value),
            Job::Send => send::sent(self, value.cast_signed()),
        }
    }

    /// A poll has dealt with `work` packets.
    #[inline(never)]
    fn polled(&mut self, n: usize, work: u32) -> Result<(), Stop> {
        self.budget = self.budget.saturating_sub(work);
        let was_given_up = core::mem::take(&mut self.progress.polling) >> n & 1 == 0;
        if work >= MANY {
            self.session.domain.begin_anew();
        }
        let Some(napi) = self.attached.napi(n) else { return Ok(()) };
        let again = self.loaded.common.support.after_poll(&mut self.session.domain, napi.napi, was_given_up);
        if self.check(again)? {
            self.progress.polls |= 1 << n;
        }
        Ok(())
    }

    /// Tries to take the lock for which an invocation waits.
    fn take_lock(&mut self, lock: Option<u64>) -> Result<bool, Stop> {
        let Some(address) = lock else { return Ok(false) };
        let args = [address, 0, 0, 0, 0, 0];
        match lock::try_lock(&self.loaded.common.support, &mut self.session.domain, &args) {
            Ok(taken) => Ok(taken != 0),
            Err(RoutineStop::Abort(reason)) => self.ends(reason),
            Err(RoutineStop::Upcall) => Ok(false),
        }
    }
}
