//! Page tables of guests, and those that stand in for them, through the direct map.

use crate::mem::phys_to_virt;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::mmu::{PtMem, Slot};
use x86::Pte;

/// Entries of tables, wherever they are in RAM.
pub struct Tables;

/// The word at `slot` in the direct map.
#[inline(always)]
fn word(slot: Slot) -> &'static AtomicU64 {
    // SAFETY: `PtMem`'s callers name slots of RAM frames only; all RAM is in the direct map, 8-byte aligned here, and
    // memory that guests and CPUs change is only accessed by atomics.
    unsafe { AtomicU64::from_ptr(phys_to_virt(x86::MachAddr::new(slot.addr())).cast()) }
}

impl PtMem for Tables {
    #[inline(always)]
    fn read(&self, slot: Slot) -> Pte {
        Pte(word(slot).load(Ordering::Relaxed))
    }
    #[inline(always)]
    fn any_bits(&self, first: Slot) -> u64 {
        let bits: u64;
        // SAFETY: as for `word`: the eight words are in one page, for `first` is a multiple of eight; they are only
        // read. Assembly, because atomic loads are not combined with the operation on them, which would take twice as
        // long.
        unsafe {
            core::arch::asm!(
                "mov {bits}, [{at}]", "or {bits}, [{at} + 8]", "or {bits}, [{at} + 16]", "or {bits}, [{at} + 24]",
                "or {bits}, [{at} + 32]", "or {bits}, [{at} + 40]", "or {bits}, [{at} + 48]", "or {bits}, [{at} + 56]",
                at = in(reg) phys_to_virt(x86::MachAddr::new(first.addr() & !63)), bits = out(reg) bits,
                options(nostack, readonly)
            );
        }
        bits
    }
    #[inline(always)]
    fn write(&self, slot: Slot, new: Pte) {
        word(slot).store(new.0, Ordering::Release);
    }
    #[inline(always)]
    fn cmpxchg(&self, slot: Slot, old: Pte, new: Pte) -> Result<(), Pte> {
        word(slot).compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed).map(|_| ()).map_err(Pte)
    }
}
