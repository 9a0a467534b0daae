//! Jumps, calls, returns and the budget: rules C and B.

use twin_abi::image::{Function, Mode};
use twin_abi::kind::State as Declared;
use twin_abi::layout::gate;

use crate::decode::decode;
use crate::decode::instruction::{Base, Instruction, Op, ABOVE, ABOVE_OR_EQUAL, SIGN};
use crate::operand::{self, Access, Place, Word};
use crate::step::{Fault, Next};
use crate::sweep::Context;
use crate::tables::label_state;
use crate::value::{State, Value, RCX};
use crate::Rule;

/// Checks an instruction that diverts control.
pub fn flow(
    context: &Context<'_, '_>,
    instruction: &Instruction,
    state: &mut State,
    compared: Option<(usize, u32)>,
) -> Result<Next, Fault> {
    match instruction.op {
        Op::Ud2 => Ok(Next::Ends),
        Op::Ret => {
            empty(state, Rule::C6)?;
            Ok(Next::Ends)
        }
        Op::Call => {
            call(context, instruction, state)?;
            Ok(Next::Goes)
        }
        Op::Jmp => {
            match instruction.target() {
                Some(to) => jump(context, instruction, state, to)?,
                None => indirect(context, instruction, state, true)?,
            }
            Ok(Next::Ends)
        }
        _ => {
            let to = instruction.target().ok_or((Rule::C1, "jump of another form", 0))?;
            jump(context, instruction, state, to)?;
            refine(context, instruction, state, compared);
            Ok(Next::Goes)
        }
    }
}

/// A direct jump: inside the function to a label (C1), or a tail call (C5).
fn jump(context: &Context<'_, '_>, instruction: &Instruction, state: &State, to: u64) -> Result<(), Fault> {
    let refused = |rule, what| Err((rule, what, to as i64));
    let Ok(offset) = u32::try_from(to) else { return refused(Rule::C1, "jump out of the code") };
    let own = context.function;
    if (own.start..own.end).contains(&offset) {
        let Some((declared, is_charge)) = label_state(context.image, offset) else {
            return refused(Rule::C1, "jump to no label");
        };
        implies(state, &declared)?;
        if context.policy.counted && to <= instruction.at as u64 && !is_charge && !state.charged {
            return refused(Rule::B1, "loop is not charged");
        }
        return Ok(());
    }
    let Some(function) = starting_at(context, offset) else { return refused(Rule::C1, "jump into another function") };
    empty(state, Rule::C5)?;
    if function.stack_args > own.stack_args {
        return refused(Rule::C5, "tail call with more arguments");
    }
    enters(context, state, &function)
}

fn starting_at(context: &Context<'_, '_>, offset: u32) -> Option<Function> {
    let functions = context.image.functions();
    functions.get(functions.last_not_above(offset, |f| f.start)?).filter(|f| f.start == offset)
}

/// The kinds that a function declares at its start hold, and the caller is charged (B2).
fn enters(context: &Context<'_, '_>, state: &State, function: &Function) -> Result<(), Fault> {
    charged_entry(context)?;
    let (declared, _) = label_state(context.image, function.start).ok_or((Rule::C2, "no label", 0))?;
    kinds(state, &declared)
}

fn charged_entry(context: &Context<'_, '_>) -> Result<(), Fault> {
    if context.policy.counted && !context.charged_entry {
        return Err((Rule::B2, "function with calls does not begin with a charge", 0));
    }
    Ok(())
}

/// C1: `state` implies what a label declares.
pub fn implies(state: &State, declared: &Declared) -> Result<(), Fault> {
    if state.frame != declared.frame {
        return Err((Rule::C1, "frame differs from the declared one", i64::from(state.frame.depth)));
    }
    kinds(state, declared)
}

fn kinds(state: &State, declared: &Declared) -> Result<(), Fault> {
    match state.misfit(declared) {
        None => Ok(()),
        Some(register) => Err((Rule::C1, "register is not of the declared kind", i64::from(register))),
    }
}

fn empty(state: &State, rule: Rule) -> Result<(), Fault> {
    if state.frame_is_empty() {
        Ok(())
    } else {
        Err((rule, "frame not empty", i64::from(state.frame.depth)))
    }
}

