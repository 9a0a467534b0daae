//! `mmu_update`, `mmuext_op` and `update_va_mapping` (public/xen.h).
#![allow(missing_docs, reason = "the names are those of the header")]

/// One request of `mmu_update`: the low three bits of `ptr` are the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MmuUpdate {
    pub ptr: u64,
    pub val: u64,
}

/// Mask of the command in `MmuUpdate::ptr`.
pub const MMU_UPDATE_CMD_MASK: u64 = 7;
/// Write `val` to the page-table entry at machine address `ptr`.
pub const MMU_NORMAL_PT_UPDATE: u64 = 0;
/// Make `val` the machine-to-physical entry of the frame at `ptr`.
pub const MMU_MACHPHYS_UPDATE: u64 = 1;
/// As `MMU_NORMAL_PT_UPDATE`, and keep the accessed and dirty bits that the entry has.
pub const MMU_PT_UPDATE_PRESERVE_AD: u64 = 2;
/// As `MMU_NORMAL_PT_UPDATE`; only guests with translated memory see a difference.
pub const MMU_PT_UPDATE_NO_TRANSLATE: u64 = 3;

/// Set in `count` of `mmu_update` and `mmuext_op` when a preempted call is re-executed.
pub const MMU_UPDATE_PREEMPTED: u32 = 1 << 31;

/// One operation of `mmuext_op`, 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MmuextOp {
    pub cmd: u32,
    pub pad: u32,
    /// `mfn` or `linear_addr`.
    pub arg1: u64,
    /// `nr_ents`, `vcpumask` or `src_mfn`.
    pub arg2: u64,
}

pub const MMUEXT_PIN_L1_TABLE: u32 = 0;
pub const MMUEXT_PIN_L2_TABLE: u32 = 1;
pub const MMUEXT_PIN_L3_TABLE: u32 = 2;
pub const MMUEXT_PIN_L4_TABLE: u32 = 3;
pub const MMUEXT_UNPIN_TABLE: u32 = 4;
pub const MMUEXT_NEW_BASEPTR: u32 = 5;
pub const MMUEXT_TLB_FLUSH_LOCAL: u32 = 6;
pub const MMUEXT_INVLPG_LOCAL: u32 = 7;
pub const MMUEXT_TLB_FLUSH_MULTI: u32 = 8;
pub const MMUEXT_INVLPG_MULTI: u32 = 9;
pub const MMUEXT_TLB_FLUSH_ALL: u32 = 10;
pub const MMUEXT_INVLPG_ALL: u32 = 11;
pub const MMUEXT_FLUSH_CACHE: u32 = 12;
pub const MMUEXT_SET_LDT: u32 = 13;
pub const MMUEXT_NEW_USER_BASEPTR: u32 = 15;
pub const MMUEXT_CLEAR_PAGE: u32 = 16;
pub const MMUEXT_COPY_PAGE: u32 = 17;
pub const MMUEXT_FLUSH_CACHE_GLOBAL: u32 = 18;
pub const MMUEXT_MARK_SUPER: u32 = 19;
pub const MMUEXT_UNMARK_SUPER: u32 = 20;

/// `update_va_mapping` flags, bits 0-1: what to flush.
pub const UVMF_FLUSHTYPE_MASK: u64 = 3;
pub const UVMF_NONE: u64 = 0;
pub const UVMF_TLB_FLUSH: u64 = 1;
pub const UVMF_INVLPG: u64 = 2;
/// The other bits: where. `UVMF_LOCAL`, `UVMF_ALL` or the guest address of a vCPU bitmap.
pub const UVMF_LOCAL: u64 = 0;
pub const UVMF_ALL: u64 = 4;

/// Most entries of a local descriptor table.
pub const MAX_LDT_ENTRIES: u64 = 8192;

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<MmuUpdate>() == 16);
    assert!(size_of::<MmuextOp>() == 24);
    assert!(offset_of!(MmuextOp, arg1) == 8);
    assert!(offset_of!(MmuextOp, arg2) == 16);
};
