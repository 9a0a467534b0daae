//! `console_io` commands and the PV console ring (public/xen.h, public/io/console.h).
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

pub const CONSOLEIO_WRITE: u32 = 0;
pub const CONSOLEIO_READ: u32 = 1;

/// Byte offsets inside the PV console ring page.
pub mod xencons {
    /// To the guest, [`IN_SIZE`] bytes.
    pub const IN: usize = 0;
    pub const IN_SIZE: usize = 1024;
    /// From the guest, [`OUT_SIZE`] bytes.
    pub const OUT: usize = 1024;
    pub const OUT_SIZE: usize = 2048;
    pub const IN_CONS: usize = 3072;
    pub const IN_PROD: usize = 3076;
    pub const OUT_CONS: usize = 3080;
    pub const OUT_PROD: usize = 3084;
    /// Bytes in use.
    pub const SIZE: usize = 3088;
}
