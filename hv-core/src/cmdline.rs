//! The hypervisor's command line: options spelled as Xen spells them (docs/misc/xen-command-line of Xen 4.17).
//!
//! Nothing here fails: an option that is unknown, has a bad value, or contradicts another one becomes a [`Diagnostic`],
//! one line for the console, and its default holds. Options of Xen that cannot mean anything here, and those that could
//! and are not done, are told apart from mistyped ones, so that a working Xen configuration can be taken over
//! unchanged.

mod diagnostic;
mod memory;
mod names;
mod values;

pub use diagnostic::Diagnostic;
pub use memory::{Amount, Dom0Memory};
pub use values::{Consoles, LogLevel, LogThresholds};

use crate::conring;
use crate::sched::PREEMPT_DELAY_US;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use values::{boolean, clamped, number};

/// An invocation of a twin may take so long, if nothing else is said: a thousand times what it takes.
const TWIN_LIMIT_MS: u32 = 100;

/// `iommu=`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iommu {
    /// Use one if there is one.
    pub is_enabled: bool,
    /// Refuse to start without one.
    pub is_required: bool,
    /// Remap interrupts, if it can.
    pub has_intremap: bool,
    /// Let domain 0's devices reach all memory, as they do unless the next says otherwise.
    pub(crate) is_dom0_passthrough: bool,
    /// Map only domain 0's own memory for its devices.
    pub is_dom0_strict: bool,
}

impl Default for Iommu {
    fn default() -> Self {
        Self {
            is_enabled: true,
            is_required: false,
            has_intremap: true,
            is_dom0_passthrough: false,
            is_dom0_strict: false,
        }
    }
}

/// All options. What was not given, or not given well, has its default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The whole line, as tools show it.
    pub line: String,
    /// `console=`: where messages go, in order. Empty if nothing was said.
    pub consoles: Vec<String>,
    /// `vga=keep`: messages go to the screen also when domain 0 runs.
    pub is_screen_kept: bool,
    /// `com1=`: the first serial port's settings, unparsed: `words` gives them to the console before there is a heap.
    pub com1: Option<String>,
    /// `conring_size=` in bytes, a power of two.
    pub conring_bytes: u64,
    /// `loglvl=`
    pub loglvl: Option<LogThresholds>,
    /// `guest_loglvl=`
    pub guest_loglvl: Option<LogThresholds>,
    /// `noreboot`: stop after a fatal error.
    pub noreboot: bool,
    /// `dom0_mem=`
    pub dom0_mem: Dom0Memory,
    /// `dom0_max_vcpus=`: least and most.
    pub dom0_max_vcpus: Option<(u32, u32)>,
    /// `maxcpus=`
    pub maxcpus: Option<u32>,
    /// `nosmp`
    pub nosmp: bool,
    /// `preempt-delay-us=`: for so long a driver domain whose events are off is not preempted; 0: it is at once. Not an
    /// option of Xen's.
    pub preempt_delay_us: u32,
    /// `iommu=`
    pub iommu: Iommu,
    /// `passthrough=unsafe`: devices may be given to domains though nothing keeps them from others' memory.
    pub is_passthrough_unsafe: bool,
    /// `noacpi`, `acpi=off`
    pub noacpi: bool,
    /// `x2apic=`
    pub x2apic: bool,
    /// `smap=`: the hypervisor cannot touch guest memory by accident.
    pub smap: bool,
    /// `ac-check`: every way back to a guest looks whether guest memory was left open. Not an option of Xen's.
    pub ac_check: bool,
    /// `twin-stlb`: twins that compare addresses, a branch that may be guessed wrong, may be loaded. Not an option of
    /// Xen's.
    pub twin_stlb: bool,
    /// `twin-limit-ms=`: so long an invocation of a twin may take. Not an option of Xen's.
    pub twin_limit_ms: u32,
    /// `smep=`: the hypervisor cannot execute guest memory.
    pub smep: bool,
    /// `umip=`: guests cannot see where the descriptor tables are. Not an option of Xen's.
    pub umip: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            line: String::new(),
            consoles: Vec::new(),
            is_screen_kept: false,
            com1: None,
            conring_bytes: 16 << 10,
            loglvl: None,
            guest_loglvl: None,
            noreboot: false,
            dom0_mem: Dom0Memory::default(),
            dom0_max_vcpus: None,
            maxcpus: None,
            nosmp: false,
            preempt_delay_us: PREEMPT_DELAY_US,
            iommu: Iommu::default(),
            is_passthrough_unsafe: false,
            noacpi: false,
            x2apic: true,
            smap: true,
            smep: true,
            umip: true,
            ac_check: false,
            twin_stlb: false,
            twin_limit_ms: TWIN_LIMIT_MS,
        }
    }
}

/// Splits a command line at blanks, of which `"` keeps those together that are not to split it.
fn pieces(line: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    line.split(move |c: char| {
        is_quoted ^= c == '"';
        c.is_ascii_whitespace() && !is_quoted
    })
}

