//! After how many more entries of a ring a sender is to notify, and when it is told of answers.
//!
//! A guest that sends one packet after another would notify for each of them: a hypercall, a turn of the card and an
//! event for each. One that has done so a few times in a row is asked to notify only after several more. Until then its
//! ring is looked at by whoever looks after it: when the vCPU that notified last goes to sleep, and in any case after
//! [`LATE_NS`]. Whoever sends now and then is served at once.
//!
//! Who sends in bursts, as a bridge does with what a network card has received, would begin anew with each of them. So
//! it is remembered how long bursts have been: the second notification of one tells that another has begun.
//!
//! Likewise, an event for each answer would interrupt a busy sender for each packet. Its answers are shown together
//! ([`Unseen`]).

/// A ring whose guest need not notify is looked at so often, in ns.
pub const LATE_NS: u64 = 100_000;
/// Requests that a guest may have sent without a notification, at most.
pub const MAX_AHEAD: u32 = 64;
/// Notifications that are no further apart than this, in ns, are in a row.
const QUICK_NS: u64 = 50_000;
/// So many of them in a row, and the guest is busy sending.
const IN_A_ROW: u32 = 3;

/// A CPU looks at rings of domains that do not run there for so long at one time, in ns, but for what it has begun.
pub const STRETCH_NS: u64 = 50_000;

/// What a CPU does for domains that do not run there, on the time of whoever does: for a stretch, and then not for as
/// long as that took. So whoever runs has half of the CPU at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    worked_ns: u64,
}

impl Stretch {
    /// May more be begun?
    pub fn allows_more(&self) -> bool {
        self.worked_ns < STRETCH_NS
    }

    /// So much was done.
    pub fn worked(&mut self, ns: u64) {
        self.worked_ns = self.worked_ns.saturating_add(ns);
    }

    /// When there may be the next one, if this one has come to its end at `now` (ns).
    pub fn rests_until(&self, now: u64) -> u64 {
        now.saturating_add(self.worked_ns)
    }
}

/// How busy a sender is.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Requests after which the guest was asked to notify.
    ahead: u32,
    in_a_row: u32,
    /// When something was taken last.
    taken_ns: u64,
    /// Requests of this burst.
    burst: u32,
    /// Requests of bursts before, the last half of it.
    usual: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { ahead: 1, in_a_row: 0, taken_ns: 0, burst: 0, usual: 0 }
    }
}

impl Pace {
    /// Requests of bursts before, about.
    pub fn usual(&self) -> u32 {
        self.usual
    }

    /// The ring was looked at at `now` (ns), and `taken` requests taken out of it. After how many more the guest is to
    /// notify: if that is not 1, the ring is to be looked at within [`LATE_NS`] though nobody notifies.
    #[must_use]
    pub fn looked(&mut self, taken: u32, now: u64) -> u32 {
        let since = now.saturating_sub(self.taken_ns);
        let patience = if self.ahead > 1 && taken > 0 { 2 * LATE_NS } else { QUICK_NS };
        if since > patience {
            if self.burst > 0 {
                self.usual = self.usual.midpoint(self.burst.min(MAX_AHEAD));
            }
            (self.ahead, self.in_a_row, self.burst) = (1, 0, 0);
        } else if taken > 0 {
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.ahead = if self.in_a_row < IN_A_ROW { self.usual.max(1) } else { (self.ahead * 2).min(MAX_AHEAD) };
        }
        if taken > 0 {
            self.taken_ns = now;
            self.burst = self.burst.saturating_add(taken);
        }
        self.ahead
    }
}

/// Answers that a guest has not seen, at most.
const MAX_UNSEEN: u32 = 64;
/// For so long (ns) it does not see them, at most and until the next look.
const UNSEEN_NS: u64 = 300_000;

/// Since when there are answers that a guest has not been shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unseen {
    since_ns: Option<u64>,
}

impl Unseen {
    /// At `now` (ns) there are `answers` of them, and the ring will be looked at again within [`LATE_NS`]. May they
    /// wait until then?
    #[must_use]
    pub fn may_wait(&mut self, answers: u32, now: u64) -> bool {
        let since = *self.since_ns.get_or_insert(now);
        answers < MAX_UNSEEN && now.saturating_sub(since) < UNSEEN_NS
    }

