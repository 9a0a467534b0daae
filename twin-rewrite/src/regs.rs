//! Sets of registers and flags, and what each instruction reads and writes.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, RflagsBits};
use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// A set over the sixteen general registers (bits 0-15, in encoding order) and six status flags (bits 16-21).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegSet(pub u32);

impl RegSet {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The status flags.
    pub const FLAGS: Self = Self(0x3f << 16);
    /// Every general register.
    pub const GENERAL: Self = Self(0xffff);
    /// The stack pointer.
    pub const RSP: Self = Self(1 << 4);
    /// Registers in which arguments are passed.
    pub const ARGUMENTS: Self = Self(1 << 7 | 1 << 6 | 1 << 2 | 1 << 1 | 1 << 8 | 1 << 9);
    /// Registers that a callee keeps.
    pub const CALLEE_SAVED: Self = Self(1 << 3 | 1 << 5 | 0xf << 12 | 1 << 4);
    /// Registers that a call may change.
    pub const CALLER_SAVED: Self = Self(1 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 0xf << 8);
    /// Registers that carry a result.
    pub const RESULTS: Self = Self(1 | 1 << 2);

    /// The set of one general register, by number.
    pub const fn one(number: u8) -> Self {
        Self(1 << number)
    }

    /// Whether general register `number` is in the set.
    pub const fn has(self, number: u8) -> bool {
        self.0 >> number & 1 != 0
    }

    /// Whether the sets share a member.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether nothing is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The general registers of the set, by number.
    pub fn general(self) -> impl Iterator<Item = u8> {
        (0..16u8).filter(move |n| self.has(*n))
    }
}

impl BitOr for RegSet {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for RegSet {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for RegSet {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Not for RegSet {
    type Output = Self;
    fn not(self) -> Self {
        Self(!self.0 & 0x3f_ffff)
    }
}

/// Encoding number of a general register of any width; `None` for anything else.
pub fn number(register: Register) -> Option<u8> {
    let full = register.full_register();
    (full.is_gpr64()).then(|| full.number() as u8)
}

/// The 64-bit register of a number.
pub fn register(number: u8) -> Register {
    Register::RAX + u32::from(number)
}

/// Encoding number of the stack pointer.
pub const RSP: u8 = 4;

/// What an instruction does to registers and flags, calls apart.
#[derive(Debug, Clone, Copy, Default)]
pub struct Effect {
    /// Read (including what a partial write leaves).
    pub reads: RegSet,
    /// Written entirely: the old value is dead before the instruction unless also read.
    pub kills: RegSet,
    /// Written in any way.
    pub writes: RegSet,
}

fn flags(bits: u32) -> RegSet {
    let order = [RflagsBits::CF, RflagsBits::PF, RflagsBits::AF, RflagsBits::ZF, RflagsBits::SF, RflagsBits::OF];
    let mut out = 0;
    for (i, flag) in order.iter().enumerate() {
        if bits & flag != 0 {
            out |= 1 << (16 + i);
        }
    }
    RegSet(out)
}

/// The effect of `i`.
pub fn effect(i: &Instruction, factory: &mut InstructionInfoFactory) -> Effect {
    let info = factory.info(i);
    let mut e = Effect::default();
    for used in info.used_registers() {
        let Some(n) = number(used.register()) else { continue };
        let one = RegSet::one(n);
        match used.access() {
            OpAccess::Read | OpAccess::CondRead => e.reads |= one,
            OpAccess::Write => {
                e.writes |= one;
                if used.register().size() >= 4 {
                    e.kills |= one;
                }
            }
            OpAccess::ReadWrite => {
                e.reads |= one;
                e.writes |= one;
            }
            OpAccess::CondWrite | OpAccess::ReadCondWrite => {
                e.reads |= one;
                e.writes |= one;
            }
            _ => {}
        }
    }
    e.reads |= flags(i.rflags_read());
    let modified = flags(i.rflags_modified());
    e.writes |= modified;
    if !counts_by_register(i) {
        e.kills |= modified;
    }
    e
}

/// Shifts by a register leave the flags alone when the count is zero; so do repeated string comparisons.
fn counts_by_register(i: &Instruction) -> bool {
    let shift = matches!(
        i.mnemonic(),
        Mnemonic::Shl
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    );
    (shift && (0..i.op_count()).any(|k| i.op_register(k) == Register::CL)) || i.has_rep_prefix() || i.has_repne_prefix()
}
