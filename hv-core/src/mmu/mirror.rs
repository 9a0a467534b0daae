//! Sharing a domain's kernel half: an L4 table of the hypervisor's own refers to the domain's L3 tables, in other slots.
//!
//! Entry 256+i of the domain's root becomes entry i. The pages behind it are then reached at their address with the upper 17
//! bits cleared, with the domain's own rights but for two: they are the supervisor's, although the domain's entries say
//! "user" (the rights of all levels are combined), and nothing of them can be executed. Slots that the hypervisor has in the
//! domain's root (256 to 271) have no counterpart.
//!
//! Every entry holds references, as one of an L4 table of the domain's would: what it refers to stays an L3 table, even if
//! the domain has taken it out of its own root. So a mirror that is behind is no danger, and only whoever runs in it misses
//! something.

use super::{Deferred, Locked, Mmu, MmuEnv, MmuError, RootRef, Slot};
use x86::{Level, Mfn, Pte, PteFlags, VirtAddr};
use xen_abi::layout::{DomId, HYPERVISOR_END_SLOT};

/// Half of the slots of an L4 table.
const HALF: usize = 256;
/// The first slot of a mirror that may be in use.
pub const FIRST_SLOT: usize = HYPERVISOR_END_SLOT - HALF;
/// One past the last.
pub const END_SLOT: usize = HALF;

/// Where a mirror shows the domain's page at `page`. `None` if that is not in the part of the kernel half that mirrors have.
#[must_use]
pub const fn place_of(page: u64) -> Option<u64> {
    const ALL: u64 = (HALF as u64) << 39;
    match page.checked_sub(ALL.wrapping_neg()) {
        Some(place) if place >> 39 >= FIRST_SLOT as u64 => Some(place),
        _ => None,
    }
}

/// The references of one entry of a mirror. Not `Clone`: it goes back through [`Mmu::unshare`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a shared table holds references"]
pub struct SharedTable {
    table: Mfn,
    is_writable: bool,
}

impl SharedTable {
    /// The L3 table.
    #[must_use]
    pub const fn mfn(&self) -> Mfn {
        self.table
    }

    /// The entry that refers to it: the supervisor's, not executable.
    #[must_use]
    pub const fn entry(&self) -> Pte {
        let flags = PteFlags::P.union(PteFlags::A).union(PteFlags::NX);
        Pte::new(self.table, if self.is_writable { flags.union(PteFlags::RW) } else { flags })
    }
}

impl<E: MmuEnv> Mmu<'_, E> {
    /// Takes references for entry `slot` ([`FIRST_SLOT`]..[`END_SLOT`]) of a mirror of `root`, a root of `dom`. `None` if
    /// the domain has nothing there, or the slot is none of a mirror's. Errors: as for a reference that an L4 entry of the
    /// domain's takes.
    pub fn share(
        &self,
        dom: DomId,
        root: &RootRef,
        slot: usize,
        lock: &mut Deferred,
    ) -> Result<Option<SharedTable>, MmuError> {
        if !(FIRST_SLOT..END_SLOT).contains(&slot) {
            return Ok(None);
        }
        self.drain(lock)?;
        let entry = self.env.read(Slot::new(root.mfn(), slot + HALF));
        if !entry.is_present() {
            return Ok(None);
        }
        self.take_table(entry.mfn(), Level::L3, dom, lock)?;
        Ok(Some(SharedTable { table: entry.mfn(), is_writable: entry.is_writable() }))
    }

    /// Would an access at `masked` under the mirror with the table `root` succeed, as all entries on the way are now? A write needs the right
    /// to in each. `_lock` is the MMU lock of the domain that is mirrored.
    pub fn shows(&self, root: Mfn, masked: VirtAddr, is_write: bool, _lock: Locked<'_>) -> bool {
        let mut table = root;
        // Guests have no superpages.
        (1..=4).rev().all(|level| {
            let entry = self.env.read(Slot::new(table, masked.table_index(level)));
            table = entry.mfn();
            entry.is_present() && (entry.is_writable() || !is_write)
        })
    }

    /// Gives the references of an entry back, which no CPU can use any more. `Err`: to be called again.
    pub fn unshare(&self, shared: SharedTable, lock: &mut Deferred) -> Result<(), (SharedTable, MmuError)> {
        if let Err(error) = self.drain(lock) {
            return Err((shared, error));
        }
        self.drop_table(shared.table, lock);
        Ok(())
    }
}
