//! Switching a vCPU between guest-kernel and guest-user mode, and loading page-table roots.

use crate::arch::{cpu, percpu::this_cpu};
use crate::pv::{time, vtlb};
use crate::vcpu::Vcpu;
use x86::Mfn;

/// Loads `root` into CR3. Translations of user pages survive where they are global: the two roots of one address space
/// share them, and a change of address space flushes them ([`flush_all`]).
#[inline(always)]
pub fn load_root(root: Mfn) {
    this_cpu().loaded_root.set(root.raw());
    // SAFETY: the frame is a validated L4 table, which always has the hypervisor's slots.
    unsafe { cpu::write_cr3(root.addr().raw()) };
}

/// Drops all translations of this CPU, global ones too.
#[inline]
pub fn flush_all() {
    let cr4 = cpu::read_cr4();
    // SAFETY: clearing and restoring PGE flushes everything and changes nothing else (SDM vol. 3A, 4.10.4.1).
    unsafe {
        cpu::write_cr4(cr4 ^ cpu::cr::CR4_PGE);
        cpu::write_cr4(cr4);
    }
}

/// Switches the running vCPU from user to kernel mode.
#[inline]
pub fn to_kernel(v: &Vcpu) {
    v.kernel_mode.set(true);
    cpu::swapgs();
    load_root(vtlb::hardware_root(v));
    if v.runstate_area.get().stale {
        time::update_runstate_area(v);
    }
}

/// Runs `f`, which reads guest memory, in the address space of the guest kernel, whatever mode the running vCPU is in.
pub fn in_kernel_space<R>(v: &Vcpu, f: impl FnOnce() -> R) -> R {
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

/// Switches the running vCPU from kernel to user mode. It must have a user root.
#[inline]
pub fn to_user(v: &Vcpu) {
    v.kernel_mode.set(false);
    cpu::swapgs();
    load_root(vtlb::hardware_root(v));
}
