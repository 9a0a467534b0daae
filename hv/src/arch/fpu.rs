//! FPU state: saved and loaded at every vCPU switch; the hypervisor itself never uses it.

use crate::arch::cpu_policy::policies;
use crate::cpu::{self, cr};
use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use hv_core::xstate::{self, Area};
use xen_abi::errno::Errno;

/// Components of XCR0 that guests may use: x87, SSE, AVX, opmask, ZMM_Hi256, Hi16_ZMM.
pub const XCR0_SUPPORTED: u64 = 0xe7;

/// XCR0 bits in use on this machine, which are set on a CPU whenever no guest's are; 0 if there is no XSAVE.
static XCR0_HOST: AtomicU64 = AtomicU64::new(0);

/// The processor leaves the x87's last-instruction pointers as they are when it loads a state, as a rule.
static KEEPS_X87_POINTERS: AtomicBool = AtomicBool::new(false);

/// XCR0 bits that this machine and the hypervisor support; 0 if there is no XSAVE.
pub fn xcr0_mask() -> u64 {
    XCR0_HOST.load(Ordering::Relaxed)
}

/// Enables the FPU on the running CPU, with XSAVE if the CPU has it.
pub fn init_cpu() {
    let extended_8 = if cpu::cpuid(0x8000_0000, 0).eax >= 0x8000_0008 { cpu::cpuid(0x8000_0008, 0).ebx } else { 0 };
    let restores = xstate::restores_x87_pointers(cpu::cpuid(0, 0).ebx, extended_8);
    KEEPS_X87_POINTERS.store(!restores, Ordering::Relaxed);
    let has_xsave = cpu::cpuid(1, 0).ecx & (1 << 26) != 0;
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
        let mut mask = (u64::from(leaf.edx) << 32 | u64::from(leaf.eax)) & XCR0_SUPPORTED;
        // AVX-512 components only come together.
        if mask & 0xe0 != 0xe0 {
            mask &= !0xe0;
        }
        // SAFETY: a subset of what CPUID offers, x87 and SSE always among it.
        unsafe { cpu::xsetbv0(mask | 3) };
        XCR0_HOST.store(mask | 3, Ordering::Relaxed);
    }
}

/// Gives the registers that choose rounding and exceptions their initial values, for code that is no guest's.
pub fn set_initial() {
    const MXCSR: u32 = 0x1f80;
    // SAFETY: only changes the FPU's state, which its owner has saved.
    unsafe { core::arch::asm!("fninit", "ldmxcsr [{}]", in(reg) &MXCSR, options(nostack, preserves_flags)) };
}

/// Bytes of the XSAVE image of a vCPU whose XCR0 has had `components`.
pub fn xsave_bytes(components: u64) -> usize {
    xstate::image_bytes(&policies().raw, components)
}

/// A vCPU's FPU state while it does not run.
pub struct FpuArea {
    data: UnsafeCell<Area>,
    xcr0: Cell<u64>,
    /// All that XCR0 has ever had: components of which there may be state.
    accumulated: Cell<u64>,
}

/// XCR0 after reset here: PV kernels have SSE before they set XCR0.
const XCR0_DEFAULT: u64 = 3;

impl FpuArea {
    /// Reset state as the PV ABI defines it.
    pub fn new() -> Self {
        Self { data: UnsafeCell::new(Area::new()), xcr0: Cell::new(XCR0_DEFAULT), accumulated: Cell::new(XCR0_DEFAULT) }
    }

    #[allow(clippy::mut_from_ref, reason = "the borrow ends before that of another call begins")]
    fn area(&self) -> &mut Area {
        // SAFETY: the caller owns the vCPU's state, which is loaded nowhere; no borrow leaves this type.
        unsafe { &mut *self.data.get() }
    }

    /// All registers are what they are at reset. XCR0 stays.
    pub fn reset_registers(&self) {
        *self.area() = Area::new();
    }

    /// Back to reset state.
    pub fn reset(&self) {
        self.reset_registers();
        self.xcr0.set(XCR0_DEFAULT);
        self.accumulated.set(XCR0_DEFAULT);
    }

    /// The guest's XCR0 (meaningless without XSAVE).
    pub fn xcr0(&self) -> u64 {
        self.xcr0.get()
    }

