//! What the host gave to others meanwhile: a host that is itself a guest may stand still for longer than a test allows
//! for.

use std::fs::read_to_string;

/// Fields of a line of `/proc/stat` that add up to all time: user, nice, system, idle, iowait, irq, softirq, steal.
/// Guests' is in user's.
const FIELDS: usize = 8;
/// A share from which on it is worth a word.
const NOTABLE_PERCENT: u64 = 2;

/// Ticks of all of the host's CPUs since it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    /// Those so far. `None` if the host does not say.
    pub fn now() -> Option<Self> {
        Self::parse(&read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let fields = stat.lines().find_map(|line| line.strip_prefix("cpu "))?.split_whitespace().take(FIELDS);
        let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { all: ticks.iter().sum(), stolen: *ticks.get(FIELDS - 1)? })
    }

    /// In words, if others had much of the time since `before`.
    pub fn stolen_since(self, before: Self) -> Option<String> {
        let (all, stolen) = (self.all.checked_sub(before.all)?, self.stolen.checked_sub(before.stolen)?);
        let percent = (stolen * 100).checked_div(all)?;
        (percent >= NOTABLE_PERCENT).then(|| format!("others had {percent} % of this host's time meanwhile"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_had_is_told_if_it_is_much() {
        let before = Ticks::parse("cpu  100 0 50 800 10 5 5 30 7 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n").unwrap();
        assert_eq!(before, Ticks { all: 1000, stolen: 30 });
        let after = |stolen| Ticks { all: 2000, stolen };
        assert_eq!(after(49).stolen_since(before), None);
        assert_eq!(after(80).stolen_since(before).unwrap(), "others had 5 % of this host's time meanwhile");
        assert_eq!(before.stolen_since(before), None);
        assert_eq!(before.stolen_since(after(30)), None);
    }

    #[test]
    fn what_is_no_such_file_says_nothing() {
        for text in ["", "cpu0 1 2 3 4 5 6 7 8\n", "cpu  1 2 3\n", "cpu  1 2 3 4 x 6 7 8\n"] {
            assert_eq!(Ticks::parse(text), None, "{text:?}");
        }
    }
}
