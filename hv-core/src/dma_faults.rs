//! Accesses of a domain's devices to memory that an IOMMU stopped.
//!
//! A driver whose device reaches for what is not its own is damaged, and what the device did not read or write it may take for done: a disk's
//! read that brought nothing, a packet that never came. So from the first one on nothing is taken from the domain, by whoever serves guests
//! in its name, until another has its place.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Those of a domain.
#[derive(Default)]
pub struct DmaFaults {
    is_watched: AtomicBool,
    /// When the first one was, in ns since the start; 0: there was none.
    since_ns: AtomicU64,
}

impl DmaFaults {
    /// Whether they count from now on. One that has counted does so still: what was damaged is.
    pub fn watch(&self, is_wanted: bool) {
        self.is_watched.store(is_wanted, Ordering::SeqCst);
    }

    /// The domain is what it was before any of them. None counts before that is wanted again.
    pub fn forget(&self) {
        self.watch(false);
        self.since_ns.store(0, Ordering::SeqCst);
    }

    /// Whether they count.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// When the first one was, in ns since the start.
    pub fn since(&self) -> Option<u64> {
        Some(self.since_ns.load(Ordering::SeqCst)).filter(|since| *since != 0)
    }

    /// There was one.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.since_ns.load(Ordering::Relaxed) != 0
    }

    /// There is one. `true`: it is the first that counts.
    pub fn note(&self, now: u64) -> bool {
        self.is_watched.load(Ordering::SeqCst)
            && self.since_ns.compare_exchange(0, now.max(1), Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_has_counted_is_remembered_until_the_domain_is_what_it_was() {
        let faults = DmaFaults::default();
        assert!(!faults.note(3), "nobody has asked");
        faults.watch(true);
        assert!(faults.note(5) && !faults.note(6));
        // Who asks anew does not know yet of what use the domain is.
        for is_wanted in [false, true] {
            faults.watch(is_wanted);
            assert_eq!((faults.since(), faults.has_any(), faults.is_watched()), (Some(5), true, is_wanted));
        }
        faults.forget();
        assert_eq!((faults.since(), faults.has_any(), faults.is_watched()), (None, false, false));
        assert!(!faults.note(7));
        faults.watch(true);
        assert!(faults.note(0));
        assert_eq!(faults.since(), Some(1), "none is at no time");
    }
}
