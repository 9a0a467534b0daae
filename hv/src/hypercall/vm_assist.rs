//! `vm_assist`: optional behaviour that a guest asks for.

use super::{Caller, Outcome, OK};
use core::sync::atomic::Ordering;
use xen_abi::assist::VALID;
use xen_abi::errno::Errno;

/// VMASST_CMD_enable.
const ENABLE: u32 = 0;
/// VMASST_CMD_disable.
const DISABLE: u32 = 1;

/// Enables (0) or disables (1) assist `kind`. Errors: EINVAL for an unknown type, ENOSYS for another command.
/// Source: public/xen.h, VMASST_*.
pub fn call(cx: &mut Caller, cmd: u32, kind: u32) -> Outcome {
    let bit = 1u64.checked_shl(kind).unwrap_or(0);
    if bit & VALID == 0 {
        return Err(Errno::EINVAL);
    }
    match cmd {
        ENABLE => cx.domain().vm_assist.fetch_or(bit, Ordering::Relaxed),
        DISABLE => cx.domain().vm_assist.fetch_and(!bit, Ordering::Relaxed),
        _ => return Err(Errno::ENOSYS),
    };
    OK
}
