//! Whether a driver domain that seems to run does what it should: a function of looks at it.

use super::settings::Settings;
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
    /// Packets that it has taken.
    pub taken: u64,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Illness {
    /// This vCPU runs, and takes no events. `since`: when it was first seen not to, as time since the machine's start.
    Wedged { vcpu: u32, since: Duration },
    /// What is for the outside is not taken.
    Undrained { since: Duration },
    /// A device of its reaches for memory that is not its own.
    DmaFault { since: Duration },
}

/// Looks so far.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Since when, and at how many packets, nothing was taken.
    stuck: Option<(Duration, u64)>,
}

impl Health {
    /// Takes a look into account.
    ///
    /// That a vCPU is wedged, or a device was stopped, says the hypervisor (CHANNELOP_WATCH), which looks often. What is undrained is judged only where packets
    /// were taken before: after a start with the cable out nothing is restarted for it.
    pub fn look(&mut self, settings: &Settings, now: Duration, beats: &[Beat], queue: Queue) -> Option<Illness> {
        for beat in beats {
            if let Some(ago) = beat.dma_fault_for {
                return Some(Illness::DmaFault { since: now.saturating_sub(ago) });
            }
            if let Some(ago) = beat.wedged_for {
                return Some(Illness::Wedged { vcpu: beat.vcpu, since: now.saturating_sub(ago) });
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

    #[test]
    fn one_of_several_is_enough() {
        let mut health = Health::default();
        let good = Beat { vcpu: 0, upcalls: 3, ..Beat::default() };
        let wedged = Beat { vcpu: 1, wedged_for: Some(ms(502)), ..good };
        assert_eq!(health.look(&settings(), ms(9000), &[good], Queue::default()), None);
        let found = health.look(&settings(), ms(9000), &[good, wedged], Queue::default());
        assert_eq!(found, Some(Illness::Wedged { vcpu: 1, since: ms(8498) }));
    }

    #[test]
    fn a_limit_of_0_is_none() {
        let settings = Settings { undrained_ms: Some(0), ..settings() };
        let mut health = Health::default();
        for n in 0..1000 {
            assert_eq!(health.look(&settings, ms(n * 100), &[], Queue { is_waiting: true, taken: 5 }), None);
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
