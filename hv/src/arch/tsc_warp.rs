//! Compares the time-stamp counter of each CPU that comes up with the first one's, which waits for it anyway. What is
//! decided of the stamps is in `hv_core::tsc_warp`.
//!
//! The CPU that comes asks, and gives up after a while: the first one may be another hypervisor's vCPU, and stopped.
//! One comes at a time.

use crate::cpu::{percpu::this_cpu, rdtsc, rdtsc_ordered};
use crate::warn;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use hv_core::tsc_warp::{Exchange, TscWarp, EXCHANGES};

/// TSC ticks that all exchanges of one CPU may take.
const PATIENCE_TICKS: u64 = 1 << 24;

/// The number of the last question, and of the last one that was answered.
static ASKED: AtomicU32 = AtomicU32::new(0);
static ANSWERED: AtomicU32 = AtomicU32::new(0);
/// The answer.
static STAMP: AtomicU64 = AtomicU64::new(0);

/// Were all counters alike?
static ALIKE: AtomicBool = AtomicBool::new(true);
/// Of the first that was not: the CPU, and by how many ticks it is ahead at least.
static CPU: AtomicU32 = AtomicU32::new(0);
static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Compares the running CPU's counter, while it comes up.
pub fn compare() {
    let mut warp = TscWarp::default();
    let begin = rdtsc();
    for _ in 0..EXCHANGES {
        let number = ASKED.load(Ordering::Relaxed).wrapping_add(1);
        let asked = rdtsc_ordered();
        ASKED.store(number, Ordering::Release);
        while ANSWERED.load(Ordering::Acquire) != number {
            if rdtsc().wrapping_sub(begin) > PATIENCE_TICKS {
                return;
            }
            core::hint::spin_loop();
        }
        let heard = rdtsc_ordered();
        warp.note(Exchange { asked, answered: STAMP.load(Ordering::Relaxed), heard });
    }
    if let Some(ahead) = warp.ahead() {
        if ALIKE.swap(false, Ordering::Relaxed) {
            CPU.store(this_cpu().cpu, Ordering::Relaxed);
            AHEAD.store(ahead, Ordering::Relaxed);
        }
    }
}

/// Answers what is asked, on the first CPU while it waits for another.
pub fn answer() {
    let number = ASKED.load(Ordering::Acquire);
    if number != ANSWERED.load(Ordering::Relaxed) {
        STAMP.store(rdtsc_ordered(), Ordering::Relaxed);
        ANSWERED.store(number, Ordering::Release);
    }
}

/// May readings of different CPUs be compared?
pub fn are_alike() -> bool {
    ALIKE.load(Ordering::Relaxed)
}

/// Says it if they may not. All CPUs are up.
pub fn report() {
    if !are_alike() {
        let (cpu, ahead) = (CPU.load(Ordering::Relaxed), AHEAD.load(Ordering::Relaxed));
        let side = if ahead < 0 { "behind" } else { "ahead of" };
        warn!("CPU {cpu}'s TSC is {} ticks {side} CPU 0's, or more: time may go back", ahead.unsigned_abs());
    }
}
