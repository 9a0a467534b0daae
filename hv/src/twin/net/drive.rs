//! Who runs a card's lanes, and when.

use super::card::end_disabled;
use super::lane::{wanted, Awaits, Drive, Lane, Progress, Waits};
use super::lines;
use super::place::{number_of, with_card, Place, NR_ATTACHED};
use super::turn::{Ended, Stop, Turn, BUSY_NS};
use crate::arch::tsc;
use crate::cpu::percpu::{pending, this_cpu};
use crate::cpu::Interruptible;
use crate::domain::{self, vcpu};
use crate::guest_warn;
use crate::irq;
use crate::sched::{run, timers, Doing};
use crate::sync::{RwLock, RwLockWriteGuard};
use crate::twin::counts::Ending;
use crate::twin::table::{Loaded, State, TWINS};
use core::ops::Range;
use core::sync::atomic::Ordering;
use hv_core::stint::Guests;
use twin_abi::op::reason;

/// Until a lane that has used up its turn goes on, in ns. Guests run meanwhile.
const REST_NS: u64 = 50_000;

/// Who runs cards reads it; who wants them to be still writes it.
static STILL: RwLock<()> = RwLock::new(());

/// No card is run as long as the result lives, also by CPUs that idle. (For the audit.)
pub fn hold_still() -> RwLockWriteGuard<'static, ()> {
    STILL.write()
}

/// From now on cards are run.
pub fn install() {
    run::install_card_work(work);
    irq::guest::install_taker(lines::came);
}

/// Runs the lanes of cards of which something is wanted, and those whose time has come: but not for longer than a
/// stint, after which the guests of this CPU have their time.
fn work(mut interruptible: Interruptible<'_>) {
    if NR_ATTACHED.load(Ordering::Relaxed) == 0 {
        return;
    }
    let (cpu, began) = (this_cpu(), tsc::now_ns());
    let Some(_runs) = STILL.try_read() else { return timers::arm_cards(began.saturating_add(BUSY_NS)) };
    let guests = match vcpu::current(cpu) {
        None => Guests::Absent,
        Some(_) if cpu.has_worked.replace(true) => Guests::Waiting,
        Some(_) => Guests::HaveRun,
    };
    let mut stint = cpu.stint.get();
    let may_work = stint.begin(began, guests);
    cpu.rests.set(may_work.is_err());
    let until = match may_work {
        Ok(until) => until,
        Err(rests_until) => return timers::arm_cards(rests_until),
    };
    let mut pass = Pass { now: began, until, next: u64::MAX };
    let first = cpu.next_lane.take();
    pass.run(first..usize::MAX, interruptible.again());
    if first != 0 {
        pass.run(0..first, interruptible);
    }
    if guests == Guests::Absent {
        if pass.is_over() {
            // If somebody wants this CPU by now, it is scheduled first.
            cpu.raise(pending::CARDS);
        }
    } else if let Some(rests_until) = stint.end(began, pass.now) {
        // Whatever was wanted meanwhile is found then.
        cpu.stint.set(stint);
        cpu.rests.set(true);
        cpu.pending.fetch_and(!pending::CARDS, Ordering::AcqRel);
        return timers::arm_cards(rests_until);
    }
    cpu.stint.set(stint);
    if pass.next != u64::MAX {
        timers::arm_cards(pass.next);
    }
}

/// One way through the lanes; times are in ns.
struct Pass {
    now: u64,
    /// It ends then, wherever it is.
    until: u64,
    /// When a lane is to be looked at again: there is one timer for all.
    next: u64,
}

impl Pass {
    fn is_over(&self) -> bool {
        self.now >= self.until
    }

