//! Grants: the shell around `hv_core::grant`.
//!
//! Lock order: the mapper's MMU lock, the mapper's handles, the granter's table: rows 160 and 180 of
//! `docs/architecture.md`.

use crate::arch::tlb;
use crate::cpu;
use crate::domain::memory::log_dirty;
use crate::domain::memory::mmu_env::mmu;
use crate::domain::{self, Domain, DomainRef};
use crate::iommu;
use crate::mem::{frames, phys_to_virt};
use hv_core::grant::{self as table, check_copy, CopySide, FrameRefs, MapFlags, Retired};
use hv_core::mmu::{Locked, Slot};
use x86::{Mfn, PteFlags, VirtAddr};
use xen_abi::errno::Errno;
use xen_abi::grant::{GntStatus, GrantCopy};
use xen_abi::layout::DomId;

/// First of the three bits of a page-table entry that guests may use freely.
const PTE_AVAILABLE_SHIFT: u32 = 9;

/// References through the frame table.
pub struct Refs;

impl FrameRefs for Refs {
    #[inline(always)]
    fn take(&self, owner: u16, frame: u64, writable: bool) -> bool {
        let (mfn, owner) = (Mfn::new(frame), DomId(owner));
        if writable {
            let Ok(page) = mmu().get_writable(mfn, owner) else { return false };
            // Not before: who may not write it does not mark it.
            log_written(page.keep());
            true
        } else {
            mmu().get_page(mfn, owner).map(|r| r.keep()).is_ok()
        }
    }

    #[inline(always)]
    fn give_back(&self, frame: u64, writable: bool) {
        let mfn = Mfn::new(frame);
        if writable {
            log_written(mfn);
            drop(mmu().writable_from_kept(mfn));
        } else {
            drop(mmu().page_from_kept(mfn));
        }
    }

    fn make_writable(&self, owner: u16, frame: u64) -> bool {
        let mfn = Mfn::new(frame);
        log_written(mfn);
        match mmu().page_from_kept(mfn).into_writable(DomId(owner)) {
            Ok(page) => {
                page.keep();
                true
            }
            Err(page) => {
                page.keep();
                false
            }
        }
    }

    fn make_readable(&self, frame: u64) {
        let mfn = Mfn::new(frame);
        log_written(mfn);
        mmu().writable_from_kept(mfn).into_page().keep();
    }
}

/// A use of a grant for writing begins or ends.
#[inline]
fn log_written(mfn: Mfn) {
    if log_dirty::any() {
        log_dirty::mark(mfn);
    }
}

/// Where a mapping goes.
#[derive(Clone, Copy)]
pub struct Place {
    /// Virtual address, or machine address of the page-table entry.
    pub addr: u64,
    /// It is the latter.
    pub is_entry: bool,
    /// The root that virtual addresses are translated by.
    pub root: Mfn,
}

impl Place {
    fn slot(self, lock: Locked<'_>) -> Result<Slot, GntStatus> {
        if self.is_entry {
            if !self.addr.is_multiple_of(8) {
                return Err(GntStatus::GeneralError);
            }
            return Ok(Slot::at(self.addr));
        }
        let va = VirtAddr::new(self.addr).filter(|va| va.raw() % 4096 == 0).ok_or(GntStatus::BadVirtAddr)?;
        mmu().l1_slot(self.root, va, lock).map_err(|_| GntStatus::BadVirtAddr)
    }
}

/// Maps grant `gref` of `granter` for `mapper` at `place`. Returns handle and frame.
pub fn map(
    mapper: &Domain,
    granter: &Domain,
    gref: u32,
    flags: MapFlags,
    place: Place,
) -> Result<(u32, Mfn), GntStatus> {
    let mm = mapper.mm.lock();
    // Under the lock, so nobody else takes handles of this domain's meanwhile.
    let is_full = mapper.grants.track().is_full();
    if is_full && !mapper.grants.track().make_room(frames::grow_tables) {
        return Err(GntStatus::NoSpace);
    }
    // What devices may do because of the grant is counted, and the count ends with the handle: it must have begun.
    let is_tracked = mapper.dma.is_tracked();
    if is_tracked && !frames::has_headroom() {
        return Err(GntStatus::NoSpace);
    }
    let (handle, frame) =
        table::map(&mut mapper.grants.track(), &mut granter.grants.table(), &Refs, mapper.id, gref, flags)?;
    let mfn = Mfn::new(frame);
    // A driver lets its device read what it has mapped.
    if is_tracked && !iommu::make_room(&mapper.dma, mfn, 1) {
        table::map_undo(&mut mapper.grants.track(), &mut granter.grants.table(), &Refs, handle);
        return Err(GntStatus::NoSpace);
    }
    if flags.host {
        let mut bits = PteFlags::A | PteFlags::D;
        bits.set(PteFlags::US, flags.application);
        bits.set(PteFlags::RW, flags.writable);
        bits |= PteFlags::from_bits_retain(u64::from(flags.available & 7) << PTE_AVAILABLE_SHIFT);
        let written = place.slot(mm.locked()).and_then(|slot| {
            let mapped = mmu().grant_map(slot, mapper.mm.id, granter.mm.id, mfn, bits, mm.locked());
            mapped.map_err(|_| GntStatus::GeneralError)
        });
        if let Err(e) = written {
            table::map_undo(&mut mapper.grants.track(), &mut granter.grants.table(), &Refs, handle);
            return Err(e);
        }
    }
    if is_tracked && !iommu::grant(&mapper.dma, mfn, flags.writable) {
        iommu::warn_out_of_reach(&mapper.dma, mfn);
    }
    Ok((handle, mfn))
}

