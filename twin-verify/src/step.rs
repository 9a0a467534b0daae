//! The effect of one instruction on the state: rules M2, M3, M5 and S.

use twin_abi::image::Mode;
use twin_abi::kind::{Kind, CALLEE_SAVED};
use twin_abi::layout::{constant, FRAME_MAX, STRING_BYTES};

use crate::decode::instruction::{Base, Instruction, Op};
use crate::decode::{Class, Decoded};
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
    let counted = state.counted.take();
    match decoded.class {
        Class::Flow => return flow::flow(context, instruction, state, compared),
        Class::Stack => stack(context, instruction, state)?,
        Class::String => string(context, instruction, state, counted)?,
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
    if let Some(n) = (0..3).find(|n| instruction.number(*n) == Some(RSP)) {
        return Err((Rule::S1, "rsp as an operand", number(n)));
    }
    let place = memory(context, class, instruction, state)?;
    if place == Some(Place::Word(Word::Budget)) {
        if flow::charge(context, instruction.at).is_none() {
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
    if instruction.op == Op::Cmp {
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
    let Some(memory) = &instruction.memory else { return Ok(None) };
    if is_barrier(instruction) {
        return Ok(None);
    }
    let only_read = match class {
        Class::Reads | Class::Multiplies => true,
        Class::Bits => instruction.op == Op::Bt,
        _ => !instruction.is_memory(0) && class != Class::Exchanges,
    };
    let access = if only_read { Access::Read } else { Access::Write };
    operand::place(memory, state, context.image, context.function.stack_args, access).map(Some)
}

/// `lock or/add dword [rsp-4], 0`, a memory barrier that changes nothing.
fn is_barrier(instruction: &Instruction) -> bool {
    let is_below_stack = instruction.memory.is_some_and(|m| {
        let is_stack = matches!(m.base, Base::Register(n) if usize::from(n) == RSP);
        is_stack && (m.index, m.displacement, m.size) == (None, -4, 4)
    });
    matches!(instruction.op, Op::Or | Op::Add)
        && instruction.lock
        && instruction.constant() == Some(0)
        && is_below_stack
}

/// M4: which instructions may name which words, and that nothing else is made of table entries (M1).
fn check_word(
    context: &Context<'_, '_>,
    instruction: &Instruction,
    place: Option<Place>,
    value: Value,
) -> Result<(), Fault> {
    let is_move = instruction.op == Op::Mov;
    let loads = is_move && instruction.register(0).is_some();
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
    let (Some(memory), Some(register)) = (instruction.memory, instruction.number(1)) else { return Ok(()) };
    let bits = u32::from(memory.size) * 8;
    match state.get(register).bound() {
        Some(max) if max < bits => Ok(()),
        _ => Err((Rule::M5, "bit offset may leave the operand", number(register))),
    }
}

/// Writes the registers that the instruction writes.
fn write_back(class: Class, instruction: &Instruction, state: &mut State, value: Value) -> Result<(), Fault> {
    let operand = |n| instruction.number(n);
    let mut write = |register: Option<usize>, value| register.map_or(Ok(()), |r| state.write(r, value));
    match class {
        Class::Writes => write(operand(0), value),
        Class::Bits if instruction.op == Op::Bt => Ok(()),
        Class::Bits => write(operand(0), Value::Any),
        Class::Exchanges => exchange(instruction, state),
        Class::CompareExchange => {
            write(operand(0), Value::Any)?;
            write(Some(RAX), Value::Any)
        }
        Class::Multiplies if instruction.operands[1].is_some() => write(operand(0), value),
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
    let (first, second) = (instruction.number(0), instruction.number(1));
    let full = instruction.number64(0).is_some() && instruction.number64(1).is_some();
    let swapped = full && instruction.op == Op::Xchg;
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
    Some((instruction.number64(0)?, u32::try_from(instruction.constant()?).ok()?))
}

/// M2: the value of the destination register; Any where no rule says more.
fn result(context: &Context<'_, '_>, instruction: &Instruction, state: &State, place: Option<Place>) -> Value {
    if let Some(destination) = instruction.number64(0) {
        result64(context, instruction, state, place, destination)
    } else if instruction.number32(0).is_some() {
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
    let known = |n| instruction.number64(n).map_or(Value::Any, |r| state.get(r));
    let mask_word = context.image.mode == Mode::Mirror && place == Some(Place::Word(Word::Constant(constant::MASK)));
    let mask = Value::Is(Kind::Mask);
    match instruction.op {
        Op::Mov => match (place, instruction.constant()) {
            (Some(Place::Word(word)), _) => loaded(context, word),
            (_, Some(value)) => Value::constant(value, context.policy),
            _ => known(1),
        },
        Op::Movzx => widened(instruction),
        Op::And if mask_word || known(1) == mask || state.get(destination) == mask => Value::Masked,
        Op::And => match instruction.constant().map(u32::try_from) {
            Some(Ok(most)) => limited(most),
            _ => Value::Any,
        },
        Op::Pext if mask_word || known(2) == mask => Value::Masked,
        Op::Bzhi if known(2) == Value::Is(Kind::Bits) => Value::Masked,
        Op::Shr => match instruction.constant() {
            Some(by @ 32..=63) => Value::AtMost(u32::try_from(u64::MAX >> by).unwrap_or(u32::MAX)),
            _ => Value::Any,
        },
        Op::Add if place == Some(Place::Mapped) && state.get(destination).implies(Kind::PageOffset) => Value::Window,
        Op::Cmov if known(1) == state.get(destination) => known(1),
        _ => Value::Any,
    }
}

fn result32(instruction: &Instruction, state: &State) -> Value {
    let below = Value::AtMost(u32::MAX);
    let constant = instruction.constant().map(|value| (value & 0xffff_ffff) as u32);
    match instruction.op {
        Op::Mov => match (constant, instruction.number(1)) {
            (Some(value), _) => Value::AtMost(value),
            (None, Some(from)) => state.get(from).bound().map_or(below, |_| state.get(from)),
            (None, None) => below,
        },
        Op::Movzx => widened(instruction),
        Op::And => constant.map_or(below, limited),
        Op::Add | Op::Sub | Op::Or | Op::Xor | Op::Inc | Op::Dec | Op::Neg | Op::Not | Op::Imul => below,
        Op::Shr => match constant {
            Some(by @ 1..=31) => Value::AtMost(u32::MAX >> by),
            _ => Value::Any,
        },
        Op::Shl | Op::Sar if constant.is_some_and(|by| (1..=31).contains(&by)) => below,
        _ => Value::Any,
    }
}

/// The value of a register and-ed with a constant.
fn limited(most: u32) -> Value {
    if most.is_multiple_of(16) {
        Value::Step16(most)
    } else {
        Value::AtMost(most)
    }
}

/// `movzx` from 8 or 16 bits.
fn widened(instruction: &Instruction) -> Value {
    let from = instruction.memory.map(|memory| memory.size).or(instruction.register(1).map(|register| register.width));
    match from {
        Some(1) => Value::AtMost(0xff),
        Some(2) => Value::AtMost(0xffff),
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
    let Some(memory) = instruction.memory.filter(|_| instruction.op == Op::Lea) else { return Ok(()) };
    let full = instruction.number64(0);
    if memory.base == Base::Rip {
        let target = memory.displacement;
        let kind = match operand::word(target, context.image) {
            Some(Word::StlbTable) => Kind::StlbBase,
            Some(Word::CallTable) => Kind::CallBase,
            _ => return Err((Rule::M4, "no such table", target)),
        };
        return full.map_or(Err((Rule::M4, "half an address", target)), |r| state.write(r, Value::Is(kind)));
    }
    let operand = Address::of(&memory);
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
    let value = if instruction.number32(0).is_some() { Value::AtMost(u32::MAX) } else { Value::Any };
    instruction.number(0).map_or(Ok(()), |r| state.write(r, value))
}

/// The bytes by which `add rsp, imm` or `sub rsp, imm` moves rsp.
fn stack_adjustment(instruction: &Instruction) -> Option<i64> {
    let by = instruction.constant().filter(|_| instruction.number64(0) == Some(RSP))? as i64;
    match instruction.op {
        Op::Add => Some(by),
        Op::Sub => Some(-by),
        _ => None,
    }
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
    let register = instruction.number64(0);
    if register == Some(RSP) {
        return Err((Rule::S1, "register cannot be pushed or popped", 0));
    }
    if instruction.op == Op::Push {
        if let Some(memory) = &instruction.memory {
            let place = operand::place(memory, state, context.image, context.function.stack_args, Access::Read)?;
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

/// M3: string instructions. `counted` is what a branch directly before says of rcx.
fn string(
    context: &Context<'_, '_>,
    instruction: &Instruction,
    state: &mut State,
    counted: Option<u32>,
) -> Result<(), Fault> {
    let pointers: &[usize] = match instruction.op {
        Op::Movs | Op::Cmps => &[RDI, RSI],
        Op::Stos | Op::Scas => &[RDI],
        _ => &[RSI],
    };
    let pointer = match context.image.mode {
        Mode::Mirror => Kind::Masked,
        Mode::Stlb => Kind::Window,
    };
    for register in pointers {
        if !state.get(*register).implies(pointer) {
            return Err((Rule::M3, "string address not translated", number(*register)));
        }
    }
    let most = STRING_BYTES / u32::from(instruction.size.max(1));
    let is_short = |max: Option<u32>| max.is_some_and(|max| max <= most);
    if instruction.repeat && !is_short(state.get(RCX).bound()) && !is_short(counted) {
        return Err((Rule::M3, "string too long", number(RCX)));
    }
    for register in pointers {
        state.write(*register, Value::Any)?;
    }
    if instruction.repeat {
        state.write(RCX, Value::Any)?;
    }
    if instruction.op == Op::Lods {
        state.write(RAX, Value::Any)?;
    }
    Ok(())
}
