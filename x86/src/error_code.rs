//! Error codes that the CPU pushes (SDM vol. 3A, 4.7 and 6.13).

use crate::rflags::Rflags;

bitflags::bitflags! {
    /// Error code of a page fault.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct PageFaultError: u32 {
        /// The page was present: a rights violation. Clear: not present.
        const P = 1 << 0;
        /// The access was a write.
        const W = 1 << 1;
        /// The access was made at CPL 3.
        const U = 1 << 2;
        /// A reserved bit is set in an entry.
        const RSVD = 1 << 3;
        /// The access was an instruction fetch.
        const I = 1 << 4;
        /// Protection key.
        const PK = 1 << 5;
        /// Shadow-stack access.
        const SSTK = 1 << 6;
    }
}

impl PageFaultError {
    /// Whether a fault of ring 0 at an address of ring 3 can only be its own mistake: it executed what is there or,
    /// with SMAP, touched it while EFLAGS.AC was clear. Whatever the page tables say, trying again would not help.
    #[inline]
    pub const fn is_stray(self, rflags: u64, has_smap: bool) -> bool {
        self.contains(Self::I) || has_smap && rflags & Rflags::AC.bits() == 0
    }
}

bitflags::bitflags! {
    /// Low bits of the error code of #TS, #NP, #SS and #GP; the selector index is in bits 3-15.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct SelectorError: u32 {
        /// The event came from outside the program.
        const EXT = 1 << 0;
        /// The index names an IDT gate.
        const IDT = 1 << 1;
        /// The index is into the LDT.
        const TI = 1 << 2;
    }
}

/// The vector of the IDT gate that an error code names, if it names one and the event was the program's own.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "masked to eight bits")]
pub const fn idt_vector(error_code: u32) -> Option<u8> {
    let kind = error_code & (SelectorError::EXT.bits() | SelectorError::IDT.bits());
    if kind == SelectorError::IDT.bits() && error_code < 0x800 {
        Some((error_code >> 3 & 0xff) as u8)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_0_strays() {
        let read = PageFaultError::P;
        assert!(read.is_stray(0x2, true), "AC is clear");
        assert!(!read.is_stray(0x4_0002, true), "a copy whose page has other rights");
        assert!(!read.is_stray(0x2, false), "without SMAP AC means nothing");
        assert!(PageFaultError::I.is_stray(0x4_0002, false), "ring 0 never executes pages of ring 3");
    }

    #[test]
    fn int_n_error_code() {
        assert_eq!(idt_vector(0x80 << 3 | 2), Some(0x80));
        assert_eq!(idt_vector(0), None);
        assert_eq!(idt_vector(0x80 << 3 | 3), None, "external event");
        assert_eq!(idt_vector(0x1000 | 2), None, "beyond the IDT");
    }
}
