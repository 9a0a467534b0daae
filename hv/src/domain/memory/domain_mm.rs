//! A domain's memory: its MMU lock and accounting; and the page-table roots and descriptor pages of vCPUs.

use crate::domain::memory::mmu_env::{self, mmu};
use crate::domain::memory::{claims, limbo};
use crate::domain::vcpu::Vcpu;
use crate::mem::phys_to_virt;
use crate::sync::{Mutex, MutexGuard};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::gate::{Gate, Inside};
use hv_core::mmu::{Deferred, GdtFrames, MmuError, Relinquish, RootRef};
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::layout::{DomId, FIRST_RESERVED_GDT_PAGE};
use xen_abi::memory::E820Entry;

/// Pages of an LDT.
pub const LDT_PAGES: usize = 16;
/// Descriptors in a page.
const DESCRIPTORS: u32 = 512;

/// Page tables and accounting of a domain.
pub struct DomainMm {
    /// Its name in the frame table.
    pub id: DomId,
    /// The MMU lock: page-table contents and what preempted operations left half done.
    lock: Mutex<Deferred>,
    context: Mutex<()>,
    relinquish: Mutex<Relinquish>,
    /// Where pages come in, until its memory is taken back.
    arrivals: Gate,
    /// Pages it has.
    tot_pages: AtomicU64,
    /// Pages it may have.
    max_pages: AtomicU64,
    /// Free frames that are set aside for it.
    claim: AtomicU64,
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
            context: Mutex::new(()),
            relinquish: Mutex::new(Relinquish::new()),
            arrivals: Gate::new(),
            tot_pages: AtomicU64::new(0),
            max_pages: AtomicU64::new(0),
            claim: AtomicU64::new(0),
            memory_map: Mutex::new(Vec::new()),
            log: crate::domain::memory::log_dirty::DirtyLog::new(),
        }
    }

    /// The MMU lock.
    #[inline(always)]
    pub fn lock(&self) -> MutexGuard<'_, Deferred> {
        self.lock.lock()
    }

    /// The MMU lock, if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Deferred>> {
        self.lock.try_lock()
    }

    /// Serialises setting vCPU contexts.
    pub fn lock_context(&self) -> MutexGuard<'_, ()> {
        self.context.lock()
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
    pub fn claim(&self) -> &AtomicU64 {
        &self.claim
    }

    /// Pages may be given to the domain as long as the result lives, from the charge to the last one that is its own.
    /// `None`: it is dying, and those would stay for good.
    pub fn admit(&self) -> Option<Inside<'_>> {
        self.arrivals.enter()
    }

    /// Enters `pages` more into its account, if it may have them and they are not claimed by others.
    #[must_use]
    pub fn charge(&self, pages: u64) -> bool {
        let limit = self.max_pages();
        let more = |now: u64| now.checked_add(pages).filter(|&sum| sum <= limit);
        if self.tot_pages.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_err() {
            return false;
        }
        let admitted = claims::admit(&self.claim, pages);
        if !admitted {
            self.uncharge(pages);
        }
        admitted
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
    /// parts referred to was dropped. ERESTART: to be called again. Frames that others still map stay until those let go:
    /// see [`Self::tot_pages`].
    pub fn relinquish(&self) -> Result<(), Errno> {
        if !self.arrivals.close() {
            return Err(Errno::ERESTART);
        }
        mmu_env::refill_steps();
        mmu().relinquish(self.id, &mut self.relinquish.lock(), &mut self.lock())?;
        limbo::drain();
        Ok(())
    }
}

/// The frames of a descriptor table of `entries` entries.
fn table_frames(frames: &[u64; FIRST_RESERVED_GDT_PAGE], entries: u32) -> ([Mfn; FIRST_RESERVED_GDT_PAGE], usize) {
    let used = (entries.div_ceil(DESCRIPTORS) as usize).min(frames.len());
    (frames.map(Mfn::new), used)
}

