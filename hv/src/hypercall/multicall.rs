//! `multicall`: a list of hypercalls in one.

use super::{table, Caller, Done, GuestPtr, Outcome, OK};
use crate::mem::guest_ptr::plain;
use core::mem::offset_of;
use xen_abi::errno::Errno;
use xen_abi::hypercall::{MulticallEntry, MULTICALL};

plain!(MulticallEntry);

/// Executes the `count` calls at `list` in order and stores the result of each. Stops at a call that changes the mode
/// (iret). Preemptible between and inside calls: all of them have one allowance, and none begins when that is used up.
/// Errors:
/// EFAULT. Source: public/xen.h, HYPERVISOR_multicall.
pub fn call(cx: &mut Caller, list: GuestPtr<MulticallEntry>, count: u32) -> Outcome {
    for i in 0..count {
        let at = list.at(u64::from(i))?;
        if i != 0 && (i % 16 == 0 || cx.is_used_up()) && cx.preempt_pending() {
            *cx.arg_mut(0) = at.addr();
            *cx.arg_mut(1) = u64::from(count - i);
            return Ok(Done::Continue);
        }
        let mut entry = at.read()?;
        let done = if entry.op == u64::from(MULTICALL) {
            Done::Return(Errno::ENOSYS.to_ret())
        } else {
            let (vcpu, interruptible) = (cx.vcpu, cx.interruptible.again());
            table::call(&mut Caller { vcpu, regs: cx.regs, element: Some(&mut entry.args), interruptible }, entry.op)
        };
        let result = match done {
            Done::Return(value) => value,
            Done::NoReturn => return Ok(Done::NoReturn),
            Done::Continue => {
                // The call's progress goes into its entry, and the batch starts again at that entry.
                GuestPtr::<[u64; 6]>::new(at.addr().wrapping_add(offset_of!(MulticallEntry, args) as u64))
                    .write(&entry.args)?;
                *cx.arg_mut(0) = at.addr();
                *cx.arg_mut(1) = u64::from(count - i);
                return Ok(Done::Continue);
            }
        };
        crate::mem::copy::write_u64(at.addr().wrapping_add(offset_of!(MulticallEntry, result) as u64), result as u64)?;
        if !cx.vcpu.is_runnable() || !cx.vcpu.kernel_mode.get() {
            // A call that blocked, stopped or left kernel mode ends the batch here.
            if i + 1 < count {
                *cx.arg_mut(0) = list.at(u64::from(i) + 1)?.addr();
                *cx.arg_mut(1) = u64::from(count - i - 1);
                return Ok(Done::Continue);
            }
        }
    }
    OK
}
