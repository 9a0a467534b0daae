//! The crates' own tests, on the host: `cargo test`; and the formatter and clippy.

use super::Score;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;
use testbed::host;

/// `--lint`: the formatter and clippy, where they are installed; any remark of theirs is a failure.
pub fn lints(score: &mut Score) {
    lint("formatting", &["fmt", "--all", "--check"], score);
    lint("clippy", &["clippy", "--quiet", "--all-targets", "--", "-D", "warnings"], score);
}

pub fn run(filter: Option<&str>, score: &mut Score) -> Result<()> {
    println!("Unit tests of every crate (the first time everything is compiled)");
    let mut child = Command::new(cargo())
        .args(["test", "--no-fail-fast", "--quiet"])
        .args(filter)
        .current_dir(host::root())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut failed_lines = 0;
    let start = Instant::now();
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if let Some((passed, failed)) = parse(&line) {
            score.passed += passed;
            score.failed += failed;
            failed_lines += failed;
        } else if line.contains("FAILED") || line.contains("panicked") || line.starts_with("----") {
            println!("  {line}");
        }
    }
    let status = child.wait()?;
    if !status.success() && failed_lines == 0 {
        score.note(
            "unit",
            "every crate compiles and its tests run",
            start.elapsed().as_secs_f32(),
            &Err(anyhow::anyhow!("cargo test: {status}")),
        );
    }
    println!("     unit tests took {:.0} s", start.elapsed().as_secs_f32());
    Ok(())
}

/// The cargo that runs us.
fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// A cargo subcommand that may not be installed.
fn lint(name: &str, args: &[&str], score: &mut Score) {
    let installed = args
        .first()
        .is_some_and(|sub| Command::new(cargo()).args([sub, "--version"]).output().is_ok_and(|o| o.status.success()));
    if !installed {
        println!("     {name} left out: cargo {} is not installed", args[0]);
        return;
    }
    let start = Instant::now();
    let result = host::output(Command::new(cargo()).args(args).current_dir(host::root())).map(|_| String::new());
    score.note("unit", name, start.elapsed().as_secs_f32(), &result);
}

/// Passed and failed from a line that ends a test program's run.
fn parse(line: &str) -> Option<(u64, u64)> {
    let rest = line.trim().strip_prefix("test result: ")?;
    let number = |word: &str| {
        let mut before = None;
        for part in rest.split([' ', ';']).filter(|p| !p.is_empty()) {
            if part == word {
                return before;
            }
            before = part.trim_end_matches('.').parse::<u64>().ok();
        }
        None
    };
    Some((number("passed")?, number("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_summary_is_read() {
        let line = "test result: FAILED. 12 passed; 3 failed; 0 ignored; 0 measured; 1 filtered out; finished in 0.01s";
        assert_eq!(parse(line), Some((12, 3)));
        assert_eq!(parse("running 3 tests"), None);
    }
}
