//! `./tandem mutants [NAME]`: makes one rule of the verifier wrong at a time and runs the verifier's own tests, one of which has to notice.
//!
//! The verifier's sources are copied to `target/mutants`, a workspace of its own, so nothing in the tree is touched. A mutant takes
//! some ten seconds, and at most [`LIMIT`].

mod list;

use crate::options::Options;
use anyhow::{bail, ensure, Context, Result};
use list::{Mutant, MUTANTS};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testbed::host;

/// After this a mutant counts as noticed: a test that hangs fails too.
const LIMIT: Duration = Duration::from_secs(180);

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
    let start = Instant::now();
    match verdict(&dir)? {
        None => println!("{:<48} all tests pass ({:.0} s)", "no mutant", start.elapsed().as_secs_f32()),
        Some(failed) => bail!("without any mutant fails already: {failed}"),
    }
    let mut missed = Vec::new();
    for mutant in &chosen {
        let start = Instant::now();
        change(&dir, mutant)?;
        let by = verdict(&dir)?;
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

/// The tests that fail, if any does.
fn verdict(dir: &Path) -> Result<Option<String>> {
    let log = dir.with_extension("log");
    let out = fs::File::create(&log)?;
    let mut tests = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--offline", "--package", "twin-verify", "--lib", "--no-fail-fast"])
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", dir.with_file_name("target"))
        .env("RUSTFLAGS", "-Awarnings")
        .stdout(out.try_clone()?)
        .stderr(out)
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start cargo")?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = tests.try_wait()? {
            break status;
        }
        if start.elapsed() > LIMIT {
            tests.kill()?;
            tests.wait()?;
            return Ok(Some(format!("no end in {} s", LIMIT.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    if status.success() {
        return Ok(None);
    }
    let said = fs::read_to_string(&log)?;
    ensure!(!said.contains("could not compile"), "it does not compile:\n{said}");
    let name = |line: &str| line.strip_prefix("test tests::")?.strip_suffix(" ... FAILED").map(str::to_owned);
    let failed: Vec<String> = said.lines().filter_map(name).collect();
    ensure!(!failed.is_empty(), "no test failed, but:\n{said}");
    Ok(Some(failed.join(", ")))
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
    fn the_copy_is_a_workspace_of_two() {
        let whole =
            "[workspace]\nmembers = [\"hv\"]\n[workspace.package]\nversion = \"1\"\n[profile.image]\nlto = \"fat\"\n";
        let made = workspace(whole);
        assert!(made.contains("version = \"1\"") && !made.contains("hv") && !made.contains("lto"), "{made}");
    }
}
