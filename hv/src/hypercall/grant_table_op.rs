//! `grant_table_op`, version 1 tables: what a domain gives to others, and using what others give.

use super::foreign::{self, Target};
use super::{Caller, Done, GuestPtr, Outcome, OK};
use crate::domain;
use crate::domain::grant::{self, Copier, Place};
use crate::domain::memory::claims;
use crate::domain::memory::mmu_env::{make_dma_room, mmu};
use crate::mem::copy::write_u16;
use crate::mem::frames;
use crate::mem::guest_ptr::plain;
use core::mem::offset_of;
use hv_core::allowance::PAGE;
use hv_core::frame::Gone;
use hv_core::grant::{MapFlags, Retired};
use hv_core::mmu::MmuEnv;
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::grant as op;
use xen_abi::grant::GntStatus;
use xen_abi::layout::INVALID_M2P_ENTRY;

plain!(
    op::MapGrantRef,
    op::UnmapGrantRef,
    op::UnmapAndReplace,
    op::SetupTable,
    op::Transfer,
    op::GrantCopy,
    op::QuerySize,
    op::SetVersion,
    op::GetVersion,
);

/// Mappings that are taken down between two flushes.
const UNMAP_BATCH: usize = 32;
/// Entries of a list that are worked on before a look at what else there is to do.
const PREEMPT_EVERY: u32 = 16;

/// GNTTABOP_*: each entry of a list gets its own status (0 or a negative GNTST_*), and the call succeeds. Errors:
/// EFAULT; EINVAL for counts that do not fit and versions that do not exist; ENOSYS for version 2, as Xen answers with
/// `gnttab=max-ver:1`, and unknown commands.
/// Source: public/grant_table.h.
pub fn call(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>, count: u32) -> Outcome {
    if count > i32::MAX as u32 {
        return Err(Errno::EINVAL);
    }
    let outcome = execute(cx, cmd, arg, count);
    if let Some(allowance) = cx.allowance_of_list() {
        // As much as a list may do after its last look, and no less for an entry than a copy.
        allowance.spend_each(u64::from(count).min(UNMAP_BATCH as u64), PAGE);
    }
    outcome
}

