//! The last thing before a guest runs again: pending work of this CPU, then what is pending for the vCPU.

use crate::cpu::percpu::{pending, this_cpu, CpuInfo};
use crate::cpu::Interruptible;
use crate::domain::vcpu::{self, OwnedVcpu};
use crate::pv::entry;
use crate::pv::TRAP_SYSCALL;
use crate::sched::run;
use core::sync::atomic::Ordering;
use hv_core::bounce::{may_sysret, may_sysret_flat};
use xen_abi::regs::CpuUserRegs;

/// What entry.S is told: by IRET.
const IRET: u32 = 0;
/// By SYSRET, with all registers from the frame.
const SYSRET: u32 = 1;
/// By SYSRET; the registers that functions preserve still hold what is in the frame.
pub const SYSRET_KEPT: u32 = 2;

/// Runs before every return to ring 3, interrupts off. `regs` are the current vCPU's; the scheduler may replace them by
/// another's. Returns [`SYSRET`] or [`IRET`].
pub extern "C" fn exit_work(regs: &mut CpuUserRegs) -> u32 {
    let cpu = this_cpu();
    match vcpu::current(cpu) {
        Some(v) if is_quiet(cpu, v) => way(regs, SYSRET),
        // SAFETY: entry.S calls this when what handled the trap has returned.
        _ => work(regs, unsafe { Interruptible::on_entry() }),
    }
}

/// The same after a SYSCALL, which may return [`SYSRET_KEPT`]: no system call or hypercall changes, in the frame of the
/// vCPU that runs, the registers that functions preserve. Only another vCPU brings others.
#[inline(always)]
pub fn after_syscall(v: &OwnedVcpu, regs: &mut CpuUserRegs, interruptible: Interruptible<'_>) -> u32 {
    if is_quiet(this_cpu(), v) {
        way(regs, SYSRET_KEPT)
    } else {
        work(regs, interruptible)
    }
}

/// The same after a hypercall that left the selectors as SYSCALL had set them.
#[inline(always)]
pub fn after_plain_hypercall(v: &OwnedVcpu, regs: &mut CpuUserRegs, interruptible: Interruptible<'_>) -> u32 {
    if !is_quiet(this_cpu(), v) {
        work(regs, interruptible)
    } else if may_sysret_flat(regs) {
        SYSRET_KEPT
    } else {
        IRET
    }
}

/// Neither the current vCPU nor this CPU has anything to do.
#[inline(always)]
fn is_quiet(cpu: &CpuInfo, current: &OwnedVcpu) -> bool {
    cpu.pending.load(Ordering::Acquire) == 0
        && !current.nmi_pending.load(Ordering::Relaxed)
        && !current.event_deliverable()
}

#[inline(always)]
fn way(regs: &CpuUserRegs, sysret: u32) -> u32 {
    if regs.entry_vector & TRAP_SYSCALL != 0 && may_sysret(regs) {
        sysret
    } else {
        IRET
    }
}

#[inline(never)]
fn work(regs: &mut CpuUserRegs, mut interruptible: Interruptible<'_>) -> u32 {
    let cpu = this_cpu();
    loop {
        if cpu.pending.load(Ordering::Acquire) != 0 {
            run::do_pending(cpu, regs, interruptible.again());
        }
        let v = vcpu::current(cpu).expect("the scheduler left a vCPU to run");
        if v.nmi_pending.load(Ordering::Relaxed) && !v.nmi_masked.get() {
            v.nmi_pending.store(false, Ordering::Relaxed);
            entry::nmi(v, regs);
        }
        if v.event_deliverable() {
            entry::event_upcall(v, regs);
        }
        // Delivery may have crashed the domain, which leaves work for the scheduler.
        if cpu.pending.load(Ordering::Acquire) & pending::DUE == 0 {
            cpu.has_worked.set(false);
            return way(regs, SYSRET);
        }
    }
}
