//! The faults that are injected: the classes of the driver-isolation literature, at the level of single instructions,
//! words of data, and bytes of images.

use crate::random::Random;
use iced_x86::{Code, Decoder, DecoderOptions, Encoder, FlowControl, Instruction, Mnemonic, OpKind, Register};
use twin_rewrite::module::Module;

/// Classes of faults in text, before rewriting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum TextFault {
    BitFlip,
    SourceRegister,
    DestinationRegister,
    OffByOne,
    MissingInitialisation,
    RemovedCall,
    RemovedUnlock,
    WildPointer,
    NullPointer,
    InvertedBranch,
    EndlessLoop,
    WildIndirectCall,
    WildReturn,
    EarlyReturn,
    StackSmash,
}

/// All of them.
pub const TEXT_FAULTS: [TextFault; 15] = [
    TextFault::BitFlip,
    TextFault::SourceRegister,
    TextFault::DestinationRegister,
    TextFault::OffByOne,
    TextFault::MissingInitialisation,
    TextFault::RemovedCall,
    TextFault::RemovedUnlock,
    TextFault::WildPointer,
    TextFault::NullPointer,
    TextFault::InvertedBranch,
    TextFault::EndlessLoop,
    TextFault::WildIndirectCall,
    TextFault::WildReturn,
    TextFault::EarlyReturn,
    TextFault::StackSmash,
];

/// Classes of faults in data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum DataFault {
    BitFlip,
    NullPointer,
    WildPointer,
    FunctionPointer,
    RingIndex,
    DmaAddress,
}

/// All of them.
pub const DATA_FAULTS: [DataFault; 6] = [
    DataFault::BitFlip,
    DataFault::NullPointer,
    DataFault::WildPointer,
    DataFault::FunctionPointer,
    DataFault::RingIndex,
    DataFault::DmaAddress,
];

/// Changes the instruction at `address` of `m` so that it has a fault of this class; `false` if it cannot have one.
pub fn text(m: &mut Module, address: u64, fault: TextFault, r: &mut Random) -> bool {
    let is_unlock = |to: u64| m.externs.names(to).iter().any(|n| n.contains("unlock"));
    let is_return = |to: u64| m.externs.names(to).iter().any(|n| n.ends_with("return_thunk"));
    let Some(section) = m.sections.iter_mut().find(|s| s.executable && s.contains(address)) else { return false };
    let at = (address - section.address) as usize;
    let mut decoder = Decoder::with_ip(64, &section.bytes[at..], address, DecoderOptions::NONE);
    let i = decoder.decode();
    let bytes = &mut section.bytes[at..at + i.len().max(1)];
    match fault {
        TextFault::BitFlip => {
            let k = r.below(bytes.len() as u64 * 8);
            bytes[(k / 8) as usize] ^= 1 << (k % 8);
            true
        }
        TextFault::MissingInitialisation if i.mnemonic() == Mnemonic::Mov => nops(bytes),
        TextFault::RemovedCall if i.flow_control() == FlowControl::Call => nops(bytes),
        TextFault::RemovedUnlock if i.is_call_near() && is_unlock(i.near_branch_target()) => nops(bytes),
        // The last register is pushed in place of being popped, so that the return goes to its value.
        TextFault::WildReturn if i.code() == Code::Pop_r64 => {
            let last = bytes.len() - 1;
            bytes[last] -= 8;
            true
        }
        // A return, or a jump to the thunk of returns, goes to what a register holds.
        TextFault::WildReturn if i.flow_control() == FlowControl::Return || is_return(i.near_branch_target()) => {
            changed(&i, fault, r).is_some_and(|new| encode(&new, bytes))
        }
        TextFault::EndlessLoop if matches!(i.flow_control(), FlowControl::ConditionalBranch) => {
            bytes[0] = 0xeb;
            bytes[1] = 0xfe; // jump to itself
            nops(&mut bytes[2..]);
            true
        }
        TextFault::EarlyReturn => {
            bytes[0] = 0xc3;
            true
        }
        _ => changed(&i, fault, r).is_some_and(|new| encode(&new, bytes)),
    }
}

fn nops(bytes: &mut [u8]) -> bool {
    bytes.fill(0x90);
    true
}

fn encode(i: &Instruction, into: &mut [u8]) -> bool {
    let mut encoder = Encoder::new(64);
    let Ok(_) = encoder.encode(i, i.ip()) else { return false };
    let new = encoder.take_buffer();
    if new.len() > into.len() {
        return false;
    }
    into[..new.len()].copy_from_slice(&new);
    nops(&mut into[new.len()..])
}

/// Another register of the same width.
fn other(old: Register, r: &mut Random) -> Option<Register> {
    let first = match old.size() {
        8 if old.is_gpr64() => Register::RAX,
        4 if old.is_gpr32() => Register::EAX,
        _ => return None,
    };
    Some(first + r.below(16) as u32)
}

