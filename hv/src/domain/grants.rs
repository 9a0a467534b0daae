//! A domain's grants as data, and the pages in which it writes them.

use crate::domain::memory::limbo;
use crate::domain::memory::mmu_env::mmu;
use crate::domain::Domain;
use crate::mem::{frames, phys_to_virt};
use crate::sync::{Mutex, MutexGuard};
use core::sync::atomic::{AtomicU32, Ordering};
use hv_core::evtchn::PageWords;
use hv_core::frame::Gone;
use hv_core::grant::{GrantTable, Maptrack, SharedFrame};
use x86::Mfn;
use xen_abi::grant::GntStatus;
use xen_abi::layout::DomId;

/// Tells the domains apart that have had the same number.
static NEXT_INCARNATION: AtomicU32 = AtomicU32::new(0);

/// A domain's grants and what it has mapped of others.
pub struct DomainGrants {
    table: Mutex<GrantTable<SharedPage>>,
    track: Mutex<Maptrack>,
}

impl DomainGrants {
    /// Empty, with the toolstack's limits.
    pub fn new(domid: u16, max_frames: u32, max_maptrack_frames: u32) -> Self {
        Self {
            table: Mutex::new(GrantTable::new(domid, NEXT_INCARNATION.fetch_add(1, Ordering::Relaxed), max_frames)),
            track: Mutex::new(Maptrack::new(max_maptrack_frames)),
        }
    }

    /// Its table, locked.
    #[inline]
    pub fn table(&self) -> MutexGuard<'_, GrantTable<SharedPage>> {
        self.table.lock()
    }

    /// Its handles, locked.
    #[inline]
    pub fn track(&self) -> MutexGuard<'_, Maptrack> {
        self.track.lock()
    }

    /// Changes the limits.
    pub fn set_limits(&self, max_frames: u32, max_maptrack_frames: u32) {
        self.table().set_max_frames(max_frames);
        self.track().set_max_frames(max_maptrack_frames);
    }

    /// The table of `d` is no longer lent to it, which is dead: its frames stay as long as others map them, and the table
    /// itself as long as the domain.
    pub fn end_loans(&self, d: &Domain) {
        self.table().frames().iter().for_each(|page| end_loan(d.id, page.mfn));
    }

    /// Makes the table of `d`, whose grants these are, at least `nr_frames` long. That of a dying domain stays as it is.
    pub fn grow(&self, d: &Domain, nr_frames: u32) -> Result<(), GntStatus> {
        let mut table = self.table();
        if table.frames().len() < nr_frames as usize && (d.is_dying() || !frames::may_grow_tables()) {
            return Err(GntStatus::NoSpace);
        }
        table.grow(nr_frames, || SharedPage::new(d))
    }

    /// Frame `index` of the table of `d`, which grows for it. `None`: beyond its limit, or out of memory.
    pub fn frame(&self, d: &Domain, index: u32) -> Option<Mfn> {
        self.grow(d, index.checked_add(1)?).ok()?;
        self.table().frames().get(index as usize).map(|page| page.mfn)
    }
}

/// A page of shared entries: the hypervisor's, lent to the granter.
pub struct SharedPage {
    domid: u16,
    mfn: Mfn,
}

impl SharedPage {
    fn new(d: &Domain) -> Option<Self> {
        let mfn = frames::alloc_zeroed()?;
        d.lend(mfn);
        Some(Self { domid: d.id, mfn })
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        take_back(self.domid, self.mfn);
    }
}

/// Ends the loan of a page to domain `domid`, unless it has ended.
pub fn end_loan(domid: u16, mfn: Mfn) {
    let _ = mmu().end_loan(DomId(domid), mfn);
}

/// Frees a page that was lent to domain `domid`, which is being freed itself: nobody refers to the page, or that would have
/// kept the domain.
pub fn take_back(domid: u16, mfn: Mfn) {
    end_loan(domid, mfn);
    let is_free = mmu().take_back(mfn).is_ok();
    debug_assert!(is_free, "a page that was lent to d{domid} outlives it");
    if is_free {
        limbo::take(mfn, Gone::Free);
    }
}

impl AsRef<PageWords> for SharedPage {
    #[inline]
    fn as_ref(&self) -> &PageWords {
        // SAFETY: a whole page in the direct map, ours until the drop; the guest's writes are met by atomics.
        unsafe { &*phys_to_virt(self.mfn.addr()).cast::<PageWords>() }
    }
}

impl SharedFrame for SharedPage {
    fn mfn(&self) -> u64 {
        self.mfn.raw()
    }
}
