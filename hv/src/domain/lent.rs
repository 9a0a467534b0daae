//! Pages of the hypervisor's that a domain may read and write.

use crate::domain::memory::limbo;
use crate::domain::memory::mmu_env::mmu;
use crate::domain::Domain;
use crate::mem::{frames, phys_to_virt};
use hv_core::evtchn::PageWords;
use hv_core::frame::Gone;
use x86::Mfn;
use xen_abi::layout::DomId;

/// A page that is lent to a domain, and freed with it.
pub struct LentPage {
    domid: u16,
    mfn: Mfn,
}

impl LentPage {
    /// A page of zeroes. `None` when out of memory.
    pub fn new(d: &Domain) -> Option<Self> {
        let mfn = frames::alloc_zeroed()?;
        d.lend(mfn);
        Some(Self { domid: d.id, mfn })
    }

    /// Where it is.
    #[inline]
    pub fn mfn(&self) -> Mfn {
        self.mfn
    }

    /// Ends the loan, unless it has ended. Whoever maps the page has it still.
    pub fn end_loan(&self) {
        end_loan(self.domid, self.mfn);
    }
}

impl Drop for LentPage {
    fn drop(&mut self) {
        take_back(self.domid, self.mfn);
    }
}

/// Ends the loan of a page to domain `domid`, unless it has ended.
pub fn end_loan(domid: u16, mfn: Mfn) {
    let _ = mmu().end_loan(DomId(domid), mfn);
}

/// Frees a page that was lent to domain `domid`, which is being freed itself: nobody refers to the page, or that would
/// have kept the domain.
pub fn take_back(domid: u16, mfn: Mfn) {
    end_loan(domid, mfn);
    let is_free = mmu().take_back(mfn).is_ok();
    debug_assert!(is_free, "a page that was lent to d{domid} outlives it");
    if is_free {
        limbo::take(mfn, Gone::Free);
    }
}

impl AsRef<PageWords> for LentPage {
    #[inline]
    fn as_ref(&self) -> &PageWords {
        // SAFETY: a whole page in the direct map, ours until the drop; the guest's writes are met by atomics.
        unsafe { &*phys_to_virt(self.mfn.addr()).cast::<PageWords>() }
    }
}
