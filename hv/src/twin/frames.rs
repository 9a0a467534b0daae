//! Frames of the hypervisor's own that a twin is made of, or its card.

use crate::mem::{frames, phys_to_virt};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use x86::{Mfn, PAGE_SIZE};

/// Frames of the hypervisor's own, given back when dropped. Nothing may map them any more then.
pub struct Frames {
    all: Vec<Mfn>,
    /// Where the first is in the direct map.
    first: u64,
}

impl Frames {
    /// `count` zeroed ones, none of them of the reserve. `None` when out of memory.
    pub fn new(count: usize) -> Option<Self> {
        let mut own = Self { all: Vec::new(), first: 0 };
        own.all.try_reserve_exact(count).ok()?;
        for _ in 0..count {
            own.all.push(frames::alloc_table_for_domain()?);
        }
        own.first = own.all.first().map_or(0, |mfn| phys_to_virt(mfn.addr()) as u64);
        Some(own)
    }

    /// As many as `bytes` need, with those in them.
    pub fn with(bytes: &[u8]) -> Option<Self> {
        let own = Self::new(bytes.len().div_ceil(PAGE_SIZE))?;
        for (mfn, page) in own.all.iter().zip(bytes.chunks(PAGE_SIZE)) {
            // SAFETY: a frame of ours in the direct map that nobody else knows yet, at least as long as the piece.
            unsafe { core::ptr::copy_nonoverlapping(page.as_ptr(), phys_to_virt(mfn.addr()), page.len()) };
        }
        Some(own)
    }

    /// The frames.
    pub fn all(&self) -> &[Mfn] {
        &self.all
    }

    /// Where the first is in the direct map, if there is one.
    #[inline]
    pub fn start(&self) -> *mut u64 {
        self.first as *mut u64
    }

    /// Writes `bytes` at `offset` of all of them, which must be inside of one.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        let Some(mfn) = self.all.get(offset / PAGE_SIZE).filter(|_| offset % PAGE_SIZE + bytes.len() <= PAGE_SIZE)
        else {
            return;
        };
        let to = phys_to_virt(mfn.addr()).wrapping_add(offset % PAGE_SIZE);
        // SAFETY: inside a frame of ours in the direct map, in which no Rust object lies.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Writes word `index` of all of them, if they have so many.
    pub fn set_word(&self, index: usize, value: u64) {
        const WORDS: usize = PAGE_SIZE / 8;
        let Some(mfn) = self.all.get(index / WORDS) else { return };
        let word = phys_to_virt(mfn.addr()).cast::<u64>().wrapping_add(index % WORDS);
        // SAFETY: an aligned word of a frame of ours in the direct map, in which no Rust object lies; who runs twins
        // reads it too, so atomics.
        unsafe { AtomicU64::from_ptr(word) }.store(value, Ordering::Release);
    }

    /// Word `index` of the first frame.
    #[inline]
    pub fn word(&self, index: u64) -> &AtomicU64 {
        debug_assert!((index as usize) < PAGE_SIZE / 8 && self.first != 0);
        // SAFETY: callers name words of a page, and have asked for one; the frame is ours while `self` lives; twins
        // change it, so atomics.
        unsafe { AtomicU64::from_ptr((self.first as *mut u64).add(index as usize)) }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.all.drain(..).for_each(frames::free_table);
    }
}
