//! Interfaces of busy senders, which notify only now and then: each is looked at by the CPU on which its guest notified last, when the vCPU
//! there goes to sleep, and in any case after [`LATE_NS`]. Then it sees the answers that were kept for it, too.
//!
//! A guest may send by one CPU and sleep on another: for that there is the timer.

use super::timed;
use super::traffic::{self, Budget, Look};
use super::vif::Handle;
use crate::arch::tsc;
use crate::cpu::percpu::{this_cpu, MAX_CPUS};
use crate::sched::timers;
use ::channel::pace::LATE_NS;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Interfaces that a CPU looks after at one time. Other guests notify each time.
const MAX_LATE: usize = 4;
/// No name of an interface, in which some bits are clear.
const NONE: u32 = u32::MAX;

/// A place for an interface that is looked after.
pub struct Place {
    handle: AtomicU32,
    /// Its guest.
    guest: AtomicU16,
}

/// What each CPU looks after; only that CPU uses its places.
static LATE: [[Place; MAX_LATE]; MAX_CPUS] =
    [const { [const { Place { handle: AtomicU32::new(NONE), guest: AtomicU16::new(0) } }; MAX_LATE] }; MAX_CPUS];

fn own() -> &'static [Place; MAX_LATE] {
    &LATE[this_cpu().cpu as usize & (MAX_CPUS - 1)]
}

/// A place for `handle` on this CPU, if there is one.
pub fn place_for(handle: Handle) -> Option<&'static Place> {
    let own = own();
    let find = |name| own.iter().find(|place| place.handle.load(Ordering::Relaxed) == name);
    find(handle.raw()).or_else(|| find(NONE))
}

/// Interface `handle` of `guest` is looked at soon after `now` (ns).
pub fn put_off(place: &Place, handle: Handle, guest: u16, now: u64) {
    place.handle.store(handle.raw(), Ordering::Relaxed);
    place.guest.store(guest, Ordering::Relaxed);
    this_cpu().looks_after.set(true);
    timers::arm_senders(now.saturating_add(LATE_NS));
}

/// Looks at those that this CPU looks after: all, or those of a guest, a vCPU of which goes to sleep.
pub fn work(of: Option<u16>) {
    let me = this_cpu();
    let Some(_works) = timed::try_work() else { return timers::arm_senders(tsc::now_ns().saturating_add(LATE_NS)) };
    me.looks_after.set(false);
    let look = if of.is_some() { Look::Asleep } else { Look::Usual };
    for place in own() {
        let (name, guest) = (place.handle.load(Ordering::Relaxed), place.guest.load(Ordering::Relaxed));
        if name == NONE {
            continue;
        }
        if of.is_some_and(|of| of != guest) {
            me.looks_after.set(true);
            continue;
        }
        place.handle.store(NONE, Ordering::Relaxed);
        let handle = Handle::of_raw(name);
        if traffic::transmit(handle, look, &mut Budget::default()) {
            // Its own place, which is free.
            put_off(place, handle, guest, tsc::now_ns());
        }
    }
}
