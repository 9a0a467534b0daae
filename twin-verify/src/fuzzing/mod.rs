//! Oracles for the verifier and generators that feed them. The fuzz targets call these; so do this crate's tests, for a
//! second.
//!
//! - [`decoders_agree`]: what this decoder takes for an allowed instruction, another decoder takes for the same.
//! - [`judge`]: any bytes as an image: no panic, and if they are accepted, [`emulate`] finds no escape.
//! - [`run`]: an image that is built instruction by instruction from what the verifier lets pass, then damaged.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "generators and an emulator work on bits, not on amounts"
)]

mod compare;
mod corrupt;
mod emulate;
mod generate;
mod reference;

use std::string::String;
use std::vec::Vec;

pub use compare::{decoders_agree, for_all_forms, matches_reference, Match};
pub use corrupt::{corrupt, Corrupted, Failure, Sum};
pub use emulate::{
    emulate, emulate_function, emulate_guessing, emulate_label, emulate_unasked, Escape, Guesses, Outcome,
};
pub use generate::{body_of, generate};

use twin_abi::image::{flags, Function, Image, ImageBuilder, Import, Label, Mode};
use twin_abi::kind::State;

use crate::{verify, Policy};

/// Bytes as a source of choices; when they are used up a generator goes on, seeded by them.
#[derive(Clone, Debug)]
pub struct Choices<'b> {
    bytes: core::slice::Iter<'b, u8>,
    state: u64,
}

impl<'b> Choices<'b> {
    /// Choices made by `bytes`.
    #[must_use]
    pub fn new(bytes: &'b [u8]) -> Self {
        let state = bytes
            .iter()
            .fold(0x9e37_79b9_7f4a_7c15, |s: u64, b| (s ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3));
        Self { bytes: bytes.iter(), state }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Choices made by numbers alone.
    #[must_use]
    pub fn seeded(seed: u64, number: u64) -> Self {
        let state = (seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Self { bytes: [].iter(), state: (state ^ state >> 29).max(1) }
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes.next().copied().unwrap_or_else(|| (self.next() >> 56) as u8)
    }

    /// A number below `n`, which is at most 65536.
    pub fn below(&mut self, n: usize) -> usize {
        let wide = usize::from(self.byte()) | if n > 256 { usize::from(self.byte()) << 8 } else { 0 };
        wide % n.max(1)
    }

    /// One of several.
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Any 64 bits, not taken from the bytes.
    pub fn word(&mut self) -> u64 {
        self.next()
    }
}

/// The policies under which generated images are judged.
#[must_use]
pub fn policy(mode: Mode) -> Policy {
    Policy { mode, mask_bits: if mode == Mode::Mirror { 46 } else { 0 }, counted: true, bmi: true }
}

/// Verifies bytes under both modes, and emulates what is accepted.
///
/// # Panics
/// If an accepted image escapes: that is what a fuzzer looks for.
pub fn judge(bytes: &[u8], runs: u32) -> bool {
    let mut accepted = false;
    for mode in [Mode::Mirror, Mode::Stlb] {
        if verify(bytes, &policy(mode)).is_ok() {
            accepted = true;
            let image = Image::parse(bytes).expect("verified");
            let labels = image.labels().len();
            for seed in 0..runs {
                let label = seed as usize * 7 % labels.max(1);
                let from_label = emulate_label(&image, label, u64::from(seed) ^ 0x1abe1, 500);
                let guessing = emulate_guessing(&image, label, u64::from(seed) ^ 0x6e55, 500);
                for outcome in [emulate(&image, u64::from(seed) ^ 0x5eed, 2000), from_label, guessing] {
                    if let Outcome::Escaped(escape) = outcome {
                        panic!("accepted image escapes: {escape:?} in {:02x?}", image.code());
                    }
                }
            }
        }
    }
    accepted
}

/// Any code as the only function of an image, with a label at its start; judged.
pub fn judge_code(code: &[u8]) -> bool {
    let mut accepted = false;
    for mode in [Mode::Mirror, Mode::Stlb] {
        let mut b =
            ImageBuilder { mirror: mode == Mode::Mirror, mask_bits: policy(mode).mask_bits, ..Default::default() };
        b.flags = flags::ALL;
        b.imports = std::vec![Import::default(); 2];
        b.code = code.to_vec();
        b.functions.push(Function { end: u32::try_from(code.len()).unwrap_or(0), ..Default::default() });
        let state = b.state(State::default());
        b.labels.push(Label { offset: 0, state });
        accepted |= judge(&b.build(), 2);
    }
    accepted
}

/// What came of [`run`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Images judged.
    pub images: u64,
    /// Images accepted.
    pub accepted: u64,
}

/// Builds one image from choices, then damages it `damages` times by a few bytes; judges all of them.
pub fn run(bytes: &[u8], damages: usize) -> Tally {
    let mut choices = Choices::new(bytes);
    let mut tally = Tally::default();
    let mut check = |image: &[u8]| {
        tally.images += 1;
        tally.accepted += u64::from(judge(image, 4));
    };
    let mode = choices.of(&[Mode::Mirror, Mode::Stlb]);
    let image = generate(&mut choices, mode);
    check(&image);
    for _ in 0..damages {
        check(&damage(&image, &mut choices));
    }
    tally
}

/// Changes a few bytes: of the code, seldom of a table.
fn damage(image: &[u8], choices: &mut Choices<'_>) -> Vec<u8> {
    let mut bytes = image.to_vec();
    let code = Image::parse(image).map(|image| image.code_range()).unwrap_or(0..image.len());
    for _ in 0..=choices.below(3) {
        let range = if choices.below(8) == 0 { 0..bytes.len() } else { code.clone() };
        let at = range.start + choices.below(range.len().clamp(1, 65536));
        if let Some(byte) = bytes.get_mut(at) {
            *byte = match choices.below(3) {
                0 => choices.byte(),
                1 => *byte ^ 1 << choices.below(8),
                _ => byte.wrapping_add(choices.of(&[1, 8, 0xf8, 0xff])),
            };
        }
    }
    bytes
}

/// A text for a mismatch.
type Mismatch = String;
