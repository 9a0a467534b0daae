//! The log of a domain's writes to its memory, by pseudo-physical frame: for live migration.
//!
//! Who writes, and where that is noted: the domain itself, at the fault by which its cache of page tables gets a
//! writable entry ([`crate::pv::vtlb`]); the hypervisor in page tables and descriptors on its behalf
//! ([`super::mmu_env`]); users of grants when they begin and end, and at every reading of the log while they last;
//! event and `vcpu_info` pages at every reading, and those of events when a reset gives them back. Pages that are new
//! to the domain count as written.
//!
//! As in Xen, what the control domain's tools write through mappings of their own is not noted.

use crate::domain::memory::owners::owners;
use crate::mem::frames;
use crate::sync::{RwLock, RwLockReadGuard};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use hv_core::dirty_log::Log;
use hv_core::vtlb::WriteLog;
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::layout::{DomId, DOMID_FIRST_RESERVED};

/// Domains that are logged.
static LOGGED: AtomicU32 = AtomicU32::new(0);

/// A domain's log.
pub struct DirtyLog {
    /// Of nothing while it is off. Anybody may be looking at it: who changes what it is does no more than that under
    /// the lock, and whoever has it waits for nobody. A vCPU of the domain never waits for it: what it is changes only
    /// while all of them are held still. [`WriteLog`] asks for that.
    log: RwLock<Log>,
    enabled: AtomicBool,
}

/// Is any domain logged? Asked on every change of a page table.
#[inline(always)]
pub fn any() -> bool {
    LOGGED.load(Ordering::Relaxed) != 0
}

/// Notes that `mfn` was written, if its owner is logged.
#[cold]
pub fn mark(mfn: Mfn) {
    let Some(frame) = frames::frame(mfn) else { return };
    let DomId(owner) = frame.owner();
    if owner >= DOMID_FIRST_RESERVED {
        return;
    }
    owners().mark_written(DomId(owner), mfn);
}

/// The number by which the tools know `mfn`.
fn pfn(mfn: Mfn) -> Option<u64> {
    Some(frames::m2p(mfn)?.load(Ordering::Relaxed))
}

impl DirtyLog {
    /// Off.
    pub const fn new() -> Self {
        Self { log: RwLock::new(Log::none()), enabled: AtomicBool::new(false) }
    }

    /// Is the domain logged?
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Starts with `new`. EBUSY if it is on.
    pub fn enable(&self, new: Log) -> Result<(), Errno> {
        if self.is_enabled() {
            return Err(Errno::EBUSY);
        }
        *self.log.write() = new;
        self.enabled.store(true, Ordering::Release);
        LOGGED.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Stops. Whether it was on.
    pub fn disable(&self) -> bool {
        let was = self.enabled.swap(false, Ordering::AcqRel);
        if was {
            LOGGED.fetch_sub(1, Ordering::AcqRel);
            // It goes: the domain may be larger when it is logged again.
            let old = core::mem::replace(&mut *self.log.write(), Log::none());
            drop(old);
        }
        was
    }

    /// What is noted.
    pub fn get(&self) -> RwLockReadGuard<'_, Log> {
        self.log.read()
    }

    /// Notes a write to `mfn`, which is the domain's.
    pub fn mark(&self, mfn: Mfn) {
        if let Some(pfn) = pfn(mfn).filter(|_| self.is_enabled()) {
            self.get().mark(pfn);
        }
    }

    fn is_marked(&self, mfn: Mfn) -> bool {
        pfn(mfn).is_none_or(|pfn| self.get().is_marked(pfn))
    }
}

/// The log as a vCPU's faults see it.
pub struct Writes<'a> {
    /// Whose frames count.
    pub domain: DomId,
    /// Its log.
    pub log: &'a DirtyLog,
}

impl WriteLog for Writes<'_> {
    fn mark(&self, mfn: Mfn) {
        if self.owns(mfn) {
            self.log.mark(mfn);
        }
    }
    fn is_marked(&self, mfn: Mfn) -> bool {
        !self.owns(mfn) || self.log.is_marked(mfn)
    }
}

impl Writes<'_> {
    fn owns(&self, mfn: Mfn) -> bool {
        frames::frame(mfn).is_some_and(|f| f.owner() == self.domain)
    }
}
