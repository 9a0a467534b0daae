//! Timers: each CPU has a queue; each vCPU has timers of its own in the queue of the CPU that armed them.

use crate::arch::{timer_hw, tsc};
use crate::cpu::percpu::{pending, this_cpu, MAX_CPUS};
use crate::domain::vcpu::{Vcpu, NR_TIMERS};
use crate::domain::Section;
use crate::sched::{self, MAX_VCPUS_TOTAL};
use crate::sync::{Mutex, Once};
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::timer::{TimerId, TimerQueue};

/// The timers of a vCPU.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// VCPUOP_set_singleshot_timer.
    SingleShot = 0,
    /// VCPUOP_set_periodic_timer; runs only while the vCPU does.
    Periodic = 1,
    /// Time-out of SCHEDOP_poll.
    Poll = 2,
    /// The first of its domain's watchdogs to bite; only of vCPU 0.
    Watchdog = 3,
    /// It is looked at whether it is wedged; runs only while the vCPU does.
    Look = 4,
}
#[allow(clippy::cast_possible_truncation, reason = "a handful")]
const KINDS: u32 = NR_TIMERS as u32;
/// So much later than now the timer fires again at the earliest: what it interrupts has to get on.
const SOON_NS: u64 = 20_000;
/// The timer, of whichever CPU, at which interrupts that the storm guard holds are let through again.
const IRQ_RELEASE: TimerId = MAX_VCPUS_TOTAL as u32 * KINDS;

/// The timer of device channels.
const CHANNELS: TimerId = IRQ_RELEASE + 1;
/// The timer of twins' network cards.
const CARDS: TimerId = CHANNELS + 1;
/// The timer of each CPU at which it looks at the interfaces that it looks after.
const SENDERS: TimerId = CARDS + 1;
/// The timer of each CPU at which it looks again whether domains can be freed.
const GRAVES: TimerId = SENDERS + 1;

/// A CPU's timers, and when its current vCPU's turn ends.
struct CpuTimers {
    queue: Mutex<TimerQueue>,
    slice_end_ns: AtomicU64,
    /// What the hardware timer is set to, which may be too early; `u64::MAX`: it does not run, or has fired.
    armed_ns: AtomicU64,
}

static TIMERS: [Once<CpuTimers>; MAX_CPUS] = [const { Once::new() }; MAX_CPUS];

fn of(cpu: u32) -> &'static CpuTimers {
    TIMERS[cpu as usize].get().expect("a CPU sets up its timers before it runs anything")
}

/// Sets up the running CPU's timers.
pub fn init_cpu() {
    TIMERS[this_cpu().cpu as usize].call_once(|| CpuTimers {
        queue: Mutex::new(TimerQueue::new(GRAVES + 1)),
        slice_end_ns: AtomicU64::new(u64::MAX),
        armed_ns: AtomicU64::new(u64::MAX),
    });
}

#[allow(clippy::cast_possible_truncation, reason = "slots are below MAX_VCPUS_TOTAL")]
fn id(v: &Vcpu, kind: Kind) -> TimerId {
    v.sched_id.index() as u32 * KINDS + kind as u32
}

/// Arms a timer of `v` for `deadline_ns` of system time, in this CPU's queue.
pub fn arm(v: &Vcpu, kind: Kind, deadline_ns: u64) {
    let this = this_cpu().cpu;
    let home = &v.timer_cpu[kind as usize];
    let old = home.swap(this, Ordering::Relaxed);
    if old != this {
        if let Some(t) = TIMERS.get(old as usize).and_then(Once::get) {
            t.queue.lock().disarm(id(v, kind));
        }
    }
    let mine = of(this);
    let mut queue = mine.queue.lock();
    queue.arm(id(v, kind), deadline_ns);
    mine.fire_by(deadline_ns);
}

/// [`Due::IrqRelease`] is due at `deadline_ns`.
pub fn arm_irq_release(deadline_ns: u64) {
    let mine = of(this_cpu().cpu);
    let mut queue = mine.queue.lock();
    queue.arm(IRQ_RELEASE, deadline_ns);
    mine.fire_by(deadline_ns);
}

