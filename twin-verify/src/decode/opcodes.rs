//! The opcodes of the allow-list (D2), with the shape of their operands. What is not here is refused.

use super::instruction::Op;

/// Where the operands of an opcode are. `E` is ModRM's register or memory, `G` its register field, `Z` a register in
/// the opcode, `I` a constant; `b` is a byte, `v` 2, 4 or 8 bytes by the prefixes, `q` always 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by the letters above")]
#[rustfmt::skip]
pub enum Shape {
    EbGb, EvGv, GbEb, GvEv, Eb, Ev, Eq,
    EbIb, EvIz, /** Sign-extended. */ EvIs, /** A count. */ EvIb, EbOne, EvOne, EbCl, EvCl,
    GvEvIz, GvEvIs, EvGvIb, EvGvCl,
    /** From 1, 2 and 4 bytes. */ GvEb, GvEw, GqEd,
    /** An address that is not accessed, or only one byte of it. */ GvM, Mb,
    AlIb, AxIz, AxZv, ZbIb, ZvIv, Zv, Zq,
    /** Constants to push. */ Is, Iz,
    /** Distances of jumps. */ Jb, Jz,
    /** Strings of bytes and others. */ Sb, Sv,
    Bare,
}

use Shape as S;

/// The eight operations of the first 64 opcodes and of group 1.
const ARITHMETIC: [Op; 8] = [Op::Add, Op::Or, Op::Adc, Op::Sbb, Op::And, Op::Sub, Op::Xor, Op::Cmp];

fn arithmetic(number: u8) -> Op {
    ARITHMETIC.get(usize::from(number & 7)).copied().unwrap_or(Op::Cmp)
}

fn shift(number: u8) -> Option<Op> {
    [Some(Op::Rol), Some(Op::Ror), Some(Op::Rcl), Some(Op::Rcr), Some(Op::Shl), Some(Op::Shr), None, Some(Op::Sar)]
        .get(usize::from(number & 7))
        .copied()
        .flatten()
}

/// Opcodes of one byte. `field` is the register field of ModRM, for opcodes that share a byte.
#[rustfmt::skip]
pub fn one(opcode: u8, field: u8) -> Option<(Op, Shape)> {
    Some(match opcode {
        0x00..=0x3f => (arithmetic(opcode >> 3), match opcode & 7 {
            0 => S::EbGb, 1 => S::EvGv, 2 => S::GbEb, 3 => S::GvEv, 4 => S::AlIb, 5 => S::AxIz, _ => return None,
        }),
        0x50..=0x57 => (Op::Push, S::Zq),
        0x58..=0x5f => (Op::Pop, S::Zq),
        0x63 => (Op::Movsxd, S::GqEd),
        0x68 => (Op::Push, S::Iz),
        0x69 => (Op::Imul, S::GvEvIz),
        0x6a => (Op::Push, S::Is),
        0x6b => (Op::Imul, S::GvEvIs),
        0x70..=0x7f => (Op::Jcc(opcode & 15), S::Jb),
        0x80 => (arithmetic(field), S::EbIb),
        0x81 => (arithmetic(field), S::EvIz),
        0x83 => (arithmetic(field), S::EvIs),
        0x84 => (Op::Test, S::EbGb),
        0x85 => (Op::Test, S::EvGv),
        0x86 => (Op::Xchg, S::EbGb),
        0x87 => (Op::Xchg, S::EvGv),
        0x88 => (Op::Mov, S::EbGb),
        0x89 => (Op::Mov, S::EvGv),
        0x8a => (Op::Mov, S::GbEb),
        0x8b => (Op::Mov, S::GvEv),
        0x8d => (Op::Lea, S::GvM),
        0x90..=0x97 => (Op::Xchg, S::AxZv),
        0x98 => (Op::Widen, S::Bare),
        0x99 => (Op::Spread, S::Bare),
        0x9e => (Op::Sahf, S::Bare),
        0x9f => (Op::Lahf, S::Bare),
        0xa4 => (Op::Movs, S::Sb),
        0xa5 => (Op::Movs, S::Sv),
        0xa6 => (Op::Cmps, S::Sb),
        0xa7 => (Op::Cmps, S::Sv),
        0xa8 => (Op::Test, S::AlIb),
        0xa9 => (Op::Test, S::AxIz),
        0xaa => (Op::Stos, S::Sb),
        0xab => (Op::Stos, S::Sv),
        0xac => (Op::Lods, S::Sb),
        0xad => (Op::Lods, S::Sv),
        0xae => (Op::Scas, S::Sb),
        0xaf => (Op::Scas, S::Sv),
        0xb0..=0xb7 => (Op::Mov, S::ZbIb),
        0xb8..=0xbf => (Op::Mov, S::ZvIv),
        0xc0 => (shift(field)?, S::EbIb),
        0xc1 => (shift(field)?, S::EvIb),
        0xc3 => (Op::Ret, S::Bare),
        0xc6 if field == 0 => (Op::Mov, S::EbIb),
        0xc7 if field == 0 => (Op::Mov, S::EvIz),
        0xd0 => (shift(field)?, S::EbOne),
        0xd1 => (shift(field)?, S::EvOne),
        0xd2 => (shift(field)?, S::EbCl),
        0xd3 => (shift(field)?, S::EvCl),
        0xe8 => (Op::Call, S::Jz),
        0xe9 => (Op::Jmp, S::Jz),
        0xeb => (Op::Jmp, S::Jb),
        0xf5 | 0xf8 | 0xf9 => (Op::Carry, S::Bare),
        0xf6 | 0xf7 => return third_group(opcode == 0xf6, field),
        0xfe if field < 2 => ([Op::Inc, Op::Dec].get(usize::from(field)).copied()?, S::Eb),
        0xff => match field {
            0 => (Op::Inc, S::Ev), 1 => (Op::Dec, S::Ev), 2 => (Op::Call, S::Eq), 4 => (Op::Jmp, S::Eq), 6 => (Op::Push, S::Eq),
            _ => return None,
        },
        _ => return None,
    })
}

