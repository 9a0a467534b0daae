//! LFENCE, which guests of AMD's and Hygon's processors are told is serialising if it is.

use crate::cpu::{cpuid, rdmsr_safe, wrmsr_safe};
use core::sync::atomic::{AtomicBool, Ordering};
use hv_core::host_msr::HostMsrs;
use hv_core::lfence;
use x86::cpuid::{CpuidRegs, Vendor};

/// So far it is on every CPU that came up.
static IS_SERIALISING: AtomicBool = AtomicBool::new(true);

/// The running CPU.
struct Here;

impl HostMsrs for Here {
    fn read(&mut self, index: u32) -> Option<u64> {
        rdmsr_safe(index)
    }

    fn write(&mut self, index: u32, value: u64) -> bool {
        // SAFETY: only DE_CFG is written, and in it the one bit that makes LFENCE wait.
        unsafe { wrmsr_safe(index, value) }
    }
}

/// Has LFENCE be serialising on the running CPU.
pub fn init_cpu() {
    let does = Vendor::from_leaf0(cpuid(0, 0)).is_amd_like() && {
        let has_leaf = cpuid(0x8000_0000, 0).eax >= 0x8000_0021;
        lfence::serialise(if has_leaf { cpuid(0x8000_0021, 0) } else { CpuidRegs::ZERO }, &mut Here)
    };
    IS_SERIALISING.fetch_and(does, Ordering::Relaxed);
}

/// Are guests to be told that it is? Not on Intel's processors, where it always is, and there is no word for it. When
/// all CPUs are up.
pub fn is_serialising() -> bool {
    IS_SERIALISING.load(Ordering::Relaxed)
}
