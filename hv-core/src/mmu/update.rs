//! The ways in which a guest changes a page-table entry: `mmu_update`, `update_va_mapping` and the writable-page-table
//! fault path.

use super::{Deferred, Locked, Mmu, MmuEnv, MmuError, Slot};
use crate::frame::{Frame, FrameType, UsageState};
use x86::{Level, Mfn, Pte, PteFlags, VirtAddr};
use xen_abi::layout::{DomId, HYPERVISOR_VIRT_END, HYPERVISOR_VIRT_START};
use xen_abi::mmu::{
    MMU_MACHPHYS_UPDATE, MMU_NORMAL_PT_UPDATE, MMU_PT_UPDATE_NO_TRANSLATE, MMU_PT_UPDATE_PRESERVE_AD,
    MMU_UPDATE_CMD_MASK,
};

/// Whose page table is changed, and whose frames it may map. The caller has checked that the calling domain has power
/// over both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owners {
    /// Owner of the page table.
    pub table: DomId,
    /// Owner of the frames that new entries name; [`DomId::IO`] for I/O memory.
    pub frame: DomId,
}

impl Owners {
    /// A domain that maps its own pages.
    #[inline]
    pub const fn both(dom: DomId) -> Self {
        Self { table: dom, frame: dom }
    }
}

/// The argument `foreigndom` of `mmu_update`, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignDom {
    /// Owner of the page tables. `None`: the caller.
    pub table: Option<u16>,
    /// Owner of the frames: the caller for [`DomId::SELF`], whoever owns the tables.
    pub frame: DomId,
}

impl ForeignDom {
    /// Owner of the frames in bits 0-15, owner of the page tables plus one in bits 16-31 (0: the caller).
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "halves of the word")]
    pub const fn from_word(word: u32, caller: DomId) -> Self {
        let (table, frame) = ((word >> 16) as u16, DomId(word as u16));
        Self { table: table.checked_sub(1), frame: if frame.0 == DomId::SELF.0 { caller } else { frame } }
    }
}

/// What becomes of the accessed and dirty bits that the CPU has set in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accessed {
    /// The new value replaces them.
    Overwrite,
    /// They are kept.
    Preserve,
}

