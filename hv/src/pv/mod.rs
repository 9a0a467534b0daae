//! Where `hv-core` decisions meet real guest state: emulation, bounce frames, mode switches, time.

pub mod address_space;
pub mod context;
pub mod control_regs;
pub mod cpu_policy;
pub mod debugreg;
pub mod emulate;
pub mod entry;
pub mod mmio_ro;
pub mod mode;
pub mod ptwr;
pub mod time;
pub mod vtlb;

/// In `entry_vector`: the guest's rcx and r11 are dead, so the way back may be SYSRET.
pub const TRAP_SYSCALL: u32 = 0x100;