fn changed(i: &Instruction, fault: TextFault, r: &mut Random) -> Option<Instruction> {
    let mut n = *i;
    let has_memory = (0..i.op_count()).any(|k| i.op_kind(k) == OpKind::Memory);
    match fault {
        TextFault::SourceRegister => {
            let k = (0..i.op_count()).rev().find(|k| i.op_kind(*k) == OpKind::Register)?;
            n.set_op_register(k, other(i.op_register(k), r)?);
        }
        TextFault::DestinationRegister => {
            if i.op_count() == 0 || i.op0_kind() != OpKind::Register {
                return None;
            }
            n.set_op0_register(other(i.op0_register(), r)?);
        }
        // A loop that ends one round too early or too late.
        TextFault::OffByOne if i.flow_control() == FlowControl::ConditionalBranch => {
            use iced_x86::ConditionCode as C;
            let strict = match i.condition_code() {
                C::b => Code::Jbe_rel32_64,
                C::be => Code::Jb_rel32_64,
                C::a => Code::Jae_rel32_64,
                C::ae => Code::Ja_rel32_64,
                C::l => Code::Jle_rel32_64,
                C::le => Code::Jl_rel32_64,
                C::g => Code::Jge_rel32_64,
                C::ge => Code::Jg_rel32_64,
                _ => return None,
            };
            n.set_code(strict);
            if i.is_jcc_short() {
                n.as_short_branch();
            }
        }
        TextFault::OffByOne => {
            let k = (0..i.op_count()).find(|k| {
                matches!(
                    i.op_kind(*k),
                    OpKind::Immediate8
                        | OpKind::Immediate32
                        | OpKind::Immediate8to32
                        | OpKind::Immediate8to64
                        | OpKind::Immediate32to64
                )
            })?;
            let by = if r.one_in(2) { 1 } else { -1i32 };
            match i.op_kind(k) {
                OpKind::Immediate8 => n.set_immediate8(i.immediate8().wrapping_add(by as u8)),
                OpKind::Immediate32 => n.set_immediate32(i.immediate32().wrapping_add(by as u32)),
                OpKind::Immediate8to32 => n.set_immediate8to32(i.immediate8to32().wrapping_add(by)),
                OpKind::Immediate8to64 => n.set_immediate8to64(i.immediate8to64().wrapping_add(i64::from(by))),
                _ => n.set_immediate32to64(i.immediate32to64().wrapping_add(i64::from(by))),
            }
        }
        TextFault::WildPointer if has_memory => {
            if r.one_in(2) && i.memory_base().is_gpr64() {
                n.set_memory_base(other(i.memory_base(), r)?);
            } else if i.memory_displ_size() > 1 {
                n.set_memory_displacement64(r.draw() as i32 as i64 as u64);
            } else {
                n.set_memory_displacement64(r.draw() as i8 as i64 as u64);
            }
        }
        TextFault::NullPointer if i.mnemonic() == Mnemonic::Mov && has_memory && i.op0_kind() == OpKind::Register => {
            let to = i.op0_register();
            let to = if to.is_gpr64() { Register::EAX + (to as u32 - Register::RAX as u32) } else { to };
            n = Instruction::with2(Code::Xor_r32_rm32, to, to).ok()?;
            n.set_ip(i.ip());
        }
        TextFault::InvertedBranch if i.flow_control() == FlowControl::ConditionalBranch => n.negate_condition_code(),
        TextFault::WildIndirectCall if i.is_call_near() => {
            n = Instruction::with1(Code::Call_rm64, Register::RAX + r.below(16) as u32).ok()?;
            n.set_ip(i.ip());
        }
        TextFault::WildReturn => {
            n = Instruction::with1(Code::Jmp_rm64, Register::RAX + r.below(16) as u32).ok()?;
            n.set_ip(i.ip());
        }
        TextFault::StackSmash if has_memory && i.memory_base() == Register::RSP => {
            let by = 8 * (1 + r.below(64)) as i64;
            n.set_memory_displacement64((i.memory_displacement64() as i64 + by) as u64);
            n.set_memory_displ_size(if i.memory_displ_size() > 1 { 8 } else { 1 });
        }
        _ => return None,
    }
    Some(n)
}

/// Changes a byte, a register number or a displacement somewhere in `bytes`: what may happen to an image on its way.
pub fn image(bytes: &mut [u8], r: &mut Random) {
    let at = r.below(bytes.len() as u64) as usize;
    match r.below(4) {
        0 | 1 => bytes[at] ^= 1 << r.below(8),
        2 => bytes[at] = r.draw() as u8,
        _ => {
            let len = (1 + r.below(4) as usize).min(bytes.len() - at);
            let new = r.bytes(len);
            bytes[at..at + len].copy_from_slice(&new);
        }
    }
}
