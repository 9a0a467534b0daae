//! Scheduling: the shell around `hv_core::sched`. Who runs is decided there; here vCPUs are switched, CPUs kicked,
//! timers kept.
//!
//! A CPU switches only in [`run::do_pending`], on its way out to a guest. Lock order: a domain's locks, then
//! [`SCHEDULER`], then a timer queue: rows 260 and 280 of `docs/architecture.md`. No lock is held while a vCPU is
//! switched.

mod delay;
mod doing;
mod hold;
pub mod run;
pub mod switch;
pub mod timers;

pub use doing::Doing;
pub use hold::{hold, hold_all, AllHeld, Held};

use crate::arch::{ipi, tsc};
use crate::cpu::percpu::{self, pending, this_cpu};
use crate::cpu::requests;
use crate::domain::vcpu::{self, stop, OwnedVcpu, Vcpu};
use crate::domain::{Domain, Section};
use crate::sync::{FairMutex, Once};
use core::sync::atomic::{AtomicPtr, Ordering};
use hv_core::sched::{Params, Runstate, Scheduler, Sleep, VcpuId, Warp};

/// vCPUs of all domains together.
pub const MAX_VCPUS_TOTAL: u16 = 2048;

static SCHEDULER: Once<FairMutex<Scheduler>> = Once::new();
/// The vCPU in each scheduler slot.
static VCPUS: [AtomicPtr<Vcpu>; MAX_VCPUS_TOTAL as usize] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_VCPUS_TOTAL as usize];

fn scheduler() -> &'static FairMutex<Scheduler> {
    SCHEDULER.call_once(|| FairMutex::new(Scheduler::new(MAX_VCPUS_TOTAL, Params::DEFAULT)))
}

/// Makes a place for a vCPU, which starts offline. `None` if there is none left.
pub fn allocate_slot() -> Option<VcpuId> {
    scheduler().lock().add(tsc::now_ns())
}

/// How a domain's vCPUs may borrow time for events: more if it drives devices.
fn warp_of(d: &Domain) -> Warp {
    if d.drives_devices.load(Ordering::Relaxed) {
        Warp::DRIVER
    } else {
        Warp::INTERACTIVE
    }
}

/// Tells the scheduler which vCPU is in a slot, how it may borrow time, and its domain's weight and cap. The vCPU must
/// live until [`remove`].
pub fn register(v: &Vcpu) {
    {
        let d = v.domain();
        let now = tsc::now_ns();
        let mut scheduler = scheduler().lock();
        scheduler.set_warp(v.sched_id, warp_of(d), now);
        scheduler.set_weight(v.sched_id, d.weight.load(Ordering::Relaxed), now);
        if let Some(first) = d.vcpu(0) {
            scheduler.set_domain(v.sched_id, first.sched_id);
        }
        if v.id == 0 {
            scheduler.set_cap(v.sched_id, d.cap.load(Ordering::Relaxed), now);
        }
    }
    VCPUS[v.sched_id.index()].store(core::ptr::from_ref(v).cast_mut(), Ordering::Release);
}

/// The domain drives devices from now on, or no longer does. The hardware domain always does.
pub fn set_driver(d: &Domain, drives_devices: bool) {
    d.drives_devices.store(drives_devices || d.is_hardware, Ordering::Relaxed);
    let warp = warp_of(d);
    let mut scheduler = scheduler().lock();
    d.vcpus().for_each(|v| scheduler.set_warp(v.sched_id, warp, tsc::now_ns()));
}

/// Takes a vCPU out, whose domain is being freed: it is on no CPU, and nobody can look it up any more. Only then is its
/// slot another's, so whoever knows the vCPU never means another one.
pub fn remove(v: &Vcpu) {
    timers::disarm_all(v);
    VCPUS[v.sched_id.index()].store(core::ptr::null_mut(), Ordering::Release);
    let removed = scheduler().lock().remove(v.sched_id);
    // It was destroyed, which waits until the vCPU sleeps; and it never woke since.
    debug_assert!(removed, "{v} was freed while it was on a CPU");
}

/// For how long a CPU is waited for that is asked for a sign: as long as one in its guest takes to answer an interrupt.
const SIGN_PATIENCE_NS: u64 = 100_000;

