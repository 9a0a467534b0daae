//! `set_debugreg` and `get_debugreg`.

use super::{Caller, Done, Outcome, OK};
use crate::pv::debugreg;
use xen_abi::errno::Errno;

/// Sets debug register `reg` (0-3, 6, 7) of the calling vCPU. Errors: EPERM for an address that is not canonical or is
/// the hypervisor's, or bits that are not allowed; EINVAL for another register. Source: public/xen.h.
pub fn set(cx: &mut Caller, reg: u32, value: u64) -> Outcome {
    debugreg::store(cx.vcpu, reg, value)?;
    debugreg::load(cx.vcpu);
    OK
}

/// Reads debug register `reg`; 4 and 5 are 6 and 7. Errors: EINVAL.
pub fn get(cx: &mut Caller, reg: u32) -> Outcome {
    let index = match reg {
        0..=3 | 6 | 7 => reg,
        4 | 5 => reg + 2,
        _ => return Err(Errno::EINVAL),
    };
    Ok(Done::Return(cx.vcpu.debugreg[index as usize].get() as i64))
}
