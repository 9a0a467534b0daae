//! The tiny PV kernels under `guests/`, one behaviour each: built, booted as domain 0, and judged.

use crate::host;
use crate::machine::{Ending, Hypervisor, Machine, Outcome, Qemu};
use anyhow::{bail, Context, Result};
use std::fmt::Write;
use std::path::{Path, PathBuf};
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
    /// What the lines of a machine say of the kernel of that name.
    pub fn of(lines: &[String], name: &str) -> Self {
        let said = |word: &str| lines.iter().any(|line| line.contains(&format!("Test {name}: {word}")));
        match ["SUCCESS", "SKIP", "ERROR", "FAILURE"].iter().position(|word| said(word)) {
            Some(0) => Self::Success,
            Some(1) => Self::Skip,
            Some(2) => Self::Error,
            Some(_) => Self::Failure,
            None => Self::Crash,
        }
    }

    /// As the kernels print it.
    pub fn word(&self) -> &'static str {
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
    /// Why its verdict on Tandem is not that on stock Xen, if so.
    pub differs: Option<String>,
    /// Why its verdict on Tandem may be that there is nothing to test.
    pub skips: Option<String>,
    cpus: u32,
    vcpus: u32,
    /// `-cpu`; QEMU's default when `None`.
    processor: Option<String>,
    /// The folders under `guests/lib/` whose files it shares with others.
    shares: Vec<String>,
    /// More options of the hypervisor's.
    options: String,
    /// Time goes by instructions, and not by the host's clock: a run is the same each time.
    counts_instructions: bool,
}

/// What a run may be told.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// Operations of the hostile kernel.
    pub operations: Option<u64>,
    /// Where its random numbers start.
    pub seed: Option<u64>,
    /// How many of its vCPUs it uses.
    pub vcpus: Option<u64>,
    /// The machine's IOMMU, as [`crate::machine::Machine::devices`] has it. Domain 0's devices are behind it then.
    pub iommu: Option<&'static str>,
    /// The QEMU to run in.
    pub qemu: Qemu,
}

impl Default for Wishes {
    fn default() -> Self {
        Self { operations: None, seed: None, vcpus: None, iommu: None, qemu: Qemu::chosen() }
    }
}

/// Operations that the hostile kernel does in a second at least, on a slow host; one if each is a domain's death and
/// time goes by instructions.
const OPERATIONS_PER_S: u64 = 500;
/// How long a kernel may say nothing. A hostile one reports each 16 384 operations.
const SILENCE: std::time::Duration = std::time::Duration::from_secs(120);
/// Seconds that any kernel may take: more than twice what the longest does alone.
const TIME_LIMIT_S: u64 = 150;
/// Seconds that a hostile one may take for as many operations as it does without being asked for more.
const HOSTILE_LIMIT_S: u64 = 300;

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

/// The one of that name.
pub fn named(name: &str) -> Result<Guest> {
    all()?.into_iter().find(|guest| guest.name == name).with_context(|| format!("no test kernel {name}"))
}

/// Takes a test's purpose from its first comment, which may ask for CPUs, `(cpus: 2)`, for vCPUs if they are not as
/// many, `(vcpus: 2)`, for a processor, `(processor: max)`, for the files of folders in `guests/lib/`,
/// `(shares: chaos twins)`, for options of the hypervisor's, `(hypervisor: ac-check)`, for time that goes by
/// instructions, `(clock: instructions)`, and explain why the verdict on Tandem is another than that on stock Xen,
/// `(differs: because)`, or why there is nothing to test on Tandem, `(skips: because)`.
pub fn describe(name: String, source: &str) -> Guest {
    let comment = source.trim_start().strip_prefix("/*").and_then(|rest| rest.split("*/").next()).unwrap_or_default();
    let about: Vec<&str> = comment.split_whitespace().filter(|word| *word != "*").collect();
    let mut about = about.join(" ");
    let mut note = |key: &str| {
        let start = about.find(&format!(" ({key}: "))?;
        let len = about[start..].find(')')?;
        let note = about[start + key.len() + 4..start + len].to_string();
        about.replace_range(start..=start + len, "");
        Some(note)
    };
    let mut count = |key: &str| note(key).and_then(|count| count.parse().ok());
    let cpus = count("cpus").unwrap_or(1);
    let vcpus = count("vcpus").unwrap_or(cpus);
    let (processor, differs, skips) = (note("processor"), note("differs"), note("skips"));
    let shares = note("shares").map(|folders| folders.split(' ').map(String::from).collect()).unwrap_or_default();
    let options = note("hypervisor").unwrap_or_default();
    let counts_instructions = note("clock").is_some_and(|clock| clock == "instructions");
    Guest { name, about, differs, skips, cpus, vcpus, processor, shares, options, counts_instructions }
}

