//! Optional behaviour that a guest asks for with `vm_assist` (public/xen.h, VMASST_TYPE_*): numbers of bits.

/// VMASST_TYPE_pae_extended_cr3.
pub const PAE_EXTENDED_CR3: u32 = 3;
/// VMASST_TYPE_architectural_iopl: the kernel counts as ring 0 and IOPL is where x86 has it.
pub const ARCHITECTURAL_IOPL: u32 = 4;
/// VMASST_TYPE_runstate_update_flag.
pub const RUNSTATE_UPDATE_FLAG: u32 = 5;
/// All that a 64-bit PV guest may use: 4gb_segments, writable_pagetables, pae_extended_cr3, architectural_iopl,
/// runstate_update_flag, m2p_strict.
pub const VALID: u64 =
    1 << 0 | 1 << 2 | 1 << PAE_EXTENDED_CR3 | 1 << ARCHITECTURAL_IOPL | 1 << RUNSTATE_UPDATE_FLAG | 1 << 32;
