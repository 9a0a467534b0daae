//! The memory that a domain works in: its frames among those that `plugin/touched.c` saw touched, for each sample.

use anyhow::{bail, Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// How long a sample is, in seconds.
pub const SAMPLE_S: f64 = 0.09;
/// What a frame holds, in KiB.
pub const FRAME_KIB: u64 = 4;

/// What was touched between two marks: frames, for each sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window(pub Vec<Vec<u64>>);

/// Reads the plugin's file.
pub fn read(path: &Path) -> Result<Vec<Window>> {
    parse(&std::fs::read_to_string(path).with_context(|| format!("no samples at {}", path.display()))?)
}

fn parse(text: &str) -> Result<Vec<Window>> {
    let mut windows = Vec::new();
    let mut open: Option<Window> = None;
    for line in text.lines() {
        let mut words = line.split(' ');
        match (words.next(), &mut open) {
            (Some("window"), None) => open = Some(Window::default()),
            (Some("sample"), Some(window)) => {
                let frames = words.map(|word| u64::from_str_radix(word, 16)).collect::<Result<_, _>>();
                window.0.push(frames.with_context(|| format!("not a sample: `{line:.60}`"))?);
            }
            (Some("end"), Some(window)) => {
                windows.push(std::mem::take(window));
                open = None;
            }
            _ => bail!("not a line of samples: `{line:.60}`"),
        }
    }
    Ok(windows)
}

/// Frames of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// All of them.
    pub all: BTreeSet<u64>,
    /// Those that are page tables, which the MMU reads by itself.
    pub tables: BTreeSet<u64>,
}

/// Which frames are whose, from the lines `frames DOMAIN FIRST COUNT` and `tables DOMAIN FIRST COUNT` in what was
/// reported (images/src/owner.c).
pub fn owned<'a>(reports: impl Iterator<Item = &'a str>) -> BTreeMap<String, Frames> {
    let mut owned: BTreeMap<String, Frames> = BTreeMap::new();
    for report in reports {
        let words: Vec<&str> = report.split_whitespace().collect();
        let [kind @ ("frames" | "tables"), domain, first, count] = words[..] else { continue };
        let number = |word| u64::from_str_radix(word, 16);
        let (Ok(first), Ok(count)) = (number(first), number(count)) else { continue };
        let frames = owned.entry(domain.into()).or_default();
        let these = if kind == "frames" { &mut frames.all } else { &mut frames.tables };
        these.extend(first..first.saturating_add(count));
    }
    owned
}

/// What a domain worked in between two marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Working {
    /// How many of its frames each sample touched.
    pub over_time: Vec<u64>,
    /// All that any of them touched.
    pub union: BTreeSet<u64>,
}

impl Window {
    /// Of these frames.
    pub fn of(&self, frames: &BTreeSet<u64>) -> Working {
        let mut working = Working::default();
        for sample in &self.0 {
            let own = sample.iter().filter(|frame| frames.contains(frame)).copied().collect::<BTreeSet<_>>();
            working.over_time.push(own.len() as u64);
            working.union.extend(own);
        }
        working
    }
}

impl Working {
    /// The median sample, in KiB; of an even number the lower one of the two in the middle.
    pub fn median_kib(&self) -> u64 {
        median(self.over_time.clone()) * FRAME_KIB
    }

    /// In how many samples it touched anything at all.
    pub fn awake(&self) -> usize {
        self.over_time.iter().filter(|frames| **frames != 0).count()
    }

    /// The median of those, in KiB.
    pub fn awake_median_kib(&self) -> u64 {
        median(self.over_time.iter().filter(|frames| **frames != 0).copied().collect()) * FRAME_KIB
    }

    /// The mean of all samples, in KiB.
    pub fn mean_kib(&self) -> u64 {
        let sum: u64 = self.over_time.iter().sum();
        sum * FRAME_KIB / (self.over_time.len() as u64).max(1)
    }

    /// The largest sample, in KiB.
    pub fn largest_kib(&self) -> u64 {
        self.over_time.iter().max().copied().unwrap_or(0) * FRAME_KIB
    }

    /// All that was touched, in KiB.
    pub fn union_kib(&self) -> u64 {
        self.union.len() as u64 * FRAME_KIB
    }

    /// Seconds since the beginning, at the middle of each sample, and KiB.
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    pub fn line(&self) -> Vec<(f64, f64)> {
        let at = |n: usize| (n as f64 + 0.5) * SAMPLE_S;
        self.over_time.iter().enumerate().map(|(n, frames)| (at(n), (frames * FRAME_KIB) as f64)).collect()
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNED: [&str; 5] =
        ["frames a 10 4", "frames a 100 1", "frames b 14 2", "tables a 12 2", "load a/read units=10 more"];

    #[test]
    fn a_domain_works_in_its_own_frames_of_each_sample() {
        let windows =
            parse("window\nsample 10 14 ff\nsample 100 10 13\nsample\nsample 11\nend\nwindow\nend\n").unwrap();
        assert_eq!(windows.len(), 2);
        let owned = owned(OWNED.into_iter());
        let a = windows[0].of(&owned["a"].all);
        assert_eq!(a.over_time, [1, 3, 0, 1]);
        assert_eq!(a.union, BTreeSet::from([0x10, 0x11, 0x13, 0x100]));
        assert_eq!((a.median_kib(), a.mean_kib(), a.largest_kib(), a.union_kib()), (4, 5, 12, 16));
        let idle = Working { over_time: vec![0, 0, 3, 0, 7, 0, 5], union: BTreeSet::new() };
        assert_eq!((idle.median_kib(), idle.awake(), idle.awake_median_kib()), (0, 3, 20));
        let line = a.line();
        assert_eq!(line.len(), 4);
        assert!((line[1].0 - 0.135).abs() < 1e-9 && line[1].1 == 12.0, "{line:?}");
        let b = windows[0].of(&owned["b"].all);
        assert_eq!((b.over_time, b.union), (vec![1, 0, 0, 0], BTreeSet::from([0x14])));
        assert_eq!(windows[1].of(&owned["a"].all).median_kib(), 0);
    }

    #[test]
    fn page_tables_are_told_apart() {
        let owned = owned(OWNED.into_iter());
        assert_eq!(owned["a"].tables, BTreeSet::from([0x12, 0x13]));
        assert_eq!(owned["a"].all.len(), 5);
        assert!(owned["b"].tables.is_empty());
        assert_eq!(owned.len(), 2);
    }

    #[test]
    fn what_is_no_sample_is_an_error() {
        assert!(parse("sample 1\n").is_err());
        assert!(parse("window\nsample 1 x\nend\n").is_err());
        assert!(parse("window\nwindow\n").is_err());
        assert_eq!(parse("window\nsample 1\n").unwrap(), [], "QEMU's end cut it off");
    }
}
