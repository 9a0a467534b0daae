//! Where `hv-core` decisions meet real guest state: traps, bounce frames, mode switches, the way back to a guest.

pub mod entry;
pub mod exit;
pub mod mode;
pub mod time;
pub mod traps;
