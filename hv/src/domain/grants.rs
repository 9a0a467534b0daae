//! A domain's grants as data, and the pages in which it writes them.

use crate::cpu::percpu::this_cpu;
use crate::domain::lent::LentPage;
use crate::domain::Domain;
use crate::mem::frames;
use crate::sync::{Mutex, MutexGuard};
use core::sync::atomic::{AtomicU32, Ordering};
use hv_core::allowance::PAGE;
use hv_core::grant::{GrantTable, Maptrack, SharedFrame};
use x86::Mfn;
use xen_abi::grant::GntStatus;

/// Tells the domains apart that have had the same number.
static NEXT_INCARNATION: AtomicU32 = AtomicU32::new(0);

/// A domain's grants and what it has mapped of others.
pub struct DomainGrants {
    table: Mutex<GrantTable<LentPage>>,
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
    pub fn table(&self) -> MutexGuard<'_, GrantTable<LentPage>> {
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

    /// The table is no longer lent to its domain, which is dead: its frames stay as long as others map them, and the
    /// table itself as long as the domain.
    pub fn end_loans(&self) {
        self.table().frames().iter().for_each(LentPage::end_loan);
    }

    /// Makes the table of `d`, whose grants these are, at least `nr_frames` long. That of a dying domain stays as it
    /// is.
    pub fn grow(&self, d: &Domain, nr_frames: u32) -> Result<(), GntStatus> {
        let mut table = self.table();
        if table.frames().len() < nr_frames as usize && d.is_dying() {
            return Err(GntStatus::NoSpace);
        }
        table.grow(nr_frames, frames::grow_tables, || {
            this_cpu().allowance.spend(PAGE);
            LentPage::new(d)
        })
    }

    /// Frame `index` of the table of `d`, which grows for it. `None`: beyond its limit, or out of memory.
    pub fn frame(&self, d: &Domain, index: u32) -> Option<Mfn> {
        self.grow(d, index.checked_add(1)?).ok()?;
        self.table().frames().get(index as usize).map(LentPage::mfn)
    }
}

impl SharedFrame for LentPage {
    fn mfn(&self) -> u64 {
        Self::mfn(self).raw()
    }
}