/// The hypervisor's part of a command line, and what follows the word `--`: that is for domain 0's kernel, behind what
/// is in its own line.
pub fn parts(line: &str) -> (&str, &str) {
    let mut at = 0;
    for piece in pieces(line) {
        if piece == "--" {
            let (own, rest) = line.split_at(at);
            return (own.trim_ascii(), rest[piece.len()..].trim_ascii());
        }
        // And the blank behind it, which is one byte.
        at += piece.len() + 1;
    }
    (line, "")
}

/// The line of domain 0's kernel: `own`, and `more` from the hypervisor's.
pub fn kernel_line(own: &str, more: &str) -> String {
    let blank = if own.is_empty() || more.is_empty() { "" } else { " " };
    [own, blank, more].concat()
}

/// The options in the hypervisor's part of a command line, and their values; `"` keeps blanks together. Needs no heap.
pub fn words(line: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    pieces(parts(line).0).filter(|word| !word.is_empty()).map(|word| match word.split_once('=') {
        Some((name, value)) => (name, Some(value.trim_matches('"'))),
        None => (word, None),
    })
}

impl Options {
    /// Parses the line, without the image's name. The second part says what is wrong with it, in the order of the
    /// words; contradictions come last.
    pub fn parse(line: &str) -> (Self, Vec<Diagnostic>) {
        let mut options = Self { line: line.to_string(), ..Self::default() };
        let mut found = Vec::new();
        for (name, value) in words(line) {
            // GRUB once lost the first word, and Debian's `update-grub` still gives it one to lose.
            if name == "placeholder" {
                continue;
            }
            if let Err(diagnostic) = options.set(name, value) {
                found.push(diagnostic);
            }
        }
        options.find_contradictions(&mut found);
        (options, found)
    }

