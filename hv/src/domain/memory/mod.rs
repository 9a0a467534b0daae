//! A domain's memory: its MMU lock and accounting. Beside it: claims, frames on their way back, the shell around
//! `hv_core::mmu`, the log of writes.

pub mod claims;
pub mod limbo;
pub mod log_dirty;
pub mod mmu_env;
pub mod owners;

use mmu_env::mmu;

use crate::mem::phys_to_virt;
use crate::sync::{Mutex, MutexGuard};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::admission::{Admission, Inside};
use hv_core::claims::Claim;
use hv_core::dirty_log::Place;
use hv_core::mmu::{Deferred, Relinquish};
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;
use xen_abi::memory::E820Entry;

/// Page tables and accounting of a domain.
pub struct DomainMm {
    /// Its name in the frame table.
    pub id: DomId,
    /// The MMU lock: page-table contents and what preempted operations left half done.
    lock: Mutex<Deferred>,
    logging: Mutex<Place>,
    relinquish: Mutex<Relinquish>,
    /// Where pages come in, until its memory is taken back.
    arrivals: Admission,
    /// Pages it has.
    tot_pages: AtomicU64,
    /// Pages it may have.
    max_pages: AtomicU64,
    /// Free frames that are set aside for it.
    claim: Claim,
    /// What `XENMEM_memory_map` answers, if the tools set it.
    pub memory_map: Mutex<Vec<E820Entry>>,
    /// Which of its pages are written, while somebody wants to know.
    pub log: crate::domain::memory::log_dirty::DirtyLog,
}

impl DomainMm {
    /// No memory yet, and none allowed.
    pub fn new(domid: u16) -> Self {
        Self {
            id: DomId(domid),
            lock: Mutex::new(Deferred::new()),
            logging: Mutex::new(Place::new()),
            relinquish: Mutex::new(Relinquish::new()),
            arrivals: Admission::new(),
            tot_pages: AtomicU64::new(0),
            max_pages: AtomicU64::new(0),
            claim: Claim::none(),
            memory_map: Mutex::new(Vec::new()),
            log: crate::domain::memory::log_dirty::DirtyLog::new(),
        }
    }

    /// The MMU lock.
    #[inline(always)]
    pub fn lock(&self) -> MutexGuard<'_, Deferred> {
        self.lock.lock()
    }

    /// Serialises switching the log of writes on and off, and reading it; and keeps it off while the domain gets what
    /// cannot be logged. Where that goes on which was preempted.
    pub fn lock_log(&self) -> MutexGuard<'_, Place> {
        self.logging.lock()
    }

    /// The same, if nobody has it.
    pub fn try_lock_log(&self) -> Option<MutexGuard<'_, Place>> {
        self.logging.try_lock()
    }

    /// Pages it has.
    pub fn tot_pages(&self) -> u64 {
        self.tot_pages.load(Ordering::Relaxed)
    }
    /// Pages it may have.
    pub fn max_pages(&self) -> u64 {
        self.max_pages.load(Ordering::Relaxed)
    }
    /// Changes how many pages it may have. It keeps those it has.
    pub fn set_max_pages(&self, pages: u64) {
        self.max_pages.store(pages, Ordering::Relaxed);
    }

    /// Frames set aside for it; only `claims` changes this.
    pub const fn claim(&self) -> &Claim {
        &self.claim
    }

    /// Pages may be given to the domain as long as the result lives, from the charge to the last one that is its own.
    /// `None`: it is dying, and those would stay for good.
    pub fn admit(&self) -> Option<Inside<'_>> {
        self.arrivals.enter()
    }

    /// Enters `pages` more into its account, if it may have them. Whether others have claimed what there is, who
    /// allocates them finds out.
    #[must_use]
    pub fn charge(&self, pages: u64) -> bool {
        let limit = self.max_pages();
        let more = |now: u64| now.checked_add(pages).filter(|&sum| sum <= limit);
        self.tot_pages.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }
    /// Enters a page again that it had, whatever it may have now.
    pub fn recharge(&self) {
        self.tot_pages.fetch_add(1, Ordering::AcqRel);
    }
    /// Takes `pages` out of its account.
    pub fn uncharge(&self, pages: u64) {
        let before = self.tot_pages.fetch_sub(pages, Ordering::AcqRel);
        debug_assert!(before >= pages, "{:?} gave back more pages than it had", self.id);
    }

    /// Takes a writable reference to a frame of the domain; its direct-map address.
    pub fn take_writable(&self, mfn: Mfn) -> Option<*mut u8> {
        Some(phys_to_virt(mmu().get_writable(mfn, self.id).ok()?.keep().addr()))
    }
    /// Gives such a reference back.
    pub fn drop_writable(&self, mfn: Mfn) {
        drop(mmu().writable_from_kept(mfn));
    }

    /// Gives `pages` frames from `first`, which the allocator gave, to the domain. `false`: it may not have them.
    #[must_use]
    pub fn assign(&self, first: Mfn, pages: u64) -> bool {
        let Some(_admitted) = self.admit().filter(|_| self.charge(pages)) else { return false };
        for n in 0..pages {
            if let Some(frame) = crate::mem::frames::frame(first.add(n)) {
                frame.assign(self.id);
            }
        }
        true
    }

    /// Takes back all memory of the domain, which is dying: its vCPUs run no more, and what they and the domain's other
    /// parts referred to was dropped. ERESTART: to be called again. Frames that others still map stay until those let
    /// go: see [`Self::tot_pages`].
    pub fn relinquish(&self) -> Result<(), Errno> {
        if !self.arrivals.close() {
            return Err(Errno::ERESTART);
        }
        mmu().relinquish(self.id, &mut self.relinquish.lock(), &mut self.lock())?;
        limbo::drain();
        Ok(())
    }
}
