//! How long tests took, by level, and which took longest: where the time of a run goes.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

/// So many of the longest are named.
const NAMED: usize = 8;

/// Seconds of tests. Where several ran side by side they add up to more than passed.
#[derive(Default)]
pub struct Took {
    /// Of each level how many there were, and their seconds.
    levels: BTreeMap<&'static str, (usize, f32)>,
    tests: Vec<(String, f32)>,
}

impl Took {
    pub fn note(&mut self, level: &'static str, name: &str, seconds: f32) {
        let (count, sum) = self.levels.entry(level).or_default();
        *count += 1;
        *sum += seconds;
        self.tests.push((name.into(), seconds));
    }
}

impl Display for Took {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let levels = self.levels.iter().map(|(level, (count, seconds))| format!("{count} of {level} {seconds:.0} s"));
        write!(f, "{}", levels.collect::<Vec<_>>().join(", "))?;
        let mut longest: Vec<_> = self.tests.iter().collect();
        longest.sort_by(|a, b| b.1.total_cmp(&a.1));
        let longest = longest.iter().take(NAMED).map(|(name, seconds)| format!("{name} {seconds:.0} s"));
        write!(f, "; the longest: {}", longest.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_summed_up_and_the_longest_named_first() {
        let mut took = Took::default();
        for (level, name, seconds) in [("xl", "b", 20.4), ("guests", "a", 1.0), ("xl", "c", 200.2)] {
            took.note(level, name, seconds);
        }
        assert_eq!(took.to_string(), "1 of guests 1 s, 2 of xl 221 s; the longest: c 200 s, b 20 s, a 1 s");
    }

    #[test]
    fn of_many_only_the_longest_are_named() {
        let mut took = Took::default();
        for n in 0..100_u8 {
            took.note("guests", &format!("test-{n}"), f32::from(n));
        }
        let said = took.to_string();
        assert!(said.contains("test-99") && said.contains("test-92") && !said.contains("test-91"), "{said}");
    }
}
