//! Writes of a guest kernel to its own page tables: it sees L1 tables as read-only memory, and writes to them all the
//! same. Each such write faults, is decoded, validated as a change of that entry, and completed here.

use crate::domain::memory::mmu_env::mmu;
use crate::domain::vcpu::OwnedVcpu;
use crate::pv::{emulate, entry};
use hv_core::emul::gpr::mask;
use hv_core::emul::memory_write::MemoryWrite;
use hv_core::emul::Mode;
use hv_core::mmu::{Locked, MmuError, Slot};
use x86::rflags::Dr6;
use x86::{vector, Pte, VirtAddr};
use xen_abi::layout::DomId;
use xen_abi::regs::CpuUserRegs;

/// Between reading an entry and replacing it only the CPU can change it, by setting two bits.
const MAX_TRIES: u32 = 8;

/// A write fault at `address` on a present page in kernel mode. As in Xen, no matter whether the guest has switched on
/// VMASST_TYPE_writable_pagetables. Whether it was a write to a page table, and is done.
#[inline]
pub fn handle(v: &OwnedVcpu, regs: &mut CpuUserRegs, address: u64) -> bool {
    let Some(va) = VirtAddr::new(address) else { return false };
    let mm = &v.domain().mm;
    let single_step = {
        let lock = mm.lock();
        let Some(slot) = mmu().ptwr_target(v.kernel_root.get(), va, mm.id, lock.locked()) else { return false };
        let fetched = emulate::fetch(regs.rip, Mode::Long);
        let Ok(write) = MemoryWrite::decode(regs, &fetched, address, emulate::segment_base) else { return false };
        match complete(&write, regs, slot, mm.id, lock.locked()) {
            Some(single_step) => single_step,
            None => return false,
        }
    };
    if single_step {
        v.debugreg[6].set(v.debugreg[6].get() | Dr6::BS.bits());
        entry::inject(v, regs, vector::DB, 0);
    }
    true
}

/// Does the write to the entry at `slot`, or to a part of it. Whether the guest single-steps; `None` if the entry that
/// would result is not fit.
#[inline]
fn complete(write: &MemoryWrite, regs: &mut CpuUserRegs, slot: Slot, dom: DomId, lock: Locked<'_>) -> Option<bool> {
    let shift = (write.addr & 7) * 8;
    let field = mask(write.width);
    for _ in 0..MAX_TRIES {
        let old = mmu().ptwr_read(slot, lock);
        let effect = write.evaluate(regs, old.0 >> shift & field);
        let result = match effect.new {
            Some(new) => {
                let new = Pte(old.0 & !(field << shift) | (new & field) << shift);
                mmu().ptwr_commit(slot, old, new, dom, lock)
            }
            None => Ok(()),
        };
        match result {
            Ok(()) => return Some(write.retire(regs, &effect)),
            Err(MmuError::Changed) => {}
            Err(_) => return None,
        }
    }
    None
}