/// A call: direct (C2), or through a word (C3) or the call table (C4).
fn call(context: &Context<'_, '_>, instruction: &Instruction, state: &mut State) -> Result<(), Fault> {
    let Some(to) = instruction.target() else { return indirect(context, instruction, state, false) };
    let function = u32::try_from(to).ok().and_then(|offset| starting_at(context, offset));
    let function = function.ok_or((Rule::C2, "call to no function", to as i64))?;
    enters(context, state, &function)?;
    arguments(state, function.stack_args)?;
    state.forget_caller_saved();
    Ok(())
}

/// C2: the words at rsp that the callee may write are there and hold nothing saved.
fn arguments(state: &State, words: u32) -> Result<(), Fault> {
    let depth = u32::from(state.frame.depth);
    let saved = state.frame.saved.iter().any(|slot| *slot != 0 && u32::from(*slot) + words > depth);
    if words > depth || saved {
        return Err((Rule::C2, "no room for stack arguments", i64::from(words)));
    }
    Ok(())
}

/// `call` or `jmp` through memory.
fn indirect(
    context: &Context<'_, '_>,
    instruction: &Instruction,
    state: &mut State,
    is_jump: bool,
) -> Result<(), Fault> {
    let memory = instruction.memory.as_ref().ok_or((Rule::C3, "indirect branch", 0))?;
    let place = operand::place(memory, state, context.image, context.function.stack_args, Access::Read)?;
    let is_gate = |offset| place == Place::Word(Word::Gate(offset));
    if is_gate(gate::WARN) || (is_gate(gate::STLB_MISS) && context.image.mode == Mode::Stlb) {
        if is_jump {
            return Err((Rule::C5, "jump to a gate that returns", 0));
        }
        state.charged = true;
        return Ok(());
    }
    let into_image = match place {
        Place::Word(Word::Import(_)) => false,
        Place::Word(Word::Gate(gate::ICALL)) => true,
        Place::Entry => {
            charged_entry(context)?;
            true
        }
        _ => return Err((Rule::C3, "no gate, import or call table entry", 0)),
    };
    let provided = context.image.indirect_args;
    if is_jump {
        empty(state, Rule::C5)?;
        if into_image && provided > context.function.stack_args {
            return Err((Rule::C5, "tail call with more arguments", i64::from(provided)));
        }
        return Ok(());
    }
    if into_image {
        arguments(state, provided)?;
    }
    state.forget_caller_saved();
    state.charged = place != Place::Entry || state.charged;
    Ok(())
}

/// After a comparison, what the way not taken knows. Stlb: the register's value (M2). Mirror: how long a repeated
/// string instruction that comes next may be (M3), and nothing that an address is made of, since a processor that
/// guesses the branch wrong goes this way with any value.
fn refine(context: &Context<'_, '_>, instruction: &Instruction, state: &mut State, compared: Option<(usize, u32)>) {
    let Some((register, limit)) = compared else { return };
    let most = match instruction.op {
        Op::Jcc(ABOVE) => Some(limit),
        Op::Jcc(ABOVE_OR_EQUAL) => limit.checked_sub(1),
        _ => None,
    };
    let Some(most) = most else { return };
    match context.policy.mode {
        Mode::Mirror => state.counted = Some(most).filter(|_| register == RCX),
        Mode::Stlb if state.get(register).bound().is_none_or(|known| most < known) => {
            state.set(register, Value::AtMost(most));
        }
        Mode::Stlb => {}
    }
}

/// B1: whether `dec qword [rip+BUDGET]; js L` with `ud2` at L stands at `at`; its length.
pub fn charge(context: &Context<'_, '_>, at: usize) -> Option<usize> {
    let code = context.code;
    let decrement = decode(code, at, false).ok()?.instruction;
    let word = decrement.memory.filter(|memory| memory.base == Base::Rip && memory.size == 8);
    let is_budget = decrement.op == Op::Dec
        && !decrement.lock
        && word.and_then(|memory| operand::word(memory.displacement, context.image)) == Some(Word::Budget);
    if !is_budget {
        return None;
    }
    let next = at + decrement.len;
    let branch = decode(code, next, false).ok()?.instruction;
    let to = usize::try_from(branch.target()?).ok()?;
    let ends = code.get(to..to.checked_add(2)?) == Some(&[0x0f, 0x0b][..]);
    (branch.op == Op::Jcc(SIGN) && ends).then(|| next + branch.len - at)
}
