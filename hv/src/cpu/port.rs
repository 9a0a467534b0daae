//! Accesses to I/O ports. To read one is safe: it touches no memory of ours, and no device answers with more. What is
//! written may make a device write to any memory, or stop the machine.

use core::arch::asm;

/// Reads a byte from I/O port `port`.
#[inline]
pub fn inb(port: u16) -> u8 {
    let value;
    // SAFETY: see the module.
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
///
/// # Safety
/// 1. What the device does then touches no memory of ours that Rust code counts on.
#[inline]
pub unsafe fn outb(port: u16, value: u8) {
    // SAFETY: the access itself touches no memory; (1).
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack, preserves_flags)) };
}

/// Writes a 16-bit word to I/O port `port`.
///
/// # Safety
/// 1. What the device does then touches no memory of ours that Rust code counts on.
#[inline]
pub unsafe fn outw(port: u16, value: u16) {
    // SAFETY: the access itself touches no memory; (1).
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nomem, nostack, preserves_flags)) };
}

/// Writes a 32-bit word to I/O port `port`.
///
/// # Safety
/// 1. What the device does then touches no memory of ours that Rust code counts on.
#[inline]
pub unsafe fn outl(port: u16, value: u32) {
    // SAFETY: the access itself touches no memory; (1).
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack, preserves_flags)) };
}

/// Fills `data` from I/O port `port`, `width` (1, 2 or 4) bytes a time.
pub fn ins(port: u16, width: u8, data: &mut [u8]) {
    let count = data.len() / usize::from(width);
    let to = data.as_mut_ptr();
    // SAFETY: `data` is valid for writes of `count` items of `width` bytes; Rust code runs with DF clear. Else as
    // `inb`.
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
///
/// # Safety
/// 1. As for [`outb`].
pub unsafe fn outs(port: u16, width: u8, data: &[u8]) {
    let count = data.len() / usize::from(width);
    let from = data.as_ptr();
    // SAFETY: `data` is valid for reads of `count` items of `width` bytes; Rust code runs with DF clear; (1).
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
