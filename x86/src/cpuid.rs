//! CPUID leaves and feature bits (SDM vol. 2A, CPUID; AMD APM vol. 3, appendix E).
//!
//! A feature is named by the word of a *featureset* that holds it and its bit. A featureset is the array of 32-bit
//! words in which Xen's tools exchange features (public/arch-x86/cpufeatureset.h): which leaf and register each word
//! comes from is in [`WORD_SOURCE`].

/// Registers that CPUID returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "register names")]
pub struct CpuidRegs {
    pub eax: u32,
    pub ebx: u32,
    pub ecx: u32,
    pub edx: u32,
}

impl CpuidRegs {
    /// All zero, the answer of a leaf that does not exist.
    pub const ZERO: Self = Self { eax: 0, ebx: 0, ecx: 0, edx: 0 };

    /// From the four registers in order a, b, c, d.
    pub const fn new(eax: u32, ebx: u32, ecx: u32, edx: u32) -> Self {
        Self { eax, ebx, ecx, edx }
    }
}

/// One of the four registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "register names")]
pub enum Reg {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

/// Words in a featureset of Xen 4.17.7 as Debian ships it.
pub const FEATURESET_WORDS: usize = 19;

/// Leaf, subleaf and register of each featureset word.
pub const WORD_SOURCE: [(u32, u32, Reg); FEATURESET_WORDS] = [
    (0x1, 0, Reg::Edx),
    (0x1, 0, Reg::Ecx),
    (0x8000_0001, 0, Reg::Edx),
    (0x8000_0001, 0, Reg::Ecx),
    (0xd, 1, Reg::Eax),
    (0x7, 0, Reg::Ebx),
    (0x7, 0, Reg::Ecx),
    (0x8000_0007, 0, Reg::Edx),
    (0x8000_0008, 0, Reg::Ebx),
    (0x7, 0, Reg::Edx),
    (0x7, 1, Reg::Eax),
    (0x8000_0021, 0, Reg::Eax),
    (0x7, 1, Reg::Ebx),
    (0x7, 2, Reg::Edx),
    (0x7, 1, Reg::Ecx),
    (0x7, 1, Reg::Edx),
    (0xffff_ffff, 0, Reg::Eax), // ARCH_CAPABILITIES low half: no CPUID leaf
    (0xffff_ffff, 0, Reg::Edx), // ARCH_CAPABILITIES high half
    (0x8000_0021, 0, Reg::Ecx),
];

/// A feature: word of the featureset and bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Feature(u16);

impl Feature {
    /// The feature at `bit` of `word`.
    #[allow(clippy::cast_possible_truncation, reason = "a featureset has 19 words")]
    pub const fn new(word: usize, bit: u32) -> Self {
        Self((word as u16) << 5 | (bit as u16 & 31))
    }
    /// Its word.
    #[inline]
    pub const fn word(self) -> usize {
        (self.0 >> 5) as usize
    }
    /// Its mask in that word.
    #[inline]
    pub const fn mask(self) -> u32 {
        1 << (self.0 & 31)
    }
}

/// Feature names of the manuals.
#[allow(missing_docs, reason = "the manuals' names")]
#[rustfmt::skip]
pub mod feature {
    use super::Feature;
    macro_rules! features {
        ($($word:literal: $($name:ident $bit:literal),+;)+) => {
            $($(pub const $name: Feature = Feature::new($word, $bit);)+)+
            /// All named features with their names.
            pub const NAMES: &[(&str, Feature)] = &[$($((stringify!($name), $name)),+),+];
        };
    }
    features! {
        // Leaf 1 edx
        0: FPU 0, VME 1, DE 2, PSE 3, TSC 4, MSR 5, PAE 6, MCE 7, CX8 8, APIC 9, SEP 11, MTRR 12, PGE 13, MCA 14, CMOV 15,
           PAT 16, PSE36 17, CLFLUSH 19, DS 21, ACPI 22, MMX 23, FXSR 24, SSE 25, SSE2 26, SS 27, HTT 28, TM1 29, PBE 31;
        // Leaf 1 ecx
        1: SSE3 0, PCLMULQDQ 1, DTES64 2, MONITOR 3, DSCPL 4, VMX 5, SMX 6, EIST 7, TM2 8, SSSE3 9, FMA 12, CX16 13, XTPR 14,
           PDCM 15, PCID 17, DCA 18, SSE4_1 19, SSE4_2 20, X2APIC 21, MOVBE 22, POPCNT 23, TSC_DEADLINE 24, AESNI 25,
           XSAVE 26, OSXSAVE 27, AVX 28, F16C 29, RDRAND 30, HYPERVISOR 31;
        // Leaf 0x80000001 edx
        2: SYSCALL 11, NX 20, MMXEXT 22, FFXSR 25, PAGE1GB 26, RDTSCP 27, LM 29, THREEDNOWEXT 30, THREEDNOW 31;
        // Leaf 0x80000001 ecx
        3: LAHF_LM 0, CMP_LEGACY 1, SVM 2, EXTAPIC 3, CR8_LEGACY 4, ABM 5, SSE4A 6, MISALIGNSSE 7, PREFETCHW 8, OSVW 9, IBS 10,
           XOP 11, SKINIT 12, WDT 13, LWP 15, FMA4 16, NODEID_MSR 19, TBM 21, TOPOEXT 22, DBEXT 26, MONITORX 29;
        // Leaf 0xd subleaf 1 eax
        4: XSAVEOPT 0, XSAVEC 1, XGETBV1 2, XSAVES 3;
        // Leaf 7 ebx
        5: FSGSBASE 0, TSC_ADJUST 1, SGX 2, BMI1 3, HLE 4, AVX2 5, FDP_EXCP_ONLY 6, SMEP 7, BMI2 8, ERMS 9, INVPCID 10, RTM 11,
           PQM 12, NO_FPU_SEL 13, MPX 14, PQE 15, AVX512F 16, AVX512DQ 17, RDSEED 18, ADX 19, SMAP 20, AVX512_IFMA 21,
           CLFLUSHOPT 23, CLWB 24, PROC_TRACE 25, AVX512PF 26, AVX512ER 27, AVX512CD 28, SHA 29, AVX512BW 30, AVX512VL 31;
        // Leaf 7 ecx
        6: PREFETCHWT1 0, AVX512_VBMI 1, UMIP 2, PKU 3, OSPKE 4, AVX512_VBMI2 6, CET_SS 7, GFNI 8, VAES 9, VPCLMULQDQ 10,
           AVX512_VNNI 11, AVX512_BITALG 12, AVX512_VPOPCNTDQ 14, LA57 16, RDPID 22, CLDEMOTE 25, MOVDIRI 27, MOVDIR64B 28,
           ENQCMD 29, PKS 31;
        // Leaf 0x80000007 edx
        7: HW_PSTATE 7, ITSC 8, CPB 9, EFRO 10;
        // Leaf 0x80000008 ebx
        8: CLZERO 0, RSTR_FP_ERR_PTRS 2, WBNOINVD 9, IBPB 12, IBRS 14, AMD_STIBP 15, IBRS_ALWAYS 16, STIBP_ALWAYS 17,
           IBRS_FAST 18, IBRS_SAME_MODE 19, NO_LMSL 20, AMD_PPIN 23, AMD_SSBD 24, VIRT_SSBD 25, SSB_NO 26, PSFD 28, BTC_NO 29,
           IBPB_RET 30;
        // Leaf 7 edx
        9: AVX512_4VNNIW 2, AVX512_4FMAPS 3, FSRM 4, AVX512_VP2INTERSECT 8, SRBDS_CTRL 9, MD_CLEAR 10, RTM_ALWAYS_ABORT 11,
           TSX_FORCE_ABORT 13, SERIALIZE 14, HYBRID 15, TSXLDTRK 16, ARCH_LBR 19, CET_IBT 20, AVX512_FP16 23, IBRSB 26,
           STIBP 27, L1D_FLUSH 28, ARCH_CAPS 29, CORE_CAPS 30, SSBD 31;
        // Leaf 7 subleaf 1 eax
        10: SHA512 0, SM3 1, SM4 2, AVX_VNNI 4, AVX512_BF16 5, FZRM 10, FSRS 11, FSRCS 12, WRMSRNS 19, AMX_FP16 21, AVX_IFMA 23;
        // Leaf 0x80000021 eax
        11: NO_NEST_BP 0, FS_GS_NS 1, LFENCE_DISPATCH 2, NSCB 6, AUTO_IBRS 8, CPUID_USER_DIS 17, SBPB 27, IBPB_BRTYPE 28,
            SRSO_NO 29;
        // Leaf 7 subleaf 1 ebx
        12: INTEL_PPIN 0;
        // Leaf 7 subleaf 2 edx
        13: INTEL_PSFD 0, IPRED_CTRL 1, RRSBA_CTRL 2, DDP_CTRL 3, BHI_CTRL 4, MCDT_NO 5;
    }
}

/// Maker of the processor, as far as behaviour depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "company names")]
pub enum Vendor {
    Intel,
    Amd,
    Hygon,
    Other,
}

impl Vendor {
    /// From leaf 0.
    pub const fn from_leaf0(leaf: CpuidRegs) -> Self {
        match (leaf.ebx, leaf.edx, leaf.ecx) {
            (0x756e_6547, 0x4965_6e69, 0x6c65_746e) => Self::Intel,
            (0x6874_7541, 0x6974_6e65, 0x444d_4163) => Self::Amd,
            (0x6f67_7948, 0x6e65_476e, 0x656e_6975) => Self::Hygon,
            _ => Self::Other,
        }
    }
    /// AMD and Hygon: SYSCALL in compatibility mode, no SYSENTER in long mode.
    pub const fn is_amd_like(self) -> bool {
        matches!(self, Self::Amd | Self::Hygon)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_strings() {
        let leaf = |s: &[u8; 12]| {
            let w = |i: usize| u32::from_le_bytes([s[i], s[i + 1], s[i + 2], s[i + 3]]);
            CpuidRegs::new(0xd, w(0), w(8), w(4))
        };
        assert_eq!(Vendor::from_leaf0(leaf(b"GenuineIntel")), Vendor::Intel);
        assert_eq!(Vendor::from_leaf0(leaf(b"AuthenticAMD")), Vendor::Amd);
        assert_eq!(Vendor::from_leaf0(leaf(b"HygonGenuine")), Vendor::Hygon);
        assert_eq!(Vendor::from_leaf0(leaf(b"TCGTCGTCGTCG")), Vendor::Other);
    }

    #[test]
    fn feature_word_and_mask() {
        assert_eq!((feature::NX.word(), feature::NX.mask()), (2, 1 << 20));
        assert_eq!((feature::LFENCE_DISPATCH.word(), feature::LFENCE_DISPATCH.mask()), (11, 4));
    }
}
