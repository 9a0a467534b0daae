//! Memory for the tables, and what the hardware domain's devices may reach.

use super::hardware::Hardware;
use crate::cpu;
use crate::mem::{self, device_frames, frames, phys_to_virt};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use hv_core::iommu::{Access, AnyFormat, TableMem, Tables};
use x86::{MachAddr, Mfn, PAGE_SIZE};
use xen_abi::layout::DomId;
use xen_abi::memory::E820Entry;

/// Tables in frames of ours, through the direct map: those of the hardware, and what is made at boot.
pub struct Direct;
/// The same for those of domains, of which a guest can have one for each 2 MiB of the machine: they leave the reserve
/// alone.
pub struct OfDomain;

/// Bytes of a cache line; no CPU has shorter ones.
const LINE: usize = 64;
/// Some unit does not see the CPUs' caches.
pub static NEEDS_WRITE_BACK: AtomicBool = AtomicBool::new(false);

fn entry(table: Mfn, index: usize) -> &'static AtomicU64 {
    // SAFETY: `TableMem`'s callers name tables that `alloc` gave, whole frames in the direct map, and indices below
    // 512; entries are only accessed as atomics while the hardware may read them.
    unsafe { AtomicU64::from_ptr(phys_to_virt(table.addr()).cast::<u64>().add(index & 511)) }
}

/// Makes `bytes` from `at` visible to units that do not see the CPUs' caches.
pub fn write_back(at: *const u8, bytes: usize) {
    if NEEDS_WRITE_BACK.load(Ordering::Relaxed) {
        for line in (0..bytes).step_by(LINE) {
            cpu::clflush(at.wrapping_add(line));
        }
        core::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl TableMem for Direct {
    fn read(&self, table: Mfn, index: usize) -> u64 {
        entry(table, index).load(Ordering::Relaxed)
    }
    fn write(&self, table: Mfn, index: usize, value: u64) {
        entry(table, index).store(value, Ordering::Release);
        write_back(entry(table, index).as_ptr().cast(), 8);
    }
    fn alloc(&self) -> Option<Mfn> {
        frames::alloc_table().inspect(|table| show(*table))
    }
    fn free(&self, table: Mfn) {
        frames::free_table(table);
    }
}

impl TableMem for OfDomain {
    fn read(&self, table: Mfn, index: usize) -> u64 {
        Direct.read(table, index)
    }
    fn write(&self, table: Mfn, index: usize, value: u64) {
        Direct.write(table, index, value);
    }
    fn alloc(&self) -> Option<Mfn> {
        frames::alloc_table_for_domain().inspect(|table| show(*table))
    }
    fn free(&self, table: Mfn) {
        Direct.free(table);
    }
}

/// The hardware sees that a new table is empty.
fn show(table: Mfn) {
    write_back(phys_to_virt(table.addr()), PAGE_SIZE);
}

/// Interrupt controllers and what else is not memory, up to 4 GiB.
const CONTROLLERS: core::ops::Range<u64> = 0xfec0_0000..0x1_0000_0000;
const USABLE: u32 = 1;
const RESERVED: u32 = 2;

/// Tables that map all memory but what the hypervisor keeps for itself from the boot on. Firmware's reserved memory
/// below 4 GiB is mapped too: firmware lets devices use it and does not always say so. But not what no domain may
/// write, as the code of UEFI's run-time services, which the processor executes at ring 0.
pub(super) fn hardware_tables(hardware: &dyn Hardware, machine_map: &[E820Entry]) -> Option<Tables<AnyFormat>> {
    let tables = Tables::new(&Direct, hardware.levels(), hardware.format())?;
    let largest = hardware.largest_page_level();
    for region in machine_map {
        let first = region.addr / PAGE_SIZE as u64;
        let end = region.addr.saturating_add(region.size) / PAGE_SIZE as u64;
        let is_firmware = region.kind == RESERVED && region.addr < CONTROLLERS.end;
        let wanted = |frame: u64| match region.kind {
            USABLE => !is_ours(Mfn::new(frame)),
            _ => {
                let is_controller = CONTROLLERS.contains(&(frame * PAGE_SIZE as u64));
                is_firmware && !is_controller && !device_frames::is_watched(Mfn::new(frame))
            }
        };
        if region.kind == USABLE || is_firmware {
            map_runs(&tables, first..end, wanted, largest)?;
        }
    }
    for (first, last) in hardware.firmware_memory() {
        let frames = Mfn::containing(first).raw()..Mfn::containing(last).raw() + 1;
        let wanted = |frame: u64| tables.get(&Direct, Mfn::new(frame)) == Access::None;
        map_runs(&tables, frames, wanted, 1)?;
    }
    Some(tables)
}

/// Maps the frames that are `wanted`, run by run.
fn map_runs(
    tables: &Tables<AnyFormat>,
    frames: core::ops::Range<u64>,
    wanted: impl Fn(u64) -> bool,
    largest: u32,
) -> Option<()> {
    let mut at = frames.start;
    while at < frames.end {
        let end = (at..frames.end).find(|&frame| !wanted(frame)).unwrap_or(frames.end);
        tables.map(&Direct, Mfn::new(at), Mfn::new(end), Access::ReadWrite, largest).ok()?;
        at = (end..frames.end).find(|&frame| wanted(frame)).unwrap_or(frames.end);
    }
    Some(())
}

fn is_ours(mfn: Mfn) -> bool {
    let image = mem::image_frames();
    image.contains(&mfn.raw()) || frames::frame(mfn).is_some_and(|frame| frame.owner() == DomId::XEN)
}

/// The machine address that a pointer into the direct map means.
pub fn machine_addr(mfn: Mfn, offset: usize) -> u64 {
    MachAddr::new(mfn.addr().raw() + offset as u64).raw()
}
