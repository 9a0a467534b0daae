//! `fpu_taskswitch`: the guest's CR0.TS.

use super::{Caller, Outcome, OK};
use crate::arch::cpu;

/// Sets (`set` not 0) or clears the task-switched flag of the calling vCPU. Source: public/xen.h.
#[inline]
pub fn call(cx: &mut Caller, set: u32) -> Outcome {
    let set = set != 0;
    if set != cx.vcpu.task_switched.get() {
        cx.vcpu.task_switched.set(set);
        if set {
            cpu::stts();
        } else {
            cpu::clts();
        }
    }
    OK
}
