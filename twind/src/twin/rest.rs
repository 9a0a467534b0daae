//! When what has failed is tried again: more and more rarely as long as the reason is the same, and at once when there
//! is news.

use std::time::{Duration, Instant};

/// From a try to the next one, after the first failure and at most.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// The time between two tries. To begin with there is none.
#[derive(Debug, Default)]
pub struct Rest {
    why: String,
    len: Duration,
    until: Option<Instant>,
    /// What the module's count of news was before the try that failed.
    news: u32,
}

impl Rest {
    /// It may be tried (again).
    pub fn is_over(&self, news: u32, now: Instant) -> bool {
        news != self.news || self.until.is_none_or(|until| now >= until)
    }

    /// It has failed.
    pub fn failed(&mut self, why: &str, news: u32, now: Instant) {
        let is_same = self.why == why && self.news == news;
        self.len = if is_same { (self.len * 2).clamp(SHORTEST, LONGEST) } else { SHORTEST };
        (self.why, self.news, self.until) = (why.into(), news, Some(now + self.len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_and_again_is_tried_more_rarely_until_there_is_news() {
        let (mut rest, mut now) = (Rest::default(), Instant::now());
        assert!(rest.is_over(0, now) && rest.is_over(7, now));
        let mut failed = |why, news| {
            rest.failed(why, news, now);
            let first = (0..60).find(|s| rest.is_over(news, now + Duration::from_secs(*s)));
            assert!(rest.is_over(news + 1, now), "there is news");
            now += Duration::from_secs(first.unwrap());
            first.unwrap()
        };
        let all = [0; 7].map(|_| failed("too long", 3));
        assert_eq!(all, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!([failed("another reason", 3), failed("another reason", 3), failed("another reason", 4)], [1, 2, 1]);
    }
}
