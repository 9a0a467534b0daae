//! Memory of domains: accounts, claims, frames on their way back, the shell around `hv_core::mmu`, the log of writes.

pub mod claims;
pub mod domain_mm;
pub mod limbo;
pub mod log_dirty;
pub mod mmu_env;
