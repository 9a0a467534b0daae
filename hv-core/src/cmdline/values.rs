//! The forms that values take.

use super::diagnostic::Diagnostic;
use super::{bad, Iommu};
use alloc::string::String;

/// How important a message must be to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    None,
    /// Errors.
    Error,
    /// And warnings.
    Warning,
    /// And information.
    Info,
    /// And what each operation does.
    Debug,
    /// Everything.
    All,
}

/// `loglvl=`: two thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogThresholds {
    /// Messages of this level, and more important ones, are always shown.
    pub always: LogLevel,
    /// Those up to this one are shown at a limited rate.
    pub limited: LogLevel,
}

pub(super) const LEVEL_FORM: &str = "LEVEL[/LEVEL], LEVEL one of none, error, warning, info, debug, all";
pub(super) const RANGE_FORM: &str = "NUMBER, or MIN-MAX";
pub(super) const SCHEDULER_FORM: &str = "bvt (credit, credit2, rtds, arinc653 and null select it too)";
pub(super) const SERIAL_FORM: &str = "[BAUD|auto][/CLOCK][,8n1[,PORT[,IRQ]]]";
pub(super) const SUPERVISOR_FORM: &str = "a boolean, as yes or no, or hvm";
const IOMMU_FORM: &str =
    "a list of on, off, force, [no-]intremap, dom0-passthrough, dom0-strict and options of Xen without effect";

impl LogThresholds {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (always, limited) = match text.split_once('/') {
            Some((always, limited)) => (level(always)?, level(limited)?),
            None => (level(text)?, level(text)?),
        };
        Some(Self { always, limited: limited.max(always) })
    }
}

fn level(text: &str) -> Option<LogLevel> {
    Some(match text {
        "none" => LogLevel::None,
        "error" => LogLevel::Error,
        "warning" => LogLevel::Warning,
        "info" => LogLevel::Info,
        "debug" => LogLevel::Debug,
        "all" => LogLevel::All,
        _ => return None,
    })
}

/// Xen's words for yes and no.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "yes" | "on" | "true" | "enable" | "1" => Some(true),
        "no" | "off" | "false" | "disable" | "0" => Some(false),
        _ => None,
    }
}

/// `smep=` and `smap=`: nothing or a boolean; `hvm` says no for PV guests.
pub(super) fn supervisor(value: Option<&str>) -> Option<bool> {
    match value {
        None | Some("") => Some(true),
        Some("hvm") => Some(false),
        Some(text) => boolean(text),
    }
}

/// A number, decimal or with 0x.
pub(super) fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A number within bounds.
pub(super) fn clamped(text: &str, min: u32, max: u32) -> Option<u32> {
    number(text).filter(|n| (min..=max).contains(n))
}

/// A size in bytes: a number with B, K, M, G or T; K if nothing is said.
pub(super) fn size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_lowercase() {
        b'b' => (&text[..text.len() - 1], 0),
        b'k' => (&text[..text.len() - 1], 10),
        b'm' => (&text[..text.len() - 1], 20),
        b'g' => (&text[..text.len() - 1], 30),
        b't' => (&text[..text.len() - 1], 40),
        _ => (text, 10),
    };
    let count: u64 = digits.parse().ok()?;
    count.checked_mul(1 << shift)
}

/// MIN-MAX, either of which may be missing, or one number for both.
pub(super) fn range(text: &str) -> Option<(u32, u32)> {
    let (min, max) = match text.split_once('-') {
        None => (number(text)?, number(text)?),
        Some((min, max)) => {
            let or = |text: &str, default| if text.is_empty() { Some(default) } else { number(text) };
            (or(min, 1)?, or(max, u32::MAX)?)
        }
    };
    (min <= max && max > 0).then_some((min.max(1), max))
}

