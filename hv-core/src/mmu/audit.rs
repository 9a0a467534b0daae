//! A recount of all references, to show that none was lost and none is missing.
//!
//! Whoever holds references names them; those of page-table entries, pins and allocations are found by a pass over the
//! frame table. Then every frame's counts must be what was found. Nothing may change meanwhile: the shell stops all
//! vCPUs. The worst that a mistake in here can do is a false alarm.

use super::tables::{is_hypervisor_slot, ENTRIES};
use super::{Deferred, Mmu, MmuEnv, Slot};
use crate::frame::{Frame, FrameType, UsageState};
use alloc::collections::{BinaryHeap, TryReserveError};
use alloc::vec::Vec;
use x86::Mfn;
use xen_abi::layout::DomId;

/// What was found to refer to a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// General references.
    refs: u32,
    /// References of a type.
    type_refs: u32,
    /// Bit t: by one of type t.
    types: u8,
    /// It is free: the allocator has it, or will get it after a flush.
    free: u8,
}

/// What was found of each frame. In parts, because there may be no memory in one piece when domains have nearly all.
#[derive(Debug)]
pub struct Table(Vec<Vec<Found>>);

impl Table {
    /// Frames of a part, which is a page: in bigger pieces the last of the memory need not come.
    const PART: usize = 4096 / size_of::<Found>();

    /// Nothing found yet of `frames` frames. Errors: no memory.
    pub fn new(frames: usize) -> Result<Self, TryReserveError> {
        let mut parts = Vec::new();
        parts.try_reserve_exact(frames.div_ceil(Self::PART))?;
        for first in (0..frames).step_by(Self::PART) {
            let len = Self::PART.min(frames - first);
            let mut part = Vec::new();
            part.try_reserve_exact(len)?;
            part.resize(len, Found::default());
            parts.push(part);
        }
        Ok(Self(parts))
    }

    fn get_mut(&mut self, mfn: Mfn) -> Option<&mut Found> {
        self.0.get_mut(mfn.index() / Self::PART)?.get_mut(mfn.index() % Self::PART)
    }

    fn iter(&self) -> impl Iterator<Item = (Mfn, &Found)> {
        (0..).map(Mfn::new).zip(self.0.iter().flatten())
    }
}

/// How many frames each domain has. Counting takes no memory, which would be missing from what was counted before.
#[derive(Debug)]
pub struct Tally {
    /// By number.
    known: Vec<(u16, u64)>,
    others: u64,
}

impl Tally {
    /// None yet, of these domains' or of others'. Errors: no memory.
    pub fn new(domains: impl ExactSizeIterator<Item = DomId>) -> Result<Self, TryReserveError> {
        let mut known = Vec::new();
        known.try_reserve_exact(domains.len())?;
        known.extend(domains.map(|id| (id.0, 0)));
        Ok(Self { known: BinaryHeap::from(known).into_sorted_vec(), others: 0 })
    }

    /// One more frame of a domain's.
    pub fn add(&mut self, owner: DomId) {
        match self.place(owner) {
            Some(place) => self.known[place].1 += 1,
            None => self.others += 1,
        }
    }

    /// Frames of one of the domains that were named, so far.
    pub fn count(&self, owner: DomId) -> u64 {
        self.place(owner).map_or(0, |place| self.known[place].1)
    }

    /// Frames of all domains so far.
    pub fn total(&self) -> u64 {
        self.known.iter().map(|(_, count)| count).sum::<u64>() + self.others
    }

    fn place(&self, owner: DomId) -> Option<usize> {
        self.known.binary_search_by_key(&owner.0, |(id, _)| *id).ok()
    }
}

/// A recount under way.
pub struct Audit<'a, 'f, E> {
    mmu: Mmu<'a, E>,
    found: &'f mut Table,
}

