//! Mappings at addresses of their own: device memory,
//! firmware tables, and pages in an order of ours.

use crate::mem::paging::Cut;
use crate::mem::{frames, layout, paging, tables};
use crate::sync::Mutex;
use core::sync::atomic::Ordering;
use x86::{MachAddr, Mfn, Pte, PteFlags, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;

/// Next free address of the device window; device mappings are for ever.
static NEXT_DEVICE: Mutex<u64> = Mutex::new(layout::MMIO);

/// Maps `bytes` of device registers at `addr`, uncached, for good. `None` when out of memory.
pub fn map_device(addr: MachAddr, bytes: usize) -> Option<*mut u8> {
    map_machine(addr, bytes, paging::DEVICE)
}

/// Maps `bytes` of firmware tables at `addr`, read-only, for good. `None` when out of memory.
pub fn map_firmware(addr: MachAddr, bytes: usize) -> Option<*const u8> {
    map_machine(addr, bytes, paging::READ_ONLY).map(<*mut u8>::cast_const)
}

/// The same, to be changed.
pub fn map_firmware_writable(addr: MachAddr, bytes: usize) -> Option<*mut u8> {
    map_machine(addr, bytes, paging::READ_WRITE)
}

fn map_machine(addr: MachAddr, bytes: usize, flags: PteFlags) -> Option<*mut u8> {
    let offset = addr.page_offset();
    let pages = (offset + bytes as u64).div_ceil(PAGE);
    let mut next = NEXT_DEVICE.lock();
    let va = *next;
    // A page that stays unmapped separates each mapping from the next.
    let after = va.checked_add((pages + 1) * PAGE).filter(|&end| end <= layout::MMIO_END)?;
    for i in 0..pages {
        let entry = tables().walk(va + i * PAGE, 1, &mut frames::alloc_table)?;
        let mfn = Mfn::containing(addr).add(i);
        entry.store(Pte::new(mfn, flags).0, Ordering::Relaxed);
    }
    *next = after;
    Some((va + offset) as *mut u8)
}

/// Maps `mfns` one after the other at `va` in the vmap window, replacing nothing.
pub fn map_at(va: u64, mfns: &[Mfn], flags: PteFlags) -> Option<()> {
    map_with(va, mfns, flags, &mut frames::alloc_table)
}

/// The same for what a domain has made, at addresses that nobody else maps anything near: tables leave the reserve
/// alone.
pub fn map_for_domain(va: u64, mfns: &[Mfn], flags: PteFlags) -> Option<()> {
    map_with(va, mfns, flags, &mut frames::alloc_table_for_domain)
}

fn map_with(va: u64, mfns: &[Mfn], flags: PteFlags, alloc: &mut impl FnMut() -> Option<Mfn>) -> Option<()> {
    for (i, mfn) in mfns.iter().enumerate() {
        let entry = tables().walk(va + i as u64 * PAGE, 1, alloc)?;
        entry.store(Pte::new(*mfn, flags).0, Ordering::Relaxed);
    }
    Some(())
}

/// Takes all mappings of the GiB at `va` away, of which nobody else has any part. The caller flushes all CPUs
/// completely, and then hands the tables to [`free`].
pub fn unmap_gib(va: u64) -> Option<Cut> {
    tables().cut(va)
}

/// Frees tables that were taken out.
pub fn free(cut: Cut) {
    paging::free_cut(cut, frames::free_table);
}
