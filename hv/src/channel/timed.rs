//! What device channels do when nobody notifies: senders that have credit again, packets that have waited for too long,
//! and what was left over.

use super::traffic::{self, Budget, Look, TICK_NS};
use super::vif::{Handle, VIFS};
use super::{disk, uplink};
use crate::arch::tsc;
use crate::sched::timers;
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Until what is left over is gone on with, in ns. Guests run meanwhile.
pub const REST_NS: u64 = 100_000;

/// Who works reads it; who wants nobody to writes it.
static STILL: RwLock<()> = RwLock::new(());
/// Where it is begun; held by whoever looks at all places.
static FROM: Mutex<usize> = Mutex::new(0);
/// Places that have ever been in use are below.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Nothing is done here as long as the result lives. (For the audit.)
pub fn hold_still() -> RwLockWriteGuard<'static, ()> {
    STILL.write()
}

/// Something may be done here as long as the result lives. `None`: nothing may, now.
pub fn try_work() -> Option<RwLockReadGuard<'static, ()>> {
    STILL.try_read()
}

/// A place is in use from now on.
pub fn note_place(place: u16) {
    USED.fetch_max(usize::from(place) + 1, Ordering::Relaxed);
}

/// Places that may be in use.
pub fn places() -> usize {
    USED.load(Ordering::Relaxed)
}

/// The timer has fired at `now` (ns).
pub fn work(now: u64) {
    let later = || timers::arm_channels(now.saturating_add(REST_NS));
    let Some(_works) = try_work() else { return later() };
    let Some(mut from) = FROM.try_lock() else { return later() };
    let mut budget = Budget::default();
    let mut next = u64::MAX;
    let places = places();
    for n in 0..places {
        let place = (*from + n) % places;
        if budget.is_spent() {
            *from = place;
            next = now.saturating_add(REST_NS);
            break;
        }
        next = next.min(look_at_sender(place, now, &mut budget)).min(look_at_receiver(place, now, &mut budget));
    }
    next = next.min(uplink::look(now));
    if disk::look() {
        next = next.min(now.saturating_add(REST_NS));
    }
    drop(from);
    if next != u64::MAX {
        timers::arm_channels(next);
    }
    // Whoever runs here has half of the CPU at least, whatever was found that is to be done at once.
    let ended = tsc::now_ns();
    timers::put_channels_off(ended.saturating_add(ended.saturating_sub(now)));
}

/// One that was to be looked at sends. When it is to be looked at again.
fn look_at_sender(place: usize, now: u64, budget: &mut Budget) -> u64 {
    let handle = {
        let mut side = VIFS[place].tx.lock();
        let Some(tx) = side.as_deref_mut() else { return u64::MAX };
        match tx.until {
            None => return u64::MAX,
            Some(until) if until > now => return until,
            Some(_) => tx.until = None,
        }
        tx.line.handle
    };
    if !traffic::transmit(handle, Look::Usual, budget) {
        return u64::MAX;
    }
    let later = now.saturating_add(REST_NS);
    if let Some(tx) = VIFS[place].tx.lock().as_deref_mut().filter(|tx| tx.line.handle == handle) {
        tx.until = Some(later);
    }
    later
}

/// What waits for one is delivered, or is lost if it has waited for too long. When it is to be looked at again.
fn look_at_receiver(place: usize, now: u64, budget: &mut Budget) -> u64 {
    let Some(handle) = expire(place, now, budget) else { return u64::MAX };
    if budget.is_spent() || traffic::refill(handle, budget) {
        return now.saturating_add(REST_NS);
    }
    let mut side = VIFS[place].rx.lock();
    match side.as_deref_mut() {
        Some(rx) if !rx.backlog.is_empty() => now.saturating_add(TICK_NS),
        _ => u64::MAX,
    }
}

/// Loses what has waited for too long, as far as there is time. Who it is, if something waits still.
fn expire(place: usize, now: u64, budget: &mut Budget) -> Option<Handle> {
    loop {
        let item = {
            let mut side = VIFS[place].rx.lock();
            let rx = side.as_deref_mut()?;
            let Some(item) = (!budget.is_spent()).then(|| rx.backlog.expire(now)).flatten() else {
                return (!rx.backlog.is_empty()).then_some(rx.line.handle);
            };
            rx.queue.stats.dropped += 1;
            item
        };
        budget.spend(0);
        traffic::done(item);
    }
}
