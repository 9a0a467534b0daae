//! The firmware's description of AMD-Vi units: the IVRS table (AMD I/O virtualization specification, chapter 5).
//!
//! Firmware is not trusted to be right: a structure that does not fit is left out, and a length of zero ends the list.
//! If that may have been a unit it is counted: whoever uses the others would take functions behind it for functions
//! behind them.

use super::{amd, IoApic};
use alloc::vec::Vec;

/// Functions whose accesses a unit translates, by source id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// First of them.
    pub first: u16,
    /// Last of them.
    pub last: u16,
    /// The source id that their accesses carry instead of their own.
    pub alias: Option<u16>,
    /// What the platform's own functions may raise past the tables, as the specification's flags (5.2.2.1).
    pub passes: u8,
}

/// A unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its PCI segment.
    pub segment: u16,
    /// It is a PCI function itself, with this source id.
    pub source_id: u16,
    /// Address of its registers.
    pub addr: u64,
    /// Bits of the control register that the platform wants.
    pub control: u64,
    /// Whose accesses it translates.
    pub scopes: Vec<Scope>,
    /// I/O APICs whose interrupts it remaps.
    pub io_apics: Vec<IoApic>,
}

/// Memory that the firmware lets devices use for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// First address.
    pub first: u64,
    /// Last address.
    pub last: u64,
    /// First source id of those devices.
    pub first_id: u16,
    /// Their last source id.
    pub last_id: u16,
}

/// What the table says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ivrs {
    /// Units.
    pub units: Vec<Unit>,
    /// Reserved memory.
    pub reserved: Vec<Reserved>,
    /// Units that may be there beside those: their descriptions do not fit.
    pub nr_misfits: usize,
}

/// Bytes before the first structure.
const HEADER: usize = 48;
/// No machine has more.
const MAX_UNITS: usize = 256;

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    field(bytes, at).map(u16::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    field(bytes, at).map(u64::from_le_bytes)
}

impl Ivrs {
    /// Reads the table. `None` if it is too short to be one.
    pub fn parse(table: &[u8]) -> Option<Self> {
        let mut units: Vec<(u8, Unit)> = Vec::new();
        let mut reserved = Vec::new();
        let mut nr_misfits = 0;
        let mut blocks = Blocks(table.get(HEADER..)?);
        for block in &mut blocks {
            if !is_unit(block) {
                reserved.extend(self::reserved(block));
                continue;
            }
            let Some(unit) = unit(block) else {
                nr_misfits += 1;
                continue;
            };
            // A unit may be described more than once, by structures that say ever more.
            let is_same = |(_, u): &(u8, Unit)| (u.segment, u.source_id) == (unit.segment, unit.source_id);
            match units.iter().position(is_same) {
                Some(n) if units[n].0 < block[0] => units[n] = (block[0], unit),
                Some(_) => {}
                None if units.len() < MAX_UNITS => units.push((block[0], unit)),
                None => nr_misfits += 1,
            }
        }
        // Where the list ends too early there may be more of them.
        nr_misfits += usize::from(!is_padding(blocks.0));
        Some(Self { units: units.into_iter().map(|(_, unit)| unit).collect(), reserved, nr_misfits })
    }

    /// The index of the unit that translates a function's accesses, and what is said of the function.
    pub fn unit_of(&self, segment: u16, source_id: u16) -> Option<(usize, Scope)> {
        let units = self.units.iter().enumerate().filter(|(_, u)| u.segment == segment);
        let scopes = units.flat_map(|(n, u)| u.scopes.iter().map(move |s| (n, *s)));
        // What is said of few functions counts more than what is said of many.
        scopes.filter(|(_, s)| (s.first..=s.last).contains(&source_id)).min_by_key(|(_, s)| s.last - s.first)
    }

    /// Do a function's accesses carry another one's identity, or those of another one its own?
    pub fn shares_identity(&self, segment: u16, source_id: u16) -> bool {
        let own = self.unit_of(segment, source_id).and_then(|(_, scope)| scope.alias);
        let units = self.units.iter().filter(|u| u.segment == segment);
        let has_it_too = |s: &Scope| s.alias == Some(source_id) && (s.first, s.last) != (source_id, source_id);
        own.is_some_and(|alias| alias != source_id) || { units }.flat_map(|u| &u.scopes).any(has_it_too)
    }

    /// Has the firmware reserved memory for a function?
    pub fn has_reserved(&self, source_id: u16) -> bool {
        self.reserved.iter().any(|r| (r.first_id..=r.last_id).contains(&source_id))
    }

    /// The highest source id that a unit in `segment` may be asked about by what the table says, whether there is such
    /// a function yet or not.
    pub fn highest_named(&self, segment: u16) -> u16 {
        let units = self.units.iter().filter(|u| u.segment == segment);
        let io_apics = units.clone().flat_map(|u| &u.io_apics).map(|a| a.source_id);
        let scopes = units.flat_map(|u| &u.scopes).map(|s| s.last.max(s.alias.unwrap_or(0)));
        io_apics.chain(scopes).max().unwrap_or(0)
    }
}

