//! A door that is closed once and for good: whoever is inside then may finish; nobody enters any more.

use core::sync::atomic::{AtomicU32, Ordering};

const CLOSED: u32 = 1 << 31;

/// How many are inside, and [`CLOSED`].
#[derive(Debug, Default)]
pub struct Admission(AtomicU32);

/// Somebody is inside until this is dropped.
#[derive(Debug)]
#[must_use = "whoever drops this at once is not inside"]
pub struct Inside<'a>(&'a Admission);

impl Admission {
    /// Open.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// `None` if it is closed.
    #[inline]
    pub fn enter(&self) -> Option<Inside<'_>> {
        let one_more = |inside: u32| (inside < CLOSED - 1).then(|| inside + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more).ok()?;
        Some(Inside(self))
    }

    /// Lets nobody in from now on. True if nobody is inside either; then all that was done there is visible.
    #[must_use = "there may still be somebody inside"]
    pub fn close(&self) -> bool {
        self.0.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED == 0
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0 .0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_inside_may_finish_and_nobody_follows() {
        let admission = Admission::new();
        let (first, second) = (admission.enter().unwrap(), admission.enter().unwrap());
        assert!(!admission.close());
        assert!(admission.enter().is_none());
        drop(first);
        assert!(!admission.close());
        drop(second);
        assert!(admission.close() && admission.close());
        assert!(admission.enter().is_none());
    }

    #[test]
    fn what_was_done_inside_is_seen_by_who_closed() {
        use std::sync::atomic::AtomicU64;
        let (admission, done) = (Admission::new(), AtomicU64::new(0));
        std::thread::scope(|threads| {
            let workers: [_; 3] = core::array::from_fn(|_| {
                threads.spawn(|| {
                    let mut times = 0;
                    while let Some(_inside) = admission.enter() {
                        done.fetch_add(1, Ordering::Relaxed);
                        times += 1;
                    }
                    times
                })
            });
            while done.load(Ordering::Relaxed) < 1000 {
                std::thread::yield_now();
            }
            while !admission.close() {
                std::thread::yield_now();
            }
            let seen = done.load(Ordering::Relaxed);
            let all: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
            assert_eq!(seen, all);
        });
    }
}
