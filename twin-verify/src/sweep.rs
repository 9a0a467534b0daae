//! The pass over one function: its labels, and one instruction after the other. It can pause between any two.

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

/// How far one function is checked. It goes from the function's first byte to its last.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    function: Function,
    /// The function begins with a charge (B2).
    charged_entry: bool,
    /// Code offset of what is next.
    at: usize,
    /// The label that is next.
    label: usize,
    /// What is known here. `None`: the code cannot run here.
    state: Option<State>,
    /// Instructions so far.
    pub count: u32,
}

impl Sweep {
    pub fn new(image: &Image<'_>, policy: &Policy, function: Function) -> Self {
        let label = image.labels().last_not_above(function.start, |l| l.offset).unwrap_or(0);
        let at = function.start as usize;
        let mut sweep = Self { function, charged_entry: false, at, label, state: None, count: 0 };
        sweep.charged_entry = flow::charge(&sweep.context(image, policy), at).is_some();
        sweep
    }

    fn context<'c, 'a>(&self, image: &'c Image<'a>, policy: &'c Policy) -> Context<'c, 'a> {
        let code = image.code().get(..self.function.end as usize).unwrap_or(&[]);
        Context { image, policy, function: self.function, code, charged_entry: self.charged_entry }
    }

    /// Goes on by at most `steps` instructions, and takes what it went off them. Returns whether it came to the end.
    pub fn advance(&mut self, image: &Image<'_>, policy: &Policy, steps: &mut u32) -> Result<bool, Refusal> {
        let context = self.context(image, policy);
        while self.at < self.function.end as usize {
            if *steps == 0 {
                return Ok(false);
            }
            *steps -= 1;
            self.step(&context)?;
        }
        self.end(&context).map(|()| true)
    }

    /// What is known before the next instruction, and its code offset.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn here(&self) -> (u32, Option<&State>) {
        (u32::try_from(self.at).unwrap_or(u32::MAX), self.state.as_ref())
    }

    /// The label that stands here, if one does, and one instruction.
    fn step(&mut self, context: &Context<'_, '_>) -> Result<(), Refusal> {
        let (code, at) = (context.code, self.at);
        if let Some(next) = context.image.labels().get(self.label).filter(|next| next.offset as usize <= at) {
            let declared = enter_label(context, next.offset, at, self.state.as_ref());
            self.state = Some(declared.map_err(|fault| refuse(code, at, 1, fault))?);
            self.label += 1;
        }
        let Some(now) = &mut self.state else {
            if code.get(at) != Some(&0xcc) {
                return Err(refuse(code, at, 1, (Rule::C7, "code without a label that nothing runs into", 0)));
            }
            self.at += 1;
            return Ok(());
        };
        let bmi = context.image.flags & flags::BMI != 0;
        let decoded = decode::decode(code, at, bmi).map_err(|fault| refuse(code, at, 1, fault))?;
        let len = decoded.instruction.len;
        if step::step(context, &decoded, now).map_err(|fault| refuse(code, at, len, fault))? == Next::Ends {
            self.state = None;
        }
        self.at += len;
        self.count += 1;
        Ok(())
    }

    fn end(&self, context: &Context<'_, '_>) -> Result<(), Refusal> {
        let (code, at, end) = (context.code, self.at, self.function.end as usize);
        if let Some(left) = context.image.labels().get(self.label).filter(|left| (left.offset as usize) < end) {
            return Err(refuse(code, at, 1, (Rule::F3, "label inside an instruction", i64::from(left.offset))));
        }
        match self.state {
            None => Ok(()),
            Some(_) => Err(refuse(code, end, 0, (Rule::C7, "runs over the end of the function", 0))),
        }
    }
}

/// Checks one function in one go. Returns the number of instructions.
pub fn function(image: &Image<'_>, policy: &Policy, function: Function) -> Result<u32, Refusal> {
    let mut sweep = Sweep::new(image, policy, function);
    sweep.advance(image, policy, &mut { u32::MAX })?;
    Ok(sweep.count)
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
