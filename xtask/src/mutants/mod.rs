//! `./tandem mutants [NAME]`: makes one rule of the verifier wrong at a time and runs the verifier's own tests, one of
//! which has to notice.
//!
//! The verifier's sources are copied to `target/mutants`, a workspace of its own, so nothing in the tree is touched. A
//! mutant takes some ten seconds, and at most [`LIMIT`].

mod list;

use crate::options::Options;
use anyhow::{bail, ensure, Context, Result};
use list::{Mutant, MUTANTS};
use std::fs;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use testbed::host;

/// After this tests hang, and the mutant counts as noticed; or after so many times what they take without one, if that
/// is more.
const LIMIT: Duration = Duration::from_secs(180);
const TIMES: u32 = 10;
/// To compile takes less.
const COMPILE_LIMIT: Duration = Duration::from_secs(1800);

/// What the verifier's tests are made of.
const COPIED: &[&str] = &["twin-abi", "twin-verify", "docs/sandbox.md", "Cargo.lock"];

pub fn run(options: &Options) -> Result<bool> {
    let wanted = options.words.first();
    let chosen: Vec<&Mutant> = MUTANTS.iter().filter(|m| wanted.is_none_or(|w| m.name.contains(w.as_str()))).collect();
    ensure!(!chosen.is_empty(), "no such mutant; ./tandem mutants --list names them");
    if options.list {
        chosen.iter().for_each(|mutant| println!("{}", mutant.name));
        return Ok(true);
    }
    let dir = host::target("mutants")?.join("tree");
    copy_all(&dir)?;
    compile(&dir)?;
    let start = Instant::now();
    match verdict(&dir, LIMIT)? {
        None => println!("{:<48} all tests pass ({:.0} s)", "no mutant", start.elapsed().as_secs_f32()),
        Some(failed) => bail!("without any mutant fails already: {failed}"),
    }
    let limit = LIMIT.max(start.elapsed() * TIMES);
    let mut missed = Vec::new();
    for mutant in &chosen {
        let start = Instant::now();
        change(&dir, mutant)?;
        compile(&dir)?;
        let by = verdict(&dir, limit)?;
        restore(&dir, mutant)?;
        println!(
            "{:<48} {} ({:.0} s)",
            mutant.name,
            by.as_deref().unwrap_or("NOT NOTICED"),
            start.elapsed().as_secs_f32()
        );
        if by.is_none() {
            missed.push(mutant.name);
        }
    }
    println!("mutants: {} of {} noticed", chosen.len() - missed.len(), chosen.len());
    Ok(missed.is_empty())
}

/// Compiles the tests. How long that takes says nothing of a mutant.
fn compile(dir: &Path) -> Result<()> {
    let (status, said) = cargo(dir, &["--no-run"], COMPILE_LIMIT)?;
    ensure!(status.is_some_and(|status| status.success()), "it does not compile:\n{said}");
    Ok(())
}

/// The tests that fail, if any does.
fn verdict(dir: &Path, limit: Duration) -> Result<Option<String>> {
    let (status, said) = cargo(dir, &["--no-fail-fast"], limit)?;
    match status {
        None => return Ok(Some(format!("HANGS: no end in {} s", limit.as_secs()))),
        Some(status) if status.success() => return Ok(None),
        Some(_) => {}
    }
    let name = |line: &str| line.strip_prefix("test tests::")?.strip_suffix(" ... FAILED").map(str::to_owned);
    let failed: Vec<String> = said.lines().filter_map(name).collect();
    ensure!(!failed.is_empty(), "no test failed, but:\n{said}");
    Ok(Some(failed.join(", ")))
}

/// Cargo's end, if it comes in time, and what it has said.
fn cargo(dir: &Path, more: &[&str], limit: Duration) -> Result<(Option<ExitStatus>, String)> {
    let log = dir.with_extension("log");
    let out = fs::File::create(&log)?;
    let mut limited = limited(limit);
    limited
        .arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--offline", "--package", "twin-verify", "--lib"])
        .args(more)
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", dir.with_file_name("target"))
        .env("RUSTFLAGS", "-Awarnings")
        .stdout(out.try_clone()?)
        .stderr(out)
        .stdin(Stdio::null());
    let status = limited.status().context("cannot start cargo")?;
    Ok((Some(status).filter(|status| status.code() != Some(TIMED_OUT)), fs::read_to_string(&log)?))
}

/// What `timeout` says when it has ended what it ran.
const TIMED_OUT: i32 = 124;

/// Runs the arguments that are to be added, and ends them and all that they have started when the time is up: tests are
/// children of cargo's, and one that hung would take a CPU from the next mutants.
fn limited(limit: Duration) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &limit.as_secs().to_string()]);
    command
}

fn copy_all(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    for name in COPIED {
        let to = dir.join(name);
        fs::create_dir_all(to.parent().unwrap_or(dir))?;
        let status = Command::new("cp").arg("-r").arg(host::root().join(name)).arg(&to).status()?;
        ensure!(status.success(), "cannot copy {name}");
    }
    fs::write(dir.join("Cargo.toml"), workspace(&fs::read_to_string(host::root().join("Cargo.toml"))?))?;
    Ok(())
}

/// The workspace's settings with these two crates as its members.
fn workspace(whole: &str) -> String {
    let mut out = String::from("[workspace]\nresolver = \"2\"\nmembers = [\"twin-abi\", \"twin-verify\"]\n");
    let mut keep = false;
    for line in whole.lines() {
        if line.starts_with('[') {
            keep = ["[workspace.package]", "[workspace.lints", "[profile.dev]"].iter().any(|s| line.starts_with(s));
        }
        if keep {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Changes the copy.
fn change(dir: &Path, mutant: &Mutant) -> Result<()> {
    for (file, from, to) in mutant.changes {
        let path = dir.join(file);
        let text = fs::read_to_string(&path)?;
        ensure!(text.matches(from).count() == 1, "{}: `{from}` stands not once in {file}", mutant.name);
        fs::write(&path, text.replace(from, to))?;
    }
    Ok(())
}

fn restore(dir: &Path, mutant: &Mutant) -> Result<()> {
    for (file, ..) in mutant.changes {
        // Not `fs::copy`: the file must be newer than what was compiled from it.
        fs::write(dir.join(file), fs::read_to_string(host::root().join(file))?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list is of use only as long as it fits the sources.
    #[test]
    fn every_mutant_still_fits_the_sources() {
        for mutant in MUTANTS {
            for (file, from, to) in mutant.changes {
                let text = fs::read_to_string(host::root().join(file)).expect("a source");
                assert_eq!(text.matches(from).count(), 1, "{}: {from} in {file}", mutant.name);
                assert_ne!(from, to, "{}", mutant.name);
            }
        }
    }

    #[test]
    fn what_hangs_is_ended_with_all_that_it_has_started() {
        let start = Instant::now();
        let mut hangs = limited(Duration::from_secs(1));
        // Its output has no end before the last of them has.
        let done = hangs.args(["sh", "-c", "sleep 60 & sleep 60"]).output().unwrap();
        assert_eq!(done.status.code(), Some(TIMED_OUT));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn the_copy_is_a_workspace_of_two() {
        let whole =
            "[workspace]\nmembers = [\"hv\"]\n[workspace.package]\nversion = \"1\"\n[profile.image]\nlto = \"fat\"\n";
        let made = workspace(whole);
        assert!(made.contains("version = \"1\"") && !made.contains("hv") && !made.contains("lto"), "{made}");
    }
}
