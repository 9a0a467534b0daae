//! What CPUID says to a vCPU.

use crate::arch::{fpu, tsc, tsc_warp};
use crate::domain::vcpu::OwnedVcpu;
use crate::mem;
use core::sync::atomic::Ordering;
use hv_core::control;
use hv_core::cpuid::{TscView, View};
use x86::cpuid::CpuidRegs;
use x86::rflags::Cr4;

/// CPUID for `v`.
pub fn lookup(v: &OwnedVcpu, leaf: u32, subleaf: u32) -> CpuidRegs {
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
            host_tsc_reliable: tsc::is_invariant() && tsc_warp::are_alike(),
            mode: domain.tsc_mode.load(Ordering::Relaxed),
            khz,
            host_khz: khz,
            incarnation: domain.tsc_incarnation.load(Ordering::Relaxed),
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
pub fn cr4_choice(v: &OwnedVcpu, value: u64) -> u64 {
    control::write_cr4(&v.domain().cpu_policy.read(), value)
}
