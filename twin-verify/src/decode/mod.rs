//! What may be an instruction: prefixes, the allow-list, and the operands of what is on it (rules D).
//!
//! This decodes the instructions of the allow-list and nothing else, so it is small enough to be read against the
//! processor manuals (Intel SDM volume 2, chapter 2 and appendix A). Whatever it accepts, two other decoders take for
//! the same: that is tested over all prefixes, opcodes and forms of operands (`fuzzing/compare.rs`).

pub mod instruction;
mod opcodes;

use crate::Rule;
use instruction::{Base, Instruction, Memory, Op, Operand, Register};
use opcodes::Shape as S;

/// How an instruction is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Reads its operands.
    Reads,
    /// Writes its first operand, may read all.
    Writes,
    /// Writes its first two operands.
    Exchanges,
    /// Has no explicit operand; writes this register (hardware number), 16 for none.
    Implicit(u8),
    /// `mul`, `div` and the like: writes rax and rdx; `imul` with more operands writes the first.
    Multiplies,
    /// `cmpxchg`: writes its first operand and rax.
    CompareExchange,
    /// `bt` and the like, whose bit offset may move the address (M5).
    Bits,
    /// String instruction.
    String,
    /// `push` and `pop`.
    Stack,
    /// Ends or diverts the flow of control.
    Flow,
    /// Takes an address that is not accessed.
    Address,
}

/// One decoded instruction with how it is treated.
pub struct Decoded {
    pub instruction: Instruction,
    pub class: Class,
}

type Fault = (Rule, &'static str, i64);

fn classify(op: Op) -> Class {
    use Op as O;
    match op {
        O::Cmp | O::Test | O::Prefetch => Class::Reads,
        O::Xchg | O::Xadd => Class::Exchanges,
        O::Cmpxchg => Class::CompareExchange,
        O::Mul | O::Imul | O::Div | O::Idiv => Class::Multiplies,
        O::Bt | O::Bts | O::Btr | O::Btc => Class::Bits,
        O::Widen | O::Lahf => Class::Implicit(0),
        O::Spread => Class::Implicit(2),
        O::Sahf | O::Carry | O::Pause | O::Fence => Class::Implicit(16),
        O::Movs | O::Cmps | O::Stos | O::Lods | O::Scas => Class::String,
        O::Push | O::Pop => Class::Stack,
        O::Lea | O::Nop => Class::Address,
        O::Jmp | O::Jcc(_) | O::Call | O::Ret | O::Ud2 => Class::Flow,
        _ => Class::Writes,
    }
}

/// Whether the instruction may be locked if it writes memory.
fn is_lockable(op: Op) -> bool {
    use Op as O;
    let arithmetic = matches!(op, O::Add | O::Or | O::Adc | O::Sbb | O::And | O::Sub | O::Xor);
    arithmetic
        || matches!(op, O::Not | O::Neg | O::Inc | O::Dec | O::Bts | O::Btr | O::Btc | O::Xadd | O::Cmpxchg | O::Xchg)
}

/// The prefixes that stand before an opcode (D3).
#[derive(Clone, Copy, Default)]
struct Prefixes {
    operand_size: bool,
    /// 0xf2 or 0xf3, or 0.
    repeat: u8,
    lock: bool,
    /// 0x40 to 0x4f, or 0. With VEX the bits are put together as in a REX.
    rex: u8,
}

impl Prefixes {
    fn bit(self, n: u8) -> u8 {
        self.rex >> n & 1
    }

    /// Bytes of an operand `v`.
    fn width(self) -> u8 {
        match (self.bit(3), self.operand_size) {
            (1, _) => 8,
            (_, true) => 2,
            _ => 4,
        }
    }
}

/// Reads the bytes of one instruction.
struct Reader<'c> {
    bytes: &'c [u8],
    len: usize,
}

const CUT_OFF: Fault = (Rule::D1, "no instruction", 0);
const NOT_ALLOWED: &str = "instruction not allowed";

