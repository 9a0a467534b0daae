//! `update_descriptor`.

use super::{Caller, Outcome, OK};
use crate::domain::memory::mmu_env::mmu;

/// Writes `descriptor` at machine address `address`, in a descriptor page or in plain memory of the caller. It gets
/// DPL 3.
/// Errors: EINVAL for misaligned addresses, frames that are not the caller's or are page tables, and descriptors that
/// guests may not have. Source: public/xen.h, HYPERVISOR_update_descriptor.
pub fn call(cx: &mut Caller, address: u64, descriptor: u64) -> Outcome {
    let mm = &cx.domain().mm;
    let _lock = mm.lock();
    mmu().update_descriptor(mm.id, address, descriptor)?;
    OK
}
