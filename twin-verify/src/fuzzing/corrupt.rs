//! Random damage to an accepted image: each result is refused, or stays inside when the adversary's machine runs it.
//!
//! Damage to the code of one function is judged by checking that function. That is the check of the whole image: the
//! tables are as they were, so what they demand still holds, and the check of a function reads the tables and that
//! function's code only, with one exception, the two bytes at which a charge ends. Those may be another function's, so
//! from time to time the whole image is verified as well, and must come to the same. Damage anywhere else in the file
//! is judged by verifying all of it.

use std::collections::BTreeMap;
use std::vec::Vec;

use twin_abi::image::{Image, Label, Record, Section, LABEL_CHARGE};
use twin_abi::kind::State;

use super::{emulate_guessing, emulate_label, Choices, Escape, Outcome};
use crate::{sweep, verify, Policy, Refusal, Rule};

/// Runs of each accepted image, and steps of each run.
const RUNS: usize = 4;
const STEPS: u32 = 100;

/// Of so many corruptions one goes anywhere into the file, tables and header included.
const ANYWHERE: u64 = 256;
/// Of so many corruptions of code one is also judged by verifying the whole image.
const CROSS_CHECKED: u64 = 2048;

/// What a range of corruptions came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Of code.
    pub code: Corrupted,
    /// Of the whole file.
    pub file: Corrupted,
    /// Corruptions of code judged in both ways, with the same result.
    pub cross_checked: u64,
    /// Refusals by rule.
    pub rules: BTreeMap<Rule, u64>,
}

/// What came of one kind of corruption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corrupted {
    /// Corruptions tried.
    pub tried: u64,
    /// Refused by the verifier.
    pub refused: u64,
    /// Accepted, and run to a return, an abort, or the end of the steps.
    pub confined: u64,
}

/// What must not happen, with the number of the corruption, which repeats it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// An accepted image escapes.
    Escaped(u64, Escape, Vec<u8>),
    /// The function alone and the whole image are judged differently.
    Disagreement(u64, Option<Refusal>, Option<Refusal>),
}

/// Damages an accepted image, by a few bytes in one place each time, once for each of `numbers`. What corruption a
/// number stands for depends on the image and `seed` only. `image` is left as it was.
///
/// # Errors
/// The first failure.
///
/// # Panics
/// If `image` is none.
pub fn corrupt(
    image: &mut [u8],
    policy: &Policy,
    seed: u64,
    numbers: core::ops::Range<u64>,
    sum: &mut Sum,
) -> Result<(), Failure> {
    let code = Image::parse(image).expect("an image").code_range();
    for number in numbers {
        let mut choices = Choices::seeded(seed, number);
        let anywhere = choices.word().is_multiple_of(ANYWHERE);
        let range = if anywhere { 0..image.len() } else { code.clone() };
        let at = range.start + usize::try_from(choices.word() % range.len() as u64).unwrap_or(0);
        let place = at..(at + 1 + choices.below(3)).min(range.end);
        let before = image[place.clone()].to_vec();
        for byte in &mut image[place.clone()] {
            *byte = match choices.below(4) {
                0 => *byte ^ 1 << choices.below(8),
                1 => choices.of(&[0x90, 0xc3, 0xff, 0x0f, 0x48, 0xe8, 0xeb, 0]),
                _ => choices.byte(),
            };
        }
        let judged = judge(image, policy, (!anywhere).then(|| (at - code.start, place.end - code.start)), number, sum);
        let outcome = judged.and_then(|refusal| {
            let kind = if anywhere { &mut sum.file } else { &mut sum.code };
            kind.tried += 1;
            if let Some(refusal) = refusal {
                kind.refused += 1;
                *sum.rules.entry(refusal.rule).or_default() += 1;
                return Ok(());
            }
            kind.confined += 1;
            let offset = (!anywhere).then(|| at - code.start);
            run(image, offset, place.start, &mut choices)
                .map_err(|escape| Failure::Escaped(number, escape, image[place.clone()].to_vec()))
        });
        image[place].copy_from_slice(&before);
        outcome?;
    }
    Ok(())
}

/// The refusal, if there is one. `hit` is the range of code that was damaged, if nothing else was.
fn judge(
    image: &[u8],
    policy: &Policy,
    hit: Option<(usize, usize)>,
    number: u64,
    sum: &mut Sum,
) -> Result<Option<Refusal>, Failure> {
    let Some((start, end)) = hit else { return Ok(verify(image, policy).err()) };
    let damaged = Image::parse(image).expect("only code was damaged");
    let (start, end) = (u32::try_from(start).unwrap_or(u32::MAX), u32::try_from(end).unwrap_or(u32::MAX));
    // Bytes between functions are the tables' matter; so is damage over a function's end.
    let Some(function) = damaged.function_at(start).filter(|f| end <= f.end) else {
        return Ok(verify(image, policy).err());
    };
    let alone = sweep::function(&damaged, policy, function).err();
    if number.is_multiple_of(CROSS_CHECKED) {
        let whole = verify(image, policy).err();
        if whole != alone {
            return Err(Failure::Disagreement(number, alone, whole));
        }
        sum.cross_checked += 1;
    }
    Ok(alone)
}

/// Runs an accepted image: from the label before damaged code, so that it does run; else from labels that the damage
/// may concern and from others.
fn run(bytes: &[u8], offset: Option<usize>, place: usize, choices: &mut Choices<'_>) -> Result<(), Escape> {
    let image = Image::parse(bytes).expect("accepted");
    let labels = image.labels();
    let before = offset.and_then(|at| labels.last_not_above(u32::try_from(at).unwrap_or(u32::MAX), |l| l.offset));
    let concerned = labels_concerned(bytes, &image, place);
    for n in 0..RUNS {
        let label = match (before, concerned.get(n)) {
            (Some(label), _) => label,
            (None, Some(label)) => *label,
            (None, None) => usize::try_from(choices.word() % labels.len().max(1) as u64).unwrap_or(0),
        };
        let emulated = if n % 2 == 0 { emulate_label } else { emulate_guessing };
        if let Outcome::Escaped(escape) = emulated(&image, label, choices.word(), STEPS) {
            return Err(escape);
        }
    }
    Ok(())
}

/// Labels whose record, or whose state's record, lies at this place in the file.
fn labels_concerned(bytes: &[u8], image: &Image<'_>, place: usize) -> Vec<usize> {
    if let Some(label) = record_at(bytes, Section::Labels, Label::BYTES, image.labels().len(), place) {
        return (label.saturating_sub(1)..=label).collect();
    }
    let Some(state) = record_at(bytes, Section::States, State::BYTES, image.states().len(), place) else {
        return Vec::new();
    };
    let declares = |l: &Label| (l.state & !LABEL_CHARGE) as usize == state;
    image.labels().iter().enumerate().filter(|(_, l)| declares(l)).map(|(n, _)| n).take(RUNS).collect()
}

/// The number of the record of a section in which a place of the file lies.
fn record_at(bytes: &[u8], section: Section, size: usize, len: usize, place: usize) -> Option<usize> {
    let at = 64 + 8 * section as usize;
    let start = bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    let index = place.checked_sub(usize::try_from(start).ok()?)? / size;
    (index < len).then_some(index)
}
