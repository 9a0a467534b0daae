//! Whether a domain that has no devices yet has booted, as far as that can be seen from outside: it ran, and now it
//! waits for something.

use super::look::Domain;
use std::time::Duration;

/// It has booted when it has run, or wanted to, for less than half of so long: then it waits for something.
const CALM: Duration = Duration::from_secs(2);
const PART: u32 = 2;
/// One that wants to run for longer is seldom one that boots: on a machine that is busy enough each moment of work
/// waits for a processor longer than it takes. From then on only what it has run counts.
const LONG: Duration = Duration::from_secs(30);

/// One that never ran is one that a toolstack has left half built, when it stays so for this long.
const HALF_BUILT: Duration = Duration::from_secs(30);

/// One that is watched.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    id: u16,
    since: Duration,
    /// When it was looked at, how long it had run then, and waited for a processor; after each [`CALM`] anew.
    at: Duration,
    run: Duration,
    waited: Duration,
    has_booted: bool,
}

impl Seen {
    /// It is seen for the first time.
    pub fn new(domain: &Domain, now: Duration) -> Self {
        let (run, waited) = (run_of(domain), waited_of(domain));
        Self { id: domain.id, since: now, at: now, run, waited, has_booted: false }
    }

    /// It has been rolled back to when it had booted.
    pub fn has_gone_back(domain: &Domain, now: Duration) -> Self {
        Self { has_booted: true, ..Self::new(domain, now) }
    }

    /// Takes a look into account; another domain is watched from its beginning. Whether this look shows that it has
    /// booted.
    pub fn look(&mut self, domain: &Domain, now: Duration) -> bool {
        if self.id != domain.id {
            *self = Self::new(domain, now);
        }
        if self.has_booted || now < self.at + CALM {
            return false;
        }
        let (run, waited) = (run_of(domain), waited_of(domain));
        let counts = if self.age(now) < LONG { waited.saturating_sub(self.waited) } else { Duration::ZERO };
        let busy = run.saturating_sub(self.run) + counts;
        self.has_booted = !run.is_zero() && busy * PART < now.saturating_sub(self.at);
        (self.at, self.run, self.waited) = (now, run, waited);
        self.has_booted
    }

    /// It has booted.
    pub fn has_booted(&self) -> bool {
        self.has_booted
    }

    /// Which domain it is.
    pub fn id(&self) -> u16 {
        self.id
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

fn waited_of(domain: &Domain) -> Duration {
    domain.beats.iter().map(|beat| beat.waited).sum()
}

fn run_of(domain: &Domain) -> Duration {
    domain.beats.iter().map(|beat| beat.run).sum()
}

#[cfg(test)]
mod tests {
    use super::super::health::Beat;
    use super::*;

    fn at(ms: u64, run_ms: u64, waited_ms: u64) -> (Domain, Duration) {
        let (run, waited) = (Duration::from_millis(run_ms), Duration::from_millis(waited_ms));
        let beats = vec![Beat { run, waited, ..Beat::default() }];
        (Domain { id: 7, beats, ..Domain::default() }, Duration::from_millis(ms))
    }

    /// Whether it is seen to have booted at each of these looks.
    fn seen(looks: &[(u64, u64, u64)]) -> Vec<bool> {
        let (first, now) = at(0, 0, 0);
        let mut seen = Seen::new(&first, now);
        let mut look = |&(ms, run, waited): &_| {
            let (domain, now) = at(ms, run, waited);
            seen.look(&domain, now)
        };
        looks.iter().map(&mut look).collect()
    }

    #[test]
    fn one_that_runs_boots_until_it_waits_for_something() {
        assert_eq!(
            seen(&[(1000, 900, 0), (2000, 1800, 0), (4000, 2900, 0), (6000, 2950, 0)]),
            [false, false, false, true]
        );
    }

    #[test]
    fn one_that_gets_no_processor_has_not_booted() {
        assert_eq!(seen(&[(2000, 500, 1400), (4000, 900, 2900), (6000, 950, 2950)]), [false, false, true]);
    }

    #[test]
    fn one_whose_every_moment_waits_for_a_processor_has_booted_in_the_end() {
        let looks: Vec<_> = (1..=16).map(|n| (2000 * n, 500 + 100 * n, 1500 * n)).collect();
        assert_eq!(seen(&looks).iter().position(|has_booted| *has_booted), Some(14));
    }

    #[test]
    fn one_that_never_ran_has_not_booted() {
        assert_eq!(seen(&[(2000, 0, 0), (4000, 0, 0)]), [false, false]);
    }
}