/// How long `v` has run, in ns, up to the last sign of the CPU on which it is. A CPU that another hypervisor has
/// stopped gives none, and nobody runs on it.
pub fn run_time_seen(v: &Vcpu) -> u64 {
    let cpu = with(|s, _| s.running_on(v.sched_id)).and_then(percpu::cpu).filter(|cpu| cpu.cpu != this_cpu().cpu);
    let Some(cpu) = cpu else { return with(|s, now| s.run_time(v.sched_id, now)) };
    let (asked_ns, before) = (tsc::now_ns(), cpu.sign_ns.load(Ordering::Acquire));
    cpu.raise(pending::SIGN);
    ipi::kick(cpu.cpu as usize);
    while cpu.sign_ns.load(Ordering::Acquire) == before && tsc::now_ns() < asked_ns.saturating_add(SIGN_PATIENCE_NS) {
        requests::answer();
        core::hint::spin_loop();
    }
    let sign_ns = cpu.sign_ns.load(Ordering::Acquire);
    with(|s, now| {
        let stays = s.running_on(v.sched_id) == Some(cpu.cpu as usize);
        s.run_time(v.sched_id, if stays { now.min(sign_ns) } else { now })
    })
}

/// The CPU on which `v` runs, if it is on one, gives a sign soon.
pub fn ask_for_sign(v: &Vcpu) {
    let on = with(|s, _| s.running_on(v.sched_id));
    let Some(cpu) = on.and_then(percpu::cpu) else { return };
    cpu.raise(pending::SIGN);
    if cpu.cpu != this_cpu().cpu {
        ipi::kick(cpu.cpu as usize);
    }
}

/// Does a vCPU of `d` want to run, and none runs?
pub fn is_kept_waiting(d: &Domain) -> bool {
    with(|s, now| {
        let is_in = |state| d.vcpus().any(|v| s.runstate(v.sched_id, now).is_some_and(|(is, ..)| is == state));
        is_in(Runstate::Runnable) && !is_in(Runstate::Running)
    })
}

/// The vCPU in scheduler slot `index`, as long as the section lasts.
pub fn vcpu_in_slot(index: usize, _section: &Section) -> Option<&Vcpu> {
    // SAFETY: `register` stored a pointer that `remove` clears when the domain is freed. A domain is freed only after
    // all sections ended that began before it was out of the list.
    unsafe { VCPUS.get(index)?.load(Ordering::Acquire).as_ref() }
}

/// The vCPU that the scheduler chose for this CPU.
fn chosen(id: VcpuId) -> Option<&'static OwnedVcpu> {
    // SAFETY: as for `vcpu_in_slot`. Instead of a section it is that the vCPU is on this CPU: its domain is not
    // destroyed, and so not freed, before it sleeps (`wait_asleep`); and who runs it lets go of it before it says that
    // it sleeps. Until then this CPU owns the vCPU's state, as the scheduler gave it to nobody else.
    unsafe { VCPUS.get(id.index())?.load(Ordering::Acquire).as_ref().map(|v| v.owned()) }
}

/// For so long a driver domain whose events are off is not preempted; 0: it is at once.
pub fn set_preempt_delay_us(us: u32) {
    scheduler().lock().set_preempt_delay(u64::from(us) * 1000);
}

/// The running CPU takes part in scheduling from now on.
pub fn online() {
    scheduler().lock().online(this_cpu().cpu as usize, tsc::now_ns());
    timers::init_cpu();
}

/// Makes CPU `cpu` go through its pending work soon.
pub fn kick(cpu: usize) {
    let me = this_cpu();
    if cpu == me.cpu as usize {
        me.raise(pending::SCHEDULE);
    } else if let Some(other) = percpu::cpu(cpu) {
        other.raise(pending::SCHEDULE);
        ipi::kick(cpu);
    }
}

/// Clears `reason` and wakes the vCPU if nothing else stops it.
///
/// [`Vcpu::stop`] changes without a lock; whoever changed it tells the scheduler what is true *now*, under the
/// scheduler's lock. So of a start and a halt at the same time the last one to get the lock tells the truth.
pub fn start(v: &Vcpu, reason: u32) {
    start_by(v, reason, Cause::Other);
}

/// What makes a vCPU runnable.
#[derive(Clone, Copy)]
pub enum Cause {
    /// An event that the running vCPU sent: it may go on for a while, to send more.
    Sender,
    /// An interrupt that the running vCPU was told of too, and that is most likely its own: it may go on for a while.
    Sharer,
    /// Anything else.
    Other,
}

#[inline]
fn start_by(v: &Vcpu, reason: u32, cause: Cause) {
    let before = v.stop.fetch_and(!reason, Ordering::AcqRel);
    if before & !reason == 0 && before != 0 {
        wake(v, cause);
    }
}

