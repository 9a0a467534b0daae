//! What an instruction consists of, as far as the rules ask.

/// What an instruction does. Conditions are not told apart where no rule asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is named as in the processor manuals")]
#[rustfmt::skip]
pub enum Op {
    Add, Or, Adc, Sbb, And, Sub, Xor, Cmp, Test, Not, Neg, Inc, Dec,
    Mov, Movzx, Movsx, Movsxd, Lea, Xchg, Xadd, Cmpxchg, Bswap, Cmov, Set,
    Mul, Imul, Div, Idiv,
    Rol, Ror, Rcl, Rcr, Shl, Shr, Sar, Shld, Shrd,
    Bt, Bts, Btr, Btc, Bsf, Bsr, Popcnt, Tzcnt, Lzcnt,
    Pext, Bzhi, Andn, Rorx, Shlx, Shrx, Sarx,
    /// `cbw`, `cwde`, `cdqe`.
    Widen,
    /// `cwd`, `cdq`, `cqo`.
    Spread,
    Lahf, Sahf,
    /// `clc`, `stc`, `cmc`.
    Carry,
    Nop, Pause,
    /// `lfence`, `mfence`, `sfence`.
    Fence,
    Prefetch,
    Movs, Cmps, Stos, Lods, Scas,
    Push, Pop,
    Jmp,
    /// With the condition's number.
    Jcc(u8),
    Call, Ret, Ud2,
}

/// Condition of `ja`.
pub const ABOVE: u8 = 7;
/// Condition of `jae`.
pub const ABOVE_OR_EQUAL: u8 = 3;
/// Condition of `js`.
pub const SIGN: u8 = 8;

/// A general-purpose register, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its number; ah to bh are parts of 0 to 3.
    pub number: u8,
    /// Bytes.
    pub width: u8,
    /// Second byte: ah to bh.
    pub is_high: bool,
}

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Register(Register),
    /// The memory operand.
    Memory,
    /// A constant, extended as the instruction does, or else with zeroes.
    Constant(u64),
    /// Where a direct jump or call goes, as a code offset.
    Target(u64),
}

/// What a memory operand's address starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Nothing.
    Zero,
    /// The next instruction; the displacement is the code offset that it comes to.
    Rip,
    /// A 64-bit register.
    Register(u8),
}

/// A memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub base: Base,
    pub index: Option<u8>,
    pub scale: u32,
    pub displacement: i64,
    /// Bytes that are accessed.
    pub size: u8,
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    pub op: Op,
    pub operands: [Option<Operand>; 3],
    pub memory: Option<Memory>,
    pub lock: bool,
    /// String instructions: repeated.
    pub repeat: bool,
    /// String instructions: bytes of one step.
    pub size: u8,
    /// Code offset.
    pub at: usize,
    /// Bytes.
    pub len: usize,
}

impl Instruction {
    /// Operand `n`, if it is a register.
    pub fn register(&self, n: usize) -> Option<Register> {
        match self.operands.get(n) {
            Some(Some(Operand::Register(register))) => Some(*register),
            _ => None,
        }
    }

    /// Its number.
    pub fn number(&self, n: usize) -> Option<usize> {
        self.register(n).map(|register| usize::from(register.number))
    }

    /// Its number if it is a whole register.
    pub fn number64(&self, n: usize) -> Option<usize> {
        self.register(n).filter(|register| register.width == 8).map(|register| usize::from(register.number))
    }

    /// Its number if it is the lower half of one.
    pub fn number32(&self, n: usize) -> Option<usize> {
        self.register(n).filter(|register| register.width == 4).map(|register| usize::from(register.number))
    }

    /// The constant that is the second operand.
    pub fn constant(&self) -> Option<u64> {
        match self.operands {
            [_, Some(Operand::Constant(value)), _] => Some(value),
            _ => None,
        }
    }

    /// Where a direct jump or call goes.
    pub fn target(&self) -> Option<u64> {
        match self.operands {
            [Some(Operand::Target(to)), ..] => Some(to),
            _ => None,
        }
    }

    /// Whether operand `n` is the memory operand.
    pub fn is_memory(&self, n: usize) -> bool {
        self.operands.get(n) == Some(&Some(Operand::Memory))
    }
}
