//! Frame and address newtypes; PTE, descriptor, MSR, CPUID and error-code bit layouts. No privileged instruction.
#![no_std]
#![forbid(unsafe_code)]

pub mod addr;
pub mod cpuid;
pub mod descriptor;
pub mod error_code;
pub mod insn;
pub mod msr;
pub mod pte;
pub mod rflags;
pub mod vector;

pub use addr::{Gfn, MachAddr, Mfn, Pfn, VirtAddr, PAGE_SHIFT, PAGE_SIZE};
pub use pte::{Level, Pte, PteFlags};
