//! `XENMEM_*` (public/memory.h).
#![allow(missing_docs, reason = "the names are those of the header")]

/// The operation is in the low bits of the command; the rest is the extent at which a preempted call goes on.
pub const MEMOP_EXTENT_SHIFT: u32 = 6;
pub const MEMOP_CMD_MASK: u64 = (1 << MEMOP_EXTENT_SHIFT) - 1;

pub const XENMEM_INCREASE_RESERVATION: u64 = 0;
pub const XENMEM_DECREASE_RESERVATION: u64 = 1;
pub const XENMEM_MAXIMUM_RAM_PAGE: u64 = 2;
pub const XENMEM_CURRENT_RESERVATION: u64 = 3;
pub const XENMEM_MAXIMUM_RESERVATION: u64 = 4;
pub const XENMEM_MACHPHYS_MFN_LIST: u64 = 5;
pub const XENMEM_POPULATE_PHYSMAP: u64 = 6;
pub const XENMEM_ADD_TO_PHYSMAP: u64 = 7;
pub const XENMEM_MEMORY_MAP: u64 = 9;
pub const XENMEM_MACHINE_MEMORY_MAP: u64 = 10;
pub const XENMEM_EXCHANGE: u64 = 11;
pub const XENMEM_MACHPHYS_MAPPING: u64 = 12;
pub const XENMEM_SET_MEMORY_MAP: u64 = 13;
pub const XENMEM_MAXIMUM_GPFN: u64 = 14;
pub const XENMEM_REMOVE_FROM_PHYSMAP: u64 = 15;
pub const XENMEM_GET_SHARING_FREED_PAGES: u64 = 18;
pub const XENMEM_GET_SHARING_SHARED_PAGES: u64 = 19;
pub const XENMEM_ADD_TO_PHYSMAP_BATCH: u64 = 23;
pub const XENMEM_CLAIM_PAGES: u64 = 24;
pub const XENMEM_MACHPHYS_COMPAT_MFN_LIST: u64 = 25;
pub const XENMEM_GET_VNUMAINFO: u64 = 26;
pub const XENMEM_RESERVED_DEVICE_MEMORY_MAP: u64 = 27;
pub const XENMEM_ACQUIRE_RESOURCE: u64 = 28;
pub const XENMEM_GET_MCOSIZE: u64 = 29;

/// `mem_flags` bits 0-7: address bits limit, 0 for none.
pub const MEMF_ADDRESS_BITS_MASK: u32 = 0xff;
/// Bits 8-15: NUMA node plus one.
pub const MEMF_NODE_MASK: u32 = 0xff << 8;
pub const MEMF_POPULATE_ON_DEMAND: u32 = 1 << 16;
pub const MEMF_EXACT_NODE_REQUEST: u32 = 1 << 17;
pub const MEMF_VNODE: u32 = 1 << 18;

/// What `increase_reservation`, `decrease_reservation`, `populate_physmap` and `claim_pages` are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryReservation {
    /// Guest address of an array of `u64` frame numbers.
    pub extent_start: u64,
    pub nr_extents: u64,
    /// log2 of the pages in each extent.
    pub extent_order: u32,
    pub mem_flags: u32,
    pub domid: u16,
    pub pad: [u16; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryExchange {
    /// Extents to give up; the array holds machine frames.
    pub input: MemoryReservation,
    /// Extents to get; the array holds guest frames, and machine frames afterwards.
    pub output: MemoryReservation,
    /// Extents of `input` that are done; 0 at the beginning.
    pub nr_exchanged: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MachphysMfnList {
    pub max_extents: u32,
    pub pad: u32,
    pub extent_start: u64,
    pub nr_extents: u32,
    pub pad2: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MachphysMapping {
    pub v_start: u64,
    pub v_end: u64,
    pub max_mfn: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryMap {
    /// In: room in the buffer; out: number of entries.
    pub nr_entries: u32,
    pub pad: u32,
    pub buffer: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ForeignMemoryMap {
    pub domid: u16,
    pub pad: [u16; 3],
    pub map: MemoryMap,
}

/// 20 bytes, packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct E820Entry {
    pub addr: u64,
    pub size: u64,
    pub kind: u32,
}
pub const E820_RAM: u32 = 1;
pub const E820_RESERVED: u32 = 2;
pub const E820_ACPI: u32 = 3;
pub const E820_NVS: u32 = 4;
pub const E820_UNUSABLE: u32 = 5;
/// Most entries of a domain's memory map.
pub const E820_MAX: u32 = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AcquireResource {
    pub domid: u16,
    pub kind: u16,
    pub id: u32,
    /// In: frames wanted; 0 asks how many there are.
    pub nr_frames: u32,
    pub pad: u32,
    /// First frame of the resource.
    pub frame: u64,
    /// Guest address of an array of `u64` machine frames.
    pub frame_list: u64,
}
pub const RESOURCE_IOREQ_SERVER: u16 = 0;
pub const RESOURCE_GRANT_TABLE: u16 = 1;
pub const RESOURCE_VMTRACE_BUF: u16 = 2;
pub const RESOURCE_GRANT_TABLE_ID_SHARED: u32 = 0;
pub const RESOURCE_GRANT_TABLE_ID_STATUS: u32 = 1;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<MemoryReservation>() == 32);
    assert!(offset_of!(MemoryReservation, domid) == 24);
    assert!(size_of::<MemoryExchange>() == 72);
    assert!(offset_of!(MemoryExchange, nr_exchanged) == 64);
    assert!(size_of::<MachphysMfnList>() == 24);
    assert!(offset_of!(MachphysMfnList, nr_extents) == 16);
    assert!(size_of::<MachphysMapping>() == 24);
    assert!(size_of::<MemoryMap>() == 16);
    assert!(size_of::<ForeignMemoryMap>() == 24);
    assert!(size_of::<E820Entry>() == 20);
    assert!(size_of::<AcquireResource>() == 32);
    assert!(offset_of!(AcquireResource, frame) == 16);
};
