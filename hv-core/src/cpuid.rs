//! CPUID as guests see it.
//!
//! A [`Policy`] is a full set of leaves: the *raw* one is what the processor says, the *host's* has what the hypervisor
//! has switched on besides, the *PV maximum* is that with every feature taken away that a PV guest cannot use, the *PV
//! default* is what a new domain gets, and each domain has its own, which the tools may narrow. Lookups copy sixteen
//! bytes out of an array and then add the few bits that depend on who asks ([`View`]).
//!
//! Without CPUID faulting, user code executes CPUID natively and sees the processor; only guest kernels, which use the
//! forced-emulation prefix, see the policy. So nothing here is a security boundary: what must not be used is refused
//! where it would act (control registers, MSRs, XCR0).

mod features;
mod required;
mod serialise;

pub use features::Featureset;
pub use required::{missing_feature, REQUIRED};
pub use serialise::PolicyError;

use x86::cpuid::{feature, CpuidRegs, Feature, Reg, Vendor, FEATURESET_WORDS, WORD_SOURCE};
use x86::rflags::Xcr0;

/// The processor's own CPUID.
pub trait HostCpuid {
    /// Executes CPUID.
    fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegs;
}

const NR_BASIC: usize = 0xe;
const NR_CACHE: usize = 6;
const NR_FEAT: usize = 3;
const NR_TOPO: usize = 2;
const NR_XSTATE: usize = 63;
const NR_EXTD: usize = 0x22;
const EXTD_BASE: u32 = 0x8000_0000;
/// First leaf of the hypervisor's own range.
const HV_BASE: u32 = 0x4000_0000;
/// Last leaf of the hypervisor's own range.
const HV_MAX: u32 = HV_BASE + 5;

/// A set of CPUID leaves and the two MSRs that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    basic: [CpuidRegs; NR_BASIC],
    cache: [CpuidRegs; NR_CACHE],
    feat: [CpuidRegs; NR_FEAT],
    topo: [CpuidRegs; NR_TOPO],
    xstate: [CpuidRegs; NR_XSTATE],
    extd: [CpuidRegs; NR_EXTD],
    vendor: Vendor,
    /// IA32_PLATFORM_INFO.
    pub platform_info: u64,
}

/// Who asks, and the state that some leaves report.
#[derive(Clone, Copy, Debug, Default)]
pub struct View {
    /// Number of the vCPU.
    pub vcpu_id: u32,
    /// Is it the hardware domain's kernel? It is told about MTRRs.
    pub hardware_kernel: bool,
    /// Shown as OSXSAVE.
    pub osxsave: bool,
    /// The guest's XCR0.
    pub xcr0: u64,
    /// Bits of the highest machine address.
    pub machine_address_bits: u32,
    /// Time-stamp counter, for leaf 0x40000003.
    pub tsc: TscView,
}

/// What leaf 0x40000003 says about the time-stamp counter.
#[derive(Clone, Copy, Debug, Default)]
pub struct TscView {
    /// Is the counter safe to use across CPUs?
    pub host_tsc_reliable: bool,
    /// The mode that the tools set (`settscinfo`).
    pub mode: u32,
    /// Frequency shown to the guest.
    pub khz: u32,
    /// Frequency of the processor.
    pub host_khz: u32,
    /// Number of migrations so far.
    pub incarnation: u32,
    /// Nanoseconds at counter zero.
    pub offset: u64,
    /// Scale as in `vcpu_time_info`.
    pub mul: u32,
    /// Shift as in `vcpu_time_info`.
    pub shift: i8,
}

/// An array of empty leaves.
const fn empty<const N: usize>() -> [CpuidRegs; N] {
    [CpuidRegs::ZERO; N]
}

impl Policy {
    const EMPTY: Self = Self {
        basic: empty(),
        cache: empty(),
        feat: empty(),
        topo: empty(),
        xstate: empty(),
        extd: empty(),
        vendor: Vendor::Other,
        platform_info: 0,
    };

