//! Whether a driver domain that seems to run does what it should: a function of looks at it.

use super::settings::{Settings, UNDRAINED_DISK_MS};
use super::words::{self, Words};
use crate::config::Kind;
use std::borrow::Cow;
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
    /// How long it would have run if others had not.
    pub waited: Duration,
    /// An IOMMU has stopped a device of its domain's, so long ago.
    pub dma_fault_for: Option<Duration>,
    /// It is wedged: so long ago an event came that it has not taken, though it has run since for as long as it may.
    pub wedged_for: Option<Duration>,
}

/// A look at what is for the outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Something waits for the driver domain.
    pub is_waiting: bool,
    /// Packets that it has taken; or how often it has answered what it was asked for disks.
    pub taken: u64,
    /// For how long a disk's request has looked lost that it was given: others are answered that it was given later, or
    /// none of that disk's is.
    pub overdue_for: Duration,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Illness {
    /// This vCPU runs, and takes no events. `since`: when it was first seen not to, as time since the machine's start.
    Wedged { vcpu: u32, since: Duration },
    /// What is for the outside is not taken.
    Undrained { since: Duration },
    /// Something of it looks lost, whatever becomes of the rest.
    Overdue { since: Duration },
    /// It is taken, and nothing comes from there.
    Silent { since: Duration },
    /// A device of its reaches for memory that is not its own.
    DmaFault { since: Duration },
}

/// Looks so far.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// The first of them. Before it the domain may have been paused.
    began: Option<Duration>,
    /// Nothing was taken.
    stuck: Option<Stuck>,
    /// Since when nothing came, how much had come, and how much had been taken by then.
    silent: Option<(Duration, u64, u64)>,
    /// What is known of the ways of its other services, by their names.
    others: BTreeMap<String, Health>,
    /// There was a way; and since when there is none.
    had_way: bool,
    lost: Option<Duration>,
}

/// Nothing is taken.
#[derive(Clone, Copy, Debug)]
struct Stuck {
    /// Since when.
    since: Duration,
    /// So many packets had been taken.
    taken: u64,
    /// Since when something waits. Packets wait for some seconds only, and who hears nothing seldom sends.
    waits_since: Option<Duration>,
}

/// Who sends fewer packets than these may wait for no answer.
const ASKED: u64 = 20;

impl Health {
    /// Takes a look into account.
    ///
    /// That a vCPU is wedged, or a device was stopped, says the hypervisor (CHANNELOP_WATCH), which looks often. What
    /// is undrained is judged only where packets were taken before, and that it is silent where some had come (`came`)
    /// before: after a start with the cable out nothing is restarted for it.
    pub fn look(
        &mut self,
        settings: &Settings,
        now: Duration,
        beats: &[Beat],
        queue: Queue,
        came: u64,
    ) -> Option<Illness> {
        for beat in beats {
            if let Some(ago) = beat.dma_fault_for {
                return Some(Illness::DmaFault { since: now.saturating_sub(ago) });
            }
            if let Some(ago) = beat.wedged_for {
                return Some(Illness::Wedged { vcpu: beat.vcpu, since: now.saturating_sub(ago) });
            }
        }
        let began = *self.began.get_or_insert(now);
        let silent_since = self.silent_since(now, queue, came);
        let is_over = |since: Duration, limit_ms| {
            let limit = Duration::from_millis(limit_ms);
            !limit.is_zero() && now.saturating_sub(since) >= limit
        };
        let limit = settings.undrained_ms();
        // What waits now may just have come, though nothing has been taken for long.
        let is_stuck = |(since, waits_since): &_| is_over(*since, limit) && is_over(*waits_since, limit.div_ceil(2));
        let stuck = self.stuck_since(now, queue).filter(is_stuck);
        // First what is held against it whatever the one before did.
        let overdue_since = now.saturating_sub(queue.overdue_for).max(began);
        if is_over(overdue_since, settings.overdue_ms()) {
            return Some(Illness::Overdue { since: overdue_since });
        }
        if let Some((since, _)) = stuck {
            return Some(Illness::Undrained { since });
        }
        silent_since.filter(|since| is_over(*since, settings.silent_ms)).map(|since| Illness::Silent { since })
    }

