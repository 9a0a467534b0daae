//! `update_va_mapping`: one L1 entry of the current address space, and a flush.

use super::{foreign, mmuext_op, Caller, Outcome, OK};
use crate::domain::memory::mmu_env::mmu;
use hv_core::mmu::{Flush, Owners};
use x86::{Pte, VirtAddr};
use xen_abi::errno::Errno;

/// Makes `value` the L1 entry that maps `va`, then flushes as `flags` (UVMF_*) say. Errors: EINVAL for addresses that
/// no L1 table maps and for entries that are not fit; EPERM for I/O memory.
/// Source: public/xen.h, HYPERVISOR_update_va_mapping.
#[inline]
pub fn call(cx: &mut Caller, va: u64, value: u64, flags: u64) -> Outcome {
    update(cx, va, value, flags, Owners::both(cx.domain().mm.id))
}

/// As update_va_mapping (14), for a frame of domain `domid`. Errors: the same; EPERM; ESRCH.
pub fn other_domain(cx: &mut Caller, va: u64, value: u64, flags: u64, domid: u32) -> Outcome {
    let domid = u16::try_from(domid).map_err(|_| Errno::ESRCH)?;
    let frame = foreign::frame_owner(cx, domid)?;
    update(cx, va, value, flags, Owners { table: cx.domain().mm.id, frame })
}

#[inline]
fn update(cx: &mut Caller, va: u64, value: u64, flags: u64, who: Owners) -> Outcome {
    let va = VirtAddr::new(va).ok_or(Errno::EINVAL)?;
    let root = cx.vcpu.kernel_root.get();
    {
        let lock = cx.domain().mm.lock();
        mmu().update_va_mapping(root, va, Pte(value), who, lock.locked())?;
    }
    if flags != 0 {
        if let Some(request) = Flush::from_uvmf(flags, va)? {
            mmuext_op::flush(cx, request)?;
        }
    }
    OK
}
