//! Frame numbers and addresses, each a type of its own, so that a machine frame is never taken for a guest's.

use core::fmt;

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

macro_rules! frame_number {
    ($(#[$doc:meta])* $name:ident, $tag:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The all-ones number, which names no frame.
            pub const INVALID: Self = Self(!0);

            /// Wraps a raw frame number.
            pub const fn new(raw: u64) -> Self {
                Self(raw)
            }
            /// The raw frame number.
            pub const fn raw(self) -> u64 {
                self.0
            }
            /// The raw frame number as an index. Frame numbers have at most 40 bits, so this loses nothing.
            #[allow(clippy::cast_possible_truncation, reason = "usize has 64 bits here")]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
            /// The frame `n` frames on, wrapping.
            #[must_use]
            pub const fn add(self, n: u64) -> Self {
                Self(self.0.wrapping_add(n))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($tag, " {:#x}"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

frame_number!(
    /// A machine frame: a real page of memory or of I/O space.
    Mfn, "mfn"
);
frame_number!(
    /// A pseudo-physical frame: a guest's own numbering of its memory.
    Pfn, "pfn"
);
frame_number!(
    /// What a guest writes in its page tables; for PV guests the same number as the machine frame.
    Gfn, "gfn"
);

impl Mfn {
    /// The frame that holds machine address `addr`.
    pub const fn containing(addr: MachAddr) -> Self {
        Self(addr.0 >> PAGE_SHIFT)
    }
    /// The machine address of the frame's first byte.
    pub const fn addr(self) -> MachAddr {
        MachAddr(self.0 << PAGE_SHIFT)
    }
}

/// A machine (physical) address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct MachAddr(u64);

impl MachAddr {
    /// Wraps a raw machine address.
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }
    /// The raw address.
    pub const fn raw(self) -> u64 {
        self.0
    }
    /// Byte offset inside its page.
    pub const fn page_offset(self) -> u64 {
        self.0 & (PAGE_SIZE as u64 - 1)
    }
}

impl fmt::Debug for MachAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "maddr {:#x}", self.0)
    }
}

/// A virtual address; always canonical for four-level paging.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct VirtAddr(u64);

impl VirtAddr {
    /// Accepts canonical addresses only: bits 63..47 all equal.
    pub const fn new(raw: u64) -> Option<Self> {
        if is_canonical(raw) {
            Some(Self(raw))
        } else {
            None
        }
    }
    /// The raw address.
    pub const fn raw(self) -> u64 {
        self.0
    }
    /// Byte offset inside its page.
    pub const fn page_offset(self) -> u64 {
        self.0 & (PAGE_SIZE as u64 - 1)
    }
    /// Index into the table of `level` (1..=4) that maps this address.
    #[allow(clippy::cast_possible_truncation, reason = "masked to nine bits")]
    pub const fn table_index(self, level: u32) -> usize {
        ((self.0 >> (PAGE_SHIFT + 9 * (level - 1))) & 0x1ff) as usize
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vaddr {:#x}", self.0)
    }
}

/// Whether bits 63..47 of `raw` are all equal (four-level paging).
#[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, reason = "sign extension is the point")]
pub const fn is_canonical(raw: u64) -> bool {
    ((raw << 16) as i64 >> 16) as u64 == raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canonical_border() {
        assert!(is_canonical(0x0000_7fff_ffff_ffff));
        assert!(!is_canonical(0x0000_8000_0000_0000));
        assert!(!is_canonical(0xffff_7fff_ffff_ffff));
        assert!(is_canonical(0xffff_8000_0000_0000));
    }

    #[test]
    fn table_indices_of_kernel_text() {
        let v = VirtAddr::new(0xffff_ffff_8100_0000).unwrap();
        assert_eq!([4, 3, 2, 1].map(|l| v.table_index(l)), [511, 510, 8, 0]);
    }
}
