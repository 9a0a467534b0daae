//! Segment selectors and descriptors, IDT gates and the 64-bit TSS (SDM vol. 3A, 3.4, 5.8, 6.14, 7.7).

/// A segment selector: index, table and requested privilege level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Selector(pub u16);

impl Selector {
    /// Requested privilege level, 0..=3.
    #[inline]
    pub const fn rpl(self) -> u8 {
        (self.0 & 3) as u8
    }
    /// Index of the descriptor in its table.
    #[inline]
    pub const fn index(self) -> u16 {
        self.0 >> 3
    }
    /// Index and RPL without effect: selectors 0 to 3.
    #[inline]
    pub const fn is_null(self) -> bool {
        self.0 & !3 == 0
    }
}

/// An eight-byte segment descriptor. System descriptors of 64-bit mode take two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Descriptor(pub u64);

/// Accessed (code and data).
pub const DESC_ACCESSED: u64 = 1 << 40;
/// Writable (data) or readable (code).
pub const DESC_WRITABLE: u64 = 1 << 41;
/// Expand-down (data) or conforming (code).
pub const DESC_CONFORMING: u64 = 1 << 42;
/// Code segment.
pub const DESC_CODE: u64 = 1 << 43;
/// Code or data; clear for a system descriptor.
pub const DESC_S: u64 = 1 << 44;
/// Position of the descriptor privilege level.
pub const DESC_DPL_SHIFT: u32 = 45;
/// Both bits of the descriptor privilege level.
pub const DESC_DPL_MASK: u64 = 3 << DESC_DPL_SHIFT;
/// Present.
pub const DESC_P: u64 = 1 << 47;
/// 64-bit code.
pub const DESC_L: u64 = 1 << 53;
/// Default operand size 32 bits.
pub const DESC_DB: u64 = 1 << 54;
/// The limit counts 4 KiB pages.
pub const DESC_G: u64 = 1 << 55;
/// System type: 64-bit TSS, available.
pub const TYPE_TSS64: u64 = 9;
/// System type: 64-bit call gate.
pub const TYPE_CALL_GATE: u64 = 0xc;
/// System type: LDT.
pub const TYPE_LDT: u64 = 2;

const FLAT: u64 = 0x000f_0000_0000_ffff | DESC_G | DESC_S | DESC_P | DESC_ACCESSED | DESC_WRITABLE;

impl Descriptor {
    /// The null descriptor.
    pub const NULL: Self = Self(0);
    /// Flat 64-bit code, ring 0.
    pub const KERNEL_CODE64: Self = Self(FLAT | DESC_CODE | DESC_L);
    /// Flat data, ring 0.
    pub const KERNEL_DATA: Self = Self(FLAT | DESC_DB);
    /// Flat 32-bit code, ring 3.
    pub const USER_CODE32: Self = Self(FLAT | DESC_CODE | DESC_DB | DESC_DPL_MASK);
    /// Flat 64-bit code, ring 3.
    pub const USER_CODE64: Self = Self(FLAT | DESC_CODE | DESC_L | DESC_DPL_MASK);
    /// Flat data, ring 3.
    pub const USER_DATA: Self = Self(FLAT | DESC_DB | DESC_DPL_MASK);

    /// Low half of a system descriptor (TSS, LDT) for `base`, `limit` bytes minus one, granular in bytes.
    #[must_use]
    pub const fn system_low(kind: u64, base: u64, limit: u32) -> Self {
        let limit = limit as u64;
        Self(
            (limit & 0xffff)
                | ((base & 0x00ff_ffff) << 16)
                | (kind << 40)
                | DESC_P
                | ((limit & 0xf_0000) << 32)
                | ((base & 0xff00_0000) << 32),
        )
    }
    /// High half of a system descriptor for `base`.
    #[must_use]
    pub const fn system_high(base: u64) -> Self {
        Self(base >> 32)
    }
    /// Present?
    pub const fn is_present(self) -> bool {
        self.0 & DESC_P != 0
    }
    /// Code or data, as opposed to a system descriptor?
    pub const fn is_code_or_data(self) -> bool {
        self.0 & DESC_S != 0
    }
    /// Type field, bits 40-43.
    pub const fn kind(self) -> u64 {
        self.0 >> 40 & 0xf
    }
    /// The 32-bit base of a code or data descriptor.
    pub const fn base(self) -> u64 {
        (self.0 >> 16 & 0x00ff_ffff) | (self.0 >> 32 & 0xff00_0000)
    }
    /// Offset of the last byte, expanded by granularity.
    pub const fn limit(self) -> u64 {
        let raw = (self.0 & 0xffff) | (self.0 >> 32 & 0xf_0000);
        if self.0 & DESC_G != 0 {
            raw << 12 | 0xfff
        } else {
            raw
        }
    }
    /// Is it a code or data segment of all 32-bit addresses, in which an offset is a linear address?
    pub const fn is_flat(self) -> bool {
        let expands_down = self.0 & (DESC_CODE | DESC_CONFORMING) == DESC_CONFORMING;
        self.is_present()
            && self.is_code_or_data()
            && !expands_down
            && self.base() == 0
            && self.limit() == u32::MAX as u64
    }
    /// Is it a data segment that may be written?
    pub const fn is_writable_data(self) -> bool {
        self.is_code_or_data() && self.0 & (DESC_CODE | DESC_WRITABLE) == DESC_WRITABLE
    }
    /// Descriptor privilege level.
    pub const fn dpl(self) -> u8 {
        (self.0 >> DESC_DPL_SHIFT & 3) as u8
    }
}

