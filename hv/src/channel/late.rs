//! Interfaces and disks that are busy, whose ends notify only now and then: each is looked at by the CPU on which one
//! of them notified last, when a vCPU of theirs goes to sleep there, and in any case after [`LATE_NS`]. Then a sender
//! sees the answers that were kept for it, too.
//!
//! A guest may send by one CPU and sleep on another: for that there is the timer.

use crate::arch::tsc;
use crate::cpu::percpu::{this_cpu, MAX_CPUS};
use crate::domain::vcpu;
use crate::sched::timers;
use ::channel::pace::{Stretch, LATE_NS};
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

/// Interfaces and disks that a CPU looks after at one time. Others notify each time.
const MAX_LATE: usize = 4;
/// No name of an interface or, with [`DISK_EVENT`](super::disk::DISK_EVENT), of a disk, in which some bits are clear.
const NONE: u32 = u32::MAX;

/// A place for something that is looked after.
pub struct Place {
    name: AtomicU32,
    /// Domains at its ends, or the same twice. The first one's is the work.
    ends: [AtomicU16; 2],
}

/// What each CPU looks after; only that CPU uses its places.
static LATE: [[Place; MAX_LATE]; MAX_CPUS] =
    [const { [const { Place { name: AtomicU32::new(NONE), ends: [const { AtomicU16::new(0) }; 2] } }; MAX_LATE] };
        MAX_CPUS];

fn own() -> &'static [Place; MAX_LATE] {
    &LATE[this_cpu().cpu as usize & (MAX_CPUS - 1)]
}

/// A place for `name` on this CPU, if there is one.
pub fn place_for(name: u32) -> Option<&'static Place> {
    let own = own();
    let find = |name| own.iter().find(|place| place.name.load(Ordering::Relaxed) == name);
    find(name).or_else(|| find(NONE))
}

/// `name`, with these domains at its ends, is looked at soon after `now` (ns).
pub fn put_off(place: &Place, name: u32, ends: [u16; 2], now: u64) {
    put_off_until(place, name, ends, now.saturating_add(LATE_NS));
}

/// The same, at `until` (ns).
pub fn put_off_until(place: &Place, name: u32, ends: [u16; 2], until: u64) {
    place.name.store(name, Ordering::Relaxed);
    place.ends.iter().zip(ends).for_each(|(place, end)| place.store(end, Ordering::Relaxed));
    this_cpu().looks_after.set(true);
    timers::arm_senders(until);
}

/// Nothing may be done now: it is looked again later.
pub fn put_off_all() {
    timers::arm_senders(tsc::now_ns().saturating_add(LATE_NS));
}

/// Has those looked at that this CPU looks after: all, or those of a domain, a vCPU of which goes to sleep. `look` does
/// so, told the name, and says whether there is more to do. What is done for a domain that does not run here takes a
/// stretch at most.
pub fn work(of: Option<u16>, mut look: impl FnMut(u32) -> bool) {
    let me = this_cpu();
    me.looks_after.set(false);
    let running = vcpu::current(me).map(|v| v.domain().id);
    let (mut stretch, first) = (Stretch::default(), me.first_late.get());
    for n in 0..MAX_LATE {
        let nr = (first + n) % MAX_LATE;
        let place = &own()[nr];
        let name = place.name.load(Ordering::Relaxed);
        let ends = place.ends.each_ref().map(|end| end.load(Ordering::Relaxed));
        if name == NONE {
            continue;
        }
        if of.is_some_and(|of| !ends.contains(&of)) {
            me.looks_after.set(true);
            continue;
        }
        // What a guest asks of its disk is not its driver domain's work.
        let is_others = running.is_some_and(|id| id != ends[0]);
        if is_others && !stretch.allows_more() {
            me.looks_after.set(true);
            // It comes first then.
            me.first_late.set(nr);
            timers::arm_senders(tsc::now_ns());
            break;
        }
        let began = is_others.then(tsc::now_ns);
        place.name.store(NONE, Ordering::Relaxed);
        if look(name) {
            // Its own place, which is free.
            put_off(place, name, ends, tsc::now_ns());
        }
        if let Some(began) = began {
            stretch.worked(tsc::now_ns().saturating_sub(began));
        }
    }
    if stretch != Stretch::default() {
        timers::put_senders_off(stretch.rests_until(tsc::now_ns()));
    }
}
