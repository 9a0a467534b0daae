//! The machine as `hv_core::mmu` sees it: page tables through the direct map, flushes, the M2P, the frame table.

use crate::arch::tlb;
use crate::cpu::percpu::this_cpu;
use crate::domain::memory::owners::owners;
use crate::domain::memory::{claims, limbo, log_dirty, DomainMm};
use crate::iommu;
use crate::mem::guest_tables::Tables;
use crate::mem::{self, frames, phys_to_virt};
use core::sync::atomic::Ordering;
use hv_core::allowance::{PAGE, STEP};
use hv_core::claims::Claim;
use hv_core::frame::{Frame, Gone, Knowers};
use hv_core::mmu::{IoAccess, Mmu, MmuEnv, PtMem, Slot};
use x86::{Mfn, Pte, PAGE_SIZE};
use xen_abi::layout::{DomId, HYPERVISOR_END_SLOT, HYPERVISOR_FIRST_SLOT};

/// The environment. It has no state of its own.
pub struct Env;
static ENV: Env = Env;

/// The operations on frames and guest page tables of this machine.
#[inline(always)]
pub fn mmu() -> Mmu<'static, Env> {
    Mmu::new(&ENV)
}

/// `dom` is about to get the `count` frames from `first`. `false`: there is no memory for the tables that let its
/// devices reach them.
pub fn make_dma_room(dom: DomId, first: Mfn, count: u64) -> bool {
    !iommu::is_tracking() || owners().dma_make_room(dom, first, count)
}

/// The frame allocator as memory operations for this domain see it.
pub struct Source<'a>(pub &'a DomainMm);

impl Source<'_> {
    /// Frames that its devices can be let reach, with contents of whoever had them.
    fn take(&self, order: u32, address_bits: u32) -> Option<Mfn> {
        let first = frames::alloc_for_domain(order, address_bits).or_else(|| {
            limbo::drain();
            frames::alloc_for_domain(order, address_bits)
        })?;
        if !make_dma_room(self.0.id, first, 1 << order) {
            frames::free(first, order);
            return None;
        }
        Some(first)
    }
}

/// The extent without what was in it.
///
/// # Safety
/// 1. The caller took it from the allocator and has shown it to nobody.
unsafe fn wiped(first: Mfn, order: u32) -> Mfn {
    for n in 0..1 << order {
        // SAFETY: (1).
        unsafe { frames::scrub(first.add(n)) };
    }
    this_cpu().allowance.spend_each(1 << order, PAGE);
    first
}

impl hv_core::memory::FrameSource for Source<'_> {
    fn alloc(&self, order: u32, address_bits: u32) -> Option<Mfn> {
        // All else that the domain holds goes only afterwards, and may be away then.
        let first = claims::take(&Claim::none(), 1 << order, || self.take(order, address_bits))?;
        // SAFETY: `take` took it just now.
        Some(unsafe { wiped(first, order) })
    }
    fn alloc_more(&self, order: u32, address_bits: u32) -> Option<Mfn> {
        let first = claims::take(self.0.claim(), 1 << order, || self.take(order, address_bits))?;
        // SAFETY: `take` took it just now.
        Some(unsafe { wiped(first, order) })
    }
    fn free(&self, mfn: Mfn, order: u32) {
        frames::free(mfn, order);
    }
    fn release(&self, mfn: Mfn, gone: Gone) {
        limbo::take(mfn, gone);
    }
}

impl PtMem for Env {
    #[inline(always)]
    fn read(&self, slot: Slot) -> Pte {
        Tables.read(slot)
    }
    #[inline(always)]
    fn any_bits(&self, first: Slot) -> u64 {
        Tables.any_bits(first)
    }
    #[inline(always)]
    fn write(&self, slot: Slot, new: Pte) {
        Tables.write(slot, new);
        if log_dirty::any() {
            log_dirty::mark(slot.page());
        }
    }
    #[inline(always)]
    fn cmpxchg(&self, slot: Slot, old: Pte, new: Pte) -> Result<(), Pte> {
        Tables.cmpxchg(slot, old, new)?;
        if log_dirty::any() {
            log_dirty::mark(slot.page());
        }
        Ok(())
    }
}

