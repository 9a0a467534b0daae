//! What a twin sees of memory: the mirror of its domain, and the areas of its instances.
//!
//! The mirror is a page-table root of the hypervisor's own. Its upper half has the hypervisor's slots and nothing else;
//! slots 16 to 255 of its lower half refer to the tables that the domain's root has in slots 272 to 511
//! ([`hv_core::mmu::mirror`]). Slot 1 has the unsafe areas. So an address of the domain's with bits 47 to 63 cleared is
//! the domain's page, with its rights, as a supervisor page that cannot be executed.
//!
//! An entry is made when the twin is loaded, or at the first fault in a slot that was empty then: kernels add entries
//! to their root now and then, and take none away.

use crate::cpu::percpu::this_cpu;
use crate::domain::memory::mmu_env::mmu;
use crate::domain::Domain;
use crate::mem::{self, frames, paging, phys_to_virt};
use crate::sync::Mutex;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::mmu::mirror::{END_SLOT, FIRST_SLOT};
use hv_core::mmu::{MmuError, RootRef};
use twin_abi::layout::{STACK_GUARD, STACK_SIZE};
use twin_abi::op::MASK_BITS;
use x86::{MachAddr, Mfn, PteFlags, VirtAddr};
use xen_abi::errno::Errno;
use xen_abi::layout::{DomId, HYPERVISOR_END_SLOT, HYPERVISOR_FIRST_SLOT};

/// Slot of the mirror that has the unsafe areas. The domain has nothing there: its counterpart is the hypervisor's.
const UNSAFE_SLOT: u64 = 1;
/// From one unsafe area to the next: an area and a guard on either side.
const UNSAFE_STRIDE: u64 = (STACK_SIZE + 2 * STACK_GUARD).next_power_of_two();
/// Domain memory, the twin's stack: data of the supervisor's that follows CR3.
pub const DATA: PteFlags = paging::READ_WRITE.difference(PteFlags::G);

const _: () = assert!((UNSAFE_SLOT as usize) < FIRST_SLOT && MASK_BITS == 47);

/// Address of the unsafe area of the instance on CPU `cpu`, as the twin names it.
pub const fn unsafe_area(cpu: usize) -> u64 {
    (UNSAFE_SLOT << 39) + cpu as u64 * UNSAFE_STRIDE + STACK_GUARD
}

/// What is to be done after a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// The access is tried again.
    Allowed,
    /// It is refused.
    Denied,
    /// Something else of the domain's comes first, of which a portion was done now.
    Later,
}

/// A mirror.
pub struct Mirror {
    domain: DomId,
    root: Mfn,
    /// Tables of the unsafe areas.
    tables: Vec<Mfn>,
    /// The domain's root. `None` when that was given back: nothing is shared any more. Who has it locked changes
    /// entries.
    of: Mutex<Option<RootRef>>,
}

impl Mirror {
    /// A mirror of `root`, which must be an L4 table of `d`'s or become one; nothing is in it yet. Errors: EINVAL if it
    /// does not, ERESTART, ENOMEM.
    pub fn new(d: &Domain, root: Mfn) -> Result<Self, Errno> {
        let own = frames::alloc_table_for_domain().ok_or(Errno::ENOMEM)?;
        let of = mmu().acquire_root(d.mm.id, root, &mut d.mm.lock()).inspect_err(|_| frames::free_table(own))?;
        let mirror = Self { domain: d.mm.id, root: own, tables: Vec::new(), of: Mutex::new(Some(of)) };
        for slot in HYPERVISOR_FIRST_SLOT..HYPERVISOR_END_SLOT {
            mirror.entry(slot).store(mem::l4_entry(slot).0, Ordering::Relaxed);
        }
        Ok(mirror)
    }

    /// Has all in it that the domain's root has now. ERESTART: to be called again. After other errors,
    /// [`Self::release`] it.
    pub fn share_all(&self, d: &Domain) -> Result<(), Errno> {
        (FIRST_SLOT..END_SLOT).try_for_each(|slot| self.share(d, slot))
    }

    /// The root, for CR3.
    pub const fn root(&self) -> Mfn {
        self.root
    }

