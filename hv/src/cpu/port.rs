//! Accesses to I/O ports.

use core::arch::asm;

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

/// Fills `data` from I/O port `port`, `width` (1, 2 or 4) bytes a time.
pub fn ins(port: u16, width: u8, data: &mut [u8]) {
    let count = data.len() / usize::from(width);
    let to = data.as_mut_ptr();
    // SAFETY: `data` is valid for writes of `count` items of `width` bytes; Rust code runs with DF clear. Else as `inb`.
    unsafe {
        match width {
            1 => {
                asm!("rep insb", in("dx") port, inout("rdi") to => _, inout("rcx") count => _, options(nostack, preserves_flags))
            }
            2 => {
                asm!("rep insw", in("dx") port, inout("rdi") to => _, inout("rcx") count => _, options(nostack, preserves_flags))
            }
            4 => {
                asm!("rep insd", in("dx") port, inout("rdi") to => _, inout("rcx") count => _, options(nostack, preserves_flags))
            }
            _ => unreachable!("ports have 1, 2 or 4 bytes"),
        }
    }
}

/// Writes all of `data` to I/O port `port`, `width` (1, 2 or 4) bytes a time.
pub fn outs(port: u16, width: u8, data: &[u8]) {
    let count = data.len() / usize::from(width);
    let from = data.as_ptr();
    // SAFETY: `data` is valid for reads of `count` items of `width` bytes; Rust code runs with DF clear. Else as `inb`.
    unsafe {
        match width {
            1 => {
                asm!("rep outsb", in("dx") port, inout("rsi") from => _, inout("rcx") count => _, options(nostack, preserves_flags))
            }
            2 => {
                asm!("rep outsw", in("dx") port, inout("rsi") from => _, inout("rcx") count => _, options(nostack, preserves_flags))
            }
            4 => {
                asm!("rep outsd", in("dx") port, inout("rsi") from => _, inout("rcx") count => _, options(nostack, preserves_flags))
            }
            _ => unreachable!("ports have 1, 2 or 4 bytes"),
        }
    }
}
