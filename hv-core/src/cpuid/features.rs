//! Which features PV guests may have.

use x86::cpuid::{feature, Feature, Vendor, FEATURESET_WORDS};

/// One 32-bit word per entry of [`x86::cpuid::WORD_SOURCE`].
pub type Featureset = [u32; FEATURESET_WORDS];

/// Features that a PV guest is given by default: those that Xen's cpufeatureset.h marks as available to all guests.
///
/// Differs from Xen: what needs an MSR that is not switched per vCPU is hidden (IBRSB, STIBP, SSBD, PSFD, DBEXT,
/// ARCH_CAPS and its words 16 and 17), and so is RTM.
pub const PV_DEFAULT: Featureset = [
    0x1fc9_cbf5,
    0xf6d8_3203,
    0xea50_0800,
    0x0021_09e3,
    0x0000_0007,
    0xfdaf_0329,
    0x0240_5f43,
    0x0000_0000,
    0x6400_1005,
    0x0000_441c,
    0x0000_1c30,
    0x7800_0064,
    0,
    0x0000_0020,
    0,
    0,
    0,
    0,
    0x0000_0006,
];

/// Features that a PV guest can be given on request: the default and MOVDIRI, MOVDIR64B, invariant TSC,
/// AVX512_VP2INTERSECT and TSXLDTRK.
pub const PV_MAX: Featureset = {
    let mut max = PV_DEFAULT;
    max[6] = 0x1a40_5f43;
    max[7] = 0x0000_0100;
    max[9] = 0x0001_451c;
    max
};

/// Bits of leaf 1 edx that AMD repeats in leaf 0x80000001 edx.
const COMMON_EDX: u32 = 0x0183_f3ff;

/// Word 2 without the repeated bits.
const EXTENDED_OWN: u32 = !COMMON_EDX;

/// `host` with everything taken away that `mask` does not allow, and what every PV guest sees added.
pub fn restrict(host: &Featureset, mask: &Featureset, vendor: Vendor) -> Featureset {
    let mut words: Featureset = core::array::from_fn(|i| host[i] & mask[i]);
    // Facts about the FPU, not features: always the processor's.
    for f in [feature::FDP_EXCP_ONLY, feature::NO_FPU_SEL] {
        words[f.word()] |= host[f.word()] & f.mask();
    }
    words[1] |= feature::HYPERVISOR.mask();
    if vendor.is_amd_like() {
        // SYSENTER does not exist in long mode there.
        words[0] &= !feature::SEP.mask();
        words[2] = words[2] & EXTENDED_OWN | words[0] & COMMON_EDX;
    } else {
        words[11] = 0;
        words[18] = 0;
    }
    words
}

/// Features that are useless without another one.
const DEPENDENTS: &[(Feature, &[Feature])] = &[
    (feature::FXSR, &[feature::SSE, feature::FFXSR]),
    (feature::SSE, &[feature::SSE2]),
    (feature::SSE2, &[feature::SSE3, feature::AESNI, feature::PCLMULQDQ, feature::SHA, feature::GFNI]),
    (feature::SSE3, &[feature::SSSE3]),
    (feature::SSSE3, &[feature::SSE4_1]),
    (feature::SSE4_1, &[feature::SSE4_2]),
    (feature::XSAVE, &[feature::XSAVEOPT, feature::XSAVEC, feature::XGETBV1, feature::AVX, feature::LWP]),
    (
        feature::AVX,
        &[
            feature::FMA,
            feature::FMA4,
            feature::F16C,
            feature::XOP,
            feature::AVX2,
            feature::AVX512F,
            feature::VAES,
            feature::VPCLMULQDQ,
            feature::AVX_VNNI,
        ],
    ),
    (
        feature::AVX512F,
        &[
            feature::AVX512DQ,
            feature::AVX512_IFMA,
            feature::AVX512PF,
            feature::AVX512ER,
            feature::AVX512CD,
            feature::AVX512BW,
            feature::AVX512VL,
            feature::AVX512_VBMI,
            feature::AVX512_VBMI2,
            feature::AVX512_VNNI,
            feature::AVX512_BITALG,
            feature::AVX512_VPOPCNTDQ,
            feature::AVX512_4VNNIW,
            feature::AVX512_4FMAPS,
            feature::AVX512_VP2INTERSECT,
            feature::AVX512_FP16,
            feature::AVX512_BF16,
        ],
    ),
];

/// Removes features whose base is missing. The table is in order, so one pass is enough.
pub fn drop_dependents(words: &mut Featureset) {
    for (base, dependents) in DEPENDENTS {
        if words[base.word()] & base.mask() == 0 {
            for f in *dependents {
                words[f.word()] &= !f.mask();
            }
        }
    }
}
