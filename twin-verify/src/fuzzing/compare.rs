//! The decoder against a second one.

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use iced_x86::{Code, Instruction, MemorySize, Mnemonic, OpKind, Register};
use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::long_mode::{InstDecoder, Operand, RegSpec};

use super::reference::{self as decode, Class};
use super::Mismatch;
use crate::decode as own;
use crate::decode::instruction::{self, Base, Op};

/// What one decoder says of a memory operand.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    base: Option<String>,
    index: Option<String>,
    scale: u32,
    displacement: i64,
}

/// If `bytes` begin with an allowed instruction, the other decoder finds the same length, registers, addresses and
/// constants.
///
/// # Errors
/// What differs.
pub fn decoders_agree(bytes: &[u8]) -> Result<bool, Mismatch> {
    let Ok(decoded) = decode::decode(bytes, 0, true) else { return Ok(false) };
    let ours = decoded.instruction;
    // Far forms, which a later rule refuses, have names of their own there.
    let far = ours.op0_kind() == OpKind::Memory && !matches!(ours.code(), Code::Call_rm64 | Code::Jmp_rm64);
    if decoded.class == Class::Flow && far {
        return Ok(false);
    }
    let shown = &bytes[..ours.len()];
    let fail = |what: &str| Err(format!("{what}: {shown:02x?} is {:?} here", ours.code()));
    let Ok(theirs) = InstDecoder::default().decode_slice(&bytes[..bytes.len().min(15)]) else {
        return fail("the other decoder finds no instruction");
    };
    let len = length(&theirs);
    if len != ours.len() {
        return fail(&format!("the other decoder finds {len} bytes, {theirs}"));
    }
    if !same_name(&format!("{:?}", ours.mnemonic()).to_lowercase(), &theirs.opcode().to_string(), decoded.class) {
        return fail(&format!("the other decoder says {theirs}"));
    }
    if matches!(decoded.class, Class::String | Class::Implicit(_)) {
        return Ok(true);
    }
    let memory = (0..theirs.operand_count()).find_map(|n| place_of(&theirs.operand(n)));
    let here = (0..ours.op_count()).any(|n| ours.op_kind(n) == OpKind::Memory).then(|| our_place(&ours));
    if memory != here && ours.memory_size() != MemorySize::Unknown {
        return fail(&format!("addresses differ: {memory:?} and {here:?}"));
    }
    for n in 0..ours.op_count().min(u32::from(theirs.operand_count())) {
        let other = theirs.operand(n as u8);
        let other = if ours.mnemonic() == Mnemonic::Xchg && n < 2 && !same_register(&ours, n, &other) {
            theirs.operand(1 - n as u8)
        } else {
            other
        };
        let same = match ours.op_kind(n) {
            // It takes 32-bit forms of these for 64-bit ones; nothing is known of the result of either here.
            OpKind::Register if ours.mnemonic() == Mnemonic::Bswap || decoded.class == Class::Bits => {
                let number = decode::general(ours.op_register(n));
                matches!(other, Operand::Register { reg } if number == Some(usize::from(reg.num())))
            }
            OpKind::Register => register_of(&other).is_none_or(|name| name == name_of(ours.op_register(n))),
            OpKind::NearBranch64 => constant_of(&other) == Some(ours.near_branch64().wrapping_sub(len as u64) as i64),
            OpKind::Memory => true,
            _ => constant_of(&other).is_none_or(|value| agrees(value as u64, ours.immediate(n), &ours)),
        };
        if !same {
            return fail(&format!("operand {n} differs: {other:?}"));
        }
    }
    Ok(true)
}

fn length(instruction: &yaxpeax_x86::long_mode::Instruction) -> usize {
    usize::try_from(instruction.len().to_const()).unwrap_or(0)
}

/// Constants are compared in the width of the operation, because the decoders extend them differently.
fn agrees(a: u64, b: u64, instruction: &Instruction) -> bool {
    let size = match instruction.op0_kind() {
        OpKind::Memory => instruction.memory_size().size(),
        _ => instruction.op0_register().size(),
    };
    let mask = if (1..8).contains(&size) { (1 << (8 * size)) - 1 } else { u64::MAX };
    a & mask == b & mask || a & 0xff == b && b < 256 || a & 0xffff_ffff == b & 0xffff_ffff
}

