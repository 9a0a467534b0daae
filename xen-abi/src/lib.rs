//! Xen's public ABI: numbers, flags, errno, `repr(C)` structs with layout asserts. No logic.
//!
//! One module per public header of Xen 4.17 (`xen/include/public`), 64-bit layout only. Names keep Xen's words without
//! leading underscores and prefixes that the module already says. `channel_op` alone is Tandem's own.
#![no_std]
#![forbid(unsafe_code)]

pub mod assist;
pub mod callback;
pub mod channel_op;
pub mod console;
pub mod dom0;
pub mod domctl;
pub mod efi;
pub mod elfnote;
pub mod errno;
pub mod event;
pub mod features;
pub mod grant;
pub mod hypercall;
pub mod io;
pub mod layout;
pub mod memory;
pub mod mmu;
pub mod physdev;
pub mod platform;
pub mod regs;
pub mod sched;
pub mod shared;
pub mod start_info;
pub mod sysctl;
pub mod trap;
pub mod vcpu;
pub mod version;
