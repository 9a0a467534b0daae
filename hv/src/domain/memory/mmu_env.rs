//! The machine as `hv_core::mmu` sees it: page tables through the direct map, flushes, the M2P, the frame table.

use crate::arch::tlb;
use crate::cpu::percpu::{this_cpu, MAX_CPUS};
use crate::domain::memory::{limbo, log_dirty};
use crate::domain::vcpu;
use crate::domain::{self, Domain};
use crate::iommu;
use crate::mem::{self, frames, phys_to_virt};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use hv_core::frame::Frame;
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

/// Steps (tables validated or taken down) that an operation may do before it is asked to stop. Some ten thousand
/// instructions each.
const STEPS: u32 = 64;
/// Steps left on each CPU.
static LEFT: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(STEPS) }; MAX_CPUS];

#[inline(always)]
fn left() -> &'static AtomicU32 {
    &LEFT[this_cpu().cpu as usize & (MAX_CPUS - 1)]
}

/// Allows the next operation on this CPU its full number of steps.
#[inline(always)]
pub fn refill_steps() {
    left().store(STEPS, Ordering::Relaxed);
}

/// The word at `slot` in the direct map.
#[inline(always)]
fn word(slot: Slot) -> &'static AtomicU64 {
    // SAFETY: `PtMem`'s callers name slots of RAM frames only; all RAM is in the direct map, 8-byte aligned here, and
    // memory that guests and CPUs change is only accessed by atomics.
    unsafe { AtomicU64::from_ptr(phys_to_virt(x86::MachAddr::new(slot.addr())).cast()) }
}

/// The frame allocator as memory operations see it.
pub struct Source;

impl hv_core::memory::FrameSource for Source {
    fn alloc(&self, order: u32, address_bits: u32) -> Option<Mfn> {
        let first = frames::alloc_for_domain(order, address_bits).or_else(|| {
            limbo::drain();
            frames::alloc_for_domain(order, address_bits)
        })?;
        for n in 0..1 << order {
            frames::scrub(first.add(n));
        }
        Some(first)
    }
    fn free(&self, mfn: Mfn, order: u32) {
        frames::free(mfn, order);
    }
    fn release(&self, mfn: Mfn) {
        limbo::put(mfn);
    }
}

impl PtMem for Env {
    #[inline(always)]
    fn read(&self, slot: Slot) -> Pte {
        Pte(word(slot).load(Ordering::Relaxed))
    }
    #[inline(always)]
    fn any_bits(&self, first: Slot) -> u64 {
        let bits: u64;
        // SAFETY: as for `word`: the eight words are in one page, for `first` is a multiple of eight; they are only read.
        // Assembly, because atomic loads are not combined with the operation on them, which would take twice as long.
        unsafe {
            core::arch::asm!(
                "mov {bits}, [{at}]", "or {bits}, [{at} + 8]", "or {bits}, [{at} + 16]", "or {bits}, [{at} + 24]",
                "or {bits}, [{at} + 32]", "or {bits}, [{at} + 40]", "or {bits}, [{at} + 48]", "or {bits}, [{at} + 56]",
                at = in(reg) phys_to_virt(x86::MachAddr::new(first.addr() & !63)), bits = out(reg) bits,
                options(nostack, readonly)
            );
        }
        bits
    }
    #[inline(always)]
    fn write(&self, slot: Slot, new: Pte) {
        word(slot).store(new.0, Ordering::Release);
        if log_dirty::any() {
            log_dirty::mark(slot.page());
        }
    }
    #[inline(always)]
    fn cmpxchg(&self, slot: Slot, old: Pte, new: Pte) -> Result<(), Pte> {
        word(slot).compare_exchange(old.0, new.0, Ordering::AcqRel, Ordering::Relaxed).map_err(Pte)?;
        if log_dirty::any() {
            log_dirty::mark(slot.page());
        }
        Ok(())
    }
}

/// Calls `f` with the domain `id`, if it exists. The running one is found quickest.
pub(super) fn with_domain<R>(id: DomId, f: impl FnOnce(&Domain) -> R) -> Option<R> {
    if let Some(v) = vcpu::current(this_cpu()) {
        if v.domain().id == id.0 {
            return Some(f(v.domain()));
        }
    }
    domain::find(id.0).map(|d| f(&d))
}

impl MmuEnv for Env {
    #[inline(always)]
    fn frame(&self, mfn: Mfn) -> Option<&Frame> {
        frames::frame(mfn)
    }
    fn frames_end(&self) -> Mfn {
        frames::end()
    }
    fn preempt_pending(&self) -> bool {
        // Interrupts stay off while the MMU lock is held; so it is work that is counted, not time.
        let steps = left();
        match steps.load(Ordering::Relaxed).checked_sub(1) {
            Some(rest) => {
                steps.store(rest, Ordering::Relaxed);
                false
            }
            None => true,
        }
    }
    #[inline(always)]
    fn tlb_clock(&self) -> u32 {
        tlb::clock()
    }
    fn flush_since(&self, stamp: u32) {
        tlb::flush_since(stamp);
    }
    fn io_access(&self, dom: DomId, mfn: Mfn) -> IoAccess {
        with_domain(dom, |d| d.io.frame_access(mfn)).unwrap_or(IoAccess::Denied)
    }
    fn cache_control(&self, dom: DomId) -> bool {
        with_domain(dom, |d| d.io.has_io()).unwrap_or(false)
    }
    fn fill_hypervisor_slots(&self, l4: Mfn) {
        for slot in HYPERVISOR_FIRST_SLOT..HYPERVISOR_END_SLOT {
            self.write(Slot::new(l4, slot), mem::l4_entry(slot));
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
    fn frame_freed(&self, mfn: Mfn, owner: DomId, heap: bool) {
        self.m2p_set(mfn, xen_abi::layout::INVALID_M2P_ENTRY);
        if !heap {
            with_domain(owner, |d| {
                d.mm.uncharge(1);
                domain::bury_if_empty(d);
            });
        }
        limbo::put(mfn);
    }
    #[inline(always)]
    fn dma_allow(&self, dom: DomId, mfn: Mfn) {
        if iommu::is_tracking() {
            with_domain(dom, |d| iommu::allow(d, mfn));
        }
    }
    #[inline(always)]
    fn dma_forbid(&self, dom: DomId, mfn: Mfn) {
        if iommu::is_tracking() {
            with_domain(dom, |d| iommu::forbid(d, mfn));
        }
    }
    #[inline(always)]
    fn dma_release(&self, dom: DomId, mfn: Mfn) {
        if iommu::is_tracking() {
            with_domain(dom, |d| iommu::forbid_later(d, mfn));
        }
    }
    fn dma_flush(&self) {
        iommu::flush_released();
    }
    fn clear_page(&self, mfn: Mfn) {
        frames::scrub(mfn);
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
}