/// The structures, each whole.
struct Blocks<'a>(&'a [u8]);

impl<'a> Iterator for Blocks<'a> {
    type Item = &'a [u8];
    fn next(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(u16_at(self.0, 2)?);
        let block = self.0.get(..length).filter(|block| block.len() >= 4)?;
        self.0 = &self.0[length..];
        Some(block)
    }
}

/// Does nothing stand there?
fn is_padding(rest: &[u8]) -> bool {
    rest.iter().all(|byte| *byte == 0)
}

fn is_unit(block: &[u8]) -> bool {
    matches!(block[0], 0x10 | 0x11 | 0x40)
}

fn unit(block: &[u8]) -> Option<Unit> {
    let entries = block.get(if block[0] == 0x10 { 24 } else { 40 }..)?;
    let addr = u64_at(block, 8)?;
    // Registers take 16 KiB, or more, and begin at a multiple of that.
    if addr == 0 || addr % 0x4000 != 0 {
        return None;
    }
    let mut unit = Unit {
        segment: u16_at(block, 16)?,
        source_id: u16_at(block, 4)?,
        addr,
        control: amd::control::wanted(block[1]),
        scopes: Vec::new(),
        io_apics: Vec::new(),
    };
    entries_of(entries, &mut unit)?;
    Some(unit)
}

/// Reads what a unit translates. `None`: an entry does not fit, or a range has no end, so nobody knows what else it
/// translates.
fn entries_of(mut rest: &[u8], unit: &mut Unit) -> Option<()> {
    let mut start = None;
    while let Some(&kind) = rest.first() {
        let length = match kind {
            // Devices that ACPI names: 22 bytes, the last of which is the length of what follows.
            0xf0 => 22 + usize::from(*rest.get(21).unwrap_or(&0)),
            _ => 4 << (kind >> 6),
        };
        let Some(entry) = rest.get(..length) else { break };
        rest = &rest[length..];
        let (id, word) = (u16_at(entry, 1)?, |at| u16_at(entry, at));
        let passes = entry[3];
        let scope = |first, last, alias| Scope { first, last, alias, passes };
        match kind {
            1 => unit.scopes.push(scope(0, u16::MAX, None)),
            2 | 0x46 => unit.scopes.push(scope(id, id, None)),
            0x42 => unit.scopes.push(scope(id, id, word(5))),
            3 | 0x43 | 0x47 => {
                let alias = if kind == 0x43 { word(5) } else { None };
                if start.replace(scope(id, id, alias)).is_some() {
                    return None;
                }
            }
            4 => unit.scopes.push(start.take().filter(|s| s.first <= id).map(|s| Scope { last: id, ..s })?),
            0x48 => {
                let source_id = word(5)?;
                unit.scopes.push(scope(source_id, source_id, None));
                if entry[7] == 1 {
                    unit.io_apics.push(IoApic { id: entry[4], source_id });
                }
            }
            _ => {}
        }
    }
    (start.is_none() && is_padding(rest)).then_some(())
}

fn reserved(block: &[u8]) -> Option<Reserved> {
    const EXCLUDED: u8 = 1 << 3;
    const MAPPED: u8 = 1 << 0;
    let id = u16_at(block, 4)?;
    let (first_id, last_id) = match block[0] {
        0x20 => (0, u16::MAX),
        0x21 => (id, id),
        0x22 => (id, u16_at(block, 6)?),
        _ => return None,
    };
    let (first, bytes) = (u64_at(block, 16)?, u64_at(block, 24)?);
    let last = first.checked_add(bytes.checked_sub(1)?)?;
    (block[1] & (EXCLUDED | MAPPED) != 0 && first_id <= last_id).then_some(Reserved { first, last, first_id, last_id })
}

/// Generator-independent oracle for fuzzing: reading any table ends, gives no more than is in it, and whatever it gives
/// can be asked.
#[cfg(any(test, feature = "fuzzing"))]
pub fn check_table(bytes: &[u8]) {
    let Some(ivrs) = Ivrs::parse(bytes) else { return };
    let parts: usize = ivrs.units.iter().map(|u| 24 + 4 * u.scopes.len() + 4 * u.io_apics.len()).sum();
    assert!(parts + ivrs.reserved.len() * 32 <= bytes.len());
    assert!(ivrs.units.iter().all(|u| u.addr != 0 && u.addr % 0x4000 == 0));
    assert!(ivrs.units.iter().flat_map(|u| &u.scopes).all(|s| s.first <= s.last));
    assert!(ivrs.reserved.iter().all(|r| r.first <= r.last && r.first_id <= r.last_id));
    for id in [0, 0xa0, 0x0100, u16::MAX] {
        assert!(ivrs.unit_of(0, id).is_none_or(|(n, _)| n < ivrs.units.len()));
        let _ = (ivrs.has_reserved(id), ivrs.highest_named(0));
    }
}
