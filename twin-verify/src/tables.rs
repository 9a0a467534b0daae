//! The rules about the file: header, functions, labels, states, addresses.

use twin_abi::image::{flags, Image, Mode, LABEL_CHARGE};
use twin_abi::kind::{Frame, Kind, State};
use twin_abi::layout::{FRAME_MAX, MAX_CODE, MAX_IMPORTS};

use crate::{Policy, Refusal, Rule};

/// Most words of stack arguments.
const MAX_STACK_ARGS: u32 = 16;

/// Checks rules F1 to F5, apart from label positions, which the sweep checks.
pub fn check(image: &Image<'_>, policy: &Policy) -> Result<(), Refusal> {
    header(image, policy)?;
    functions(image)?;
    states(image)?;
    labels(image)?;
    addresses(image)
}

fn refuse(rule: Rule, index: usize, what: &'static str, value: impl Into<u64>) -> Refusal {
    Refusal::of_record(rule, index, what, value.into())
}

fn header(image: &Image<'_>, policy: &Policy) -> Result<(), Refusal> {
    if image.mode != policy.mode {
        return Err(refuse(Rule::F1, 0, "image is of the other mode", image.mode as u64));
    }
    let bits_fit = match policy.mode {
        Mode::Mirror => image.mask_bits == policy.mask_bits && (40..=47).contains(&policy.mask_bits),
        Mode::Stlb => image.mask_bits == 0,
    };
    if !bits_fit {
        return Err(refuse(Rule::F1, 0, "mask_bits differ from the window", image.mask_bits));
    }
    if policy.counted && image.flags & flags::COUNTED == 0 {
        return Err(refuse(Rule::F1, 0, "budget is not counted", image.flags));
    }
    if image.flags & flags::BMI != 0 && !policy.bmi {
        return Err(refuse(Rule::F1, 0, "the CPU has no BMI", image.flags));
    }
    if image.code().len() > MAX_CODE as usize {
        return Err(refuse(Rule::F1, 0, "code too large", image.code().len() as u64));
    }
    if image.imports().len() > MAX_IMPORTS as usize {
        return Err(refuse(Rule::F1, 0, "too many imports", image.imports().len() as u64));
    }
    if image.indirect_args > MAX_STACK_ARGS {
        return Err(refuse(Rule::F2, 0, "too many arguments", image.indirect_args));
    }
    Ok(())
}

fn functions(image: &Image<'_>) -> Result<(), Refusal> {
    let mut at = 0;
    for (n, function) in image.functions().iter().enumerate() {
        if function.start < at || function.end <= function.start || function.end as usize > image.code().len() {
            return Err(refuse(Rule::F2, n, "function out of place", function.start));
        }
        if !filled(image, at, function.start) {
            return Err(refuse(Rule::F2, n, "gap before a function is not int3", at));
        }
        if function.stack_args > MAX_STACK_ARGS {
            return Err(refuse(Rule::F2, n, "too many arguments", function.stack_args));
        }
        at = function.end;
    }
    if !filled(image, at, u32::try_from(image.code().len()).unwrap_or(u32::MAX)) {
        return Err(refuse(Rule::F2, image.functions().len(), "gap after the last function is not int3", at));
    }
    Ok(())
}

fn filled(image: &Image<'_>, start: u32, end: u32) -> bool {
    image.code().get(start as usize..end as usize).is_some_and(|gap| gap.iter().all(|byte| *byte == 0xcc))
}

fn states(image: &Image<'_>) -> Result<(), Refusal> {
    for (n, state) in image.states().iter().enumerate() {
        for reg in 0..16 {
            let Some(kind) = state.kind(reg) else {
                return Err(refuse(Rule::F3, n, "undefined kind", state.regs));
            };
            let fits = match kind {
                Kind::Masked | Kind::Bits | Kind::Mask => image.mode == Mode::Mirror,
                Kind::Window | Kind::StlbBase | Kind::StlbIndex => image.mode == Mode::Stlb,
                _ => true,
            };
            if !fits || (reg == 4 && kind != Kind::Any) {
                return Err(refuse(Rule::F3, n, "kind not possible here", state.regs));
            }
        }
        if !sound(&state.frame) {
            return Err(refuse(Rule::F3, n, "impossible frame", state.frame.depth));
        }
    }
    Ok(())
}

fn sound(frame: &Frame) -> bool {
    let saved = frame.saved;
    let inside = saved.iter().all(|slot| u16::from(*slot) <= frame.depth);
    let distinct = saved.iter().enumerate().all(|(n, slot)| *slot == 0 || !saved.iter().take(n).any(|s| s == slot));
    u32::from(frame.depth) * 8 <= FRAME_MAX && inside && distinct
}

fn labels(image: &Image<'_>) -> Result<(), Refusal> {
    let mut before = None;
    for (n, label) in image.labels().iter().enumerate() {
        if before.is_some_and(|b| b >= label.offset) {
            return Err(refuse(Rule::F3, n, "labels not in order", label.offset));
        }
        if image.function_at(label.offset).is_none() {
            return Err(refuse(Rule::F3, n, "label outside any function", label.offset));
        }
        if image.states().get((label.state & !LABEL_CHARGE) as usize).is_none() {
            return Err(refuse(Rule::F3, n, "no such state", label.state));
        }
        before = Some(label.offset);
    }
    for (n, function) in image.functions().iter().enumerate() {
        match label_state(image, function.start) {
            Some((state, _)) if state.frame == Frame::default() => {}
            _ => return Err(refuse(Rule::F4, n, "function start without label or with a frame", function.start)),
        }
    }
    Ok(())
}

/// The state declared at `offset` and whether it is a charge point, if there is a label.
pub fn label_state(image: &Image<'_>, offset: u32) -> Option<(State, bool)> {
    let labels = image.labels();
    let label = labels.get(labels.last_not_above(offset, |l| l.offset)?)?;
    if label.offset != offset {
        return None;
    }
    Some((image.states().get((label.state & !LABEL_CHARGE) as usize)?, label.state & LABEL_CHARGE != 0))
}

fn addresses(image: &Image<'_>) -> Result<(), Refusal> {
    let mut before = None;
    for (n, address) in image.addresses().iter().enumerate() {
        if before.is_some_and(|b| b >= address.domain) {
            return Err(refuse(Rule::F5, n, "addresses not in order", address.domain));
        }
        before = Some(address.domain);
        let Some(function) = image.functions().get(address.function as usize) else {
            return Err(refuse(Rule::F5, n, "no such function", address.function));
        };
        let free = label_state(image, function.start).is_some_and(|(state, _)| state.regs == 0);
        if !free || function.stack_args > image.indirect_args {
            return Err(refuse(Rule::F5, n, "function cannot be entered from outside", address.function));
        }
    }
    Ok(())
}
