//! The firmware's description of VT-d units: the DMAR table (VT-d specification, chapter 8).
//!
//! Firmware is not trusted to be right: a structure that does not fit is left out, and a length of zero ends the list.
//! If that may have been a unit it is counted: whoever uses the others would take functions behind it for functions
//! behind them.

use super::IoApic;
use crate::pcicfg::Sbdf;
use alloc::vec::Vec;

/// A device, or a bridge and all behind it, by the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// A bridge, with all behind it.
    pub is_bridge: bool,
    /// The bus that the way starts from.
    pub start_bus: u8,
    /// Device and function of each bridge on the way, and of the device at its end.
    pub path: Vec<u8>,
}

impl Scope {
    /// Does it mean a function? `chain` is the function and then each bridge above it; `secondary` says which bus is
    /// behind a bridge.
    pub fn covers(&self, chain: &[Sbdf], secondary: impl Fn(u8, u8) -> Option<u8>) -> bool {
        let Some((last, way)) = self.path.split_last() else { return false };
        let mut bus = self.start_bus;
        for bridge in way {
            match secondary(bus, *bridge) {
                Some(next) => bus = next,
                None => return false,
            }
        }
        let candidates = if self.is_bridge { chain } else { chain.get(..1).unwrap_or_default() };
        candidates.iter().any(|at| (at.bus, at.devfn) == (bus, *last))
    }
}

/// A unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Its PCI segment.
    pub segment: u16,
    /// It has all functions of the segment that no other unit has.
    pub has_the_rest: bool,
    /// Address of its registers.
    pub addr: u64,
    /// Whose accesses it translates.
    pub scopes: Vec<Scope>,
    /// I/O APICs whose interrupts it remaps.
    pub io_apics: Vec<IoApic>,
}

/// Memory that the firmware lets a device use for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// PCI segment.
    pub segment: u16,
    /// First address.
    pub first: u64,
    /// Last address.
    pub last: u64,
    /// Which devices.
    pub scopes: Vec<Scope>,
}

/// What the table says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dmar {
    /// Units.
    pub units: Vec<Unit>,
    /// Reserved memory.
    pub reserved: Vec<Reserved>,
    /// Units that may be there beside those: their descriptions do not fit.
    pub nr_misfits: usize,
}