impl Reader<'_> {
    fn peek(&self) -> Result<u8, Fault> {
        self.bytes.get(self.len).copied().ok_or(CUT_OFF)
    }

    fn next(&mut self) -> Result<u8, Fault> {
        let byte = self.peek()?;
        self.len += 1;
        Ok(byte)
    }

    /// `count` bytes, little-endian, without their sign.
    fn number(&mut self, count: u8) -> Result<u64, Fault> {
        let mut value = 0;
        for n in 0..u32::from(count.min(8)) {
            value |= u64::from(self.next()?) << (8 * n);
        }
        Ok(value)
    }

    /// The same with their sign.
    fn signed(&mut self, count: u8) -> Result<i64, Fault> {
        let unused = 64 - 8 * u32::from(count.clamp(1, 8));
        Ok(((self.number(count)? << unused) as i64) >> unused)
    }

    /// The same as the processor extends it to 64 bits.
    #[allow(clippy::cast_sign_loss, reason = "the bits are meant")]
    fn extended(&mut self, count: u8) -> Result<u64, Fault> {
        Ok(self.signed(count)? as u64)
    }

    fn prefixes(&mut self) -> Result<Prefixes, Fault> {
        const REFUSED: Fault = (Rule::D3, "prefix not allowed", 0);
        let mut found = Prefixes::default();
        loop {
            let seen = match self.peek()? {
                0x66 => core::mem::replace(&mut found.operand_size, true),
                0xf0 => core::mem::replace(&mut found.lock, true),
                byte @ (0xf2 | 0xf3) => core::mem::replace(&mut found.repeat, byte) != 0,
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x67 => return Err(REFUSED),
                _ => break,
            };
            if seen {
                return Err(REFUSED);
            }
            self.len += 1;
        }
        if let rex @ 0x40..=0x4f = self.peek()? {
            self.len += 1;
            found.rex = rex;
            // Such a REX is ignored by the processor.
            if matches!(self.peek()?, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3) {
                return Err(REFUSED);
            }
        }
        Ok(found)
    }

    /// ModRM and what belongs to it: the register field, and the register or the memory operand of `size` bytes. `tail`
    /// is how many bytes of constant follow, at code offset `at`.
    fn modrm(&mut self, p: Prefixes, size: u8, tail: u8, at: usize) -> Result<(u8, Result<u8, Memory>), Fault> {
        let byte = self.next()?;
        let (mode, field, low) = (byte >> 6, byte >> 3 & 7 | p.bit(2) << 3, byte & 7);
        if mode == 3 {
            return Ok((field, Ok(low | p.bit(0) << 3)));
        }
        let (mut base, mut index, mut scale) = (Base::Register(low | p.bit(0) << 3), None, 1);
        let mut bytes = [0, 1, 4].get(usize::from(mode)).copied().unwrap_or(0);
        if low == 4 {
            let sib = self.next()?;
            let number = sib >> 3 & 7 | p.bit(1) << 3;
            index = (number != 4).then_some(number);
            scale = 1 << (sib >> 6);
            base = Base::Register(sib & 7 | p.bit(0) << 3);
            if mode == 0 && sib & 7 == 5 {
                (base, bytes) = (Base::Zero, 4);
            }
        } else if mode == 0 && low == 5 {
            (base, bytes) = (Base::Rip, 4);
        }
        let mut displacement = if bytes == 0 { 0 } else { self.signed(bytes)? };
        if base == Base::Rip {
            let next = at + self.len + usize::from(tail);
            displacement = displacement.wrapping_add(next as i64);
        }
        Ok((field, Err(Memory { base, index, scale, displacement, size })))
    }
}

/// A register of `width` bytes.
fn register(number: u8, width: u8, p: Prefixes) -> Operand {
    let is_high = width == 1 && p.rex == 0 && (4..8).contains(&number);
    Operand::Register(Register { number: if is_high { number - 4 } else { number }, width, is_high })
}