impl MmuEnv for Env {
    #[inline(always)]
    fn frame(&self, mfn: Mfn) -> Option<&Frame> {
        frames::frame(mfn)
    }
    fn frames_end(&self) -> Mfn {
        frames::end()
    }
    #[inline]
    fn step(&self) {
        this_cpu().allowance.spend(STEP);
    }
    #[inline]
    fn is_out_of_steps(&self) -> bool {
        this_cpu().allowance.is_used_up()
    }
    #[inline(always)]
    fn tlb_clock(&self) -> u32 {
        tlb::clock()
    }
    fn flush_since(&self, stamp: u32, knowers: Knowers) {
        tlb::flush_since(stamp, || match knowers {
            Knowers::Everyone => !0,
            Knowers::CpusOf(dom) => owners().cpus_to_flush(dom),
        });
    }
    fn io_access(&self, dom: DomId, mfn: Mfn) -> IoAccess {
        owners().io_access(dom, mfn)
    }
    fn cache_control(&self, dom: DomId) -> bool {
        owners().cache_control(dom)
    }
    fn fill_hypervisor_slots(&self, l4: Mfn) {
        for slot in HYPERVISOR_FIRST_SLOT..HYPERVISOR_END_SLOT {
            self.write(Slot::new(l4, slot), mem::l4_entry(slot));
        }
    }
    #[inline(always)]
    fn use_changed(&self, mfn: Mfn) {
        if log_dirty::any() {
            log_dirty::mark(mfn);
        }
    }
    fn m2p_set(&self, mfn: Mfn, pfn: u64) {
        if let Some(entry) = frames::m2p(mfn) {
            entry.store(pfn, Ordering::Relaxed);
            if log_dirty::any() {
                log_dirty::mark(mfn);
            }
        }
    }
    fn frame_left(&self, mfn: Mfn, owner: DomId, heap: bool) {
        self.m2p_set(mfn, xen_abi::layout::INVALID_M2P_ENTRY);
        if heap {
            owners().loan_ended(owner);
        } else {
            owners().page_left(owner);
        }
    }
    fn frame_gone(&self, mfn: Mfn, gone: Gone) {
        limbo::take(mfn, gone);
    }
    #[inline(always)]
    fn dma_allow(&self, dom: DomId, mfn: Mfn) {
        if iommu::is_tracking() {
            owners().dma_allow(dom, mfn);
        }
    }
    #[inline(always)]
    fn dma_forbid(&self, dom: DomId, mfn: Mfn) {
        if iommu::is_tracking() {
            owners().dma_forbid(dom, mfn);
        }
    }
    #[inline(always)]
    fn dma_release(&self, dom: DomId, mfn: Mfn) {
        if iommu::is_tracking() {
            owners().dma_release(dom, mfn);
        }
    }
    fn dma_flush(&self) {
        iommu::flush_released();
    }
    fn clear_page(&self, mfn: Mfn) {
        // SAFETY: RAM in the direct map, to which the caller holds a reference as a writable page.
        unsafe { frames::scrub(mfn) };
        if log_dirty::any() {
            log_dirty::mark(mfn);
        }
    }
    fn copy_page(&self, to: Mfn, from: Mfn) {
        // SAFETY: both frames are RAM in the direct map and the caller holds references to them. They may be the same.
        unsafe { core::ptr::copy(phys_to_virt(from.addr()), phys_to_virt(to.addr()), PAGE_SIZE) };
        if log_dirty::any() {
            log_dirty::mark(to);
        }
    }
    fn read_bytes(&self, page: Mfn, offset: usize, to: &mut [u8]) {
        assert!(offset <= PAGE_SIZE && to.len() <= PAGE_SIZE - offset, "bytes of one page are read");
        // SAFETY: the frame is RAM in the direct map and the caller holds a reference to it; the bytes are in it, and
        // `to` is none of guests' memory. Word by word it would take five times as many instructions.
        unsafe { core::ptr::copy(phys_to_virt(page.addr()).add(offset), to.as_mut_ptr(), to.len()) };
    }
    fn write_bytes(&self, page: Mfn, offset: usize, from: &[u8]) {
        assert!(offset <= PAGE_SIZE && from.len() <= PAGE_SIZE - offset, "bytes of one page are written");
        // SAFETY: as above.
        unsafe { core::ptr::copy(from.as_ptr(), phys_to_virt(page.addr()).add(offset), from.len()) };
        if log_dirty::any() {
            log_dirty::mark(page);
        }
    }
}
