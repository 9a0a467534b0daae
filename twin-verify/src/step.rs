//! The effect of one instruction on the state: rules M2, M3, M5 and S.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use twin_abi::image::Mode;
use twin_abi::kind::{Kind, CALLEE_SAVED};
use twin_abi::layout::{constant, FRAME_MAX, STRING_BYTES};

use crate::decode::{general, general32, general64, size, Class, Decoded};
use crate::flow;
use crate::operand::{self, Access, Address, Place, Word};
use crate::sweep::Context;
use crate::value::{callee_saved, number, State, Value, RCX, RSP};
use crate::Rule;

const RAX: usize = 0;
const RDX: usize = 2;
const RSI: usize = 6;
const RDI: usize = 7;

pub type Fault = (Rule, &'static str, i64);

/// Whether the code after the instruction can be reached from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Goes,
    Ends,
}

/// Checks one instruction in `state` and changes the state as it does.
pub fn step(context: &Context<'_, '_>, decoded: &Decoded, state: &mut State) -> Result<Next, Fault> {
    let instruction = &decoded.instruction;
    let compared = state.compared.take();
    match decoded.class {
        Class::Flow => return flow::flow(context, instruction, state, compared),
        Class::Stack => stack(context, instruction, state)?,
        Class::String => string(context, instruction, state)?,
        Class::Address => address(context, instruction, state)?,
        class => plain(context, class, instruction, state)?,
    }
    Ok(Next::Goes)
}

/// Everything with ordinary operands.
fn plain(context: &Context<'_, '_>, class: Class, instruction: &Instruction, state: &mut State) -> Result<(), Fault> {
    if let Some(bytes) = stack_adjustment(instruction) {
        return adjust(state, bytes);
    }
    for n in 0..instruction.op_count() {
        if instruction.op_kind(n) == OpKind::Register && general(instruction.op_register(n)) == Some(RSP) {
            return Err((Rule::S1, "rsp as an operand", i64::from(n)));
        }
    }
    let place = memory(context, class, instruction, state)?;
    if place == Some(Place::Word(Word::Budget)) {
        let at = usize::try_from(instruction.ip()).unwrap_or(usize::MAX);
        if flow::charge(context, at).is_none() {
            return Err((Rule::B1, "budget touched outside a charge", 0));
        }
        state.charged = true;
        return Ok(());
    }
    if class == Class::Bits {
        bit_offset(instruction, state)?;
    }
    let value = result(context, instruction, state, place);
    check_word(context, instruction, place, value)?;
    write_back(class, instruction, state, value)?;
    if instruction.mnemonic() == Mnemonic::Cmp && instruction.op0_kind() == OpKind::Register {
        state.compared = compared_with(instruction);
    }
    Ok(())
}

/// Checks the memory operand, if there is one.
fn memory(
    context: &Context<'_, '_>,
    class: Class,
    instruction: &Instruction,
    state: &State,
) -> Result<Option<Place>, Fault> {
    let Some(at) = (0..instruction.op_count()).find(|n| instruction.op_kind(*n) == OpKind::Memory) else {
        return Ok(None);
    };
    if is_barrier(instruction) {
        return Ok(None);
    }
    let only_read = match class {
        Class::Reads | Class::Multiplies => true,
        Class::Bits => instruction.mnemonic() == Mnemonic::Bt,
        _ => at > 0 && class != Class::Exchanges,
    };
    let access = if only_read { Access::Read } else { Access::Write };
    let args = context.function.stack_args;
    let place = operand::place(instruction, state, context.image, args, access, size(instruction))?;
    Ok(Some(place))
}

/// `lock or/add dword [rsp-4], 0`, a memory barrier that changes nothing.
fn is_barrier(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Or_rm32_imm8 | Code::Add_rm32_imm8)
        && instruction.has_lock_prefix()
        && instruction.immediate8() == 0
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() as i64 == -4
}

