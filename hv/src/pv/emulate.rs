//! Privileged instructions of a guest.

use crate::vcpu::Vcpu;
use xen_abi::regs::CpuUserRegs;

/// A #GP. Whether it was dealt with (also by delivering something else).
pub fn general_protection(_v: &Vcpu, _regs: &mut CpuUserRegs) -> bool {
    false
}
/// A #UD. Whether it was a forced emulation.
pub fn undefined_opcode(_v: &Vcpu, _regs: &mut CpuUserRegs) -> bool {
    false
}
