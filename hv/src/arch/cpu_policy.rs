//! CPUID policies of this machine.

use crate::arch::lfence;
use crate::cpu;
use crate::sync::Once;
use hv_core::cpuid::{HostCpuid, Policy};
use x86::cpuid::CpuidRegs;

/// The policies that the tools may ask for.
pub struct Policies {
    /// The processor's.
    pub raw: Policy,
    /// The most that a PV guest can be given.
    pub pv_max: Policy,
    /// What a PV guest is given.
    pub pv_default: Policy,
}

/// The processor that runs this.
pub struct Processor;

impl HostCpuid for Processor {
    fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegs {
        cpu::cpuid(leaf, subleaf)
    }
}

static POLICIES: Once<Policies> = Once::new();

/// The policies of this machine, of which all CPUs are up.
pub fn policies() -> &'static Policies {
    POLICIES.call_once(|| {
        let raw = Policy::raw(&Processor);
        let host = if lfence::is_serialising() { raw.clone().with_serialising_lfence() } else { raw.clone() };
        Policies { pv_max: Policy::pv_max(&host), pv_default: Policy::pv_default(&host), raw }
    })
}
