//! The debug registers of a vCPU: breakpoints on its own memory.

use crate::cpu;
use crate::domain::vcpu::Vcpu;
use x86::rflags::{DR6_DEFAULT, DR7_DEFAULT, DR7_GD, DR7_MUST_BE_ZERO};
use xen_abi::errno::Errno;
use xen_abi::layout::{HYPERVISOR_VIRT_END, HYPERVISOR_VIRT_START};

/// Checks and stores a value without loading it.
pub fn store(v: &Vcpu, reg: u32, value: u64) -> Result<(), Errno> {
    match reg {
        0..=3 => {
            if !x86::addr::is_canonical(value) || (HYPERVISOR_VIRT_START..HYPERVISOR_VIRT_END).contains(&value) {
                return Err(Errno::EPERM);
            }
            v.debugreg[reg as usize].set(value);
        }
        6 => v.debugreg[6].set((value & 0xe00f) | DR6_DEFAULT),
        7 => {
            if value & DR7_GD != 0 || value >> 32 != 0 {
                return Err(Errno::EPERM);
            }
            // I/O breakpoints (type 2) need CR4.DE, which guests do not get.
            if (0..4).any(|i| value >> (16 + 4 * i) & 3 == 2) {
                return Err(Errno::EPERM);
            }
            v.debugreg[7].set((value & !DR7_MUST_BE_ZERO) | DR7_DEFAULT);
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// Loads the vCPU's debug registers if it uses any.
pub fn load(v: &Vcpu) {
    let dr7 = v.debugreg[7].get();
    // SAFETY: `set` admitted only guest addresses; DR7 without GD and without I/O breakpoints.
    unsafe {
        if dr7 & x86::rflags::DR7_ENABLE_MASK != 0 {
            cpu::write_dr0(v.debugreg[0].get());
            cpu::write_dr1(v.debugreg[1].get());
            cpu::write_dr2(v.debugreg[2].get());
            cpu::write_dr3(v.debugreg[3].get());
            cpu::write_dr6(v.debugreg[6].get());
        }
        cpu::write_dr7(dr7);
    }
}

/// Does the vCPU have breakpoints enabled?
#[inline]
pub fn in_use(v: &Vcpu) -> bool {
    v.debugreg[7].get() & x86::rflags::DR7_ENABLE_MASK != 0
}
