//! Machine checks: what the CPU found broken in itself or in memory (SDM vol. 3B, chapter 16).
//!
//! None is survived: which memory it hit, and for whom, is known on few machines only, so going on could corrupt a
//! guest. The banks are reported for whoever replaces the part.

use crate::console::print_unlocked;
use crate::cpu::percpu::this_cpu;
use crate::cpu::{self, cpuid, cr, rdmsr_safe, wrmsr_safe};
use crate::warn;
use hv_core::host_msr::HostMsrs;
use hv_core::machine_check::{self, Model};
use x86::cpuid::Vendor;
use x86::msr;

/// CPUID leaf 1, EDX: machine-check exceptions, and the banks.
const CPUID_MCE: u32 = 1 << 7;
const CPUID_MCA: u32 = 1 << 14;

/// The running CPU.
struct Here;

impl HostMsrs for Here {
    fn read(&mut self, index: u32) -> Option<u64> {
        rdmsr_safe(index)
    }

    fn write(&mut self, index: u32, value: u64) -> bool {
        // SAFETY: only machine-check registers are written, which say what is reported.
        unsafe { wrmsr_safe(index, value) }
    }
}

/// Has the running CPU raise a machine check for whatever it finds broken. Its IDT is loaded.
pub fn init_cpu() {
    let features = cpuid(1, 0);
    if features.edx & CPUID_MCE == 0 {
        return;
    }
    if features.edx & CPUID_MCA != 0 {
        let model = Model { vendor: Vendor::from_leaf0(cpuid(0, 0)), signature: features.eax };
        machine_check::enable(&mut Here, model, |logged| {
            warn!("CPU {}: an error from before the start: {logged}", this_cpu().cpu);
        });
    }
    // Without this bit a machine check resets the machine without a word.
    // SAFETY: the CPU has the bit, and the handler and its stack are in place.
    unsafe { cpu::write_cr4(cpu::read_cr4() | cr::CR4_MCE) };
}

/// Prints the banks that hold an error of the running CPU.
pub fn report() {
    let Some(status) = rdmsr_safe(msr::MCG_STATUS) else { return };
    print_unlocked(format_args!("  MCG_STATUS {status:#x}"));
    machine_check::look(&mut Here, |logged| print_unlocked(format_args!("  {logged}")));
}