    /// Runs those lanes of which something is wanted, of these numbers.
    fn run(&mut self, numbers: Range<usize>, mut interruptible: Interruptible<'_>) {
        for (number, place) in with_card() {
            for (n, lane) in place.lanes().enumerate() {
                if !numbers.contains(&number_of(number, n)) {
                    continue;
                }
                if !self.is_over() && lane.is_wanted() {
                    self.run_lane((number, place, lane), interruptible.again());
                    if self.is_over() {
                        // So that each has its turn.
                        this_cpu().next_lane.set(number_of(number, n) + 1);
                    }
                }
                self.next = self.next.min(lane.due_ns.load(Ordering::Relaxed));
            }
        }
    }

    /// Runs a lane, unless somebody does: then he looks again.
    fn run_lane(&mut self, of: (usize, &Place, &Lane), mut interruptible: Interruptible<'_>) {
        while !self.is_over() && of.2.is_wanted() {
            let goes_on = run_turn(of, (self.now, self.until), interruptible.again());
            self.now = tsc::now_ns();
            if !goes_on {
                return;
            }
        }
    }
}

/// Runs a lane from `now` on, until a time at most. Is there reason to look at it again?
fn run_turn(
    (number, place, lane): (usize, &Place, &Lane),
    (now, until): (u64, u64),
    interruptible: Interruptible<'_>,
) -> bool {
    let held_until = place.held_until_ns.load(Ordering::Relaxed);
    if held_until > now {
        look_at(lane, held_until);
        return false;
    }
    let Some(twin) = TWINS[number].try_read() else {
        // Locked for a moment, by who loads or unloads a twin here: looked at again soon.
        look_at(lane, now.saturating_add(BUSY_NS));
        return false;
    };
    let Some(State::Ready(loaded)) = twin.as_ref() else { return false };
    let Some(mut drive) = lane.drive.try_lock() else { return false };
    lane.due_ns.store(u64::MAX, Ordering::Relaxed);
    let what = lane.wanted.swap(0, Ordering::SeqCst);
    let Some(own) = drive.as_deref_mut() else { return false };
    match turn((number, place, lane), loaded, own, (now, until), what, interruptible) {
        Ended::Quiet => true,
        Ended::Until(ns) => {
            look_at(lane, ns);
            true
        }
        Ended::More => {
            if vcpu::current(this_cpu()).is_none() {
                // Nobody else wants this CPU; if somebody does, it is scheduled first.
                lane.wanted.fetch_or(wanted::LOOK, Ordering::SeqCst);
                this_cpu().raise(pending::CARDS);
            } else {
                look_at(lane, tsc::now_ns().saturating_add(REST_NS));
            }
            false
        }
        Ended::Disabled => {
            // Whoever ends a card has all of its lanes.
            let card = own.attached.card;
            drop(drive);
            let is_over = end_disabled(loaded, card);
            if !is_over {
                look_at(lane, tsc::now_ns().saturating_add(BUSY_NS));
            }
            is_over
        }
    }
}

/// Disables the twin, because what it waits for does not come. Of a domain that has shut down nobody expects it.
fn give_up(loaded: &Loaded, waits: &Waits, number: usize, owner: u16) {
    let ending = match waits.awaits {
        Awaits::Lock(lock) => Ending::nowhere(reason::LOCK, lock),
        Awaits::Function(function) => Ending::nowhere(reason::UPCALL, function),
    };
    loaded.disable(ending);
    let Some(d) = domain::find(owner).filter(|d| !d.has_stopped()) else { return };
    let doing = Doing(&d);
    match waits.awaits {
        Awaits::Lock(lock) => {
            guest_warn!("d{owner}: twin {number} is disabled: the lock at {lock:#x} stays taken; {doing}")
        }
        Awaits::Function(function) => {
            let slot = loaded.instances[waits.instance].slot.lock();
            let heard_ns = slot.waiting.as_ref().filter(|waiting| waiting.to_fetch.is_none()).map(|w| w.fetched_ns);
            drop(slot);
            let what = format_args!("d{owner}: twin {number} is disabled: the function at {function:#x}");
            match heard_ns {
                None => guest_warn!("{what} is not called; {doing}"),
                Some(ns) => {
                    let ms = tsc::now_ns().saturating_sub(ns) / 1_000_000;
                    guest_warn!("{what}, called {ms} ms ago, does not return; {doing}");
                }
            }
        }
    }
}

