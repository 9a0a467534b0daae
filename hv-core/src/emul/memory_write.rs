//! Instructions that write memory: what they would store, which registers and flags they would change.
//!
//! A guest kernel may write its page tables as if they were writable; each such write faults and ends here. The caller
//! reads the location, calls [`MemoryWrite::evaluate`], commits the new value through the page-table validation
//! (compare-and-exchange against the value read, and again if another CPU was faster), and only then calls
//! [`MemoryWrite::retire`]. So every instruction is atomic, with LOCK or without.

use super::decode::{decode, DecodeError, Decoded, Map};
use super::gpr::{mask, Gpr};
use super::{alu, Fetched, Mode, Segment};
use x86::rflags::Rflags;
use xen_abi::regs::CpuUserRegs;

/// What the instruction does to its memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Mov,
    Stos,
    Xchg,
    Cmpxchg,
    Xadd,
    Add,
    Or,
    Adc,
    Sbb,
    And,
    Sub,
    Xor,
    Inc,
    Dec,
    Not,
    Neg,
    Bts,
    Btr,
    Btc,
}

/// A memory write, decoded.
#[derive(Clone, Copy, Debug)]
pub struct MemoryWrite {
    /// Linear address of the operand, a multiple of `width`.
    pub addr: u64,
    /// 1, 2, 4 or 8 bytes.
    pub width: u8,
    /// Length of the instruction.
    pub len: u8,
    op: Op,
    /// Value of the source operand: register, immediate, or bit number.
    source: u64,
    /// Register operand, for those that write it back.
    register: Gpr,
    /// A string instruction with a repeat prefix: one iteration is emulated at a time.
    repeated: bool,
}

/// What an instruction does, apart from moving on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// What to store; none if the instruction leaves the location alone (a `cmpxchg` that did not match).
    pub new: Option<u64>,
    /// RFLAGS afterwards.
    rflags: u64,
    /// Register to be loaded afterwards, and its value.
    register: Option<(Gpr, u64)>,
}

/// Why a write is not emulated; the guest gets its page fault, or that of the instruction fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// Not decoded.
    Decode(DecodeError),
    /// The operand is not naturally aligned.
    Misaligned,
    /// The instruction does not write the faulting address: it was changed meanwhile, or something else faulted.
    OtherAddress,
}

impl From<DecodeError> for WriteError {
    fn from(e: DecodeError) -> Self {
        Self::Decode(e)
    }
}

impl MemoryWrite {
    /// Decodes the instruction at `regs.rip`, which faulted writing `fault_addr`.
    /// `segment_base` is asked for FS and GS only.
    #[inline]
    pub fn decode(
        regs: &CpuUserRegs,
        fetched: &Fetched,
        fault_addr: u64,
        segment_base: impl FnOnce(Segment) -> u64,
    ) -> Result<Self, WriteError> {
        let d = decode(regs, Mode::Long, fetched)?;
        let (op, width) = operation(&d).ok_or(DecodeError::Unsupported)?;
        if d.prefixes.lock && matches!(op, Op::Mov | Op::Stos) {
            return Err(DecodeError::Unsupported.into());
        }
        let register = d.reg_operand(width);
        let (source, displaced) = source(&d, op, width, regs, register);
        let mut addr = match (op, d.offset) {
            // A 32-bit rdi or rcx is not worth the code: nobody clears page tables with it.
            (Op::Stos, _) if d.prefixes.address_size => return Err(DecodeError::Unsupported.into()),
            (Op::Stos, _) => regs.rdi,
            (_, Some(offset)) => offset.wrapping_add(displaced) & d.address_mask(Mode::Long),
            (_, None) => return Err(DecodeError::Unsupported.into()),
        };
        if let (Some(segment), true) = (d.segment, op != Op::Stos) {
            addr = addr.wrapping_add(segment_base(segment));
        }
        if addr & u64::from(width - 1) != 0 {
            return Err(WriteError::Misaligned);
        }
        let repeated = op == Op::Stos && d.prefixes.repeat.is_some();
        if fault_addr.wrapping_sub(addr) >= width.into() || repeated && regs.rcx == 0 {
            return Err(WriteError::OtherAddress);
        }
        Ok(Self { addr, width, len: d.len, op, source, register, repeated })
    }

