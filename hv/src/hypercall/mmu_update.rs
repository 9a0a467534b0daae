//! `mmu_update`.

use super::batch::{self, Progress, Rest};
use super::{foreign, Caller, GuestPtr, Outcome};
use crate::cpu::percpu::{pending, this_cpu};
use crate::domain::memory::mmu_env::mmu;
use hv_core::mmu::{ForeignDom, MmuError, Owners};
use xen_abi::errno::Errno;
use xen_abi::mmu::MmuUpdate;

/// Requests between two looks at what else is to be done, if they are short ones.
const STRIDE: u32 = 64;

/// Executes `count` requests. `foreign`: owner of the frames in bits 0-15 (DOMID_SELF: the caller), owner of the page
/// tables plus one in bits 16-31 (0: the caller). The number of requests done goes to `done`, also after an error.
/// Preemptible. Errors: EINVAL for entries and tables that are not fit; ENOSYS for unknown commands; EPERM; ESRCH;
/// EFAULT. Differs from Xen, where it is an option (`pv-linear-pt`): a table in a table of its own level, to be read as
/// a page, is not fit.
/// Source: public/xen.h, HYPERVISOR_mmu_update.
pub fn call(cx: &mut Caller, reqs: GuestPtr<MmuUpdate>, count: u32, done: GuestPtr<u32>, foreign: u32) -> Outcome {
    batch::run(cx, reqs, count, done, |cx, rest| part(cx, rest, foreign))
}

#[inline]
fn part(cx: &mut Caller, rest: Rest<MmuUpdate>, foreign: u32) -> Progress {
    let Rest { requests: reqs, count, .. } = rest;
    let own = cx.domain().mm.id;
    let foreign = ForeignDom::from_word(foreign, own);
    let other = match foreign.table {
        None => None,
        Some(id) => match foreign::target(cx, id) {
            Ok(d) => Some(d),
            Err(errno) => return (0, Err(errno)),
        },
    };
    let table = other.as_deref().unwrap_or(cx.domain()).mm.id;
    let frame = if foreign.frame == own {
        own
    } else {
        match foreign::frame_owner(cx, foreign.frame.0) {
            Ok(id) => id,
            Err(errno) => return (0, Err(errno)),
        }
    };
    let who = Owners { table, frame };
    let mut i: u32 = 0;
    loop {
        let end = count.min(i.saturating_add(STRIDE));
        {
            let mut lock = other.as_deref().unwrap_or(cx.domain()).mm.lock();
            while i < end && !cx.is_used_up() {
                let request = match reqs.at(u64::from(i)).and_then(GuestPtr::read) {
                    Ok(request) => request,
                    Err(errno) => return (i, Err(mmu().settle_after(errno, &mut lock))),
                };
                match mmu().mmu_update(request.ptr, request.val, who, &mut lock) {
                    Ok(()) => i += 1,
                    Err(MmuError::Preempted) => break,
                    Err(MmuError::Contended) => {
                        // Another vCPU of the domain has to finish first.
                        this_cpu().raise(pending::SCHEDULE);
                        break;
                    }
                    Err(why) => return (i, Err(mmu().settle_after(why, &mut lock).into())),
                }
            }
            // A table that was cut off is ordinary memory before the guest goes on.
            if i >= count && mmu().drain(&mut lock).is_ok() {
                return (i, Ok(()));
            }
        }
        if cx.preempt_pending() {
            return (i, Err(Errno::ERESTART));
        }
    }
}
