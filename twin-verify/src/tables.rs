//! The rules about the file: header, names, functions, labels, states, addresses. One record a step, so that a loader
//! can pause.

use twin_abi::image::{flags, Image, Mode, LABEL_CHARGE};
use twin_abi::kind::{Frame, Kind, State};
use twin_abi::layout::{
    most_functions, most_labels, most_origins, FRAME_MAX, MAX_CODE, MAX_IMPORTS, MAX_NAME, MAX_STACK_ARGS, MAX_STRINGS,
};

use crate::{Policy, Refusal, Rule};

/// Bytes of strings or of gaps that are looked at in one step.
const STRETCH: u32 = 256;

/// Which table is looked through. They come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Strings,
    Functions,
    Imports,
    States,
    Labels,
    Starts,
    Addresses,
}

/// How far the tables are checked (rules F2 to F6, apart from label positions, which the sweep checks).
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    table: Table,
    /// The record that is next.
    index: usize,
    /// Strings and functions: how many bytes are checked.
    at: u32,
    /// Labels and addresses: the key of the record before.
    before: Option<u64>,
}

impl Tables {
    pub fn new() -> Self {
        Self { table: Table::Strings, index: 0, at: 0, before: None }
    }

    /// Checks one record, or [`STRETCH`] bytes. Returns whether that was the last.
    pub fn step(&mut self, image: &Image<'_>) -> Result<bool, Refusal> {
        let n = self.index;
        let (ended, next) = match self.table {
            Table::Strings => (strings(image, &mut self.at)?, Table::Functions),
            Table::Functions => match function(image, n, &mut self.at)? {
                Covered::Part => return Ok(false),
                Covered::Function => (false, Table::Imports),
                Covered::All => (true, Table::Imports),
            },
            Table::Imports => (import(image, n)?, Table::States),
            Table::States => (state(image, n)?, Table::Labels),
            Table::Labels => (label(image, n, &mut self.before)?, Table::Starts),
            Table::Starts => (start(image, n)?, Table::Addresses),
            Table::Addresses => (address(image, n, &mut self.before)?, Table::Addresses),
        };
        if !ended {
            self.index += usize::from(self.table != Table::Strings);
            return Ok(false);
        }
        let last = self.table == Table::Addresses;
        *self = Self { table: next, ..Self::new() };
        Ok(last)
    }
}

fn refuse(rule: Rule, index: usize, what: &'static str, value: impl Into<u64>) -> Refusal {
    Refusal::of_record(rule, index, what, value.into())
}

/// Checks what takes no time: the header and the sizes of the tables (F1).
pub fn header(image: &Image<'_>, policy: &Policy) -> Result<(), Refusal> {
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
    if image.indirect_args > MAX_STACK_ARGS {
        return Err(refuse(Rule::F2, 0, "too many arguments", image.indirect_args));
    }
    sizes(image)
}

/// No table is larger than the code has use for.
fn sizes(image: &Image<'_>) -> Result<(), Refusal> {
    let code = u32::try_from(image.code().len()).unwrap_or(u32::MAX);
    let limits = [
        ("too many imports", image.imports().len(), MAX_IMPORTS as usize),
        ("too many functions", image.functions().len(), most_functions(code) as usize),
        ("more addresses than functions", image.addresses().len(), image.functions().len()),
        ("too many labels", image.labels().len(), most_labels(code) as usize),
        ("more states than labels", image.states().len(), image.labels().len()),
        ("too many origins", image.origins().len(), most_origins(code) as usize),
        ("too many strings", image.strings().len(), MAX_STRINGS as usize),
    ];
    match limits.into_iter().find(|(_, have, most)| have > most) {
        None => Ok(()),
        Some((what, have, _)) => Err(refuse(Rule::F1, 0, what, have as u64)),
    }
}

/// F6: strings are printable ASCII. Returns whether all are checked.
fn strings(image: &Image<'_>, at: &mut u32) -> Result<bool, Refusal> {
    let rest = image.strings().get(*at as usize..).unwrap_or(&[]);
    let now = rest.get(..STRETCH as usize).unwrap_or(rest);
    if let Some(wrong) = now.iter().find(|byte| !byte.is_ascii_graphic()) {
        return Err(refuse(Rule::F6, *at as usize, "name with a byte that is no letter", *wrong));
    }
    *at += STRETCH;
    Ok(rest.len() <= STRETCH as usize)
}

