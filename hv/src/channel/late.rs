//! Interfaces of busy senders, which notify only now and then: each is looked at by the CPU on which its guest notified last, when the vCPU
//! there goes to sleep, and in any case after [`LATE_NS`].
//!
//! A guest may send by one CPU and sleep on another: for that there is the timer.

use super::timed;
use super::traffic::{self, Budget};
use super::vif::Handle;
use crate::arch::tsc;
use crate::cpu::percpu::{this_cpu, MAX_CPUS};
use crate::sched::timers;
use ::channel::vif::pace::LATE_NS;
use core::sync::atomic::{AtomicU32, Ordering};

/// Interfaces that a CPU looks after at one time. Other guests notify each time.
const MAX_LATE: usize = 4;
/// No name of an interface, in which some bits are clear.
const NONE: u32 = u32::MAX;

/// What each CPU looks after; only that CPU uses its places.
static LATE: [[AtomicU32; MAX_LATE]; MAX_CPUS] = [const { [const { AtomicU32::new(NONE) }; MAX_LATE] }; MAX_CPUS];

fn own() -> &'static [AtomicU32; MAX_LATE] {
    &LATE[this_cpu().cpu as usize & (MAX_CPUS - 1)]
}

/// A place for `handle` on this CPU, if there is one.
pub fn place_for(handle: Handle) -> Option<&'static AtomicU32> {
    let own = own();
    let find = |name| own.iter().find(|place| place.load(Ordering::Relaxed) == name);
    find(handle.raw()).or_else(|| find(NONE))
}

/// The place's interface is looked at soon after `now` (ns).
pub fn put_off(place: &AtomicU32, handle: Handle, now: u64) {
    place.store(handle.raw(), Ordering::Relaxed);
    this_cpu().looks_after.set(true);
    timers::arm_senders(now.saturating_add(LATE_NS));
}

/// Looks at those that this CPU looks after.
pub fn work() {
    let me = this_cpu();
    let Some(_works) = timed::try_work() else { return timers::arm_senders(tsc::now_ns().saturating_add(LATE_NS)) };
    me.looks_after.set(false);
    for place in own() {
        let name = place.swap(NONE, Ordering::Relaxed);
        if name == NONE {
            continue;
        }
        let handle = Handle::of_raw(name);
        if traffic::transmit(handle, &mut Budget::default()) {
            // Its own place, which is free.
            put_off(place, handle, tsc::now_ns());
        }
    }
}
