//! Copies between the hypervisor and guest memory at guest virtual addresses, in the current address space.
//!
//! Guest memory is never a Rust reference: each value is copied once, and the copy is what gets checked. A fault during
//! a copy resumes at the address that the exception table names and is reported as [`Fault`].

use xen_abi::errno::Errno;
use xen_abi::layout::{HYPERVISOR_VIRT_END, HYPERVISOR_VIRT_START};

/// A guest address that is not accessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

impl From<Fault> for Errno {
    fn from(_: Fault) -> Self {
        Errno::EFAULT
    }
}

#[repr(C)]
struct ReadResult {
    value: u64,
    faulted: u64,
}

extern "C" {
    fn guest_copy(dst: *mut u8, src: *const u8, len: usize) -> usize;
    fn guest_copy_words(dst: *mut u64, src: *const u64, words: usize) -> u32;
    fn guest_read_u64(src: u64) -> ReadResult;
    fn guest_read_u32(src: u64) -> ReadResult;
    fn guest_write_u64(dst: u64, value: u64) -> u32;
    fn guest_write_u16(dst: u64, value: u16) -> u32;
}

/// Is `va` in the hypervisor's range?
#[inline(always)]
pub fn is_hypervisor(va: u64) -> bool {
    (HYPERVISOR_VIRT_START..HYPERVISOR_VIRT_END).contains(&va)
}

/// May a guest name the `len` bytes at `va`? They must not reach into the hypervisor's range or wrap. Non-canonical
/// addresses are left to the CPU, which faults on them.
#[inline(always)]
pub fn is_guest_range(va: u64, len: u64) -> bool {
    match va.checked_add(len) {
        Some(end) => end <= HYPERVISOR_VIRT_START || va >= HYPERVISOR_VIRT_END,
        None => va >= HYPERVISOR_VIRT_END && va.wrapping_add(len) == 0,
    }
}

/// Reads 8 bytes.
#[inline]
pub fn read_u64(va: u64) -> Result<u64, Fault> {
    if !is_guest_range(va, 8) {
        return Err(Fault);
    }
    // SAFETY: the range is the guest's; a fault is caught.
    let r = unsafe { guest_read_u64(va) };
    if r.faulted == 0 {
        Ok(r.value)
    } else {
        Err(Fault)
    }
}

/// Reads 4 bytes.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "only the low half is read")]
pub fn read_u32(va: u64) -> Result<u32, Fault> {
    if !is_guest_range(va, 4) {
        return Err(Fault);
    }
    // SAFETY: the range is the guest's; a fault is caught.
    let r = unsafe { guest_read_u32(va) };
    if r.faulted == 0 {
        Ok(r.value as u32)
    } else {
        Err(Fault)
    }
}

/// Writes 2 bytes.
#[inline]
pub fn write_u16(va: u64, value: u16) -> Result<(), Fault> {
    if !is_guest_range(va, 2) {
        return Err(Fault);
    }
    // SAFETY: the range is the guest's; a fault is caught.
    if unsafe { guest_write_u16(va, value) } == 0 {
        Ok(())
    } else {
        Err(Fault)
    }
}

/// Writes 8 bytes.
#[inline]
pub fn write_u64(va: u64, value: u64) -> Result<(), Fault> {
    if !is_guest_range(va, 8) {
        return Err(Fault);
    }
    // SAFETY: the range is the guest's; a fault is caught.
    if unsafe { guest_write_u64(va, value) } == 0 {
        Ok(())
    } else {
        Err(Fault)
    }
}

/// Writes the words of a bounce frame upwards from `va`.
#[inline]
pub fn push_words(va: u64, words: &[u64]) -> Result<(), Fault> {
    if !is_guest_range(va, size_of_val(words) as u64) {
        return Err(Fault);
    }
    // SAFETY: the range is the guest's; a fault is caught.
    if unsafe { guest_copy_words(va as *mut u64, words.as_ptr(), words.len()) } == 0 {
        Ok(())
    } else {
        Err(Fault)
    }
}

/// Copies from guest memory. On a fault nothing may be assumed about `dst`.
#[inline]
pub fn from_guest(dst: &mut [u8], va: u64) -> Result<(), Fault> {
    // SAFETY: `dst` is valid for its length.
    unsafe { from_guest_raw(dst.as_mut_ptr(), va, dst.len()) }
}

/// Copies to guest memory. On a fault some of it may have been written.
#[inline]
pub fn to_guest(va: u64, src: &[u8]) -> Result<(), Fault> {
    // SAFETY: `src` is valid for its length.
    unsafe { to_guest_raw(va, src.as_ptr(), src.len()) }
}

/// Copies `len` bytes from guest memory to `dst`.
///
/// # Safety
/// 1. `dst` is valid for writes of `len` bytes.
#[inline]
pub unsafe fn from_guest_raw(dst: *mut u8, va: u64, len: usize) -> Result<(), Fault> {
    if !is_guest_range(va, len as u64) {
        return Err(Fault);
    }
    // SAFETY: (1); the source range is the guest's and a fault is caught.
    if unsafe { copy(dst, va as *const u8, len) } {
        Ok(())
    } else {
        Err(Fault)
    }
}

/// Copies `len` bytes from `src` to guest memory.
///
/// # Safety
/// 1. `src` is valid for reads of `len` bytes.
#[inline]
pub unsafe fn to_guest_raw(va: u64, src: *const u8, len: usize) -> Result<(), Fault> {
    if !is_guest_range(va, len as u64) {
        return Err(Fault);
    }
    // SAFETY: (1); the target range is the guest's and a fault is caught.
    if unsafe { copy(va as *mut u8, src, len) } {
        Ok(())
    } else {
        Err(Fault)
    }
}

/// Copies `len` bytes; whether all of them. Where the length is known, so is the shorter way at compile time.
///
/// # Safety
/// 1. Both are valid for `len` bytes, or guest memory.
#[inline(always)]
unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> bool {
    // SAFETY: (1). A fault in guest memory is caught; no alignment is asked for.
    unsafe {
        if len.is_multiple_of(8) {
            guest_copy_words(dst.cast(), src.cast(), len / 8) == 0
        } else {
            guest_copy(dst, src, len) == 0
        }
    }
}