/// The lane is looked at again at `ns`.
fn look_at(lane: &Lane, ns: u64) {
    lane.due_ns.store(ns, Ordering::Relaxed);
}

/// What other lanes have left for this one.
#[cold]
fn heard(lane: &Lane, what: u32, progress: &mut Progress) {
    progress.polls |= lane.polls.swap(0, Ordering::SeqCst);
    if what & wanted::WAKE != 0 {
        progress.send_at_ns = 0;
    }
}

/// One turn of a lane, from `now` until a time at most.
fn turn(
    (number, place, lane): (usize, &Place, &Lane),
    loaded: &Loaded,
    drive: &mut Drive,
    (now, until): (u64, u64),
    what: u32,
    interruptible: Interruptible<'_>,
) -> Ended {
    let Drive { attached, own, progress, .. } = &mut *drive;
    progress.may_send |= what & wanted::SEND != 0;
    if what & (wanted::WAKE | wanted::POLLS) != 0 {
        heard(lane, what, progress);
    }
    progress.lines |= place.take_lines(own.lines);
    if loaded.disabled.load(Ordering::Acquire) {
        return Ended::Disabled;
    }
    let is_over = progress.waits.as_mut().is_some_and(|waits| waits.patience.is_over(now, || attached.may_answer()));
    let instance = match &progress.waits {
        None => None,
        Some(waits) if is_over => {
            give_up(loaded, waits, number, attached.owner);
            return Ended::Disabled;
        }
        Some(Waits { awaits: Awaits::Lock(_), instance, .. }) => Some(*instance),
        Some(waits) => return Ended::Until(waits.patience.look_at_ns()),
    };
    let reclaim_at_ns = attached.reclaim_at_ns.load(Ordering::Relaxed);
    // Those that were left are asked for first: of an interrupt that nobody can take the mirror is not entered.
    let lines = if progress.ears.is_some() { lines::ready(attached, &mut progress.lines) } else { progress.lines };
    if lines != 0 || progress.lines == 0 {
        progress.ears = None;
    }
    let has_work = instance.is_some() || lines | progress.polls != 0 || reclaim_at_ns <= now;
    if !(has_work || progress.may_send && progress.send_at_ns <= now) {
        let send_at = if progress.may_send { progress.send_at_ns } else { u64::MAX };
        let hears_in = progress.ears.as_mut().map(|ears| ears.next_ns(attached.may_answer()));
        let hears_at = hears_in.map_or(u64::MAX, |ns| now.saturating_add(ns));
        return Ended::Until(send_at.min(reclaim_at_ns).min(hears_at));
    }
    let slot = match instance {
        None => loaded.free_instance(),
        Some(instance) => loaded.instances[instance].slot.try_lock().map(|slot| (instance, slot)),
    };
    // Others run in all of them, or wait; or somebody goes on in it, who called it before the card came.
    let Some((instance, slot)) = slot else { return Ended::Until(now.saturating_add(BUSY_NS)) };
    let ended = {
        let turn = Turn::begin((number, place, lane), loaded, drive, (instance, slot), interruptible);
        let Some(mut turn) = turn else { return Ended::Quiet };
        turn.run(now, until)
    };
    let Drive { attached, progress, .. } = drive;
    if loaded.common.has_notes() {
        attached.notify();
    }
    match ended {
        Ok(ended) => ended,
        Err(Stop::Waits) => {
            let Some(waits) = &progress.waits else { return Ended::Quiet };
            if waits.lock().is_some() {
                return Ended::Until(now.saturating_add(BUSY_NS));
            }
            attached.notify();
            Ended::Until(waits.patience.look_at_ns())
        }
        Err(Stop::Ends) => Ended::Disabled,
    }
}