/// [`Due::Channels`] is due at `deadline_ns`, or earlier if it was to be.
pub fn arm_channels(deadline_ns: u64) {
    arm_by(CHANNELS, deadline_ns);
}

/// [`Due::Cards`] is due at `deadline_ns`, or earlier if it was to be.
pub fn arm_cards(deadline_ns: u64) {
    arm_by(CARDS, deadline_ns);
}

/// [`Due::Senders`] is due on this CPU at `deadline_ns`, or earlier if it was to be.
pub fn arm_senders(deadline_ns: u64) {
    arm_by(SENDERS, deadline_ns);
}

/// [`Due::Graves`] is due on this CPU at `deadline_ns`, or earlier if it was to be.
pub fn arm_graves(deadline_ns: u64) {
    arm_by(GRAVES, deadline_ns);
}

/// If [`Due::Senders`] is due on this CPU before `until_ns`, it is due then.
pub fn put_senders_off(until_ns: u64) {
    put_off(SENDERS, until_ns);
}

/// The same of [`Due::Channels`].
pub fn put_channels_off(until_ns: u64) {
    put_off(CHANNELS, until_ns);
}

fn put_off(timer: TimerId, until_ns: u64) {
    let mine = of(this_cpu().cpu);
    let mut queue = mine.queue.lock();
    if queue.deadline_of(timer).is_some_and(|armed| armed < until_ns) {
        queue.arm(timer, until_ns);
        mine.fire_by(until_ns);
    }
}

fn arm_by(timer: TimerId, deadline_ns: u64) {
    let mine = of(this_cpu().cpu);
    let mut queue = mine.queue.lock();
    if queue.deadline_of(timer).is_none_or(|armed| deadline_ns < armed) {
        queue.arm(timer, deadline_ns);
        mine.fire_by(deadline_ns);
    }
}

/// Disarms a timer of `v`.
pub fn disarm(v: &Vcpu, kind: Kind) {
    let home = v.timer_cpu[kind as usize].load(Ordering::Relaxed);
    if let Some(t) = TIMERS.get(home as usize).and_then(Once::get) {
        t.queue.lock().disarm(id(v, kind));
    }
}

/// When a timer of `v` is due, if it is armed.
pub fn deadline(v: &Vcpu, kind: Kind) -> Option<u64> {
    let home = v.timer_cpu[kind as usize].load(Ordering::Relaxed);
    TIMERS.get(home as usize).and_then(Once::get)?.queue.lock().deadline_of(id(v, kind))
}

/// Disarms all timers of `v`, which goes away, or starts anew.
pub fn disarm_all(v: &Vcpu) {
    for kind in [Kind::SingleShot, Kind::Periodic, Kind::Poll, Kind::Watchdog, Kind::Look] {
        disarm(v, kind);
    }
}

/// The current vCPU's turn ends at `end_ns` (`u64::MAX`: not at all).
pub fn set_slice_end(end_ns: u64) {
    let mine = of(this_cpu().cpu);
    mine.slice_end_ns.store(end_ns, Ordering::Relaxed);
    mine.fire_by(end_ns);
}

/// The timer of this CPU fires at `deadline_ns` at the latest, also if it has fired and what was due then is not done yet. What is due is
/// found out when it has.
pub fn fire_surely_by(deadline_ns: u64) {
    let mine = of(this_cpu().cpu);
    let (now, armed) = (tsc::now_ns(), mine.armed_ns.load(Ordering::Relaxed));
    if armed > deadline_ns {
        mine.armed_ns.store(deadline_ns, Ordering::Relaxed);
    }
    if armed <= now || armed > deadline_ns {
        timer_hw::arm(next_shot(armed, deadline_ns, now));
    }
}

/// The same after an interrupt, which may have been the timer's: it fires again.
pub fn fire_again_by(deadline_ns: u64) {
    let (now, armed) = (tsc::now_ns(), of(this_cpu().cpu).armed_ns.load(Ordering::Relaxed));
    timer_hw::arm(next_shot(armed, deadline_ns, now));
}

