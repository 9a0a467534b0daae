//! What a guest may choose of the control registers.

use crate::cpu::{self, cr};
use crate::domain::vcpu::OwnedVcpu;
use core::sync::atomic::{AtomicU64, Ordering};

/// CR4 without anything that a guest chooses.
static HOST_CR4: AtomicU64 = AtomicU64::new(0);

/// Switches alignment checks on, as guests see in their CR0, and remembers the running CPU's CR4 as what every CPU has.
pub fn init_cpu() {
    // SAFETY: they concern ring 3 only, and only what sets EFLAGS.AC.
    unsafe { cpu::write_cr0(cpu::read_cr0() | cr::CR0_AM) };
    HOST_CR4.store(cpu::read_cr4() & !(cr::CR4_TSD | cr::CR4_DE | cr::CR4_FSGSBASE), Ordering::Relaxed);
}

/// The CR4 that runs a guest whose own is `guest`, which is what [`crate::pv::cpu_policy::cr4_choice`] let it choose:
/// so this processor has all of it.
pub fn real_cr4(guest: u64) -> u64 {
    HOST_CR4.load(Ordering::Relaxed) | guest & (cr::CR4_TSD | cr::CR4_DE | cr::CR4_FSGSBASE)
}

/// Sets or clears the task-switched flag of `v`, which runs on this CPU.
#[inline]
pub fn set_task_switched(v: &OwnedVcpu, flag: bool) {
    if flag != v.task_switched.get() {
        v.task_switched.set(flag);
        if flag {
            cpu::stts();
        } else {
            cpu::clts();
        }
    }
}
