//! `./tandem guests`: the tiny PV kernels under `guests/`, one behaviour each: built, booted as domain 0, and judged.
//!
//! With `--hypervisor xen` all of them run on stock Xen and `docs/test-guests.md` is written: the peer is the oracle.

use crate::host;
use crate::machine::{Ending, Hypervisor, Machine, Outcome};
use crate::options::Options;
use anyhow::{bail, ensure, Context, Result};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

/// What a kernel said about itself, or what was seen of it from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything was as it should be.
    Success,
    /// The machine lacks what the test needs.
    Skip,
    /// The test is broken.
    Error,
    /// The hypervisor is.
    Failure,
    /// The kernel said nothing in the end.
    Crash,
}

impl Verdict {
    fn of(lines: &[String], name: &str) -> Self {
        let said = |word: &str| lines.iter().any(|line| line.contains(&format!("Test {name}: {word}")));
        match ["SUCCESS", "SKIP", "ERROR", "FAILURE"].iter().position(|word| said(word)) {
            Some(0) => Self::Success,
            Some(1) => Self::Skip,
            Some(2) => Self::Error,
            Some(_) => Self::Failure,
            None => Self::Crash,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::Skip => "SKIP",
            Self::Error => "ERROR",
            Self::Failure => "FAILURE",
            Self::Crash => "CRASH",
        }
    }
}

/// A test kernel.
pub struct Guest {
    /// Its folder's name.
    pub name: String,
    /// What it tests, from the comment at the start of its source.
    pub about: String,
    cpus: u32,
}

/// All test kernels, by name.
pub fn all() -> Result<Vec<Guest>> {
    let root = host::root().join("guests");
    let mut guests = Vec::new();
    for entry in std::fs::read_dir(&root).with_context(|| format!("no {}", root.display()))? {
        let path = entry?.path();
        let source = path.join("main.c");
        if source.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            guests.push(describe(name, &std::fs::read_to_string(source)?));
        }
    }
    guests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(guests)
}

/// Takes a test's purpose from its first comment, which may ask for CPUs: `(cpus: 2)`.
fn describe(name: String, source: &str) -> Guest {
    let comment = source.trim_start().strip_prefix("/*").and_then(|rest| rest.split("*/").next()).unwrap_or_default();
    let about: Vec<&str> = comment.split_whitespace().filter(|word| *word != "*").collect();
    let about = about.join(" ");
    let (about, cpus) = match about.split_once(" (cpus: ") {
        Some((about, count)) => (about.to_string(), count.trim_end_matches(')').parse().unwrap_or(1)),
        None => (about, 1),
    };
    Guest { name, about, cpus }
}

