//! The pass over one function: its labels, and one instruction after the other.

use twin_abi::image::{flags, Function, Image};

use crate::step::{self, Fault, Next};
use crate::tables::label_state;
use crate::value::State;
use crate::{decode, flow, Policy, Refusal, Rule};

/// What is fixed while one function is checked.
pub struct Context<'c, 'a> {
    pub image: &'c Image<'a>,
    pub policy: &'c Policy,
    pub function: Function,
    /// The code up to the end of the function.
    pub code: &'a [u8],
    /// The function begins with a charge (B2).
    pub charged_entry: bool,
}

/// Checks one function, from its first byte to its last. Returns the number of instructions.
pub fn function(image: &Image<'_>, policy: &Policy, function: Function) -> Result<u32, Refusal> {
    let (start, end) = (function.start as usize, function.end as usize);
    let code = image.code().get(..end).unwrap_or(&[]);
    let mut context = Context { image, policy, function, code, charged_entry: false };
    context.charged_entry = flow::charge(&context, start).is_some();
    let labels = image.labels();
    let mut label = labels.last_not_above(function.start, |l| l.offset).unwrap_or(0);
    let (mut at, mut count) = (start, 0);
    // `None`: the code cannot run here.
    let mut state: Option<State> = None;
    while at < end {
        if let Some(next) = labels.get(label).filter(|next| next.offset as usize <= at) {
            let declared = enter_label(&context, next.offset, at, state.as_ref());
            state = Some(declared.map_err(|fault| refuse(code, at, 1, fault))?);
            label += 1;
        }
        let Some(now) = &mut state else {
            if code.get(at) != Some(&0xcc) {
                return Err(refuse(code, at, 1, (Rule::C7, "code without a label that nothing runs into", 0)));
            }
            at += 1;
            continue;
        };
        let bmi = image.flags & flags::BMI != 0;
        let decoded = decode::decode(code, at, bmi).map_err(|fault| refuse(code, at, 1, fault))?;
        let len = decoded.instruction.len();
        if step::step(&context, &decoded, now).map_err(|fault| refuse(code, at, len, fault))? == Next::Ends {
            state = None;
        }
        at += len;
        count += 1;
    }
    if let Some(left) = labels.get(label).filter(|left| (left.offset as usize) < end) {
        return Err(refuse(code, at, 1, (Rule::F3, "label inside an instruction", i64::from(left.offset))));
    }
    match state {
        None => Ok(count),
        Some(_) => Err(refuse(code, end, 0, (Rule::C7, "runs over the end of the function", 0))),
    }
}

/// At a label: the fall-through to it and its charge are checked; its state is what goes on.
fn enter_label(context: &Context<'_, '_>, offset: u32, at: usize, state: Option<&State>) -> Result<State, Fault> {
    if offset as usize != at {
        return Err((Rule::F3, "label inside an instruction", i64::from(offset)));
    }
    let (declared, is_charge) = label_state(context.image, offset).ok_or((Rule::F3, "no such state", 0))?;
    if let Some(state) = state {
        flow::implies(state, &declared)?;
    }
    if is_charge && flow::charge(context, at).is_none() {
        return Err((Rule::B1, "no charge at a charge point", 0));
    }
    Ok(State::declared(&declared))
}

fn refuse(code: &[u8], at: usize, len: usize, (rule, what, value): Fault) -> Refusal {
    let found = code.get(at..).unwrap_or(&[]);
    let mut bytes = [0; 15];
    let mut copied = 0;
    for (to, from) in bytes.iter_mut().zip(found.iter().take(len)) {
        *to = *from;
        copied += 1;
    }
    Refusal { rule, offset: u32::try_from(at).unwrap_or(u32::MAX), bytes, len: copied, what, value }
}
