//! Integer arithmetic with the flags that the CPU computes (SDM vol. 1, appendix A).
//!
//! Where the manual leaves a flag undefined, the value is what processors do in practice: AF is cleared by logic
//! operations, and bit tests change CF only.

use crate::emul::gpr::mask;
use x86::rflags::Rflags;

/// A result and the arithmetic flags that go with it (all others clear).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flagged {
    /// Result, cut to the operand's width.
    pub value: u64,
    /// CF, PF, AF, ZF, SF, OF.
    pub flags: u64,
}

/// `a + b + carry`.
#[inline]
pub fn add(width: u8, a: u64, b: u64, carry: bool) -> Flagged {
    let r = a.wrapping_add(b).wrapping_add(carry.into()) & mask(width);
    let carries = a & b | (a | b) & !r;
    Flagged { value: r, flags: result_flags(width, r) | carry_flags(width, carries, (a ^ r) & (b ^ r)) }
}

/// `a - b - borrow`.
#[inline]
pub fn sub(width: u8, a: u64, b: u64, borrow: bool) -> Flagged {
    let r = a.wrapping_sub(b).wrapping_sub(borrow.into()) & mask(width);
    let borrows = !a & b | (!a | b) & r;
    Flagged { value: r, flags: result_flags(width, r) | carry_flags(width, borrows, (a ^ b) & (a ^ r)) }
}

/// The flags of a logic operation with result `r`.
#[inline]
pub fn logic(width: u8, r: u64) -> Flagged {
    let r = r & mask(width);
    Flagged { value: r, flags: result_flags(width, r) }
}

/// `value` as the result of a bit instruction that copied bit `index` of `old` to CF.
#[inline]
pub fn bit(old: u64, index: u64, value: u64) -> Flagged {
    Flagged { value, flags: old >> index & 1 }
}

/// PF, ZF and SF of `r`.
#[inline]
fn result_flags(width: u8, r: u64) -> u64 {
    let mut flags = Rflags::empty();
    flags.set(Rflags::PF, (r & 0xff).count_ones().is_multiple_of(2));
    flags.set(Rflags::ZF, r == 0);
    flags.set(Rflags::SF, sign(width, r));
    flags.bits()
}

/// CF and AF from the carry out of each bit, OF from the sign of `overflow`.
#[inline]
fn carry_flags(width: u8, carries: u64, overflow: u64) -> u64 {
    let mut flags = Rflags::empty();
    flags.set(Rflags::CF, sign(width, carries));
    flags.set(Rflags::AF, carries & 8 != 0);
    flags.set(Rflags::OF, sign(width, overflow));
    flags.bits()
}

/// The top bit of an operand of `width` bytes.
#[inline]
fn sign(width: u8, value: u64) -> bool {
    value >> (8 * u32::from(width) - 1) & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const CF: u64 = 1;
    const PF: u64 = 4;
    const AF: u64 = 0x10;
    const ZF: u64 = 0x40;
    const SF: u64 = 0x80;
    const OF: u64 = 0x800;

    #[test]
    fn known_sums() {
        assert_eq!(add(1, 0xff, 1, false), Flagged { value: 0, flags: CF | PF | AF | ZF });
        assert_eq!(add(1, 0x7f, 1, false), Flagged { value: 0x80, flags: AF | SF | OF });
        assert_eq!(add(8, u64::MAX, 0, true), Flagged { value: 0, flags: CF | PF | AF | ZF });
        assert_eq!(sub(4, 0, 1, false), Flagged { value: 0xffff_ffff, flags: CF | PF | AF | SF });
        assert_eq!(sub(2, 0x8000, 1, false), Flagged { value: 0x7fff, flags: PF | AF | OF });
        assert_eq!(logic(1, 0x180), Flagged { value: 0x80, flags: SF });
    }
}
