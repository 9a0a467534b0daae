//! Random damage to a driver's whole image: the verifier refuses it, or the adversary's machine finds it confined.

use crate::rig::Made;
use std::fmt::Write;
use twin_verify::fuzzing::{corrupt, Corrupted, Failure, Sum};

/// Corruptions between two reports of progress.
const STEP: u64 = 10_000;

/// Tries corruptions `first..first + count` of the image. An error tells how to repeat the failure.
pub fn run(made: &Made, seed: u64, first: u64, count: u64, progress: &mut dyn FnMut(u64)) -> Result<Sum, String> {
    made.verified()?;
    let mut image = made.output.image.clone();
    let mut sum = Sum::default();
    let end = first.saturating_add(count);
    for start in (first..end).step_by(STEP as usize) {
        let numbers = start..(start + STEP).min(end);
        progress(numbers.end - numbers.start);
        corrupt(&mut image, &made.policy, seed, numbers, &mut sum).map_err(|failure| match failure {
            Failure::Escaped(number, escape, bytes) => {
                format!("ESCAPE (repeat: --class image --seed {seed} --from {number} --count 1): {escape:x?}, bytes {bytes:02x?}")
            }
            Failure::Disagreement(number, alone, whole) => {
                let text = |r: Option<twin_verify::Refusal>| r.map_or("accepted".into(), |r| r.to_string());
                format!("corruption {number}, seed {seed}: the function alone {}, the whole image {}", text(alone), text(whole))
            }
        })?;
    }
    Ok(sum)
}

/// The result as a table.
pub fn table(sum: &Sum) -> String {
    let mut out = format!("{:<26} {:>9} {:>9} {:>9} {:>8}\n", "class", "faults", "refused", "confined", "escapes");
    for (name, c) in [("image, code", sum.code), ("image, anywhere", sum.file)] {
        let Corrupted { tried, refused, confined } = c;
        let _ = writeln!(out, "{name:<26} {tried:>9} {refused:>9} {confined:>9} {:>8}", 0);
    }
    let rules: Vec<String> = sum.rules.iter().map(|(rule, n)| format!("{rule:?} {n}")).collect();
    let _ = writeln!(out, "refused by rule: {}", rules.join(", "));
    let _ = writeln!(
        out,
        "{} of the corruptions of code also judged by verifying the whole image, with the same result",
        sum.cross_checked
    );
    let _ = write!(out, "{} faults, 0 escapes", sum.code.tried + sum.file.tried);
    out
}
