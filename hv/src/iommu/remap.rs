//! Interrupt remapping: who may raise which line of `irq::guest`, and where it goes.
//!
//! Once it is on, an interrupt that was not set here is stopped, so a domain's device raises the vectors of its own
//! messages and nothing else.

use super::active;
use super::hardware::{Interrupt, Source};
use crate::arch::pci::Sbdf;
use crate::arch::{acpi, ioapic};
use hv_core::iommu::Remapped;

/// Lets the function at `at` raise line `line` as `vector` of CPU `apic_id`. `None`: nothing is remapped, and the
/// message is to be programmed as it is.
pub fn set_message(line: u32, vector: u8, apic_id: u32, at: Sbdf) -> Option<Remapped> {
    let interrupt = Interrupt { vector, apic_id, is_level: false, source: Source::Function(at) };
    active()?.hardware.set_interrupt(line, interrupt)
}

/// The same as [`set_message`] for a wire of an I/O APIC.
fn set_wire(gsi: u32, vector: u8, apic_id: u32, is_level: bool) -> Option<Remapped> {
    let iommu = active()?;
    let chips = &acpi::tables().madt.as_ref()?.io_apics;
    let chip = chips.iter().filter(|chip| chip.gsi_base <= gsi).max_by_key(|chip| chip.gsi_base)?;
    iommu.hardware.set_interrupt(gsi, Interrupt { vector, apic_id, is_level, source: Source::IoApic(chip.id) })
}

/// Where I/O APICs send `gsi`, which is to raise `vector` of CPU `apic_id`.
pub fn target(gsi: u32, vector: u8, apic_id: u32, is_level: bool) -> ioapic::Target {
    match set_wire(gsi, vector, apic_id, is_level).map(|remapped| remapped.wire()) {
        Some((high, low)) => ioapic::Target { high, low },
        None => ioapic::Target::cpu(apic_id),
    }
}

/// Sends a line to another CPU. `false`: it is not remapped.
pub fn steer(line: u32, apic_id: u32) -> bool {
    active().is_some_and(|iommu| iommu.hardware.steer(line, apic_id))
}

/// The APIC id of the CPU that a line is sent to. `None`: it is not remapped, or nobody may raise it.
pub fn destination(line: u32) -> Option<u32> {
    active()?.hardware.destination(line)
}

/// Nobody raises the message for now, and who tries is not reported; or it is raised again. Without remapping nothing
/// happens.
pub fn hold(line: u32, held: bool) {
    if let Some(iommu) = active() {
        iommu.hardware.hold(line, held);
    }
}

/// Nobody may raise the line any more.
pub fn clear(line: u32) {
    if let Some(iommu) = active() {
        iommu.hardware.clear_interrupt(line);
    }
}
