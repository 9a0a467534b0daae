//! Interrupt remapping: one table for all units, an entry for each line of `irq::guest`.

use crate::iommu::hardware::Interrupt;
use crate::iommu::memory;
use crate::mem::{frames, phys_to_virt};
use crate::sync::Mutex;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::iommu::vtd::remapping;
use x86::Mfn;

/// Pages of the table, as a power of two: room for 2048 entries.
const ORDER: u32 = 3;
/// Entries of the table, as a power of two.
pub const ENTRIES_ORDER: u32 = ORDER + 8;

/// The table.
pub struct Table {
    /// Its first frame.
    pub first: Mfn,
    /// How entries name CPUs.
    pub mode: remapping::Mode,
    /// An entry's halves are changed under it.
    lock: Mutex<()>,
}

impl Table {
    /// An empty table. `None`: out of memory.
    pub fn new(mode: remapping::Mode) -> Option<Self> {
        let first = frames::alloc(ORDER, frames::ANYWHERE)?;
        for n in 0..1 << ORDER {
            // SAFETY: one of the frames that were just taken, which no unit knows yet.
            unsafe { frames::scrub(first.add(n)) };
            memory::write_back(phys_to_virt(first.add(n).addr()), x86::PAGE_SIZE);
        }
        Some(Self { first, mode, lock: Mutex::new(()) })
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

    /// Sets entry `index`. `named`: by whom. `forget` makes the units forget entries.
    pub fn set(&self, index: u16, interrupt: &Interrupt, named: remapping::Named, forget: impl Fn()) {
        let Interrupt { vector, apic_id, is_level, .. } = *interrupt;
        let [low, high] = remapping::entry(vector, apic_id, self.mode, is_level, named);
        let _lock = self.lock.lock();
        // Not present while the halves disagree.
        self.write(index, false, 0);
        forget();
        self.write(index, true, high);
        self.write(index, false, low);
        forget();
    }

    /// Sends what entry `index` raises to another CPU. `false`: there is no such entry.
    pub fn steer(&self, index: u16, apic_id: u32, forget: impl Fn()) -> bool {
        let _lock = self.lock.lock();
        let Some(low) = self.half(index, false).map(|half| half.load(Ordering::Relaxed)) else { return false };
        if low != 0 {
            self.write(index, false, remapping::steered(low, apic_id, self.mode));
            forget();
        }
        true
    }

    /// The APIC id of the CPU that entry `index` sends to, if there is one.
    pub fn destination(&self, index: u16) -> Option<u32> {
        let _lock = self.lock.lock();
        remapping::destination(self.half(index, false)?.load(Ordering::Relaxed), self.mode)
    }

    /// Nobody raises what entry `index` says, if anything, for now; or it is raised again.
    pub fn hold(&self, index: u16, held: bool, forget: impl Fn()) {
        let _lock = self.lock.lock();
        let Some(low) = self.half(index, false).map(|half| half.load(Ordering::Relaxed)) else { return };
        let now = remapping::held(low, held);
        if now != low {
            self.write(index, false, now);
            forget();
        }
    }

    /// Nobody may name entry `index` any more.
    pub fn clear(&self, index: u16, forget: impl Fn()) {
        let _lock = self.lock.lock();
        self.write(index, false, 0);
        forget();
    }
}
