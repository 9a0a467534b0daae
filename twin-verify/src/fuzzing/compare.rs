//! The decoder against a second one.

use std::format;
use std::string::{String, ToString};

use iced_x86::{Code, Instruction, MemorySize, Mnemonic, OpKind, Register};
use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::long_mode::{InstDecoder, Operand, RegSpec};

use super::Mismatch;
use crate::decode::{self, Class};

/// What one decoder says of a memory operand.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    base: Option<String>,
    index: Option<String>,
    scale: u32,
    displacement: i64,
}

/// If `bytes` begin with an allowed instruction, the other decoder finds the same length, registers, addresses and constants.
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
