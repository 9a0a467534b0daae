//! Accesses of a domain's devices to memory that an IOMMU stopped.
//!
//! A driver whose device reaches for what is not its own is damaged, and what the device did not read or write it may
//! take for done: a disk's read that brought nothing, a packet that never came. So from the first one on nothing is
//! taken from the domain, by whoever serves guests in its name, until another has its place.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Since when they are to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Not at all.
    Never,
    /// When the domain is of use.
    InUse,
    /// From now on.
    Now,
}

/// Those of a domain.
#[derive(Default)]
pub struct DmaFaults {
    /// They count now.
    is_watched: AtomicBool,
    /// They count from when the domain is of use, at the latest.
    is_wanted_in_use: AtomicBool,
    /// Guests are served in its name.
    is_in_use: AtomicBool,
    /// When the first one was, in ns since the start; 0: there was none.
    since_ns: AtomicU64,
}

impl DmaFaults {
    /// Since when they are to count. One that has counted does so still: what was damaged is.
    pub fn watch(&self, wanted: Wanted) {
        // In this order, and what counts now counts when the domain is of use, too: there may be one just now, and
        // whoever notes it looks at the other word first.
        self.is_wanted_in_use.store(wanted != Wanted::Never, Ordering::SeqCst);
        self.is_watched.store(wanted == Wanted::Now, Ordering::SeqCst);
    }

    /// Guests are served in the domain's name from now on: whoever decides whether it is of use need not have seen that
    /// yet.
    pub fn begin_use(&self) {
        self.is_in_use.store(true, Ordering::SeqCst);
    }

    /// The domain is what it was before any of them, and serves nobody. If they have counted they do so again when it
    /// is of use.
    pub fn forget(&self) {
        self.is_in_use.store(false, Ordering::SeqCst);
        if self.is_watched.swap(false, Ordering::SeqCst) {
            self.is_wanted_in_use.store(true, Ordering::SeqCst);
        }
        self.since_ns.store(0, Ordering::SeqCst);
    }

    /// Whether they count.
    #[inline]
    pub fn is_watched(&self) -> bool {
        let is_in_use = || self.is_wanted_in_use.load(Ordering::SeqCst) && self.is_in_use.load(Ordering::SeqCst);
        self.is_watched.load(Ordering::SeqCst) || is_in_use()
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
        self.is_watched() && self.since_ns.compare_exchange(0, now.max(1), Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever asks while somebody says it anew, with other words, hears that they count.
    #[test]
    fn they_count_without_a_gap_when_it_is_said_anew_since_when() {
        let faults = DmaFaults::default();
        faults.begin_use();
        faults.watch(Wanted::Now);
        std::thread::scope(|scope| {
            let says = scope.spawn(|| {
                for _ in 0..200_000 {
                    faults.watch(Wanted::InUse);
                    faults.watch(Wanted::Now);
                }
            });
            while !says.is_finished() {
                assert!(faults.is_watched());
            }
        });
    }

    #[test]
    fn one_that_has_counted_is_remembered_until_the_domain_is_what_it_was() {
        let faults = DmaFaults::default();
        assert!(!faults.note(3), "nobody has asked");
        faults.watch(Wanted::Now);
        assert!(faults.note(5) && !faults.note(6));
        // Who asks anew does not know yet of what use the domain is.
        for (wanted, is_watched) in [(Wanted::Never, false), (Wanted::InUse, false), (Wanted::Now, true)] {
            faults.watch(wanted);
            assert_eq!((faults.since(), faults.has_any(), faults.is_watched()), (Some(5), true, is_watched));
        }
        faults.forget();
        assert_eq!((faults.since(), faults.has_any(), faults.is_watched()), (None, false, false));
        assert!(!faults.note(7));
        faults.begin_use();
        assert!(faults.note(0), "it was watched before");
        assert_eq!(faults.since(), Some(1), "none is at no time");
    }

    /// The next one serves at once, and who looks after it may be a moment late, or killed.
    #[test]
    fn they_count_from_when_a_domain_is_of_use() {
        let faults = DmaFaults::default();
        faults.watch(Wanted::InUse);
        assert!(!faults.note(3), "one may still do what its last driver told it");
        faults.begin_use();
        assert!(faults.is_watched() && faults.note(4));
        // Who has not seen that it is of use says so once more.
        faults.watch(Wanted::InUse);
        assert!(faults.is_watched());
        faults.forget();
        assert!(!faults.is_watched() && !faults.note(5), "it serves nobody");
        faults.begin_use();
        assert!(faults.note(6));
        faults.watch(Wanted::Never);
        assert!(!faults.is_watched());
    }
}
