//! AMD's AMD-Vi.

mod unit;

use super::hardware::{hiding, Confined, Hardware, Interrupt, Reporter, Source, Strange};
use crate::arch::acpi;
use crate::arch::pci::{self, Sbdf};
use crate::sync::Mutex;
use crate::warn;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use hv_core::iommu::amd::{self, Command};
use hv_core::iommu::ivrs::Ivrs;
use hv_core::iommu::{AnyFormat, Fault, Forget, Remapped};
use hv_core::map;
use unit::Unit;
use x86::MachAddr;

struct AmdVi {
    units: Vec<Unit>,
    ivrs: Ivrs,
    remaps_interrupts: bool,
    /// Which vector of which sources a line is.
    lines: Mutex<BTreeMap<u32, Line>>,
}

struct Line {
    vector: u8,
    source: Source,
    apic_id: u32,
    /// Nobody raises it for now.
    is_held: bool,
}

/// How the functions behind a unit are seen by it.
struct Identity<'a> {
    unit: &'a Unit,
    source_id: u16,
    /// What the platform's own functions may raise past the tables.
    passes: u8,
}

/// The machine's units, if all of them can be used.
pub fn find() -> Option<Box<dyn Hardware>> {
    let ivrs = Ivrs::parse(&acpi::read_table(acpi::tables().ivrs?)?)?;
    if ivrs.nr_misfits != 0 {
        warn!("IOMMU: the firmware's description of {} unit(s) does not fit: none is used", ivrs.nr_misfits);
        return None;
    }
    if ivrs.units.is_empty() {
        return None;
    }
    let highest = |segment| {
        let all = pci::functions();
        let functions = all.iter().filter(|f| f.at.segment == segment);
        // What is plugged in later comes behind a bridge.
        let behind = |f: &pci::Function| f.buses().map_or(0, |[.., last, _]| u16::from_le_bytes([0xff, last]));
        let ids = functions.map(|f| f.at.source_id().max(behind(f)));
        ids.max().unwrap_or(0).max(ivrs.highest_named(segment))
    };
    let units: Option<Vec<Unit>> = ivrs.units.iter().map(|u| Unit::new(u, highest(u.segment))).collect();
    let units = units.or_else(|| {
        warn!("IOMMU: a unit lacks what is needed: none is used");
        None
    })?;
    Some(Box::new(AmdVi { units, ivrs, remaps_interrupts: false, lines: Mutex::new(BTreeMap::new()) }))
}

impl AmdVi {
    fn identity(&self, segment: u16, source_id: u16) -> Option<Identity<'_>> {
        let (n, scope) = self.ivrs.unit_of(segment, source_id)?;
        let source_id = scope.alias.unwrap_or(source_id);
        let unit = self.units.get(n).filter(|unit| unit.has_entry(source_id))?;
        Some(Identity { unit, source_id, passes: scope.passes })
    }

    /// Under which identities what the function does is seen: its own, and behind a bridge that hides it also the
    /// bridge's or that of the first function of its bus.
    fn identities_of(&self, at: Sbdf) -> [Option<Identity<'_>>; 3] {
        let [bridge, first] = hiding(at);
        [Some(at.source_id()), bridge, first].map(|id| self.identity(at.segment, id?))
    }

    /// Writes the entries of a line.
    fn set_entries(&self, line: &Line) {
        let entry = amd::remapping::entry(line.vector, line.apic_id);
        let entry = if line.is_held { amd::remapping::held(entry) } else { entry };
        self.for_each_entry(line.source, |i| i.unit.set_interrupt(i.source_id, line.vector, entry));
    }

    /// Does something to every interrupt-table entry of a line's source.
    fn for_each_entry(&self, source: Source, act: impl FnMut(&Identity<'_>)) {
        match source {
            Source::Function(at) => self.identities_of(at).iter().flatten().for_each(act),
            Source::IoApic(id) => {
                let io_apics = self.ivrs.units.iter().flat_map(|u| u.io_apics.iter().map(|a| (u.segment, *a)));
                if let Some((segment, io_apic)) = { io_apics }.find(|(_, a)| a.id == id) {
                    self.identity(segment, io_apic.source_id).iter().for_each(act);
                }
            }
        }
    }
}

