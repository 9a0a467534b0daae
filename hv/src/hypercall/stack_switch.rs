//! `stack_switch`: the kernel stack for entries from user mode.

use super::{Caller, Outcome, OK};

/// Sets selector and stack pointer. The pointer is checked when a frame is built on it. Source: public/xen.h.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "a selector has 16 bits")]
pub fn call(cx: &mut Caller, ss: u64, sp: u64) -> Outcome {
    cx.vcpu.kernel_ss.set(ss as u16 | 3);
    cx.vcpu.kernel_sp.set(sp);
    OK
}
