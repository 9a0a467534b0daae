//! Page-table entries of four-level paging (SDM vol. 3A, 4.5).

use crate::addr::{MachAddr, Mfn, PAGE_SHIFT};

bitflags::bitflags! {
    /// Flag bits of an entry. Bits 9-11 and 52-58 are free for software.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PteFlags: u64 {
        /// Present.
        const P = 1 << 0;
        /// Writable.
        const RW = 1 << 1;
        /// Accessible at ring 3.
        const US = 1 << 2;
        /// Page-level write-through.
        const PWT = 1 << 3;
        /// Page-level cache disable.
        const PCD = 1 << 4;
        /// Accessed.
        const A = 1 << 5;
        /// Dirty (leaf entries).
        const D = 1 << 6;
        /// Large page in L2 and L3; the PAT bit in L1.
        const PSE_PAT = 1 << 7;
        /// Global.
        const G = 1 << 8;
        /// Software bits 9-11.
        const AVL = 7 << 9;
        /// Software bits 52-58.
        const AVL_HIGH = 0x7f << 52;
        /// Mark of a guest-kernel page: the guest asked for a supervisor page and got a user page (Xen's
        /// `_PAGE_GUEST_KERNEL`).
        const GUEST_KERNEL = 1 << 52;
        /// Execute disable.
        const NX = 1 << 63;
    }
}

/// Bits 12..51: the frame.
pub const PTE_ADDR_MASK: u64 = 0x000f_ffff_ffff_f000;

/// One page-table entry of any level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Pte(pub u64);

impl Pte {
    /// The empty entry.
    pub const EMPTY: Self = Self(0);

    /// An entry for `mfn` with `flags`.
    pub const fn new(mfn: Mfn, flags: PteFlags) -> Self {
        Self(((mfn.raw() << PAGE_SHIFT) & PTE_ADDR_MASK) | flags.bits())
    }
    /// The frame in the address bits, whether present or not.
    pub const fn mfn(self) -> Mfn {
        Mfn::containing(MachAddr::new(self.0 & PTE_ADDR_MASK))
    }
    /// All bits that are no address bits.
    pub const fn flags(self) -> PteFlags {
        PteFlags::from_bits_retain(self.0 & !PTE_ADDR_MASK)
    }
    /// Present?
    pub const fn is_present(self) -> bool {
        self.0 & PteFlags::P.bits() != 0
    }
    /// Present or not, is the writable bit set?
    pub const fn is_writable(self) -> bool {
        self.0 & PteFlags::RW.bits() != 0
    }
    /// Are all of `flags` set?
    pub const fn contains(self, flags: PteFlags) -> bool {
        self.0 & flags.bits() == flags.bits()
    }
    /// The entry with `flags` added.
    #[must_use]
    pub const fn with(self, flags: PteFlags) -> Self {
        Self(self.0 | flags.bits())
    }
    /// The entry with `flags` taken away.
    #[must_use]
    pub const fn without(self, flags: PteFlags) -> Self {
        Self(self.0 & !flags.bits())
    }
}

impl core::fmt::Debug for Pte {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "pte {:#018x}", self.0)
    }
}

/// Level of a page table: 1 maps 4 KiB pages, 4 is the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "Xen's names")]
pub enum Level {
    L1 = 1,
    L2 = 2,
    L3 = 3,
    L4 = 4,
}

impl Level {
    /// The level of the tables that this level's entries point to; none below L1.
    pub const fn below(self) -> Option<Level> {
        match self {
            Level::L1 => None,
            Level::L2 => Some(Level::L1),
            Level::L3 => Some(Level::L2),
            Level::L4 => Some(Level::L3),
        }
    }
}