impl Guest {
    /// Compiles it with the host's gcc.
    pub fn build(&self) -> Result<PathBuf> {
        let source = host::root().join("guests");
        let output = host::target("guests")?.join(&self.name);
        let lib = source.join("lib");
        let mut gcc = Command::new("gcc");
        gcc.args(["-m64", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-pic", "-mcmodel=kernel"])
            .args(["-mno-red-zone", "-mgeneral-regs-only", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"])
            .args(["-fcf-protection=none", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"])
            .args(["-Wl,-z,max-page-size=4096", "-Wl,--no-warn-rwx-segments"])
            .arg(format!("-Wl,-T,{}", lib.join("guest.ld").display()))
            .arg(format!("-I{}", lib.display()))
            .args(["start.S", "guest.c", "events.c"].map(|file| lib.join(file)))
            .arg(source.join(&self.name).join("main.c"))
            .arg("-o")
            .arg(&output);
        host::run(&mut gcc).with_context(|| format!("the test kernel {} does not compile", self.name))?;
        Ok(output)
    }

    /// Boots it as domain 0.
    pub fn run(&self, hypervisor: &Hypervisor) -> Result<(Verdict, Outcome)> {
        let machine = Machine {
            name: format!("guest-{}-{}", self.name, hypervisor.name()),
            hypervisor: hypervisor.clone(),
            hypervisor_args: format!("dom0_mem=64M dom0_max_vcpus={} loglvl=all guest_loglvl=all", self.cpus),
            kernel: Some(self.build()?),
            iso: None,
            initramfs: None,
            kernel_args: "a test".into(),
            cpus: self.cpus,
            memory_mib: 512,
            cpu_model: None,
            nic: None,
            disks: Vec::new(),
            accel: vec!["-accel".into(), "tcg".into()],
            timeout_s: 60,
        };
        let closing = format!("Test {}: ", self.name);
        let outcome = machine.start()?.finish(|line| line.contains(&closing))?;
        Ok((Verdict::of(&outcome.lines, &self.name), outcome))
    }

    /// As a test of the suite: what it says is an error unless it is a success, or a reason to skip it.
    pub fn judge(&self, hypervisor: &Hypervisor) -> Result<String> {
        let (verdict, outcome) = self.run(hypervisor)?;
        match verdict {
            Verdict::Success => Ok(String::new()),
            Verdict::Skip => Ok(complaints(&outcome.lines).unwrap_or_default()),
            Verdict::Crash if outcome.ending == Ending::TimeOut => {
                bail!("it did not come to an end (log {})", outcome.log.display())
            }
            other => bail!("{}: {}", other.word(), complaints(&outcome.lines).unwrap_or("no verdict".into())),
        }
    }
}

/// What a kernel complained about: indented lines, of which the first few are enough.
fn complaints(lines: &[String]) -> Option<String> {
    let said: Vec<&str> = lines
        .iter()
        .filter(|line| line.starts_with("  ") || line.contains(" crashed: "))
        .take(3)
        .map(|line| line.trim())
        .collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// The command: a table of all kernels, or of those whose name contains the first word.
pub fn run(options: &Options) -> Result<bool> {
    let hypervisor = Hypervisor::choose(options.hypervisor.as_deref())?;
    ensure!(hypervisor != Hypervisor::None, "the test kernels need a hypervisor");
    let filter = options.words.first();
    let mut table = Vec::new();
    let (mut passed, mut failed) = (0, 0);
    for guest in all()?.into_iter().filter(|guest| filter.is_none_or(|word| guest.name.contains(word.as_str()))) {
        let start = std::time::Instant::now();
        let (verdict, outcome) = guest.run(&hypervisor)?;
        let is_good = matches!(verdict, Verdict::Success | Verdict::Skip);
        let detail = complaints(&outcome.lines).filter(|_| verdict != Verdict::Success).unwrap_or_default();
        println!("{:<8} {:<26} {:>5.1} s  {detail}", verdict.word(), guest.name, start.elapsed().as_secs_f32());
        if is_good {
            passed += 1;
        } else {
            failed += 1;
        }
        table.push((guest, verdict));
    }
    println!("{passed} passed, {failed} failed");
    if options.hypervisor.as_deref() == Some("xen") && filter.is_none() {
        std::fs::write(host::root().join("docs/test-guests.md"), document(&table))?;
    }
    Ok(failed == 0)
}

/// The page about the test kernels, with stock Xen's verdicts.
fn document(table: &[(Guest, Verdict)]) -> String {
    let mut text = String::from(
        "# Test kernels\n\nTiny PV kernels, each of which runs as domain 0, tries one behaviour of the hypervisor and says \
         what it found. They run\nunchanged on stock Xen and on Tandem: `./tandem guests [NAME] [--hypervisor xen]`. A new one \
         is a folder under `guests/` with a\n`main.c` that includes `guest.h`; its first comment says what it tests. \
         SUCCESS and SKIP are good; ERROR means that the test is\nbroken, FAILURE that the hypervisor is, CRASH that there was \
         no verdict.\n\nThis page is written by `./tandem guests --hypervisor xen`; the verdicts are those of Debian's Xen \
         4.17 under QEMU's software CPU.\n\n| kernel | what it tests | stock Xen |\n|---|---|---|\n",
    );
    for (guest, verdict) in table {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {} | {} |", guest.name, guest.about.replace('|', "\\|"), verdict.word());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purpose_and_cpus_come_from_the_comment() {
        let guest = describe("x".into(), "/*\n * Tests this,\n * and that. (cpus: 2)\n */\n#include");
        assert_eq!((guest.about.as_str(), guest.cpus), ("Tests this, and that.", 2));
        assert_eq!(describe("x".into(), "/* One line. */").cpus, 1);
    }

    #[test]
    fn only_the_closing_line_is_a_verdict() {
        let lines = |text: &str| text.lines().map(String::from).collect::<Vec<_>>();
        assert_eq!(Verdict::of(&lines("Test a\nTest a: SUCCESS"), "a"), Verdict::Success);
        assert_eq!(Verdict::of(&lines("Test a\n  failed: b\nTest a: FAILURE"), "a"), Verdict::Failure);
        assert_eq!(Verdict::of(&lines("Test a\nTest aa: SUCCESS"), "a"), Verdict::Crash);
    }

    #[test]
    fn every_kernel_has_a_purpose() {
        for guest in all().unwrap() {
            assert!(!guest.about.is_empty(), "{} does not say what it tests", guest.name);
        }
    }
}