    /// What the processor says.
    #[allow(clippy::cast_possible_truncation, reason = "array lengths are small")]
    pub fn raw(host: &impl HostCpuid) -> Self {
        let mut p = Self::EMPTY;
        p.basic[0] = host.cpuid(0, 0);
        p.extd[0] = host.cpuid(EXTD_BASE, 0);
        p.vendor = Vendor::from_leaf0(p.basic[0]);
        let max = p.basic[0].eax;
        for leaf in 1..NR_BASIC as u32 {
            let subleaves: &mut [CpuidRegs] = match leaf {
                4 => &mut p.cache,
                7 => &mut p.feat,
                0xb => &mut p.topo,
                0xd => &mut p.xstate,
                _ => &mut p.basic[leaf as usize..=leaf as usize],
            };
            if leaf <= max {
                for (subleaf, regs) in (0..).zip(subleaves) {
                    *regs = host.cpuid(leaf, subleaf);
                }
            }
        }
        // Leaf 7 says how many subleaves it has; asking for more may give anything.
        let subleaves = p.feat[0].eax as usize;
        p.feat.iter_mut().skip(subleaves.saturating_add(1)).for_each(|f| *f = CpuidRegs::ZERO);
        let extended = p.extd[0].eax.saturating_sub(EXTD_BASE);
        for (leaf, regs) in (0..=extended).zip(&mut p.extd).skip(1) {
            *regs = host.cpuid(EXTD_BASE + leaf, 0);
        }
        p
    }

    /// The host's: this, and that LFENCE is serialising, since it was made to be.
    pub fn with_serialising_lfence(mut self) -> Self {
        let mut words = self.featureset();
        words[feature::LFENCE_DISPATCH.word()] |= feature::LFENCE_DISPATCH.mask();
        self.set_featureset(&words);
        self
    }

    /// The most that a PV guest can be given.
    pub fn pv_max(host: &Self) -> Self {
        host.restricted(&features::PV_MAX)
    }

    /// What a PV guest is given if nobody says otherwise.
    pub fn pv_default(host: &Self) -> Self {
        host.restricted(&features::PV_DEFAULT)
    }

    fn restricted(&self, mask: &Featureset) -> Self {
        let mut p = self.clone();
        p.basic[0].eax = p.basic[0].eax.min(0xd);
        let lowest_max = if p.vendor.is_amd_like() { EXTD_BASE + 0x21 } else { EXTD_BASE + 8 };
        p.extd[0].eax = if p.vendor.is_amd_like() { lowest_max } else { p.extd[0].eax.min(lowest_max) };
        let host = self.featureset();
        let mut words = features::restrict(&host, mask, p.vendor);
        features::drop_dependents(&mut words);
        p.set_featureset(&words);
        p.drop_unsupported_leaves();
        p.rebuild_xstate();
        p
    }

    /// Maker of the processor.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// Is `feature` in the policy?
    #[inline]
    pub fn has(&self, feature: Feature) -> bool {
        self.featureset_word(feature.word()) & feature.mask() != 0
    }

    /// All features as the tools exchange them.
    pub fn featureset(&self) -> Featureset {
        core::array::from_fn(|word| self.featureset_word(word))
    }

    fn featureset_word(&self, word: usize) -> u32 {
        let Some(&(leaf, subleaf, reg)) = WORD_SOURCE.get(word) else { return 0 };
        let r = self.get(leaf, subleaf).copied().unwrap_or_default();
        match reg {
            Reg::Eax => r.eax,
            Reg::Ebx => r.ebx,
            Reg::Ecx => r.ecx,
            Reg::Edx => r.edx,
        }
    }

    fn set_featureset(&mut self, words: &Featureset) {
        for word in 0..FEATURESET_WORDS {
            let (leaf, subleaf, reg) = WORD_SOURCE[word];
            let Some(r) = self.slot(leaf, subleaf) else { continue };
            *match reg {
                Reg::Eax => &mut r.eax,
                Reg::Ebx => &mut r.ebx,
                Reg::Ecx => &mut r.ecx,
                Reg::Edx => &mut r.edx,
            } = words[word];
        }
    }