fn same_register(ours: &Instruction, n: u32, other: &Operand) -> bool {
    ours.op_kind(n) != OpKind::Register || register_of(other).is_some_and(|name| name == name_of(ours.op_register(n)))
}

fn name_of(register: Register) -> String {
    let name = format!("{register:?}").to_lowercase();
    // The low bytes of r8 to r15 have two spellings.
    match name.strip_suffix('l') {
        Some(stem) if stem.starts_with('r') => format!("{stem}b"),
        _ => name,
    }
}

fn our_place(i: &Instruction) -> Place {
    let name = |register: Register| (register != Register::None).then(|| name_of(register));
    let relative = i.memory_base() == Register::RIP;
    let displacement = i.memory_displacement64().wrapping_sub(if relative { i.len() as u64 } else { 0 });
    let index = name(i.memory_index());
    let scale = if index.is_some() { i.memory_index_scale() } else { 1 };
    Place { base: name(i.memory_base()), index, scale, displacement: displacement as i64 }
}

fn place_of(operand: &Operand) -> Option<Place> {
    let name = |r: RegSpec| Some(r.name().to_string());
    let make = |base: Option<String>, index: Option<String>, scale: u8, displacement: i64| {
        Some(Place { base, index, scale: u32::from(scale), displacement })
    };
    match *operand {
        Operand::AbsoluteU32 { addr } => make(None, None, 1, i64::from(addr as i32)),
        Operand::AbsoluteU64 { addr } => make(None, None, 1, addr as i64),
        Operand::MemDeref { base } => make(name(base), None, 1, 0),
        Operand::Disp { base, disp } => make(name(base), None, 1, i64::from(disp)),
        Operand::MemIndexScale { index, scale } => make(None, name(index), scale, 0),
        Operand::MemIndexScaleDisp { index, scale, disp } => make(None, name(index), scale, i64::from(disp)),
        Operand::MemBaseIndexScale { base, index, scale } => make(name(base), name(index), scale, 0),
        Operand::MemBaseIndexScaleDisp { base, index, scale, disp } => {
            make(name(base), name(index), scale, i64::from(disp))
        }
        _ => None,
    }
}

fn register_of(operand: &Operand) -> Option<String> {
    match operand {
        Operand::Register { reg } => Some(reg.name().to_string()),
        _ => None,
    }
}

fn constant_of(operand: &Operand) -> Option<i64> {
    Some(match *operand {
        Operand::ImmediateI8 { imm } => i64::from(imm),
        Operand::ImmediateU8 { imm } => i64::from(imm),
        Operand::ImmediateI16 { imm } => i64::from(imm),
        Operand::ImmediateU16 { imm } => i64::from(imm),
        Operand::ImmediateI32 { imm } => i64::from(imm),
        Operand::ImmediateU32 { imm } => i64::from(imm),
        Operand::ImmediateI64 { imm } => imm,
        Operand::ImmediateU64 { imm } => imm as i64,
        _ => return None,
    })
}

/// The names differ in how they spell conditions and sizes.
fn same_name(ours: &str, theirs: &str, class: Class) -> bool {
    if ours == theirs {
        return true;
    }
    if class == Class::String {
        return ours[..4] == theirs[..4.min(theirs.len())];
    }
    let condition = |name: &str| {
        for (one, other) in
            [("nz", "ne"), ("z", "e"), ("nb", "ae"), ("na", "be"), ("nl", "ge"), ("ng", "le"), ("nge", "l")]
        {
            for stem in ["j", "set", "cmov"] {
                if name == format!("{stem}{one}") {
                    return format!("{stem}{other}");
                }
            }
        }
        name.to_string()
    };
    let renamed = match theirs {
        "retf" | "return" => "ret".to_string(),
        "callf" => String::new(),
        "movsxd" => "movsxd".to_string(),
        "movabs" => "mov".to_string(),
        "prefetch0" => "prefetcht0".to_string(),
        "prefetch1" => "prefetcht1".to_string(),
        "prefetch2" => "prefetcht2".to_string(),
        "movzx_b" | "movzx_w" => "movzx".to_string(),
        "movsx_b" | "movsx_w" => "movsx".to_string(),
        "sal" => "shl".to_string(),
        "int" => "int3".to_string(),
        "nop" if ours == "pause" => "pause".to_string(),
        other => condition(other),
    };
    renamed == ours
}

