//! Requests from one CPU to others: look at your work, run a function, stop.

use crate::arch::{lapic, smp, vectors};
use crate::cpu::percpu::{self, this_cpu, MAX_CPUS};
use crate::cpu::requests;
use crate::sync::FairMutex;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::allowance;

/// One call to other CPUs is under way at a time; who waits for a turn answers others meanwhile.
static CALL: FairMutex<()> = FairMutex::new(());

/// Calls since boot, and CPUs that were interrupted for them.
static CALLS: AtomicU64 = AtomicU64::new(0);
static CALLED: AtomicU64 = AtomicU64::new(0);

/// How many calls to others there were since boot, and how many CPUs were interrupted for them all in all.
pub fn counts() -> (u64, u64) {
    (CALLS.load(Ordering::Relaxed), CALLED.load(Ordering::Relaxed))
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
    let mut waited = 0;
    let _turn = CALL.lock_while(|| waited += 1);
    requests::post(others, function, argument);
    for cpu in (0..MAX_CPUS).filter(|cpu| others >> cpu & 1 != 0) {
        kick(cpu);
    }
    while !requests::are_done() {
        core::hint::spin_loop();
        waited += 1;
    }
    // Who does not answer at once has interrupts off for as much work as this CPU may do, perhaps each time.
    let allowance = &this_cpu().allowance;
    allowance.spend(allowance::CALL);
    allowance.spend_each(waited, allowance::TURN);
}

/// Sends every other CPU an NMI: after a panic they stop.
pub fn stop_others() {
    let others = percpu::online_mask() & !(1 << this_cpu().cpu);
    for cpu in (0..MAX_CPUS).filter(|cpu| others >> cpu & 1 != 0) {
        lapic::send_nmi(smp::apic_id(cpu));
    }
}
