//! Every decision that needs no privilege: frames and page types, page-table validation, grants, event channels,
//! scheduling, emulation, bounce frames. Compiles and is tested on the host.
#![no_std]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "stacks of tests are large"))]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(test, feature = "fuzzing"))]
extern crate std;

pub mod acpi;
pub mod admission;
pub mod allowance;
pub mod arrival;
pub mod bounce;
pub mod buddy;
pub mod claims;
pub mod cmdline;
pub mod conring;
pub mod control;
pub mod cpuid;
pub mod dirty_log;
pub mod dma_faults;
pub mod domain_info;
pub mod efi;
pub mod emul;
pub mod evtchn;
pub mod frame;
pub mod grant;
pub mod graves;
pub mod host_msr;
pub mod iommu;
pub mod ioport;
pub mod lfence;
pub mod machine_check;
pub mod map;
pub mod memory;
pub mod mmu;
pub mod msr;
pub mod passthrough;
pub mod patience;
pub mod pcicfg;
pub mod periodic;
pub mod pirq;
pub mod places;
pub mod ranges;
pub mod rangeset;
pub mod rate;
pub mod room;
pub mod sched;
pub mod screen;
pub mod slab;
pub mod sleep;
pub mod snapshot;
pub mod start_page;
pub mod stint;
pub mod ticket;
pub mod timer;
pub mod tlb_clock;
pub mod tsc_warp;
pub mod uart;
pub mod vtlb;
pub mod wall_clock;
pub mod watchdog;
pub mod wedge;
pub mod xstate;
