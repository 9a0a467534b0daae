//! `cpu_user_regs`: a guest's general registers as trap frames, `vcpu_guest_context` and domctl carry them
//! (public/arch-x86/xen-x86_64.h).

/// 200 bytes. The order is the order in which the hypervisor's entry code pushes them, lowest address first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "register names")]
pub struct CpuUserRegs {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub error_code: u32,
    pub entry_vector: u32,
    pub rip: u64,
    pub cs: u16,
    pub pad0: u16,
    pub saved_upcall_mask: u8,
    pub pad1: [u8; 3],
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u16,
    pub pad2: [u16; 3],
    pub es: u16,
    pub pad3: [u16; 3],
    pub ds: u16,
    pub pad4: [u16; 3],
    pub fs: u16,
    pub pad5: [u16; 3],
    pub gs: u16,
    pub pad6: [u16; 3],
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<CpuUserRegs>() == 200);
    assert!(offset_of!(CpuUserRegs, rdi) == 112);
    assert!(offset_of!(CpuUserRegs, error_code) == 120);
    assert!(offset_of!(CpuUserRegs, rip) == 128);
    assert!(offset_of!(CpuUserRegs, saved_upcall_mask) == 140);
    assert!(offset_of!(CpuUserRegs, rflags) == 144);
    assert!(offset_of!(CpuUserRegs, ss) == 160);
    assert!(offset_of!(CpuUserRegs, gs) == 192);
};
