use super::*;
use proptest::prelude::*;
use std::vec::Vec;
use xen_abi::domctl::{CpuidLeaf, MsrEntry, CPUID_NO_SUBLEAF};

/// Leaves of a processor: (leaf, subleaf, registers).
struct Table(&'static [(u32, u32, [u32; 4])]);

impl HostCpuid for Table {
    fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegs {
        let found = self.0.iter().find(|&&(l, s, _)| (l, s) == (leaf, subleaf));
        found.map_or(CpuidRegs::ZERO, |&(_, _, [a, b, c, d])| CpuidRegs::new(a, b, c, d))
    }
}

const AMD: [u32; 4] = [0xd, 0x6874_7541, 0x444d_4163, 0x6974_6e65];
const INTEL: [u32; 4] = [0x1f, 0x756e_6547, 0x6c65_746e, 0x4965_6e69];

/// QEMU's default model.
const QEMU64: Table = Table(&[
    (0, 0, AMD),
    (1, 0, [0x60fb1, 0x0800, 0x8000_2001, 0x078b_fbfd]),
    (4, 0, [0x121, 0x1c0_003f, 0x3f, 1]),
    (0x8000_0000, 0, [0x8000_000a, AMD[1], AMD[2], AMD[3]]),
    (0x8000_0001, 0, [0x60fb1, 0, 5, 0x2193_fbfd]),
    (0x8000_0008, 0, [0x3028, 0, 0, 0]),
    (0x8000_000a, 0, [1, 0x10, 0, 0]),
]);

/// A model with AVX, SMEP, SMAP, PKU, MPX, XSAVES and two CPUs.
const MAX: Table = Table(&[
    (0, 0, AMD),
    (1, 0, [0x60fb1, 0x2_0800, 0xfeda_b223, 0x1fcb_fbff]),
    (7, 0, [0, 0x0198_47ab, 0x0041_021c, 0]),
    (0xd, 0, [0x21f, 0x340, 0xa88, 0]),
    (0xd, 1, [0xd, 0x340, 0, 0]),
    (0xd, 2, [0x100, 0x240, 0, 0]),
    (0xd, 3, [0x40, 0x3c0, 0, 0]),
    (0xd, 9, [8, 0xa80, 0, 0]),
    (0x8000_0000, 0, [0x8000_001f, AMD[1], AMD[2], AMD[3]]),
    (0x8000_0001, 0, [0x60fb1, 0, 0x73, 0xedd3_fbff]),
    (0x8000_0008, 0, [0x3028, 0, 0x1001, 0x7_0000]),
]);

/// A small Intel processor with speculation controls.
const SMALL_INTEL: Table = Table(&[
    (0, 0, INTEL),
    (1, 0, [0x906ea, 0x0100_0800, 0x7ffa_fbff, 0xbfeb_fbff]),
    (7, 0, [0, 0x029c_6fbf, 0, 0x9c00_0400]),
    (0xb, 0, [1, 2, 0x100, 0]),
    (0xd, 0, [7, 0x340, 0x340, 0]),
    (0xd, 2, [0x100, 0x240, 0, 0]),
    (0x8000_0000, 0, [0x8000_0008, 0, 0, 0]),
    (0x8000_0001, 0, [0, 0, 0x121, 0x2c10_0800]),
    (0x8000_0008, 0, [0x3027, 0, 0, 0]),
]);

fn dom0() -> View {
    View { hardware_kernel: true, osxsave: true, xcr0: 3, machine_address_bits: 0x1f, ..View::default() }
}

fn regs(policy: &Policy, leaf: u32, subleaf: u32) -> [u32; 4] {
    let r = policy.lookup(leaf, subleaf, &dom0());
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// The values that domain 0 got from Xen on the same model.
#[test]
fn domain_0_on_the_default_model_sees_what_xen_shows() {
    let p = Policy::pv_default(&Policy::raw(&QEMU64).with_serialising_lfence());
    assert_eq!(regs(&p, 0, 0), AMD);
    assert_eq!(regs(&p, 1, 0), [0x60fb1, 0x800, 0x8000_2001, 0x0789_d3f5]);
    assert_eq!(regs(&p, 7, 0), [0; 4]);
    assert_eq!(regs(&p, 0xd, 1), [0; 4]);
    assert_eq!(regs(&p, 0x8000_0000, 0)[0], 0x8000_0021);
    assert_eq!(regs(&p, 0x8000_0001, 0), [0x60fb1, 0, 1, 0x2191_dbf5]);
    assert_eq!(regs(&p, 0x8000_0008, 0), [0x3028, 0, 0, 0]);
    assert_eq!(regs(&p, 0x8000_000a, 0), [0; 4], "no SVM");
    assert_eq!(regs(&p, 0x8000_0021, 0), [4, 0, 0, 0], "LFENCE serialises");
}

#[test]
fn lfence_is_offered_as_serialising_only_if_it_was_made_to_be() {
    let raw = Policy::raw(&QEMU64);
    for p in [Policy::pv_max(&raw), Policy::pv_default(&raw)] {
        assert_eq!(regs(&p, 0x8000_0021, 0), [0; 4]);
    }
    let intel = Policy::raw(&SMALL_INTEL).with_serialising_lfence();
    assert_eq!(regs(&Policy::pv_max(&intel), 0x8000_0021, 0), [0; 4], "it has no such leaf");
}

#[test]
fn a_large_model_keeps_avx_and_loses_what_pv_cannot_have() {
    let p = Policy::pv_default(&Policy::raw(&MAX));
    assert_eq!(regs(&p, 1, 0), [0x60fb1, 0x2_0800, 0xfed8_3203, 0x1fc9_d3f5]);
    assert_eq!(regs(&p, 7, 0)[1], 0x0188_0329, "no SMEP, SMAP, MPX, INVPCID");
    assert_eq!(regs(&p, 7, 0)[2], 0x0040_0200, "VAES and RDPID; no UMIP, PKU");
    assert_eq!(regs(&p, 0xd, 0), [7, 0x240, 0x340, 0]);
    assert_eq!(regs(&p, 0xd, 1), [5, 0, 0, 0], "no XSAVES");
    assert_eq!(regs(&p, 0xd, 2), [0x100, 0x240, 0, 0]);
    assert_eq!(regs(&p, 0xd, 9), [0; 4], "no PKRU");
    assert_eq!(p.xcr0_max(), 7);
    assert_eq!(regs(&p, 0x8000_0001, 0)[2..], [0x63, 0xe9d1_dbf5]);
    assert_eq!(regs(&p, 0x8000_0008, 0), [0x3028, 0, 0x1001, 0]);
}

#[test]
fn intel_keeps_sysenter_and_hides_speculation_controls_and_topology() {
    let p = Policy::pv_default(&Policy::raw(&SMALL_INTEL));
    assert_eq!(regs(&p, 0, 0)[0], 0xd);
    assert!(p.has(feature::SEP) && p.has(feature::AVX2) && !p.has(feature::PCID) && !p.has(feature::X2APIC));
    assert_eq!(regs(&p, 7, 0)[3], 0x400, "MD_CLEAR only");
    assert_eq!(regs(&p, 0xb, 0), [0; 4]);
    assert_eq!(regs(&p, 0x8000_0000, 0)[0], 0x8000_0008);
    assert_eq!(regs(&p, 0x8000_0001, 0)[3], 0x2810_0800, "no 1 GiB pages, no MTRR bit here");
    assert_eq!(regs(&p, 0x8000_0021, 0), [0; 4]);
}

#[test]
fn leaves_that_depend_on_who_asks() {
    let p = Policy::pv_default(&Policy::raw(&MAX));
    let user = View { vcpu_id: 3, xcr0: 7, ..View::default() };
    let leaf1 = p.lookup(1, 0, &user);
    assert_eq!(leaf1.ebx >> 24, 6, "APIC id is twice the vCPU number");
    assert_eq!((leaf1.ecx & feature::OSXSAVE.mask(), leaf1.edx & feature::MTRR.mask()), (0, 0));
    assert_eq!(p.lookup(0xd, 0, &user).ebx, 0x340);
    assert_eq!(p.xstate_size(0x204, true), 576 + 0x100, "components that are not offered take no room");
}

#[test]
fn hypervisor_leaves() {
    let p = Policy::pv_default(&Policy::raw(&QEMU64));
    assert_eq!(regs(&p, 0x4000_0000, 0), [0x4000_0005, 0x566e_6558, 0x6558_4d4d, 0x4d4d_566e]);
    assert_eq!(regs(&p, 0x4000_0001, 0), [0x40011, 0, 0, 0]);
    assert_eq!(regs(&p, 0x4000_0002, 0), [1, 0x4000_0000, 1, 0]);
    assert_eq!(regs(&p, 0x4000_0004, 0), [0; 4]);
    assert_eq!(regs(&p, 0x4000_0005, 0), [0, 0x1f, 0, 0]);
    for leaf in (0x4000_0100..0x4001_0000).step_by(0x100) {
        assert_eq!(regs(&p, leaf, 0), [0; 4], "{leaf:#x}");
    }
}

#[test]
fn a_missing_feature_is_named() {
    assert_eq!(missing_feature(&QEMU64), None);
    assert_eq!(missing_feature(&MAX), None);
    let no_nx = Table(&[
        (1, 0, [0, 0, 0, !0]),
        (0x8000_0000, 0, [0x8000_0001, 0, 0, 0]),
        (0x8000_0001, 0, [0, 0, 0, !(1 << 20)]),
    ]);
    assert!(missing_feature(&no_nx).unwrap().starts_with("NX"));
    assert!(missing_feature(&Table(&[(1, 0, [0, 0, 0, !0])])).unwrap().starts_with("SYSCALL"));
}

/// What the tools do: fetch the default, change nothing or something, set it.
fn round_trip(change: impl Fn(&mut CpuidLeaf)) -> Result<Policy, PolicyError> {
    let raw = Policy::raw(&MAX);
    let mut p = Policy::pv_default(&raw);
    let mut leaves: Vec<_> = p.leaves().collect();
    leaves.iter_mut().for_each(change);
    leaves.iter().try_for_each(|l| p.set_leaf(l))?;
    p.msrs().iter().try_for_each(|m| p.clone().set_msr(m))?;
    p.finish(&Policy::pv_max(&raw))?;
    Ok(p)
}

#[test]
fn a_policy_survives_the_trip_through_the_tools() {
    let p = Policy::pv_default(&Policy::raw(&MAX));
    assert!(p.leaves().count() <= Policy::MAX_LEAVES);
    assert_eq!(round_trip(|_| ()).as_ref(), Ok(&p));
}

#[test]
fn the_set_of_leaves_follows_from_the_policy_alone() {
    // What libxenguest's serialiser, which uses our count as its buffer's size, makes of the same policy.
    let p = Policy::pv_default(&Policy::raw(&MAX));
    let count = |leaf: u32| p.leaves().filter(|l| l.leaf == leaf).count();
    assert_eq!((count(4), count(0xb)), (NR_CACHE, NR_TOPO));
    assert_eq!(count(7), p.feat[0].eax as usize + 1);
    let beyond_xcr0 = p.xcr0_max().count_ones() as usize - 2;
    assert_eq!(count(0xd), 2 + beyond_xcr0);
    assert_eq!((count(0x4000_0000), count(0x4000_0100)), (1, 1));
    assert_eq!(count(0), 1);
}

#[test]
fn tools_can_take_features_away_but_not_add_them() {
    let without_xsave = round_trip(|l| {
        if l.leaf == 1 {
            l.c &= !feature::XSAVE.mask();
        }
    })
    .unwrap();
    assert!(!without_xsave.has(feature::AVX) && !without_xsave.has(feature::AVX2), "dependents go too");
    assert_eq!((without_xsave.xcr0_max(), without_xsave.lookup(0xd, 0, &dom0()).eax), (0, 0));
    let all = round_trip(|l| {
        if matches!(l.leaf, 1 | 7) {
            (l.b, l.c, l.d) = (!0, !0, !0);
        }
    })
    .unwrap();
    assert!(!all.has(feature::VMX) && !all.has(feature::SMEP) && !all.has(feature::PCID));
}

#[test]
fn bad_leaves_are_named() {
    let bad = |change: fn(&mut CpuidLeaf)| round_trip(change).unwrap_err();
    let leaf = |leaf, subleaf| PolicyError::Leaf { leaf, subleaf };
    assert_eq!(bad(|l| l.leaf |= 0x100 * u32::from(l.leaf == 6)), leaf(0x106, CPUID_NO_SUBLEAF));
    assert_eq!(bad(|l| l.a |= 0x100 * u32::from(l.leaf == 0)), leaf(0, CPUID_NO_SUBLEAF));
    assert_eq!(bad(|l| l.a |= 0x100 * u32::from(l.leaf == 0x8000_0000)), leaf(0x8000_0000, CPUID_NO_SUBLEAF));
    assert_eq!(bad(|l| l.subleaf |= 0x40 * u32::from(l.leaf == 0xd)), leaf(0xd, 0x40));
    assert_eq!(bad(|l| l.subleaf &= !u32::from(l.leaf == 1)), leaf(1, !1));
    let mut p = Policy::pv_default(&Policy::raw(&MAX));
    assert_eq!(p.set_msr(&MsrEntry { idx: 0x10a, flags: 0, val: 1 }), Err(PolicyError::Msr(0x10a)));
    assert_eq!(p.set_msr(&MsrEntry { idx: 0x10, flags: 0, val: 0 }), Err(PolicyError::Msr(0x10)));
}

proptest! {
    /// Whatever the tools send, the result is within the maximum.
    #[test]
    fn any_policy_ends_within_the_maximum(
        changes in prop::collection::vec((0u32..0x10, any::<bool>(), 0u32..4, any::<[u32; 4]>()), 0..30),
    ) {
        let raw = Policy::raw(&MAX);
        let max = Policy::pv_max(&raw);
        let mut p = Policy::pv_default(&raw);
        for (leaf, extended, subleaf, [a, b, c, d]) in changes {
            let subleaf = if matches!(leaf, 4 | 7 | 0xb | 0xd) && !extended { subleaf } else { CPUID_NO_SUBLEAF };
            let leaf = leaf | if extended { 0x8000_0000 } else { 0 };
            let _ = p.set_leaf(&CpuidLeaf { leaf, subleaf, a, b, c, d });
        }
        if p.finish(&max).is_ok() {
            for (have, allowed) in p.featureset().iter().zip(max.featureset()) {
                prop_assert_eq!(have & !allowed, 0);
            }
            prop_assert_eq!(p.xcr0_max() & !max.xcr0_max(), 0);
            prop_assert!(p.xstate_size(p.xcr0_max(), false) <= max.xstate_size(max.xcr0_max(), false));
        }
        for leaf in (0..0x20).chain(0x8000_0000..0x8000_0030) {
            p.lookup(leaf, 1, &dom0());
        }
    }
}
