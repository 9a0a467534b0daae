//! What goes wrong again and again: it is said once, and then once in a while, as long as it is the same.

use std::time::{Duration, Instant};

/// So long after it was said it is said again.
const REMINDER: Duration = Duration::from_secs(600);

/// What was said last, and when.
#[derive(Debug, Default)]
pub struct Repeated(Option<(String, Instant)>);

impl Repeated {
    /// It has gone wrong. Whether that is to be said.
    pub fn is_due(&mut self, why: &str, now: Instant) -> bool {
        let is_known = self.0.as_ref().is_some_and(|(said, at)| said == why && now < *at + REMINDER);
        if !is_known {
            self.0 = Some((why.into(), now));
        }
        !is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_wrong_each_second_is_not_said_each_second() {
        let (mut repeated, begin) = (Repeated::default(), Instant::now());
        let mut said = |why: &str, seconds: std::ops::Range<u64>| {
            seconds.filter(|second| repeated.is_due(why, begin + Duration::from_secs(*second))).collect::<Vec<u64>>()
        };
        assert_eq!(said("no configuration", 0..1500), [0, 600, 1200]);
        assert_eq!(said("another", 1500..1510), [1500]);
        assert_eq!(said("no configuration", 1510..1520), [1510]);
    }
}