    /// Clears leaves that describe what PV guests do not get: power management, performance counters, MONITOR, topology
    /// (there is no x2APIC), SVM and encryption.
    #[allow(clippy::cast_possible_truncation, reason = "array lengths are small")]
    fn drop_unsupported_leaves(&mut self) {
        for leaf in [3, 5, 6, 8, 9, 0xa, 0xc] {
            self.basic[leaf] = CpuidRegs::ZERO;
        }
        self.topo = empty();
        let amd = self.vendor.is_amd_like();
        if amd {
            self.basic[2] = CpuidRegs::ZERO;
        }
        for leaf in 9..NR_EXTD {
            if !amd || !matches!(leaf, 0x19 | 0x1a | 0x21) {
                self.extd[leaf] = CpuidRegs::ZERO;
            }
        }
        // Only the feature words of these leaves are meant for guests.
        self.feat[0].eax = self.feat[0].eax.min(NR_FEAT as u32 - 1);
        self.extd[7] = CpuidRegs { edx: self.extd[7].edx, ..CpuidRegs::ZERO };
        self.extd[8].edx = 0;
        self.extd[0x21] = CpuidRegs { ebx: 0, edx: 0, ..self.extd[0x21] };
    }

    /// The state components that a guest with these features may enable in XCR0.
    pub fn xcr0_max(&self) -> u64 {
        if !self.has(feature::XSAVE) {
            return 0;
        }
        let mut states = Xcr0::X87 | Xcr0::SSE;
        if self.has(feature::AVX) {
            states |= Xcr0::AVX;
        }
        if self.has(feature::AVX512F) {
            states |= Xcr0::OPMASK | Xcr0::ZMM_HI256 | Xcr0::HI16_ZMM;
        }
        states.bits()
    }

    /// Makes leaf 0xd say what [`Policy::xcr0_max`] allows. Sizes and offsets of components stay the processor's.
    fn rebuild_xstate(&mut self) {
        let states = self.xcr0_max();
        let features = self.xstate[1].eax;
        for (component, r) in self.xstate.iter_mut().enumerate() {
            if component < 2 || states >> component & 1 == 0 {
                *r = CpuidRegs::ZERO;
            }
        }
        if states != 0 {
            let (low, high) = halves(states);
            self.xstate[0] = CpuidRegs::new(low, 0, self.xstate_size(states, false), high);
            self.xstate[1].eax = features;
        }
    }

    /// Bytes of an XSAVE area with the components in `xcr0`, in the standard or the compacted format.
    #[allow(clippy::cast_possible_truncation, reason = "component numbers are below 63")]
    pub fn xstate_size(&self, xcr0: u64, compacted: bool) -> u32 {
        /// Legacy region and header.
        const BASE: u32 = 576;
        let mut size = BASE;
        for (component, r) in self.xstate.iter().enumerate().skip(2) {
            if xcr0 >> component & 1 == 0 {
                continue;
            }
            size = if compacted {
                let aligned = if r.ecx & 2 != 0 { size.saturating_add(63) & !63 } else { size };
                aligned.saturating_add(r.eax)
            } else {
                size.max(r.ebx.saturating_add(r.eax))
            };
        }
        size
    }

    /// The answer to CPUID for the guest that `view` describes. Leaves that do not exist are zero.
    pub fn lookup(&self, leaf: u32, subleaf: u32, view: &View) -> CpuidRegs {
        if (HV_BASE..HV_BASE + 0x100).contains(&leaf) {
            return hypervisor_leaf(leaf, subleaf, view);
        }
        let max = if leaf >= EXTD_BASE { self.extd[0].eax } else { self.basic[0].eax };
        if leaf > max {
            return CpuidRegs::ZERO;
        }
        let mut r = self.get(leaf, subleaf).copied().unwrap_or_default();
        match (leaf, subleaf) {
            (1, _) => {
                r.ebx = r.ebx & 0x00ff_ffff | view.vcpu_id.wrapping_mul(2) << 24;
                if view.osxsave && self.has(feature::XSAVE) {
                    r.ecx |= feature::OSXSAVE.mask();
                }
                if view.hardware_kernel {
                    r.edx |= feature::MTRR.mask();
                }
            }
            (0xd, 0) if r.eax != 0 => r.ebx = self.xstate_size(view.xcr0, false),
            (0xd, 1) if r.eax & (feature::XSAVEC.mask()) != 0 => r.ebx = self.xstate_size(view.xcr0, true),
            (0x8000_0001, _) if view.hardware_kernel && self.vendor.is_amd_like() => r.edx |= feature::MTRR.mask(),
            _ => {}
        }
        r
    }