    /// Takes one option.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), Diagnostic> {
        // "no-foo" is "foo=no" for every boolean option.
        let (name, value, is_negated) = match name.strip_prefix("no-") {
            Some(positive) if value.is_none() => (positive, Some("no"), true),
            _ => (name, value, false),
        };
        if let Some((flag, default)) = self.flag(name) {
            *flag = match value {
                None => !default,
                Some(value) => boolean(value).ok_or_else(|| bad(name, value, "a boolean, as yes or no"))?,
            };
            return Ok(());
        }
        let spelled = if is_negated { Some("no") } else { value };
        // As `ivrs_ioapic[4]=00:14.0`.
        let plain = name.split('[').next().unwrap_or(name);
        match self.set_value(name, spelled) {
            Some(result) => result,
            None if names::IGNORED.contains(&plain) => Err(Diagnostic::Ignored(plain.to_string())),
            None if names::UNSUPPORTED.contains(&plain) => Err(Diagnostic::Unsupported(plain.to_string())),
            None if is_negated => Err(Diagnostic::Unknown(alloc::format!("no-{name}"))),
            None => Err(Diagnostic::Unknown(name.to_string())),
        }
    }

    /// A boolean option by name, and what its absence means: alone, its name says the opposite.
    fn flag(&mut self, name: &str) -> Option<(&mut bool, bool)> {
        Some(match name {
            "noreboot" => (&mut self.noreboot, false),
            "nosmp" => (&mut self.nosmp, false),
            "twin-stlb" => (&mut self.twin_stlb, false),
            "ac-check" => (&mut self.ac_check, false),
            "noacpi" => (&mut self.noacpi, false),
            _ => return None,
        })
    }

    /// An option with a value, or a boolean whose absence means yes; none if there is none of that name.
    fn set_value(&mut self, name: &str, value: Option<&str>) -> Option<Result<(), Diagnostic>> {
        let text = value.unwrap_or("");
        // A boolean option that is on by default: its name alone changes nothing.
        let on_by_default =
            |field: &mut bool| set(field, name, text, boolean(value.unwrap_or("yes")), "a boolean, as yes or no");
        Some(match name {
            "console" => {
                self.consoles = text.split(',').filter(|c| !c.is_empty()).map(String::from).collect();
                let unknown = self.consoles.iter().find(|console| values::console(console).is_none());
                unknown.map_or(Ok(()), |console| Err(bad(name, console, "a list of com1, vga or none")))
            }
            "vga" => self.set_vga(text),
            "com1" => set(&mut self.com1, name, text, values::serial(text).map(Some), values::SERIAL_FORM),
            "conring_size" => {
                let size = values::size(text).filter(|s| (1 << 12..=u64::from(conring::MAX_BYTES)).contains(s));
                set(&mut self.conring_bytes, name, text, size.map(u64::next_power_of_two), "a size from 4K to 1M")
            }
            "loglvl" => set(&mut self.loglvl, name, text, LogThresholds::parse(text).map(Some), values::LEVEL_FORM),
            "guest_loglvl" => {
                set(&mut self.guest_loglvl, name, text, LogThresholds::parse(text).map(Some), values::LEVEL_FORM)
            }
            "dom0_mem" => set(&mut self.dom0_mem, name, text, Dom0Memory::parse(text), memory::FORM),
            "dom0_max_vcpus" => {
                set(&mut self.dom0_max_vcpus, name, text, values::range(text).map(Some), values::RANGE_FORM)
            }
            "dom0" => dom0(text),
            "maxcpus" => set(&mut self.maxcpus, name, text, number(text).map(|n| Some(n.max(1))), "a number of CPUs"),
            "sched" => values::is_scheduler(text).then_some(()).ok_or_else(|| bad(name, text, values::SCHEDULER_FORM)),
            // Not an option of Xen's.
            "preempt-delay-us" => set(
                &mut self.preempt_delay_us,
                name,
                text,
                clamped(text, 0, 1000),
                "a number of microseconds, 0 to 1000",
            ),
            // Not an option of Xen's.
            "twin-limit-ms" => set(
                &mut self.twin_limit_ms,
                name,
                text,
                clamped(text, 10, 10_000),
                "a number of milliseconds, 10 to 10000",
            ),
            "iommu" => values::iommu(&mut self.iommu, value),
            // Not an option of Xen's.
            "passthrough" => {
                let is_unsafe = match text {
                    "unsafe" => Some(true),
                    "safe" => Some(false),
                    _ => None,
                };
                set(&mut self.is_passthrough_unsafe, name, text, is_unsafe, "safe or unsafe")
            }
            "acpi" => {
                let is_off = match text {
                    "force" | "ht" | "strict" | "noirq" | "verbose" => Some(false),
                    _ => boolean(value.unwrap_or("yes")).map(|on| !on),
                };
                set(&mut self.noacpi, name, text, is_off, "off, or a boolean")
            }
            "x2apic" => on_by_default(&mut self.x2apic),
            // `hvm` keeps it for HVM guests, of which there are none.
            "smap" => set(&mut self.smap, name, text, values::supervisor(value), values::SUPERVISOR_FORM),
            "smep" => set(&mut self.smep, name, text, values::supervisor(value), values::SUPERVISOR_FORM),
            "umip" => on_by_default(&mut self.umip),
            _ => return None,
        })
    }

    /// `vga=`: a list. The loader or the firmware has set the mode, and it stays. What is wrong with one word says
    /// nothing of the others.
    fn set_vga(&mut self, list: &str) -> Result<(), Diagnostic> {
        let mut said = Ok(());
        for item in list.split(',') {
            match item {
                "keep" => self.is_screen_kept = true,
                "current" | "text-80x25" => {}
                _ => said = said.and(Err(bad("vga", item, "current or keep (the loader sets the mode)"))),
            }
        }
        said
    }

    fn find_contradictions(&self, found: &mut Vec<Diagnostic>) {
        let mut check = |is_contradiction: bool, first: &'static str, second: &'static str, effect: &'static str| {
            if is_contradiction {
                found.push(Diagnostic::Contradiction { first, second, effect });
            }
        };
        check(self.nosmp && self.maxcpus.is_some_and(|n| n > 1), "nosmp", "maxcpus", "one CPU is used");
        check(self.dom0_mem.is_inverted(), "dom0_mem=min:", "dom0_mem=max:", "no size satisfies both");
        let has_few = self.maxcpus.zip(self.dom0_max_vcpus).is_some_and(|(cpus, (least, _))| least > cpus);
        check(has_few, "maxcpus", "dom0_max_vcpus", "domain 0 has more vCPUs than there are CPUs");
        let iommu = &self.iommu;
        check(iommu.is_required && !iommu.is_enabled, "iommu=off", "iommu=force", "the IOMMU stays off");
        check(
            iommu.is_dom0_strict && iommu.is_dom0_passthrough,
            "iommu=dom0-strict",
            "iommu=dom0-passthrough",
            "domain 0 is confined",
        );
    }
}

/// `dom0=`: a list. Only PV exists, and what is built is said in any case.
fn dom0(list: &str) -> Result<(), Diagnostic> {
    let is_known = |item: &&str| matches!(*item, "pv" | "no-pvh" | "pvh=no" | "no-shadow" | "verbose");
    match list.split(',').find(|item| !is_known(item)) {
        Some(item) => Err(bad("dom0", item, "pv or verbose (domain 0 is always PV)")),
        None => Ok(()),
    }
}

/// Sets `field` if the value could be read.
fn set<T>(field: &mut T, name: &str, text: &str, read: Option<T>, expected: &'static str) -> Result<(), Diagnostic> {
    *field = read.ok_or_else(|| bad(name, text, expected))?;
    Ok(())
}

fn bad(name: &str, value: &str, expected: &'static str) -> Diagnostic {
    Diagnostic::BadValue { name: name.to_string(), value: value.to_string(), expected }
}

/// Generator-independent oracle for fuzzing: no line makes the parser panic, and what it says is one line each.
#[cfg(any(test, feature = "fuzzing"))]
pub fn check_line(line: &str) {
    let (options, found) = Options::parse(line);
    assert!(options.dom0_mem.pages(1 << 20) <= 1 << 20);
    assert!(options.conring_bytes.is_power_of_two());
    for diagnostic in found {
        assert!(!diagnostic.to_string().contains('\n'));
    }
}

#[cfg(test)]
mod tests;
