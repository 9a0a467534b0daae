//! Requests from one CPU to others: look at your work, run a function, stop.

use crate::arch::{lapic, smp, vectors};
use crate::cpu::percpu::{self, this_cpu, MAX_CPUS};
use crate::sync::Mutex;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// One call to other CPUs is under way at a time; who waits for a turn answers others meanwhile.
static CALL: Mutex<()> = Mutex::new(());
static CALL_FUNCTION: AtomicUsize = AtomicUsize::new(0);
static CALL_ARGUMENT: AtomicU64 = AtomicU64::new(0);
/// CPUs that have not run the function yet.
static CALL_CPUS: AtomicU64 = AtomicU64::new(0);

/// Calls since boot, and CPUs that were interrupted for them.
static CALLS: AtomicU64 = AtomicU64::new(0);
static CALLED: AtomicU64 = AtomicU64::new(0);

/// How many calls to others there were since boot, and how many CPUs were interrupted for them all in all.
pub fn counts() -> (u64, u64) {
    (CALLS.load(Ordering::Relaxed), CALLED.load(Ordering::Relaxed))
}

/// Answers requests of other CPUs that wait for this one. Called wherever a CPU waits with interrupts off.
#[inline]
pub fn service_pending() {
    let me = 1 << this_cpu().cpu;
    if CALL_CPUS.load(Ordering::Acquire) & me != 0 {
        run_call(me);
    }
}

#[cold]
fn run_call(me: u64) {
    let function = CALL_FUNCTION.load(Ordering::Relaxed);
    // SAFETY: `call` stored a function of this type before it set this CPU's bit, and waits until the bit is clear.
    let function = unsafe { core::mem::transmute::<usize, fn(u64)>(function) };
    function(CALL_ARGUMENT.load(Ordering::Relaxed));
    CALL_CPUS.fetch_and(!me, Ordering::Release);
}

/// Interrupts CPU `cpu`, which then answers requests and looks at its pending work.
#[inline]
pub fn kick(cpu: usize) {
    lapic::send(smp::apic_id(cpu), vectors::KICK);
}

/// Runs `function(argument)` on the CPUs of `mask` that are online, this one included if it is in the mask, and returns
/// when all are done. The function may not wait for other CPUs; it runs with interrupts off, wherever its CPU was.
pub fn call(mask: u64, function: fn(u64), argument: u64) {
    let me = 1 << this_cpu().cpu;
    let others = mask & percpu::online_mask() & !me;
    if mask & me != 0 {
        function(argument);
    }
    if others == 0 {
        return;
    }
    CALLS.fetch_add(1, Ordering::Relaxed);
    CALLED.fetch_add(others.count_ones().into(), Ordering::Relaxed);
    let _turn = CALL.lock();
    CALL_FUNCTION.store(function as usize, Ordering::Relaxed);
    CALL_ARGUMENT.store(argument, Ordering::Relaxed);
    CALL_CPUS.store(others, Ordering::Release);
    for cpu in (0..MAX_CPUS).filter(|cpu| others >> cpu & 1 != 0) {
        kick(cpu);
    }
    while CALL_CPUS.load(Ordering::Acquire) != 0 {
        core::hint::spin_loop();
    }
}

/// Sends every other CPU an NMI: after a panic they stop.
pub fn stop_others() {
    let others = percpu::online_mask() & !(1 << this_cpu().cpu);
    for cpu in (0..MAX_CPUS).filter(|cpu| others >> cpu & 1 != 0) {
        lapic::send_nmi(smp::apic_id(cpu));
    }
}
