//! What the memory shell asks of domains, by number. It lies below them, so they install what answers, once, before
//! there is any.

use crate::sync::Once;
use hv_core::mmu::IoAccess;
use x86::Mfn;
use xen_abi::layout::DomId;

/// The domains as their memory sees them. Numbers of domains that do not exist are met with nothing.
pub trait Owners: Sync {
    /// May `dom` map I/O frame `mfn`?
    fn io_access(&self, dom: DomId, mfn: Mfn) -> IoAccess;
    /// The CPUs that may have translations which the page tables of `dom` give; all, if there is no such domain.
    fn cpus_to_flush(&self, dom: DomId) -> u64;
    /// May `dom` choose cache attributes?
    fn cache_control(&self, dom: DomId) -> bool;
    /// A page left `dom`: it is no longer in its account, and may have been the last that kept it.
    fn page_left(&self, dom: DomId);
    /// A page that was lent to `dom` is not any more, and nobody refers to it; it may have been the last that kept it.
    fn loan_ended(&self, dom: DomId);
    /// `mfn` of `dom` was written on its behalf: its log notes it, if it has one.
    fn mark_written(&self, dom: DomId, mfn: Mfn);
    /// `dom` is about to get the `count` frames from `first`. `false`: there is no memory for the tables that let its
    /// devices reach them.
    fn dma_make_room(&self, dom: DomId, first: Mfn, count: u64) -> bool;
    /// Frame `mfn` of `dom` became writable.
    fn dma_allow(&self, dom: DomId, mfn: Mfn);
    /// It is not any more, and no device reaches it when this returns.
    fn dma_forbid(&self, dom: DomId, mfn: Mfn);
    /// It leaves `dom`.
    fn dma_release(&self, dom: DomId, mfn: Mfn);
}

static OWNERS: Once<&'static dyn Owners> = Once::new();

/// Says who answers.
pub fn install(owners: &'static dyn Owners) {
    OWNERS.call_once(|| owners);
}

/// The domains.
pub(super) fn owners() -> &'static dyn Owners {
    *OWNERS.get().expect("installed before the first domain")
}
