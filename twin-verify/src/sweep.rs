//! The pass over the code: function bounds, labels, and one instruction after the other.

use twin_abi::image::{flags, Function, Image};

use crate::decode;
use crate::flow;
use crate::step::{self, Next};
use crate::tables::label_state;
use crate::value::State;
use crate::{Policy, Refusal, Report, Rule, Sink};

/// What is fixed while one function is checked.
pub struct Context<'c, 'a> {
    pub image: &'c Image<'a>,
    pub policy: &'c Policy,
    pub function: Function,
    /// The function begins with a charge (B2).
    pub charged_entry: bool,
}

impl Context<'_, '_> {
    /// Whether BMI instructions are allowed.
    pub fn bmi(&self) -> bool {
        self.image.flags & flags::BMI != 0
    }

    /// The code up to the end of the function.
    pub fn code(&self) -> &[u8] {
        self.image.code().get(..self.function.end as usize).unwrap_or(&[])
    }
}

/// The whole pass.
pub struct Sweep<'c, 'a> {
    image: &'c Image<'a>,
    policy: &'c Policy,
    /// Index of the next label.
    label: usize,
    report: Report,
}

impl<'c, 'a> Sweep<'c, 'a> {
    pub fn new(image: &'c Image<'a>, policy: &'c Policy) -> Self {
        Self { image, policy, label: 0, report: Report::default() }
    }

    /// Checks all functions. `None` if anything was refused.
    pub fn run(mut self, sink: Sink<'_>) -> Option<Report> {
        let mut accepted = true;
        for function in self.image.functions().iter() {
            let mut context = Context { image: self.image, policy: self.policy, function, charged_entry: false };
            context.charged_entry = flow::charge(&context, function.start as usize).is_some();
            self.report.functions += 1;
            match self.function(&context, sink) {
                Verdict::Accepted => {}
                Verdict::Refused => accepted = false,
                Verdict::Stop => return None,
            }
        }
        if let Some(left) = self.image.labels().get(self.label) {
            sink(&Refusal::of_record(Rule::F3, self.label, "label outside any function", u64::from(left.offset)));
            return None;
        }
        accepted.then_some(self.report)
    }

    /// Checks one function, from its first byte to its last.
    fn function(&mut self, context: &Context<'_, '_>, sink: Sink<'_>) -> Verdict {
        let end = context.function.end as usize;
        let mut at = context.function.start as usize;
        let mut verdict = Verdict::Accepted;
        // `None`: the code cannot run here. `lost`: because something before was refused.
        let mut state: Option<State> = None;
        let mut lost = false;
        while at < end {
            let here = self.label_here(context, at, state.as_ref()).and_then(|label| {
                if let Some(declared) = label {
                    state = Some(declared);
                    lost = false;
                }
                self.instruction(context, at, &mut state, lost)
            });
            match here {
                Ok(len) => at += len,
                Err(refusal) => {
                    verdict = Verdict::Refused;
                    if !sink(&refusal) {
                        return Verdict::Stop;
                    }
                    at += usize::from(refusal.len).max(1);
                    self.skip_labels_before(at);
                    state = None;
                    lost = true;
                }
            }
        }
        if state.is_some() {
            let refusal = refuse(context, end, 0, (Rule::C7, "runs over the end of the function", 0));
            return if sink(&refusal) { Verdict::Refused } else { Verdict::Stop };
        }
        verdict
    }

    /// If there is a label at `at`: checks the fall-through to it and its charge, and returns its state.
    fn label_here(
        &mut self,
        context: &Context<'_, '_>,
        at: usize,
        state: Option<&State>,
    ) -> Result<Option<State>, Refusal> {
        let Some(label) = self.image.labels().get(self.label) else { return Ok(None) };
        if (label.offset as usize) > at {
            return Ok(None);
        }
        self.label += 1;
        let fault = |fault| refuse(context, at, 1, fault);
        if label.offset as usize != at {
            return Err(fault((Rule::F3, "label inside an instruction or between functions", i64::from(label.offset))));
        }
        let Some((declared, is_charge)) = label_state(self.image, label.offset) else {
            return Err(fault((Rule::F3, "no such state", 0)));
        };
        if let Some(state) = state {
            flow::implies(state, &declared).map_err(fault)?;
        }
        if is_charge && flow::charge(context, at).is_none() {
            return Err(fault((Rule::B1, "no charge at a charge point", 0)));
        }
        Ok(Some(State::declared(&declared)))
    }

    /// Checks one instruction and its effect on the state; returns its length.
    fn instruction(
        &mut self,
        context: &Context<'_, '_>,
        at: usize,
        state: &mut Option<State>,
        lost: bool,
    ) -> Result<usize, Refusal> {
        let Some(now) = state else {
            return match context.code().get(at) {
                Some(0xcc) => Ok(1),
                _ if lost => Ok(1),
                _ => Err(refuse(context, at, 1, (Rule::C7, "code without a label that nothing runs into", 0))),
            };
        };
        let decoded =
            decode::decode(context.code(), at, context.bmi()).map_err(|fault| refuse(context, at, 1, fault))?;
        let len = decoded.instruction.len();
        self.report.instructions += 1;
        match step::step(context, &decoded, now, &mut self.report).map_err(|fault| refuse(context, at, len, fault))? {
            Next::Goes => {}
            Next::Ends => *state = None,
        }
        Ok(len)
    }

    fn skip_labels_before(&mut self, at: usize) {
        while self.image.labels().get(self.label).is_some_and(|label| (label.offset as usize) < at) {
            self.label += 1;
        }
    }
}

/// How a function fared.
enum Verdict {
    Accepted,
    Refused,
    /// Refused, and the sink wants no more.
    Stop,
}

fn refuse(context: &Context<'_, '_>, at: usize, len: usize, (rule, what, value): (Rule, &'static str, i64)) -> Refusal {
    let mut bytes = [0; 15];
    let found = context.code().get(at..).unwrap_or(&[]);
    let len = len.min(15).min(found.len());
    for (to, from) in bytes.iter_mut().zip(found.iter().take(len)) {
        *to = *from;
    }
    let offset = u32::try_from(at).unwrap_or(u32::MAX);
    Refusal { rule, offset, bytes, len: u8::try_from(len).unwrap_or(0), what, value }
}
