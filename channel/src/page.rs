//! A page that a guest writes at any time.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use hv_core::evtchn::PageWords;

/// A page shared with a guest, as 32-bit words: everything in a shared ring is aligned to them, and a word is the
/// largest thing that is read at once everywhere. Words are numbered 0..1024; numbers from there on stand for none:
/// such a word reads as 0 and is not written. (No caller uses one: ring indices are masked.)
pub trait SharedPage {
    /// Word `at`, once.
    fn load(&self, at: usize) -> u32;
    /// Word `at`, before anything that is read later.
    fn load_acquire(&self, at: usize) -> u32;
    /// Sets word `at`.
    fn store(&self, at: usize, value: u32);
    /// Sets word `at` after everything that was written earlier.
    fn store_release(&self, at: usize, value: u32);
}

impl<P: AsRef<PageWords>> SharedPage for P {
    #[inline]
    fn load(&self, at: usize) -> u32 {
        self.as_ref().get(at).map_or(0, |w| w.load(Relaxed))
    }

    #[inline]
    fn load_acquire(&self, at: usize) -> u32 {
        self.as_ref().get(at).map_or(0, |w| w.load(Acquire))
    }

    #[inline]
    fn store(&self, at: usize, value: u32) {
        if let Some(w) = self.as_ref().get(at) {
            w.store(value, Relaxed);
        }
    }

    #[inline]
    fn store_release(&self, at: usize, value: u32) {
        if let Some(w) = self.as_ref().get(at) {
            w.store(value, Release);
        }
    }
}
