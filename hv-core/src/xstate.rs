//! Extended state of a vCPU that does not run: x87, SSE, AVX and so on, as an XSAVE area of the standard format (SDM
//! vol. 1, 13.4).
//!
//! An area is saved and loaded with all components of the host in XCR0, not only those of the guest: what the guest has
//! switched off by XSETBV it finds again when it switches it on, and never what another has left in the registers.

use crate::cpuid::Policy;
use xen_abi::errno::Errno;

/// Largest state that is kept: x87, SSE, AVX and AVX-512 (2696 bytes), rounded up.
pub const AREA_SIZE: usize = 2816;
/// The part that FXSAVE knows: x87 and SSE.
pub const LEGACY_SIZE: usize = 512;
const HEADER_SIZE: usize = 64;
/// Components of XCR0 that are in the part that FXSAVE knows.
const LEGACY: u64 = 3;

/// x87 control word and MXCSR as the PV ABI starts a vCPU.
const FCW_DEFAULT: u16 = 0x37f;
const MXCSR_DEFAULT: u32 = 0x1f80;
const MXCSR: usize = 24;
/// Bits of MXCSR that every processor has; with others XRSTOR raises #GP.
const MXCSR_BITS: u32 = 0xffff;

/// An area that XRSTOR takes without a fault if XCR0 has what [`Area::present`] says.
#[derive(Clone)]
#[repr(C, align(64))]
pub struct Area([u8; AREA_SIZE]);

impl Default for Area {
    fn default() -> Self {
        Self::new()
    }
}

impl Area {
    /// The state after reset.
    pub const fn new() -> Self {
        let mut area = [0; AREA_SIZE];
        [area[0], area[1]] = FCW_DEFAULT.to_le_bytes();
        [area[MXCSR], area[MXCSR + 1], area[MXCSR + 2], area[MXCSR + 3]] = MXCSR_DEFAULT.to_le_bytes();
        // XSTATE_BV: these come from the area, the rest is in its initial state.
        area[LEGACY_SIZE] = LEGACY.to_le_bytes()[0];
        Self(area)
    }

    /// The components that are not in their initial state (XSTATE_BV).
    pub fn present(&self) -> u64 {
        word(&self.0[LEGACY_SIZE..])
    }

    /// An FXSAVE image of it.
    pub fn legacy(&self) -> [u8; LEGACY_SIZE] {
        core::array::from_fn(|i| self.0[i])
    }

    /// Takes an FXSAVE image. What such an image does not have stays: the upper halves of AVX's registers are no less
    /// the vCPU's because a toolstack has written its context, as it does when a domain goes on after a checkpoint.
    pub fn set_legacy(&mut self, image: &[u8; LEGACY_SIZE]) {
        self.0[..LEGACY_SIZE].copy_from_slice(image);
        self.drop_reserved();
        self.0[LEGACY_SIZE] |= LEGACY.to_le_bytes()[0];
    }

    /// Copies the area out, as far as there is room, for [`Area::set`] with the same `allowed`: the components that the
    /// vCPU may have. Others are in it, too, since it is saved with the host's, and some processors do not notice that
    /// a component is in its initial state.
    pub fn copy(&self, allowed: u64, to: &mut [u8]) {
        let bytes = to.len().min(AREA_SIZE);
        to[..bytes].copy_from_slice(&self.0[..bytes]);
        let present = (self.present() & allowed).to_le_bytes();
        to.iter_mut().skip(LEGACY_SIZE).zip(present).for_each(|(byte, part)| *byte = part);
    }

    /// Takes an area of the standard format, or its beginning: what is not there is in its initial state. EINVAL for
    /// components that are not in `allowed`, for reserved fields that XRSTOR refuses, and for a size that cannot be;
    /// EOPNOTSUPP for the compacted format.
    pub fn set(&mut self, allowed: u64, image: &[u8]) -> Result<(), Errno> {
        let header = image.get(LEGACY_SIZE..LEGACY_SIZE + HEADER_SIZE).ok_or(Errno::EINVAL)?;
        let (present, compacted) = (word(header), word(&header[8..]));
        if compacted != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if present & !allowed != 0 || header[16..].iter().any(|byte| *byte != 0) || image.len() > AREA_SIZE {
            return Err(Errno::EINVAL);
        }
        self.0[..image.len()].copy_from_slice(image);
        self.0[image.len()..].fill(0);
        self.drop_reserved();
        Ok(())
    }

