//! Into the hypervisor and out of it: the assembly (entry.S), what each trap is for, and the way back to a guest.

pub mod exit;
mod from_guest;
pub mod patches;

use crate::arch::idt::{self, EntryPoints};
use crate::arch::smap;
use crate::cpu::percpu::{CpuInfo, CPU_INFO_FROM_TOP, STACK_SIZE};
use crate::domain::vcpu::offset;
use crate::domain::Domain;
use crate::hypercall::iret;
use crate::irq;
use crate::pv::TRAP_SYSCALL;
use core::mem::offset_of;
use hv_core::bounce;
use x86::rflags::Rflags;
use xen_abi::assist;
use xen_abi::layout::{FLAT_RING3_CS32, FLAT_RING3_CS64, FLAT_RING3_SS64, HYPERVISOR_VIRT_END};
use xen_abi::regs::CpuUserRegs;
use xen_abi::shared::vcpu_info;

const GUEST_REGS_FROM_TOP: usize = CPU_INFO_FROM_TOP - offset_of!(CpuInfo, guest_regs);

/// From the error_code slot of the frame in [`CpuInfo`] to another of its fields.
const fn from_error_code(offset: usize) -> isize {
    offset as isize - (offset_of!(CpuInfo, guest_regs) + offset_of!(CpuUserRegs, error_code)) as isize
}

core::arch::global_asm!(
    include_str!("entry.S"),
    CS = const offset_of!(CpuUserRegs, cs),
    SS = const offset_of!(CpuUserRegs, ss),
    ERROR_CODE = const offset_of!(CpuUserRegs, error_code),
    FRAME_WORDS = const offset_of!(CpuUserRegs, es) / 8,
    STACK_MASK = const STACK_SIZE - 1,
    GUEST_REGS_FROM_TOP = const GUEST_REGS_FROM_TOP,
    FLAT_RING3_CS64 = const FLAT_RING3_CS64,
    FLAT_RING3_CS32 = const FLAT_RING3_CS32,
    FLAT_RING3_SS64 = const FLAT_RING3_SS64,
    TRAP_SYSCALL = const TRAP_SYSCALL,
    STUB_SIZE = const idt::STUB_SIZE,
    CLAC_SIZE = const idt::CLAC_SIZE,
    AC = const Rflags::AC.bits(),
    ac_left_set = sym patches::ac_left_set,
    SYSRET_KEPT = const exit::SYSRET_KEPT,
    R10 = const offset_of!(CpuUserRegs, r10),
    R9 = const offset_of!(CpuUserRegs, r9),
    R8 = const offset_of!(CpuUserRegs, r8),
    RAX = const offset_of!(CpuUserRegs, rax),
    RDX = const offset_of!(CpuUserRegs, rdx),
    RSI = const offset_of!(CpuUserRegs, rsi),
    RDI = const offset_of!(CpuUserRegs, rdi),
    RIP = const offset_of!(CpuUserRegs, rip),
    RFLAGS = const offset_of!(CpuUserRegs, rflags),
    RSP = const offset_of!(CpuUserRegs, rsp),
    CURRENT = const from_error_code(offset_of!(CpuInfo, current)),
    PENDING = const from_error_code(offset_of!(CpuInfo, pending)),
    KERNEL_MODE = const offset::KERNEL_MODE,
    KERNEL_ROOT = const offset::KERNEL_ROOT,
    USER_ROOT = const offset::USER_ROOT,
    KERNEL_SP = const offset::KERNEL_SP,
    SYSCALL_ADDRESS = const offset::SYSCALL_ADDRESS,
    SYSCALL_MASKS = const offset::SYSCALL_MASKS,
    NMI_MASKED = const offset::NMI_MASKED,
    NMI_PENDING = const offset::NMI_PENDING,
    STALE_AREAS = const offset::STALE_AREAS,
    VTLB = const offset::VTLB,
    INFO = const offset::INFO,
    DOMAIN = const offset::DOMAIN,
    VM_ASSIST = const offset_of!(Domain, vm_assist),
    ARCHITECTURAL_IOPL = const 1 << assist::ARCHITECTURAL_IOPL,
    UPCALL_PENDING = const vcpu_info::UPCALL_PENDING,
    UPCALL_MASK = const vcpu_info::UPCALL_MASK,
    HYPERVISOR_VIRT_END = const HYPERVISOR_VIRT_END,
    HYPERVISOR_IRET = const iret::NUMBER,
    VGCF_IN_SYSCALL = const bounce::VGCF_IN_SYSCALL,
    CLEARED_ON_SYSCALL = const bounce::CLEARED_ON_ENTRY | Rflags::DF.bits(),
    IF = const Rflags::IF.bits(),
    IOPL = const Rflags::IOPL.bits(),
    VM = const Rflags::VM.bits(),
    FIXED = const Rflags::FIXED.bits(),
    NMIS_THAT_FAULTED = sym irq::NMIS_THAT_FAULTED,
    trap_from_guest = sym from_guest::trap_from_guest,
    page_fault_from_guest = sym from_guest::page_fault_from_guest,
    trap_from_hypervisor = sym from_guest::trap_from_hypervisor,
    syscall_from_guest = sym from_guest::syscall_from_guest,
    syscall32_from_guest = sym from_guest::syscall32_from_guest,
    sysenter_from_guest = sym from_guest::sysenter_from_guest,
    iret_fault_from_guest = sym from_guest::iret_fault_from_guest,
    exit_work = sym exit::exit_work,
);

extern "C" {
    static vector_stubs: u8;
    fn syscall_entry_64();
    fn syscall_entry_64_smap();
    fn syscall_entry_32();
    fn sysenter_entry();
    /// Enters the current vCPU with the registers in this CPU's `guest_regs`.
    pub fn enter_guest() -> !;
}

/// Where entry.S has its routines.
pub fn entry_points() -> EntryPoints {
    EntryPoints {
        vectors: core::ptr::addr_of!(vector_stubs) as u64,
        syscall_64: if smap::is_on() { syscall_entry_64_smap } else { syscall_entry_64 } as *const () as u64,
        syscall_32: syscall_entry_32 as *const () as u64,
        sysenter: sysenter_entry as *const () as u64,
    }
}
