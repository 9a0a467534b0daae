//! Switching a vCPU between guest-kernel and guest-user mode, and loading page-table roots.

use crate::cpu;
use crate::domain::vcpu::OwnedVcpu;
use crate::pv::{time, vtlb};
use core::sync::atomic::Ordering;
use x86::Mfn;

/// Loads `root` into CR3, which drops all translations of guests: none of them is global. It is a root of the vCPU that
/// this CPU runs, for the mode that the vCPU is in.
#[inline(always)]
pub fn load_root(root: Mfn) {
    // SAFETY: a vCPU that runs has a root for its mode (`context::set`; without a context it does not run, and without
    // a user root it does not get into user mode), on which it holds a reference as a validated L4 table. That has the
    // hypervisor's slots, and so has the root of a cache.
    unsafe { cpu::write_cr3(root.addr().raw()) };
}

/// Switches the running vCPU from user to kernel mode.
#[inline]
pub fn to_kernel(v: &OwnedVcpu) {
    v.kernel_mode.set(true);
    cpu::swapgs();
    load_root(vtlb::hardware_root_or(v, v.kernel_root.get()));
    if v.stale_areas.load(Ordering::Relaxed) != 0 {
        time::update_stale_areas(v);
    }
}

/// Runs `f`, which reads guest memory, in the address space of the guest kernel, whatever mode the running vCPU is in.
pub fn in_kernel_space<R>(v: &OwnedVcpu, f: impl FnOnce() -> R) -> R {
    if v.kernel_mode.get() {
        return f();
    }
    v.kernel_mode.set(true);
    load_root(vtlb::hardware_root(v));
    let result = f();
    v.kernel_mode.set(false);
    load_root(vtlb::hardware_root(v));
    result
}

/// Switches the running vCPU to user mode for an iret hypercall. `false` if it has no user root.
pub fn leave_kernel(v: &OwnedVcpu) -> bool {
    if v.user_root.get().raw() == 0 {
        return false;
    }
    to_user(v);
    true
}

/// Switches the running vCPU from kernel to user mode. It must have a user root.
#[inline]
pub fn to_user(v: &OwnedVcpu) {
    v.kernel_mode.set(false);
    cpu::swapgs();
    load_root(vtlb::hardware_root_or(v, v.user_root.get()));
}
