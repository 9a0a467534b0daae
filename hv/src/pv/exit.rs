//! The last thing before a guest runs again: pending work of this CPU, then what is pending for the vCPU.

use crate::arch::idt::TRAP_SYSCALL;
use crate::arch::percpu::this_cpu;
use crate::pv::entry;
use crate::sched;
use core::sync::atomic::Ordering;
use hv_core::bounce::may_sysret;
use xen_abi::regs::CpuUserRegs;

/// Runs before every return to ring 3, interrupts off. `regs` are the current vCPU's; the scheduler may replace them by
/// another's. Returns 1 if the return may use SYSRET, else 0.
pub extern "C" fn exit_work(regs: &mut CpuUserRegs) -> u32 {
    let cpu = this_cpu();
    loop {
        if cpu.pending.load(Ordering::Acquire) != 0 {
            sched::do_pending(cpu, regs);
        }
        let v = cpu.current().expect("the scheduler left a vCPU to run");
        if v.nmi_pending.load(Ordering::Relaxed) && !v.nmi_masked.get() {
            v.nmi_pending.store(false, Ordering::Relaxed);
            entry::nmi(v, regs);
        }
        if v.event_deliverable() {
            entry::event_upcall(v, regs);
        }
        // Delivery may have crashed the domain, which leaves work for the scheduler.
        if cpu.pending.load(Ordering::Acquire) == 0 {
            return u32::from(regs.entry_vector & TRAP_SYSCALL != 0 && may_sysret(regs));
        }
    }
}
