//! Hypercall numbers and the elements of a multicall (public/xen.h).
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

pub const SET_TRAP_TABLE: u32 = 0;
pub const MMU_UPDATE: u32 = 1;
pub const SET_GDT: u32 = 2;
pub const STACK_SWITCH: u32 = 3;
pub const SET_CALLBACKS: u32 = 4;
pub const FPU_TASKSWITCH: u32 = 5;
pub const SCHED_OP_COMPAT: u32 = 6;
pub const PLATFORM_OP: u32 = 7;
pub const SET_DEBUGREG: u32 = 8;
pub const GET_DEBUGREG: u32 = 9;
pub const UPDATE_DESCRIPTOR: u32 = 10;
pub const MEMORY_OP: u32 = 12;
pub const MULTICALL: u32 = 13;
pub const UPDATE_VA_MAPPING: u32 = 14;
pub const SET_TIMER_OP: u32 = 15;
pub const EVENT_CHANNEL_OP_COMPAT: u32 = 16;
pub const XEN_VERSION: u32 = 17;
pub const CONSOLE_IO: u32 = 18;
pub const PHYSDEV_OP_COMPAT: u32 = 19;
pub const GRANT_TABLE_OP: u32 = 20;
pub const VM_ASSIST: u32 = 21;
pub const UPDATE_VA_MAPPING_OTHERDOMAIN: u32 = 22;
pub const IRET: u32 = 23;
pub const VCPU_OP: u32 = 24;
pub const SET_SEGMENT_BASE: u32 = 25;
pub const MMUEXT_OP: u32 = 26;
pub const XSM_OP: u32 = 27;
pub const NMI_OP: u32 = 28;
pub const SCHED_OP: u32 = 29;
pub const CALLBACK_OP: u32 = 30;
pub const XENOPROF_OP: u32 = 31;
pub const EVENT_CHANNEL_OP: u32 = 32;
pub const PHYSDEV_OP: u32 = 33;
pub const HVM_OP: u32 = 34;
pub const SYSCTL: u32 = 35;
pub const DOMCTL: u32 = 36;
pub const KEXEC_OP: u32 = 37;
pub const TMEM_OP: u32 = 38;
pub const ARGO_OP: u32 = 39;
pub const XENPMU_OP: u32 = 40;
pub const DM_OP: u32 = 41;
pub const HYPFS_OP: u32 = 42;
/// `__HYPERVISOR_arch_0` on x86: machine checks.
pub const MCA: u32 = 48;
/// `__HYPERVISOR_arch_1` on x86.
pub const PAGING_DOMCTL_CONT: u32 = 49;

/// One call of a multicall (`multicall_entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MulticallEntry {
    /// Hypercall number.
    pub op: u64,
    /// Where its result goes.
    pub result: i64,
    /// Its arguments.
    pub args: [u64; 6],
}
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<MulticallEntry>() == 64);
    assert!(offset_of!(MulticallEntry, result) == 8);
    assert!(offset_of!(MulticallEntry, args) == 16);
};