impl Hardware for AmdVi {
    fn name(&self) -> &'static str {
        "AMD-Vi"
    }
    fn nr_units(&self) -> usize {
        self.units.len()
    }
    fn format(&self) -> AnyFormat {
        AnyFormat::AmdVi
    }
    fn levels(&self) -> u32 {
        amd::LEVELS
    }
    fn largest_page_level(&self) -> u32 {
        amd::LARGEST_PAGE_LEVEL
    }
    fn nr_domain_ids(&self) -> u32 {
        amd::NR_DOMAIN_IDS
    }
    fn is_told_of_additions(&self) -> bool {
        self.units.iter().any(Unit::caches_absence)
    }

    fn firmware_memory(&self) -> Vec<(MachAddr, MachAddr)> {
        self.ivrs.reserved.iter().map(|r| (MachAddr::new(r.first), MachAddr::new(r.last))).collect()
    }

    fn translates(&self, at: Sbdf) -> bool {
        self.identity(at.segment, at.source_id()).is_some()
    }

    fn has_firmware_memory(&self, at: Sbdf) -> bool {
        self.ivrs.has_reserved(at.source_id())
    }

    fn shares_identity(&self, at: Sbdf) -> bool {
        self.ivrs.shares_identity(at.segment, at.source_id())
    }

    fn is_unit(&self, at: Sbdf) -> bool {
        self.units.iter().any(|u| u.at() == at)
    }

    fn enable(&mut self, remaps_interrupts: bool) {
        // Entries of this form name CPUs by eight bits, and so do messages that are not remapped: devices interrupt no
        // others.
        let is_described = |id| self.ivrs.units.iter().flat_map(|u| &u.io_apics).any(|a| a.id == id);
        self.remaps_interrupts = remaps_interrupts && super::hardware::knows_io_apics(is_described);
        if self.remaps_interrupts {
            for u in &self.ivrs.units {
                for scope in u.scopes.iter().filter(|scope| scope.passes != 0) {
                    let named = scope.first..=scope.last.min(self.ivrs.highest_named(u.segment));
                    let own = named.filter_map(|id| self.identity(u.segment, id)).filter(|i| i.passes != 0);
                    own.for_each(|i| i.unit.set_passes(i.source_id, i.passes));
                }
            }
        }
        self.units.iter().for_each(|u| u.enable(self.remaps_interrupts));
        acpi::hide_ivrs();
    }

    fn remaps_interrupts(&self) -> bool {
        self.remaps_interrupts
    }

    fn identities(&self, at: Sbdf) -> [Option<u16>; 3] {
        self.identities_of(at).map(|identity| identity.map(|i| i.source_id))
    }

    fn confine(&self, at: Sbdf, id: u16, to: Option<Confined>) {
        for identity in self.identities_of(at).iter().flatten().filter(|i| i.source_id == id) {
            identity.unit.confine(id, to);
            if self.remaps_interrupts && identity.passes != 0 {
                // Only the platform's own functions raise anything past the tables.
                let passes = if to.is_some_and(|c| c.is_home) { identity.passes } else { 0 };
                identity.unit.set_passes(id, passes);
            }
        }
    }

    fn forget(&self, what: Forget) {
        self.units.iter().for_each(|u| u.submit(&[Command::Translations(what)]));
    }

    fn take_faults(&self, tell: &mut dyn FnMut(Reporter, Result<Fault, Strange>)) {
        for (n, unit) in self.units.iter().enumerate() {
            unit.take_faults(|event| tell(Reporter { unit: n, segment: unit.at().segment }, event));
        }
    }

    fn has_faults(&self) -> bool {
        self.units.iter().any(|unit| unit.has_faults())
    }

    fn silence(&self, by: Reporter, source: Sbdf) {
        if let Some(unit) = self.units.get(by.unit) {
            unit.silence(source.source_id());
        }
    }

    fn set_interrupt(&self, line: u32, interrupt: Interrupt) -> Option<Remapped> {
        if !self.remaps_interrupts {
            return None;
        }
        let Interrupt { vector, apic_id, source, .. } = interrupt;
        if let Source::Function(at) = source {
            self.identities_of(at).iter().flatten().next()?;
        }
        let mut lines = self.lines.lock();
        let line_of_it = Line { vector, source, apic_id, is_held: false };
        self.set_entries(&line_of_it);
        lines.insert(line, line_of_it);
        Some(Remapped::Vector(vector))
    }

    fn steer(&self, line: u32, apic_id: u32) -> bool {
        let mut lines = self.lines.lock();
        let Some(known) = lines.get_mut(&line) else { return self.remaps_interrupts };
        known.apic_id = apic_id;
        self.set_entries(known);
        true
    }

    fn destination(&self, line: u32) -> Option<u32> {
        self.lines.lock().get(&line).map(|known| known.apic_id)
    }

    fn hold(&self, line: u32, held: bool) {
        let mut lines = self.lines.lock();
        if let Some(known) = lines.get_mut(&line).filter(|known| known.is_held != held) {
            known.is_held = held;
            self.set_entries(known);
        }
    }

    fn clear_interrupt(&self, line: u32) {
        let mut lines = self.lines.lock();
        if let Some(Line { vector, source, .. }) = map::take(&mut lines, &line) {
            self.for_each_entry(source, |i| i.unit.set_interrupt(i.source_id, vector, 0));
        }
    }

    fn hides_ends(&self) -> bool {
        self.remaps_interrupts
    }
}
