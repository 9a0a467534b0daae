//! Control registers, XCR0 and debug registers of a PV guest: what it reads, and what it may write.

use crate::cpuid::Policy;
use x86::cpuid::feature;
use x86::rflags::{
    Cr0, Cr4, Xcr0, DR6_DEFAULT, DR7_CONTROL_SHIFT, DR7_CONTROL_SIZE, DR7_DEFAULT, DR7_GD, DR7_MUST_BE_ZERO,
};
use xen_abi::layout::{HYPERVISOR_VIRT_END, HYPERVISOR_VIRT_START};

/// CR0 of every guest, without TS.
pub const GUEST_CR0: u64 = Cr0::PE.bits()
    | Cr0::MP.bits()
    | Cr0::ET.bits()
    | Cr0::NE.bits()
    | Cr0::WP.bits()
    | Cr0::AM.bits()
    | Cr0::PG.bits();
/// CR4 bits that every guest sees set.
pub const GUEST_CR4: u64 = Cr4::PAE.bits() | Cr4::MCE.bits() | Cr4::OSFXSR.bits() | Cr4::OSXMMEXCPT.bits();

/// CR0 as the guest reads it.
#[inline]
pub const fn read_cr0(task_switched: bool) -> u64 {
    GUEST_CR0 | if task_switched { Cr0::TS.bits() } else { 0 }
}

/// Takes a write to CR0: the new TS. None, for #GP, if any other bit would change.
#[inline]
pub const fn write_cr0(value: u64) -> Option<bool> {
    if (value ^ GUEST_CR0) & !Cr0::TS.bits() == 0 {
        Some(value & Cr0::TS.bits() != 0)
    } else {
        None
    }
}

/// CR4 bits that a guest with this policy may set.
pub fn cr4_choices(policy: &Policy) -> u64 {
    let mut choices = Cr4::TSD | Cr4::DE;
    choices.set(Cr4::FSGSBASE, policy.has(feature::FSGSBASE));
    choices.set(Cr4::OSXSAVE, policy.has(feature::XSAVE));
    choices.bits()
}

/// CR4 as the guest reads it; `chosen` is what [`write_cr4`] kept.
#[inline]
pub const fn read_cr4(chosen: u64) -> u64 {
    GUEST_CR4 | chosen
}

/// Takes a write to CR4: what is kept. Other bits are dropped silently, as kernels set what the processor has.
#[inline]
pub fn write_cr4(policy: &Policy, value: u64) -> u64 {
    value & cr4_choices(policy)
}

/// Takes a write to XCR0. None, for #GP, if it is not a valid subset of what the policy offers (SDM vol. 1, 13.3).
pub fn write_xcr0(policy: &Policy, value: u64) -> Option<u64> {
    const ZMM: u64 = Xcr0::OPMASK.bits() | Xcr0::ZMM_HI256.bits() | Xcr0::HI16_ZMM.bits();
    let has = |states: Xcr0| value & states.bits() == states.bits();
    let valid = value & !policy.xcr0_max() == 0
        && has(Xcr0::X87)
        && (value & Xcr0::AVX.bits() == 0 || has(Xcr0::SSE))
        && (value & ZMM == 0 || value & ZMM == ZMM && has(Xcr0::AVX));
    valid.then_some(value)
}

/// Takes a write to breakpoint address register 0-3. None if the address is not the guest's to watch: a breakpoint in
/// the hypervisor would let the guest observe it. Address masks are not offered, so one address is one aligned datum.
#[inline]
pub const fn write_breakpoint(value: u64) -> Option<u64> {
    if x86::addr::is_canonical(value) && (value < HYPERVISOR_VIRT_START || value >= HYPERVISOR_VIRT_END) {
        Some(value)
    } else {
        None
    }
}

/// Takes a write to DR6: bits that are reserved keep their values.
#[inline]
pub const fn write_dr6(value: u64) -> u64 {
    value & 0xe00f | DR6_DEFAULT
}

