//! Model-specific registers as PV guests see them.
//!
//! RDMSR and WRMSR always trap. A few registers are the guest's own state (segment bases, TSC_AUX), a few are answered
//! with what the hypervisor stands for (EFER, machine checks, performance counters that are off), and the rest is
//! #GP. The answer says what to do; the caller, who alone may touch the hardware, does it.

use crate::cpuid::Policy;
use x86::addr::is_canonical;
use x86::cpuid::{feature, Vendor};
use x86::msr;
use x86::rflags::Efer;

/// Who accesses a register.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The domain's CPUID policy.
    pub policy: &'a Policy,
    /// Is it the hardware domain?
    pub hardware_domain: bool,
    /// Number of the vCPU.
    pub vcpu_id: u32,
    /// Its TSC_AUX.
    pub tsc_aux: u32,
    /// Has the guest a #GP handler yet? Until then an unknown register reads as zero, as a #GP would be the guest's
    /// end.
    pub has_gp_handler: bool,
}

/// What a read gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// This value.
    Value(u64),
    /// The live FS base.
    FsBase,
    /// The live GS base: in kernel mode the kernel's.
    GsBase,
    /// The GS base of the other mode.
    KernelGsBase,
    /// The time-stamp counter.
    Tsc,
    /// The processor's register, which may not exist (then #GP); clear these bits, set those.
    Host {
        /// Bits shown as 0.
        clear: u64,
        /// Bits shown as 1.
        set: u64,
    },
    /// The processor's register, or 0 if there is none.
    HostOrZero,
    /// #GP.
    Fault,
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Nothing.
    Ignore,
    /// Sets the live FS base.
    FsBase(u64),
    /// Sets the live GS base.
    GsBase(u64),
    /// Sets the GS base of the other mode.
    KernelGsBase(u64),
    /// Sets TSC_AUX of the vCPU.
    TscAux(u32),
    /// An indirect branch prediction barrier (PRED_CMD.IBPB).
    Ibpb,
    /// #GP.
    Fault,
}

/// Banks of the virtual machine-check architecture.
const MCE_BANKS: u32 = 2;
const MCE_LAST: u32 = msr::MC0_CTL + 4 * MCE_BANKS - 1;
/// The EFER of every 64-bit guest.
pub const GUEST_EFER: u64 = Efer::SCE.bits() | Efer::LME.bits() | Efer::LMA.bits() | Efer::NXE.bits();
/// Physical address of the local APIC.
const APIC_PHYSICAL: u64 = 0xfee0_0000;

/// Reads register `index`.
#[inline]
pub fn read(index: u32, view: &View<'_>) -> Read {
    match index {
        msr::FS_BASE => Read::FsBase,
        msr::GS_BASE => Read::GsBase,
        msr::KERNEL_GS_BASE => Read::KernelGsBase,
        msr::TSC => Read::Tsc,
        msr::TSC_AUX if has_tsc_aux(view.policy) => Read::Value(view.tsc_aux.into()),
        msr::EFER => Read::Value(GUEST_EFER),
        // PAT_XEN: every CPU has been given it. A guest is shown what counts when it maps something.
        msr::PAT => Read::Host { clear: 0, set: 0 },
        msr::APIC_BASE => {
            let bsp = if view.vcpu_id == 0 { msr::APIC_BASE_BSP } else { 0 };
            Read::Value(APIC_PHYSICAL | msr::APIC_BASE_ENABLE | bsp)
        }
        msr::MCG_CAP => Read::Value(MCE_BANKS.into()),
        msr::MCG_STATUS => Read::Value(0),
        msr::MC0_CTL..=MCE_LAST => Read::Value(if (index - msr::MC0_CTL).is_multiple_of(4) { u64::MAX } else { 0 }),
        msr::PLATFORM_INFO => Read::Value(view.policy.platform_info),
        msr::MISC_FEATURES_ENABLES => Read::Value(0),
        msr::PLATFORM_ID | msr::UCODE_REV if view.hardware_domain => Read::HostOrZero,
        msr::UCODE_REV => Read::Value(0),
        msr::MTRR_CAP | msr::MTRR_PHYSBASE0..=msr::MTRR_DEF_TYPE if view.hardware_domain => {
            Read::Host { clear: 0, set: 0 }
        }
        _ => match view.policy.vendor() {
            Vendor::Intel => read_intel(index),
            Vendor::Amd | Vendor::Hygon => read_amd(index, view.policy),
            Vendor::Other => None,
        }
        .unwrap_or(if view.has_gp_handler { Read::Fault } else { Read::Value(0) }),
    }
}

