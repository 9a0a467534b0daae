//! After how many more requests a sender is to notify.
//!
//! A guest that sends one packet after another would notify for each of them: a hypercall, a turn of the card and an event for
//! each. One that has done so a few times in a row is asked to notify only after several more. Until then its ring is looked at
//! by whoever looks after it: when the vCPU that notified last goes to sleep, and in any case after [`LATE_NS`]. Whoever sends now and then is served at once.

/// A ring whose guest need not notify is looked at so often, in ns.
pub const LATE_NS: u64 = 100_000;
/// Requests that a guest may have sent without a notification, at most.
pub const MAX_AHEAD: u32 = 64;
/// Notifications that are no further apart than this, in ns, are in a row.
const QUICK_NS: u64 = 50_000;
/// So many of them in a row, and the guest is busy sending.
const IN_A_ROW: u32 = 3;

/// How busy a sender is.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Requests after which the guest was asked to notify.
    ahead: u32,
    in_a_row: u32,
    /// When something was taken last.
    taken_ns: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { ahead: 1, in_a_row: 0, taken_ns: 0 }
    }
}

impl Pace {
    /// The ring was looked at at `now` (ns), and `taken` requests taken out of it. After how many more the guest is to notify: if
    /// that is not 1, the ring is to be looked at within [`LATE_NS`] though nobody notifies.
    #[must_use]
    pub fn looked(&mut self, taken: u32, now: u64) -> u32 {
        let since = now.saturating_sub(self.taken_ns);
        let patience = if self.ahead > 1 && taken > 0 { 2 * LATE_NS } else { QUICK_NS };
        if since > patience {
            (self.ahead, self.in_a_row) = (1, 0);
        } else if taken > 0 {
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.ahead = if self.in_a_row < IN_A_ROW { 1 } else { (self.ahead * 2).min(MAX_AHEAD) };
        }
        if taken > 0 {
            self.taken_ns = now;
        }
        self.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

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
