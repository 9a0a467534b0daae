//! Sharing a domain's kernel half: an L4 table of the hypervisor's own refers to the domain's L3 tables, in other
//! slots.
//!
//! Entry 256+i of the domain's root becomes entry i. The pages behind it are then reached at their address with the
//! upper 17 bits cleared, with the domain's own rights but for two: they are the supervisor's, although the domain's
//! entries say "user" (the rights of all levels are combined), and nothing of them can be executed. Slots that the
//! hypervisor has in the domain's root (256 to 271) have no counterpart.
//!
//! Every present entry holds references, as one of an L4 table of the domain's would: what it refers to stays an L3
//! table, even if the domain has taken it out of its own root. So a mirror that is behind is no danger, and only
//! whoever runs in it misses something. There is no other list of what a mirror holds, so wherever sharing or giving
//! back is cut short, and whatever comes next, it refers to nothing without a reference.

use super::{Deferred, Locked, Mmu, MmuEnv, MmuError, RootRef, Slot};
use x86::{Level, Mfn, Pte, PteFlags, VirtAddr};
use xen_abi::layout::{DomId, HYPERVISOR_END_SLOT};

/// Half of the slots of an L4 table.
const HALF: usize = 256;
/// The first slot of a mirror that may be in use.
pub const FIRST_SLOT: usize = HYPERVISOR_END_SLOT - HALF;
/// One past the last.
pub const END_SLOT: usize = HALF;

/// Where a mirror shows the domain's page at `page`. `None` if that is not in the part of the kernel half that mirrors
/// have.
#[must_use]
pub const fn place_of(page: u64) -> Option<u64> {
    const ALL: u64 = (HALF as u64) << 39;
    match page.checked_sub(ALL.wrapping_neg()) {
        Some(place) if place >> 39 >= FIRST_SLOT as u64 => Some(place),
        _ => None,
    }
}

/// A mirror's entry for an L3 table that the domain's root has as `theirs`: the supervisor's, not executable.
const fn entry_for(theirs: Pte) -> Pte {
    let flags = PteFlags::P.union(PteFlags::A).union(PteFlags::NX);
    Pte::new(theirs.mfn(), if theirs.is_writable() { flags.union(PteFlags::RW) } else { flags })
}

impl<E: MmuEnv> Mmu<'_, E> {
    /// Makes entry `slot` of `mirror`, a mirror of `root`, say what `root`, a root of `dom`, says now, if it is empty.
    /// Nothing happens if the domain has nothing there, or the slot is none of a mirror's
    /// ([`FIRST_SLOT`]..[`END_SLOT`]). Errors: as for a reference that an L4 entry of the domain's takes.
    pub fn share(
        &self,
        dom: DomId,
        root: &RootRef,
        mirror: Mfn,
        slot: usize,
        lock: &mut Deferred,
    ) -> Result<(), MmuError> {
        let at = Slot::new(mirror, slot);
        if !(FIRST_SLOT..END_SLOT).contains(&slot) || self.env.read(at).is_present() {
            return Ok(());
        }
        self.drain(lock)?;
        let theirs = self.env.read(Slot::new(root.mfn(), slot + HALF));
        if theirs.is_present() {
            self.take_table(theirs.mfn(), Level::L3, dom, lock)?;
            self.env.write(at, entry_for(theirs));
        }
        Ok(())
    }

    /// The L3 tables that `mirror` holds references to.
    pub fn shared(&self, mirror: Mfn) -> impl Iterator<Item = Mfn> + '_ {
        let entries = (FIRST_SLOT..END_SLOT).map(move |slot| self.env.read(Slot::new(mirror, slot)));
        entries.filter(|entry| entry.is_present()).map(Pte::mfn)
    }

    /// Would an access at `masked` under the mirror with the table `root` succeed, as all entries on the way are now? A
    /// write needs the right to in each. `_lock` is the MMU lock of the domain that is mirrored.
    pub fn shows(&self, root: Mfn, masked: VirtAddr, is_write: bool, _lock: Locked<'_>) -> bool {
        let mut table = root;
        // Guests have no superpages.
        (1..=4).rev().all(|level| {
            let entry = self.env.read(Slot::new(table, masked.table_index(level)));
            table = entry.mfn();
            entry.is_present() && (entry.is_writable() || !is_write)
        })
    }

    /// Empties an entry of `mirror`, which no CPU uses any more, and gives its references back. `false`: none is left.
    /// Errors: to be called again.
    pub fn unshare(&self, mirror: Mfn, lock: &mut Deferred) -> Result<bool, MmuError> {
        self.drain(lock)?;
        let slots = (FIRST_SLOT..END_SLOT).map(|slot| Slot::new(mirror, slot));
        let mut used = slots.map(|at| (at, self.env.read(at))).filter(|(_, entry)| entry.is_present());
        let Some((at, entry)) = used.next() else { return Ok(false) };
        self.env.write(at, Pte::EMPTY);
        self.drop_table(entry.mfn(), lock);
        Ok(true)
    }
}
