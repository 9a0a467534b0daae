//! The end of a domain: its pages go back, without lists of them, by one pass over the frame table.

use super::work::Work;
use super::{Deferred, Mmu, MmuEnv, MmuError};
use crate::frame::{Frame, FrameType, Gone};
use x86::Mfn;
use xen_abi::layout::DomId;

/// How far the pass has come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Relinquish {
    next: usize,
}

impl Relinquish {
    /// At the beginning.
    pub const fn new() -> Self {
        Self { next: 0 }
    }
}

impl<E: MmuEnv> Mmu<'_, E> {
    /// Takes back all memory of a dying domain: unpins its tables and drops its allocations. Its vCPUs run no more, and
    /// the shell has dropped their roots, descriptor tables and other references before; it ends the loans of heap
    /// pages itself ([`Self::end_loan`]). Frames that other domains still map become free when those let go.
    ///
    /// `Preempted`: call it again with the same `progress`.
    pub fn relinquish(&self, dom: DomId, progress: &mut Relinquish, lock: &mut Deferred) -> Result<(), MmuError> {
        self.abandon(lock)?;
        let mut work = Work::new();
        while progress.next < self.env.frames_end().index() {
            let mfn = Mfn::new(progress.next as u64);
            progress.next += 1;
            let was_its = self.relinquish_frame(dom, mfn, lock);
            // The environment has counted the frames that went: this one perhaps, or many that tables had mapped. A
            // table that is not yet taken down has its turn first the next time.
            if was_its && self.env.is_out_of_steps() {
                return Err(MmuError::Preempted);
            }
            self.drain(lock)?;
            work.add(1, self.env)?;
        }
        Ok(())
    }

    /// `false`: it was none of the domain's.
    #[inline]
    fn relinquish_frame(&self, dom: DomId, mfn: Mfn, lock: &mut Deferred) -> bool {
        let Some(frame) = self.env.frame(mfn) else { return false };
        let count = frame.count();
        if count.owner() != dom || count.refs() == 0 || count.is_heap() {
            return false;
        }
        // A table that is still pinned has a reference of its pin; so the frame stays until that is dropped.
        let pinned = self.clear_pin(mfn);
        if let Ok(Some(last)) = frame.drop_allocation(dom, false) {
            self.freed(mfn, frame, last);
        }
        if pinned {
            self.drop_table(mfn, lock);
        }
        true
    }

    /// The owner gives the page up (`decrease_reservation`): it is free as soon as nothing maps it.
    pub fn give_up(&self, dom: DomId, mfn: Mfn) -> Result<(), MmuError> {
        let frame = self.ram(mfn)?;
        if let Some(last) = frame.drop_allocation(dom, false).map_err(|_| MmuError::NotOwned)? {
            self.freed(mfn, frame, last);
        }
        Ok(())
    }

    /// Ends the loan of a hypervisor page to `dom`. The environment hears when nothing refers to it any more; even then
    /// it is the hypervisor's to use until [`Self::take_back`].
    pub fn end_loan(&self, dom: DomId, mfn: Mfn) -> Result<(), MmuError> {
        let frame = self.ram(mfn)?;
        let count = frame.count();
        if count.owner() != dom || !count.is_heap() || !count.is_allocated() {
            return Err(MmuError::NotOwned);
        }
        self.put_simple_type(frame, frame.usage().ty());
        if let Some(last) = frame.drop_allocation(dom, true).map_err(|_| MmuError::NotOwned)? {
            self.freed(mfn, frame, last);
        }
        Ok(())
    }

    /// Frees a page that was lent. The caller, who got it from the allocator, gives it back there. `NotOwned` while the
    /// loan lasts or somebody refers to the page.
    pub fn take_back(&self, mfn: Mfn) -> Result<(), MmuError> {
        if self.ram(mfn)?.take_back() {
            Ok(())
        } else {
            Err(MmuError::NotOwned)
        }
    }

    /// Takes a page away from `dom` if nothing refers to it: no mapping, no type, no pin (`exchange`, transfer). It is
    /// the caller's then, until [`Self::let_go`] or [`Self::unsteal`]. Its account is the caller's business.
    pub fn steal(&self, dom: DomId, mfn: Mfn) -> Result<(), MmuError> {
        let frame = self.ram(mfn)?;
        frame.steal(dom).map_err(|why| match why {
            crate::frame::StealError::NotOwned => MmuError::NotOwned,
            crate::frame::StealError::InUse => MmuError::WrongType,
        })?;
        if frame.usage().ty() == FrameType::Writable {
            self.env.dma_release(dom, mfn);
        }
        frame.stamp_free(self.env.tlb_clock());
        Ok(())
    }

    /// A page that was stolen is nobody's for good. `Free`: the caller gives it a new use, or gives it back to the
    /// allocator. `Away`: it is kept for a snapshot of its last owner's.
    pub fn let_go(&self, mfn: Mfn) -> Gone {
        self.frame(mfn).map_or(Gone::Away, Frame::let_go)
    }

    /// Undoes [`Self::steal`]: TLBs may still know the page, and its time stamp says so.
    pub fn unsteal(&self, dom: DomId, mfn: Mfn) {
        if let Some(frame) = self.frame(mfn) {
            // As long as the page is nobody's its type does not change. From the next line on another vCPU may make a
            // page table of it, and what devices may do with it is that one's to say.
            if frame.usage().ty() == FrameType::Writable {
                self.env.dma_allow(dom, mfn);
            }
            frame.unsteal(dom);
        }
    }
}
