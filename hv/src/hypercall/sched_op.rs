//! `sched_op` and `set_timer_op`: giving up the CPU, waiting, shutting down.

use super::{Caller, Done, GuestPtr, Outcome, OK};
use crate::cpu::percpu;
use crate::domain::life;
use crate::domain::vcpu::{stop, OwnedVcpu, Vcpu};
use crate::sched;
use crate::sched::timers::{self, Kind};
use core::sync::atomic::Ordering;
use xen_abi::errno::Errno;
use xen_abi::sched::{
    SchedPinOverride, SchedPoll, SchedRemoteShutdown, SchedShutdown, SchedWatchdog, SCHEDOP_BLOCK,
    SCHEDOP_PIN_OVERRIDE, SCHEDOP_POLL, SCHEDOP_REMOTE_SHUTDOWN, SCHEDOP_SHUTDOWN, SCHEDOP_SHUTDOWN_CODE,
    SCHEDOP_WATCHDOG, SCHEDOP_YIELD, SCHED_POLL_MAX_PORTS, SHUTDOWN_MAX,
};

/// SCHEDOP_*. Errors: EFAULT; EINVAL for a bad reason, too many ports, a watchdog that is not in use; ENOSPC for a
/// third watchdog; EPERM, ESRCH for shutting down others; EPERM for staying on one CPU, but for the hardware domain,
/// EBUSY for a second time, EINVAL for undoing nothing; ENOSYS for unknown commands. Source: public/sched.h.
#[inline]
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>) -> Outcome {
    match cmd {
        SCHEDOP_YIELD => {
            sched::yield_now(cx.vcpu);
            OK
        }
        SCHEDOP_BLOCK => {
            block(cx.vcpu);
            OK
        }
        SCHEDOP_POLL => poll(cx, arg.cast::<SchedPoll>().read()?),
        SCHEDOP_SHUTDOWN | SCHEDOP_SHUTDOWN_CODE => {
            let request: SchedShutdown = arg.cast().read()?;
            if request.reason > SHUTDOWN_MAX {
                return Err(Errno::EINVAL);
            }
            if cmd == SCHEDOP_SHUTDOWN {
                life::shutdown(cx.domain(), request.reason);
            }
            OK
        }
        SCHEDOP_REMOTE_SHUTDOWN => {
            let request: SchedRemoteShutdown = arg.cast().read()?;
            if request.reason > SHUTDOWN_MAX {
                return Err(Errno::EINVAL);
            }
            let target = crate::domain::find(request.domain_id).ok_or(Errno::ESRCH)?;
            cx.require_privilege()?;
            life::shutdown(&target, request.reason);
            OK
        }
        SCHEDOP_WATCHDOG => {
            let request: SchedWatchdog = arg.cast().read()?;
            life::set_watchdog(cx.domain(), request.id, request.timeout).map(|id| Done::Return(id.into()))
        }
        SCHEDOP_PIN_OVERRIDE => {
            let request: SchedPinOverride = arg.cast().read()?;
            pin_override(cx, request.pcpu)
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// The calling vCPU of the hardware domain stays on CPU `cpu` until it says that it need not any more (a negative
/// number). EPERM for other domains; EINVAL for a CPU that is not there, or on which it may not run, and when there is
/// nothing to undo; EBUSY if it stays on one already.
fn pin_override(cx: &Caller, cpu: i32) -> Outcome {
    if !cx.domain().is_hardware {
        return Err(Errno::EPERM);
    }
    let v = cx.vcpu;
    let is_pinned = v.pinned.load(Ordering::Relaxed);
    let allowed = v.affinity.load(Ordering::Relaxed);
    let mask = match u32::try_from(cpu) {
        Err(_) if is_pinned => allowed,
        Err(_) => return Err(Errno::EINVAL),
        Ok(cpu) => {
            let bit = 1u64.checked_shl(cpu).filter(|bit| bit & allowed & percpu::online_mask() != 0);
            let bit = bit.ok_or(Errno::EINVAL)?;
            if is_pinned {
                return Err(Errno::EBUSY);
            }
            bit
        }
    };
    v.pinned.store(cpu >= 0, Ordering::Relaxed);
    if let Some(cpu) = sched::with(|s, now| s.set_affinity(v.sched_id, mask, now)) {
        sched::kick(cpu);
    }
    OK
}

/// The vCPU unmasks events and sleeps until one is pending, or an NMI. One between the two is not lost: whoever raises
/// one after `halt` has set BLOCKED clears it again.
fn block(v: &'static OwnedVcpu) {
    v.set_events_masked(false);
    sched::halt(v, stop::BLOCKED);
    if v.waiting().keeps_awake() {
        sched::start(v, stop::BLOCKED);
    }
}

/// The vCPU sleeps until one of the ports is pending, masked or not, or the time-out passes; or for no reason, as with
/// Xen.
fn poll(cx: &mut Caller, request: SchedPoll) -> Outcome {
    let v = cx.vcpu;
    if request.nr_ports > SCHED_POLL_MAX_PORTS {
        return Err(Errno::EINVAL);
    }
    let list = GuestPtr::<u32>::new(request.ports);
    let mut ports = [0u32; SCHED_POLL_MAX_PORTS as usize];
    let ports = &mut ports[..request.nr_ports as usize];
    list.read_slice(ports)?;
    if !crate::domain::event::poll(v, ports)? {
        return OK;
    }
    // Whoever says so after `poll` has set POLLING clears it again.
    if v.waiting().keeps_awake() || v.poll_is_over.swap(false, Ordering::SeqCst) {
        sched::start(v, stop::POLLING);
        return OK;
    }
    if request.timeout != 0 {
        timers::arm(v, Kind::Poll, request.timeout);
    }
    OK
}

/// `set_timer_op`: the single-shot timer, in ns of system time; 0 switches it off. Source: public/xen.h.
pub fn set_timer(cx: &mut Caller, timeout_ns: u64) -> Outcome {
    set_singleshot(cx.vcpu, timeout_ns);
    OK
}

/// Arms (or, for 0, disarms) the single-shot timer. A deadline in the past fires at once.
pub(super) fn set_singleshot(v: &Vcpu, deadline_ns: u64) {
    if deadline_ns == 0 {
        timers::disarm(v, Kind::SingleShot);
    } else {
        timers::arm(v, Kind::SingleShot, deadline_ns);
    }
}