    fn drop_reserved(&mut self) {
        let bytes = &mut self.0[MXCSR..MXCSR + 4];
        for (byte, mask) in bytes.iter_mut().zip(MXCSR_BITS.to_le_bytes()) {
            *byte &= mask;
        }
    }
}

/// Bytes of the image of a vCPU whose XCR0 has had `components`: as far as these reach. The processor that the image
/// was made on may have others behind them, and the one that it is loaded on need not.
pub fn image_bytes(processor: &Policy, components: u64) -> usize {
    (processor.xstate_size(components, false) as usize).min(AREA_SIZE)
}

/// The first eight bytes.
fn word(bytes: &[u8]) -> u64 {
    bytes[..8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Does the processor load the pointers to the x87's last instruction and its operand whenever it loads the x87's
/// state? Those of AMD and Hygon do so only if an exception is pending, unless they say otherwise; then the pointers of
/// whoever used the x87 before stay. `vendor`: EBX of CPUID leaf 0; `extended_8`: EBX of leaf 0x80000008, 0 if there is
/// none.
/// Source: AMD APM vol. 3, CPUID Fn8000_0008_EBX, RstrFpErrPtrs.
pub fn restores_x87_pointers(vendor: u32, extended_8: u32) -> bool {
    const RSTR_FP_ERR_PTRS: u32 = 1 << 2;
    let needs_a_reason = [*b"Auth", *b"Hygo"].map(u32::from_le_bytes).contains(&vendor);
    !needs_a_reason || extended_8 & RSTR_FP_ERR_PTRS != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::HostCpuid;
    use alloc::vec;
    use proptest::prelude::*;
    use x86::cpuid::CpuidRegs;

    const AVX: usize = 576;

    fn full() -> Area {
        let mut image = [0xa5; AREA_SIZE];
        image[LEGACY_SIZE..AVX].fill(0);
        image[LEGACY_SIZE] = 7;
        let mut area = Area::new();
        area.set(7, &image).unwrap();
        area
    }

    #[test]
    fn only_processors_that_forget_the_x87_pointers_need_help() {
        let vendor = |name: &[u8; 4]| u32::from_le_bytes(*name);
        assert!(restores_x87_pointers(vendor(b"Genu"), 0));
        assert!(!restores_x87_pointers(vendor(b"Auth"), 0));
        assert!(!restores_x87_pointers(vendor(b"Hygo"), !4));
        assert!(restores_x87_pointers(vendor(b"Auth"), 4));
    }

    #[test]
    fn reset_has_the_abi_s_control_words_and_nothing_beyond_sse() {
        let area = Area::new();
        assert_eq!((area.present(), &area.0[..2], &area.0[24..28]), (3, &[0x7f, 3][..], &[0x80, 0x1f, 0, 0][..]));
    }

    #[test]
    fn an_fxsave_image_leaves_what_it_does_not_have() {
        let mut area = full();
        area.set_legacy(&[0x5a; LEGACY_SIZE]);
        assert_eq!(area.present(), 7);
        assert!(area.0[AVX..].iter().all(|byte| *byte == 0xa5));
        let legacy = area.legacy();
        assert_eq!(legacy[26..28], [0, 0], "reserved bits of MXCSR");
        assert!(legacy[28..].iter().all(|byte| *byte == 0x5a));
        // Of a vCPU without such state there is none afterwards either.
        let mut area = Area::new();
        area.set_legacy(&[0x5a; LEGACY_SIZE]);
        assert_eq!(area.present(), 3);
    }

    #[test]
    fn an_fxsave_image_is_taken_where_sse_was_in_its_initial_state() {
        let mut area = full();
        let mut image = [0; AVX];
        image[LEGACY_SIZE] = 4;
        area.set(7, &image).unwrap();
        area.set_legacy(&[1; LEGACY_SIZE]);
        assert_eq!(area.present(), 7);
    }

    #[test]
    fn a_short_area_leaves_nothing_of_the_last_one() {
        let mut area = full();
        let mut image = [0; AVX];
        image[LEGACY_SIZE] = 3;
        area.set(7, &image).unwrap();
        assert!(area.present() == 3 && area.0[AVX..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_xrstor_refuses_is_refused() {
        let changed = |at: usize, value: u8| {
            let mut image = [0; AVX];
            image[at] = value;
            image
        };
        let mut area = full();
        for (image, error) in [
            (&changed(LEGACY_SIZE, 8)[..], Errno::EINVAL),
            (&changed(LEGACY_SIZE + 7, 0x80)[..], Errno::EINVAL),
            (&changed(LEGACY_SIZE + 15, 0x80)[..], Errno::EOPNOTSUPP),
            (&changed(LEGACY_SIZE + 16, 1)[..], Errno::EINVAL),
            (&changed(AVX - 1, 1)[..], Errno::EINVAL),
            (&[0; AVX - 1][..], Errno::EINVAL),
            (&[0; AREA_SIZE + 1][..], Errno::EINVAL),
        ] {
            assert_eq!(area.set(7, image), Err(error));
        }
        let mut untouched = [0; AREA_SIZE];
        area.copy(7, &mut untouched);
        assert!(untouched == full().0);
    }

    #[test]
    fn what_is_copied_out_can_be_set_again() {
        // AVX's state was saved, as the host has it, of a vCPU that never switched it on.
        let mut image = [0; AREA_SIZE];
        full().copy(3, &mut image);
        let mut area = full();
        assert_eq!(area.set(3, &image), Ok(()));
        assert_eq!(area.present(), 3);
        assert_eq!(area.legacy(), full().legacy());
        let mut short = [0xff; LEGACY_SIZE + 2];
        full().copy(3, &mut short);
        assert_eq!(short[LEGACY_SIZE..], [3, 0]);
    }

    #[test]
    fn an_image_is_as_long_as_what_its_vcpu_has_had() {
        // With AVX, AVX-512 and protection keys.
        struct Cpu;
        impl HostCpuid for Cpu {
            fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuidRegs {
                match (leaf, subleaf) {
                    (0, _) => CpuidRegs::new(0xd, 0, 0, 0),
                    (0xd, 0) => CpuidRegs::new(0x2e7, 2696, 2696, 0),
                    (0xd, 2) => CpuidRegs::new(256, 576, 0, 0),
                    (0xd, 5) => CpuidRegs::new(64, 1088, 0, 0),
                    (0xd, 6) => CpuidRegs::new(512, 1152, 0, 0),
                    (0xd, 7) => CpuidRegs::new(1024, 1664, 0, 0),
                    (0xd, 9) => CpuidRegs::new(8, 2688, 0, 0),
                    _ => CpuidRegs::ZERO,
                }
            }
        }
        let processor = Policy::raw(&Cpu);
        assert_eq!([3, 7, 0xe7].map(|had| image_bytes(&processor, had)), [576, 832, 2688]);
        let mut image = [0; 832];
        full().copy(7, &mut image);
        let mut area = Area::new();
        area.set(7, &image).unwrap();
        assert!(area.0[..832] == full().0[..832], "all of it is in such an image");
    }

    proptest! {
        /// Whatever a toolstack writes, XRSTOR takes it.
        #[test]
        fn what_is_taken_can_be_loaded(
            allowed in prop::sample::select(vec![1_u64, 3, 7, 0xe7]),
            header in prop::collection::vec(prop_oneof![8 => Just(0_u8), 1 => any::<u8>()], HEADER_SIZE),
            mxcsr in any::<[u8; 4]>(),
            len in 0..AREA_SIZE + 64,
        ) {
            let mut image = vec![0x33; AREA_SIZE + 64];
            image[MXCSR..MXCSR + 4].copy_from_slice(&mxcsr);
            image[LEGACY_SIZE..AVX].copy_from_slice(&header);
            let mut area = Area::new();
            let _ = area.set(allowed, &image[..len]);
            prop_assert_eq!(area.present() & !(allowed | 3), 0);
            prop_assert!(area.0[LEGACY_SIZE + 8..AVX].iter().all(|byte| *byte == 0));
            prop_assert_eq!(&area.0[MXCSR + 2..MXCSR + 4], &[0, 0]);
        }
    }
}
