//! Writes of a guest kernel to its own page tables.

use crate::vcpu::Vcpu;
use xen_abi::regs::CpuUserRegs;

/// A write fault at `address` on a present page. Whether it was emulated.
pub fn handle(_v: &Vcpu, _regs: &mut CpuUserRegs, _address: u64) -> bool {
    false
}
