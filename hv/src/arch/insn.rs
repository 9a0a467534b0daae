//! Wrappers of single privileged instructions.
//!
//! They are safe functions where the instruction cannot break Rust's rules by itself, and `unsafe` where it can.

use core::arch::asm;
use x86::cpuid::CpuidRegs;

/// Reads a byte from I/O port `port`.
#[inline]
pub fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: a port access touches no memory of ours; what a device then does is the caller's business.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads a 16-bit word from I/O port `port`.
#[inline]
pub fn inw(port: u16) -> u16 {
    let value;
    // SAFETY: as in `inb`.
    unsafe { asm!("in ax, dx", in("dx") port, out("ax") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Reads a 32-bit word from I/O port `port`.
#[inline]
pub fn inl(port: u16) -> u32 {
    let value;
    // SAFETY: as in `inb`.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Writes a byte to I/O port `port`.
#[inline]
pub fn outb(port: u16, value: u8) {
    // SAFETY: as in `inb`.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
}

/// Writes a 16-bit word to I/O port `port`.
#[inline]
pub fn outw(port: u16, value: u16) {
    // SAFETY: as in `inb`.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack, preserves_flags)) };
}

/// Writes a 32-bit word to I/O port `port`.
#[inline]
pub fn outl(port: u16, value: u32) {
    // SAFETY: as in `inb`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) };
}

/// Reads model-specific register `msr`, which must exist on this CPU (else #GP).
#[inline]
pub fn rdmsr(msr: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reading an MSR changes nothing that Rust relies on.
    unsafe { asm!("rdmsr", in("ecx") msr, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// Writes model-specific register `msr`.
///
/// # Safety
/// 1. The register exists and takes `value`. 2. The new value leaves paging, segments and entry points usable.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "the instruction takes two halves")]
pub unsafe fn wrmsr(msr: u32, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("wrmsr", in("ecx") msr, in("eax") value as u32, in("edx") (value >> 32) as u32, options(nostack, preserves_flags));
    }
}

/// CPUID of `leaf` and `subleaf`.
#[inline]
pub fn cpuid(leaf: u32, subleaf: u32) -> CpuidRegs {
    let r = core::arch::x86_64::__cpuid_count(leaf, subleaf);
    CpuidRegs::new(r.eax, r.ebx, r.ecx, r.edx)
}

/// The time-stamp counter, not ordered against other instructions.
#[inline]
pub fn rdtsc() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter.
    unsafe { asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

macro_rules! control_register {
    ($read:ident, $write:ident, $name:literal) => {
        #[doc = concat!("Reads ", $name, ".")]
        #[inline]
        pub fn $read() -> u64 {
            let value;
            // SAFETY: reading a control register changes nothing.
            unsafe { asm!(concat!("mov {}, ", $name), out(reg) value, options(nomem, nostack, preserves_flags)) };
            value
        }
        #[doc = concat!("Writes ", $name, ".")]
        ///
        /// # Safety
        /// 1. The value is valid for this CPU. 2. Code, stack and data stay mapped with the rights in use.
        #[inline]
        pub unsafe fn $write(value: u64) {
            // SAFETY: the caller's promise.
            unsafe { asm!(concat!("mov ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags)) };
        }
    };
}

control_register!(read_cr0, write_cr0, "cr0");
control_register!(read_cr2, write_cr2, "cr2");
control_register!(read_cr3, write_cr3, "cr3");
control_register!(read_cr4, write_cr4, "cr4");

/// Drops this CPU's TLB entries of the page at `addr`, global ones included.
#[inline]
pub fn invlpg(addr: u64) {
    // SAFETY: forgetting a translation is always sound; at worst it is walked again.
    unsafe { asm!("invlpg [{}]", in(reg) addr, options(nostack, preserves_flags)) };
}

/// Stops this CPU for good.
pub fn halt_forever() -> ! {
    loop {
        // SAFETY: with interrupts off the CPU sleeps; an NMI wakes it and it sleeps again.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