/// What came of [`matches_reference`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// Neither takes it for an allowed instruction.
    Neither,
    /// Both do, and for the same.
    Same,
    /// Only the reference does.
    OnlyReference(iced_x86::Code),
}

/// Compares the verifier's own decoder with the reference: what it accepts, the reference accepts too, with the same
/// length, operation, operands, address and prefixes.
///
/// # Errors
/// What differs.
pub fn matches_reference(bytes: &[u8], at: usize) -> Result<Match, Mismatch> {
    let theirs = decode::decode(bytes, at, true);
    let ours = match own::decode(bytes, at, true) {
        Ok(decoded) => decoded.instruction,
        Err(_) => return Ok(theirs.map_or(Match::Neither, |t| Match::OnlyReference(t.instruction.code()))),
    };
    let shown = bytes.get(at..at + ours.len).unwrap_or(&[]);
    let Ok(theirs) = theirs.map(|t| t.instruction) else {
        return Err(format!("accepted here only: {shown:02x?}, {ours:x?}"));
    };
    let fail = |what: &str| Err(format!("{what}: {shown:02x?} is {ours:x?} here and {:?} there", theirs.code()));
    if ours.len != theirs.len() {
        return fail("length");
    }
    if !is_same_operation(&ours, &theirs) {
        return fail("operation");
    }
    let repeats = theirs.has_rep_prefix() || theirs.has_repne_prefix();
    let is_string = matches!(ours.op, Op::Movs | Op::Cmps | Op::Stos | Op::Lods | Op::Scas);
    if ours.lock != theirs.has_lock_prefix() || (is_string && ours.repeat != repeats) {
        return fail("prefixes");
    }
    if is_string {
        let size = usize::from(ours.size);
        return if size == theirs.memory_size().size() { Ok(Match::Same) } else { fail("size") };
    }
    let count = ours.operands.iter().flatten().count();
    // What works on registers that it does not name.
    let bare = matches!(ours.op, Op::Fence | Op::Nop | Op::Widen | Op::Spread | Op::Ret);
    if count != theirs.op_count() as usize && !(bare && count == 0) {
        return fail("number of operands");
    }
    for (n, operand) in (0u32..).zip(ours.operands.iter().flatten()) {
        let kind = theirs.op_kind(n);
        let same = match *operand {
            instruction::Operand::Register(r) => kind == OpKind::Register && is_same_register(r, theirs.op_register(n)),
            instruction::Operand::Memory => {
                kind == OpKind::Memory && ours.memory.is_some_and(|m| is_same_place(&m, &ours, &theirs))
            }
            instruction::Operand::Target(to) => kind == OpKind::NearBranch64 && to == theirs.near_branch64(),
            instruction::Operand::Constant(value) => {
                let width = ours.register(0).map_or(ours.memory.map_or(8, |m| m.size), |r| r.width);
                let mask = if (1..8).contains(&width) { (1u64 << (8 * width)) - 1 } else { u64::MAX };
                let there = kind != OpKind::Register && kind != OpKind::Memory && kind != OpKind::NearBranch64;
                there && value & mask == theirs.immediate(n) & mask
            }
        };
        if !same {
            return fail("operand");
        }
    }
    Ok(Match::Same)
}

fn is_same_register(ours: instruction::Register, theirs: Register) -> bool {
    let is_high = [Register::AH, Register::CH, Register::DH, Register::BH].contains(&theirs);
    decode::general(theirs) == Some(usize::from(ours.number))
        && theirs.size() == usize::from(ours.width)
        && ours.is_high == is_high
}

fn is_same_place(ours: &instruction::Memory, i: &instruction::Instruction, theirs: &Instruction) -> bool {
    let base = match ours.base {
        Base::Zero => theirs.memory_base() == Register::None,
        Base::Rip => theirs.memory_base() == Register::RIP,
        Base::Register(n) => theirs.memory_base() == Register::RAX + u32::from(n),
    };
    let index = match ours.index {
        None => theirs.memory_index() == Register::None,
        Some(n) => theirs.memory_index() == Register::RAX + u32::from(n) && theirs.memory_index_scale() == ours.scale,
    };
    // No rule asks for the size where nothing is accessed.
    let size = matches!(i.op, Op::Lea | Op::Nop) || theirs.memory_size().size() == usize::from(ours.size);
    base && index
        && size
        && theirs.memory_displacement64() as i64 == ours.displacement
        && theirs.segment_prefix() == Register::None
}