/// What a structure says it is about.
struct Scopes {
    functions: Vec<Scope>,
    io_apics: Vec<IoApic>,
    /// Nothing was left out.
    is_whole: bool,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl Dmar {
    /// Reads the table. `None` if it is too short to be one.
    pub fn parse(table: &[u8]) -> Option<Self> {
        let mut dmar = Self::default();
        let mut rest = table.get(48..)?;
        while let Some(length) = field(rest, 2).map(u16::from_le_bytes) {
            let Some(entry) = rest.get(..usize::from(length)).filter(|entry| entry.len() >= 4) else { break };
            if dmar.add(entry).is_none() && is_unit(entry) {
                dmar.nr_misfits += 1;
            }
            rest = &rest[entry.len()..];
        }
        // Where the list ends too early there may be more of them.
        dmar.nr_misfits += usize::from(!is_padding(rest));
        Some(dmar)
    }

    fn add(&mut self, entry: &[u8]) -> Option<()> {
        let segment = u16::from_le_bytes(field(entry, 6)?);
        let addr = u64::from_le_bytes(field(entry, 8)?);
        match u16::from_le_bytes(field(entry, 0)?) {
            0 => {
                let has_the_rest = entry.get(4)? & 1 != 0;
                // Registers are in whole pages.
                if addr == 0 || addr % 4096 != 0 {
                    return None;
                }
                let Scopes { functions: scopes, io_apics, is_whole } = scopes(entry.get(16..)?);
                if !is_whole {
                    return None;
                }
                self.units.push(Unit { segment, has_the_rest, addr, scopes, io_apics });
            }
            1 => {
                let last = u64::from_le_bytes(field(entry, 16)?);
                if last < addr {
                    return None;
                }
                let scopes = scopes(entry.get(24..)?).functions;
                self.reserved.push(Reserved { segment, first: addr, last, scopes });
            }
            _ => {}
        }
        Some(())
    }

    /// The index of the unit that translates a function's accesses. For the arguments see [`Scope::covers`].
    pub fn unit_of(&self, chain: &[Sbdf], secondary: impl Fn(u8, u8) -> Option<u8>) -> Option<usize> {
        let segment = chain.first()?.segment;
        let named = |u: &Unit| u.segment == segment && u.scopes.iter().any(|s| s.covers(chain, &secondary));
        let rest = |u: &Unit| u.segment == segment && u.has_the_rest;
        self.units.iter().position(named).or_else(|| self.units.iter().position(rest))
    }

    /// Has the firmware reserved memory for a function?
    pub fn has_reserved(&self, chain: &[Sbdf], secondary: impl Fn(u8, u8) -> Option<u8>) -> bool {
        let Some(segment) = chain.first().map(|at| at.segment) else { return false };
        let named = |r: &Reserved| r.segment == segment && r.scopes.iter().any(|s| s.covers(chain, &secondary));
        self.reserved.iter().any(named)
    }
}

/// PCI scopes, and I/O APICs; those of timers do not matter here.
fn scopes(mut rest: &[u8]) -> Scopes {
    let mut found = Scopes { functions: Vec::new(), io_apics: Vec::new(), is_whole: true };
    while let &[kind, length, ..] = rest {
        let Some(scope) = rest.get(..usize::from(length)).filter(|scope| scope.len() >= 6) else { break };
        if matches!(kind, 1 | 2) {
            let steps = scope[6..].chunks_exact(2);
            found.is_whole &= steps.len() != 0 && steps.remainder().is_empty();
            let path = steps.map(|step| step[0] << 3 | step[1] & 7).collect();
            found.functions.push(Scope { is_bridge: kind == 2, start_bus: scope[5], path });
        }
        // It may be behind bridges in theory; firmware gives it a place of its own on the root bus.
        if let (3, &[_, _, _, _, id, bus, device, function]) = (kind, scope) {
            found.io_apics.push(IoApic { id, source_id: u16::from_le_bytes([device << 3 | function & 7, bus]) });
        }
        rest = &rest[scope.len()..];
    }
    found.is_whole &= is_padding(rest);
    found
}

fn is_unit(entry: &[u8]) -> bool {
    entry.starts_with(&[0, 0])
}

/// Does nothing stand there?
fn is_padding(rest: &[u8]) -> bool {
    rest.iter().all(|byte| *byte == 0)
}

/// Generator-independent oracle for fuzzing: reading any table ends, gives no more than is in it, and whatever it gives
/// can be asked.
#[cfg(any(test, feature = "fuzzing"))]
pub fn check_table(bytes: &[u8]) {
    let Some(dmar) = Dmar::parse(bytes) else { return };
    let scopes = dmar.units.iter().map(|u| &u.scopes).chain(dmar.reserved.iter().map(|r| &r.scopes));
    let steps: usize = scopes.flatten().map(|s| s.path.len()).sum();
    assert!((dmar.units.len() + dmar.reserved.len()) * 4 + steps * 2 <= bytes.len());
    assert!(dmar.units.iter().all(|u| u.addr != 0 && u.addr % 4096 == 0));
    assert!(dmar.reserved.iter().all(|r| r.first <= r.last));
    let chain = [Sbdf::new(0, 2, 8), Sbdf::new(0, 0, 0x10)];
    let unit = dmar.unit_of(&chain, |bus, devfn| bus.checked_add(devfn));
    assert!(unit.is_none_or(|n| n < dmar.units.len()));
    let _ = dmar.has_reserved(&chain, |bus, _| Some(bus));
}