impl<'a, 'f, E: MmuEnv> Audit<'a, 'f, E> {
    /// Nothing found yet. `found` is new and has room for each frame below [`MmuEnv::frames_end`].
    pub fn new(mmu: Mmu<'a, E>, found: &'f mut Table) -> Self {
        Self { mmu, found }
    }

    /// Somebody holds a reference to a page.
    pub fn page(&mut self, mfn: Mfn) {
        self.note(mfn, None);
    }

    /// Somebody holds a reference for writing to a page.
    pub fn writable(&mut self, mfn: Mfn) {
        self.note(mfn, Some(FrameType::Writable));
    }

    /// A vCPU has loaded a root, or will.
    pub fn root(&mut self, mfn: Mfn) {
        self.note(mfn, Some(FrameType::L4));
    }

    /// A mirror of the domain's kernel half refers to an L3 table.
    pub fn table(&mut self, mfn: Mfn) {
        self.note(mfn, Some(FrameType::L3));
    }

    /// A vCPU has a page of descriptors.
    pub fn segdesc(&mut self, mfn: Mfn) {
        self.note(mfn, Some(FrameType::SegDesc));
    }

    /// What preempted operations of a domain have left half done.
    pub fn deferred(&mut self, deferred: &Deferred) {
        for mfn in deferred.tables() {
            let ty = self.mmu.frame(mfn).map(|frame| frame.usage().ty());
            self.note(mfn, ty);
        }
    }

    /// A frame is free.
    pub fn free(&mut self, mfn: Mfn) {
        if let Some(found) = self.found.get_mut(mfn) {
            found.free = found.free.saturating_add(1);
        }
    }

    /// Finds what entries, pins and allocations refer to, and shows every frame that is RAM: what is known of it, what
    /// was found, and whether the two agree.
    pub fn finish(mut self, mut show: impl FnMut(Mfn, &'a Frame, Found, bool)) {
        let frames = self.found.0.iter().map(Vec::len).sum::<usize>();
        for mfn in (0..frames as u64).map(Mfn::new) {
            if let Some(frame) = self.mmu.frame(mfn) {
                self.note_own(mfn, frame);
            }
        }
        for (mfn, found) in self.found.iter() {
            if let Some(frame) = self.mmu.frame(mfn) {
                show(mfn, frame, *found, found.agrees(frame));
            }
        }
    }

    /// What the frame itself stands for: its allocation, its pin, its entries.
    fn note_own(&mut self, mfn: Mfn, frame: &Frame) {
        let (count, usage) = (frame.count(), frame.usage());
        if count.is_allocated() {
            // A loan keeps its type.
            self.note(mfn, count.is_heap().then_some(usage.ty()));
        }
        if usage.is_pinned() {
            self.note(mfn, Some(usage.ty()));
        }
        let Some(level) = usage.ty().level() else { return };
        let upto = match usage.state() {
            UsageState::Valid => ENTRIES,
            UsageState::Partial => usage.resume().min(ENTRIES),
            UsageState::Idle | UsageState::Busy => 0,
        };
        for index in (0..upto).filter(|&index| !is_hypervisor_slot(level, index)) {
            let entry = self.mmu.env.read(Slot::new(mfn, index));
            if entry.is_present() {
                let ty = match level.below() {
                    Some(below) => Some(below.into()),
                    None => entry.is_writable().then_some(FrameType::Writable),
                };
                self.note(entry.mfn(), ty);
            }
        }
    }

    /// A reference to a frame, unless that is I/O memory.
    fn note(&mut self, mfn: Mfn, ty: Option<FrameType>) {
        if self.mmu.frame(mfn).is_none() {
            return;
        }
        let Some(found) = self.found.get_mut(mfn) else { return };
        found.refs = found.refs.saturating_add(1);
        if let Some(ty) = ty {
            found.type_refs = found.type_refs.saturating_add(1);
            found.types |= 1 << ty as u8;
        }
    }
}

impl Found {
    /// Is it free?
    pub const fn is_free(&self) -> bool {
        self.free != 0
    }