/// What the hardware timer is to be set to, which was set to `armed`, that it fires at `deadline` at the latest. A shot that is overdue may
/// be on its way still, and setting the timer takes it back: so the next one comes at once, unless it is noted that this one came.
fn next_shot(armed: u64, deadline: u64, now: u64) -> u64 {
    let is_noted = this_cpu().pending.load(Ordering::Relaxed) & pending::TIMER != 0;
    let next = if armed <= now && is_noted { deadline } else { armed.min(deadline) };
    next.max(now.saturating_add(SOON_NS))
}

impl CpuTimers {
    /// The hardware timer fires at `deadline_ns` at the latest. Only for the CPU whose timers these are.
    ///
    /// It is not set to a later time: at most switches the turn's end moves away, and one shot too early, which sets the
    /// timer anew, costs less than all of those.
    fn fire_by(&self, deadline_ns: u64) {
        if deadline_ns < self.armed_ns.load(Ordering::Relaxed) {
            self.armed_ns.store(deadline_ns, Ordering::Relaxed);
            timer_hw::arm(deadline_ns);
        }
    }
}

/// A timer that is due.
pub enum Due<'a> {
    /// Lines that the storm guard held may fire again.
    IrqRelease,
    /// Device channels have something to do.
    Channels,
    /// Twins' network cards have something to do.
    Cards,
    /// This CPU is to look at the interfaces that it looks after.
    Senders,
    /// It is to be looked whether domains can be freed.
    Graves,
    /// A vCPU's, which was to fire at `deadline_ns`.
    Vcpu { v: &'a Vcpu, kind: Kind, deadline_ns: u64 },
}

/// Calls `act` for each timer of this CPU that is due at `now`.
pub fn expire(now: u64, act: impl Fn(Due<'_>)) {
    let mine = of(this_cpu().cpu);
    // The hardware timer is a one-shot.
    mine.armed_ns.store(u64::MAX, Ordering::Relaxed);
    // From before a timer is taken: until it is handled its vCPU is not freed, nor its slot another's.
    let section = Section::begin();
    loop {
        let due = mine.queue.lock().expire(now);
        let Some((timer, deadline_ns)) = due else { break };
        if timer == IRQ_RELEASE {
            act(Due::IrqRelease);
            continue;
        }
        if timer == CHANNELS {
            act(Due::Channels);
            continue;
        }
        if timer == CARDS {
            act(Due::Cards);
            continue;
        }
        if timer == SENDERS {
            act(Due::Senders);
            continue;
        }
        if timer == GRAVES {
            act(Due::Graves);
            continue;
        }
        let Some(v) = sched::vcpu_in_slot((timer / KINDS) as usize, &section) else { continue };
        let kind = match timer % KINDS {
            0 => Kind::SingleShot,
            1 => Kind::Periodic,
            2 => Kind::Poll,
            3 => Kind::Watchdog,
            _ => Kind::Look,
        };
        act(Due::Vcpu { v, kind, deadline_ns });
    }
    if now >= mine.slice_end_ns.load(Ordering::Relaxed) {
        mine.slice_end_ns.store(u64::MAX, Ordering::Relaxed);
        this_cpu().raise(pending::SCHEDULE);
    }
    let first = mine.queue.lock().next_deadline();
    mine.fire_by(first.min(mine.slice_end_ns.load(Ordering::Relaxed)));
}

/// The periodic timer of `v` has fired for `deadline_ns`: it is armed for the next tick, if the vCPU still runs.
pub fn rearm_periodic(v: &Vcpu, deadline_ns: u64, now: u64) {
    let next = v.periodic.ticked(deadline_ns, now);
    if let Some(next) = next.filter(|_| v.loaded.load(Ordering::Relaxed)) {
        arm(v, Kind::Periodic, next);
    }
}

/// `v` starts to run here: its periodic timer ticks again. Returns whether a tick was missed.
#[inline]
#[must_use]
pub fn resume_periodic(v: &Vcpu) -> bool {
    v.periodic.is_on() && resume_ticking(v)
}

fn resume_ticking(v: &Vcpu) -> bool {
    let resumed = v.periodic.resume(tsc::now_ns());
    arm(v, Kind::Periodic, resumed.next_ns);
    resumed.missed
}

/// `v` stops running: its periodic timer rests.
pub fn pause_periodic(v: &Vcpu) {
    if v.periodic.is_on() {
        disarm(v, Kind::Periodic);
    }
}