/// Decodes the instruction at `at` of `code`, which ends where the function ends. `bmi` says whether BMI is allowed.
pub fn decode(code: &[u8], at: usize, bmi: bool) -> Result<Decoded, Fault> {
    let bytes = code.get(at..).unwrap_or(&[]);
    let mut reader = Reader { bytes: bytes.get(..15).unwrap_or(bytes), len: 0 };
    let p = reader.prefixes()?;
    let mut i = Instruction {
        op: Op::Nop,
        operands: [None; 3],
        memory: None,
        lock: p.lock,
        repeat: p.repeat != 0,
        size: p.width(),
        at,
        len: 0,
    };
    let opcode = reader.next()?;
    let mut repeat_belongs = false;
    if matches!(opcode, 0xc4 | 0xc5) {
        vex(&mut reader, &mut i, opcode, p, bmi)?;
    } else {
        let (op, shape) = if opcode == 0x0f {
            let second = reader.next()?;
            let counts = p.repeat == 0xf3 && matches!(second, 0xb8 | 0xbc | 0xbd);
            repeat_belongs = counts;
            let shared = matches!(second, 0x0d | 0x18 | 0x1f | 0xae | 0xba);
            let modrm = if shared { reader.peek()? } else { 0 };
            let found = opcodes::two(second, modrm, counts);
            if found.is_some() && second == 0xae {
                reader.len += 1;
            }
            (found.ok_or((Rule::D2, NOT_ALLOWED, i64::from(second)))?, second)
        } else {
            let shared = matches!(
                opcode,
                0x80 | 0x81 | 0x83 | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xf6 | 0xf7 | 0xfe | 0xff
            );
            let field = if shared { reader.peek()? >> 3 & 7 } else { 0 };
            (opcodes::one(opcode, field).ok_or((Rule::D2, NOT_ALLOWED, i64::from(opcode)))?, opcode)
        };
        let (op, shape, low) = (op.0, op.1, shape & 7 | p.bit(0) << 3);
        i.op = op;
        operands(&mut reader, &mut i, shape, low, p)?;
        // With REX.B a processor may take f3 90 for an exchange with r8, so only the plain form is `pause`.
        if i.op == Op::Nop && shape == S::AxZv && p.repeat == 0xf3 {
            if reader.len != 2 {
                return Err((Rule::D2, "encoding that decoders disagree about", 0));
            }
            (i.op, repeat_belongs) = (Op::Pause, true);
        }
    }
    i.len = reader.len;
    let class = classify(i.op);
    if class != Class::String {
        if p.repeat != 0 && !repeat_belongs {
            return Err((Rule::D3, "repeat prefix", 0));
        }
        i.repeat = false;
    }
    if p.lock && !(is_lockable(i.op) && i.is_memory(0)) {
        return Err((Rule::D3, "lock prefix", 0));
    }
    if p.operand_size && matches!(class, Class::Flow | Class::Stack | Class::Implicit(16)) {
        return Err((Rule::D3, "operand-size prefix", 0));
    }
    Ok(Decoded { instruction: i, class })
}

/// Reads the operands that `shape` says. `low` is the register in the opcode.
fn operands(reader: &mut Reader<'_>, i: &mut Instruction, shape: S, low: u8, p: Prefixes) -> Result<(), Fault> {
    let v = p.width();
    // Constants have at most four bytes, but for `mov r64, imm64`.
    let z = v.min(4);
    let one = Operand::Constant(1);
    let (e, g, tail) = match shape {
        S::EbGb | S::GbEb => (1, 1, 0),
        S::EvGv | S::GvEv | S::EvGvCl | S::EvOne | S::EvCl | S::Ev => (v, v, 0),
        S::Eb | S::EbOne | S::EbCl | S::Mb => (1, 0, 0),
        S::Eq => (8, 0, 0),
        S::EbIb => (1, 0, 1),
        S::EvIz | S::GvEvIz => (v, v, z),
        S::EvIs | S::EvIb | S::GvEvIs | S::EvGvIb => (v, v, 1),
        S::GvEb => (1, v, 0),
        S::GvEw => (2, v, 0),
        S::GqEd => (4, v, 0),
        S::GvM => (0, v, 0),
        _ => return without_modrm(reader, i, shape, low, p),
    };
    let (field, place) = reader.modrm(p, e, tail, i.at)?;
    let e = match place {
        Ok(number) => register(number, e, p),
        Err(memory) => {
            i.memory = Some(memory);
            Operand::Memory
        }
    };
    let g = register(field, g, p);
    let cl = register(1, 1, p);
    let mut constant = |sign: bool| -> Result<Operand, Fault> {
        let value = if sign { reader.extended(tail)? } else { reader.number(tail)? };
        Ok(Operand::Constant(value))
    };
    i.operands = match shape {
        S::EbGb | S::EvGv => [Some(e), Some(g), None],
        S::GbEb | S::GvEv | S::GvEb | S::GvEw => [Some(g), Some(e), None],
        S::GqEd if v == 8 => [Some(g), Some(e), None],
        S::GvM if e == Operand::Memory => [Some(g), Some(e), None],
        // A push of a register has a form of its own.
        S::Eq if e != Operand::Memory && i.op == Op::Push => return Err((Rule::D2, NOT_ALLOWED, 0)),
        S::Eb | S::Ev | S::Eq => [Some(e), None, None],
        S::Mb if e == Operand::Memory => [Some(e), None, None],
        S::EbOne | S::EvOne => [Some(e), Some(one), None],
        S::EbCl | S::EvCl => [Some(e), Some(cl), None],
        S::EbIb | S::EvIb => [Some(e), Some(constant(false)?), None],
        S::EvIz => [Some(e), Some(constant(v == 8)?), None],
        S::EvIs => [Some(e), Some(constant(true)?), None],
        S::GvEvIz | S::GvEvIs => [Some(g), Some(e), Some(constant(true)?)],
        S::EvGvIb => [Some(e), Some(g), Some(constant(false)?)],
        S::EvGvCl => [Some(e), Some(g), Some(cl)],
        _ => return Err((Rule::D2, NOT_ALLOWED, 0)),
    };
    Ok(())
}

