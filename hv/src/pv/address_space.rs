//! The address space of a vCPU: its page-table roots, and the frames that hold its descriptor tables.

use crate::arch::{descriptor, tlb};
use crate::cpu::percpu::{pending, this_cpu};
use crate::domain::memory::mmu_env::mmu;
use crate::domain::memory::DomainMm;
use crate::domain::vcpu::{stop, OwnedVcpu, LDT_PAGES};
use crate::pv::vtlb;
use crate::sched::{self, Held};
use crate::sync::Relax;
use core::cell::Cell;
use hv_core::emul::privileged::Progress;
use hv_core::mmu::{Deferred, GdtFrames, MmuError, RootRef};
use spin::RelaxStrategy;
use x86::{Level, Mfn, VirtAddr, PAGE_SHIFT};
use xen_abi::errno::Errno;
use xen_abi::layout::{DomId, FIRST_RESERVED_GDT_PAGE};

/// Descriptors in a page.
const DESCRIPTORS: u32 = 512;

/// Works on the tables that nobody refers to any more. `true`: they are ordinary memory now.
#[inline]
pub fn finish_dropped(mm: &DomainMm) -> bool {
    let mut lock = mm.lock();
    if lock.is_settled() {
        return true;
    }
    mmu().drain(&mut lock).is_ok()
}

/// ERESTART, with a reason to stop if another vCPU is to run first.
pub fn refused(why: MmuError) -> Errno {
    if why == MmuError::Contended {
        this_cpu().raise(pending::SCHEDULE);
    }
    why.into()
}

/// What a write to CR3 of `v`, which runs here in kernel mode, means: [`new_baseptr`] for a table that is validated
/// already, and what it cuts off is ordinary memory when it is done. EINVAL for any other table.
///
/// A trap cannot be preempted, so there is no more of it than of hypercalls between two looks at what is pending. As on
/// Xen the instruction is executed again then, perhaps with the new root; that changes nothing but what is left to do.
pub fn write_cr3(v: &OwnedVcpu, mfn: Mfn) -> Result<Progress, Errno> {
    if mmu().table_level(mfn) != Some(Level::L4) {
        return Err(Errno::EINVAL);
    }
    // The guest could be interrupted until now.
    this_cpu().allowance.refill();
    match new_baseptr(v, mfn) {
        Ok(()) if finish_dropped(&v.domain().mm) => Ok(Progress::Done),
        Ok(()) | Err(Errno::ERESTART) => Ok(Progress::Again),
        Err(errno) => Err(errno),
    }
}

/// Makes `mfn` the kernel's root of `v`, which runs here in kernel mode, and loads it. ERESTART: to be called again.
#[inline]
pub fn new_baseptr(v: &OwnedVcpu, mfn: Mfn) -> Result<(), Errno> {
    let old = v.kernel_root.get();
    if old == mfn {
        tlb::flush_local(tlb::What::All);
        return Ok(());
    }
    let mm = &v.domain().mm;
    let mut lock = mm.lock();
    let new = mmu().acquire_root(mm.id, mfn, &mut lock).map_err(refused)?.keep();
    v.kernel_root.set(new);
    if v.ldt_entries.get() != 0 {
        reload_ldt(v);
    }
    // SAFETY: the reference just taken keeps it a validated L4 table; a cache's root has the hypervisor's slots, too.
    unsafe { tlb::load_root(vtlb::hardware_root(v).addr().raw()) };
    if old.raw() != 0 {
        mmu().release_root(RootRef::from_kept(old), &mut lock)?;
    }
    Ok(())
}

/// Makes `mfn` the user root of `v`; frame 0 is none. It is loaded on the way to user mode.
#[inline]
pub fn new_user_baseptr(v: &OwnedVcpu, mfn: Mfn) -> Result<(), Errno> {
    let old = v.user_root.get();
    if old == mfn {
        return Ok(());
    }
    let mm = &v.domain().mm;
    let mut lock = mm.lock();
    mmu().drain(&mut lock)?;
    let new = if mfn.raw() == 0 { mfn } else { mmu().acquire_root(mm.id, mfn, &mut lock).map_err(refused)?.keep() };
    v.user_root.set(new);
    vtlb::forget_user_root(v);
    if old.raw() != 0 {
        mmu().release_root(RootRef::from_kept(old), &mut lock)?;
    }
    Ok(())
}

/// The frames of a descriptor table of `entries` entries.
fn table_frames(frames: &[u64; FIRST_RESERVED_GDT_PAGE], entries: u32) -> ([Mfn; FIRST_RESERVED_GDT_PAGE], usize) {
    let used = (entries.div_ceil(DESCRIPTORS) as usize).min(frames.len());
    (frames.map(Mfn::new), used)
}