/// Sets `reason`: the vCPU no longer runs, at once if it is on no CPU, else when its CPU gets here (it is kicked).
pub fn halt(v: &Vcpu, reason: u32) {
    halt_again(v, reason);
}

/// [`halt`]; returns what stopped it before.
fn halt_again(v: &Vcpu, reason: u32) -> u32 {
    let before = v.add_stop(reason);
    if before == 0 {
        let why = if reason & (stop::BLOCKED | stop::POLLING) != 0 { Sleep::Blocked } else { Sleep::Offline };
        let on = {
            let mut scheduler = scheduler().lock();
            if v.is_runnable() {
                None
            } else {
                scheduler.sleep(v.sched_id, why, tsc::now_ns())
            }
        };
        if let Some(cpu) = on {
            kick(cpu);
        }
    } else if is_current(v) {
        // Whoever stopped it first may not have told yet. It does not go on until then.
        this_cpu().raise(pending::SCHEDULE);
    }
    before
}

/// Does `v` run on this CPU?
fn is_current(v: &Vcpu) -> bool {
    vcpu::current(this_cpu()).is_some_and(|own| core::ptr::eq::<Vcpu>(&**own, v))
}

/// What `v` may have changed: its CPU, if it is on one, picks again.
pub fn look_again(v: &Vcpu) {
    if let Some(cpu) = with(|s, _| s.running_on(v.sched_id)) {
        kick(cpu);
    }
}

/// An event became pending for the vCPU and is not masked, or it polls for it: it wakes up, or notices on its CPU.
#[inline]
pub fn notify(v: &Vcpu) {
    notify_by(v, Cause::Other);
}

/// As [`notify`], with what made the event.
#[inline]
pub fn notify_by(v: &Vcpu, cause: Cause) {
    let stopped = v.stop.load(Ordering::Acquire);
    if stopped & (stop::BLOCKED | stop::POLLING) != 0 {
        start_by(v, stop::BLOCKED | stop::POLLING, cause);
    } else if v.loaded.load(Ordering::Acquire) {
        let cpu = v.processor.load(Ordering::Relaxed) as usize;
        if cpu != this_cpu().cpu as usize {
            ipi::kick(cpu);
        }
    } else if v.domain().drives_devices.load(Ordering::Relaxed) {
        // It waits for its turn, which an event may bring forward.
        wake(v, cause);
    }
}

/// Tells the scheduler that there is something for the vCPU to do, unless something stops it.
fn wake(v: &Vcpu, cause: Cause) {
    let kicked = {
        let mut scheduler = scheduler().lock();
        match cause {
            _ if !v.is_runnable() => None,
            Cause::Sender => scheduler.wake_from(this_cpu().cpu as usize, v.sched_id, tsc::now_ns()),
            Cause::Sharer => scheduler.wake_beside(this_cpu().cpu as usize, v.sched_id, tsc::now_ns()),
            Cause::Other => scheduler.wake(v.sched_id, tsc::now_ns()),
        }
    };
    if let Some(cpu) = kicked {
        kick(cpu);
    }
}

/// The running vCPU lets others go first.
pub fn yield_now(v: &Vcpu) {
    scheduler().lock().yield_(v.sched_id);
    this_cpu().raise(pending::SCHEDULE);
}

/// Runs `f` on the scheduler, for the operations that need no more than it.
pub fn with<R>(f: impl FnOnce(&mut Scheduler, u64) -> R) -> R {
    f(&mut scheduler().lock(), tsc::now_ns())
}

/// Waits until the vCPU, which is not the caller's own, is on no CPU and its registers are stored, or nothing stops it
/// any more. It must have been halted before, and stays asleep as long as the reason lasts.
pub fn wait_asleep(v: &Vcpu) {
    while !is_asleep(v) && !v.is_runnable() {
        requests::answer();
        core::hint::spin_loop();
    }
}

/// Is `v`, which something stops, on no CPU, and are its registers stored?
///
/// Only the scheduler knows: a CPU that has chosen the vCPU has not loaded it yet, and one that has stored its
/// registers may still have to say so.
fn is_asleep(v: &Vcpu) -> bool {
    // The first look takes no lock.
    if v.loaded.load(Ordering::Acquire) {
        return false;
    }
    let (on, is_asleep) = with(|s, now| {
        let on = s.sleep_untold(v.sched_id, || !v.is_runnable(), now);
        (on, s.is_asleep(v.sched_id))
    });
    if let Some(cpu) = on {
        kick(cpu);
    }
    is_asleep
}
