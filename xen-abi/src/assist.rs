//! Optional behaviour that a guest asks for with `vm_assist` (public/xen.h, VMASST_TYPE_*): numbers of bits.

/// VMASST_TYPE_pae_extended_cr3.
pub const PAE_EXTENDED_CR3: u32 = 3;
/// VMASST_TYPE_architectural_iopl: the kernel counts as ring 0 and IOPL is where x86 has it.
pub const ARCHITECTURAL_IOPL: u32 = 4;
/// VMASST_TYPE_runstate_update_flag.
pub const RUNSTATE_UPDATE_FLAG: u32 = 5;