/// DR6 of a guest that had `before` when the CPU reports `what`: conditions stay until the guest clears them (SDM vol.
/// 3B, 17.2.3).
#[inline]
pub const fn dr6_after(before: u64, what: u64) -> u64 {
    before | write_dr6(what)
}

/// Takes a write to DR7. None if an upper bit or GD is set, or an I/O breakpoint is enabled: no guest has CR4.DE in
/// effect for them.
#[inline]
pub fn write_dr7(value: u64) -> Option<u64> {
    if value >> 32 != 0 || value & DR7_GD != 0 {
        return None;
    }
    let io = (0..4).any(|i| value >> (DR7_CONTROL_SHIFT + DR7_CONTROL_SIZE * i) & 3 == 2);
    (!io).then_some(value & !DR7_MUST_BE_ZERO | DR7_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::HostCpuid;
    use x86::cpuid::CpuidRegs;

    struct Cpu;
    impl HostCpuid for Cpu {
        fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegs {
            let xsave = feature::XSAVE.mask() | feature::AVX.mask();
            match (leaf, subleaf) {
                (0, _) => CpuidRegs::new(0xd, 0, 0, 0),
                (1, _) => CpuidRegs { ecx: xsave, edx: feature::FXSR.mask(), ..CpuidRegs::ZERO },
                (7, 0) => CpuidRegs { ebx: feature::AVX512F.mask(), ..CpuidRegs::ZERO },
                _ => CpuidRegs::ZERO,
            }
        }
    }

    #[test]
    fn cr0_changes_only_ts() {
        assert_eq!(read_cr0(false), 0x8005_0033);
        assert_eq!(write_cr0(0x8005_003b), Some(true));
        assert_eq!(write_cr0(0x8005_0033), Some(false));
        assert_eq!(write_cr0(0x8004_0033), None, "WP");
        assert_eq!(write_cr0(0x1_8005_0033), None);
    }

    #[test]
    fn cr4_keeps_what_the_policy_offers() {
        let p = Policy::pv_default(&Policy::raw(&Cpu));
        assert_eq!(read_cr4(0), 0x660);
        assert_eq!(write_cr4(&p, 0x5_0660), 0x4_0000, "no FSGSBASE on this processor");
        assert_eq!(read_cr4(write_cr4(&p, !0)), 0x4_066c);
    }

    #[test]
    fn xcr0_combinations() {
        let p = Policy::pv_default(&Policy::raw(&Cpu));
        for good in [1, 3, 7, 0xe7] {
            assert_eq!(write_xcr0(&p, good), Some(good), "{good:#x}");
        }
        for bad in [0, 2, 5, 0xe3, 0x27, 0x203, 1 << 63 | 1] {
            assert_eq!(write_xcr0(&p, bad), None, "{bad:#x}");
        }
    }

    #[test]
    fn debug_registers() {
        assert_eq!(write_breakpoint(0x7fff_ffff_ffff), Some(0x7fff_ffff_ffff));
        assert_eq!(write_breakpoint(1 << 47), None);
        assert_eq!(write_breakpoint(HYPERVISOR_VIRT_START), None);
        assert_eq!(write_breakpoint(HYPERVISOR_VIRT_END - 1), None);
        assert_eq!(write_breakpoint(HYPERVISOR_VIRT_END), Some(HYPERVISOR_VIRT_END));
        assert_eq!(write_dr6(0), 0xffff_0ff0);
        assert_eq!(write_dr6(u64::MAX), 0xffff_efff, "reserved bits dropped");
        assert_eq!(dr6_after(0xffff_0ff1, 0xffff_4ff0), 0xffff_4ff1, "what the guest has not cleared stays");
        assert_eq!(dr6_after(0xffff_0ff0, 0), 0xffff_0ff0);
        assert_eq!(write_dr7(0), Some(0x400));
        assert_eq!(write_dr7(0xd0d01), Some(0xd0501), "reserved bits dropped");
        assert_eq!(write_dr7(DR7_GD), None);
        assert_eq!(write_dr7(2 << 20 | 4), None, "I/O breakpoint");
    }
}
