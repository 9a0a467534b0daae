//! General registers by instruction number, with the partial-register rules of 64-bit mode (SDM vol. 1, 3.4.1).

use xen_abi::regs::CpuUserRegs;

/// All bits of an operand of `width` bytes (1, 2, 4 or 8).
#[inline]
pub const fn mask(width: u8) -> u64 {
    u64::MAX >> (64 - 8 * width as u32)
}

/// A register operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpr {
    /// 0 rax, 1 rcx, 2 rdx, 3 rbx, 4 rsp, 5 rbp, 6 rsi, 7 rdi, 8..=15.
    pub index: u8,
    /// ah, ch, dh or bh: bits 8-15 of registers 0-3.
    pub high_byte: bool,
}

impl Gpr {
    /// rax, eax, ax, al.
    pub const RAX: Self = Self::full(0);

    /// Register `index` counted from bit 0.
    #[inline]
    pub const fn full(index: u8) -> Self {
        Self { index, high_byte: false }
    }
    /// Register `index` as an operand of `width`: without a REX prefix, byte registers 4-7 are the high bytes.
    #[inline]
    pub const fn operand(index: u8, width: u8, has_rex: bool) -> Self {
        if width == 1 && !has_rex && index & !3 == 4 {
            Self { index: index & 3, high_byte: true }
        } else {
            Self::full(index)
        }
    }
    /// Its value, zero-extended from `width` bytes.
    #[inline]
    pub fn read(self, regs: &CpuUserRegs, width: u8) -> u64 {
        let value = get(regs, self.index);
        (if self.high_byte { value >> 8 } else { value }) & mask(width)
    }
    /// Writes the low `width` bytes of `value`. Four bytes clear the upper half; one and two leave the rest alone.
    #[inline]
    pub fn write(self, regs: &mut CpuUserRegs, width: u8, value: u64) {
        let slot = slot(regs, self.index);
        *slot = match (width, self.high_byte) {
            (1, true) => *slot & !0xff00 | (value & 0xff) << 8,
            (1 | 2, _) => *slot & !mask(width) | value & mask(width),
            _ => value & mask(width),
        };
    }
}

/// All 64 bits of register `index` (modulo 16).
#[inline]
pub fn get(regs: &CpuUserRegs, index: u8) -> u64 {
    match index & 15 {
        0 => regs.rax,
        1 => regs.rcx,
        2 => regs.rdx,
        3 => regs.rbx,
        4 => regs.rsp,
        5 => regs.rbp,
        6 => regs.rsi,
        7 => regs.rdi,
        8 => regs.r8,
        9 => regs.r9,
        10 => regs.r10,
        11 => regs.r11,
        12 => regs.r12,
        13 => regs.r13,
        14 => regs.r14,
        _ => regs.r15,
    }
}

/// Register `index` (modulo 16) for writing.
#[inline]
pub fn slot(regs: &mut CpuUserRegs, index: u8) -> &mut u64 {
    match index & 15 {
        0 => &mut regs.rax,
        1 => &mut regs.rcx,
        2 => &mut regs.rdx,
        3 => &mut regs.rbx,
        4 => &mut regs.rsp,
        5 => &mut regs.rbp,
        6 => &mut regs.rsi,
        7 => &mut regs.rdi,
        8 => &mut regs.r8,
        9 => &mut regs.r9,
        10 => &mut regs.r10,
        11 => &mut regs.r11,
        12 => &mut regs.r12,
        13 => &mut regs.r13,
        14 => &mut regs.r14,
        _ => &mut regs.r15,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_writes() {
        let mut regs = CpuUserRegs { rax: 0x1122_3344_5566_7788, ..Default::default() };
        Gpr::operand(4, 1, false).write(&mut regs, 1, 0xaa);
        assert_eq!(regs.rax, 0x1122_3344_5566_aa88);
        Gpr::RAX.write(&mut regs, 2, 0xf_bbbb);
        assert_eq!(regs.rax, 0x1122_3344_5566_bbbb);
        Gpr::RAX.write(&mut regs, 4, 0xcccc_cccc);
        assert_eq!(regs.rax, 0xcccc_cccc);
        Gpr::operand(4, 1, true).write(&mut regs, 1, 0x7);
        assert_eq!(regs.rsp, 7, "with REX it is spl");
    }

    #[test]
    fn every_register_reads_what_was_written() {
        let mut regs = CpuUserRegs::default();
        for i in 0..16 {
            Gpr::full(i).write(&mut regs, 8, 0x100 + u64::from(i));
        }
        for i in 0..16 {
            assert_eq!(Gpr::full(i).read(&regs, 8), 0x100 + u64::from(i));
        }
        assert_eq!((regs.rsp, regs.rdi, regs.r8, regs.r15), (0x104, 0x107, 0x108, 0x10f));
    }
}