    /// All are shown.
    pub fn shown(&mut self) {
        self.since_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// However much there is to do for domains that do not run here, whoever runs has half of the time, and waits for
    /// one piece beyond a stretch.
    #[test]
    fn who_runs_keeps_half_of_the_cpu() {
        for piece_ns in [1, 1_000, STRETCH_NS, 800_000] {
            let (mut now, mut theirs, mut others) = (5_000_000_000, 0, 0);
            for _ in 0..1000 {
                let mut stretch = Stretch::default();
                while stretch.allows_more() {
                    now += piece_ns;
                    stretch.worked(piece_ns);
                    others += piece_ns;
                }
                let until = stretch.rests_until(now);
                assert!(until - now < STRETCH_NS + piece_ns);
                theirs += until - now;
                now = until;
            }
            assert_eq!(theirs, others, "pieces of {piece_ns} ns");
        }
    }

    #[test]
    fn one_that_sends_now_and_then_is_served_at_once() {
        let mut pace = Pace::default();
        for n in 1..100 {
            assert_eq!(pace.looked(1, n * (QUICK_NS + 1)), 1);
        }
    }

    #[test]
    fn one_that_sends_all_the_time_notifies_ever_less_often() {
        let mut pace = Pace::default();
        let mut now = QUICK_NS * 100;
        let mut ahead = Vec::new();
        for taken in [1, 1, 1, 1, 2, 4, 8, 16, 32, 64, 64] {
            ahead.push(pace.looked(taken, now));
            now += 1_000 * u64::from(taken);
        }
        assert_eq!(ahead, [1, 1, 1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn one_that_sends_in_bursts_notifies_twice_for_each() {
        let mut pace = Pace::default();
        let mut now = 0;
        let mut burst = |length: u32| {
            now += 10 * LATE_NS;
            let (mut sent, mut ahead, mut notified) = (0, 1, 0);
            while sent + ahead <= length {
                sent += ahead;
                now += 1_000 * u64::from(ahead);
                let taken = ahead;
                ahead = pace.looked(taken, now);
                notified += 1;
            }
            // Then it sleeps, and its ring is looked at, and once more when it does not send.
            assert!(pace.looked(length - sent, now) <= MAX_AHEAD);
            now += LATE_NS;
            assert_eq!(pace.looked(0, now), 1);
            notified
        };
        let notified: Vec<u32> = (0..6).map(|_| burst(20)).collect();
        assert_eq!(notified[0], 7);
        assert!(notified[2..].iter().all(|n| *n <= 3), "{notified:?}");
        // Short ones are served at once again before long.
        let notified: Vec<u32> = (0..8).map(|_| burst(1)).collect();
        assert_eq!(notified, [1; 8]);
        assert_eq!(pace.usual, 1);
    }

    #[test]
    fn answers_wait_while_they_are_few_and_new() {
        let mut unseen = Unseen::default();
        assert!(unseen.may_wait(1, 1_000));
        assert!(unseen.may_wait(MAX_UNSEEN - 1, 1_000 + UNSEEN_NS - 1));
        assert!(!unseen.may_wait(2, 1_000 + UNSEEN_NS), "too old");
        unseen.shown();
        assert!(unseen.may_wait(2, 1_000 + UNSEEN_NS));
        assert!(!unseen.may_wait(MAX_UNSEEN, 1_001 + UNSEEN_NS), "too many");
    }

    #[test]
    fn one_that_has_ceased_is_served_at_once_again() {
        let mut pace = Pace::default();
        let busy = |pace: &mut Pace| (0..10).map(|n| pace.looked(1, n * 1_000)).last();
        assert_eq!(busy(&mut pace), Some(MAX_AHEAD));
        // Somebody looks who might as well not have.
        assert_eq!(pace.looked(0, 10_000), MAX_AHEAD);
        // At its time there is nothing.
        assert_eq!(pace.looked(0, 9_000 + LATE_NS), 1);
        assert_eq!(pace.looked(1, 10_000 + LATE_NS), 1);
        let mut pace = Pace::default();
        busy(&mut pace);
        assert_eq!(pace.looked(1, 10_000 + 2 * LATE_NS), 1);
    }
}
