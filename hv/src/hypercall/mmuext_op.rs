//! `mmuext_op`: pins, roots, flushes, the LDT, page operations.

use super::batch::{self, Progress, Rest};
use super::{foreign, Caller, GuestPtr, Outcome};
use crate::arch::tlb;
use crate::cpu::{self, percpu::this_cpu};
use crate::domain::memory::mmu_env::mmu;
use crate::domain::memory::DomainMm;
use crate::pv::address_space::{finish_dropped, new_baseptr, new_user_baseptr, refused, set_ldt};
use hv_core::allowance::PAGE;
use hv_core::mmu::{ext::check_ldt, Flush, FlushWhat, FlushWhere};
use x86::{Level, Mfn};
use xen_abi::errno::Errno;
use xen_abi::mmu as ext;
use xen_abi::mmu::MmuextOp;

/// Executes `count` operations; those that name frames mean frames of domain `foreign`. The number of operations done
/// goes to `done`, also after an error. Preemptible. Errors: EINVAL for frames that are not fit; EOPNOTSUPP for
/// superpage marks; ENOSYS for unknown commands; EACCES for cache flushes by a domain without devices; EPERM; ESRCH;
/// EFAULT. Source: public/xen.h, HYPERVISOR_mmuext_op.
pub fn call(cx: &mut Caller, ops: GuestPtr<MmuextOp>, count: u32, done: GuestPtr<u32>, foreign: u32) -> Outcome {
    batch::run(cx, ops, count, done, |cx, rest| part(cx, rest, foreign as u16))
}

#[inline]
fn part(cx: &mut Caller, rest: Rest<MmuextOp>, foreign: u16) -> Progress {
    let Rest { requests: ops, count, is_continued } = rest;
    let target = match foreign::target(cx, foreign) {
        Ok(target) => target,
        Err(errno) => return (0, Err(errno)),
    };
    let mut i = 0;
    let mut drops = is_continued;
    while i < count {
        let op = match ops.at(u64::from(i)).and_then(GuestPtr::read) {
            Ok(op) => op,
            Err(errno) => return (i, Err(settle_after(errno, &target.mm))),
        };
        match execute(cx, &target.mm, op) {
            Ok(()) => {
                i += 1;
                drops |=
                    matches!(op.cmd, ext::MMUEXT_UNPIN_TABLE | ext::MMUEXT_NEW_BASEPTR | ext::MMUEXT_NEW_USER_BASEPTR);
                if i < count && (i % 16 == 0 || cx.is_used_up()) && cx.preempt_pending() {
                    return (i, Err(Errno::ERESTART));
                }
            }
            Err(Errno::ERESTART) => {
                if cx.preempt_pending() {
                    return (i, Err(Errno::ERESTART));
                }
            }
            Err(errno) => return (i, Err(settle_after(errno, &target.mm))),
        }
    }
    while drops && !finish_dropped(&target.mm) {
        if cx.preempt_pending() {
            return (i, Err(Errno::ERESTART));
        }
    }
    (i, Ok(()))
}

/// What a list ends with that an error ends.
#[cold]
fn settle_after(why: Errno, mm: &DomainMm) -> Errno {
    mmu().settle_after(why, &mut mm.lock())
}

#[inline]
fn execute(cx: &Caller, mm: &DomainMm, op: MmuextOp) -> Result<(), Errno> {
    let (v, own) = (cx.vcpu, &cx.domain().mm);
    let mfn = Mfn::new(op.arg1);
    match op.cmd {
        ext::MMUEXT_NEW_BASEPTR => same_domain(own, mm).and_then(|()| new_baseptr(v, mfn)),
        ext::MMUEXT_NEW_USER_BASEPTR => same_domain(own, mm).and_then(|()| new_user_baseptr(v, mfn)),
        ext::MMUEXT_PIN_L1_TABLE => pin(own, mm, mfn, Level::L1),
        ext::MMUEXT_PIN_L2_TABLE => pin(own, mm, mfn, Level::L2),
        ext::MMUEXT_PIN_L3_TABLE => pin(own, mm, mfn, Level::L3),
        ext::MMUEXT_PIN_L4_TABLE => pin(own, mm, mfn, Level::L4),
        ext::MMUEXT_UNPIN_TABLE => mmu().unpin(mm.id, mfn, &mut mm.lock()).map_err(refused),
        ext::MMUEXT_TLB_FLUSH_LOCAL
        | ext::MMUEXT_INVLPG_LOCAL
        | ext::MMUEXT_TLB_FLUSH_MULTI
        | ext::MMUEXT_INVLPG_MULTI
        | ext::MMUEXT_TLB_FLUSH_ALL
        | ext::MMUEXT_INVLPG_ALL => {
            same_domain(own, mm)?;
            match Flush::from_mmuext(op.cmd, op.arg1, op.arg2) {
                Some(request) => flush(cx, request),
                None => Ok(()),
            }
        }
        ext::MMUEXT_FLUSH_CACHE | ext::MMUEXT_FLUSH_CACHE_GLOBAL => {
            if !cx.domain().io.has_io() {
                return Err(Errno::EACCES);
            }
            cpu::wbinvd();
            // Milliseconds, where caches are large.
            this_cpu().allowance.spend_all();
            Ok(())
        }
        ext::MMUEXT_SET_LDT => {
            same_domain(own, mm)?;
            let (base, entries) = check_ldt(op.arg1, op.arg2)?;
            set_ldt(v, base, entries);
            Ok(())
        }
        ext::MMUEXT_CLEAR_PAGE => {
            this_cpu().allowance.spend(PAGE);
            Ok(mmu().clear_page(mm.id, mfn)?)
        }
        ext::MMUEXT_COPY_PAGE => {
            this_cpu().allowance.spend(PAGE);
            Ok(mmu().copy_page(mm.id, mfn, Mfn::new(op.arg2))?)
        }
        ext::MMUEXT_MARK_SUPER | ext::MMUEXT_UNMARK_SUPER => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::ENOSYS),
    }
}

fn same_domain(own: &DomainMm, mm: &DomainMm) -> Result<(), Errno> {
    if own.id == mm.id {
        Ok(())
    } else {
        Err(Errno::EPERM)
    }
}

/// Pins a table. Who takes the memory of a dying domain looks at each frame once: nobody pins one of another domain
/// behind him. ESRCH if that dies.
fn pin(own: &DomainMm, mm: &DomainMm, mfn: Mfn, level: Level) -> Result<(), Errno> {
    let _admitted = match same_domain(own, mm) {
        Ok(()) => None,
        Err(_) => Some(mm.admit().ok_or(Errno::ESRCH)?),
    };
    mmu().pin(mm.id, mfn, level, &mut mm.lock()).map_err(refused)
}

/// Does a flush that the calling vCPU asks for. Errors: EFAULT for a bitmap that cannot be read.
#[inline]
pub fn flush(cx: &Caller, request: Flush) -> Result<(), Errno> {
    let what = match request.what {
        FlushWhat::All => tlb::What::All,
        FlushWhat::Page(va) => tlb::What::Page(va.raw()),
    };
    match request.whom {
        FlushWhere::Local => tlb::flush_local(what),
        FlushWhere::All => tlb::flush(cx.domain().cpus_to_flush(), what),
        FlushWhere::VcpuMask(bitmap) => {
            let bitmap = GuestPtr::<u64>::new(bitmap);
            let mask = cx.domain().cpus_to_flush_of(|n| bitmap.at(n.into())?.read())?;
            tlb::flush(mask, what);
        }
    }
    Ok(())
}
