//! Where `hv-core` decisions meet real guest state: traps, bounce frames, mode switches, the way back to a guest.

pub mod context;
pub mod cpu_policy;
pub mod emulate;
pub mod entry;
pub mod exit;
pub mod mmio_ro;
pub mod mode;
pub mod ptwr;
pub mod time;
pub mod traps;
pub mod vtlb;
