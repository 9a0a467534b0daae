//! The domains as their memory sees them: see [`Owners`].

use crate::cpu::percpu::this_cpu;
use crate::domain::memory::owners::{self, Owners};
use crate::domain::{list, vcpu, Domain};
use crate::iommu;
use core::sync::atomic::Ordering;
use hv_core::mmu::IoAccess;
use x86::Mfn;
use xen_abi::layout::DomId;

struct Domains;

/// From now on the memory shell finds domains.
pub fn install() {
    owners::install(&Domains);
}

/// Calls `f` with the domain `id`, if it exists. The running one is found quickest.
fn with_domain<R>(id: DomId, f: impl FnOnce(&Domain) -> R) -> Option<R> {
    if let Some(v) = vcpu::current(this_cpu()) {
        if v.domain().id == id.0 {
            return Some(f(v.domain()));
        }
    }
    list::find(id.0).map(|d| f(&d))
}

impl Owners for Domains {
    fn io_access(&self, dom: DomId, mfn: Mfn) -> IoAccess {
        with_domain(dom, |d| d.io.frame_access(mfn)).unwrap_or(IoAccess::Denied)
    }
    fn cpus_to_flush(&self, dom: DomId) -> u64 {
        with_domain(dom, Domain::cpus_to_flush).unwrap_or(!0)
    }
    fn cache_control(&self, dom: DomId) -> bool {
        with_domain(dom, |d| d.io.has_io()).unwrap_or(false)
    }
    fn page_left(&self, dom: DomId) {
        with_domain(dom, |d| {
            d.mm.uncharge(1);
            list::bury_if_empty(d);
        });
    }
    fn loan_ended(&self, dom: DomId) {
        with_domain(dom, |d| {
            d.lent.fetch_sub(1, Ordering::SeqCst);
            list::bury_if_empty(d);
        });
    }
    fn mark_written(&self, dom: DomId, mfn: Mfn) {
        with_domain(dom, |d| d.mm.log.mark(mfn));
    }
    fn dma_make_room(&self, dom: DomId, first: Mfn, count: u64) -> bool {
        with_domain(dom, |d| iommu::make_room(&d.dma, first, count)).unwrap_or(true)
    }
    fn dma_allow(&self, dom: DomId, mfn: Mfn) {
        with_domain(dom, |d| iommu::allow(&d.dma, mfn));
    }
    fn dma_forbid(&self, dom: DomId, mfn: Mfn) {
        with_domain(dom, |d| iommu::forbid(&d.dma, mfn));
    }
    fn dma_release(&self, dom: DomId, mfn: Mfn) {
        with_domain(dom, |d| iommu::forbid_later(&d.dma, mfn));
    }
}