    /// The same of another service whose driver domain it is. It is forgotten with this one.
    pub fn of_other(&mut self, service: &str) -> &mut Self {
        self.others.entry(service.into()).or_default()
    }

    /// Since when there is no way, where there was one. Who never was it, or lost it while nobody looked, need not be.
    pub fn lost_since(&mut self, now: Duration, is_there: bool) -> Option<Duration> {
        self.had_way |= is_there;
        self.lost = (!is_there && self.had_way).then(|| self.lost.unwrap_or(now));
        self.lost
    }

    /// Since when nothing is taken of what waits, and since when something has waited without a break.
    fn stuck_since(&mut self, now: Duration, queue: Queue) -> Option<(Duration, Duration)> {
        self.stuck = self.stuck.filter(|stuck| stuck.taken == queue.taken);
        if !queue.is_waiting || queue.taken == 0 {
            self.stuck.iter_mut().for_each(|stuck| stuck.waits_since = None);
            return None;
        }
        let stuck = self.stuck.get_or_insert(Stuck { since: now, taken: queue.taken, waits_since: None });
        Some((stuck.since, *stuck.waits_since.get_or_insert(now)))
    }

    /// Since when nothing comes, if some should.
    fn silent_since(&mut self, now: Duration, queue: Queue, came: u64) -> Option<Duration> {
        let (since, at, taken) = *self.silent.get_or_insert((now, came, queue.taken));
        if at != came || came == 0 {
            self.silent = Some((now, came, queue.taken));
            return None;
        }
        (queue.taken.saturating_sub(taken) >= ASKED).then_some(since)
    }
}

