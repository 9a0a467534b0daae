//! Grant tables, version 1 (public/grant_table.h).
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

/// A grant reference: an index into the granter's table.
pub type GrantRef = u32;
/// What a successful map returns.
pub type GrantHandle = u32;

pub const GNTTABOP_MAP_GRANT_REF: u32 = 0;
pub const GNTTABOP_UNMAP_GRANT_REF: u32 = 1;
pub const GNTTABOP_SETUP_TABLE: u32 = 2;
pub const GNTTABOP_DUMP_TABLE: u32 = 3;
pub const GNTTABOP_TRANSFER: u32 = 4;
pub const GNTTABOP_COPY: u32 = 5;
pub const GNTTABOP_QUERY_SIZE: u32 = 6;
pub const GNTTABOP_UNMAP_AND_REPLACE: u32 = 7;
pub const GNTTABOP_SET_VERSION: u32 = 8;
pub const GNTTABOP_GET_STATUS_FRAMES: u32 = 9;
pub const GNTTABOP_GET_VERSION: u32 = 10;
pub const GNTTABOP_SWAP_GRANT_REF: u32 = 11;
pub const GNTTABOP_CACHE_FLUSH: u32 = 12;

/// One entry of a shared version 1 table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GrantEntryV1 {
    pub flags: u16,
    pub domid: u16,
    pub frame: u32,
}
pub const ENTRIES_V1_PER_PAGE: u32 = 512;
/// Grant table frames of one domain unless the toolstack says otherwise.
pub const DEFAULT_MAX_GRANT_FRAMES: u32 = 64;
/// Maptrack frames of one domain unless the toolstack says otherwise (1024 handles each).
pub const DEFAULT_MAX_MAPTRACK_FRAMES: u32 = 1024;
/// Entries at the start of a table that the toolstack may use.
pub const GNTTAB_NR_RESERVED_ENTRIES: u32 = 8;
pub const GNTTAB_RESERVED_CONSOLE: GrantRef = 0;
pub const GNTTAB_RESERVED_XENSTORE: GrantRef = 1;

pub const GTF_INVALID: u16 = 0;
pub const GTF_PERMIT_ACCESS: u16 = 1;
pub const GTF_ACCEPT_TRANSFER: u16 = 2;
pub const GTF_TRANSITIVE: u16 = 3;
pub const GTF_TYPE_MASK: u16 = 3;
pub const GTF_READONLY: u16 = 1 << 2;
pub const GTF_READING: u16 = 1 << 3;
pub const GTF_WRITING: u16 = 1 << 4;
pub const GTF_SUB_PAGE: u16 = 1 << 8;
/// Transfer: the hypervisor has committed to fill the slot.
pub const GTF_TRANSFER_COMMITTED: u16 = 1 << 2;
/// Transfer: the new frame number is in the entry.
pub const GTF_TRANSFER_COMPLETED: u16 = 1 << 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MapGrantRef {
    pub host_addr: u64,
    pub flags: u32,
    pub gref: GrantRef,
    pub dom: u16,
    /// Out.
    pub status: i16,
    /// Out.
    pub handle: GrantHandle,
    /// Out.
    pub dev_bus_addr: u64,
}
/// Map for device access.
pub const GNTMAP_DEVICE_MAP: u32 = 1 << 0;
/// Map into the caller's address space.
pub const GNTMAP_HOST_MAP: u32 = 1 << 1;
pub const GNTMAP_READONLY: u32 = 1 << 2;
/// The mapping is for user mode (32-bit PV only has an effect).
pub const GNTMAP_APPLICATION_MAP: u32 = 1 << 3;
/// `host_addr` is the machine address of the page-table entry.
pub const GNTMAP_CONTAINS_PTE: u32 = 1 << 4;
/// Bits 16.. go into the available bits of the page-table entry.
pub const GNTMAP_GUEST_AVAIL0: u32 = 16;
pub const GNTMAP_GUEST_AVAIL_MASK: u32 = !0 << 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UnmapGrantRef {
    pub host_addr: u64,
    pub dev_bus_addr: u64,
    pub handle: GrantHandle,
    /// Out.
    pub status: i16,
    pub pad: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UnmapAndReplace {
    pub host_addr: u64,
    pub new_addr: u64,
    pub handle: GrantHandle,
    /// Out.
    pub status: i16,
    pub pad: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SetupTable {
    pub dom: u16,
    pub pad0: u16,
    pub nr_frames: u32,
    /// Out.
    pub status: i16,
    pub pad1: [u16; 3],
    /// Guest pointer to `u64[nr_frames]`.
    pub frame_list: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Transfer {
    pub mfn: u64,
    pub domid: u16,
    pub pad0: u16,
    pub gref: GrantRef,
    /// Out.
    pub status: i16,
    pub pad1: [u16; 3],
}

/// One side of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CopyPtr {
    /// A grant reference (low 32 bits) or a guest frame number.
    pub u: u64,
    pub domid: u16,
    pub offset: u16,
    pub pad: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GrantCopy {
    pub source: CopyPtr,
    pub dest: CopyPtr,
    pub len: u16,
    pub flags: u16,
    /// Out.
    pub status: i16,
    pub pad: u16,
}
pub const GNTCOPY_SOURCE_GREF: u16 = 1 << 0;
pub const GNTCOPY_DEST_GREF: u16 = 1 << 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct QuerySize {
    pub dom: u16,
    pub pad0: u16,
    /// Out.
    pub nr_frames: u32,
    /// Out.
    pub max_nr_frames: u32,
    /// Out.
    pub status: i16,
    pub pad1: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SetVersion {
    pub version: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GetVersion {
    pub dom: u16,
    pub pad: u16,
    /// Out.
    pub version: u32,
}

/// The result of one entry: 0 or a negative `GNTST_*`. A positive number is never a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum GntStatus {
    Okay = 0,
    GeneralError = -1,
    BadDomain = -2,
    BadGntref = -3,
    BadHandle = -4,
    BadVirtAddr = -5,
    BadDevAddr = -6,
    NoDeviceSpace = -7,
    PermissionDenied = -8,
    BadPage = -9,
    BadCopyArg = -10,
    AddressTooBig = -11,
    Eagain = -12,
    NoSpace = -13,
}

impl GntStatus {
    /// The number that goes into a `status` field.
    pub const fn raw(self) -> i16 {
        self as i16
    }
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<GrantEntryV1>() == 8);
    assert!(size_of::<MapGrantRef>() == 32);
    assert!(offset_of!(MapGrantRef, status) == 18);
    assert!(offset_of!(MapGrantRef, handle) == 20);
    assert!(size_of::<UnmapGrantRef>() == 24);
    assert!(offset_of!(UnmapGrantRef, status) == 20);
    assert!(size_of::<UnmapAndReplace>() == 24);
    assert!(size_of::<SetupTable>() == 24);
    assert!(offset_of!(SetupTable, status) == 8);
    assert!(offset_of!(SetupTable, frame_list) == 16);
    assert!(size_of::<Transfer>() == 24);
    assert!(offset_of!(Transfer, gref) == 12);
    assert!(offset_of!(Transfer, status) == 16);
    assert!(size_of::<GrantCopy>() == 40);
    assert!(offset_of!(GrantCopy, dest) == 16);
    assert!(offset_of!(GrantCopy, status) == 36);
    assert!(size_of::<QuerySize>() == 16);
    assert!(offset_of!(QuerySize, status) == 12);
    assert!(size_of::<SetVersion>() == 4);
    assert!(size_of::<GetVersion>() == 8);
};
