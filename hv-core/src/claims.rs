//! Claims: frames that the tools set aside for a domain that they are about to build, so that two builders at a time
//! cannot both start and then both fail. A domain's own allocations use its claim up; others get only what is not
//! claimed.
//!
//! A claim is used up by what the domain gets, so an allocation that fails leaves it as it is: a builder that finds no
//! large extent asks for small ones. Whoever allocates holds [`Claims`] from the question whether he may to the moment
//! when the frames are not free any more: else somebody could claim them in between, or two could take the same rest.

use core::sync::atomic::{AtomicU64, Ordering};

/// What is set aside for one domain. It changes only with [`Claims`].
#[derive(Debug, Default)]
pub struct Claim(AtomicU64);

impl Claim {
    /// Nothing.
    pub const fn none() -> Self {
        Self(AtomicU64::new(0))
    }
    /// How many frames.
    pub fn frames(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn set(&self, frames: u64) {
        self.0.store(frames, Ordering::Relaxed);
    }
}

/// What is set aside for all domains. There is one, behind a lock.
#[derive(Debug, Default)]
pub struct Claims {
    outstanding: u64,
}

impl Claims {
    /// Nothing.
    pub const fn new() -> Self {
        Self { outstanding: 0 }
    }
    /// Frames that are claimed and not yet allocated.
    pub const fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Sets `frames` aside for a domain that has no claim, if as many of the `available` ones are not claimed.
    #[must_use]
    pub fn set_aside(&mut self, own: &Claim, frames: u64, available: u64) -> bool {
        debug_assert_eq!(own.frames(), 0, "a domain has one claim");
        let is_there = frames <= available.saturating_sub(self.outstanding);
        if is_there {
            own.set(frames);
            self.outstanding += frames;
        }
        is_there
    }

    /// The domain needs none of what is set aside for it.
    pub fn give_up(&mut self, own: &Claim) {
        self.use_up(own, own.frames());
    }

    /// `frames` more are the domain's: so many fewer need to be set aside.
    pub fn use_up(&mut self, own: &Claim, frames: u64) {
        let used = frames.min(own.frames());
        own.set(own.frames() - used);
        self.outstanding -= used;
    }

    /// May somebody for whom `own` is set aside take `frames`? What is `available` is only asked if that matters.
    #[must_use]
    pub fn may_take(&self, own: &Claim, frames: u64, available: impl FnOnce() -> u64) -> bool {
        let others = self.outstanding - own.frames();
        self.outstanding == 0 || frames <= own.frames() || frames <= available().saturating_sub(others)
    }

    /// Has `take` take `frames` for somebody for whom `own` is set aside, if he may have them. `None`: he may not, or
    /// there are none; then nothing has changed.
    pub fn take<T>(
        &mut self,
        own: &Claim,
        frames: u64,
        available: impl FnOnce() -> u64,
        take: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        if !self.may_take(own, frames, available) {
            return None;
        }
        let taken = take()?;
        self.use_up(own, frames);
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_get_what_is_not_claimed() {
        let (mut claims, own, none) = (Claims::new(), Claim::none(), Claim::none());
        assert!(claims.may_take(&none, 100, || unreachable!("nobody claims anything")));
        assert!(claims.set_aside(&own, 60, 100));
        assert!(!claims.set_aside(&none, 41, 100) && claims.may_take(&none, 40, || 100));
        assert!(!claims.may_take(&none, 41, || 100), "60 of them are another's");
        assert!(!claims.may_take(&none, 1, || 50), "the hypervisor has taken more than was left");
        assert!(claims.may_take(&own, 60, || unreachable!("they are set aside")));
        assert!(claims.may_take(&own, 100, || 100) && !claims.may_take(&own, 101, || 100), "beyond its claim");
    }

    #[test]
    fn a_claim_is_used_up_by_what_comes_and_by_nothing_else() {
        let (mut claims, own, none) = (Claims::new(), Claim::none(), Claim::none());
        assert!(claims.set_aside(&own, 1024, 2000));
        assert_eq!(claims.take(&own, 512, || 2000, || None::<()>), None);
        assert_eq!((own.frames(), claims.outstanding()), (1024, 1024), "there was no such extent");
        assert_eq!(claims.take(&own, 512, || 2000, || Some(7)), Some(7));
        assert_eq!((own.frames(), claims.outstanding()), (512, 512));
        assert_eq!(claims.take(&none, 512, || 1488, || Some(8)), Some(8));
        assert_eq!(claims.take(&none, 512, || 976, || -> Option<()> { unreachable!("it may not") }), None);
        assert_eq!((own.frames(), claims.outstanding()), (512, 512), "another's allocations leave it");
        assert_eq!(claims.take(&own, 700, || 976, || Some(9)), Some(9));
        assert_eq!((own.frames(), claims.outstanding()), (0, 0), "it got more than it had claimed");
        assert!(claims.set_aside(&own, 100, 276));
        claims.use_up(&own, 1);
        assert_eq!((own.frames(), claims.outstanding()), (99, 99));
        claims.give_up(&own);
        assert_eq!((own.frames(), claims.outstanding()), (0, 0));
    }
}
