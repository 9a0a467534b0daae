//! `set_gdt`.

use super::{Caller, GuestPtr, Outcome, OK};
use crate::pv::address_space;
use xen_abi::errno::Errno;
use xen_abi::layout::{FIRST_RESERVED_GDT_ENTRY, FIRST_RESERVED_GDT_PAGE};

/// Makes the frames at `frames` (one for 512 entries) the GDT of the calling vCPU. Errors: EFAULT; EINVAL for more than
/// 14 pages of entries, or frames that are not the caller's, are mapped writable, or hold descriptors that guests may
/// not have. Source: public/xen.h, HYPERVISOR_set_gdt.
pub fn call(cx: &mut Caller, frames: GuestPtr<u64>, entries: u32) -> Outcome {
    if entries as usize > FIRST_RESERVED_GDT_ENTRY {
        return Err(Errno::EINVAL);
    }
    let mut list = [0; FIRST_RESERVED_GDT_PAGE];
    frames.read_slice(&mut list[..entries.div_ceil(512) as usize])?;
    address_space::set_gdt(cx.vcpu, &list, entries, true)?;
    OK
}
