//! Traps as entry.S hands them over: sorted into what the hypervisor does itself and what the guest gets.

use crate::arch::{descriptor, efi, idt, smap};
use crate::cpu::percpu::this_cpu;
use crate::cpu::Interruptible;
use crate::domain::vcpu::{self, OwnedVcpu};
use crate::mem::copy;
use crate::pv::{address_space, control_regs, entry, mmio_ro, ptwr, vtlb};
use crate::trap::exit;
use crate::twin;
use crate::{cpu, hypercall, irq};
use hv_core::control;
use x86::error_code::PageFaultError;
use x86::rflags::Rflags;
use x86::vector;
use xen_abi::layout::{HYPERVISOR_VIRT_END, HYPERVISOR_VIRT_START};
use xen_abi::regs::CpuUserRegs;

/// The vCPU that ring 3 ran on behalf of.
#[inline(always)]
fn current() -> &'static OwnedVcpu {
    vcpu::current(this_cpu()).expect("a trap from ring 3 has a vCPU")
}

/// SYSCALL from 64-bit code: a hypercall in kernel mode, a system call in user mode. Returns how to leave.
pub extern "C" fn syscall_from_guest(regs: &mut CpuUserRegs) -> u32 {
    // SAFETY: entry.S calls this first; of what it calls, hypercalls let interrupts in between steps, and the way out
    // when all is done.
    let mut interruptible = unsafe { Interruptible::on_entry() };
    let v = current();
    if !v.kernel_mode.get() {
        return system_call(v, regs, interruptible);
    }
    if hypercall::dispatch(v, regs, interruptible.again()) {
        exit::after_plain_hypercall(v, regs, interruptible)
    } else {
        exit::after_syscall(v, regs, interruptible)
    }
}

/// Apart, for a hypercall needs fewer registers.
#[inline(never)]
fn system_call(v: &OwnedVcpu, regs: &mut CpuUserRegs, interruptible: Interruptible<'_>) -> u32 {
    entry::syscall(v, regs, v.callbacks.syscall.get());
    exit::after_syscall(v, regs, interruptible)
}

/// SYSCALL from 32-bit code. A 64-bit guest kernel has none, so it is a system call or undefined.
pub extern "C" fn syscall32_from_guest(regs: &mut CpuUserRegs) {
    let v = current();
    if v.kernel_mode.get() {
        regs.rip = regs.rip.wrapping_sub(2);
        entry::inject(v, regs, vector::UD, 0);
    } else {
        entry::syscall(v, regs, v.callbacks.syscall32.get());
    }
}

/// SYSENTER.
pub extern "C" fn sysenter_from_guest(regs: &mut CpuUserRegs) {
    let v = current();
    if v.kernel_mode.get() {
        entry::inject(v, regs, vector::GP, 0);
    } else {
        entry::sysenter(v, regs);
    }
}

/// The IRETQ back to the guest faulted.
pub extern "C" fn iret_fault_from_guest(regs: &mut CpuUserRegs) {
    let v = current();
    let [ds, es, fs, gs] = crate::sched::switch::read_selectors();
    (regs.ds, regs.es, regs.fs, regs.gs) = (ds, es, fs, gs);
    entry::failsafe(v, regs);
}

/// #PF in ring 3.
pub extern "C" fn page_fault_from_guest(regs: &mut CpuUserRegs) {
    let address = cpu::read_cr2();
    let v = current();
    let Some(code) = vtlb::fault(v, address, regs.error_code) else { return };
    const WRITE_PRESENT: u32 = PageFaultError::P.bits() | PageFaultError::W.bits();
    const MATTERS: u32 = WRITE_PRESENT | PageFaultError::RSVD.bits() | PageFaultError::I.bits();
    if code & MATTERS == WRITE_PRESENT && v.kernel_mode.get() {
        let in_hypervisor = (HYPERVISOR_VIRT_START..HYPERVISOR_VIRT_END).contains(&address);
        if !in_hypervisor && (ptwr::handle(v, regs, address) || mmio_ro::handle(v, regs, address)) {
            return;
        }
    }
    // The CPU reads descriptors as ring 0. An access of the guest's own to where they are mapped is one to any other
    // address.
    if code & PageFaultError::U.bits() == 0 {
        if let Some(offset) = descriptor::ldt_offset(address) {
            return ldt_fault(v, regs, offset, code);
        }
    }
    if code & PageFaultError::RSVD.bits() != 0 {
        // Guests cannot set reserved bits in validated tables.
        return crate::domain::life::crash(v, regs, format_args!("reserved bit in a page table, address {address:#x}"));
    }
    entry::inject_page_fault(v, regs, address, code);
}

