//! What a PCI front end asks its back end (public/io/pciif.h): one page, with one request at a time. The front end
//! writes it, sets
//! [`FLAG_ACTIVE`] and notifies; the back end writes the answer over it and clears the flag.

use core::mem::{offset_of, size_of};

/// Where the flags are.
pub const FLAGS: u16 = 0;
/// In the flags: there is a request that was not answered.
pub const FLAG_ACTIVE: u32 = 1 << 0;
/// Where the request is: [`PciOp`].
pub const OP: u16 = 4;
/// Where its error is.
pub const ERR: u16 = OP + 4;
/// Where its value is.
pub const VALUE: u16 = OP + 28;
/// Where its messages are: [`MsixEntry`], up to [`MAX_MESSAGES`] of them.
pub const MESSAGES: u16 = OP + 36;
/// Messages in one request.
pub const MAX_MESSAGES: usize = 128;

/// Read a register of configuration space.
pub const XEN_PCI_OP_CONF_READ: u32 = 0;
/// Write one.
pub const XEN_PCI_OP_CONF_WRITE: u32 = 1;
/// Use MSI.
pub const XEN_PCI_OP_ENABLE_MSI: u32 = 2;
/// Do not.
pub const XEN_PCI_OP_DISABLE_MSI: u32 = 3;
/// Use MSI-X.
pub const XEN_PCI_OP_ENABLE_MSIX: u32 = 4;
/// Do not.
pub const XEN_PCI_OP_DISABLE_MSIX: u32 = 5;

/// It is done.
pub const XEN_PCI_ERR_SUCCESS: i32 = 0;
/// There is no such function.
pub const XEN_PCI_ERR_DEV_NOT_FOUND: i32 = -1;
/// There is no such register.
pub const XEN_PCI_ERR_INVALID_OFFSET: i32 = -2;
/// The back end does not know how.
pub const XEN_PCI_ERR_NOT_IMPLEMENTED: i32 = -4;
/// It could not be done.
pub const XEN_PCI_ERR_OP_FAILED: i32 = -5;

/// A request, and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PciOp {
    /// In: what to do (`XEN_PCI_OP_*`).
    pub cmd: u32,
    /// Out: `XEN_PCI_ERR_*`.
    pub err: i32,
    /// In: the function's segment.
    pub domain: u32,
    /// In: its bus.
    pub bus: u32,
    /// In: its device and function.
    pub devfn: u32,
    /// In: which register.
    pub offset: i32,
    /// In: its size in bytes.
    pub size: i32,
    /// In: what to write; how many messages of MSI-X. Out: what was read; the interrupt of MSI; 0, if messages are in
    /// use.
    pub value: u32,
    /// In: of nothing that is here.
    pub info: u32,
}

/// A message of MSI-X.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MsixEntry {
    /// Out: its interrupt.
    pub vector: u16,
    /// In: its place in the function's table.
    pub entry: u16,
}

const _: () =
    assert!(offset_of!(PciOp, err) == (ERR - OP) as usize && offset_of!(PciOp, value) == (VALUE - OP) as usize);
const _: () = assert!(size_of::<PciOp>() == (MESSAGES - OP) as usize && size_of::<MsixEntry>() == 4);