/// Makes `frames` the GDT of `v`, which holds `entries` entries, and drops the old one. If `v` runs, it must be on this
/// CPU, which then uses the new table at once. Errors: EINVAL for too many entries or pages that are not fit; the old
/// table stays then.
pub fn set_gdt(
    v: &OwnedVcpu,
    frames: &[u64; FIRST_RESERVED_GDT_PAGE],
    entries: u32,
    is_running: bool,
) -> Result<(), Errno> {
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

/// Makes `new` the root in `place`, with a reference to it as an L4 table of domain `dom`, and drops the old one. Frame
/// 0 is no root.
fn set_root(place: &Cell<Mfn>, new: Mfn, dom: DomId, lock: &mut Deferred) -> Result<(), MmuError> {
    const NONE: Mfn = Mfn::new(0);
    if place.get() == new {
        return Ok(());
    }
    mmu().drain(lock)?;
    let old = place.replace(NONE);
    if old != NONE {
        mmu().release_root(RootRef::from_kept(old), lock)?;
    }
    if new != NONE {
        place.set(mmu().acquire_root(dom, new, lock)?.keep());
    }
    Ok(())
}

/// Takes the roots and GDT pages of a new context of `v`, and drops the old ones and its LDT pages. Until the caller
/// says that it has a context again, it has none. ERESTART: to be called again.
pub fn set_context(
    v: &Held<'_>,
    kernel_root: Mfn,
    user_root: Mfn,
    gdt_frames: &[u64],
    gdt_entries: u32,
) -> Result<(), Errno> {
    let mm = &v.domain().mm;
    sched::halt(v, stop::NO_CONTEXT);
    let mut lock = mm.lock();
    set_root(&v.kernel_root, kernel_root, mm.id, &mut lock)?;
    set_root(&v.user_root, user_root, mm.id, &mut lock)?;
    mmu().drain(&mut lock)?;
    drop(lock);
    drop_ldt(v);
    let mut frames = [0; FIRST_RESERVED_GDT_PAGE];
    for (to, from) in frames.iter_mut().zip(gdt_frames) {
        *to = *from;
    }
    set_gdt(v, &frames, gdt_entries, false)
}

/// Drops what `v`, which has no context from now on, refers to: roots, GDT, LDT. ERESTART: to be called again.
pub fn drop_context(v: &Held<'_>) -> Result<(), Errno> {
    sched::halt(v, stop::NO_CONTEXT);
    let mm = &v.domain().mm;
    let mut lock = mm.lock();
    for place in [&v.kernel_root, &v.user_root] {
        set_root(place, Mfn::new(0), mm.id, &mut lock)?;
    }
    mmu().drain(&mut lock)?;
    drop(lock);
    drop_gdt(GdtFrames::from_kept(v.gdt_frames.replace([Mfn::new(0); FIRST_RESERVED_GDT_PAGE])));
    v.gdt_entries.set(0);
    drop_ldt(v);
    Ok(())
}

/// Drops the LDT pages that `v` has used. None of them may be mapped any more.
pub fn drop_ldt(v: &OwnedVcpu) {
    for mfn in v.ldt_frames.replace([Mfn::new(0); LDT_PAGES]) {
        if mfn.raw() != 0 {
            mmu().drop_segdesc(mfn);
        }
    }
}

/// Makes the `entries` descriptors at `base` the LDT of `v`, which runs here. Its pages are mapped when they are
/// needed.
pub fn set_ldt(v: &OwnedVcpu, base: u64, entries: u32) {
    let nothing = v.ldt_entries.get() == 0 && entries == 0;
    v.ldt_base.set(base);
    v.ldt_entries.set(entries);
    if !nothing {
        reload_ldt(v);
    }
}

/// Forgets the LDT pages that are mapped: they mean other memory now.
fn reload_ldt(v: &OwnedVcpu) {
    descriptor::load_guest_ldt(v.ldt_entries.get());
    drop_ldt(v);
}

/// Takes the frame that backs byte `offset` of the vCPU's LDT as a descriptor page. `None` if the guest has no fit page
/// there.
pub fn take_ldt_page(v: &OwnedVcpu, offset: u64) -> Option<Mfn> {
    if offset >= u64::from(v.ldt_entries.get()) * 8 {
        return None;
    }
    let page = (offset >> PAGE_SHIFT) as usize;
    let mut frames = v.ldt_frames.get();
    let place = frames.get_mut(page).filter(|_| page < LDT_PAGES)?;
    if place.raw() != 0 {
        return Some(*place);
    }
    let va = VirtAddr::new(v.ldt_base.get().checked_add((page as u64) << PAGE_SHIFT)?)?;
    let mfn = take_descriptors_at(v, va)?;
    *place = mfn;
    v.ldt_frames.set(frames);
    Some(mfn)
}

/// Takes the frame that the kernel of `v` has mapped at `va` as a descriptor page. `None` if it is not fit.
///
/// That another vCPU is at work on the domain's page tables, or on this page, must not look like a page that is not
/// fit: who holds the MMU lock is waited for. It is not this CPU: with the lock held nothing here loads a selector, or
/// reads a descriptor.
fn take_descriptors_at(v: &OwnedVcpu, va: VirtAddr) -> Option<Mfn> {
    let mm = &v.domain().mm;
    loop {
        let lock = mm.lock();
        let mfn = mmu().mapping(v.kernel_root.get(), va, lock.locked()).ok()?.mfn();
        match mmu().take_segdesc(mm.id, mfn) {
            Ok(()) => return Some(mfn),
            // Another vCPU is checking its descriptors.
            Err(MmuError::Contended) => {}
            Err(_) => return None,
        }
        drop(lock);
        Relax::relax();
    }
}
