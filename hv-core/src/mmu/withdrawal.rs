//! I/O memory that a domain may not map any more leaves its page tables.
//!
//! An L1 entry of a frame of I/O memory holds no reference, and nobody has a list of them. So all L1 tables of the
//! domain are looked through, as they are found in the frame table. What is written meanwhile is asked for as ever: no
//! new entry of such a frame comes behind the pass, and none moves there ([`Mmu::grant_replace`]).

use super::env::IO_ENTRIES_IN_STEP;
use super::work::Work;
use super::{Deferred, IoAccess, Mmu, MmuEnv, MmuError, Owners, Slot};
use crate::allowance::{PAGE, STEP};
use crate::frame::FrameType;
use x86::{Mfn, Pte};
use xen_abi::layout::DomId;

/// What an entry of I/O memory is worth.
pub(super) const IO_ENTRY: u32 = STEP / IO_ENTRIES_IN_STEP;

/// How far the pass has come.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Withdrawal {
    next: usize,
}

impl Withdrawal {
    /// At the beginning.
    pub const fn new() -> Self {
        Self { next: 0 }
    }
}

impl<E: MmuEnv> Mmu<'_, E> {
    /// Has all entries of `dom` for I/O memory that it may not map refer to `instead`, a page that it owns, or to
    /// nothing. Since `progress` began nothing was withdrawn. TLBs are the caller's to flush, when this has come to its
    /// end. `Preempted`: to be called again.
    pub fn withdraw(
        &self,
        dom: DomId,
        instead: Option<Mfn>,
        progress: &mut Withdrawal,
        lock: &Deferred,
    ) -> Result<(), MmuError> {
        let _held = lock.locked();
        let mut work = Work::new();
        while progress.next < self.env.frames_end().index() {
            let mfn = Mfn::new(progress.next as u64);
            progress.next += 1;
            work.add(self.withdraw_from(dom, mfn, instead), self.env)?;
        }
        Ok(())
    }

    /// Returns the work that it was. If it is an L1 table of `dom`: while the lock of its owner is held none becomes
    /// one, and each is whole.
    #[inline]
    fn withdraw_from(&self, dom: DomId, mfn: Mfn, instead: Option<Mfn>) -> u32 {
        let Some(frame) = self.env.frame(mfn) else { return 1 };
        if frame.owner() != dom || !frame.usage().is_valid_as(FrameType::L1) {
            return 1;
        }
        let mut work = PAGE;
        let mut next = 0;
        while let Some((index, entry)) = self.next_present(mfn, next) {
            next = index + 1;
            if self.frame(entry.mfn()).is_none() {
                work += IO_ENTRY;
            }
            if self.is_denied_io(entry, dom) {
                // It holds no references. What takes its place does.
                let new = instead.and_then(|page| self.get_l1e(Pte::new(page, entry.flags()), Owners::both(dom)).ok());
                self.env.write(Slot::new(mfn, index), new.unwrap_or(Pte::EMPTY));
            }
        }
        work
    }

    /// Does the present `entry` map I/O memory that `dom` may not map?
    #[inline]
    pub(super) fn is_denied_io(&self, entry: Pte, dom: DomId) -> bool {
        self.frame(entry.mfn()).is_none() && self.env.io_access(dom, entry.mfn()) == IoAccess::Denied
    }
}
