//! `multicall`: a list of hypercalls in one.

use super::{table, Caller, Done, GuestPtr, Outcome, OK};
use crate::hypercall::guest_ptr::plain;
use xen_abi::hypercall::MULTICALL;

/// One element of the list (public/xen.h, `multicall_entry`).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Entry {
    /// Hypercall number.
    pub op: u64,
    /// Where its result goes.
    pub result: i64,
    /// Its arguments.
    pub args: [u64; 6],
}
const _: () = assert!(size_of::<Entry>() == 64);
plain!(Entry);

/// Offset of `result` in an entry.
const RESULT: u64 = 8;
/// Offset of `args`.
const ARGS: u64 = 16;

/// Executes the `count` calls at `list` in order and stores the result of each. Stops at a call that changes the mode
/// (iret). Preemptible between and inside calls. Errors: EFAULT. Source: public/xen.h, HYPERVISOR_multicall.
pub fn call(cx: &mut Caller, list: GuestPtr<Entry>, count: u32) -> Outcome {
    for i in 0..count {
        let at = list.at(u64::from(i))?;
        if i != 0 && i % 16 == 0 && cx.preempt_pending() {
            cx.args[0] = at.addr();
            cx.args[1] = u64::from(count - i);
            return Ok(Done::Continue);
        }
        let entry = at.read()?;
        cx.args = entry.args;
        let outcome = if entry.op == u64::from(MULTICALL) {
            Err(xen_abi::errno::Errno::ENOSYS)
        } else {
            table::call(cx, entry.op)
        };
        let result = match outcome {
            Ok(Done::Return(value)) => value,
            Ok(Done::NoReturn) => return Ok(Done::NoReturn),
            Ok(Done::Continue) | Err(xen_abi::errno::Errno::ERESTART) => {
                // The call's progress goes into its entry, and the batch starts again at that entry.
                GuestPtr::<[u64; 6]>::new(at.addr().wrapping_add(ARGS)).write(&cx.args)?;
                cx.args[0] = at.addr();
                cx.args[1] = u64::from(count - i);
                return Ok(Done::Continue);
            }
            Err(errno) => errno.to_ret(),
        };
        crate::mem::copy::write_u64(at.addr().wrapping_add(RESULT), result as u64)?;
        if !cx.vcpu.is_runnable() || !cx.vcpu.kernel_mode.get() {
            // A call that blocked, stopped or left kernel mode ends the batch here.
            if i + 1 < count {
                cx.args[0] = list.at(u64::from(i) + 1)?.addr();
                cx.args[1] = u64::from(count - i - 1);
                return Ok(Done::Continue);
            }
        }
    }
    OK
}
