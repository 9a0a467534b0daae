//! Interrupts of the machine: to the hypervisor's own handlers or to guests.

use xen_abi::regs::CpuUserRegs;

/// Handles interrupt `vector`.
pub fn handle(_vector: u8) {}
/// Handles an NMI.
pub fn nmi(_regs: &mut CpuUserRegs) {}
