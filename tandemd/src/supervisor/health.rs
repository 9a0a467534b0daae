//! Whether a driver domain that seems to run does what it should: a function of looks at it.

use super::settings::Settings;
use std::collections::BTreeMap;
use std::time::Duration;

/// A look at a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// Which.
    pub vcpu: u32,
    /// How often it has taken events.
    pub upcalls: u32,
    /// How long it has run.
    pub run: Duration,
    /// An event waits, and it takes none now.
    pub is_waiting: bool,
}

/// A look at what is for the outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Something waits for the driver domain.
    pub is_waiting: bool,
    /// Packets that it has taken.
    pub taken: u64,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Illness {
    /// This vCPU runs, and takes no events. `since`: the first look at which it did not, as time since the machine's start.
    Wedged { vcpu: u32, since: Duration },
    /// What is for the outside is not taken.
    Undrained { since: Duration },
}

/// A vCPU that lets an event wait.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// When that was seen first.
    since: Duration,
    /// As it was at the last look.
    last: Beat,
    /// How long it has run since, as far as it counts.
    ran: Duration,
}

/// What one look may count for is the limit divided by this.
const FEWEST_LOOKS: u32 = 4;

/// Looks so far.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// vCPUs that let an event wait.
    waiting: BTreeMap<u32, Waiting>,
    /// Since when, and at how many packets, nothing was taken.
    stuck: Option<(Duration, u64)>,
}

impl Health {
    /// Takes a look into account.
    ///
    /// That an event waits at each of two looks alone says nothing: it may be another one. But the count of those that were taken is
    /// the same only if none was in between, so a busy domain is never taken for one that is wedged; and one that gets no time is
    /// not either, for only its own counts. Nor is one whose CPU stood still, as one of another hypervisor's does: that is found out at
    /// one look, and no look counts for much. What is undrained is judged only where packets were taken before: after a start with
    /// the cable out nothing is restarted for it.
    pub fn look(&mut self, settings: &Settings, now: Duration, beats: &[Beat], queue: Queue) -> Option<Illness> {
        for beat in beats {
            let begins = Waiting { since: now, last: *beat, ran: Duration::ZERO };
            let waiting = self.waiting.entry(beat.vcpu).or_insert(begins);
            if !beat.is_waiting || waiting.last.upcalls != beat.upcalls {
                self.waiting.remove(&beat.vcpu);
                continue;
            }
            let limit = Duration::from_millis(settings.wedged_ms);
            waiting.ran += beat.run.saturating_sub(waiting.last.run).min(limit / FEWEST_LOOKS);
            waiting.last = *beat;
            if !limit.is_zero() && waiting.ran >= limit {
                return Some(Illness::Wedged { vcpu: beat.vcpu, since: waiting.since });
            }
        }
        if !queue.is_waiting || queue.taken == 0 {
            self.stuck = None;
            return None;
        }
        let (since, at) = *self.stuck.get_or_insert((now, queue.taken));
        if at != queue.taken {
            self.stuck = Some((now, queue.taken));
            return None;
        }
        let limit = Duration::from_millis(settings.undrained_ms());
        (!limit.is_zero() && now.saturating_sub(since) >= limit).then_some(Illness::Undrained { since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        toml::from_str("config = \"/dd.cfg\"").unwrap()
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn beats(health: &mut Health, looks: impl IntoIterator<Item = (u32, u64, bool)>) -> Option<Illness> {
        let look = |(n, (upcalls, run, is_waiting))| {
            let beat = Beat { vcpu: 0, upcalls, run: ms(run), is_waiting };
            health.look(&settings(), ms(n * 100), &[beat], Queue::default())
        };
        (0_u64..).zip(looks).find_map(look)
    }

    #[test]
    fn who_runs_and_takes_no_event_is_wedged_after_half_a_second() {
        let mut health = Health::default();
        assert_eq!(beats(&mut health, (0..5).map(|n| (7, n * 100, true))), None);
        assert_eq!(beats(&mut health, [(7, 499, true)]), None);
        assert_eq!(beats(&mut health, [(7, 500, true)]), Some(Illness::Wedged { vcpu: 0, since: ms(0) }));
    }

    #[test]
    fn who_is_busy_is_not() {
        // Each look finds an event waiting, but another one.
        assert_eq!(beats(&mut Health::default(), (0..1000).map(|n| (n, u64::from(n) * 100, true))), None);
        // Computes without an event that waits.
        assert_eq!(beats(&mut Health::default(), (0..1000).map(|n| (7, n * 100, false))), None);
        // Gets no time.
        assert_eq!(beats(&mut Health::default(), (0..1000).map(|n| (7, 5000 + n / 4, true))), None);
        // Now and then lets one wait for a while.
        assert_eq!(beats(&mut Health::default(), (0..1000).map(|n| (7, n * 100, n % 5 != 0))), None);
    }

    #[test]
    fn whose_cpu_stood_still_is_not() {
        // Three seconds of it are found out at one look.
        assert_eq!(
            beats(&mut Health::default(), [(7, 0, true), (7, 100, true), (7, 3200, true), (7, 3300, true)]),
            None
        );
        let goes_on = (1..=4).map(|n| (7, n * 3000, true));
        assert!(beats(&mut Health::default(), [(7, 0, true)].into_iter().chain(goes_on)).is_some());
    }

    #[test]
    fn one_of_several_is_enough() {
        let mut health = Health::default();
        let look = |n: u32| {
            let good = Beat { vcpu: 0, upcalls: n, run: ms(u64::from(n) * 100), is_waiting: true };
            [good, Beat { vcpu: 1, upcalls: 3, ..good }]
        };
        let found = (0..9).find_map(|n| health.look(&settings(), ms(u64::from(n) * 100), &look(n), Queue::default()));
        assert_eq!(found, Some(Illness::Wedged { vcpu: 1, since: ms(0) }));
    }

    #[test]
    fn a_limit_of_0_is_none() {
        let settings = Settings { wedged_ms: 0, undrained_ms: Some(0), ..settings() };
        let mut health = Health::default();
        for n in 0..1000 {
            let beat = Beat { vcpu: 0, upcalls: 1, run: ms(n * 100), is_waiting: true };
            assert_eq!(health.look(&settings, ms(n * 100), &[beat], Queue { is_waiting: true, taken: 5 }), None);
        }
    }

    #[test]
    fn a_queue_that_was_drained_before_and_is_not_any_more() {
        let mut health = Health::default();
        let mut look = |at_ms, is_waiting, taken| health.look(&settings(), ms(at_ms), &[], Queue { is_waiting, taken });
        assert_eq!(look(0, true, 0), None);
        assert_eq!(look(60_000, true, 0), None, "nothing was ever taken");
        assert_eq!(look(60_100, true, 5), None);
        assert_eq!(look(69_000, true, 6), None);
        assert_eq!(look(78_900, true, 6), None);
        assert_eq!(look(79_000, true, 6), Some(Illness::Undrained { since: ms(69_000) }));
        assert_eq!(look(79_100, false, 6), None, "nothing waits");
        assert_eq!(look(99_000, true, 6), None);
        assert_eq!(look(109_000, true, 6), Some(Illness::Undrained { since: ms(99_000) }));
    }
}
