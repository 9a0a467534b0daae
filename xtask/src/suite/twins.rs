//! Twins on the host: the captured e1000 is rewritten, verified, compared with the original, and run.

use super::Score;
use crate::twin;
use anyhow::{bail, Result};
use std::time::Instant;
use testbed::host;

/// Names of the tests, with the commands of `./tandem` that they are.
const TESTS: &[(&str, &str)] = &[
    ("twin-e1000-mirror", "twin e1000 --mode mirror"),
    ("twin-e1000-stlb", "twin e1000 --mode stlb"),
    ("twin-equivalence-mirror", "equivalence e1000 --mode mirror --count 400"),
    ("twin-equivalence-stlb", "equivalence e1000 --mode stlb --count 400"),
    ("twin-traffic-mirror", "traffic e1000 --mode mirror --count 20000"),
    ("twin-traffic-stlb", "traffic e1000 --mode stlb --count 20000"),
    ("twin-faults-mirror", "faults e1000 --mode mirror --count 3000"),
    ("twin-faults-stlb", "faults e1000 --mode stlb --count 3000"),
    ("twin-faults-image", "faults e1000 --class image --count 10000"),
];

fn chosen(name: Option<&str>) -> impl Iterator<Item = &'static (&'static str, &'static str)> + '_ {
    TESTS.iter().filter(move |(test, _)| name.is_none_or(|n| test.contains(n)))
}

/// The names.
pub fn list(name: Option<&str>) -> Vec<&'static str> {
    chosen(name).map(|(test, _)| *test).collect()
}

/// Runs them, one after the other; gives how many passed and failed.
pub fn run(name: Option<&str>) -> Result<Score> {
    let mut score = Score::default();
    if chosen(name).next().is_none() {
        return Ok(score);
    }
    println!("Twins on the host (the first time a machine is booted to capture a live driver)");
    let start = Instant::now();
    let captured = host::output(&mut twin::harness(&["capture", "e1000"])?).and_then(|said| last(&said));
    score.note("twin", "twin-capture", start.elapsed().as_secs_f32(), &captured);
    if captured.is_err() {
        return Ok(score);
    }
    for (test, command) in chosen(name) {
        let start = Instant::now();
        let words: Vec<&str> = command.split(' ').collect();
        let result = host::output(&mut twin::harness(&words)?).and_then(|said| last(&said));
        score.note("twin", test, start.elapsed().as_secs_f32(), &result);
    }
    Ok(score)
}

/// The line that says what came of it.
fn last(said: &str) -> Result<String> {
    match said.lines().rev().find(|l| !l.starts_with("faults ") && !l.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => bail!("nothing was printed"),
    }
}