/// First half of an unmap: clears the page-table entry at `place` (if there is one to clear) and takes the parts off
/// the handle. `with`: whose entry moves there, as of then. `Ok(None)`: nothing was asked for. The caller flushes, then
/// calls [`unmap_finish`].
#[inline(always)]
pub fn unmap(
    mapper: &Domain,
    handle: u32,
    place: Option<Place>,
    with: Option<Place>,
    dev_bus_addr: u64,
) -> Result<Option<Retired>, GntStatus> {
    let mm = mapper.mm.lock();
    let mut track = mapper.grants.track();
    let mapping = track.get(handle).ok_or(GntStatus::BadHandle)?;
    let mfn = Mfn::new(mapping.frame);
    let device = dev_bus_addr != 0 && mapping.device;
    if device && dev_bus_addr != mfn.addr().raw() {
        return Err(GntStatus::GeneralError);
    }
    let host = place.filter(|_| mapping.host);
    if let Some(place) = host {
        let slot = place.slot(mm.locked())?;
        let cleared = match with {
            None => mmu().grant_unmap(slot, mapper.mm.id, mfn, mapping.writable, mm.locked()),
            // Only a place that was named by its address can get another page's entry.
            Some(_) if place.is_entry => return Err(GntStatus::GeneralError),
            Some(other) => {
                let other = other.slot(mm.locked()).map_err(|_| GntStatus::GeneralError)?;
                mmu().grant_replace(slot, other, mapper.mm.id, mfn, mapping.writable, mm.locked())
            }
        };
        cleared.map_err(|_| GntStatus::GeneralError)?;
    }
    let retired = track.retire(handle, host.is_some(), device);
    end_device_access(mapper, &retired);
    Ok(retired)
}

/// The handle is gone, and with it what devices could do because of it.
fn end_device_access(mapper: &Domain, retired: &Option<Retired>) {
    if let Some(r) = retired.as_ref().filter(|r| r.is_last() && mapper.dma.is_tracked()) {
        iommu::revoke(&mapper.dma, Mfn::new(r.mapping.frame), r.mapping.writable);
    }
}

/// No CPU and no device holds translations any more that a mapping of `mapper` gave it.
pub fn flush_after_unmap(mapper: &Domain) {
    iommu::flush_released();
    tlb::flush(mapper.cpus_to_flush(), tlb::What::All);
}

/// Last half of an unmap, after the flush.
#[inline]
pub fn unmap_finish(mapper: &Domain, retired: impl IntoIterator<Item = Retired>) {
    let mut granter = None;
    let mut track = mapper.grants.track();
    for retired in retired {
        let dom = retired.mapping.granter;
        granter = granter.filter(|g: &DomainRef| g.id == dom).or_else(|| domain::find(dom));
        match &granter {
            Some(g) => table::unmap_finish(&mut track, &mut g.grants.table(), &Refs, retired),
            // A granter stays in the list while a frame of it is in use; so this one had nothing in use any more.
            None => track.abandon(retired),
        }
    }
}

/// Uses that are ended between two looks at what else there is to do.
const RELEASE_STEPS: u32 = 256;
/// Uses that end with one flush.
const FLUSHED_AT_ONCE: usize = 32;

/// Ends all uses that `mapper`, which is dying and runs no more, makes of others' grants. ERESTART: to be called again.
pub fn release(mapper: &Domain) -> Result<(), Errno> {
    let mut from = 0;
    for _ in 0..RELEASE_STEPS {
        let Some(retired) = retire_next(mapper, &mut from) else { return Ok(()) };
        // Its devices are gone, and so are their tables.
        unmap_finish(mapper, [retired]);
    }
    Err(Errno::ERESTART)
}