/// Makes `frames` the GDT of `v`, which holds `entries` entries, and drops the old one. If `v` runs, it must be on this
/// CPU, which then uses the new table at once. Errors: EINVAL for too many entries or pages that are not fit; the old
/// table stays then.
pub fn set_gdt(v: &Vcpu, frames: &[u64; FIRST_RESERVED_GDT_PAGE], entries: u32, is_running: bool) -> Result<(), Errno> {
    if entries as usize > FIRST_RESERVED_GDT_PAGE * DESCRIPTORS as usize {
        return Err(Errno::EINVAL);
    }
    let mm = &v.domain().mm;
    let (list, used) = table_frames(frames, entries);
    let new = {
        let _lock = mm.lock();
        mmu().take_gdt(mm.id, &list[..used])?
    };
    let old = GdtFrames::from_kept(v.gdt_frames.replace(new.keep()));
    v.gdt_entries.set(entries);
    if is_running {
        crate::arch::descriptor::load_guest_gdt(v.gdt_pages());
    }
    drop_gdt(old);
    Ok(())
}

fn drop_gdt(mut old: GdtFrames) {
    mmu().drop_gdt(&mut old);
}

/// Takes a reference to `root` as an L4 table of `v`'s domain; frame 0 is no root.
fn take_root(v: &Vcpu, root: Mfn, lock: &mut Deferred) -> Result<Mfn, MmuError> {
    if root.raw() == 0 {
        return Ok(root);
    }
    Ok(mmu().acquire_root(v.domain().mm.id, root, lock)?.keep())
}

fn drop_root(root: Mfn, lock: &mut Deferred) -> Result<(), MmuError> {
    if root.raw() == 0 {
        return Ok(());
    }
    mmu().drain(lock)?;
    mmu().release_root(RootRef::from_kept(root), lock)
}

/// Takes the roots and GDT pages of a new context of `v`, which is loaded nowhere, and drops the old ones. ERESTART: to
/// be called again.
pub fn set_context(
    v: &Vcpu,
    kernel_root: Mfn,
    user_root: Mfn,
    gdt_frames: &[u64],
    gdt_entries: u32,
) -> Result<(), Errno> {
    let mm = &v.domain().mm;
    mmu_env::refill_steps();
    let mut lock = mm.lock();
    drop_roots(v, &mut lock)?;
    let kernel = take_root(v, kernel_root, &mut lock)?;
    v.kernel_root.set(kernel);
    let user = take_root(v, user_root, &mut lock)?;
    v.user_root.set(user);
    drop(lock);
    let mut frames = [0; FIRST_RESERVED_GDT_PAGE];
    for (to, from) in frames.iter_mut().zip(gdt_frames) {
        *to = *from;
    }
    set_gdt(v, &frames, gdt_entries, false)
}

fn drop_roots(v: &Vcpu, lock: &mut Deferred) -> Result<(), MmuError> {
    for root in [&v.kernel_root, &v.user_root] {
        drop_root(root.get(), lock)?;
        root.set(Mfn::new(0));
    }
    mmu().drain(lock)
}

/// Drops everything that `v`, which is loaded nowhere and runs no more, refers to: roots, GDT, LDT, its `vcpu_info`
/// frame. ERESTART: to be called again.
pub fn drop_context(v: &Vcpu) -> Result<(), Errno> {
    mmu_env::refill_steps();
    drop_roots(v, &mut v.domain().mm.lock())?;
    drop_gdt(GdtFrames::from_kept(v.gdt_frames.replace([Mfn::new(0); FIRST_RESERVED_GDT_PAGE])));
    v.gdt_entries.set(0);
    drop_ldt(v);
    Ok(())
}

/// Drops the LDT pages that `v` has used. None of them may be mapped any more.
pub fn drop_ldt(v: &Vcpu) {
    for mfn in v.ldt_frames.replace([Mfn::new(0); LDT_PAGES]) {
        if mfn.raw() != 0 {
            mmu().drop_segdesc(mfn);
        }
    }
}