    /// Does the new value depend on the old one? If not, any `old` will do for [`MemoryWrite::evaluate`].
    #[inline]
    pub const fn reads_memory(&self) -> bool {
        !matches!(self.op, Op::Mov | Op::Stos)
    }

    /// What the instruction makes of a location of `width` bytes that holds `old`. Changes nothing.
    #[inline]
    pub fn evaluate(&self, regs: &CpuUserRegs, old: u64) -> Effect {
        let (w, src) = (self.width, self.source);
        let keep = |new: u64| Effect { new: Some(new), rflags: regs.rflags, register: None };
        if matches!(self.op, Op::Mov | Op::Stos) {
            return keep(src);
        }
        let old = old & mask(w);
        let carry = regs.rflags & Rflags::CF.bits() != 0;
        let all = Rflags::ARITHMETIC.bits();
        let all_but_carry = all & !Rflags::CF.bits();
        let set = |r: alu::Flagged, changed: u64| Effect {
            new: Some(r.value),
            rflags: regs.rflags & !changed | r.flags & changed,
            register: None,
        };
        match self.op {
            Op::Mov | Op::Stos => keep(src),
            Op::Xchg => Effect { register: Some((self.register, old)), ..keep(src) },
            Op::Cmpxchg => {
                let r = alu::sub(w, Gpr::RAX.read(regs, w), old, false);
                if r.value == 0 {
                    Effect { new: Some(src), ..set(r, all) }
                } else {
                    Effect { new: None, register: Some((Gpr::RAX, old)), ..set(r, all) }
                }
            }
            Op::Xadd => Effect { register: Some((self.register, old)), ..set(alu::add(w, old, src, false), all) },
            Op::Add => set(alu::add(w, old, src, false), all),
            Op::Adc => set(alu::add(w, old, src, carry), all),
            Op::Sub => set(alu::sub(w, old, src, false), all),
            Op::Sbb => set(alu::sub(w, old, src, carry), all),
            Op::And => set(alu::logic(w, old & src), all),
            Op::Or => set(alu::logic(w, old | src), all),
            Op::Xor => set(alu::logic(w, old ^ src), all),
            Op::Inc => set(alu::add(w, old, 1, false), all_but_carry),
            Op::Dec => set(alu::sub(w, old, 1, false), all_but_carry),
            Op::Neg => set(alu::sub(w, 0, old, false), all),
            Op::Not => keep(!old & mask(w)),
            Op::Bts => set(alu::bit(old, src, old | 1 << src), Rflags::CF.bits()),
            Op::Btr => set(alu::bit(old, src, old & !(1 << src)), Rflags::CF.bits()),
            Op::Btc => set(alu::bit(old, src, old ^ 1 << src), Rflags::CF.bits()),
        }
    }

    /// Completes the instruction after its store: registers, flags, instruction pointer.
    /// Returns whether the guest single-steps and so is to get a #DB.
    #[inline]
    pub fn retire(&self, regs: &mut CpuUserRegs, effect: &Effect) -> bool {
        if let Some((register, value)) = effect.register {
            register.write(regs, self.width, value);
        }
        regs.rflags = effect.rflags & !Rflags::RF.bits();
        if self.op == Op::Stos {
            let step = u64::from(self.width);
            let down = regs.rflags & Rflags::DF.bits() != 0;
            regs.rdi = if down { regs.rdi.wrapping_sub(step) } else { regs.rdi.wrapping_add(step) };
            if self.repeated {
                regs.rcx = regs.rcx.wrapping_sub(1);
            }
        }
        if !self.repeated || regs.rcx == 0 {
            regs.rip = regs.rip.wrapping_add(self.len.into());
        }
        regs.rflags & Rflags::TF.bits() != 0
    }
}