/// M4: which instructions may name which words, and that nothing else is made of table entries (M1).
fn check_word(
    context: &Context<'_, '_>,
    instruction: &Instruction,
    place: Option<Place>,
    value: Value,
) -> Result<(), Fault> {
    let is_move = instruction.mnemonic() == Mnemonic::Mov;
    let loads = is_move && instruction.op0_kind() == OpKind::Register;
    let is_mask = |word| word == constant::MASK && context.image.mode == Mode::Mirror;
    let allowed = match place {
        Some(Place::Word(Word::MissAddress | Word::Spill)) => is_move,
        Some(Place::Word(Word::MissResult)) => loads,
        Some(Place::Word(Word::Constant(word))) => loads || (is_mask(word) && value == Value::Masked),
        Some(Place::Word(_) | Place::Entry) => false,
        Some(Place::Mapped) => value == Value::Window,
        Some(Place::Frame | Place::Domain | Place::Tag) | None => true,
    };
    if allowed {
        Ok(())
    } else {
        Err((Rule::M4, "word may not be used like this", 0))
    }
}

/// M5: a bit offset in a register must stay inside the operand, or it would move the address.
fn bit_offset(instruction: &Instruction, state: &State) -> Result<(), Fault> {
    if instruction.op0_kind() != OpKind::Memory || instruction.op1_kind() != OpKind::Register {
        return Ok(());
    }
    let bits = u32::try_from(size(instruction) * 8).unwrap_or(0);
    let register = general(instruction.op1_register()).unwrap_or(RSP);
    match state.get(register).bound() {
        Some(max) if max < bits => Ok(()),
        _ => Err((Rule::M5, "bit offset may leave the operand", number(register))),
    }
}

/// Writes the registers that the instruction writes.
fn write_back(class: Class, instruction: &Instruction, state: &mut State, value: Value) -> Result<(), Fault> {
    let operand = |n| match instruction.op_kind(n) {
        OpKind::Register => general(instruction.op_register(n)),
        _ => None,
    };
    let mut write = |register: Option<usize>, value| register.map_or(Ok(()), |r| state.write(r, value));
    match class {
        Class::Writes | Class::Sets => write(operand(0), value),
        Class::Bits if instruction.mnemonic() == Mnemonic::Bt => Ok(()),
        Class::Bits => write(operand(0), Value::Any),
        Class::Exchanges => exchange(instruction, state),
        Class::CompareExchange => {
            write(operand(0), Value::Any)?;
            write(Some(RAX), Value::Any)
        }
        Class::Multiplies if instruction.op_count() > 1 => write(operand(0), value),
        Class::Multiplies => {
            write(Some(RAX), Value::Any)?;
            write(Some(RDX), Value::Any)
        }
        Class::Implicit(register) => write(Some(usize::from(register)).filter(|r| *r < 16), Value::Any),
        Class::Reads | Class::String | Class::Stack | Class::Flow | Class::Address => Ok(()),
    }
}

/// `xchg` and `xadd`: values move only between full registers.
fn exchange(instruction: &Instruction, state: &mut State) -> Result<(), Fault> {
    let of = |n| Some(instruction.op_register(n)).filter(|_| instruction.op_kind(n) == OpKind::Register);
    let (first, second) = (of(0).and_then(general), of(1).and_then(general));
    let full = of(0).and_then(general64).is_some() && of(1).and_then(general64).is_some();
    let swapped = full && instruction.mnemonic() == Mnemonic::Xchg;
    let old = |register: Option<usize>| register.filter(|_| swapped).map_or(Value::Any, |r| state.get(r));
    let (to_first, to_second) = (old(second), old(first));
    if let Some(register) = first {
        state.write(register, to_first)?;
    }
    if let Some(register) = second {
        state.write(register, to_second)?;
    }
    Ok(())
}

/// What a `cmp r64, imm` tells a following `ja` or `jae`.
fn compared_with(instruction: &Instruction) -> Option<(usize, u32)> {
    let register = general64(instruction.op0_register())?;
    let immediate = immediate(instruction)?;
    Some((register, u32::try_from(immediate).ok()?))
}

