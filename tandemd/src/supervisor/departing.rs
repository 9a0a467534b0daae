//! Whether all domains are being ended, as it is asked for a driver domain.

use crate::departure::{Answer, Asker, AT_ONCE};
use std::time::Duration;

/// So often is asked whether all domains are being ended still, or what was not known.
const AGAIN: Duration = Duration::from_millis(500);
/// Who asks again does not wait for longer.
const A_MOMENT: Duration = Duration::from_millis(100);

/// What was asked, and said.
pub struct Departing {
    asker: Asker,
    /// For which domain that was shut down it was asked, when, and the answer.
    told: Option<(Option<u16>, Duration, Answer)>,
}

impl Departing {
    /// Nothing was asked yet.
    pub const fn new() -> Self {
        Self { asker: Asker::new(), told: None }
    }

    /// Of a domain that was shut down that is asked until it is known; who waits until it is over asks now and then.
    pub fn are_all_ended(&mut self, domain: Option<u16>, now: Duration) -> Answer {
        let Self { asker, told } = self;
        answer(told, domain, now, |patience| asker.ask(patience))
    }
}

fn answer(
    told: &mut Option<(Option<u16>, Duration, Answer)>,
    domain: Option<u16>,
    now: Duration,
    ask: impl FnOnce(Duration) -> Answer,
) -> Answer {
    let before = told.filter(|(of, ..)| *of == domain);
    if let Some((_, at, said)) = before {
        let is_settled = domain.is_some() && said != Answer::Unknown;
        if is_settled || now < at + AGAIN {
            return said;
        }
    }
    let said = ask(if domain.is_some() && before.is_none() { AT_ONCE } else { A_MOMENT });
    *told = Some((domain, now, said));
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_asked_again() {
        let mut told = None;
        let mut at = |ms: u64, domain: Option<u16>, says: Option<Answer>| {
            let mut patience = None;
            let said = answer(&mut told, domain, Duration::from_millis(ms), |for_long| {
                patience = Some(for_long);
                says.expect("nobody asks now")
            });
            (said, patience)
        };
        assert_eq!(at(0, Some(7), Some(Answer::Unknown)), (Answer::Unknown, Some(AT_ONCE)));
        assert_eq!(at(499, Some(7), None), (Answer::Unknown, None));
        assert_eq!(at(500, Some(7), Some(Answer::Unknown)), (Answer::Unknown, Some(A_MOMENT)));
        assert_eq!(at(1000, Some(7), Some(Answer::Yes)), (Answer::Yes, Some(A_MOMENT)));
        assert_eq!(at(9000, Some(7), None), (Answer::Yes, None), "it does not change");
        // Whether it is over.
        assert_eq!(at(9001, None, Some(Answer::Yes)), (Answer::Yes, Some(A_MOMENT)));
        assert_eq!(at(9501, None, Some(Answer::No)), (Answer::No, Some(A_MOMENT)));
        assert_eq!(at(9502, Some(8), Some(Answer::No)), (Answer::No, Some(AT_ONCE)), "of another one nothing is known");
    }
}
