//! Interrupt remapping: one table for all units, an entry for each line of `irq_guest`.
//!
//! Once it is on, an interrupt that does not name an entry is stopped, so a domain's device raises the vectors of its own
//! messages and nothing else.

use super::{active, memory, Iommu};
use crate::arch::{acpi, ioapic, lapic};
use crate::mem::{frames, phys_to_virt};
use crate::sync::Mutex;
use crate::warn;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::iommu::vtd::{remapping, Invalidation};
use x86::Mfn;

/// Pages of the table, as a power of two: room for 2048 entries.
const ORDER: u32 = 3;
/// Entries of the table, as a power of two.
pub const ENTRIES_ORDER: u32 = ORDER + 8;

/// How CPUs are named: as their local APICs are.
pub fn mode() -> remapping::Mode {
    if lapic::is_x2apic() {
        remapping::Mode::X2apic
    } else {
        remapping::Mode::Xapic
    }
}

/// The table.
pub struct Table {
    /// Its first frame.
    pub first: Mfn,
    /// An entry's halves are changed under it.
    lock: Mutex<()>,
}

impl Table {
    /// An empty table. `None`: out of memory.
    pub fn new() -> Option<Self> {
        let first = frames::alloc(ORDER, frames::ANYWHERE)?;
        for n in 0..1 << ORDER {
            frames::scrub(first.add(n));
            memory::write_back(phys_to_virt(first.add(n).addr()), x86::PAGE_SIZE);
        }
        Some(Self { first, lock: Mutex::new(()) })
    }

    fn half(&self, index: u16, high: bool) -> Option<&'static AtomicU64> {
        let offset = usize::from(index) * 2 + usize::from(high);
        // SAFETY: inside the table's frames, which are ours for ever and only accessed as atomics.
        (u32::from(index) < 1 << ENTRIES_ORDER)
            .then(|| unsafe { AtomicU64::from_ptr(phys_to_virt(self.first.addr()).cast::<u64>().add(offset)) })
    }

    fn write(&self, index: u16, high: bool, value: u64) {
        if let Some(half) = self.half(index, high) {
            half.store(value, Ordering::Release);
            memory::write_back(half.as_ptr().cast_const().cast(), 8);
        }
    }
}

fn table() -> Option<(&'static Iommu, &'static Table)> {
    let iommu = active()?;
    Some((iommu, iommu.remapping.as_ref()?))
}

/// Sets the entry of line `line`. `source`: who may raise it. Returns the entry's index, or `None` without remapping: the
/// interrupt is to be programmed as it is.
pub fn set(line: u32, vector: u8, apic_id: u32, is_level: bool, source: Option<u16>) -> Option<u16> {
    let (iommu, table) = table()?;
    let index = u16::try_from(line).ok()?;
    let [low, high] = remapping::entry(vector, apic_id, mode(), is_level, source);
    let _lock = table.lock.lock();
    // Not present while the halves disagree.
    table.write(index, false, 0);
    iommu.invalidate(Invalidation::Interrupts);
    table.write(index, true, high);
    table.write(index, false, low);
    iommu.invalidate(Invalidation::Interrupts);
    Some(index)
}

/// Sends a line to another CPU. `false`: it is not remapped.
pub fn steer(line: u32, apic_id: u32) -> bool {
    let Some((iommu, table)) = table() else { return false };
    let Ok(index) = u16::try_from(line) else { return false };
    let _lock = table.lock.lock();
    let Some(low) = table.half(index, false).map(|half| half.load(Ordering::Relaxed)) else { return false };
    if low & 1 != 0 {
        table.write(index, false, remapping::steered(low, apic_id, mode()));
        iommu.invalidate(Invalidation::Interrupts);
    }
    true
}

/// Nobody may raise the line any more.
pub fn clear(line: u32) {
    let Some((iommu, table)) = table() else { return };
    let Ok(index) = u16::try_from(line) else { return };
    let _lock = table.lock.lock();
    table.write(index, false, 0);
    iommu.invalidate(Invalidation::Interrupts);
}

/// The source id of the I/O APIC that has wire `gsi`, as the firmware tells.
pub fn io_apic_source(gsi: u32) -> Option<u16> {
    let chips = &acpi::tables().madt.as_ref()?.io_apics;
    let chip = chips.iter().filter(|chip| chip.gsi_base <= gsi).max_by_key(|chip| chip.gsi_base)?;
    active()?.dmar.units.iter().flat_map(|u| &u.io_apics).find(|a| a.id == chip.id).map(|a| a.source_id)
}

/// Can all I/O APICs be told apart? If the firmware does not say what their accesses look like, nothing is remapped.
pub(super) fn knows_io_apics(iommu: &Iommu) -> bool {
    let Some(madt) = acpi::tables().madt.as_ref() else { return false };
    let known = |id: u8| iommu.dmar.units.iter().flat_map(|u| &u.io_apics).any(|a| a.id == id);
    let all = ioapic::gsi_end() > 0 && madt.io_apics.iter().all(|chip| known(chip.id));
    if !all {
        warn!("IOMMU: the firmware does not describe every I/O APIC");
    }
    all
}