fn read_intel(index: u32) -> Option<Read> {
    /// Shown as absent: performance monitoring and MONITOR.
    const MISC_CLEAR: u64 = msr::MISC_ENABLE_PERF_AVAIL | msr::MISC_ENABLE_MONITOR;
    const MISC_SET: u64 = msr::MISC_ENABLE_BTS_UNAVAIL | msr::MISC_ENABLE_PEBS_UNAVAIL;
    Some(match index {
        msr::FEATURE_CONTROL => Read::Value(msr::FEATURE_CONTROL_LOCK),
        msr::MISC_ENABLE => Read::Host { clear: MISC_CLEAR, set: MISC_SET },
        msr::PERF_STATUS | msr::PERF_CTL | msr::THERM_CONTROL => Read::Value(0),
        _ if is_intel_counter(index) => Read::Value(0),
        _ => return None,
    })
}

fn read_amd(index: u32, policy: &Policy) -> Option<Read> {
    let lfence = if policy.has(feature::LFENCE_DISPATCH) { msr::DE_CFG_LFENCE_SERIALISE } else { 0 };
    Some(match index {
        msr::K8_HWCR => Read::Value(0),
        msr::AMD64_DE_CFG => Read::Value(lfence),
        _ if is_amd_counter(index) => Read::Value(0),
        _ => return None,
    })
}

/// Writes `value` to register `index`.
#[inline]
pub fn write(index: u32, value: u64, view: &View<'_>) -> Write {
    let base = |write: fn(u64) -> Write| if is_canonical(value) { write(value) } else { Write::Fault };
    let same = |expected: u64| if value == expected { Write::Ignore } else { Write::Fault };
    match index {
        msr::FS_BASE => base(Write::FsBase),
        msr::GS_BASE => base(Write::GsBase),
        msr::KERNEL_GS_BASE => base(Write::KernelGsBase),
        msr::TSC_AUX if has_tsc_aux(view.policy) => u32::try_from(value).map_or(Write::Fault, Write::TscAux),
        msr::PRED_CMD if view.policy.has(feature::IBPB) => match value {
            0 => Write::Ignore,
            1 => Write::Ibpb,
            _ => Write::Fault,
        },
        msr::EFER => same(GUEST_EFER),
        msr::PAT => same(msr::PAT_XEN),
        msr::APIC_BASE | msr::MCG_STATUS | msr::MC0_CTL..=MCE_LAST => Write::Ignore,
        // Loading microcode is for `platform_op`; the write that precedes reading the revision is harmless.
        msr::UCODE_REV if value == 0 => Write::Ignore,
        msr::MISC_FEATURES_ENABLES => same(0),
        _ => match view.policy.vendor() {
            Vendor::Intel if index == msr::MISC_ENABLE || is_intel_counter(index) => Write::Ignore,
            Vendor::Amd | Vendor::Hygon if matches!(index, msr::K8_HWCR | msr::AMD64_DE_CFG) => Write::Ignore,
            Vendor::Amd | Vendor::Hygon if is_amd_counter(index) => Write::Ignore,
            _ => Write::Fault,
        },
    }
}

/// Does a domain with this policy have TSC_AUX? Either instruction reads it.
pub fn has_tsc_aux(policy: &Policy) -> bool {
    policy.has(feature::RDTSCP) || policy.has(feature::RDPID)
}

/// Architectural performance counters, their selects and global controls: off, so zero.
const fn is_intel_counter(index: u32) -> bool {
    matches!(index, 0xc1..=0xc8 | 0x186..=0x18d | 0x309..=0x30b | 0x345 | 0x38d..=0x390)
}