/// The names are alike, with conditions and sizes behind them.
fn is_same_operation(ours: &instruction::Instruction, theirs: &Instruction) -> bool {
    let name = format!("{:?}", theirs.mnemonic()).to_lowercase();
    let condition = |stem: &str, number: Option<u8>| {
        const CONDITIONS: [&str; 16] =
            ["o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g"];
        let found = name.strip_prefix(stem).and_then(|rest| CONDITIONS.iter().position(|c| *c == rest));
        found.is_some_and(|at| number.is_none_or(|n| usize::from(n) == at))
    };
    match ours.op {
        Op::Jcc(number) => condition("j", Some(number)),
        Op::Cmov => condition("cmov", None),
        Op::Set => condition("set", None),
        Op::Widen => ["cbw", "cwde", "cdqe"].contains(&name.as_str()),
        Op::Spread => ["cwd", "cdq", "cqo"].contains(&name.as_str()),
        Op::Carry => ["clc", "stc", "cmc"].contains(&name.as_str()),
        Op::Fence => ["lfence", "mfence", "sfence"].contains(&name.as_str()),
        Op::Prefetch => name.starts_with("prefetch"),
        Op::Movs | Op::Cmps | Op::Stos | Op::Lods | Op::Scas => {
            name.len() == 5 && name.starts_with(&format!("{:?}", ours.op).to_lowercase())
        }
        op => name == format!("{op:?}").to_lowercase(),
    }
}

/// All prefixes, opcodes and forms of operands, with constants at their bounds, in a fixed order: `check` is given
/// each. Only every `stride`-th choice of prefixes, from the `first` on, so that a test can do a part.
pub fn for_all_forms(first: usize, stride: usize, check: &mut dyn FnMut(&[u8])) {
    let legacy: [&[u8]; 9] =
        [&[], &[0x66], &[0xf2], &[0xf3], &[0xf0], &[0x66, 0xf0], &[0xf3, 0x66], &[0x66, 0xf2], &[0xf0, 0xf3]];
    let mut starts: Vec<Vec<u8>> = Vec::new();
    for prefixes in legacy {
        for rex in [0].into_iter().chain(0x40..0x50) {
            let mut start = prefixes.to_vec();
            start.extend((rex != 0).then_some(rex));
            starts.extend([start.clone(), [&start[..], &[0x0f]].concat()]);
        }
    }
    for second in (0..8).flat_map(|rxb| [1u8, 2, 3].map(|map| rxb << 5 | map)) {
        // Some registers with both widths, both lengths, and all prefixes.
        let thirds = (0..=255u8).filter(|third| [0, 5, 15].contains(&(third >> 3 & 15)));
        starts.extend(thirds.map(|third| [0xc4, second, third].to_vec()));
    }
    let constants: [[u8; 12]; 2] = [[0x80; 12], [0x7f, 0, 0, 0, 0x80, 1, 2, 3, 4, 5, 6, 7]];
    for start in starts.into_iter().skip(first).step_by(stride) {
        for opcode in 0..=255u8 {
            for modrm in 0..=255u8 {
                let has_sib = modrm >> 6 != 3 && modrm & 7 == 4;
                let sibs: &[u8] =
                    if has_sib { &[0x00, 0x24, 0x25, 0x64, 0x65, 0xe5, 0xa5, 0x2c, 0xd8, 0x3d] } else { &[0] };
                for sib in sibs {
                    for constant in &constants {
                        let mut bytes = [0; 24];
                        let form = [
                            &start[..],
                            &[opcode, modrm],
                            if has_sib { std::slice::from_ref(sib) } else { &[] },
                            constant,
                        ];
                        for (to, from) in bytes.iter_mut().zip(form.into_iter().flatten()) {
                            *to = *from;
                        }
                        check(&bytes[..15]);
                    }
                }
            }
        }
    }
}
