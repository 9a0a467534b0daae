//! Trusted: accepts or refuses a twin image. `no_std`, no `unsafe`, no opinion on how the image was made.
//!
//! The rules and the argument why they suffice are in `docs/sandbox.md`; each refusal names one of them. One pass over
//! the code, no allocation, no fixed point: what is known about registers and frame at a label is declared by the
//! image, and every edge to the label has to imply it.
//!
//! - `tables`: the rules about the file (F).
//! - `sweep`: the pass over the code, labels and function bounds.
//! - `decode`: what may be an instruction at all (D); a decoder of its own for the allow-list, and nothing else.
//! - `value`: what is known about a register, and what implies what.
//! - `operand`: which memory an operand may name (M1, M4, S2).
//! - `step`: effect of one instruction on the state (M2, M3, S).
//! - `flow`: jumps, calls, returns and the budget (C, B).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "fuzzing"))]
extern crate std;

mod decode;
mod flow;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod operand;
mod step;
mod sweep;
mod tables;
#[cfg(test)]
mod tests;
mod value;

use core::fmt;

use twin_abi::image::{FormatError, Image, Mode};

use crate::sweep::Sweep;
use crate::tables::Tables;

/// What the loader demands of an image. It comes from the loader, never from the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How addresses are translated.
    pub mode: Mode,
    /// Mirror: bits that masking keeps; 40 to 47.
    pub mask_bits: u32,
    /// Whether the code has to charge loops and calls to the budget. If not, the embedder must be able to end a running
    /// twin by a timer.
    pub counted: bool,
    /// Whether the CPU has BMI1 and BMI2.
    pub bmi: bool,
}

macro_rules! rules {
    ($($rule:ident)*) => {
        /// The rules of `docs/sandbox.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "docs/sandbox.md states them; repeating them here would let them drift")]
        pub enum Rule {
            $($rule,)*
        }

        impl Rule {
            /// All of them. The place of one is its number at the interface ([`twin_abi::op::TwinLoad::rule`]).
            pub const ALL: &'static [Self] = &[$(Self::$rule),*];
        }
    };
}

rules! {
    F0 F1 F2 F3 F4 F5 F6
    D1 D2 D3 D4
    M1 M2 M3 M4 M5
    S1 S2 S3 S4 S5
    C1 C2 C3 C4 C5 C6 C7
    B1 B2
}

impl Rule {
    /// That of a number, if one has it.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        usize::try_from(number).ok().and_then(|number| Self::ALL.get(number)).copied()
    }
}

/// Why and where an image is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rule that is broken.
    pub rule: Rule,
    /// Code offset of the instruction; for rules F the index of the record.
    pub offset: u32,
    /// The instruction's bytes (zero for rules F).
    pub bytes: [u8; 15],
    /// How many of them there are.
    pub len: u8,
    /// What is wrong.
    pub what: &'static str,
    /// The value that is wrong: a displacement, a target, a register number.
    pub value: i64,
}

impl Refusal {
    pub(crate) fn of_record(rule: Rule, index: usize, what: &'static str, value: u64) -> Self {
        let offset = u32::try_from(index).unwrap_or(u32::MAX);
        Self { rule, offset, bytes: [0; 15], len: 0, what, value: value as i64 }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:#x}: {} ({:#x})", self.rule, self.offset, self.what, self.value)?;
        for (n, byte) in self.bytes.iter().take(usize::from(self.len)).enumerate() {
            write!(f, "{}{byte:02x}", if n == 0 { " [" } else { " " })?;
        }
        if self.len > 0 {
            write!(f, "]")?;
        }
        Ok(())
    }
}

/// An image that was accepted. Only [`verify`] makes one, so that a loader can demand it.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'a> {
    image: Image<'a>,
    policy: Policy,
    instructions: u32,
}

impl<'a> Verified<'a> {
    /// The image.
    #[must_use]
    pub fn image(&self) -> &Image<'a> {
        &self.image
    }

    /// The policy under which it was accepted.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Number of instructions.
    #[must_use]
    pub fn instructions(&self) -> u32 {
        self.instructions
    }
}

/// A verification that can pause, for a loader that may not stay away for long.
///
/// One step is one record of a table, 256 bytes of names or padding, or one instruction: at most two decodings and a
/// few binary searches, well below a microsecond. So [`Verifier::advance`] with 1000 steps takes less than a
/// millisecond.
#[derive(Clone, Copy, Debug)]
pub struct Verifier<'a> {
    image: Image<'a>,
    policy: Policy,
    stage: Stage,
    instructions: u32,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Tables(Tables),
    /// Before the function with this number.
    Before(usize),
    /// In it.
    Function(usize, Sweep),
    Accepted,
    Refused(Refusal),
}