fn third_group(is_byte: bool, field: u8) -> Option<(Op, Shape)> {
    let op = match field {
        0 => return Some((Op::Test, if is_byte { S::EbIb } else { S::EvIz })),
        2 => Op::Not,
        3 => Op::Neg,
        4 => Op::Mul,
        5 => Op::Imul,
        6 => Op::Div,
        7 => Op::Idiv,
        _ => return None,
    };
    Some((op, if is_byte { S::Eb } else { S::Ev }))
}

/// Opcodes behind 0x0f. `counts` says that 0xf3 stands before it, which is part of some opcodes.
#[rustfmt::skip]
pub fn two(opcode: u8, modrm: u8, counts: bool) -> Option<(Op, Shape)> {
    let field = modrm >> 3 & 7;
    let is_register = modrm >> 6 == 3;
    Some(match opcode {
        0xb8 if counts => (Op::Popcnt, S::GvEv),
        0xbc if counts => (Op::Tzcnt, S::GvEv),
        0xbd if counts => (Op::Lzcnt, S::GvEv),
        _ if counts => return None,
        0x0b => (Op::Ud2, S::Bare),
        0x0d if field == 1 && !is_register => (Op::Prefetch, S::Mb),
        0x18 if field < 4 && !is_register => (Op::Prefetch, S::Mb),
        0x1f if field == 0 => (Op::Nop, S::Ev),
        0x40..=0x4f => (Op::Cmov, S::GvEv),
        0x80..=0x8f => (Op::Jcc(opcode & 15), S::Jz),
        0x90..=0x9f => (Op::Set, S::Eb),
        0xa3 => (Op::Bt, S::EvGv),
        0xa4 => (Op::Shld, S::EvGvIb),
        0xa5 => (Op::Shld, S::EvGvCl),
        0xab => (Op::Bts, S::EvGv),
        0xac => (Op::Shrd, S::EvGvIb),
        0xad => (Op::Shrd, S::EvGvCl),
        0xae if is_register && field >= 5 && modrm & 7 == 0 => (Op::Fence, S::Bare),
        0xaf => (Op::Imul, S::GvEv),
        0xb0 => (Op::Cmpxchg, S::EbGb),
        0xb1 => (Op::Cmpxchg, S::EvGv),
        0xb3 => (Op::Btr, S::EvGv),
        0xb6 => (Op::Movzx, S::GvEb),
        0xb7 => (Op::Movzx, S::GvEw),
        0xba if field >= 4 => ([Op::Bt, Op::Bts, Op::Btr, Op::Btc].get(usize::from(field - 4)).copied()?, S::EvIb),
        0xbb => (Op::Btc, S::EvGv),
        0xbc => (Op::Bsf, S::GvEv),
        0xbd => (Op::Bsr, S::GvEv),
        0xbe => (Op::Movsx, S::GvEb),
        0xbf => (Op::Movsx, S::GvEw),
        0xc0 => (Op::Xadd, S::EbGb),
        0xc1 => (Op::Xadd, S::EvGv),
        0xc8..=0xcf => (Op::Bswap, S::Zv),
        _ => return None,
    })
}

/// Opcodes with VEX, by map and mandatory prefix (0: none, 1: 66, 2: f3, 3: f2).
pub fn vex(map: u8, prefix: u8, opcode: u8) -> Option<Op> {
    Some(match (map, prefix, opcode) {
        (2, 0, 0xf2) => Op::Andn,
        (2, 0, 0xf5) => Op::Bzhi,
        (2, 2, 0xf5) => Op::Pext,
        (2, 1, 0xf7) => Op::Shlx,
        (2, 2, 0xf7) => Op::Sarx,
        (2, 3, 0xf7) => Op::Shrx,
        (3, 3, 0xf0) => Op::Rorx,
        _ => return None,
    })
}