    /// All that the guest's XCR0 has ever had.
    pub fn xcr0_accumulated(&self) -> u64 {
        self.accumulated.get()
    }

    /// XSETBV of the running vCPU.
    ///
    /// # Safety
    /// 1. The machine has XSAVE, and `value` is a valid combination of components of [`xcr0_mask`].
    pub unsafe fn write_xcr0(&self, value: u64) {
        self.xcr0.set(value);
        self.accumulated.set(self.accumulated.get() | value);
        // SAFETY: (1); `init_cpu` sets CR4.OSXSAVE wherever there is XSAVE.
        unsafe { cpu::xsetbv0(value) };
    }

    /// Takes the 512 bytes of an FXSAVE image; reserved MXCSR bits are dropped, what it does not have stays.
    pub fn set_fxsave(&self, image: &[u8; xstate::LEGACY_SIZE]) {
        self.area().set_legacy(image);
    }

    /// The 512 bytes of the FXSAVE image.
    pub fn fxsave(&self) -> [u8; xstate::LEGACY_SIZE] {
        self.area().legacy()
    }

    /// Copies the XSAVE image out, as far as there is room, with the components that the guest's XCR0 has ever had.
    pub fn copy_xsave(&self, to: &mut [u8]) {
        self.area().copy(self.accumulated.get(), to);
    }

    /// Takes XCR0, all that it has ever had, and an XSAVE image, as [`Area::set`] does.
    ///
    /// # Safety
    /// 1. `xcr0` and `accumulated` are valid combinations of components of [`xcr0_mask`].
    pub unsafe fn set_xsave(&self, xcr0: u64, accumulated: u64, image: &[u8]) -> Result<(), Errno> {
        self.area().set(accumulated, image)?;
        self.xcr0.set(xcr0);
        self.accumulated.set(accumulated);
        Ok(())
    }

    /// Takes the state of `other`.
    pub fn assign(&self, other: &Self) {
        *self.area() = other.area().clone();
        self.xcr0.set(other.xcr0.get());
        self.accumulated.set(other.accumulated.get());
    }

    /// Whether XCR0 must be another for the guest than for saving and loading.
    fn has_less(&self) -> bool {
        self.xcr0.get() != xcr0_mask()
    }

    /// Saves the CPU's FPU registers here, and gives XCR0 the host's value. CR0.TS must be clear.
    pub fn save(&self) {
        let p = self.data.get();
        // SAFETY: the area is 64-byte aligned and large enough for every component in XCR0_SUPPORTED, of which the
        // host's XCR0 is a subset.
        unsafe {
            if xcr0_mask() != 0 {
                if self.has_less() {
                    cpu::xsetbv0(xcr0_mask());
                }
                core::arch::asm!("xsave64 [{}]", in(reg) p, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack, preserves_flags));
            } else {
                core::arch::asm!("fxsave64 [{}]", in(reg) p, options(nostack, preserves_flags));
            }
        }
    }

    /// Loads the CPU's FPU registers from here, and XCR0, which has the host's value. CR0.TS must be clear.
    pub fn load(&self) {
        let p = self.data.get();
        if KEEPS_X87_POINTERS.load(Ordering::Relaxed) {
            // SAFETY: this resets the x87, its pointers included; what it holds is about to be replaced.
            unsafe { core::arch::asm!("fninit", options(nomem, nostack, preserves_flags)) };
        }
        // SAFETY: XRSTOR takes what `Area` holds: no component is present in it that the host's XCR0 does not have.
        unsafe {
            if xcr0_mask() != 0 {
                core::arch::asm!("xrstor64 [{}]", in(reg) p, in("eax") u32::MAX, in("edx") u32::MAX, options(nostack, preserves_flags));
            } else {
                core::arch::asm!("fxrstor64 [{}]", in(reg) p, options(nostack, preserves_flags));
            }
        }
        self.load_xcr0();
    }

    /// Loads XCR0 only: the registers are still those that were saved here.
    pub fn load_xcr0(&self) {
        if xcr0_mask() != 0 && self.has_less() {
            // SAFETY: a valid combination that this processor has: x87 and SSE, or as `write_xcr0` and `set_xsave` were
            // promised.
            unsafe { cpu::xsetbv0(self.xcr0.get()) };
        }
    }
}
