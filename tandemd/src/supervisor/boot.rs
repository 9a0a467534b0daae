//! Whether a domain that has no devices yet has booted, as far as that can be seen from outside: it ran, and now it waits for something.

use super::look::Domain;
use std::time::Duration;

/// It has booted when it has run for less than half of so long: then it waits for something.
const CALM: Duration = Duration::from_secs(2);
const PART: u32 = 2;

/// One that never ran is one that a toolstack has left half built, when it stays so for this long.
const HALF_BUILT: Duration = Duration::from_secs(30);

/// One that is watched.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    id: u16,
    since: Duration,
    /// When it was looked at, and how long it had run then; after each [`CALM`] anew.
    at: Duration,
    run: Duration,
    has_booted: bool,
}

impl Seen {
    /// It is seen for the first time.
    pub fn new(domain: &Domain, now: Duration) -> Self {
        Self { id: domain.id, since: now, at: now, run: run_of(domain), has_booted: false }
    }

    /// Takes a look into account; another domain is watched from its beginning. Whether this look shows that it has booted.
    pub fn look(&mut self, domain: &Domain, now: Duration) -> bool {
        if self.id != domain.id {
            *self = Self::new(domain, now);
        }
        if self.has_booted || now < self.at + CALM {
            return false;
        }
        let run = run_of(domain);
        self.has_booted = !run.is_zero() && run.saturating_sub(self.run) * PART < now.saturating_sub(self.at);
        (self.at, self.run) = (now, run);
        self.has_booted
    }

    /// It has booted.
    pub fn has_booted(&self) -> bool {
        self.has_booted
    }

    /// Whether it is this domain.
    pub fn is_of(&self, domain: u16) -> bool {
        self.id == domain
    }

    /// How long it is known.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    /// A toolstack has left it half built.
    pub fn is_half_built(&self, domain: &Domain, now: Duration) -> bool {
        run_of(domain).is_zero() && domain.is_paused && self.age(now) >= HALF_BUILT
    }
}

fn run_of(domain: &Domain) -> Duration {
    domain.beats.iter().map(|beat| beat.run).sum()
}