/// The same for one that does not run and has no page tables now, but keeps its devices. As ever a use ends only when
/// nothing reaches the frame through it.
pub fn give_up(mapper: &Domain) -> Result<(), Errno> {
    let mut from = 0;
    for _ in 0..RELEASE_STEPS as usize / FLUSHED_AT_ONCE {
        let mut batch: [Option<Retired>; FLUSHED_AT_ONCE] = [const { None }; FLUSHED_AT_ONCE];
        for place in &mut batch {
            *place = retire_next(mapper, &mut from);
            end_device_access(mapper, place);
        }
        let is_last = batch.iter().any(Option::is_none);
        if batch.iter().any(Option::is_some) {
            flush_after_unmap(mapper);
        }
        unmap_finish(mapper, batch.into_iter().flatten());
        if is_last {
            return Ok(());
        }
    }
    Err(Errno::ERESTART)
}

/// Takes the first handle from `from` on back, which moves there. The caller finishes what is left of it.
fn retire_next(mapper: &Domain, from: &mut u32) -> Option<Retired> {
    let mut track = mapper.grants.track();
    *from = track.next_used(*from)?;
    track.retire(*from, true, true)
}

/// Begins a use by `user` of a grant of `granter`: the frame is held until [`unpin`]. Errors are those of a grant copy.
#[inline]
pub fn pin(granter: &Domain, user: u16, gref: u32, writable: bool) -> Result<Mfn, GntStatus> {
    granter.grants.table().pin(&Refs, user, gref, table::Use::host(writable)).map(Mfn::new)
}

/// Ends a use that [`pin`] began with the same arguments.
#[inline]
pub fn unpin(granter: &Domain, gref: u32, writable: bool) {
    granter.grants.table().unpin(&Refs, gref, table::Use::host(writable));
}

/// Makes copies. What the last one used stays in use for the next: a packet is often copied in pieces.
///
/// It looks domains up, so it may not outlive a stretch between two preemption points.
pub struct Copier<'a> {
    user: &'a Domain,
    source: Option<CopyFrame>,
    dest: Option<CopyFrame>,
}

impl<'a> Copier<'a> {
    /// For requests of `user`.
    pub fn new(user: &'a Domain) -> Self {
        Self { user, source: None, dest: None }
    }

    /// Makes one copy.
    #[inline]
    pub fn copy(&mut self, request: &GrantCopy) -> Result<(), GntStatus> {
        let (source, dest) = check_copy(request, self.user.id)?;
        let from = CopyFrame::of(&mut self.source, self.user, source, false)?;
        let to = CopyFrame::of(&mut self.dest, self.user, dest, true)?;
        // SAFETY: both frames are RAM in the direct map and held; offsets and length stay inside a page (`check_copy`);
        // they may be the same frame. What a guest writes meanwhile is only bytes.
        unsafe {
            cpu::copy(from.add(request.source.offset.into()), to.add(request.dest.offset.into()), request.len.into());
        }
        Ok(())
    }
}

impl Drop for Copier<'_> {
    fn drop(&mut self) {
        for (frame, writable) in [(self.source.take(), false), (self.dest.take(), true)] {
            if let Some(frame) = frame {
                frame.release(writable);
            }
        }
    }
}

/// A frame in use for a copy, until it is released.
struct CopyFrame {
    side: CopySide,
    mfn: Mfn,
    /// Who granted it, if it is not the user's own.
    granter: Option<DomainRef>,
}

impl CopyFrame {
    /// Where the bytes of `side` are, which is in `last` from then on; what was in it before is released.
    #[inline]
    fn of(last: &mut Option<Self>, user: &Domain, side: CopySide, writable: bool) -> Result<*mut u8, GntStatus> {
        let mfn = match last {
            Some(frame) if frame.side == side => frame.mfn,
            _ => {
                let granter = last.take().and_then(|frame| frame.release(writable));
                last.insert(Self::take(user, side, writable, granter)?).mfn
            }
        };
        Ok(phys_to_virt(mfn.addr()))
    }

    /// `BadPage`: not the user's own, or not for writing. `granter` may be the one that is wanted.
    #[inline]
    fn take(user: &Domain, side: CopySide, writable: bool, granter: Option<DomainRef>) -> Result<Self, GntStatus> {
        match side {
            CopySide::Own(gfn) => {
                if !Refs.take(user.id, gfn, writable) {
                    return Err(GntStatus::BadPage);
                }
                Ok(Self { side, mfn: Mfn::new(gfn), granter: None })
            }
            CopySide::Grant { dom, gref } => {
                let known = granter.filter(|granter| granter.id == dom);
                let granter = known.or_else(|| domain::find(dom)).ok_or(GntStatus::BadDomain)?;
                let mfn = pin(&granter, user.id, gref, writable)?;
                Ok(Self { side, mfn, granter: Some(granter) })
            }
        }
    }

    /// Ends the use. Returns the granter, if there was one.
    #[inline]
    fn release(self, writable: bool) -> Option<DomainRef> {
        match (self.side, &self.granter) {
            (CopySide::Grant { gref, .. }, Some(granter)) => unpin(granter, gref, writable),
            _ => Refs.give_back(self.mfn.raw(), writable),
        }
        self.granter
    }
}
