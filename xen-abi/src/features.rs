//! `XENFEAT_*` bits (public/features.h), as `xen_version(get_features)` reports them and ELF notes name them.

/// Page tables are writable as any memory. Not the case for PV guests here.
pub const WRITABLE_PAGE_TABLES: u8 = 0;
/// Descriptor tables are writable as any memory.
pub const WRITABLE_DESCRIPTOR_TABLES: u8 = 1;
/// The guest's frame numbers are its machine's.
pub const AUTO_TRANSLATED_PHYSMAP: u8 = 2;
/// The kernel runs at ring 0.
pub const SUPERVISOR_MODE_KERNEL: u8 = 3;
/// The page-table root may lie above 4 GiB.
pub const PAE_PGDIR_ABOVE_4GB: u8 = 4;
/// `MMU_PT_UPDATE_PRESERVE_AD` exists.
pub const MMU_PT_UPDATE_PRESERVE_AD: u8 = 5;
/// The hypervisor clears and copies pages for a guest that has no mapping of them.
pub const HIGHMEM_ASSIST: u8 = 6;
/// `GNTTABOP_map_grant_ref` puts flags into the software bits of the entry.
pub const GNTTAB_MAP_AVAIL_BITS: u8 = 7;
/// Upcalls may arrive by vector.
pub const HVM_CALLBACK_VECTOR: u8 = 8;
/// The clock of an HVM guest is safe.
pub const HVM_SAFE_PVCLOCK: u8 = 9;
/// HVM guests may use pirqs.
pub const HVM_PIRQS: u8 = 10;
/// As a kernel's feature: it can run as domain 0. As the hypervisor's: the caller is domain 0.
pub const DOM0: u8 = 11;
/// Grants are mapped at the guest's frame number.
pub const GRANT_MAP_IDENTITY: u8 = 12;
/// `XENMEMF_vnode` exists.
pub const MEMORY_OP_VNODE_SUPPORTED: u8 = 13;
/// ARM: hypercalls follow the SMC calling convention.
pub const ARM_SMCCC_SUPPORTED: u8 = 14;
/// The kernel takes its ACPI root pointer from anywhere.
pub const LINUX_RSDP_UNRESTRICTED: u8 = 15;
/// The guest's physical addresses are not the machine's.
pub const NOT_DIRECT_MAPPED: u8 = 16;
/// They are.
pub const DIRECT_MAPPED: u8 = 17;

/// The names that `ELFNOTE_FEATURES` uses, by feature number. Features without a name here cannot be given by name.
pub const NAMES: [(&str, u8); 7] = [
    ("writable_page_tables", WRITABLE_PAGE_TABLES),
    ("writable_descriptor_tables", WRITABLE_DESCRIPTOR_TABLES),
    ("auto_translated_physmap", AUTO_TRANSLATED_PHYSMAP),
    ("supervisor_mode_kernel", SUPERVISOR_MODE_KERNEL),
    ("pae_pgdir_above_4gb", PAE_PGDIR_ABOVE_4GB),
    ("hvm_callback_vector", HVM_CALLBACK_VECTOR),
    ("dom0", DOM0),
];
