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

/// What a CPU does at a time of its own. There are few of them and they are set often, so they are in no queue, and
/// only their CPU uses them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Own {
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
}

const OWN: [Own; 5] = [Own::IrqRelease, Own::Channels, Own::Cards, Own::Senders, Own::Graves];

/// A CPU's timers, and when its current vCPU's turn ends.
struct CpuTimers {
    queue: Mutex<TimerQueue>,
    /// When the CPU does what it does by itself, by [`Own`]; `u64::MAX`: it does not.
    own_ns: [AtomicU64; OWN.len()],
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
        queue: Mutex::new(TimerQueue::new(MAX_VCPUS_TOTAL as u32 * KINDS)),
        own_ns: [const { AtomicU64::new(u64::MAX) }; OWN.len()],
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

/// Lines that the storm guard held are looked at at `deadline_ns`, and not before.
pub fn arm_irq_release(deadline_ns: u64) {
    of(this_cpu().cpu).set_own(Own::IrqRelease, deadline_ns);
}

/// [`Own::Channels`] is due at `deadline_ns`, or earlier if it was to be.
pub fn arm_channels(deadline_ns: u64) {
    arm_by(Own::Channels, deadline_ns);
}

/// [`Own::Cards`] is due at `deadline_ns`, or earlier if it was to be.
pub fn arm_cards(deadline_ns: u64) {
    arm_by(Own::Cards, deadline_ns);
}

/// [`Own::Senders`] is due at `deadline_ns`, or earlier if it was to be.
pub fn arm_senders(deadline_ns: u64) {
    arm_by(Own::Senders, deadline_ns);
}

/// [`Own::Graves`] is due at `deadline_ns`, or earlier if it was to be.
pub fn arm_graves(deadline_ns: u64) {
    arm_by(Own::Graves, deadline_ns);
}

/// If [`Own::Senders`] is due before `until_ns`, it is due then.
pub fn put_senders_off(until_ns: u64) {
    put_off(Own::Senders, until_ns);
}

/// The same of [`Own::Channels`].
pub fn put_channels_off(until_ns: u64) {
    put_off(Own::Channels, until_ns);
}

fn put_off(own: Own, until_ns: u64) {
    let mine = of(this_cpu().cpu);
    // `u64::MAX` is not before anything.
    if mine.own(own).load(Ordering::Relaxed) < until_ns {
        mine.set_own(own, until_ns);
    }
}

#[inline]
fn arm_by(own: Own, deadline_ns: u64) {
    let mine = of(this_cpu().cpu);
    if deadline_ns < mine.own(own).load(Ordering::Relaxed) {
        mine.set_own(own, deadline_ns);
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

/// The timer of this CPU fires at `deadline_ns` at the latest, also if it has fired and what was due then is not done
/// yet. What is due is found out when it has.
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

/// What the hardware timer is to be set to, which was set to `armed`, that it fires at `deadline` at the latest. A shot
/// that is overdue may be on its way still, and setting the timer takes it back: so the next one comes at once, unless
/// it is noted that this one came.
fn next_shot(armed: u64, deadline: u64, now: u64) -> u64 {
    let is_noted = this_cpu().pending.load(Ordering::Relaxed) & pending::TIMER != 0;
    let next = if armed <= now && is_noted { deadline } else { armed.min(deadline) };
    next.max(now.saturating_add(SOON_NS))
}

impl CpuTimers {
    fn own(&self, own: Own) -> &AtomicU64 {
        &self.own_ns[own as usize]
    }

    fn set_own(&self, own: Own, deadline_ns: u64) {
        self.own(own).store(deadline_ns, Ordering::Relaxed);
        self.fire_by(deadline_ns);
    }

    /// The hardware timer fires at `deadline_ns` at the latest. Only for the CPU whose timers these are.
    ///
    /// It is not set to a later time: at most switches the turn's end moves away, and one shot too early, which sets
    /// the timer anew, costs less than all of those.
    fn fire_by(&self, deadline_ns: u64) {
        if deadline_ns < self.armed_ns.load(Ordering::Relaxed) {
            self.armed_ns.store(deadline_ns, Ordering::Relaxed);
            timer_hw::arm(deadline_ns);
        }
    }
}

/// A timer that is due.
pub enum Due<'a> {
    /// The CPU's own.
    Own(Own),
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
    // Once each: what is armed again for a time that has come by now has the timer fire at once, and others get on
    // before.
    for own in OWN {
        let at = mine.own(own);
        if at.load(Ordering::Relaxed) <= now {
            at.store(u64::MAX, Ordering::Relaxed);
            act(Due::Own(own));
        }
    }
    if now >= mine.slice_end_ns.load(Ordering::Relaxed) {
        mine.slice_end_ns.store(u64::MAX, Ordering::Relaxed);
        this_cpu().raise(pending::SCHEDULE);
    }
    let of_vcpus = mine.queue.lock().next_deadline();
    let first =
        mine.own_ns.iter().chain([&mine.slice_end_ns]).map(|at| at.load(Ordering::Relaxed)).fold(of_vcpus, u64::min);
    mine.fire_by(first);
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