/// The second operand if it is an immediate, sign-extended as the instruction does.
fn immediate(instruction: &Instruction) -> Option<u64> {
    use OpKind as K;
    let kinds =
        [K::Immediate8, K::Immediate32, K::Immediate64, K::Immediate8to32, K::Immediate8to64, K::Immediate32to64];
    kinds.contains(&instruction.op1_kind()).then(|| instruction.immediate(1))
}

/// M2: the value of the destination register; Any where no rule says more.
fn result(context: &Context<'_, '_>, instruction: &Instruction, state: &State, place: Option<Place>) -> Value {
    if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
        return Value::Any;
    }
    if let Some(destination) = general64(instruction.op0_register()) {
        result64(context, instruction, state, place, destination)
    } else if general32(instruction.op0_register()).is_some() {
        result32(instruction, state)
    } else {
        Value::Any
    }
}

fn result64(
    context: &Context<'_, '_>,
    instruction: &Instruction,
    state: &State,
    place: Option<Place>,
    destination: usize,
) -> Value {
    let register =
        |n| (instruction.op_kind(n) == OpKind::Register).then(|| general64(instruction.op_register(n))).flatten();
    let known = |n| register(n).map_or(Value::Any, |r| state.get(r));
    let mask_word = context.image.mode == Mode::Mirror && place == Some(Place::Word(Word::Constant(constant::MASK)));
    let mask = Value::Is(Kind::Mask);
    match instruction.mnemonic() {
        Mnemonic::Mov => match (place, immediate(instruction)) {
            (Some(Place::Word(word)), _) => loaded(context, word),
            (_, Some(value)) => Value::constant(value, context.policy),
            _ => known(1),
        },
        Mnemonic::Movzx => widened(instruction),
        Mnemonic::And if mask_word || known(1) == mask || state.get(destination) == mask => Value::Masked,
        Mnemonic::And => match immediate(instruction).map(u32::try_from) {
            Some(Ok(most)) => limited(most),
            _ => Value::Any,
        },
        Mnemonic::Pext if mask_word || known(2) == mask => Value::Masked,
        Mnemonic::Bzhi if known(2) == Value::Is(Kind::Bits) => Value::Masked,
        Mnemonic::Shr => match immediate(instruction) {
            Some(by @ 32..=63) => Value::AtMost(u32::try_from(u64::MAX >> by).unwrap_or(u32::MAX)),
            _ => Value::Any,
        },
        Mnemonic::Add if place == Some(Place::Mapped) && state.get(destination).implies(Kind::PageOffset) => {
            Value::Window
        }
        // Mnemonics are in the order of the alphabet.
        m if (Mnemonic::Cmova..=Mnemonic::Cmovs).contains(&m) && known(1) == state.get(destination) => known(1),
        _ => Value::Any,
    }
}

fn result32(instruction: &Instruction, state: &State) -> Value {
    let below = Value::AtMost(u32::MAX);
    let immediate = immediate(instruction).map(|value| (value & 0xffff_ffff) as u32);
    match instruction.mnemonic() {
        Mnemonic::Mov => match immediate {
            Some(value) => Value::AtMost(value),
            None if instruction.op1_kind() == OpKind::Register => {
                let source = general(instruction.op1_register()).map_or(Value::Any, |r| state.get(r));
                source.bound().map_or(below, |_| source)
            }
            None => below,
        },
        Mnemonic::Movzx => widened(instruction),
        Mnemonic::And => immediate.map_or(below, limited),
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Inc | Mnemonic::Dec => below,
        Mnemonic::Neg | Mnemonic::Not | Mnemonic::Imul => below,
        Mnemonic::Shr => match immediate {
            Some(by @ 1..=31) => Value::AtMost(u32::MAX >> by),
            _ => Value::Any,
        },
        Mnemonic::Shl | Mnemonic::Sar if immediate.is_some_and(|by| (1..=31).contains(&by)) => below,
        _ => Value::Any,
    }
}

