//! One line: who is told when it fires, who has not answered yet, and how often it fires.

use super::tell::{places, Deliveries, Delivery};
use super::{DomId, Wire, MAX_SHARERS};
use xen_abi::errno::Errno;

/// Length of the storm guard's window.
const WINDOW_NS: u64 = 100_000_000;
/// More than this in a window is a storm: a hundred thousand interrupts a second, each of which takes some
/// microseconds. No device needs more: those that could raise them collect what they have to say.
pub(super) const STORM: u32 = 10_000;

/// How long a domain that shares a level-triggered line may keep it masked. A driver's handler takes microseconds.
const ANSWER_NS: u64 = 100_000_000;
/// A line of which a sharer has not answered in time fires at most this often: its device may well go on asking. Nor
/// may one that was late before, or has taken longer than this to answer, keep it masked for longer: each time it would
/// else cost the others [`ANSWER_NS`], if it always answers just before or afterwards.
const THROTTLE_NS: u64 = 10_000_000;
/// A line that nobody holds asserted stays silent for at least this long now and then after it was unmasked.
const CALM_NS: u64 = 100_000;
/// Who serves a line alone is told alone so often in a row at most, and for so long: what others' devices ask is not
/// overheard for longer.
const ALONE_TIMES: u8 = 32;
const ALONE_NS: u64 = 10_000_000;
/// So often in a row, and what a sharer left behind is not asking any more. [`THROTTLE_NS`] lie between two that count,
/// or a busy device of another's would end the watch in no time.
const CALM_TIMES: u8 = 8;

/// What let a line fire again, and when.
#[derive(Clone, Copy)]
enum Opened {
    /// The last answer.
    ByAnswer(u64),
    /// The end of a hold, in which others' devices may have begun to ask.
    AfterHold(u64),
}

pub(super) struct Line<M> {
    /// `None`: a wire, or an unused message.
    pub msi: Option<M>,
    /// How a wire signals, once it has been said or used.
    pub wire: Option<Wire>,
    pub(super) guests: [Option<Delivery>; MAX_SHARERS],
    /// Bit n: there is a guest n.
    present: u8,
    /// Bit n: guest n has been told and has not answered.
    pub(super) in_flight: u8,
    /// Bit n: guest n has not answered in time, and is not waited for until it does.
    pub(super) late: u8,
    /// Bit n: guest n has once been late, or has taken as long as the throttle to answer, on this line or on one that
    /// it has left.
    was_late: u8,
    /// Bit n: guest n serves the line alone as it seems, since it was found to be its device's that asked.
    pub(super) alone: u8,
    /// How often in a row it was told alone, and when all were told.
    told_alone: u8,
    told_all: u64,
    /// A sharer has left, and its device may go on asking with nobody to serve it.
    pub(super) is_abandoned: bool,
    /// Since then, so often in a row the line was silent for a while.
    calm: u8,
    /// When that was counted last.
    calm_at: u64,
    /// Since then: when it was let fire again.
    opened: Option<Opened>,
    /// It fired as soon as it was let, though those whose devices asked had served them.
    is_doubted: bool,
    /// When it fired last.
    started: u64,
    /// It has been masked for the time of the throttle since.
    is_throttled: bool,
    /// Those that use it agree to share it.
    pub(super) shareable: bool,
    window_start: u64,
    fired: u32,
    /// Masked until this time, whoever answers.
    pub(super) held_until: Option<u64>,
    /// How often it fired since it was first bound.
    pub(super) total: u32,
    /// How often it fired on another CPU than that of its vCPU, since it went to this CPU.
    pub detours: u8,
}

impl<M> Line<M> {
    pub fn new() -> Line<M> {
        Line {
            msi: None,
            wire: None,
            guests: [None; MAX_SHARERS],
            present: 0,
            in_flight: 0,
            late: 0,
            was_late: 0,
            alone: 0,
            told_alone: 0,
            told_all: 0,
            is_abandoned: false,
            calm: 0,
            calm_at: 0,
            opened: None,
            is_doubted: false,
            started: 0,
            is_throttled: false,
            shareable: false,
            window_start: 0,
            fired: 0,
            held_until: None,
            total: 0,
            detours: 0,
        }
    }

    pub fn is_level(&self) -> bool {
        self.msi.is_none() && self.wire.is_some_and(|w| w.level)
    }

    /// Is nobody to be told?
    pub fn is_idle(&self) -> bool {
        self.present == 0
    }

    pub fn nr_guests(&self) -> usize {
        self.present.count_ones() as usize
    }

