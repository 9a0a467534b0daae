//! The bootable image: assembly, privileged instructions, wiring. `boot` has the first function.
#![no_std]
#![no_main]

extern crate alloc;
// For a host it is only checked, with crates that may need it.
#[cfg(not(target_os = "none"))]
extern crate std;

mod arch;
mod audit;
mod boot;
mod channel;
mod console;
mod cpu;
mod debug_keys;
mod domain;
mod hypercall;
mod iommu;
mod irq;
mod mem;
mod panic;
mod pv;
mod sched;
mod sync;
mod trap;
mod twin;
