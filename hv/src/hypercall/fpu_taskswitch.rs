//! `fpu_taskswitch`: the guest's CR0.TS.

use super::{Caller, Outcome, OK};
use crate::pv::control_regs;

/// Sets (`set` not 0) or clears the task-switched flag of the calling vCPU. Source: public/xen.h.
#[inline]
pub fn call(cx: &mut Caller, set: u32) -> Outcome {
    control_regs::set_task_switched(cx.vcpu, set != 0);
    OK
}