    /// Is it for several domains?
    pub fn is_shared(&self) -> bool {
        self.present & self.present.wrapping_sub(1) != 0
    }

    /// May one more be told?
    pub fn admit(&self, share: bool) -> Result<(), Errno> {
        let n = self.nr_guests();
        if n == 0 || (share && self.shareable && n < MAX_SHARERS) {
            Ok(())
        } else {
            Err(Errno::EBUSY)
        }
    }

    /// Takes a guest in. `was_late`: it [has kept](Self::has_kept) a line from others.
    pub fn add(&mut self, guest: Delivery, share: bool, was_late: bool) {
        if self.is_idle() {
            self.shareable = share;
            self.in_flight = 0;
            self.late = 0;
            self.alone = 0;
            self.is_abandoned = false;
            self.detours = 0;
        }
        if let Some((n, slot)) = self.guests.iter_mut().enumerate().find(|(_, g)| g.is_none()) {
            *slot = Some(guest);
            self.present |= 1 << n;
            self.was_late = self.was_late & !(1 << n) | u8::from(was_late) << n;
        }
    }

    /// Has a guest kept the line from others for long, or does it perhaps just now? Who leaves and comes back is waited
    /// for no longer than who stays.
    pub fn has_kept(&self, dom: DomId, pirq: u32) -> bool {
        let waited_for = if self.is_shared() { self.in_flight } else { 0 };
        (self.was_late | waited_for) & self.bit_of(dom, pirq) != 0
    }

    /// Takes a guest out. `true`: it was the last that the line was masked for.
    pub fn remove(&mut self, dom: DomId, pirq: u32) -> bool {
        let done = self.answered(dom, pirq);
        for (n, g) in self.guests.iter_mut().enumerate() {
            if g.is_some_and(|g| g.dom == dom && g.pirq == pirq) {
                *g = None;
                self.present &= !(1 << n);
                self.alone &= !(1 << n);
            }
        }
        self.is_abandoned = true;
        self.calm = 0;
        self.opened = None;
        self.is_doubted = false;
        done
    }

    /// A guest has looked whether its own device asked. If so it is told alone the next times: another's device that
    /// asks too, keeps asking, and then this one finds nothing.
    pub fn found(&mut self, dom: DomId, pirq: u32, is_its: bool) {
        self.alone = 0;
        for n in places(self.present).filter(|_| is_its) {
            if self.guests.get(n).copied().flatten().is_some_and(|g| g.dom == dom && g.pirq == pirq) {
                self.alone = 1 << n;
            }
        }
    }

    /// Who is told now.
    #[inline]
    fn told_now(&mut self, now: u64) -> u8 {
        let alone = self.alone & self.present & !self.late;
        if alone != 0 && self.told_alone < ALONE_TIMES && now.saturating_sub(self.told_all) < ALONE_NS {
            self.told_alone += 1;
            return alone;
        }
        (self.told_alone, self.told_all) = (0, now);
        self.present
    }

    /// Everybody is told, but for a line that a guest serves alone; level-triggered, everybody is waited for who is
    /// told and not late already.
    #[inline]
    pub fn start(&mut self, now: u64) -> Deliveries {
        let is_level = self.is_level();
        let mut present = self.present;
        if is_level {
            if self.is_shared() {
                present = self.told_now(now);
            }
            self.in_flight |= present;
            if self.in_flight & !self.late == 0 {
                // All are late: somebody must be waited for, or nobody would unmask it.
                self.late = 0;
            }
            self.in_flight &= !self.late;
            self.started = now;
            self.is_throttled = false;
            self.judge(now);
        }
        let mut told = Deliveries::none();
        told.present = present;
        told.is_shared = is_level && self.is_shared();
        // Most lines have one guest, and this is for every interrupt: no need to copy the other places.
        for n in places(present) {
            if let (Some(to), Some(guest)) = (told.list.get_mut(n), self.guests.get(n)) {
                *to = *guest;
            }
        }
        told
    }

    /// It fired: does what a sharer left behind still ask? If it does, an answer changes nothing. Others' devices need
    /// some time until they ask again, but not after a hold; so what fires then is answered before it is judged.
    fn judge(&mut self, now: u64) {
        self.is_doubted = false;
        if !self.is_abandoned {
            return;
        }
        let is_soon = |at: u64| now.saturating_sub(at) < CALM_NS;
        match self.opened.take() {
            None => {}
            Some(Opened::AfterHold(at)) if is_soon(at) => {}
            Some(Opened::ByAnswer(at)) if is_soon(at) => {
                self.is_doubted = true;
                self.calm = 0;
            }
            Some(_) if now.saturating_sub(self.calm_at) < THROTTLE_NS => {}
            Some(_) => {
                self.calm += 1;
                self.calm_at = now;
            }
        }
        self.is_abandoned = self.calm < CALM_TIMES;
    }

