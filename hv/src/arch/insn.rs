//! Port accesses, and the safe forms of some instructions of `cpu`.

use crate::arch::cpu;
pub use crate::arch::cpu::{halt_forever, rdtsc, read_cr4, write_cr3, write_cr4, wrmsr};
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

/// Reads model-specific register `msr`, which must exist on this CPU (else #GP, which is fatal).
#[inline]
pub fn rdmsr(msr: u32) -> u64 {
    // SAFETY: reading an MSR changes nothing that Rust relies on.
    unsafe { cpu::rdmsr(msr) }
}

/// CPUID of `leaf` and `subleaf`.
#[inline]
pub fn cpuid(leaf: u32, subleaf: u32) -> CpuidRegs {
    let [a, b, c, d] = cpu::cpuid(leaf, subleaf);
    CpuidRegs::new(a, b, c, d)
}