fn without_modrm(reader: &mut Reader<'_>, i: &mut Instruction, shape: S, low: u8, p: Prefixes) -> Result<(), Fault> {
    let v = p.width();
    let (al, ax) = (register(0, 1, p), register(0, v, p));
    let byte = |reader: &mut Reader<'_>| reader.number(1).map(Operand::Constant);
    i.operands = match shape {
        S::AlIb => [Some(al), Some(byte(reader)?), None],
        S::ZbIb => [Some(register(low, 1, p)), Some(byte(reader)?), None],
        S::ZvIv => [Some(register(low, v, p)), Some(Operand::Constant(reader.number(v)?)), None],
        S::AxIz if v == 8 => [Some(ax), Some(Operand::Constant(reader.extended(4)?)), None],
        S::AxIz => [Some(ax), Some(Operand::Constant(reader.number(v)?)), None],
        S::AxZv if low == 0 => {
            i.op = Op::Nop;
            [None; 3]
        }
        S::AxZv => [Some(register(low, v, p)), Some(ax), None],
        // Of 16 bits its result is undefined.
        S::Zv if v > 2 => [Some(register(low, v, p)), None, None],
        S::Zq => [Some(register(low, 8, p)), None, None],
        S::Is => [Some(Operand::Constant(reader.extended(1)?)), None, None],
        S::Iz => [Some(Operand::Constant(reader.extended(4)?)), None, None],
        S::Jb | S::Jz => {
            let distance = reader.signed(if shape == S::Jb { 1 } else { 4 })?;
            [Some(Operand::Target((i.at as u64 + reader.len as u64).wrapping_add_signed(distance))), None, None]
        }
        S::Sb | S::Sv => {
            i.size = if shape == S::Sb { 1 } else { v };
            [None; 3]
        }
        S::Bare => [None; 3],
        _ => return Err((Rule::D2, NOT_ALLOWED, 0)),
    };
    Ok(())
}

/// The BMI instructions: VEX with three bytes (those of the allow-list have no other form), without the vector length.
fn vex(reader: &mut Reader<'_>, i: &mut Instruction, first: u8, p: Prefixes, bmi: bool) -> Result<(), Fault> {
    if p.operand_size || p.repeat != 0 || p.lock || p.rex != 0 {
        return Err((Rule::D3, "prefix not allowed", 0));
    }
    let (second, third, opcode) = (reader.next()?, reader.next()?, reader.next()?);
    let found = opcodes::vex(second & 31, third & 3, opcode).filter(|_| first == 0xc4 && third & 4 == 0);
    i.op = found.ok_or((Rule::D2, NOT_ALLOWED, i64::from(opcode)))?;
    if !bmi {
        return Err((Rule::D2, "BMI instruction but the header names none", i64::from(opcode)));
    }
    let p = Prefixes { rex: 0x40 | third >> 4 & 8 | !second >> 5 & 7, ..p };
    let (v, extra) = (p.width(), !third >> 3 & 15);
    let tail = u8::from(i.op == Op::Rorx);
    let (field, place) = reader.modrm(p, v, tail, i.at)?;
    let e = match place {
        Ok(number) => register(number, v, p),
        Err(memory) => {
            i.memory = Some(memory);
            Operand::Memory
        }
    };
    let (g, x) = (register(field, v, p), register(extra, v, p));
    i.operands = match i.op {
        Op::Pext | Op::Andn => [Some(g), Some(x), Some(e)],
        Op::Rorx if extra == 0 => [Some(g), Some(e), Some(Operand::Constant(reader.number(1)?))],
        Op::Rorx => return Err((Rule::D2, NOT_ALLOWED, i64::from(opcode))),
        _ => [Some(g), Some(e), Some(x)],
    };
    Ok(())
}