    /// Is it to fire less often, as its device may ask for ever?
    fn is_suspect(&self) -> bool {
        self.late != 0 || self.is_doubted
    }

    /// A guest has answered. `true`: it was the last, and the line may be unmasked.
    #[inline]
    pub fn finish(&mut self, dom: DomId, pirq: u32, now: u64) -> bool {
        if self.is_shared() && now.saturating_sub(self.started) >= THROTTLE_NS {
            self.was_late |= self.in_flight & self.bit_of(dom, pirq);
        }
        let opens = self.answered(dom, pirq);
        if opens && self.is_abandoned {
            self.opened = Some(Opened::ByAnswer(now));
        }
        opens
    }

    #[inline]
    fn answered(&mut self, dom: DomId, pirq: u32) -> bool {
        let before = self.in_flight;
        let bit = self.bit_of(dom, pirq);
        self.in_flight &= !bit;
        self.late &= !bit;
        before != 0 && self.in_flight == 0 && !self.throttle()
    }

    /// The bit of a guest; 0: it is none.
    #[inline]
    fn bit_of(&self, dom: DomId, pirq: u32) -> u8 {
        let is_it = |n: &usize| self.guests.get(*n).copied().flatten().is_some_and(|g| g.dom == dom && g.pirq == pirq);
        places(self.present).find(is_it).map_or(0, |n| 1 << n)
    }

    /// The line is to be unmasked: `true` if it must wait.
    fn throttle(&mut self) -> bool {
        if self.held_until.is_none() && self.is_suspect() && !self.is_throttled {
            // One that is doubted has fired twice.
            let times = 1 + u64::from(self.is_doubted);
            self.held_until = Some(self.started.saturating_add(times * THROTTLE_NS));
        }
        self.held_until.is_some()
    }

    /// When something is to be done about it, if it is left alone until then.
    #[inline]
    pub fn wake_at(&self) -> Option<u64> {
        if self.held_until.is_some() {
            return self.held_until;
        }
        let wait = match self.in_flight {
            0 => return None,
            waited_for if (self.is_suspect() || waited_for & self.was_late != 0) && !self.is_throttled => THROTTLE_NS,
            _ if !self.is_shared() => return None,
            _ => ANSWER_NS,
        };
        Some(self.started.saturating_add(wait))
    }

    /// Looks at the time while somebody is waited for. `true`: those who have not answered are late now, and the line
    /// may be unmasked.
    pub fn give_up(&mut self, now: u64) -> bool {
        if self.in_flight == 0 || self.held_until.is_some() {
            return false;
        }
        let waited = now.saturating_sub(self.started);
        self.is_throttled |= waited >= THROTTLE_NS;
        let patience = if self.in_flight & !self.was_late == 0 { THROTTLE_NS } else { ANSWER_NS };
        if !self.is_shared() || waited < patience {
            return false;
        }
        self.late |= core::mem::take(&mut self.in_flight);
        self.was_late |= self.late;
        true
    }

    /// Has everybody answered?
    pub fn is_finished(&self) -> bool {
        self.in_flight == 0 && !self.is_idle()
    }

    /// Counts an interrupt. `true`: there were too many in this window.
    #[inline]
    pub fn count(&mut self, now: u64) -> bool {
        if now.wrapping_sub(self.window_start) >= WINDOW_NS {
            self.window_start = now;
            self.fired = 0;
        }
        self.fired = self.fired.saturating_add(1);
        self.total = self.total.wrapping_add(1);
        self.fired > STORM
    }

    /// Holds the line for the rest of the window.
    pub fn hold(&mut self) {
        self.held_until = Some(self.window_start.saturating_add(WINDOW_NS));
    }

    pub fn is_held(&self) -> bool {
        self.held_until.is_some()
    }

    pub fn hold_is_over(&self, now: u64) -> bool {
        self.held_until.is_some_and(|until| now >= until)
    }

    pub fn end_hold(&mut self) {
        self.held_until = None;
    }

    /// The end of a hold let it fire again.
    pub fn note_reopened(&mut self, now: u64) {
        self.opened = Some(Opened::AfterHold(now));
    }
}