#[inline(always)]
fn execute(cx: &mut Caller, cmd: u32, arg: GuestPtr<u8>, count: u32) -> Outcome {
    match cmd {
        op::GNTTABOP_MAP_GRANT_REF => each(cx, arg.cast(), count, map),
        op::GNTTABOP_UNMAP_GRANT_REF => unmap_all::<op::UnmapGrantRef>(cx, arg.cast(), count),
        op::GNTTABOP_UNMAP_AND_REPLACE => unmap_all::<op::UnmapAndReplace>(cx, arg.cast(), count),
        op::GNTTABOP_COPY => copy_all(cx, arg.cast(), count),
        op::GNTTABOP_TRANSFER => each(cx, arg.cast(), count, transfer),
        op::GNTTABOP_SETUP_TABLE => one(cx, arg.cast(), count, setup_table),
        op::GNTTABOP_QUERY_SIZE => one(cx, arg.cast(), count, query_size),
        op::GNTTABOP_SET_VERSION => {
            let mut r: op::SetVersion = arg.cast().read()?;
            // As a Xen answers that was told to offer version 1 only. What it has is said in any case.
            let outcome = match r.version {
                1 => OK,
                2 => Err(Errno::ENOSYS),
                _ => Err(Errno::EINVAL),
            };
            r.version = 1;
            arg.cast().write(&r)?;
            outcome
        }
        op::GNTTABOP_GET_VERSION => {
            let mut r: op::GetVersion = arg.cast().read()?;
            foreign::target(cx, r.dom)?;
            r.version = 1;
            arg.cast().write(&r)?;
            OK
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// Works on a list, entry by entry; each is read once and written back with its result.
fn each<T: super::Plain>(cx: &mut Caller, list: GuestPtr<T>, count: u32, f: impl Fn(&Caller, &mut T)) -> Outcome {
    for i in 0..count {
        if i > 0 && i % PREEMPT_EVERY == 0 && cx.preempt_pending() {
            return proceed(cx, list, count, i);
        }
        let at = list.at(u64::from(i))?;
        let mut entry = at.read()?;
        f(cx, &mut entry);
        at.write(&entry)?;
    }
    OK
}

/// The rest of the list is for the next execution.
fn proceed<T>(cx: &mut Caller, list: GuestPtr<T>, count: u32, done: u32) -> Outcome {
    *cx.arg_mut(1) = list.at(u64::from(done))?.addr();
    *cx.arg_mut(2) = u64::from(count - done);
    Ok(Done::Continue)
}

fn one<T: super::Plain>(cx: &Caller, ptr: GuestPtr<T>, count: u32, f: impl Fn(&Caller, &mut T)) -> Outcome {
    if count != 1 {
        return Err(Errno::EINVAL);
    }
    let mut entry = ptr.read()?;
    f(cx, &mut entry);
    ptr.write(&entry)?;
    OK
}

/// The domain that a request names. BadDomain; PermissionDenied.
fn target(cx: &Caller, id: u16) -> Result<Target, GntStatus> {
    foreign::target(cx, id).map_err(|why| match why {
        Errno::ESRCH => GntStatus::BadDomain,
        _ => GntStatus::PermissionDenied,
    })
}

fn status(result: Result<(), GntStatus>) -> i16 {
    result.err().unwrap_or(GntStatus::Okay).raw()
}

fn map(cx: &Caller, r: &mut op::MapGrantRef) {
    let result = (|| {
        let flags = MapFlags::decode(r.flags)?;
        let granter = domain::find(r.dom).ok_or(GntStatus::BadDomain)?;
        let place = Place { addr: r.host_addr, is_entry: flags.contains_pte, root: cx.vcpu.kernel_root.get() };
        let (handle, mfn) = grant::map(cx.domain(), &granter, r.gref, flags, place)?;
        r.handle = handle;
        r.dev_bus_addr = mfn.addr().raw();
        Ok(())
    })();
    r.status = status(result);
}

/// A request that takes down a mapping.
trait Unmap: super::Plain {
    /// Place, what takes its place, the device's address, handle; 0 for an address that is none.
    fn parts(&self) -> (u64, u64, u64, u32);
    fn set_status(&mut self, status: i16);
}

impl Unmap for op::UnmapGrantRef {
    fn parts(&self) -> (u64, u64, u64, u32) {
        (self.host_addr, 0, self.dev_bus_addr, self.handle)
    }
    fn set_status(&mut self, status: i16) {
        self.status = status;
    }
}

impl Unmap for op::UnmapAndReplace {
    fn parts(&self) -> (u64, u64, u64, u32) {
        (self.host_addr, self.new_addr, 0, self.handle)
    }
    fn set_status(&mut self, status: i16) {
        self.status = status;
    }
}

/// Unmaps in batches with one flush each: a use ends only when no CPU can reach the frame through it.
fn unmap_all<R: Unmap>(cx: &mut Caller, list: GuestPtr<R>, count: u32) -> Outcome {
    let mut done = 0;
    while done < count {
        if done > 0 && cx.preempt_pending() {
            return proceed(cx, list, count, done);
        }
        let mapper = cx.domain();
        let mut retired: [Option<Retired>; UNMAP_BATCH] = [const { None }; UNMAP_BATCH];
        let mut result = Ok(());
        for slot in &mut retired {
            if done == count {
                break;
            }
            result = list.at(u64::from(done)).and_then(|at| {
                let mut r = at.read()?;
                r.set_status(unmap(cx, &r, slot));
                at.write(&r)
            });
            if result.is_err() {
                break;
            }
            done += 1;
        }
        if retired.iter().any(Option::is_some) {
            grant::flush_after_unmap(mapper);
        }
        grant::unmap_finish(mapper, retired.into_iter().flatten());
        result?;
    }
    OK
}

#[inline]
fn unmap(cx: &Caller, r: &impl Unmap, retired: &mut Option<Retired>) -> i16 {
    // Whether the address is that of an entry is what the map said; both are tried as the handle's kind demands.
    let root = cx.vcpu.kernel_root.get();
    let mapper = cx.domain();
    let (host_addr, new_addr, dev_bus_addr, handle) = r.parts();
    let is_entry = host_addr != 0 && mapper.grants.track().is_by_entry(handle);
    let place = |addr, is_entry| (addr != 0).then_some(Place { addr, is_entry, root });
    match grant::unmap(mapper, handle, place(host_addr, is_entry), place(new_addr, false), dev_bus_addr) {
        Ok(parts) => {
            *retired = parts;
            GntStatus::Okay.raw()
        }
        Err(e) => e.raw(),
    }
}

/// Copies bytes between pages, of which each is the caller's own or granted to it.
fn copy_all(cx: &mut Caller, list: GuestPtr<op::GrantCopy>, count: u32) -> Outcome {
    let mut done = 0;
    while done < count {
        if done > 0 && cx.preempt_pending() {
            return proceed(cx, list, count, done);
        }
        let mut copier = Copier::new(cx.domain());
        for _ in 0..PREEMPT_EVERY.min(count - done) {
            let at = list.at(u64::from(done))?;
            let result = copier.copy(&at.read()?);
            let answer = at.addr().wrapping_add(offset_of!(op::GrantCopy, status) as u64);
            write_u16(answer, status(result).cast_unsigned())?;
            done += 1;
        }
    }
    OK
}

/// Gives a page of the caller's to a domain that waits for one, and is not dying. The page must be used for nothing
/// else.
fn transfer(cx: &Caller, r: &mut op::Transfer) {
    let from = cx.domain();
    let result = (|| {
        let mfn = Mfn::new(r.mfn);
        let small = u32::try_from(r.mfn).map_err(|_| GntStatus::AddressTooBig)?;
        let to = domain::find(r.domid).ok_or(GntStatus::BadDomain)?;
        if to.id == from.id {
            return Err(GntStatus::BadDomain);
        }
        let _admitted = to.mm.admit().ok_or(GntStatus::GeneralError)?;
        mmu().steal(from.mm.id, mfn).map_err(|_| GntStatus::BadPage)?;
        let is_noted = frames::frame(mfn).is_none_or(|frame| frame.count().is_noted());
        let accepted = if is_noted {
            // A snapshot wants it back.
            Err(GntStatus::BadPage)
        } else if make_dma_room(to.mm.id, mfn, 1) && to.mm.charge(1) {
            to.grants.table().accept_transfer(from.id, r.gref).inspect_err(|_| to.mm.uncharge(1))
        } else {
            Err(GntStatus::NoSpace)
        };
        if let Err(e) = accepted {
            mmu().unsteal(from.mm.id, mfn);
            return Err(e);
        }
        // No snapshot is made meanwhile: for that this vCPU would have to stand still.
        let gone = mmu().let_go(mfn);
        debug_assert_eq!(gone, Gone::Free);
        mmu().flush_before_reuse(mfn);
        from.mm.uncharge(1);
        mmu().env.m2p_set(mfn, INVALID_M2P_ENTRY);
        if let Some(frame) = frames::frame(mfn) {
            frame.assign(to.mm.id);
        }
        // It was not free, so nobody had claimed it; but its new owner needs one frame fewer.
        claims::use_up(&to.mm, 1);
        to.grants.table().finish_transfer(r.gref, Some(small));
        Ok(())
    })();
    r.status = status(result);
}

fn setup_table(cx: &Caller, r: &mut op::SetupTable) {
    let result = target(cx, r.dom).and_then(|d| {
        d.grants.grow(&d, r.nr_frames)?;
        let list = GuestPtr::<u64>::new(r.frame_list);
        for i in 0..r.nr_frames {
            let mfn = d.grants.frame(&d, i).ok_or(GntStatus::GeneralError)?;
            list.at(u64::from(i)).and_then(|at| at.write(&mfn.raw())).map_err(|_| GntStatus::BadVirtAddr)?;
        }
        Ok(())
    });
    r.status = status(result);
}

fn query_size(cx: &Caller, r: &mut op::QuerySize) {
    let result = target(cx, r.dom).map(|d| {
        let table = d.grants.table();
        r.nr_frames = u32::try_from(table.frames().len()).unwrap_or(u32::MAX);
        r.max_nr_frames = table.max_frames();
    });
    r.status = status(result);
}
