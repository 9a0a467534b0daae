//! Intel's VT-d.

mod remap;
mod unit;

use super::hardware::{chain, hiding, secondary, Confined, Hardware, Interrupt, Reporter, Source, Strange};
use crate::arch::pci::{self, Sbdf};
use crate::arch::{acpi, lapic};
use crate::warn;
use alloc::boxed::Box;
use alloc::vec::Vec;
use hv_core::iommu::dmar::Dmar;
use hv_core::iommu::vtd::remapping::{Hiding, Mode, Named};
use hv_core::iommu::vtd::{Capabilities, Invalidation};
use hv_core::iommu::{AnyFormat, Fault, Forget, Remapped};
use unit::Unit;
use x86::MachAddr;

struct VtD {
    units: Vec<Unit>,
    dmar: Dmar,
    /// Levels of everyone's tables.
    levels: u32,
    nr_ids: u32,
    is_told_of_additions: bool,
    /// The table of interrupts, if they are remapped.
    remapping: Option<remap::Table>,
}

/// The machine's units, if all of them can be used.
pub fn find() -> Option<Box<dyn Hardware>> {
    let dmar = Dmar::parse(&acpi::read_table(acpi::tables().dmar?)?)?;
    if dmar.nr_misfits != 0 {
        warn!("IOMMU: the firmware's description of {} unit(s) does not fit: none is used", dmar.nr_misfits);
        return None;
    }
    if dmar.units.is_empty() {
        return None;
    }
    let units: Option<Vec<Unit>> = dmar.units.iter().map(Unit::new).collect();
    let units = units.or_else(|| {
        warn!("IOMMU: a unit lacks what is needed: none is used");
        None
    })?;
    let levels = Capabilities::levels(units.iter().map(|u| u.capabilities)).or_else(|| {
        warn!("IOMMU: units walk tables of different numbers of levels: none is used");
        None
    })?;
    let nr_ids = units.iter().map(|u| u.capabilities.nr_domain_ids()).min()?;
    let is_told_of_additions = units.iter().any(|u| u.capabilities.is_told_of_additions());
    Some(Box::new(VtD { units, dmar, levels, nr_ids, is_told_of_additions, remapping: None }))
}

impl VtD {
    fn invalidate(&self, what: Invalidation) {
        self.units.iter().for_each(|u| u.invalidate(&[what]));
    }

    fn unit_of(&self, at: Sbdf) -> Option<&Unit> {
        self.units.get(self.dmar.unit_of(&chain(at), |bus, devfn| secondary(at.segment, bus, devfn))?)
    }

    fn io_apic_source(&self, id: u8) -> Option<u16> {
        self.dmar.units.iter().flat_map(|u| &u.io_apics).find(|a| a.id == id).map(|a| a.source_id)
    }
}

/// Under which names the function's messages are seen.
fn named(at: Sbdf) -> Named {
    let bridge = pci::function(at).and_then(|f| f.identity_bridge());
    let hiding = bridge.map(|bridge| Hiding {
        source_id: bridge.at.source_id(),
        is_express: bridge.layout.express.is_some(),
        secondary: bridge.secondary().unwrap_or(at.bus),
    });
    Named::of(at.source_id(), hiding)
}

impl Hardware for VtD {
    fn name(&self) -> &'static str {
        "VT-d"
    }
    fn nr_units(&self) -> usize {
        self.units.len()
    }
    fn format(&self) -> AnyFormat {
        AnyFormat::VtD
    }
    fn levels(&self) -> u32 {
        self.levels
    }
    fn largest_page_level(&self) -> u32 {
        self.units.iter().map(|u| u.capabilities.largest_page_level()).min().unwrap_or(1)
    }
    fn nr_domain_ids(&self) -> u32 {
        self.nr_ids
    }
    fn is_told_of_additions(&self) -> bool {
        self.is_told_of_additions
    }

    fn firmware_memory(&self) -> Vec<(MachAddr, MachAddr)> {
        self.dmar.reserved.iter().map(|r| (MachAddr::new(r.first), MachAddr::new(r.last))).collect()
    }

    fn translates(&self, at: Sbdf) -> bool {
        self.unit_of(at).is_some()
    }

    fn has_firmware_memory(&self, at: Sbdf) -> bool {
        self.dmar.has_reserved(&chain(at), |bus, devfn| secondary(at.segment, bus, devfn))
    }

    fn enable(&mut self, remaps_interrupts: bool) {
        let can_remap = self.units.iter().all(|u| u.capabilities.can_remap_interrupts());
        let knows_x2apic = self.units.iter().all(|u| u.capabilities.has_x2apic_interrupts());
        if remaps_interrupts && can_remap && super::hardware::knows_io_apics(|id| self.io_apic_source(id).is_some()) {
            self.remapping = remap::Table::new(Mode::of(lapic::is_x2apic(), knows_x2apic));
        }
        self.units.iter().for_each(|u| u.enable(self.remapping.as_ref()));
        acpi::hide_dmar();
    }

    fn remaps_interrupts(&self) -> bool {
        self.remapping.is_some()
    }

    fn identities(&self, at: Sbdf) -> [Option<u16>; 3] {
        let [bridge, first] = hiding(at);
        [Some(at.source_id()), bridge, first]
    }

    fn confine(&self, at: Sbdf, id: u16, to: Option<Confined>) {
        if let Some(unit) = self.unit_of(at) {
            unit.set_context(Sbdf::from_machine(u32::from(at.segment) << 16 | u32::from(id)), to);
        }
    }

    fn forget(&self, what: Forget) {
        self.invalidate(Invalidation::Translations(what));
    }

    fn take_faults(&self, tell: &mut dyn FnMut(Reporter, Result<Fault, Strange>)) {
        for (n, unit) in self.units.iter().enumerate() {
            unit.take_faults(|fault| tell(Reporter { unit: n, segment: unit.segment }, Ok(fault)));
        }
    }

    fn has_faults(&self) -> bool {
        self.units.iter().any(|unit| unit.has_faults())
    }

    fn silence(&self, by: Reporter, source: Sbdf) {
        if let Some(unit) = self.units.get(by.unit) {
            unit.silence(source);
        }
    }

    fn set_interrupt(&self, line: u32, interrupt: Interrupt) -> Option<Remapped> {
        let named = match interrupt.source {
            Source::IoApic(id) => Named::By(self.io_apic_source(id)?),
            Source::Function(at) => named(at),
        };
        let index = u16::try_from(line).ok()?;
        let forget = || self.invalidate(Invalidation::Interrupts);
        self.remapping.as_ref()?.set(index, &interrupt, named, forget);
        Some(Remapped::Index(index))
    }

    fn steer(&self, line: u32, apic_id: u32) -> bool {
        let (Some(table), Ok(index)) = (&self.remapping, u16::try_from(line)) else { return false };
        table.steer(index, apic_id, || self.invalidate(Invalidation::Interrupts))
    }

    fn destination(&self, line: u32) -> Option<u32> {
        self.remapping.as_ref()?.destination(u16::try_from(line).ok()?)
    }

    fn hold(&self, line: u32, held: bool) {
        if let (Some(table), Ok(index)) = (&self.remapping, u16::try_from(line)) {
            table.hold(index, held, || self.invalidate(Invalidation::Interrupts));
        }
    }

    fn clear_interrupt(&self, line: u32) {
        if let (Some(table), Ok(index)) = (&self.remapping, u16::try_from(line)) {
            table.clear(index, || self.invalidate(Invalidation::Interrupts));
        }
    }
}
