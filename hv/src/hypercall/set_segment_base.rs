//! `set_segment_base`: FS and GS bases without trapping MSR accesses.

use super::{Caller, Outcome, OK};
use crate::cpu::{self, msr};
use x86::addr::is_canonical;
use xen_abi::errno::Errno;

const FS: u32 = 0;
const GS_USER: u32 = 1;
const GS_KERNEL: u32 = 2;
const GS_USER_SEL: u32 = 3;

/// Sets FS base (0), user GS base (1), kernel GS base (2), or the user GS selector (3; one that does not load becomes
/// null). Errors: EINVAL for a non-canonical base or another `which`. Source: public/arch-x86/xen-x86_64.h.
#[inline]
pub fn call(_cx: &mut Caller, which: u32, base: u64) -> Outcome {
    extern "C" {
        fn load_user_gs(selector: u32) -> u32;
    }
    let register = match which {
        FS => msr::IA32_FS_BASE,
        // The caller is in kernel mode, so the user's GS base is the inactive one.
        GS_USER => msr::IA32_KERNEL_GS_BASE,
        GS_KERNEL => msr::IA32_GS_BASE,
        GS_USER_SEL => {
            // SAFETY: loads a ring-3 selector with a null fall-back; the hypervisor does not use GS.
            unsafe { load_user_gs(base as u32 & 0xffff) };
            return OK;
        }
        _ => return Err(Errno::EINVAL),
    };
    if !is_canonical(base) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: base registers of the guest; the value is canonical.
    unsafe { cpu::wrmsr(register, base) };
    OK
}
