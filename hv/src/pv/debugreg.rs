//! The debug registers of a vCPU: breakpoints on its own memory.

use crate::cpu;
use crate::domain::vcpu::OwnedVcpu;
use hv_core::control;
use xen_abi::errno::Errno;

/// Checks and stores a value without loading it.
pub fn store(v: &OwnedVcpu, reg: u32, value: u64) -> Result<(), Errno> {
    let taken = match reg {
        0..=3 => control::write_breakpoint(value).ok_or(Errno::EPERM)?,
        6 => control::write_dr6(value),
        7 => control::write_dr7(value).ok_or(Errno::EPERM)?,
        _ => return Err(Errno::EINVAL),
    };
    v.debugreg[reg as usize].set(taken);
    Ok(())
}

/// Loads the vCPU's debug registers if it uses any, but for DR6: there the CPU says what happened, and the next guest
/// that it says something to is not to see what this one has in its own.
pub fn load(v: &OwnedVcpu) {
    let dr7 = v.debugreg[7].get();
    // SAFETY: `set` admitted only guest addresses; DR7 without GD and without I/O breakpoints.
    unsafe {
        if dr7 & x86::rflags::DR7_ENABLE_MASK != 0 {
            cpu::write_dr0(v.debugreg[0].get());
            cpu::write_dr1(v.debugreg[1].get());
            cpu::write_dr2(v.debugreg[2].get());
            cpu::write_dr3(v.debugreg[3].get());
        }
        cpu::write_dr7(dr7);
    }
}

/// Does the vCPU have breakpoints enabled?
#[inline]
pub fn in_use(v: &OwnedVcpu) -> bool {
    v.debugreg[7].get() & x86::rflags::DR7_ENABLE_MASK != 0
}