/// There is one scheduler here, Borrowed Virtual Time; the names of Xen's select it too.
pub(super) fn is_scheduler(text: &str) -> bool {
    matches!(text, "bvt" | "credit" | "credit2" | "rtds" | "arinc653" | "null")
}

/// Where messages go: to the first serial port, to the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consoles {
    /// The first serial port.
    pub serial: bool,
    /// The screen.
    pub screen: bool,
}

impl Consoles {
    /// By `console=`. What there is not is left out. If nothing else is named they go everywhere: who asks for a
    /// console wants to see something.
    pub fn named(list: &str) -> Self {
        let mut found = None;
        for one in list.split(',').filter_map(console) {
            let Self { serial, screen } = found.unwrap_or_default();
            found = Some(Self { serial: serial || one.serial, screen: screen || one.screen });
        }
        found.unwrap_or(Self { serial: true, screen: true })
    }
}

/// One of them; `None`: there is no such. A letter behind the port shares it, for which there is nothing to do.
pub(super) fn console(name: &str) -> Option<Consoles> {
    match name.trim() {
        "com1" | "com1H" | "com1L" => Some(Consoles { serial: true, screen: false }),
        "vga" => Some(Consoles { serial: false, screen: true }),
        "none" => Some(Consoles::default()),
        _ => None,
    }
}

/// A serial port's settings, checked but not taken apart.
pub(super) fn serial(text: &str) -> Option<String> {
    let mut fields = text.split(',');
    let rate = fields.next()?.split('/').next()?;
    if !(rate.is_empty() || rate == "auto" || number(rate).is_some_and(|baud| baud > 1)) {
        return None;
    }
    // The line format: only eight bits without parity.
    if !matches!(fields.next(), None | Some("" | "8n1")) {
        return None;
    }
    match fields.next() {
        None | Some("" | "pci" | "amt") => {}
        Some(port) => {
            let digits = port.strip_prefix("0x").unwrap_or(port);
            u16::from_str_radix(digits, 16).ok().filter(|port| *port >= 0x100)?;
        }
    }
    Some(text.into())
}

/// `iommu=`: a list of booleans and words. What is wrong with one says nothing of the others: the first that is wrong
/// is told of.
pub(super) fn iommu(iommu: &mut Iommu, value: Option<&str>) -> Result<(), Diagnostic> {
    let mut said = Ok(());
    for item in value.unwrap_or("yes").split(',') {
        said = said.and(iommu_item(iommu, item));
    }
    said
}

fn iommu_item(iommu: &mut Iommu, item: &str) -> Result<(), Diagnostic> {
    let (name, is_on) = match (item.strip_prefix("no-"), item.split_once('=')) {
        (Some(name), _) => (name, Some(false)),
        (None, Some((name, value))) => (name, boolean(value)),
        (None, None) => (item, Some(true)),
    };
    let expected = || bad("iommu", item, IOMMU_FORM);
    if let Some(is_on) = boolean(item) {
        iommu.is_enabled = is_on;
        return Ok(());
    }
    // A list behind a word, as quarantine=scratch-page, is a matter of options without effect.
    let is_without_effect = matches!(
        name,
        "workaround_bios_bug"
            | "igfx"
            | "snoop"
            | "qinval"
            | "intpost"
            | "amd-iommu-perdev-intremap"
            | "sharept"
            | "superpages"
            | "quarantine"
            | "crash-disable"
            | "ats"
            | "keep-debug"
            | "map-inclusive"
            | "map-reserved"
            | "verbose"
            | "debug"
    );
    if is_without_effect {
        return Ok(());
    }
    let is_on = is_on.ok_or_else(expected)?;
    match name {
        "force" | "required" => iommu.is_required = is_on,
        "intremap" => iommu.has_intremap = is_on,
        "dom0-passthrough" => iommu.is_dom0_passthrough = is_on,
        "dom0-strict" => iommu.is_dom0_strict = is_on,
        _ => return Err(expected()),
    }
    Ok(())
}