    /// The stored registers of a leaf; none if there is no room for it.
    fn get(&self, leaf: u32, subleaf: u32) -> Option<&CpuidRegs> {
        let (leaf_index, subleaf) = (leaf as usize, subleaf as usize);
        match leaf {
            4 => self.cache.get(subleaf),
            7 => self.feat.get(subleaf),
            0xb => self.topo.get(subleaf),
            0xd => self.xstate.get(subleaf),
            _ if leaf >= EXTD_BASE => self.extd.get((leaf - EXTD_BASE) as usize),
            _ => self.basic.get(leaf_index),
        }
    }

    fn slot(&mut self, leaf: u32, subleaf: u32) -> Option<&mut CpuidRegs> {
        let (leaf_index, subleaf) = (leaf as usize, subleaf as usize);
        match leaf {
            4 => self.cache.get_mut(subleaf),
            7 => self.feat.get_mut(subleaf),
            0xb => self.topo.get_mut(subleaf),
            0xd => self.xstate.get_mut(subleaf),
            _ if leaf >= EXTD_BASE => self.extd.get_mut((leaf - EXTD_BASE) as usize),
            _ => self.basic.get_mut(leaf_index),
        }
    }
}

/// Leaves 0x40000000 and up: Xen's signature, version and facts for PV guests (public/arch-x86/cpuid.h).
#[allow(clippy::cast_sign_loss, reason = "the shift is passed as its bits")]
fn hypervisor_leaf(leaf: u32, subleaf: u32, view: &View) -> CpuidRegs {
    /// Page-table updates can preserve the accessed and dirty bits (`MMU_PT_UPDATE_PRESERVE_AD`).
    const PRESERVE_AD: u32 = 1;
    /// Where an HVM guest would find the hypercall-page MSR.
    const MSR_BASE: u32 = 0x4000_0000;
    let tsc = &view.tsc;
    match (leaf - HV_BASE, subleaf) {
        // "XenVMMXenVMM"
        (0, _) => CpuidRegs::new(HV_MAX, 0x566e_6558, 0x6558_4d4d, 0x4d4d_566e),
        (1, _) => CpuidRegs { eax: xen_version(), ..CpuidRegs::ZERO },
        (2, _) => CpuidRegs::new(1, MSR_BASE, PRESERVE_AD, 0),
        (3, 0) => CpuidRegs::new(u32::from(tsc.host_tsc_reliable) << 1, tsc.mode, tsc.khz, tsc.incarnation),
        (3, 1) => {
            let (low, high) = halves(tsc.offset);
            CpuidRegs::new(low, high, tsc.mul, i32::from(tsc.shift) as u32)
        }
        (3, 2) => CpuidRegs { eax: tsc.host_khz, ..CpuidRegs::ZERO },
        (5, 0) => CpuidRegs { ebx: view.machine_address_bits, ..CpuidRegs::ZERO },
        _ => CpuidRegs::ZERO,
    }
}

/// Major and minor version of the ABI.
const fn xen_version() -> u32 {
    4 << 16 | 17
}

/// Low and high half.
#[allow(clippy::cast_possible_truncation, reason = "halves")]
const fn halves(value: u64) -> (u32, u32) {
    (value as u32, (value >> 32) as u32)
}

#[cfg(test)]
mod tests;
