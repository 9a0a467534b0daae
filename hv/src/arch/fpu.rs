//! FPU state: saved and loaded at every vCPU switch; the hypervisor itself never uses it.

use crate::arch::cpu::{self, cr};
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicU64, Ordering};
use xen_abi::errno::Errno;

/// Largest extended state that is kept: x87, SSE, AVX, AVX-512 (2696 bytes), rounded up.
const AREA_SIZE: usize = 2816;
/// Components of XCR0 that guests may use: x87, SSE, AVX, opmask, ZMM_Hi256, Hi16_ZMM.
pub const XCR0_SUPPORTED: u64 = 0xe7;
/// MXCSR after reset.
const MXCSR_DEFAULT: u32 = 0x1f80;
/// x87 control word as the ABI starts a vCPU.
const FCW_DEFAULT: u16 = 0x37f;

/// XCR0 bits in use on this machine; 0 if there is no XSAVE.
static XCR0_HOST: AtomicU64 = AtomicU64::new(0);

/// XCR0 bits that this machine and the hypervisor support; 0 if there is no XSAVE.
pub fn xcr0_mask() -> u64 {
    XCR0_HOST.load(Ordering::Relaxed)
}

/// Enables the FPU on the running CPU, with XSAVE if the CPU has it.
pub fn init_cpu() {
    let has_xsave = cpu::cpuid(1, 0)[2] & (1 << 26) != 0;
    let mut cr4 = cpu::read_cr4() | cr::CR4_OSFXSR | cr::CR4_OSXMMEXCPT;
    if has_xsave {
        cr4 |= cr::CR4_OSXSAVE;
    }
    // SAFETY: the bits are supported; the hypervisor has no FPU state of its own.
    unsafe {
        cpu::write_cr0((cpu::read_cr0() & !(cr::CR0_EM | cr::CR0_TS)) | cr::CR0_MP | cr::CR0_NE);
        cpu::write_cr4(cr4);
    }
    if has_xsave {
        let leaf = cpu::cpuid(0xd, 0);
        let mut mask = (u64::from(leaf[3]) << 32 | u64::from(leaf[0])) & XCR0_SUPPORTED;
        // AVX-512 components only come together.
        if mask & 0xe0 != 0xe0 {
            mask &= !0xe0;
        }
        // SAFETY: a subset of what CPUID offers, x87 and SSE always among it.
        unsafe { cpu::xsetbv0(mask | 3) };
        XCR0_HOST.store(mask | 3, Ordering::Relaxed);
    }
}

/// The FXSAVE image at the start of an area, and the header behind it.
const LEGACY_SIZE: usize = 512;
const XSAVE_HEADER_SIZE: usize = 64;

/// Bytes of an XSAVE area with all that guests may use.
pub fn xsave_bytes() -> usize {
    // EBX: what the present XCR0 needs, and that is a guest's; ECX: what all components need.
    (cpu::cpuid(0xd, 0)[2] as usize).min(AREA_SIZE)
}

/// A vCPU's FPU state while it does not run.
pub struct FpuArea {
    data: UnsafeCell<Area>,
    /// The guest's XCR0 (meaningless without XSAVE).
    pub xcr0: Cell<u64>,
}

#[repr(C, align(64))]
struct Area([u8; AREA_SIZE]);

impl FpuArea {
    /// Reset state as the PV ABI defines it.
    pub fn new() -> Self {
        let mut area = Area([0; AREA_SIZE]);
        area.0[0..2].copy_from_slice(&FCW_DEFAULT.to_le_bytes());
        area.0[24..28].copy_from_slice(&MXCSR_DEFAULT.to_le_bytes());
        // XSTATE_BV: x87 and SSE come from the area, the rest is in its initial state.
        area.0[512] = 3;
        Self { data: UnsafeCell::new(area), xcr0: Cell::new(3) }
    }

    /// Takes the 512 bytes of an FXSAVE image; reserved MXCSR bits are dropped.
    pub fn set_fxsave(&self, image: &[u8; 512]) {
        // SAFETY: the caller owns the vCPU's state, which is loaded nowhere.
        let area = unsafe { &mut *self.data.get() };
        area.0[..512].copy_from_slice(image);
        area.0[26..28].fill(0);
        area.0[512..576].fill(0);
        area.0[512] = 3;
    }

    /// The 512 bytes of the FXSAVE image.
    pub fn fxsave(&self) -> [u8; 512] {
        // SAFETY: the caller owns the vCPU's state.
        let area = unsafe { &*self.data.get() };
        core::array::from_fn(|i| area.0[i])
    }

    /// Copies the XSAVE image out, as far as there is room.
    pub fn copy_xsave(&self, to: &mut [u8]) {
        // SAFETY: the caller owns the vCPU's state.
        let area = unsafe { &*self.data.get() };
        let bytes = to.len().min(AREA_SIZE);
        to[..bytes].copy_from_slice(&area.0[..bytes]);
    }

    /// Takes XCR0 and an XSAVE image of the standard form; `xcr0` is fit for this machine. What the image does not have is
    /// in its initial state. EINVAL for components that are not in `xcr0` and for reserved fields, which XRSTOR would
    /// refuse; EOPNOTSUPP for the compact form.
    pub fn set_xsave(&self, xcr0: u64, image: &[u8]) -> Result<(), Errno> {
        let header = image.get(LEGACY_SIZE..LEGACY_SIZE + XSAVE_HEADER_SIZE).ok_or(Errno::EINVAL)?;
        let word = |at: usize| header[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let (present, compact) = (word(0), word(8));
        if compact != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if present & !xcr0 != 0 || header[16..].iter().any(|byte| *byte != 0) || image.len() > AREA_SIZE {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller owns the vCPU's state, which is loaded nowhere.
        let area = unsafe { &mut *self.data.get() };
        area.0[..image.len()].copy_from_slice(image);
        area.0[image.len()..].fill(0);
        // Reserved bits of MXCSR.
        area.0[26..28].fill(0);
        self.xcr0.set(xcr0);
        Ok(())
    }

    /// Saves the CPU's FPU registers here. CR0.TS must be clear.
    pub fn save(&self) {
        let p = self.data.get();
        // SAFETY: the area is 64-byte aligned and large enough for every component in XCR0_SUPPORTED.
        unsafe {
            if xcr0_mask() != 0 {
                core::arch::asm!("xsave64 [{}]", in(reg) p, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack, preserves_flags));
            } else {
                core::arch::asm!("fxsave64 [{}]", in(reg) p, options(nostack, preserves_flags));
            }
        }
    }

    /// Loads the CPU's FPU registers from here. CR0.TS must be clear.
    pub fn load(&self) {
        let p = self.data.get();
        // SAFETY: the image was made by `save`, `new` or `set_fxsave`: reserved fields are zero.
        unsafe {
            if xcr0_mask() != 0 {
                cpu::xsetbv0(self.xcr0.get());
                core::arch::asm!("xrstor64 [{}]", in(reg) p, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack, preserves_flags));
            } else {
                core::arch::asm!("fxrstor64 [{}]", in(reg) p, options(nostack, preserves_flags));
            }
        }
    }
}
