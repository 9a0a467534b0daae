//! `trap_info`, `vcpu_guest_context` and bounce-frame constants (public/xen.h, public/arch-x86/xen.h).
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

use crate::regs::CpuUserRegs;

/// One guest trap handler; a table ends with an entry whose address is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TrapInfo {
    pub vector: u8,
    /// Bits 0-1: privilege level that may raise it by software; [`TI_EVENT_MASK`].
    pub flags: u8,
    pub cs: u16,
    pub pad: u32,
    pub address: u64,
}
/// `TrapInfo::flags`: the privilege level.
pub const TI_DPL_MASK: u8 = 3;
/// `TrapInfo::flags`: disable events on entry (an interrupt gate).
pub const TI_EVENT_MASK: u8 = 4;

/// A vCPU's registers as the tools and `VCPUOP_initialise` carry them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct VcpuGuestContext {
    pub fpu_ctxt: [u8; 512],
    /// `VGCF_*`.
    pub flags: u64,
    pub user_regs: CpuUserRegs,
    pub trap_ctxt: [TrapInfo; 256],
    pub ldt_base: u64,
    pub ldt_ents: u64,
    pub gdt_frames: [u64; 16],
    pub gdt_ents: u64,
    pub kernel_ss: u64,
    pub kernel_sp: u64,
    /// `[3]`: kernel page-table base; `[1]`: user page-table base or 0.
    pub ctrlreg: [u64; 8],
    pub debugreg: [u64; 8],
    pub event_callback_eip: u64,
    pub failsafe_callback_eip: u64,
    pub syscall_callback_eip: u64,
    pub vm_assist: u64,
    pub fs_base: u64,
    pub gs_base_kernel: u64,
    pub gs_base_user: u64,
}
pub const VGCF_I387_VALID: u64 = 1 << 0;
pub const VGCF_IN_KERNEL: u64 = 1 << 2;
pub const VGCF_FAILSAFE_DISABLES_EVENTS: u64 = 1 << 3;
pub const VGCF_SYSCALL_DISABLES_EVENTS: u64 = 1 << 4;
pub const VGCF_ONLINE: u64 = 1 << 5;

/// The frame that the iret hypercall finds on the guest's stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IretContext {
    pub rax: u64,
    pub r11: u64,
    pub rcx: u64,
    /// [`VGCF_IN_SYSCALL`] or 0.
    pub flags: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}
/// `IretContext::flags`: rcx and r11 need not be restored.
pub const VGCF_IN_SYSCALL: u64 = 0x100;

/// Word offsets (in units of `u64`) of a bounce frame without error code, from the guest's new `rsp`.
pub mod bounce {
    pub const RCX: usize = 0;
    pub const R11: usize = 1;
    pub const RIP: usize = 2;
    pub const CS: usize = 3;
    pub const RFLAGS: usize = 4;
    pub const RSP: usize = 5;
    pub const SS: usize = 6;
    /// Words of a frame without error code; with one the words from `RIP` on move up by one.
    pub const WORDS: usize = 7;
    /// Bit of the `CS` word at which the saved upcall mask is.
    pub const SAVED_UPCALL_MASK_SHIFT: u32 = 32;
}

/// Bit n: exception n pushes an error code.
pub const VECTORS_WITH_ERROR_CODE: u32 = 1 << 8 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17 | 1 << 21;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<TrapInfo>() == 16);
    assert!(offset_of!(TrapInfo, address) == 8);
    assert!(size_of::<VcpuGuestContext>() == 5168);
    assert!(offset_of!(VcpuGuestContext, flags) == 512);
    assert!(offset_of!(VcpuGuestContext, user_regs) == 520);
    assert!(offset_of!(VcpuGuestContext, trap_ctxt) == 720);
    assert!(offset_of!(VcpuGuestContext, ldt_base) == 4816);
    assert!(offset_of!(VcpuGuestContext, gdt_frames) == 4832);
    assert!(offset_of!(VcpuGuestContext, gdt_ents) == 4960);
    assert!(offset_of!(VcpuGuestContext, kernel_ss) == 4968);
    assert!(offset_of!(VcpuGuestContext, ctrlreg) == 4984);
    assert!(offset_of!(VcpuGuestContext, event_callback_eip) == 5112);
    assert!(offset_of!(VcpuGuestContext, vm_assist) == 5136);
    assert!(offset_of!(VcpuGuestContext, gs_base_user) == 5160);
    assert!(size_of::<IretContext>() == 72);
};
