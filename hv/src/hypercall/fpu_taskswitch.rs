//! `fpu_taskswitch`: the guest's CR0.TS.

use super::{Caller, Outcome, OK};
use crate::cpu;
use crate::domain::vcpu::Vcpu;

/// Sets (`flag` not 0) or clears the task-switched flag of the calling vCPU. Source: public/xen.h.
#[inline]
pub fn call(cx: &mut Caller, flag: u32) -> Outcome {
    set(cx.vcpu, flag != 0);
    OK
}

/// Sets or clears the task-switched flag of `v`, which runs on this CPU.
#[inline]
pub fn set(v: &Vcpu, flag: bool) {
    if flag != v.task_switched.get() {
        v.task_switched.set(flag);
        if flag {
            cpu::stts();
        } else {
            cpu::clts();
        }
    }
}