/// What holds for the way of another service, which may be of another kind than `words`' that these settings are for:
/// then it has that kind's usual limits, or none if these say so.
pub fn settings_of<'a>(settings: &'a Settings, words: &Words, kind: Kind) -> Cow<'a, Settings> {
    if words::of(kind) == words {
        return Cow::Borrowed(settings);
    }
    let usual = (kind == Kind::Disk).then_some(UNDRAINED_DISK_MS);
    let is_off = settings.undrained_ms() == 0;
    let (undrained_ms, overdue_ms) = if is_off { (Some(0), Some(0)) } else { (usual, None) };
    Cow::Owned(Settings { undrained_ms, overdue_ms, silent_ms: 0, ..settings.clone() })
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

    #[test]
    fn one_of_several_is_enough() {
        let mut health = Health::default();
        let good = Beat { vcpu: 0, upcalls: 3, ..Beat::default() };
        let wedged = Beat { vcpu: 1, wedged_for: Some(ms(502)), ..good };
        assert_eq!(health.look(&settings(), ms(9000), &[good], Queue::default(), 0), None);
        let found = health.look(&settings(), ms(9000), &[good, wedged], Queue::default(), 0);
        assert_eq!(found, Some(Illness::Wedged { vcpu: 1, since: ms(8498) }));
    }

    #[test]
    fn a_limit_of_0_is_none() {
        let settings = Settings { undrained_ms: Some(0), overdue_ms: Some(0), ..settings() };
        let mut health = Health::default();
        for n in 0..10_000 {
            let queue = Queue { is_waiting: true, taken: 5, overdue_for: ms(n * 100) };
            assert_eq!(health.look(&settings, ms(n * 100), &[], queue, 7), None);
        }
    }

    #[test]
    fn one_that_takes_packets_and_from_which_none_come_any_more() {
        let settings = Settings { silent_ms: 5000, ..settings() };
        let mut health = Health::default();
        let mut look =
            |at_ms, taken, came| health.look(&settings, ms(at_ms), &[], Queue { taken, ..Queue::default() }, came);
        assert_eq!((look(0, 1, 0), look(60_000, 500, 0)), (None, None), "nothing ever came");
        assert_eq!((look(60_100, 501, 1), look(65_000, 501, 1), look(70_000, 520, 1)), (None, None, None), "few went");
        assert_eq!(look(71_000, 521, 1), Some(Illness::Silent { since: ms(60_100) }));
        assert_eq!((look(71_100, 600, 2), look(76_000, 700, 2)), (None, None));
        assert_eq!(look(76_100, 700, 2), Some(Illness::Silent { since: ms(71_100) }));
    }

    #[test]
    fn one_that_is_silent_is_not_asked_for_unless_that_is_wanted() {
        let mut health = Health::default();
        for n in 0..1000 {
            let queue = Queue { taken: n * 100, ..Queue::default() };
            assert_eq!(health.look(&settings(), ms(n * 100), &[], queue, 7), None);
        }
    }

    #[test]
    fn a_queue_that_was_drained_before_and_is_not_any_more() {
        let mut health = Health::default();
        let mut look = |at_ms, is_waiting, taken| {
            health.look(&settings(), ms(at_ms), &[], Queue { is_waiting, taken, ..Queue::default() }, 0)
        };
        assert_eq!(look(0, true, 0), None);
        assert_eq!(look(60_000, true, 0), None, "nothing was ever taken");
        assert_eq!(look(60_100, true, 5), None);
        assert_eq!(look(69_000, true, 6), None);
        assert_eq!(look(78_900, true, 6), None);
        assert_eq!(look(79_000, true, 6), Some(Illness::Undrained { since: ms(69_000) }));
        assert_eq!(look(79_100, false, 6), None, "nothing waits");
        assert_eq!(look(99_000, true, 7), None);
        assert_eq!(look(109_000, true, 7), Some(Illness::Undrained { since: ms(99_000) }));
    }

    #[test]
    fn one_that_answers_others_and_leaves_one_unanswered() {
        let (usual, mut health) = (settings(), Health::default());
        let settings = Settings { overdue_ms: Some(20_000), ..settings() };
        let mut look = |at_ms, taken, overdue_ms| {
            let queue = Queue { is_waiting: true, taken, overdue_for: ms(overdue_ms) };
            health.look(&settings, ms(at_ms), &[], queue, 0)
        };
        assert_eq!((look(40_000, 1, 90_000), look(45_000, 2, 95_000)), (None, None), "it may have been paused");
        assert_eq!((look(50_000, 5, 3_000), look(66_999, 900, 19_999)), (None, None));
        assert_eq!(look(67_000, 901, 20_000), Some(Illness::Overdue { since: ms(47_000) }));
        assert_eq!(look(67_100, 902, 20), None);
        assert_eq!(look(68_000, 903, 50_000), Some(Illness::Overdue { since: ms(40_000) }));
        // It is no other limit, and a medium may try for three minutes.
        let mut look = |seconds: u64| {
            let queue = Queue { is_waiting: true, taken: seconds, overdue_for: ms(1000 * seconds) };
            health.look(&usual, ms(100_000 + 1000 * seconds), &[], queue, 0)
        };
        assert!((0..300).all(|seconds| look(seconds).is_none()));
        assert_eq!(look(300), Some(Illness::Overdue { since: ms(100_000) }));
    }

    /// Whoever brings that about, by whatever means, does not have everybody's disks parked. There may be more of those
    /// that are `undrained` for disks: none of them counts (tests/disks.rs).
    #[test]
    fn too_few_of_these_failures_count_together_to_park_a_service() {
        let within_ms = settings().within_s * 1000;
        assert!(within_ms / settings().overdue_ms() <= u64::from(settings().crashes));
    }

    #[test]
    fn who_seldom_sends_is_noticed_too() {
        let mut health = Health::default();
        let mut look = |at_ms, is_waiting| {
            health.look(&settings(), ms(at_ms), &[], Queue { is_waiting, taken: 5, ..Queue::default() }, 0)
        };
        assert_eq!((look(0, false), look(60_000, false)), (None, None), "nothing ever waited");
        assert_eq!((look(61_000, true), look(70_900, true)), (None, None));
        assert_eq!(look(70_990, false), None, "it has waited for too long, and is lost");
        assert_eq!((look(90_000, true), look(94_900, true)), (None, None), "it may just have come");
        assert_eq!(look(95_000, true), Some(Illness::Undrained { since: ms(61_000) }));
    }
}
