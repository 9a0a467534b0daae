//! Lists of requests on page tables, which are done in parts: what `mmu_update` and `mmuext_op` have in common.

use super::{Caller, Done, GuestPtr, Outcome};
use xen_abi::errno::Errno;
use xen_abi::mmu::MMU_UPDATE_PREEMPTED;

/// How many requests were completed, and why it stopped if those are not all. ERESTART: the rest is to be done later.
pub type Progress = (u32, Result<(), Errno>);

/// The rest of a list.
#[derive(Clone, Copy)]
pub struct Rest<T> {
    pub requests: GuestPtr<T>,
    pub count: u32,
    /// An earlier part was preempted, perhaps with all requests done and only their consequences left.
    pub is_continued: bool,
}

/// Has `part` work on the `count` requests that the caller's first two arguments name, and records how far it came
/// there and, as the total of all parts, in `done`. Errors: EFAULT; those of `part`.
#[inline(always)]
pub fn run<T>(
    cx: &mut Caller,
    requests: GuestPtr<T>,
    count: u32,
    done: GuestPtr<u32>,
    part: impl FnOnce(&mut Caller, Rest<T>) -> Progress,
) -> Outcome {
    let is_continued = count & MMU_UPDATE_PREEMPTED != 0;
    let count = count & !MMU_UPDATE_PREEMPTED;
    let before = if is_continued && !done.is_null() { done.read()? } else { 0 };
    let (completed, result) = part(cx, Rest { requests, count, is_continued });
    if !done.is_null() {
        done.write(&before.wrapping_add(completed))?;
    }
    match result {
        Ok(()) => Ok(Done::Return(0)),
        Err(Errno::ERESTART) => {
            *cx.arg_mut(0) = requests.at(u64::from(completed))?.addr();
            *cx.arg_mut(1) = u64::from((count - completed) | MMU_UPDATE_PREEMPTED);
            Ok(Done::Continue)
        }
        Err(errno) => Err(errno),
    }
}
