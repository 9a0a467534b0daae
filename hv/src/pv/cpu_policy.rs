//! CPUID policies of this machine, and what CPUID says to a vCPU.

use crate::arch::{fpu, tsc};
use crate::domain::vcpu::Vcpu;
use crate::sync::Once;
use crate::{cpu, mem};
use hv_core::control;
use hv_core::cpuid::{HostCpuid, Policy, TscView, View};
use x86::cpuid::CpuidRegs;
use x86::rflags::Cr4;

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

/// The policies of this machine.
pub fn policies() -> &'static Policies {
    POLICIES.call_once(|| {
        let raw = Policy::raw(&Processor);
        Policies { pv_max: Policy::pv_max(&raw), pv_default: Policy::pv_default(&raw), raw }
    })
}

/// CPUID for `v`.
pub fn lookup(v: &Vcpu, leaf: u32, subleaf: u32) -> CpuidRegs {
    let domain = v.domain();
    let scale = tsc::scale();
    let khz = u32::try_from(tsc::frequencies().tsc_hz / 1000).unwrap_or(u32::MAX);
    let kernel = v.kernel_mode.get();
    let view = View {
        vcpu_id: v.id,
        hardware_kernel: domain.is_hardware && kernel,
        // A kernel decides by this bit whether it may use XSAVE at all, before it sets it in CR4.
        osxsave: if kernel { fpu::xcr0_mask() != 0 } else { v.cr4.get() & Cr4::OSXSAVE.bits() != 0 },
        xcr0: v.fpu.xcr0(),
        machine_address_bits: machine_address_bits(),
        tsc: TscView {
            host_tsc_reliable: tsc::is_invariant(),
            mode: 0,
            khz,
            host_khz: khz,
            incarnation: 0,
            offset: 0,
            mul: scale.mul,
            shift: scale.shift,
        },
    };
    domain.cpu_policy.read().lookup(leaf, subleaf, &view)
}

/// Bits that the highest machine address needs.
fn machine_address_bits() -> u32 {
    let last = mem::frames::end().raw().saturating_sub(1);
    u64::BITS - last.leading_zeros() + x86::PAGE_SHIFT
}

/// CR4 bits that a guest of `v`'s domain may choose, of which `value` asks for some.
pub fn cr4_choice(v: &Vcpu, value: u64) -> u64 {
    control::write_cr4(&v.domain().cpu_policy.read(), value)
}
