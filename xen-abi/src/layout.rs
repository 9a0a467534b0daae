//! The fixed guest-visible address-space layout and selectors of 64-bit PV (public/arch-x86/xen-x86_64.h).

/// First L4 slot that belongs to the hypervisor.
pub const HYPERVISOR_FIRST_SLOT: usize = 256;
/// One past the last L4 slot that belongs to the hypervisor.
pub const HYPERVISOR_END_SLOT: usize = 272;
/// First address of the hypervisor's range.
pub const HYPERVISOR_VIRT_START: u64 = 0xffff_8000_0000_0000;
/// One past the last address of the hypervisor's range.
pub const HYPERVISOR_VIRT_END: u64 = 0xffff_8800_0000_0000;
/// The read-only machine-to-physical table, an array of `u64` indexed by machine frame, visible to guests.
pub const MACH2PHYS_VIRT_START: u64 = 0xffff_8000_0000_0000;
/// End (exclusive) of the machine-to-physical window.
pub const MACH2PHYS_VIRT_END: u64 = 0xffff_8040_0000_0000;
/// M2P value of a frame that has no physical address.
pub const INVALID_M2P_ENTRY: u64 = !0;

/// Number of descriptor-table pages that a guest may provide.
pub const FIRST_RESERVED_GDT_PAGE: usize = 14;
/// First GDT entry that belongs to the hypervisor (entry 512 * 14).
pub const FIRST_RESERVED_GDT_ENTRY: usize = 0x1c00;
/// Flat ring-3 32-bit code.
pub const FLAT_RING3_CS32: u16 = 0xe023;
/// Flat ring-3 64-bit code: guest kernel and user code alike.
pub const FLAT_RING3_CS64: u16 = 0xe033;
/// Flat ring-3 data and stack.
pub const FLAT_RING3_SS64: u16 = 0xe02b;
/// The hypervisor's code selector.
pub const HYPERVISOR_CS: u16 = 0xe008;
/// The hypervisor's data selector.
pub const HYPERVISOR_DS: u16 = 0xe010;

/// Domain ids from here on have a meaning of their own.
pub const DOMID_FIRST_RESERVED: u16 = 0x7ff0;
/// The calling domain.
pub const DOMID_SELF: u16 = 0x7ff0;
/// Pseudo-owner of I/O frames.
pub const DOMID_IO: u16 = 0x7ff1;
/// Pseudo-owner of the hypervisor's own frames.
pub const DOMID_XEN: u16 = 0x7ff2;
/// Pseudo-owner of shared copy-on-write frames.
pub const DOMID_COW: u16 = 0x7ff3;
/// No domain.
pub const DOMID_INVALID: u16 = 0x7ff4;
/// The idle domain.
pub const DOMID_IDLE: u16 = 0x7fff;

/// A domain id: which domain owns a frame, maps a page, is meant by a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DomId(pub u16);

impl DomId {
    /// The calling domain.
    pub const SELF: Self = Self(DOMID_SELF);
    /// Owner of I/O frames.
    pub const IO: Self = Self(DOMID_IO);
    /// Owner of the hypervisor's frames.
    pub const XEN: Self = Self(DOMID_XEN);
    /// Nobody: the owner of free frames.
    pub const INVALID: Self = Self(DOMID_INVALID);

    /// Is it one of the ids that name no ordinary domain?
    pub const fn is_reserved(self) -> bool {
        self.0 >= DOMID_FIRST_RESERVED
    }
}

impl core::fmt::Debug for DomId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "d{}", self.0)
    }
}