/// Operation and operand width; none for instructions of the same opcode group that do not write memory.
#[inline]
fn operation(d: &Decoded) -> Option<(Op, u8)> {
    /// Opcode bits 3-5, or ModRM.reg of the immediate group. The eighth, cmp, does not write.
    const ARITHMETIC: [Op; 7] = [Op::Add, Op::Or, Op::Adc, Op::Sbb, Op::And, Op::Sub, Op::Xor];
    Some(match (d.map, d.opcode) {
        (Map::Primary, 0x88 | 0x89 | 0xa2 | 0xa3) => (Op::Mov, d.width()),
        (Map::Primary, 0x86 | 0x87) => (Op::Xchg, d.width()),
        (Map::Primary, op @ 0x00..=0x37) => (*ARITHMETIC.get(usize::from(op >> 3))?, d.width()),
        (Map::Primary, 0x80 | 0x81 | 0x83) => (*ARITHMETIC.get(usize::from(d.group()))?, d.width()),
        (Map::Primary, 0xc6 | 0xc7) if d.group() == 0 => (Op::Mov, d.width()),
        (Map::Primary, 0xaa | 0xab) => (Op::Stos, d.width()),
        (Map::Primary, 0xf6 | 0xf7) if d.group() == 2 => (Op::Not, d.width()),
        (Map::Primary, 0xf6 | 0xf7) if d.group() == 3 => (Op::Neg, d.width()),
        (Map::Primary, 0xfe | 0xff) if d.group() == 0 => (Op::Inc, d.width()),
        (Map::Primary, 0xfe | 0xff) if d.group() == 1 => (Op::Dec, d.width()),
        (Map::Secondary, 0xb0 | 0xb1) => (Op::Cmpxchg, d.width()),
        (Map::Secondary, 0xc0 | 0xc1) => (Op::Xadd, d.width()),
        (Map::Secondary, 0xab) => (Op::Bts, d.full_width()),
        (Map::Secondary, 0xb3) => (Op::Btr, d.full_width()),
        (Map::Secondary, 0xbb) => (Op::Btc, d.full_width()),
        (Map::Secondary, 0xba) if d.group() == 5 => (Op::Bts, d.full_width()),
        (Map::Secondary, 0xba) if d.group() == 6 => (Op::Btr, d.full_width()),
        (Map::Secondary, 0xba) if d.group() == 7 => (Op::Btc, d.full_width()),
        // movnti has no 16-bit form, and F2 and F3 make it another instruction.
        (Map::Secondary, 0xc3) if !d.prefixes.operand_size && d.prefixes.repeat.is_none() => (Op::Mov, d.full_width()),
        _ => return None,
    })
}

/// Value of the source operand, and what a bit number in a register adds to the address.
#[inline]
fn source(d: &Decoded, op: Op, width: u8, regs: &CpuUserRegs, register: Gpr) -> (u64, u64) {
    let bit_mask = 8 * u64::from(width) - 1;
    match (d.map, d.opcode) {
        (Map::Primary, 0xa2 | 0xa3 | 0xaa | 0xab) => (Gpr::RAX.read(regs, width), 0),
        (Map::Primary, 0x80 | 0x81 | 0x83 | 0xc6 | 0xc7) => (d.imm & mask(width), 0),
        (Map::Secondary, 0xba) => (d.imm & bit_mask, 0),
        _ if matches!(op, Op::Bts | Op::Btr | Op::Btc) => {
            let bit = register.read(regs, width);
            (bit & bit_mask, word_displacement(bit, width))
        }
        _ => (register.read(regs, width), 0),
    }
}

/// How far the operand-sized word with bit `bit`, a signed number of `width` bytes, is from the addressed one.
#[inline]
#[allow(clippy::cast_possible_wrap, clippy::cast_sign_loss, reason = "bit numbers are signed")]
fn word_displacement(bit: u64, width: u8) -> u64 {
    let unused = 64 - 8 * u32::from(width);
    let bit = (bit << unused) as i64 >> unused;
    (bit >> 3) as u64 & !u64::from(width - 1)
}

#[cfg(test)]
mod tests;
