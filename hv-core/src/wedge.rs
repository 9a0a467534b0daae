//! Whether a vCPU is wedged: it runs, an event waits for it, and it takes none.
//!
//! A kernel that lives takes an event a moment after it has come, if it runs. So what counts is the time that the vCPU
//! itself has run, from the first look that found an event waiting, as long as the count of events that it took stays
//! the same. A busy vCPU lets another event wait at each look, and the count shows it; one that gets no time is not
//! wedged; nor is one whose CPU stood still, as a CPU of another hypervisor's does. That is found out at one look,
//! which counts for no more than it would have on time; so a CPU that stands still again and again, and lets its vCPU
//! run for a moment in between, makes nobody wedged either.

/// So often is looked at a vCPU that runs, in ns.
pub const LOOK_NS: u64 = 3_000_000;
/// One look counts for no more, in ns: what is looked at later had not the CPU.
const MOST_NS: u64 = 2 * LOOK_NS;

/// A look at a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// How often it has taken events; goes round.
    pub upcalls: u32,
    /// How long it has run, in ns.
    pub run_ns: u64,
    /// An event waits, and it takes none now.
    pub is_waiting: bool,
}

/// A vCPU that lets an event wait.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// When that was seen first, in ns since the start.
    since_ns: u64,
    /// As it was at the last look.
    last: Look,
    /// How long it has run since, in ns, as far as it counts.
    ran_ns: u64,
}

/// What is known of a vCPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wedge {
    waiting: Option<Waiting>,
}

impl Wedge {
    /// Nothing was seen yet.
    pub const fn new() -> Self {
        Self { waiting: None }
    }

    /// Takes a look at `now_ns` into account. `limit_ns`: so long it may run while an event waits; not 0.
    /// Since when the event waits, in ns since the start, if the vCPU is wedged.
    pub fn look(&mut self, limit_ns: u64, now_ns: u64, look: Look) -> Option<u64> {
        let before = self.waiting.filter(|waiting| look.is_waiting && waiting.last.upcalls == look.upcalls);
        let Some(before) = before else {
            self.waiting = look.is_waiting.then_some(Waiting { since_ns: now_ns, last: look, ran_ns: 0 });
            return None;
        };
        let ran = look.run_ns.saturating_sub(before.last.run_ns).min(MOST_NS);
        let waiting = Waiting { last: look, ran_ns: before.ran_ns.saturating_add(ran), ..before };
        self.waiting = Some(waiting);
        (waiting.ran_ns >= limit_ns).then_some(waiting.since_ns)
    }

    /// When it is to be looked at again, in ns from now on: at the limit, if an event waits and that is near.
    pub fn next(&self, limit_ns: u64) -> u64 {
        match self.waiting {
            Some(waiting) if waiting.ran_ns < limit_ns => LOOK_NS.min(limit_ns - waiting.ran_ns),
            _ => LOOK_NS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LIMIT: u64 = 500 * MS;

    /// The first look, of those that come each 5 ms, that finds it wedged: when, and since when.
    fn found(looks: impl IntoIterator<Item = (u32, u64, bool)>) -> Option<(u64, u64)> {
        let mut wedge = Wedge::new();
        (0..).zip(looks).find_map(|(n, (upcalls, run_ms, is_waiting))| {
            let look = Look { upcalls, run_ns: run_ms * MS, is_waiting };
            wedge.look(LIMIT, n * 5 * MS, look).map(|since| (n * 5, since / MS))
        })
    }

    #[test]
    fn who_runs_and_takes_no_event_is_wedged_at_the_limit_and_not_before() {
        let mut wedge = Wedge::new();
        let mut now = 7 * MS;
        let since = loop {
            let look = Look { upcalls: 3, run_ns: now, is_waiting: true };
            if let Some(since) = wedge.look(LIMIT, now, look) {
                break since;
            }
            now += wedge.next(LIMIT);
        };
        assert_eq!((since, now), (7 * MS, 507 * MS), "the last look is at the limit itself");
        assert_eq!(found((0..100).map(|n| (7, n * 5, true))), None);
        assert_eq!(found((0..101).map(|n| (7, n * 5, true))), Some((500, 0)));
        assert_eq!(found((0..200).map(|n| (7, n * 5, n >= 40))), Some((700, 200)));
    }

    #[test]
    fn who_is_busy_is_not() {
        assert_eq!(found((0..9000).map(|n| (n, u64::from(n) * 5, true))), None, "another event each time");
        assert_eq!(found((0..9000).map(|n| (7, n * 5, false))), None, "computes, and no event waits");
        assert_eq!(found((0..9000).map(|n| (7, 5000 + n / 20, true))), None, "gets no time");
        assert_eq!(found((0..9000).map(|n| (7, n * 5, n % 100 != 0))), None, "lets one wait for a while now and then");
    }

    #[test]
    fn whose_cpu_stood_still_is_not() {
        assert_eq!(found([(7, 0, true), (7, 5, true), (7, 3200, true), (7, 3205, true)]), None, "3 s at one look");
        assert!(found((0..85).map(|n| (7, n * 3000, true))).is_some(), "but it is if that goes on");
    }

    #[test]
    fn whose_cpu_has_little_time_of_another_hypervisors_is_not() {
        // It has 3 ms in 40, and is busy with one thing for 60 of its own.
        let slices = (0..20).map(|slice| (7, slice * 40, true));
        assert_eq!(found(slices), None);
    }

    #[test]
    fn who_takes_an_event_after_all_is_well_again() {
        let mut wedge = Wedge::new();
        let mut look =
            |at, upcalls, is_waiting| wedge.look(LIMIT, at * MS, Look { upcalls, run_ns: at * MS, is_waiting });
        for n in 0..=100 {
            assert_eq!(look(n * 5, 9, true), (n == 100).then_some(0));
        }
        assert_eq!(look(600, 9, true), Some(0), "it stays so");
        assert_eq!(look(700, 10, true), None);
        assert_eq!(look(1100, 10, true), None);
        assert_eq!(look(1101, 10, false), None);
        assert_eq!(look(1102, 10, true), None, "another one");
    }

    #[test]
    fn a_limit_below_what_a_look_may_count_for_ends_too() {
        let mut wedge = Wedge::new();
        let mut n = 0;
        while wedge.look(1, n, Look { upcalls: 0, run_ns: n, is_waiting: true }).is_none() {
            n += 1;
        }
        assert_eq!((n, wedge.next(1)), (1, LOOK_NS));
    }
}
