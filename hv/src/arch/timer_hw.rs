//! The running CPU's timer: one deadline in system time, raised as `vectors::TIMER`.
//!
//! It may come early (the APIC's counter is 32 bits wide); whoever handles it looks at the time and arms again.

use crate::arch::{lapic, tsc};
use core::sync::atomic::{AtomicU64, Ordering};

/// APIC timer ticks per nanosecond, times 2^32; set by [`init`].
static TICKS_PER_NS: AtomicU64 = AtomicU64::new(0);

/// Takes the frequency that was measured. After `tsc::calibrate`, before any `arm`.
pub fn init() {
    let hz = u128::from(tsc::frequencies().apic_timer_hz);
    TICKS_PER_NS.store(u64::try_from((hz << 32) / 1_000_000_000).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Raises the timer interrupt at `deadline_ns`, instead of at what was armed before; `u64::MAX` is never.
#[inline]
pub fn arm(deadline_ns: u64) {
    if deadline_ns == u64::MAX {
        return lapic::start_timer(0);
    }
    let left_ns = deadline_ns.saturating_sub(tsc::now_ns());
    let ticks = (u128::from(left_ns) * u128::from(TICKS_PER_NS.load(Ordering::Relaxed))) >> 32;
    // One more than needed, so that the deadline has passed when the interrupt comes.
    lapic::start_timer(u32::try_from(ticks).map_or(u32::MAX, |ticks| ticks.saturating_add(1)));
}