    fn agrees(&self, frame: &Frame) -> bool {
        let (count, usage) = (frame.count(), frame.usage());
        let types = match usage.state() {
            UsageState::Idle => 0,
            UsageState::Valid | UsageState::Partial => 1 << usage.ty() as u8,
            // Nobody is at work.
            UsageState::Busy => return false,
        };
        let is_nobodys = count.owner() == DomId::INVALID;
        self.refs == count.refs()
            && self.type_refs == usage.count()
            && self.types == types
            && self.free <= u8::from(is_nobodys)
            // The hypervisor's own have references only if anybody may map them, and those that it lent while somebody
            // does.
            && ((self.refs == 0) == is_nobodys || count.owner() == DomId::XEN || count.is_heap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mmu::fake::{Machine, DOM0};
    use std::vec;
    use std::vec::Vec;
    use x86::{Level, Pte};

    fn wrong(machine: &Machine, tell: impl FnOnce(&mut Audit<'_, '_, Machine>)) -> Vec<u64> {
        let mut found = Table::new(machine.frames.len()).expect("memory");
        let mut audit = Audit::new(machine.mmu(), &mut found);
        tell(&mut audit);
        let mut wrong = vec![];
        audit.finish(|mfn, _, _, agrees| {
            if !agrees {
                wrong.push(mfn.raw());
            }
        });
        wrong
    }

    #[test]
    fn what_is_held_must_be_told_and_nothing_else() {
        let machine = Machine::new(16);
        machine.populate(DOM0, 4, 6);
        assert_eq!(wrong(&machine, |_| {}), []);
        let page = machine.mmu().get_page(Mfn::new(5), DOM0).unwrap();
        let writable = machine.mmu().get_writable(Mfn::new(6), DOM0).unwrap();
        assert_eq!(wrong(&machine, |_| {}), [5, 6], "references without a holder");
        assert_eq!(wrong(&machine, |a| (a.page(Mfn::new(5)), a.writable(Mfn::new(6))).0), []);
        assert_eq!(wrong(&machine, |a| (a.page(Mfn::new(5)), a.segdesc(Mfn::new(6))).0), [6], "of another type");
        drop((page, writable));
        assert_eq!(wrong(&machine, |a| a.page(Mfn::new(7))), [7], "a holder without a reference");
        assert_eq!(wrong(&machine, |a| a.free(Mfn::new(4))), [4], "a free page that is owned");
        assert_eq!(wrong(&machine, |a| a.free(Mfn::new(3))), []);
        assert_eq!(wrong(&machine, |a| (a.free(Mfn::new(3)), a.free(Mfn::new(3))).0), [3], "free twice");
    }

    #[test]
    fn frames_are_counted_by_owner() {
        let mut tally = Tally::new([7, 0, 3].map(DomId).into_iter()).expect("memory");
        [3, 0, 3, 5, 3, DomId::IO.0].map(DomId).into_iter().for_each(|id| tally.add(id));
        assert_eq!([0, 3, 7, 5].map(|id| tally.count(DomId(id))), [1, 3, 0, 0], "one that was not named has no count");
        assert_eq!(tally.total(), 6);
    }

    #[test]
    fn tables_and_pins_are_found() {
        let machine = Machine::new(16);
        machine.populate(DOM0, 4, 6);
        machine.poke(Slot::new(Mfn::new(4), 3), Pte(5 << 12 | 7));
        machine.poke(Slot::new(Mfn::new(4), 4), Pte(1 << 12 | 5));
        let mut lock = Deferred::new();
        machine.mmu().pin(DOM0, Mfn::new(4), Level::L1, &mut lock).unwrap();
        assert_eq!(wrong(&machine, |a| a.deferred(&lock)), []);
        // An entry that lost its page behind the hypervisor's back.
        machine.poke(Slot::new(Mfn::new(4), 3), Pte(6 << 12 | 7));
        assert_eq!(wrong(&machine, |_| {}), [5, 6]);
    }
}
