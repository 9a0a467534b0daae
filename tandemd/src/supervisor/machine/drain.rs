//! How long one that goes because somebody wants it is given to send what it has taken.
//!
//! What is left in its queues nobody outside knows. But who has something to send is interrupted for it: a card at 100
//! Mbit/s, each 120 us. So one that hardly wants to run any more has sent all.

use super::super::look::Domain;
use std::time::Duration;

/// One that always runs is given so much.
const LONGEST: Duration = Duration::from_millis(100);
/// So often it is looked at.
pub const OFTEN: Duration = Duration::from_millis(5);
/// It hardly wants to run if that is less than such a part of the time.
const PART: u32 = 20;

/// One that sends what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draining {
    until: Duration,
    /// When it was looked at last, and how long it had wanted to run by then.
    seen: Option<(Duration, Duration)>,
}

impl Draining {
    /// It begins.
    pub fn new(now: Duration) -> Self {
        Self { until: now + LONGEST, seen: None }
    }

    /// Whether it has nothing to send any more, or is not waited for.
    pub fn is_over(&mut self, domain: &Domain, now: Duration) -> bool {
        if now >= self.until || domain.end.is_some() {
            return true;
        }
        let wanted: Duration = domain.beats.iter().map(|beat| beat.run + beat.waited).sum();
        let (at, before) = *self.seen.get_or_insert((now, wanted));
        if now < at + OFTEN {
            return false;
        }
        self.seen = Some((now, wanted));
        wanted.saturating_sub(before) * PART < now - at
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::health::Beat;
    use super::*;

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    /// When it is over for one of whom these say when it wants to run for how long until then.
    fn ends(run: impl Fn(u64) -> u64, waited: impl Fn(u64) -> u64) -> u64 {
        let mut draining = Draining::new(us(1_000_000));
        let is_over = |at: &u64| {
            let beat = Beat { run: us(run(*at)), waited: us(waited(*at)), ..Beat::default() };
            draining.is_over(&Domain { beats: vec![beat; 2], ..Domain::default() }, us(1_000_000 + at))
        };
        // It is looked at more often than it has to be.
        (0..).map(|n| n * 1000).find(is_over).unwrap()
    }

    #[test]
    fn one_that_hardly_runs_has_sent_all_and_a_busy_one_is_not_waited_for_for_ever() {
        assert_eq!(ends(|_| 7, |_| 7), 5_000);
        assert_eq!(ends(|at| at / 50, |_| 0), 5_000);
        assert_eq!(ends(|at| at / 10, |_| 0), 100_000);
        assert_eq!(ends(|at| at.min(33_000), |_| 0), 40_000);
        assert_eq!(ends(|_| 0, |at| at.min(33_000)), 40_000, "it may be others that keep it from running");
    }

    #[test]
    fn one_that_has_ended_sends_nothing() {
        let ended = Domain { end: Some((3, false)), ..Domain::default() };
        assert!(Draining::new(us(0)).is_over(&ended, us(0)));
    }
}
