//! What becomes of an interrupt whose handler has run: a card's twin runs the card's own handler only.
//!
//! A handler that finds nothing may be right: of a level-triggered line another device of the same domain may be the
//! one that asks, and its handler only the domain runs. That device keeps asking, so the line fires again at once, and
//! when a second handler in a row finds nothing the domain is told, whose kernel runs all handlers. One alone is what a
//! card's own line does at times, as when a poll was quicker. It is not told of, since Linux gives a line up of which
//! so many in a row were nobody's ([`PAUSE_NS`]), and it does not hear of those that the twin handles in between.

/// What a handler returns if its device asked, and if a thread of the domain's is to go on (`irqreturn`).
const IRQ_HANDLED: u32 = 1 << 0;
const IRQ_WAKE_THREAD: u32 = 1 << 1;

/// If other domains share a line, the device that asks is probably one of theirs, and their handlers find it. Then the
/// domain is not told more often, in ns: of interrupts that are nobody's Linux counts those only that come within 100
/// ms of each other.
pub const PAUSE_NS: u64 = 110_000_000;

/// How a line is wired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// It is level-triggered: it fires until no device asks any more.
    pub is_level: bool,
    /// Other domains are told of it as well.
    pub has_others: bool,
}

/// Who ends an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It has been ended by the handler, which has found that it was its device's or not.
    Ended {
        /// Its device asked.
        is_its: bool,
    },
    /// The domain is told, whose kernel runs all handlers and their threads.
    Domain,
}

/// The interrupts of a lane whose handler has found nothing the last time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unclaimed {
    lines: u32,
    /// When the domain may be told of a line that others share, in ns.
    next_ns: u64,
}

impl Unclaimed {
    /// What to do about interrupt `n`, below 32, whose handler has returned `value` at `now`, in ns. `wiring` is asked
    /// for if that matters.
    #[inline]
    pub fn answer(&mut self, n: usize, value: u32, wiring: impl FnOnce() -> Wiring, now: u64) -> Answer {
        let line = 1 << (n % 32);
        match value & (IRQ_HANDLED | IRQ_WAKE_THREAD) {
            IRQ_HANDLED => {
                self.lines &= !line;
                Answer::Ended { is_its: true }
            }
            0 => self.not_its(line, wiring(), now),
            _ => Answer::Domain,
        }
    }

    #[cold]
    fn not_its(&mut self, line: u32, wiring: Wiring, now: u64) -> Answer {
        let was_before = self.lines & line != 0;
        self.lines |= line;
        if !wiring.is_level || !was_before || (wiring.has_others && now < self.next_ns) {
            return Answer::Ended { is_its: false };
        }
        if wiring.has_others {
            self.next_ns = now.saturating_add(PAUSE_NS);
        }
        Answer::Domain
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Answer = Answer::Ended { is_its: true };
    const NOT_OWN: Answer = Answer::Ended { is_its: false };
    const LEVEL: Wiring = Wiring { is_level: true, has_others: false };

    fn answers(wiring: Wiring, values: &[u32]) -> [Answer; 8] {
        let mut unclaimed = Unclaimed::default();
        let mut all = [NOT_OWN; 8];
        for (answer, value) in all.iter_mut().zip(values) {
            *answer = unclaimed.answer(3, *value, || wiring, 5);
        }
        all
    }

    /// Its driver's handler only the domain runs: it hears of all but the first.
    #[test]
    fn of_another_device_on_a_line_the_domain_is_told() {
        let told = answers(LEVEL, &[0, 0, 0, 0]);
        assert_eq!(told[..4], [NOT_OWN, Answer::Domain, Answer::Domain, Answer::Domain]);
        // The card asks in between.
        let told = answers(LEVEL, &[0, 0, 1, 0, 0]);
        assert_eq!(told[..5], [NOT_OWN, Answer::Domain, OWN, NOT_OWN, Answer::Domain]);
        // Each line counts for itself.
        let mut unclaimed = Unclaimed::default();
        assert_eq!(unclaimed.answer(0, 0, || LEVEL, 0), NOT_OWN);
        assert_eq!(unclaimed.answer(31, 0, || LEVEL, 0), NOT_OWN);
        assert_eq!(unclaimed.answer(0, 0, || LEVEL, 0), Answer::Domain);
    }

    /// A line that is the card's alone fires for nothing at times. The domain would count that, and nothing else.
    #[test]
    fn what_is_for_nothing_now_and_then_is_not_told_of() {
        assert_eq!(answers(LEVEL, &[0, 1, 0, 1, 0, 1, 0, 1]), [NOT_OWN, OWN, NOT_OWN, OWN, NOT_OWN, OWN, NOT_OWN, OWN]);
        let edge = Wiring { is_level: false, has_others: false };
        assert_eq!(answers(edge, &[0; 8]), [NOT_OWN; 8]);
    }

    #[test]
    fn of_a_line_that_other_domains_share_it_is_told_rarely() {
        let wiring = || Wiring { is_level: true, has_others: true };
        let mut unclaimed = Unclaimed::default();
        let mut is_told = |now| unclaimed.answer(0, 0, wiring, now) == Answer::Domain;
        let told = (0..1_000_000_000).step_by(1_000_000).filter(|now| is_told(*now));
        assert!(told.eq((1_000_000..1_000_000_000).step_by(110_000_000)));
    }

    #[test]
    fn a_thread_that_is_to_go_on_is_the_domains() {
        for value in [2, 3] {
            assert_eq!(Unclaimed::default().answer(0, value, || panic!("nobody asks"), 0), Answer::Domain);
        }
    }
}
