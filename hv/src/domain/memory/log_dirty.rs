//! The log of a domain's writes to its memory, by pseudo-physical frame: for live migration.
//!
//! Who writes, and where that is noted: the domain itself, at the fault by which its cache of page tables gets a writable
//! entry ([`crate::pv::vtlb`]); the hypervisor in page tables and descriptors on its behalf ([`super::mmu_env`]); users of
//! grants when they begin and end, and at every reading of the log while they last; event and `vcpu_info` pages at every
//! reading. Pages that are new to the domain count as written.
//!
//! As in Xen, what the control domain's tools write through mappings of their own is not noted.

use crate::domain::memory::owners::owners;
use crate::mem::frames;
use crate::sync::Once;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use hv_core::vtlb::WriteLog;
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::layout::{DomId, DOMID_FIRST_RESERVED};

/// Domains that are logged.
static LOGGED: AtomicU32 = AtomicU32::new(0);
/// Most frames a log is kept of: 1 TiB.
const MAX_PFNS: u64 = 1 << 28;

/// A domain's log.
pub struct DirtyLog {
    /// One bit for each frame; made when it is first needed, and kept, because anybody may be looking at it.
    words: Once<Box<[AtomicU64]>>,
    enabled: AtomicBool,
    /// Where a preempted reading goes on, in words.
    next: AtomicU64,
    /// Faults and newly written frames since the last reading.
    faults: AtomicU32,
    dirty: AtomicU32,
}

/// What a reading found.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Faults that the logging has cost.
    pub faults: u32,
    /// Frames written.
    pub dirty: u32,
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

impl DirtyLog {
    /// Off.
    pub const fn new() -> Self {
        Self {
            words: Once::new(),
            enabled: AtomicBool::new(false),
            next: AtomicU64::new(0),
            faults: AtomicU32::new(0),
            dirty: AtomicU32::new(0),
        }
    }

    /// Is the domain logged?
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Acquire)
    }

    /// Starts with nothing written, for frames below `pfns`. EBUSY if it is on; ENOMEM.
    pub fn enable(&self, pfns: u64) -> Result<(), Errno> {
        if self.is_enabled() {
            return Err(Errno::EBUSY);
        }
        if pfns > MAX_PFNS {
            return Err(Errno::ENOMEM);
        }
        if self.words.get().is_none() {
            let mut words = Vec::new();
            let room = usize::try_from(pfns.div_ceil(64)).map_err(|_| Errno::ENOMEM)?;
            words.try_reserve_exact(room).map_err(|_| Errno::ENOMEM)?;
            // The size is the guest's to say; it may not have what others' objects need.
            if !frames::may_grow_tables() {
                return Err(Errno::ENOMEM);
            }
            words.resize_with(room, || AtomicU64::new(0));
            self.words.call_once(|| words.into_boxed_slice());
        }
        self.words().iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.next.store(0, Ordering::Relaxed);
        self.take_counts();
        self.enabled.store(true, Ordering::Release);
        LOGGED.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Stops. Whether it was on.
    pub fn disable(&self) -> bool {
        let was = self.enabled.swap(false, Ordering::AcqRel);
        if was {
            LOGGED.fetch_sub(1, Ordering::AcqRel);
        }
        was
    }

    fn words(&self) -> &[AtomicU64] {
        self.words.get().map_or(&[], |words| words)
    }

    fn bit(&self, mfn: Mfn) -> Option<(&AtomicU64, u64)> {
        let pfn = frames::m2p(mfn)?.load(Ordering::Relaxed);
        // Frames that have no number in the domain, or a strange one, are not the tools' to send.
        let word = usize::try_from(pfn / 64).ok()?;
        Some((self.words().get(word)?, 1 << (pfn % 64)))
    }

    /// Notes a write to `mfn`, which is the domain's.
    pub fn mark(&self, mfn: Mfn) {
        if !self.is_enabled() {
            return;
        }
        if let Some((word, bit)) = self.bit(mfn) {
            if word.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
                self.dirty.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn is_marked(&self, mfn: Mfn) -> bool {
        self.bit(mfn).is_none_or(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Counts a fault that only logging caused.
    pub fn count_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// What happened since the last reading that cleared the log.
    pub fn counts(&self) -> Counts {
        Counts { faults: self.faults.load(Ordering::Relaxed), dirty: self.dirty.load(Ordering::Relaxed) }
    }

    /// The same, and starts counting anew.
    pub fn take_counts(&self) -> Counts {
        Counts { faults: self.faults.swap(0, Ordering::Relaxed), dirty: self.dirty.swap(0, Ordering::Relaxed) }
    }

    /// The word that a preempted reading goes on with; the next reading begins at 0.
    pub fn resume_at(&self) -> u64 {
        self.next.swap(0, Ordering::Relaxed)
    }

    /// A reading was preempted before `word`.
    pub fn preempted_at(&self, word: u64) {
        self.next.store(word, Ordering::Relaxed);
    }

    /// Reads word `index`, clears it if `clear`.
    pub fn read(&self, index: u64, clear: bool) -> u64 {
        let word = usize::try_from(index).ok().and_then(|i| self.words().get(i));
        match word {
            Some(word) if clear => word.swap(0, Ordering::AcqRel),
            Some(word) => word.load(Ordering::Acquire),
            None => 0,
        }
    }

    /// Puts back what [`Self::read`] cleared and nobody got.
    pub fn put_back(&self, index: u64, bits: u64) {
        if let Some(word) = usize::try_from(index).ok().and_then(|i| self.words().get(i)) {
            word.fetch_or(bits, Ordering::AcqRel);
        }
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