/// The value of a register and-ed with a constant.
fn limited(most: u32) -> Value {
    if most % 16 == 0 {
        Value::Step16(most)
    } else {
        Value::AtMost(most)
    }
}

/// `movzx` from 8 or 16 bits.
fn widened(instruction: &Instruction) -> Value {
    match instruction.code() {
        Code::Movzx_r32_rm8 | Code::Movzx_r64_rm8 => Value::AtMost(0xff),
        Code::Movzx_r32_rm16 | Code::Movzx_r64_rm16 => Value::AtMost(0xffff),
        _ => Value::Any,
    }
}

/// The value of a word loaded by `mov r64`.
fn loaded(context: &Context<'_, '_>, word: Word) -> Value {
    match (context.image.mode, word) {
        (Mode::Mirror, Word::Constant(constant::MASK)) => Value::Is(Kind::Mask),
        (Mode::Mirror, Word::Constant(constant::BITS)) => Value::Is(Kind::Bits),
        (Mode::Mirror, Word::Constant(constant::PERCPU)) => Value::Masked,
        (Mode::Stlb, Word::MissResult) => Value::Window,
        (_, Word::Constant(constant::DELTA)) => Value::Is(Kind::Delta),
        _ => Value::Any,
    }
}

/// `lea` and `nop`: nothing is accessed.
fn address(context: &Context<'_, '_>, instruction: &Instruction, state: &mut State) -> Result<(), Fault> {
    if instruction.mnemonic() == Mnemonic::Nop {
        return Ok(());
    }
    let destination = instruction.op0_register();
    let full = general64(destination);
    if instruction.memory_base() == Register::RIP {
        let target = instruction.memory_displacement64() as i64;
        let kind = match operand::word(target, context.image) {
            Some(Word::StlbTable) => Kind::StlbBase,
            Some(Word::CallTable) => Kind::CallBase,
            _ => return Err((Rule::M4, "no such table", target)),
        };
        return full.map_or(Err((Rule::M4, "half an address", target)), |r| state.write(r, Value::Is(kind)));
    }
    let operand = Address::of(instruction)?;
    if full == Some(RSP) {
        return match operand {
            Address { base: Some(RSP), index: None, displacement, .. } => adjust(state, displacement),
            _ => Err((Rule::S1, "rsp is set", operand.displacement)),
        };
    }
    let uses_stack = operand.base == Some(RSP) || operand.index == Some(RSP);
    if uses_stack && !operand.is_unsafe_area(state, 0, context.function.stack_args) {
        return Err((Rule::M1, "address of the stack", operand.displacement));
    }
    let value = if general32(destination).is_some() { Value::AtMost(u32::MAX) } else { Value::Any };
    general(destination).map_or(Ok(()), |r| state.write(r, value))
}

/// The bytes by which `add rsp, imm` or `sub rsp, imm` moves rsp.
fn stack_adjustment(instruction: &Instruction) -> Option<i64> {
    let by = match instruction.code() {
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 | Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 => {
            immediate(instruction)?
        }
        _ => return None,
    };
    if instruction.op0_kind() != OpKind::Register || general64(instruction.op0_register()) != Some(RSP) {
        return None;
    }
    let by = by as i64;
    Some(if instruction.mnemonic() == Mnemonic::Add { by } else { -by })
}

/// S1, S3, S5: moves rsp by `bytes` (up is positive).
fn adjust(state: &mut State, bytes: i64) -> Result<(), Fault> {
    let depth = i64::from(state.frame.depth) * 8 - bytes;
    if bytes % 8 != 0 {
        return Err((Rule::S1, "rsp moved by a part of a slot", bytes));
    }
    if !(0..=i64::from(FRAME_MAX)).contains(&depth) {
        return Err((Rule::S5, "frame too deep or below nothing", depth));
    }
    let slots = u16::try_from(depth / 8).unwrap_or(0);
    if state.frame.saved.iter().any(|slot| u16::from(*slot) > slots) {
        return Err((Rule::S3, "saved slot is dropped", bytes));
    }
    state.frame.depth = slots;
    Ok(())
}