impl core::fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "descriptor {:#018x}", self.0)
    }
}

/// A sixteen-byte interrupt or trap gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct IdtGate {
    /// Low half of the descriptor.
    pub low: u64,
    /// High half of the descriptor: bits 32-63 of the offset.
    pub high: u64,
}

impl IdtGate {
    /// A gate that is not present.
    pub const EMPTY: Self = Self { low: 0, high: 0 };

    /// An interrupt gate (clears IF) to `selector`:`offset`, reachable by `int n` from ring `dpl`, on stack `ist` (0:
    /// none).
    #[must_use]
    pub const fn interrupt(selector: u16, offset: u64, dpl: u8, ist: u8) -> Self {
        Self {
            low: (offset & 0xffff)
                | (selector as u64) << 16
                | ((ist & 7) as u64) << 32
                | 0xe << 40
                | ((dpl & 3) as u64) << DESC_DPL_SHIFT
                | DESC_P
                | (offset & 0xffff_0000) << 32,
            high: offset >> 32,
        }
    }
}

/// The 64-bit task-state segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct Tss64 {
    /// Reserved.
    pub reserved0: u32,
    /// Stacks for entry to rings 0, 1, 2.
    pub rsp: [u64; 3],
    /// Reserved.
    pub reserved1: u64,
    /// Interrupt stacks 1 to 7.
    pub ist: [u64; 7],
    /// Reserved.
    pub reserved2: [u16; 5],
    /// Offset of the I/O bitmap; beyond the limit means that every port is refused.
    pub iomap_base: u16,
}

impl Tss64 {
    /// All stacks zero, no I/O bitmap.
    pub const EMPTY: Self =
        Self { reserved0: 0, rsp: [0; 3], reserved1: 0, ist: [0; 7], reserved2: [0; 5], iomap_base: 0x8000 };
}

/// Operand of LGDT and LIDT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, packed(2))]
pub struct TablePointer {
    /// Bytes minus one.
    pub limit: u16,
    /// Linear address.
    pub base: u64,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Tss64>() == 104);
    assert!(offset_of!(Tss64, rsp) == 4);
    assert!(offset_of!(Tss64, ist) == 36);
    assert!(offset_of!(Tss64, iomap_base) == 102);
    assert!(size_of::<TablePointer>() == 10);
    assert!(size_of::<IdtGate>() == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_descriptors() {
        assert_eq!(Descriptor::KERNEL_CODE64.0, 0x00af_9b00_0000_ffff);
        assert_eq!(Descriptor::KERNEL_DATA.0, 0x00cf_9300_0000_ffff);
        assert_eq!(Descriptor::USER_CODE32.0, 0x00cf_fb00_0000_ffff);
        assert_eq!(Descriptor::USER_CODE64.0, 0x00af_fb00_0000_ffff);
        assert_eq!(Descriptor::USER_DATA.0, 0x00cf_f300_0000_ffff);
    }

    #[test]
    fn which_segments_are_flat() {
        for flat in [Descriptor::USER_CODE32, Descriptor::USER_CODE64, Descriptor::USER_DATA] {
            assert!(flat.is_flat(), "{flat:?}");
            let changed = |bits: u64| Descriptor(flat.0 ^ bits);
            for bits in [1 << 16, 1 << 56, 1, 1 << 48, DESC_G, DESC_P, DESC_S] {
                assert!(!changed(bits).is_flat(), "{:?}", changed(bits));
            }
        }
        let expands_down = Descriptor(Descriptor::USER_DATA.0 | DESC_CONFORMING);
        assert!(!expands_down.is_flat() && Descriptor(Descriptor::USER_CODE32.0 | DESC_CONFORMING).is_flat());
        assert!(Descriptor::USER_DATA.is_writable_data() && !Descriptor::USER_CODE32.is_writable_data());
        assert!(
            !Descriptor(Descriptor::USER_DATA.0 & !DESC_WRITABLE).is_writable_data() && !Descriptor::NULL.is_flat()
        );
    }

    #[test]
    fn system_descriptor_round_trip() {
        let base = 0xffff_82d0_8123_4567;
        let low = Descriptor::system_low(TYPE_TSS64, base, 0x67);
        assert_eq!(low.base(), base & 0xffff_ffff);
        assert_eq!(low.limit(), 0x67);
        assert_eq!(low.kind(), TYPE_TSS64);
        assert!(low.is_present() && !low.is_code_or_data());
        assert_eq!(Descriptor::system_high(base).0, 0xffff_82d0);
    }

    #[test]
    fn gate_fields() {
        let g = IdtGate::interrupt(0xe008, 0xffff_82d0_8123_4567, 3, 2);
        assert_eq!(g.low, 0x8123_ee02_e008_4567);
        assert_eq!(g.high, 0xffff_82d0);
    }
}
