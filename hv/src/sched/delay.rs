//! Delayed preemption of driver domains whose events are off. When, and for how long, is decided in `hv_core::sched`;
//! here is how it is noticed that they are on again, which is a write to the guest's own memory.
//!
//! [`pending::DELAYED`] has each way out of the hypervisor ask. And an upcall is marked as pending: a kernel that finds
//! one when it lets events in again calls the hypervisor, so that it is noticed at once. The mark is taken back before
//! anything else happens to the vCPU, and nobody sees an upcall without an event.

use crate::cpu::percpu::{pending, CpuInfo};
use crate::domain::vcpu;
use core::sync::atomic::Ordering;

/// Does the vCPU on this CPU drive devices, and is it in its kernel with events off? It holds a lock then, most likely.
pub fn is_uninterruptible(me: &CpuInfo) -> bool {
    vcpu::current(me).is_some_and(|v| {
        v.domain().drives_devices.load(Ordering::Relaxed)
            && v.kernel_mode.get()
            && v.events_masked()
            && !v.has_dummy_info()
    })
}

/// The preemption of the vCPU on this CPU is delayed, or still is.
pub fn begin(me: &CpuInfo) {
    let is_marked = vcpu::current(me).is_some_and(|v| v.set_upcall_pending());
    me.raise(if is_marked { pending::DELAYED | pending::MARKED } else { pending::DELAYED });
}

/// The vCPU on this CPU has entered the hypervisor meanwhile: it is asked anew whether it is preempted. `work` was
/// pending.
#[cold]
pub fn end(me: &CpuInfo, work: u32) {
    let Some(v) = vcpu::current(me).filter(|_| work & pending::MARKED != 0) else { return };
    let d = v.domain();
    let has_come = d.events.lock().unmark_upcall(d, v.id);
    if has_come {
        super::with(|s, now| s.wake_delayed(v.sched_id, now));
    }
}
