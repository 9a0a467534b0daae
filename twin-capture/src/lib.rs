//! Snapshots of a live driver: boots the stock kernel with the device, loads the driver, passes traffic, keeps the
//! memory.
//!
//! A snapshot is a directory of two files. `ram` is the guest's physical memory, sparse. `index` is text, one fact a
//! line: how to walk the page tables, where the module's sections are, every kernel symbol, the device's windows.
//! Everything else (net_device, NAPI contexts, rings, interrupt handlers) is found by walking memory with the type
//! information that the kernel itself carries (crate `twin-kernel`).

pub mod guest;
pub mod initramfs;
pub mod snapshot;

pub use testbed::machine::DEVICES;
pub use twin_kernel::{Error, Result};

/// What `testbed` says went wrong.
fn words(error: impl core::fmt::Display) -> Error {
    format!("{error:#}")
}
