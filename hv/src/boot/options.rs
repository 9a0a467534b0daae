//! The command line: options as Xen spells them.

use crate::arch::serial;
use alloc::string::String;

/// Options of the command line. `None` where nothing was said.
#[derive(Debug, Default)]
pub struct Options {
    /// The whole line, as the guests' tools show it.
    pub line: String,
    /// `loglvl=`
    pub loglvl: Option<String>,
    /// `guest_loglvl=`
    pub guest_loglvl: Option<String>,
    /// `noreboot`: stop after a fatal error.
    pub noreboot: bool,
    /// `dom0_mem=`, unparsed: sizes and `min:`/`max:`.
    pub dom0_mem: Option<String>,
    /// `dom0_max_vcpus=`
    pub dom0_max_vcpus: Option<u32>,
    /// `maxcpus=`
    pub maxcpus: Option<u32>,
    /// `nosmp`
    pub nosmp: bool,
    /// `iommu=`
    pub iommu: Option<String>,
    /// `sched=`
    pub sched: Option<String>,
    /// `clocksource=`
    pub clocksource: Option<String>,
    /// `noacpi`, `acpi=off`
    pub noacpi: bool,
    /// `x2apic=0`, `no-x2apic`
    pub no_x2apic: bool,
}

/// Splits a command line into words; `"` keeps blanks together.
pub fn words(line: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut quoted = false;
    line.split(move |c: char| {
        quoted ^= c == '"';
        c.is_ascii_whitespace() && !quoted
    })
    .filter(|word| !word.is_empty())
    .map(|word| match word.split_once('=') {
        Some((name, value)) => (name, Some(value.trim_matches('"'))),
        None => (word, None),
    })
}

/// Reads what decides where messages go, before there is a heap: `console=` (the first serial
/// port unless it names others only) and `com1=`.
pub fn start_console(line: &str) {
    let mut config = serial::Config::default();
    let mut wanted = true;
    for (name, value) in words(line) {
        match (name, value) {
            ("com1", Some(value)) => config = serial::Config::parse(value),
            ("console", Some(list)) => wanted = list.split(',').any(|c| c.starts_with("com1")),
            _ => {}
        }
    }
    if wanted {
        serial::init(config);
    }
}

/// Xen's spellings of yes and no.
fn boolean(value: Option<&str>) -> bool {
    !matches!(value, Some("no" | "off" | "false" | "disable" | "0"))
}

impl Options {
    /// Parses `line`; `unknown` gets every word that means nothing here.
    pub fn parse(line: &str, mut unknown: impl FnMut(&str)) -> Self {
        let mut options = Self { line: line.into(), ..Self::default() };
        let number = |value: Option<&str>| value.and_then(|v| v.parse().ok());
        for (name, value) in words(line) {
            let text = || value.map(String::from);
            match name {
                "console" | "com1" => {}
                "loglvl" => options.loglvl = text(),
                "guest_loglvl" => options.guest_loglvl = text(),
                "noreboot" => options.noreboot = boolean(value),
                "dom0_mem" => options.dom0_mem = text(),
                "dom0_max_vcpus" => options.dom0_max_vcpus = number(value),
                "maxcpus" => options.maxcpus = number(value),
                "nosmp" => options.nosmp = boolean(value),
                "iommu" => options.iommu = text(),
                "sched" => options.sched = text(),
                "clocksource" => options.clocksource = text(),
                "noacpi" => options.noacpi = boolean(value),
                "acpi" => options.noacpi = !boolean(value),
                "x2apic" => options.no_x2apic = !boolean(value),
                "no-x2apic" => options.no_x2apic = true,
                _ => unknown(name),
            }
        }
        options
    }
}