impl<E: MmuEnv> Mmu<'_, E> {
    /// One request of `mmu_update`. `lock` is the MMU lock of `who.table`.
    #[inline]
    pub fn mmu_update(&self, ptr: u64, val: u64, who: Owners, lock: &mut Deferred) -> Result<(), MmuError> {
        let ad = match ptr & MMU_UPDATE_CMD_MASK {
            MMU_NORMAL_PT_UPDATE | MMU_PT_UPDATE_NO_TRANSLATE => Accessed::Overwrite,
            MMU_PT_UPDATE_PRESERVE_AD => Accessed::Preserve,
            MMU_MACHPHYS_UPDATE => return self.machphys_update(Slot::at(ptr).page(), val, who.frame),
            _ => return Err(MmuError::UnknownCommand),
        };
        self.update_entry(Slot::at(ptr), Pte(val), who, ad, lock)
    }

    /// Changes the entry at `slot`, whatever its page is used as: an entry of a table is validated, plain memory
    /// just written.
    #[inline]
    pub fn update_entry(
        &self,
        slot: Slot,
        new: Pte,
        who: Owners,
        ad: Accessed,
        lock: &mut Deferred,
    ) -> Result<(), MmuError> {
        let frame = self.ram(slot.page())?;
        // A page that is a table stays one as long as the lock of its owner is held.
        if frame.usage().is_valid_as(FrameType::L1) && frame.owner() == who.table {
            return self.update_l1(slot, new, who, ad, lock.locked());
        }
        self.update_other(slot, new, frame, who, ad, lock)
    }

    fn update_other(
        &self,
        slot: Slot,
        new: Pte,
        frame: &Frame,
        who: Owners,
        ad: Accessed,
        lock: &mut Deferred,
    ) -> Result<(), MmuError> {
        // The rest of a table on its way down may be this one.
        self.drain(lock)?;
        let usage = frame.usage();
        match (usage.state(), usage.ty().level()) {
            (UsageState::Idle, _) | (UsageState::Valid, None) => self.write_plain(slot, new, frame, who.table),
            (UsageState::Valid, Some(level)) if frame.owner() == who.table => match level.below() {
                Some(below) => self.update_upper((level, below), slot, new, who.table, ad, lock),
                None => Err(MmuError::WrongType),
            },
            (UsageState::Valid, Some(_)) => Err(MmuError::NotOwned),
            (UsageState::Busy | UsageState::Partial, _) => Err(MmuError::WrongType),
        }
    }

    fn write_plain(&self, slot: Slot, new: Pte, frame: &Frame, dom: DomId) -> Result<(), MmuError> {
        let mfn = slot.page();
        self.get_frame_writable(mfn, frame, dom)?;
        self.env.write(slot, new);
        self.put_frame_writable(mfn, frame);
        Ok(())
    }

    fn machphys_update(&self, mfn: Mfn, pfn: u64, owner: DomId) -> Result<(), MmuError> {
        let _page = self.get_page(mfn, owner)?;
        self.env.m2p_set(mfn, pfn);
        Ok(())
    }

    /// The slot of the L1 entry that maps `va` under the L4 table `root`, which is loaded or otherwise kept valid.
    /// `_lock` is the MMU lock of the root's owner.
    #[inline]
    pub fn l1_slot(&self, root: Mfn, va: VirtAddr, _lock: Locked<'_>) -> Result<Slot, MmuError> {
        if (HYPERVISOR_VIRT_START..HYPERVISOR_VIRT_END).contains(&va.raw()) {
            return Err(MmuError::ReservedSlot);
        }
        let l4e = self.env.read(Slot::new(root, va.table_index(4)));
        if !l4e.is_present() {
            return Err(MmuError::NotMapped);
        }
        let l3e = self.env.read(Slot::new(l4e.mfn(), va.table_index(3)));
        if !l3e.is_present() {
            return Err(MmuError::NotMapped);
        }
        let l2e = self.env.read(Slot::new(l3e.mfn(), va.table_index(2)));
        // Guests have no superpages: a present L2 entry names an L1 table, and an L3 entry an L2 table.
        if !l2e.is_present() {
            return Err(MmuError::NotMapped);
        }
        Ok(Slot::new(l2e.mfn(), va.table_index(1)))
    }

    /// The present L1 entry that maps `va` under `root`: see [`Self::l1_slot`].
    #[inline]
    pub fn mapping(&self, root: Mfn, va: VirtAddr, lock: Locked<'_>) -> Result<Pte, MmuError> {
        let entry = self.env.read(self.l1_slot(root, va, lock)?);
        if entry.is_present() {
            Ok(entry)
        } else {
            Err(MmuError::NotMapped)
        }
    }

    /// `update_va_mapping`: changes the L1 entry that maps `va` under `root`. `lock` is the MMU lock of `who.table`,
    /// whose root it is.
    #[inline]
    pub fn update_va_mapping(
        &self,
        root: Mfn,
        va: VirtAddr,
        new: Pte,
        who: Owners,
        lock: Locked<'_>,
    ) -> Result<(), MmuError> {
        let slot = self.l1_slot(root, va, lock)?;
        self.update_l1(slot, new, who, Accessed::Overwrite, lock)
    }

    /// Is a write to `va`, which faulted under `root`, a write to an L1 table of `dom` through a read-only mapping?
    /// Then says which slot it falls into.
    #[inline]
    pub fn ptwr_target(&self, root: Mfn, va: VirtAddr, dom: DomId, lock: Locked<'_>) -> Option<Slot> {
        let mapping = self.mapping(root, va, lock).ok()?;
        if mapping.is_writable() {
            return None;
        }
        let page = mapping.mfn();
        let frame = self.frame(page)?;
        if !frame.usage().is_valid_as(FrameType::L1) || frame.owner() != dom {
            return None;
        }
        Some(Slot::at(page.addr().raw() | va.page_offset()))
    }

    /// The entry that a write emulation starts from.
    #[inline]
    pub fn ptwr_read(&self, slot: Slot, _lock: Locked<'_>) -> Pte {
        self.env.read(slot)
    }

    /// Completes an emulated write to an L1 table: changes the entry from `old`, as read before, to `new`, atomically.
    /// `slot` comes from [`Self::ptwr_target`] under the same lock. `Changed`: the CPU set an accessed or dirty bit
    /// meanwhile; read again, compute again. Other errors: the guest gets the fault.
    #[inline]
    pub fn ptwr_commit(&self, slot: Slot, old: Pte, new: Pte, dom: DomId, lock: Locked<'_>) -> Result<(), MmuError> {
        let frame = self.ram(slot.page())?;
        if !frame.usage().is_valid_as(FrameType::L1) || frame.owner() != dom {
            return Err(MmuError::WrongType);
        }
        self.update_l1_if(slot, old, new, Owners::both(dom), lock)
    }

    /// Writes the entry of a grant mapping into an L1 slot of `mapper`: maps `frame` of `granter`, which the caller has
    /// checked to be granted. The entry has references of its own. Returns the entry as written.
    pub fn grant_map(
        &self,
        slot: Slot,
        mapper: DomId,
        granter: DomId,
        frame: Mfn,
        flags: PteFlags,
        lock: Locked<'_>,
    ) -> Result<Pte, MmuError> {
        self.l1_table_of(slot, mapper)?;
        let new = Pte::new(frame, flags | PteFlags::P);
        self.update_l1(slot, new, Owners { table: mapper, frame: granter }, Accessed::Overwrite, lock)?;
        Ok(self.env.read(slot))
    }

    /// Clears the entry of a grant mapping. `Changed` if the slot no longer maps `frame` with that writability: then
    /// nothing is touched.
    #[inline]
    pub fn grant_unmap(
        &self,
        slot: Slot,
        mapper: DomId,
        frame: Mfn,
        writable: bool,
        lock: Locked<'_>,
    ) -> Result<(), MmuError> {
        let old = self.grant_entry(slot, mapper, frame, writable, lock)?;
        self.store(slot, old, Pte::EMPTY, Accessed::Overwrite);
        self.put_l1e(old);
        Ok(())
    }

    /// The same, and what the slot `with` of the mapper's holds takes the entry's place; that slot is empty then. The
    /// references of what moves go with it. `IoDenied`: that is I/O memory which the mapper may not map any more;
    /// nothing is touched.
    #[cold]
    #[inline(never)]
    pub fn grant_replace(
        &self,
        slot: Slot,
        with: Slot,
        mapper: DomId,
        frame: Mfn,
        writable: bool,
        lock: Locked<'_>,
    ) -> Result<(), MmuError> {
        let old = self.grant_entry(slot, mapper, frame, writable, lock)?;
        self.l1_table_of(with, mapper)?;
        if with == slot {
            return Err(MmuError::Changed);
        }
        // The CPU may set an accessed or dirty bit meanwhile; nobody else changes it.
        let mut moved = self.env.read(with);
        if moved.is_present() && self.is_denied_io(moved, mapper) {
            // Where it goes may have been looked through already ([`Self::withdraw`]).
            return Err(MmuError::IoDenied);
        }
        while let Err(now) = self.env.cmpxchg(with, moved, Pte::EMPTY) {
            moved = now;
        }
        self.store(slot, old, moved, Accessed::Overwrite);
        self.put_l1e(old);
        Ok(())
    }

    /// The entry of a grant mapping. `Changed`: the slot no longer maps `frame` with that writability.
    #[inline]
    fn grant_entry(
        &self,
        slot: Slot,
        mapper: DomId,
        frame: Mfn,
        writable: bool,
        _lock: Locked<'_>,
    ) -> Result<Pte, MmuError> {
        self.l1_table_of(slot, mapper)?;
        let entry = self.env.read(slot);
        if !entry.is_present() || entry.mfn() != frame || entry.is_writable() != writable {
            return Err(MmuError::Changed);
        }
        Ok(entry)
    }

    fn l1_table_of(&self, slot: Slot, dom: DomId) -> Result<(), MmuError> {
        let frame = self.ram(slot.page())?;
        if frame.usage().is_valid_as(FrameType::L1) && frame.owner() == dom {
            Ok(())
        } else {
            Err(MmuError::WrongType)
        }
    }

    /// Level of the validated table that `mfn` is, if it is one.
    pub fn table_level(&self, mfn: Mfn) -> Option<Level> {
        let usage = self.frame(mfn)?.usage();
        if usage.state() == UsageState::Valid {
            usage.ty().level()
        } else {
            None
        }
    }
}