impl Guest {
    /// Compiles it with the host's gcc. Others may be reading what an earlier build left, or be building it too.
    pub fn build(&self) -> Result<PathBuf> {
        let source = host::root().join("guests");
        let output = host::target("guests")?.join(&self.name);
        let fresh = output.with_extension(format!("{:?}", std::thread::current().id()));
        let lib = source.join("lib");
        let mut gcc = Command::new("gcc");
        gcc.args(["-m64", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-pic", "-mcmodel=kernel"])
            .args(["-mno-red-zone", "-mgeneral-regs-only", "-fno-stack-protector", "-fno-asynchronous-unwind-tables"])
            .args(["-fcf-protection=none", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none"])
            .args(["-Wl,-z,max-page-size=4096", "-Wl,--no-warn-rwx-segments"])
            .arg(format!("-Wl,-T,{}", lib.join("guest.ld").display()))
            .arg(format!("-I{}", lib.display()))
            .args(["start.S", "guest.c", "events.c"].map(|file| lib.join(file)))
            .args(sources(&source.join(&self.name))?);
        for shared in self.shares.iter().map(|folder| lib.join(folder)) {
            gcc.arg(format!("-I{}", shared.display())).args(sources(&shared)?);
        }
        gcc.arg("-o").arg(&fresh);
        host::run(&mut gcc).with_context(|| format!("the test kernel {} does not compile", self.name))?;
        std::fs::rename(&fresh, &output)?;
        Ok(output)
    }

    /// Does it random operations, as many as it is told?
    fn is_hostile(&self) -> bool {
        self.shares.iter().any(|folder| folder == "chaos")
    }

    /// Boots it as domain 0.
    pub fn run(&self, hypervisor: &Hypervisor, wishes: Wishes) -> Result<(Verdict, Outcome)> {
        self.run_on(&self.machine(hypervisor, wishes)?)
    }

    /// A machine that boots it as domain 0.
    pub fn machine(&self, hypervisor: &Hypervisor, wishes: Wishes) -> Result<Machine> {
        let mut kernel_args = String::from(if wishes.qemu == Qemu::Ten { "qemu=10 a test" } else { "a test" });
        for (name, value) in [("operations", wishes.operations), ("seed", wishes.seed), ("vcpus", wishes.vcpus)] {
            if let Some(value) = value {
                let _ = write!(kernel_args, " {name}={value}");
            }
        }
        // Both versions may be at work side by side.
        let prefix = if wishes.qemu == Qemu::chosen() { "" } else { "smap-" };
        // A CPU that waits for a lock lets the others run at once, however few the host has.
        let threads = if self.is_hostile() { ",thread=single" } else { "" };
        let mut accel = vec!["-accel".into(), format!("tcg{threads}")];
        if self.counts_instructions {
            accel.extend(["-icount", "shift=0,sleep=off"].map(String::from));
        }
        Ok(Machine {
            name: format!("{prefix}guest-{}-{}", self.name, hypervisor.name()),
            hypervisor: hypervisor.clone(),
            hypervisor_args: format!(
                "dom0_mem=64M dom0_max_vcpus={} loglvl=all guest_loglvl=all {}{}",
                self.vcpus,
                self.options,
                if wishes.iommu.is_some() { " iommu=dom0-strict" } else { "" }
            ),
            kernel: Some(self.build()?),
            iso: None,
            uefi: false,
            initramfs: None,
            kernel_args,
            cpus: self.cpus,
            memory_mib: 512,
            cpu_model: self.processor.clone(),
            nic: None,
            second_nic: None,
            disks: Vec::new(),
            chipset: if wishes.iommu.is_some() { "q35" } else { "pc" },
            devices: wishes.iommu.into_iter().collect(),
            accel,
            qemu: wishes.qemu,
            tells_misuse: false,
            waits_for_gdb: false,
            timeout_s: if self.is_hostile() { HOSTILE_LIMIT_S } else { TIME_LIMIT_S }
                + wishes.operations.unwrap_or(0) / if self.counts_instructions { 1 } else { OPERATIONS_PER_S },
        })
    }

    /// Boots `machine`, which is a variant of what [`Guest::machine`] gave.
    pub fn run_on(&self, machine: &Machine) -> Result<(Verdict, Outcome)> {
        let closing = format!("Test {}: ", self.name);
        let outcome = machine.start()?.finish_unless_silent(SILENCE, |line| line.contains(&closing))?;
        Ok((Verdict::of(&outcome.lines, &self.name), outcome))
    }

    /// Whether the hypervisor did nothing wrong. That it lacks what is to be tested is wrong on Tandem, unless the
    /// source says why it may.
    pub fn accepts(&self, verdict: &Verdict, hypervisor: &Hypervisor) -> bool {
        match verdict {
            Verdict::Success => true,
            Verdict::Skip => self.skips.is_some() || hypervisor.is_stock_xen(),
            Verdict::Error | Verdict::Failure | Verdict::Crash => false,
        }
    }

    /// As a test of the suite: what it says is an error unless [`Guest::accepts`] it.
    pub fn judge(&self, hypervisor: &Hypervisor, qemu: Qemu) -> Result<String> {
        self.judge_on(&self.machine(hypervisor, Wishes { qemu, ..Wishes::default() })?)
    }

    /// As [`Guest::judge`], on such a machine as [`Guest::run_on`] takes.
    pub fn judge_on(&self, machine: &Machine) -> Result<String> {
        let (verdict, outcome) = self.run_on(machine)?;
        match verdict {
            Verdict::Success => Ok(String::new()),
            _ if self.accepts(&verdict, &machine.hypervisor) => Ok(complaints(&outcome.lines).unwrap_or_default()),
            Verdict::Crash if outcome.ending == Ending::TimeOut => {
                let places: Vec<&str> =
                    outcome.lines.iter().map(|l| l.trim()).filter(|l| l.starts_with("look 1:")).collect();
                bail!("it did not come to an end: {} (log {})", places.join("; "), outcome.log.display())
            }
            other => bail!("{}: {}", other.word(), complaints(&outcome.lines).unwrap_or("no verdict".into())),
        }
    }
}

/// A kernel's own C files.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|e| e == "c" || e == "S"));
    files.sort();
    Ok(files)
}

/// What a kernel complained about, of which the first few are enough: what failed, and then domains that crashed, as
/// some of a kernel's do on purpose; if it says so of nothing, whatever is indented, and crashes.
pub fn complaints(lines: &[String]) -> Option<String> {
    let failed = lines.iter().filter(|line| line.starts_with("  failed: "));
    let others = lines.iter().filter(|line| line.contains(" crashed: ") || line.starts_with("  "));
    let has_failed = failed.clone().next().is_some();
    let others = others.filter(|line| !has_failed || line.contains(" crashed: "));
    let said: Vec<&str> = failed.chain(others).take(3).map(|line| line.trim()).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purpose_and_cpus_come_from_the_comment() {
        let guest = describe("x".into(), "/*\n * Tests this,\n * and that. (cpus: 2)\n */\n#include");
        assert_eq!((guest.about.as_str(), guest.cpus), ("Tests this, and that.", 2));
        assert_eq!(describe("x".into(), "/* One line. */").cpus, 1);
        let guest = describe("x".into(), "/* Tests this. (differs: Xen does\n * not) (cpus: 4) */");
        assert_eq!(
            (guest.about.as_str(), guest.differs.as_deref(), guest.cpus),
            ("Tests this.", Some("Xen does not"), 4)
        );
        assert_eq!(describe("x".into(), "/* This. (shares: chaos twins) */").shares, ["chaos", "twins"]);
        assert_eq!(describe("x".into(), "/* This. (hypervisor: ac-check mem=1G) */").options, "ac-check mem=1G");
        assert!(
            describe("x".into(), "/* This. (clock: instructions) */").counts_instructions && !guest.counts_instructions
        );
    }

    #[test]
    fn on_tandem_nothing_is_skipped_that_does_not_say_why() {
        let [skips, plain] = ["/* This. (skips: no UEFI) */", "/* This. */"].map(|source| describe("x".into(), source));
        let (tandem, xen) = (Hypervisor::Elf("tandem.elf".into()), Hypervisor::Elf("xen-4.17.elf".into()));
        assert!(skips.accepts(&Verdict::Skip, &tandem) && !plain.accepts(&Verdict::Skip, &tandem));
        assert!(plain.accepts(&Verdict::Skip, &xen) && plain.accepts(&Verdict::Success, &tandem));
        for verdict in [Verdict::Error, Verdict::Failure, Verdict::Crash] {
            assert!(!skips.accepts(&verdict, &tandem) && !skips.accepts(&verdict, &xen));
        }
    }

    #[test]
    fn only_the_closing_line_is_a_verdict() {
        let lines = |text: &str| text.lines().map(String::from).collect::<Vec<_>>();
        assert_eq!(Verdict::of(&lines("Test a\nTest a: SUCCESS"), "a"), Verdict::Success);
        assert_eq!(Verdict::of(&lines("Test a\n  failed: b\nTest a: FAILURE"), "a"), Verdict::Failure);
        assert_eq!(Verdict::of(&lines("Test a\nTest aa: SUCCESS"), "a"), Verdict::Crash);
    }

    #[test]
    fn complaints_are_what_failed_however_much_was_said_before() {
        let of = |text: &str| complaints(&text.lines().map(String::from).collect::<Vec<_>>());
        let progress = "Test a\n  done 1\n  done 2\n  done 3\n";
        assert_eq!(of(&format!("{progress}  failed: b\n")).as_deref(), Some("failed: b"));
        assert_eq!(of(&format!("  no card\n{progress}")).as_deref(), Some("no card; done 1; done 2"));
        let crash = "(TDM) d5v0 crashed: vector 3\n";
        assert_eq!(
            of(&format!("{crash}{crash}{crash}  failed: b\n{crash}")).as_deref(),
            Some("failed: b; (TDM) d5v0 crashed: vector 3; (TDM) d5v0 crashed: vector 3")
        );
        assert_eq!(of(&format!("{crash}  x\n")).as_deref(), Some("(TDM) d5v0 crashed: vector 3; x"));
        assert_eq!(of("Test a\n"), None);
    }
}
