//! Changing an entry of an L2, L3 or L4 table.

use super::tables::{check_upper, is_hypervisor_slot};
use super::update::Accessed;
use super::{Deferred, Mmu, MmuEnv, MmuError, Slot};
use x86::{Level, Pte, PteFlags};
use xen_abi::layout::DomId;

/// Flags that may change while the entry keeps its table. (RW is not among them only for caution's sake: the entries
/// of the L1 table decide.)
const HARMLESS: u64 = PteFlags::US
    .union(PteFlags::A)
    .union(PteFlags::D)
    .union(PteFlags::AVL)
    .union(PteFlags::AVL_HIGH)
    .union(PteFlags::NX)
    .bits();

impl<E: MmuEnv> Mmu<'_, E> {
    /// Changes the entry at `slot` of a validated table of `level` (2-4) of `dom`. No TLB flush is implied: a table
    /// that loses its last reference is flushed for when it gets another use. The caller has drained `deferred`.
    pub(super) fn update_upper(
        &self,
        (level, below): (Level, Level),
        slot: Slot,
        new: Pte,
        dom: DomId,
        ad: Accessed,
        deferred: &mut Deferred,
    ) -> Result<(), MmuError> {
        if is_hypervisor_slot(level, slot.index()) {
            return Err(MmuError::ReservedSlot);
        }
        let old = self.env.read(slot);
        let new = if new.is_present() {
            let new = check_upper(new)?;
            if old.is_present() && (old.0 ^ new.0) & !HARMLESS == 0 {
                self.store(slot, old, new, ad);
                return Ok(());
            }
            self.take_table(new.mfn(), below, dom, deferred)?;
            new
        } else {
            new
        };
        self.store(slot, old, new, ad);
        if old.is_present() {
            self.drop_table(old.mfn(), deferred);
        }
        Ok(())
    }
}