    fn entry(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: the root is a frame of ours in the direct map; `slot` is below 512 everywhere here; the CPU reads it
        // too.
        unsafe { AtomicU64::from_ptr(phys_to_virt(self.root.addr()).cast::<u64>().add(slot)) }
    }

    /// Makes an empty entry say what the domain's root says now. Errors: ENOENT when it is being given back; ERESTART;
    /// others for what is no table.
    fn share(&self, d: &Domain, slot: usize) -> Result<(), Errno> {
        let mut lock = d.mm.lock();
        let of = self.of.lock();
        let of = of.as_ref().ok_or(Errno::ENOENT)?;
        Ok(mmu().share(d.mm.id, of, self.root, slot, &mut lock)?)
    }

    /// The twin faulted at `masked`, where it wanted to write, or to read. May it try again? That depends on what is
    /// there now, not on who brought it: another CPU may have been faster.
    pub fn fill(&self, masked: u64, is_write: bool) -> Filled {
        let slot = (masked >> 39) as usize;
        let Some(at) = VirtAddr::new(masked).filter(|_| (FIRST_SLOT..END_SLOT).contains(&slot)) else {
            return Filled::Denied;
        };
        let Some(d) = crate::domain::find(self.domain.0) else { return Filled::Denied };
        // The twin could be interrupted until now. A routine lets no interrupt in, but it has to have this; it answers
        // others between two rounds.
        this_cpu().allowance.refill();
        match self.share(&d, slot) {
            Err(Errno::ERESTART) => Filled::Later,
            Ok(()) if mmu().shows(self.root, at, is_write, d.mm.lock().locked()) => Filled::Allowed,
            Ok(()) | Err(_) => Filled::Denied,
        }
    }

    /// Maps `pages` as the unsafe area of CPU `cpu`. `None` when out of memory.
    pub fn map_unsafe_area(&mut self, cpu: usize, pages: &[Mfn]) -> Option<()> {
        let tables = &mut self.tables;
        let own = paging::Tables::new(self.root, false);
        let mut alloc = || {
            tables.try_reserve(1).ok()?;
            let mfn = frames::alloc_table_for_domain()?;
            tables.push(mfn);
            Some(mfn)
        };
        for (va, mfn) in (unsafe_area(cpu)..).step_by(x86::PAGE_SIZE).zip(pages) {
            own.map(va, mfn.addr().raw(), x86::PAGE_SIZE as u64, DATA, &mut alloc)?;
        }
        Some(())
    }

    /// Gives everything back; no CPU is in it, nor will be. ERESTART: to be called again.
    pub fn release(&mut self, d: &Domain) -> Result<(), Errno> {
        while mmu().unshare(self.root, &mut d.mm.lock())? {}
        let of = self.of.get_mut();
        if let Some(root) = of.take() {
            let kept = root.keep();
            if let Err(error) = mmu().release_root(RootRef::from_kept(kept), &mut d.mm.lock()) {
                *of = Some(RootRef::from_kept(kept));
                return Err(error.into());
            }
        }
        match mmu().drain(&mut d.mm.lock()) {
            Err(MmuError::Preempted) => return Err(Errno::ERESTART),
            Err(error) => return Err(error.into()),
            Ok(()) => {}
        }
        self.tables.drain(..).for_each(frames::free_table);
        if self.root != mem::idle_root() {
            frames::free_table(core::mem::replace(&mut self.root, mem::idle_root()));
        }
        Ok(())
    }

    /// Where the byte of `d`'s, whose mirror this is, at `address` is in the machine.
    pub fn locate(&self, d: &Domain, address: u64) -> Option<MachAddr> {
        let root = self.of.lock().as_ref()?.mfn();
        let entry = mmu().mapping(root, VirtAddr::new(address)?, d.mm.lock().locked()).ok()?;
        Some(MachAddr::new(entry.mfn().addr().raw() + address % x86::PAGE_SIZE as u64))
    }

    /// Calls `root` and `table` with the frames that it refers to: its root in the domain, and L3 tables.
    pub fn for_each_reference(&self, root: impl FnOnce(Mfn), table: impl FnMut(Mfn)) {
        let of = self.of.lock();
        if let Some(of) = of.as_ref() {
            root(of.mfn());
        }
        mmu().shared(self.root).for_each(table);
    }
}