/// F6: a name lies inside the strings.
fn name(image: &Image<'_>, index: usize, offset: u32, len: u32) -> Result<(), Refusal> {
    let inside = offset.checked_add(len).is_some_and(|end| end as usize <= image.strings().len());
    if len > MAX_NAME || !inside {
        return Err(refuse(Rule::F6, index, "name outside the strings", offset));
    }
    Ok(())
}

/// How far the code is covered by functions and gaps.
enum Covered {
    Part,
    Function,
    All,
}

/// F2: the next stretch of the gap before function `n`, or the function itself. `at` is how far the code is covered.
fn function(image: &Image<'_>, n: usize, at: &mut u32) -> Result<Covered, Refusal> {
    let end_of_code = u32::try_from(image.code().len()).unwrap_or(u32::MAX);
    let function = image.functions().get(n);
    if let Some(f) = function.filter(|f| f.start < *at || f.end <= f.start || f.end > end_of_code) {
        return Err(refuse(Rule::F2, n, "function out of place", f.start));
    }
    let gap_end = function.map_or(end_of_code, |f| f.start);
    let stretch_end = gap_end.min(at.saturating_add(STRETCH));
    if !filled(image, *at, stretch_end) {
        return Err(refuse(Rule::F2, n, "gap between functions is not int3", *at));
    }
    if stretch_end < gap_end {
        *at = stretch_end;
        return Ok(Covered::Part);
    }
    let Some(function) = function else { return Ok(Covered::All) };
    if function.stack_args > MAX_STACK_ARGS {
        return Err(refuse(Rule::F2, n, "too many arguments", function.stack_args));
    }
    name(image, n, function.name, function.name_len)?;
    *at = function.end;
    Ok(Covered::Function)
}

fn filled(image: &Image<'_>, start: u32, end: u32) -> bool {
    image.code().get(start as usize..end as usize).is_some_and(|gap| gap.iter().all(|byte| *byte == 0xcc))
}

fn import(image: &Image<'_>, n: usize) -> Result<bool, Refusal> {
    let Some(import) = image.imports().get(n) else { return Ok(true) };
    name(image, n, import.name, import.name_len)?;
    Ok(false)
}

fn state(image: &Image<'_>, n: usize) -> Result<bool, Refusal> {
    let Some(state) = image.states().get(n) else { return Ok(true) };
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
    Ok(false)
}

fn sound(frame: &Frame) -> bool {
    let saved = frame.saved;
    let inside = saved.iter().all(|slot| u16::from(*slot) <= frame.depth);
    let distinct = saved.iter().enumerate().all(|(n, slot)| *slot == 0 || !saved.iter().take(n).any(|s| s == slot));
    u32::from(frame.depth) * 8 <= FRAME_MAX && inside && distinct
}

fn label(image: &Image<'_>, n: usize, before: &mut Option<u64>) -> Result<bool, Refusal> {
    let Some(label) = image.labels().get(n) else { return Ok(true) };
    if before.is_some_and(|b| b >= u64::from(label.offset)) {
        return Err(refuse(Rule::F3, n, "labels not in order", label.offset));
    }
    if image.function_at(label.offset).is_none() {
        return Err(refuse(Rule::F3, n, "label outside any function", label.offset));
    }
    if image.states().get((label.state & !LABEL_CHARGE) as usize).is_none() {
        return Err(refuse(Rule::F3, n, "no such state", label.state));
    }
    *before = Some(u64::from(label.offset));
    Ok(false)
}

/// F4.
fn start(image: &Image<'_>, n: usize) -> Result<bool, Refusal> {
    let Some(function) = image.functions().get(n) else { return Ok(true) };
    match label_state(image, function.start) {
        Some((state, _)) if state.frame == Frame::default() => Ok(false),
        _ => Err(refuse(Rule::F4, n, "function start without label or with a frame", function.start)),
    }
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

fn address(image: &Image<'_>, n: usize, before: &mut Option<u64>) -> Result<bool, Refusal> {
    let Some(address) = image.addresses().get(n) else { return Ok(true) };
    if before.is_some_and(|b| b >= address.domain) {
        return Err(refuse(Rule::F5, n, "addresses not in order", address.domain));
    }
    *before = Some(address.domain);
    let Some(function) = image.functions().get(address.function as usize) else {
        return Err(refuse(Rule::F5, n, "no such function", address.function));
    };
    let free = label_state(image, function.start).is_some_and(|(state, _)| state.regs == 0);
    if !free || function.stack_args > image.indirect_args {
        return Err(refuse(Rule::F5, n, "function cannot be entered from outside", address.function));
    }
    Ok(false)
}
