//! ELF notes of a PV kernel (public/elfnote.h). All have the owner name "Xen".

/// The owner name, with its terminating zero.
pub const NAME: &[u8] = b"Xen\0";

/// Free text.
pub const INFO: u32 = 0;
/// Address of the first instruction.
pub const ENTRY: u32 = 1;
/// Address of the page to be filled with hypercall entry points.
pub const HYPERCALL_PAGE: u32 = 2;
/// Virtual address of pseudo-physical address 0.
pub const VIRT_BASE: u32 = 3;
/// What to subtract from `p_paddr`.
pub const PADDR_OFFSET: u32 = 4;
/// Version of the ABI that the kernel is written for, "xen-3.0".
pub const XEN_VERSION: u32 = 5;
/// Name of the operating system.
pub const GUEST_OS: u32 = 6;
/// Its version.
pub const GUEST_VERSION: u32 = 7;
/// Kind of the image, "generic".
pub const LOADER: u32 = 8;
/// Whether a 32-bit kernel uses PAE; on 64 bits only for "yes" meaning high page-table roots.
pub const PAE_MODE: u32 = 9;
/// Features as names joined by `|`; a leading `!` makes one required.
pub const FEATURES: u32 = 10;
/// Whether to load the symbol table.
pub const BSD_SYMTAB: u32 = 11;
/// Lowest address that the hypervisor may use.
pub const HV_START_LOW: u32 = 12;
/// Mask and value that tell a valid L1 entry.
pub const L1_MFN_VALID: u32 = 13;
/// Whether a suspend may be cancelled.
pub const SUSPEND_CANCEL: u32 = 14;
/// Virtual address at which the kernel wants its list of machine frames.
pub const INIT_P2M: u32 = 15;
/// Whether `start_info.mod_start` may be a frame number, with the module not mapped.
pub const MOD_START_PFN: u32 = 16;
/// Bit mask of the `XENFEAT_*` that the kernel knows.
pub const SUPPORTED_FEATURES: u32 = 17;
/// Entry point for PVH.
pub const PHYS32_ENTRY: u32 = 18;
