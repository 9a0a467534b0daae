//! Policies as lists of leaves and MSRs: what `get_cpu_policy` hands to the tools and `set_cpu_policy` takes back.

use super::features::{drop_dependents, restrict};
use super::{Policy, EXTD_BASE, HV_BASE, NR_BASIC, NR_CACHE, NR_EXTD, NR_FEAT, NR_TOPO, NR_XSTATE};
use x86::cpuid::CpuidRegs;
use x86::msr;
use xen_abi::domctl::{CpuidLeaf, MsrEntry, CPUID_NO_SUBLEAF};

/// What is wrong with a policy that the tools want to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// There is no such leaf, or it may not have this value.
    Leaf {
        /// Leaf.
        leaf: u32,
        /// Subleaf.
        subleaf: u32,
    },
    /// There is no such MSR in a policy, or it may not have this value.
    Msr(u32),
}

/// MSRs in a policy.
const NR_MSRS: usize = 2;

impl Policy {
    /// The most leaves that any policy has.
    pub const MAX_LEAVES: usize = NR_BASIC - 4 + NR_CACHE + NR_FEAT + NR_TOPO + NR_XSTATE + NR_EXTD + 2;
    /// The MSRs that every policy has.
    pub const MAX_MSRS: usize = NR_MSRS;

    /// All leaves. The toolstack has a serialiser of its own for the same format and takes our count for its buffer's
    /// size, so which leaves there are, empty or not, must follow from the policy alone: all of the subleaves of 4 and
    /// 0xb, those of 7 up to its highest, those of 0xd that belong to a state component, and the limits of two
    /// hypervisor ranges.
    #[allow(clippy::cast_possible_truncation, reason = "array lengths are small")]
    pub fn leaves(&self) -> impl Iterator<Item = CpuidLeaf> + '_ {
        let components = self.state_components();
        let basic = (0..=self.basic[0].eax.min(NR_BASIC as u32 - 1)).flat_map(move |leaf| {
            let (subleaves, first): (&[CpuidRegs], u32) = match leaf {
                4 => (&self.cache, 0),
                7 => (&self.feat[..=(self.feat[0].eax as usize).min(NR_FEAT - 1)], 0),
                0xb => (&self.topo, 0),
                0xd => (&self.xstate, 0),
                _ => (core::slice::from_ref(&self.basic[leaf as usize]), CPUID_NO_SUBLEAF),
            };
            subleaves
                .iter()
                .enumerate()
                .filter(move |&(i, _)| leaf != 0xd || i < 2 || components >> i & 1 != 0)
                .map(move |(i, r)| entry(leaf, first.wrapping_add(i as u32), *r))
        });
        let hypervisor = [HV_BASE, HV_BASE + 0x100].map(|leaf| entry(leaf, CPUID_NO_SUBLEAF, CpuidRegs::ZERO));
        let last = self.extd[0].eax.wrapping_sub(EXTD_BASE).min(NR_EXTD as u32 - 1);
        let extended = (0..=last).zip(&self.extd).map(|(i, r)| entry(EXTD_BASE + i, CPUID_NO_SUBLEAF, *r));
        basic.chain(hypervisor).chain(extended)
    }

    /// Components of the extended state, those of XCR0 and of IA32_XSS.
    fn state_components(&self) -> u64 {
        let word = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        word(self.xstate[0].eax, self.xstate[0].edx) | word(self.xstate[1].ecx, self.xstate[1].edx)
    }

    /// The MSRs: IA32_PLATFORM_INFO and IA32_ARCH_CAPABILITIES, which guests do not have.
    pub fn msrs(&self) -> [MsrEntry; NR_MSRS] {
        [
            MsrEntry { idx: msr::PLATFORM_INFO, flags: 0, val: self.platform_info },
            MsrEntry { idx: msr::ARCH_CAPABILITIES, flags: 0, val: 0 },
        ]
    }

    /// Takes one leaf from the tools. Call [`Policy::finish`] after the last one.
    pub fn set_leaf(&mut self, l: &CpuidLeaf) -> Result<(), PolicyError> {
        let error = PolicyError::Leaf { leaf: l.leaf, subleaf: l.subleaf };
        let has_subleaves = matches!(l.leaf, 4 | 7 | 0xb | 0xd);
        if !has_subleaves && l.subleaf != CPUID_NO_SUBLEAF {
            return Err(error);
        }
        if matches!(l.leaf, HV_BASE | 0x4000_0100) {
            // The highest leaf of our own range: what follows it is the same for all PV guests.
            return Ok(());
        }
        *self.slot(l.leaf, l.subleaf).ok_or(error)? = CpuidRegs::new(l.a, l.b, l.c, l.d);
        Ok(())
    }

    /// Takes one MSR from the tools.
    pub fn set_msr(&mut self, m: &MsrEntry) -> Result<(), PolicyError> {
        match (m.idx, m.flags, m.val) {
            // CPUID faulting is not offered, and nothing else of this register is.
            (msr::PLATFORM_INFO | msr::ARCH_CAPABILITIES, 0, 0) => Ok(()),
            _ => Err(PolicyError::Msr(m.idx)),
        }
    }

    /// Completes a policy that was changed leaf by leaf: it must be within `max`, and features beyond it are dropped.
    pub fn finish(&mut self, max: &Self) -> Result<(), PolicyError> {
        let too_high = |leaf| Err(PolicyError::Leaf { leaf, subleaf: CPUID_NO_SUBLEAF });
        if self.basic[0].eax > max.basic[0].eax {
            return too_high(0);
        }
        if self.feat[0].eax > max.feat[0].eax {
            return Err(PolicyError::Leaf { leaf: 7, subleaf: 0 });
        }
        if self.extd[0].eax > max.extd[0].eax {
            return too_high(EXTD_BASE);
        }
        let vendor = [self.basic[0].ebx, self.basic[0].ecx, self.basic[0].edx];
        if vendor != [max.basic[0].ebx, max.basic[0].ecx, max.basic[0].edx] {
            return too_high(0);
        }
        self.vendor = max.vendor;
        let mut words = restrict(&self.featureset(), &max.featureset(), self.vendor);
        drop_dependents(&mut words);
        self.set_featureset(&words);
        self.drop_unsupported_leaves();
        // Component sizes are the processor's.
        self.xstate[2..].copy_from_slice(&max.xstate[2..]);
        self.rebuild_xstate();
        Ok(())
    }
}

const fn entry(leaf: u32, subleaf: u32, r: CpuidRegs) -> CpuidLeaf {
    CpuidLeaf { leaf, subleaf, a: r.eax, b: r.ebx, c: r.ecx, d: r.edx }
}
