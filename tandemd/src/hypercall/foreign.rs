//! A page of another domain's, mapped by its frame.

use super::{Hypervisor, PAGE_BYTES};
use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Direction, Ioctl, IoctlOutput, Opcode};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::sync::atomic::AtomicU32;

/// Words of a page.
pub const WORDS: usize = PAGE_BYTES / 4;

/// Argument of IOCTL_PRIVCMD_MMAPBATCH_V2 (Linux, include/uapi/xen/privcmd.h).
#[repr(C)]
struct Batch {
    number: u32,
    domain: u16,
    address: u64,
    /// The frames' numbers, and for each an error.
    frames: *const u64,
    errors: *mut i32,
}

const _: () = assert!(size_of::<Batch>() == 32);

// SAFETY: the opcode is that of IOCTL_PRIVCMD_MMAPBATCH_V2, whose argument is a `Batch` that the kernel only reads; it
// writes `number` errors.
unsafe impl Ioctl for Batch {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::from_components(Direction::None, b'P', 4, size_of::<Batch>())
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// The page. What its domain writes to it is met by atomics.
pub struct Foreign(*mut c_void);

impl Foreign {
    pub(super) fn map(privcmd: &File, domain: u16, frame: u64) -> Result<Self, Errno> {
        // SAFETY: a new mapping, at an address of the kernel's choice, which has no page yet.
        let page = unsafe {
            mmap(std::ptr::null_mut(), PAGE_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, privcmd, 0)
        }?;
        let mapped = Self(page);
        let mut error = 0;
        let batch = Batch { number: 1, domain, address: page as u64, frames: &raw const frame, errors: &raw mut error };
        // SAFETY: see `Batch`; the mapping is ours alone, and a page long; both lists have one element and outlive the
        // call.
        unsafe { ioctl(privcmd, batch) }?;
        if error != 0 {
            return Err(Errno::INVAL);
        }
        Ok(mapped)
    }

    /// Its words.
    pub fn words(&self) -> &[AtomicU32; WORDS] {
        // SAFETY: the page is mapped as long as `self`, aligned, and as long as these words, of which all bit patterns
        // are valid; others' accesses are met by atomics.
        unsafe { &*self.0.cast::<[AtomicU32; WORDS]>() }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this length; references into it do not outlive `self`.
        let _ = unsafe { munmap(self.0, PAGE_BYTES) };
    }
}

impl Hypervisor {
    /// Maps a frame of a domain's.
    pub fn map(&self, domain: u16, frame: u64) -> Result<Foreign, Errno> {
        Foreign::map(&self.privcmd, domain, frame)
    }
}
