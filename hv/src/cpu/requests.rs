//! What other CPUs ask of this one: to run a function. Who waits for something answers meanwhile, so that nobody waits
//! for somebody who waits. `arch::ipi` asks.

use crate::cpu::percpu::this_cpu;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static FUNCTION: AtomicUsize = AtomicUsize::new(0);
static ARGUMENT: AtomicU64 = AtomicU64::new(0);
/// CPUs that have not run the function yet.
static CPUS: AtomicU64 = AtomicU64::new(0);

/// Asks the CPUs of `mask` to run `function(argument)`. One such request is under way at a time; its maker then
/// interrupts them, and waits until they [`are_done`].
pub fn post(mask: u64, function: fn(u64), argument: u64) {
    FUNCTION.store(function as usize, Ordering::Relaxed);
    ARGUMENT.store(argument, Ordering::Relaxed);
    CPUS.store(mask, Ordering::Release);
}

/// Have all CPUs run the function?
pub fn are_done() -> bool {
    CPUS.load(Ordering::Acquire) == 0
}

/// Answers requests of other CPUs that wait for this one. Called wherever a CPU waits with interrupts off.
#[inline]
pub fn answer() {
    let me = 1 << this_cpu().cpu;
    if CPUS.load(Ordering::Acquire) & me != 0 {
        run(me);
    }
}

#[cold]
fn run(me: u64) {
    let function = FUNCTION.load(Ordering::Relaxed);
    // SAFETY: `post` stored a function of this type before it set this CPU's bit, and the next request waits until the
    // bit is clear.
    let function = unsafe { core::mem::transmute::<usize, fn(u64)>(function) };
    function(ARGUMENT.load(Ordering::Relaxed));
    CPUS.fetch_and(!me, Ordering::Release);
}