/// Performance counters and their selects: off, so zero.
const fn is_amd_counter(index: u32) -> bool {
    matches!(index, msr::K7_EVNTSEL0..=msr::K7_PERFCTR3 | msr::FAM15H_PERFCTL0..=msr::FAM15H_PERFCTR5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::HostCpuid;
    use x86::cpuid::{CpuidRegs, Feature};

    struct Cpu(u32, u32, u32);
    impl HostCpuid for Cpu {
        fn cpuid(&self, leaf: u32, _: u32) -> CpuidRegs {
            match leaf {
                0 => CpuidRegs::new(1, self.0, self.1, self.2),
                0x8000_0000 => CpuidRegs { eax: 0x8000_0008, ..CpuidRegs::ZERO },
                0x8000_0001 => CpuidRegs { edx: feature::RDTSCP.mask(), ..CpuidRegs::ZERO },
                0x8000_0008 => CpuidRegs { ebx: feature::IBPB.mask(), ..CpuidRegs::ZERO },
                _ => CpuidRegs::ZERO,
            }
        }
    }

    const AMD: Cpu = Cpu(0x6874_7541, 0x444d_4163, 0x6974_6e65);
    const INTEL: Cpu = Cpu(0x756e_6547, 0x6c65_746e, 0x4965_6e69);

    fn amd() -> Policy {
        Policy::pv_default(&Policy::raw(&AMD).with_serialising_lfence())
    }
    fn intel() -> Policy {
        Policy::pv_default(&Policy::raw(&INTEL))
    }
    fn view(policy: &Policy) -> View<'_> {
        View { policy, hardware_domain: true, vcpu_id: 0, tsc_aux: 5, has_gp_handler: true }
    }

    /// What Linux reads while it boots as domain 0 on an AMD model, and what Xen answered.
    #[test]
    fn what_linux_reads_in_domain_0() {
        let p = amd();
        let cases = [
            (0x1b, 0xfee0_0900),
            (0xc000_0080, 0xd01),
            (0xc000_0103, 5),
            (0xc001_0015, 0),
            (0xc001_1029, 2),
            (0x179, 2),
            (0x17a, 0),
            (0x400, u64::MAX),
            (0x401, 0),
            (0x404, u64::MAX),
            (0x407, 0),
            (0xc001_0000, 0),
            (0xc001_0007, 0),
        ];
        for (index, value) in cases {
            assert_eq!(read(index, &view(&p)), Read::Value(value), "{index:#x}");
        }
        assert_eq!(read(0x8b, &view(&p)), Read::HostOrZero);
        assert_eq!(read(0x277, &view(&p)), Read::Host { clear: 0, set: 0 }, "what the CPU has, for every domain");
        assert_eq!(read(0x277, &View { hardware_domain: false, ..view(&p) }), Read::Host { clear: 0, set: 0 });
        assert_eq!(read(0xc001_0055, &view(&p)), Read::Fault);
        assert_eq!(read(0x408, &view(&p)), Read::Fault, "there is no third bank");
        let ap = View { vcpu_id: 1, ..view(&p) };
        assert_eq!(read(0x1b, &ap), Read::Value(0xfee0_0800));
    }

    #[test]
    fn lfence_is_said_to_be_serialising_only_if_it_is() {
        let p = Policy::pv_default(&Policy::raw(&AMD));
        assert_eq!(read(0xc001_1029, &view(&p)), Read::Value(0));
        assert_eq!(write(0xc001_1029, 2, &view(&p)), Write::Ignore);
    }

    #[test]
    fn before_there_is_a_handler_unknown_registers_read_zero() {
        let p = amd();
        let early = View { has_gp_handler: false, ..view(&p) };
        assert_eq!(read(0xc001_0055, &early), Read::Value(0));
        assert_eq!(write(0xc001_0055, 0, &early), Write::Fault);
    }

    #[test]
    fn bases_must_be_canonical() {
        let p = amd();
        assert_eq!(write(0xc000_0101, 0xffff_8880_0000_0000, &view(&p)), Write::GsBase(0xffff_8880_0000_0000));
        for index in [0xc000_0100, 0xc000_0101, 0xc000_0102] {
            assert_eq!(write(index, 1 << 47, &view(&p)), Write::Fault);
        }
    }

    #[test]
    fn tsc_aux_is_there_if_any_instruction_reads_it() {
        struct OnlyRdpid;
        impl HostCpuid for OnlyRdpid {
            fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegs {
                match (leaf, subleaf) {
                    (0, _) => CpuidRegs { eax: 7, ..INTEL.cpuid(0, 0) },
                    (7, 0) => CpuidRegs { ecx: feature::RDPID.mask(), ..CpuidRegs::ZERO },
                    _ => CpuidRegs::ZERO,
                }
            }
        }
        let only_rdpid = Policy::pv_default(&Policy::raw(&OnlyRdpid));
        assert!(has_tsc_aux(&only_rdpid) && has_tsc_aux(&amd()));
        assert_eq!(write(0xc000_0103, 7, &view(&only_rdpid)), Write::TscAux(7));
    }

    #[test]
    fn fixed_registers_accept_only_their_value() {
        let p = amd();
        assert_eq!(write(0xc000_0080, 0xd01, &view(&p)), Write::Ignore);
        assert_eq!(write(0xc000_0080, 0x1d01, &view(&p)), Write::Fault, "SVME");
        assert_eq!(write(0x277, 0x0007_0406_0007_0406, &view(&p)), Write::Fault);
        assert_eq!(write(0xc001_0015, 0x40, &view(&p)), Write::Ignore);
        assert_eq!(write(0xc000_0082, 0x1000, &view(&p)), Write::Fault, "LSTAR is the hypervisor's");
        assert_eq!(write(0x1b, 0, &view(&p)), Write::Ignore);
        assert_eq!(write(0xc000_0103, 1 << 32, &view(&p)), Write::Fault);
    }

    #[test]
    fn registers_of_the_other_vendor_do_not_exist() {
        let (a, i) = (amd(), intel());
        assert_eq!(read(0x1a0, &view(&a)), Read::Fault);
        assert_eq!(read(0x3a, &view(&i)), Read::Value(1));
        assert_eq!(read(0x3a, &view(&a)), Read::Fault);
        assert_eq!(read(0xc001_1029, &view(&i)), Read::Fault);
        assert!(matches!(read(0x1a0, &view(&i)), Read::Host { .. }));
        assert_eq!(read(0xc001_0000, &view(&i)), Read::Fault);
    }

    #[test]
    fn barrier_needs_the_feature() {
        let (a, i) = (amd(), intel());
        assert_eq!(write(0x49, 1, &view(&a)), Write::Ibpb);
        assert_eq!(write(0x48, 1, &view(&a)), Write::Fault, "SPEC_CTRL is not offered");
        assert_eq!(write(0x49, 2, &view(&i)), Write::Fault);
    }

    /// Has every feature, and all leaves.
    struct All(Cpu);
    impl HostCpuid for All {
        fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegs {
            match leaf {
                0 => CpuidRegs { eax: 0xd, ..self.0.cpuid(leaf, subleaf) },
                0x8000_0000 => CpuidRegs { eax: 0x8000_0021, ..CpuidRegs::ZERO },
                7 => CpuidRegs::new(2, !0, !0, !0),
                _ => CpuidRegs::new(!0, !0, !0, !0),
            }
        }
    }

    /// A kernel that finds one of these writes its register, some without a handler for the #GP that comes of it.
    #[test]
    fn what_needs_registers_that_are_not_switched_is_not_offered() {
        let needs: [(Feature, &[u32]); 19] = [
            (feature::DBEXT, &[0xc001_1019, 0xc001_101a, 0xc001_101b, 0xc001_1027]),
            (feature::LWP, &[0xc000_0105, 0xc000_0106]),
            (feature::IBS, &[0xc001_1030, 0xc001_1033]),
            (feature::SVM, &[0xc001_0117]),
            (feature::OSVW, &[0xc001_0140, 0xc001_0141]),
            (feature::IBRS, &[0x48]),
            (feature::AMD_STIBP, &[0x48]),
            (feature::AMD_SSBD, &[0x48]),
            (feature::VIRT_SSBD, &[0xc001_011f]),
            (feature::IBRSB, &[0x48]),
            (feature::SSBD, &[0x48]),
            (feature::L1D_FLUSH, &[0x10b]),
            (feature::ARCH_CAPS, &[0x10a]),
            (feature::TSC_ADJUST, &[0x3b]),
            (feature::TSC_DEADLINE, &[0x6e0]),
            (feature::PQM, &[0xc8d]),
            (feature::PROC_TRACE, &[0x570]),
            (feature::XSAVES, &[0xda0]),
            (feature::CET_SS, &[0x6a0, 0x6a2]),
        ];
        for cpu in [AMD, INTEL] {
            let host = Policy::raw(&All(cpu));
            for policy in [Policy::pv_default(&host), Policy::pv_max(&host)] {
                for (feature, registers) in needs.iter().filter(|(feature, _)| policy.has(*feature)) {
                    for index in *registers {
                        assert_ne!(write(*index, 0, &view(&policy)), Write::Fault, "{feature:?} needs {index:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn other_domains_do_not_see_mtrrs() {
        let p = intel();
        assert_eq!(read(0xfe, &view(&p)), Read::Host { clear: 0, set: 0 });
        assert_eq!(read(0xfe, &View { hardware_domain: false, ..view(&p) }), Read::Fault);
    }
}