/// A descriptor of the guest's LDT was needed: its page is mapped now, or the guest gets the fault for its own address.
fn ldt_fault(v: &OwnedVcpu, regs: &mut CpuUserRegs, offset: u64, code: u32) {
    if let Some(frame) = address_space::take_ldt_page(v, offset) {
        descriptor::map_ldt_page(offset >> x86::PAGE_SHIFT, frame);
        return;
    }
    let address = v.ldt_base.get().wrapping_add(offset);
    entry::inject_page_fault(v, regs, address, code);
}

/// Any other exception or interrupt in ring 3.
pub extern "C" fn trap_from_guest(regs: &mut CpuUserRegs) {
    let v = current();
    let code = regs.error_code;
    #[allow(clippy::cast_possible_truncation, reason = "the stub stored a vector")]
    let vec = regs.entry_vector as u8;
    match vec {
        vector::GP => {
            if !crate::pv::emulate::general_protection(v, regs) {
                entry::inject(v, regs, vec, code);
            }
        }
        vector::UD => {
            if !crate::pv::emulate::undefined_opcode(v, regs) {
                entry::inject(v, regs, vec, 0);
            }
        }
        vector::NM => {
            if v.task_switched.get() {
                entry::inject(v, regs, vec, 0);
                // As Xen does it: a kernel with Xen's old interface does not execute CLTS, and would come here for
                // ever.
                control_regs::set_task_switched(v, false);
            } else {
                cpu::clts();
            }
        }
        vector::DB => debug_trap(v, regs),
        vector::NMI => irq::nmi(regs, false),
        vector::DF | vector::MC => unreachable!("these have stacks of their own"),
        vector::INT80 => {
            if entry::may_raise(v, vec) {
                entry::inject_software(v, regs, vec);
            } else {
                regs.rip = regs.rip.wrapping_sub(2);
                entry::inject(v, regs, vector::GP, (u32::from(vec) << 3) | 2);
            }
        }
        0..vector::NR_EXCEPTIONS => entry::inject(v, regs, vec, code),
        _ => irq::handle(vec),
    }
}

/// #DB in ring 3: the guest gets it, with what DR6 says. The CPU's own says nothing else, for it is cleared each time.
fn debug_trap(v: &OwnedVcpu, regs: &mut CpuUserRegs) {
    let dr6 = cpu::read_dr6();
    // SAFETY: clears the status bits only.
    unsafe { cpu::write_dr6(x86::rflags::DR6_DEFAULT) };
    v.debugreg[6].set(control::dr6_after(v.debugreg[6].get(), dr6));
    entry::inject(v, regs, vector::DB, 0);
}

/// An exception or interrupt that hit the hypervisor itself, or one with a stack of its own from anywhere.
pub extern "C" fn trap_from_hypervisor(regs: &mut CpuUserRegs) {
    #[allow(clippy::cast_possible_truncation, reason = "the stub stored a vector")]
    let vec = regs.entry_vector as u8;
    if vec >= vector::NR_EXCEPTIONS {
        irq::handle(vec);
        return twin::entry::interrupted(regs);
    }
    let address = if vec == vector::PF { cpu::read_cr2() } else { 0 };
    if twin::entry::is_running()
        && !matches!(vec, vector::NMI | vector::MC | vector::DF)
        && twin::entry::trap(regs, vec, address)
    {
        return;
    }
    match vec {
        vector::NMI => return irq::nmi(regs, twin::entry::is_in_code(regs.rip)),
        vector::DB => {
            // A data breakpoint of the guest on memory that a hypercall touched, or behind MOV SS: not its business
            // here.
            // SAFETY: clears the status bits only.
            unsafe { cpu::write_dr6(x86::rflags::DR6_DEFAULT) };
            return;
        }
        // A machine check is not the firmware's, whatever it interrupts.
        _ if vec != vector::MC && efi::recover(regs, cpu::read_cr2()) => return,
        vector::PF | vector::GP | vector::SS | vector::NP | vector::TS => {
            if vec == vector::PF && !twin::entry::is_running() {
                let code = PageFaultError::from_bits_retain(regs.error_code);
                if !copy::is_hypervisor(cpu::read_cr2()) && code.is_stray(regs.rflags, smap::is_on()) {
                    crate::panic::fatal_trap(regs, cpu::read_cr2());
                }
                let running = vcpu::current(this_cpu());
                if running.is_some_and(|v| vtlb::fault(v, cpu::read_cr2(), regs.error_code).is_none()) {
                    return;
                }
                if let Some(offset) = descriptor::ldt_offset(cpu::read_cr2()) {
                    let v = current();
                    if let Some(frame) = address_space::take_ldt_page(v, offset) {
                        descriptor::map_ldt_page(offset >> x86::PAGE_SHIFT, frame);
                        return;
                    }
                }
            }
            if let Some(fixup) = idt::fixup_for(regs.rip) {
                regs.rip = fixup;
                // The copy closes guest memory, however it ends.
                regs.rflags &= !Rflags::AC.bits();
                return;
            }
        }
        _ => {}
    }
    crate::panic::fatal_trap(regs, cpu::read_cr2());
}