impl<'a> Verifier<'a> {
    /// Begins with what takes no time: the header and the sizes of the tables.
    ///
    /// # Errors
    /// The first refusal.
    pub fn new(bytes: &'a [u8], policy: &Policy) -> Result<Self, Refusal> {
        let image = parse(bytes)?;
        tables::header(&image, policy)?;
        Ok(Self { image, policy: *policy, stage: Stage::Tables(Tables::new()), instructions: 0 })
    }

    /// Goes on by at most `steps` steps. `None`: there is more to do. After the end it says the same again.
    ///
    /// # Errors
    /// The first refusal.
    pub fn advance(&mut self, steps: u32) -> Result<Option<Verified<'a>>, Refusal> {
        let mut left = steps;
        loop {
            let next = match self.stage {
                Stage::Accepted => {
                    let (image, policy, instructions) = (self.image, self.policy, self.instructions);
                    return Ok(Some(Verified { image, policy, instructions }));
                }
                Stage::Refused(refusal) => return Err(refusal),
                _ if left == 0 => return Ok(None),
                _ => self.go_on(&mut left),
            };
            self.stage = next.unwrap_or_else(Stage::Refused);
        }
    }

    fn go_on(&mut self, left: &mut u32) -> Result<Stage, Refusal> {
        match self.stage {
            Stage::Tables(mut tables) => {
                *left -= 1;
                let ended = tables.step(&self.image)?;
                Ok(if ended { Stage::Before(0) } else { Stage::Tables(tables) })
            }
            Stage::Before(n) => {
                *left -= 1;
                let function = self.image.functions().get(n);
                Ok(function.map_or(Stage::Accepted, |f| Stage::Function(n, Sweep::new(&self.image, &self.policy, f))))
            }
            Stage::Function(n, mut sweep) => {
                if !sweep.advance(&self.image, &self.policy, left)? {
                    return Ok(Stage::Function(n, sweep));
                }
                self.instructions += sweep.count;
                Ok(Stage::Before(n + 1))
            }
            ended @ (Stage::Accepted | Stage::Refused(_)) => Ok(ended),
        }
    }
}

/// Accepts or refuses an image in one go; stops at the first broken rule.
///
/// # Errors
/// The first refusal.
pub fn verify<'a>(bytes: &'a [u8], policy: &Policy) -> Result<Verified<'a>, Refusal> {
    let mut verifier = Verifier::new(bytes, policy)?;
    loop {
        if let Some(verified) = verifier.advance(u32::MAX)? {
            return Ok(verified);
        }
    }
}

/// Tells `report` of the first refusal in each function, for host tools, as long as it returns true. Returns how many
/// it was told.
pub fn list(bytes: &[u8], policy: &Policy, report: &mut dyn FnMut(&Refusal) -> bool) -> usize {
    let mut count = 0;
    let mut tell = |refusal: &Refusal| {
        count += 1;
        report(refusal)
    };
    match tables_of(bytes, policy) {
        Err(refusal) => drop(tell(&refusal)),
        Ok(image) => {
            let mut refused = image.functions().iter().filter_map(|f| sweep::function(&image, policy, f).err());
            while refused.next().is_some_and(|refusal| tell(&refusal)) {}
        }
    }
    count
}

/// The image, if its tables are good.
fn tables_of<'a>(bytes: &'a [u8], policy: &Policy) -> Result<Image<'a>, Refusal> {
    let image = parse(bytes)?;
    tables::header(&image, policy)?;
    let mut tables = Tables::new();
    while !tables.step(&image)? {}
    Ok(image)
}

fn parse(bytes: &[u8]) -> Result<Image<'_>, Refusal> {
    Image::parse(bytes).map_err(|error| {
        let (what, value) = match error {
            FormatError::TooShort => ("shorter than a header", 0),
            FormatError::Magic => ("no twin image", 0),
            FormatError::Version(version) => ("unknown version", u64::from(version)),
            FormatError::Mode(mode) => ("unknown mode", u64::from(mode)),
            FormatError::Flags(flags) => ("unknown flags", u64::from(flags)),
            FormatError::Reserved => ("reserved header bytes in use", 0),
            FormatError::Section(section) => ("section outside the file", section as u64),
        };
        Refusal::of_record(Rule::F0, 0, what, value)
    })
}