/// `push` and `pop`.
fn stack(context: &Context<'_, '_>, instruction: &Instruction, state: &mut State) -> Result<(), Fault> {
    let is_register = instruction.op0_kind() == OpKind::Register;
    let register = general64(instruction.op0_register()).filter(|_| is_register);
    if is_register && register.is_none_or(|r| r == RSP) {
        return Err((Rule::S1, "register cannot be pushed or popped", 0));
    }
    if instruction.mnemonic() == Mnemonic::Push {
        if instruction.op0_kind() == OpKind::Memory {
            let args = context.function.stack_args;
            let place = operand::place(instruction, state, context.image, args, Access::Read, size(instruction))?;
            if !matches!(place, Place::Frame | Place::Domain) {
                return Err((Rule::M4, "word may not be used like this", 0));
            }
        }
        adjust(state, -8)?;
        return register.map_or(Ok(()), |register| save(state, register));
    }
    let register = register.ok_or((Rule::S1, "pop into memory", 0))?;
    let depth = state.frame.depth;
    let owner = state.frame.saved.iter().position(|slot| depth != 0 && u16::from(*slot) == depth);
    let Some(owner) = owner else {
        adjust(state, 8)?;
        return state.write(register, Value::Any);
    };
    if CALLEE_SAVED.get(owner).copied().map(usize::from) != Some(register) {
        return Err((Rule::S3, "saved value popped into another register", number(register)));
    }
    if let Some(slot) = state.frame.saved.get_mut(owner) {
        *slot = 0;
    }
    state.set(register, Value::Any);
    adjust(state, 8)
}

/// S3: a pushed callee-saved register that holds the caller's value makes a saved slot.
fn save(state: &mut State, register: usize) -> Result<(), Fault> {
    let depth = state.frame.depth;
    if let Some(slot) = callee_saved(register).and_then(|n| state.frame.saved.get_mut(n)) {
        if *slot == 0 {
            *slot = u8::try_from(depth).map_err(|_| (Rule::S5, "saved too deep", i64::from(depth)))?;
        }
    }
    Ok(())
}

/// M3: string instructions.
fn string(context: &Context<'_, '_>, instruction: &Instruction, state: &mut State) -> Result<(), Fault> {
    use Mnemonic as M;
    let (pointers, loads): (&[usize], bool) = match instruction.mnemonic() {
        M::Movsb | M::Movsw | M::Movsd | M::Movsq | M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq => (&[RDI, RSI], false),
        M::Stosb | M::Stosw | M::Stosd | M::Stosq | M::Scasb | M::Scasw | M::Scasd | M::Scasq => (&[RDI], false),
        _ => (&[RSI], true),
    };
    let size = match instruction.mnemonic() {
        M::Movsb | M::Cmpsb | M::Stosb | M::Scasb | M::Lodsb => 1,
        M::Movsw | M::Cmpsw | M::Stosw | M::Scasw | M::Lodsw => 2,
        M::Movsd | M::Cmpsd | M::Stosd | M::Scasd | M::Lodsd => 4,
        _ => 8,
    };
    let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let pointer = match context.image.mode {
        Mode::Mirror => Kind::Masked,
        Mode::Stlb => Kind::Window,
    };
    for register in pointers {
        if !state.get(*register).implies(pointer) {
            return Err((Rule::M3, "string address not translated", number(*register)));
        }
    }
    if repeats && state.get(RCX).bound().is_none_or(|max| max > STRING_BYTES / size) {
        return Err((Rule::M3, "string too long", number(RCX)));
    }
    for register in pointers {
        state.write(*register, Value::Any)?;
    }
    if repeats {
        state.write(RCX, Value::Any)?;
    }
    if loads {
        state.write(RAX, Value::Any)?;
    }
    Ok(())
}
