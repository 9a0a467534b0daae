//! Domains that are watched for who looks after them: that one ends, that one of its vCPUs is wedged, that it has lost
//! its devices, and is paused then, or that an IOMMU stopped a device of its, is told at once (VIRQ_SUPERVISOR).
//!
//! A vCPU is looked at by the CPU on which it runs, by a timer, each [`LOOK_NS`]: that the timer fires is a sign of
//! that CPU. One that does not run is not looked at. It has one such timer, in the queue of the CPU that loaded it
//! last, so only that CPU looks.

use crate::arch::tsc;
use crate::cpu::percpu::this_cpu;
use crate::domain::vcpu::OwnedVcpu;
use crate::domain::{self, event, Domain};
use crate::sched;
use crate::sched::timers::{self, Kind};
use core::sync::atomic::Ordering;
use hv_core::wedge::Look;
use xen_abi::event::VIRQ_SUPERVISOR;

/// The end of `d` is told from now on, and that one of its vCPUs has run for `wedged_ms` with an event that waits; 0:
/// only its end.
pub fn watch(d: &Domain, wedged_ms: u32) {
    d.is_watched.store(true, Ordering::Release);
    d.wedged_limit_ns.store(u64::from(wedged_ms) * 1_000_000, Ordering::SeqCst);
    for v in d.vcpus() {
        // One that runs may do so for long: its CPU begins now. Else whoever loads it does.
        sched::ask_for_sign(v);
    }
}

/// An IOMMU stopped an access of a device of this domain's.
pub fn tell_of_dma_fault(domid: u16) {
    if domain::find(domid).is_some_and(|d| d.dma_faults.note(tsc::now_ns())) {
        event::raise_global_virq(VIRQ_SUPERVISOR);
    }
}

/// `d` has ended.
pub fn tell_of_end(d: &Domain) {
    if d.is_watched.load(Ordering::Acquire) {
        event::raise_global_virq(VIRQ_SUPERVISOR);
    }
}

/// `d` has lost its devices. Who looks after it takes them itself only when it does not run.
pub fn tell_of_loss(d: &Domain) {
    d.is_bereft.store(true, Ordering::Relaxed);
    if d.is_watched.load(Ordering::Acquire) && !d.has_stopped() && d.pause_count() == 0 {
        event::raise_global_virq(VIRQ_SUPERVISOR);
    }
}

/// `d` was paused. One that has lost its devices is about to be destroyed: the toolstack takes those first, while it
/// runs.
pub fn tell_of_pause(d: &Domain) {
    if d.is_bereft.load(Ordering::Relaxed) && d.is_watched.load(Ordering::Acquire) {
        event::raise_global_virq(VIRQ_SUPERVISOR);
    }
}

/// `v` runs on this CPU, or goes on.
#[inline]
pub fn resume(v: &OwnedVcpu) {
    if v.domain().wedged_limit_ns.load(Ordering::SeqCst) != 0 {
        resume_watched(v);
    }
}

#[inline(never)]
fn resume_watched(v: &OwnedVcpu) {
    let (now, due) = (tsc::now_ns(), v.watch.due_ns.load(Ordering::Relaxed));
    if due <= now {
        look(v, now);
    } else if v.timer_cpu[Kind::Look as usize].load(Ordering::Relaxed) != this_cpu().cpu {
        timers::arm(v, Kind::Look, due);
    }
}

/// Looks at `v`, which runs on this CPU. When it is found wedged, that is told once.
pub fn look(v: &OwnedVcpu, now: u64) {
    let limit = v.domain().wedged_limit_ns.load(Ordering::Relaxed);
    if limit == 0 {
        v.watch.since_ns.store(0, Ordering::Relaxed);
        return;
    }
    let seen = Look {
        upcalls: v.upcalls.load(Ordering::Relaxed),
        run_ns: sched::with(|s, _| s.run_time(v.sched_id, now)),
        is_waiting: v.upcall_pending() && v.events_masked(),
    };
    let mut wedge = v.wedge.get();
    let since = wedge.look(limit, now, seen).map_or(0, |since| since.max(1));
    v.wedge.set(wedge);
    let due = now.saturating_add(wedge.next(limit));
    v.watch.due_ns.store(due, Ordering::Relaxed);
    timers::arm(v, Kind::Look, due);
    if since != 0 && v.watch.since_ns.swap(since, Ordering::Relaxed) == 0 {
        event::raise_global_virq(VIRQ_SUPERVISOR);
    } else if since == 0 {
        v.watch.since_ns.store(0, Ordering::Relaxed);
    }
}
