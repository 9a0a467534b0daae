//! From marks to figures: what one operation, or one phase of a boot, costs.

use crate::marks::{Count, Marks};
use anyhow::{ensure, Context, Result};

/// Mark before the operations of a window, and after them (images/src/lmb.c).
const START: u8 = 2;
const STOP: u8 = 3;

/// A row of the latency set as the guest announced it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The operation's name.
    pub name: String,
    /// Operations in a window.
    pub operations: u64,
    /// Windows.
    pub rounds: usize,
}

/// Instructions per operation: the median window, and half the distance of the extremes in per cent of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// The operation's name.
    pub name: String,
    /// Instructions per operation.
    pub instructions: f64,
    /// Those executed in the hypervisor's part of the address space.
    pub in_hypervisor: f64,
    /// Half spread in per cent.
    pub spread: f64,
}

/// Reads the guest's `NAME n=N rounds=R`.
pub fn announced(report: &str) -> Option<Announced> {
    let mut words = report.split_whitespace();
    let name = words.next()?.to_string();
    let operations = words.next()?.strip_prefix("n=")?.parse().ok()?;
    let rounds = words.next()?.strip_prefix("rounds=")?.parse().ok()?;
    Some(Announced { name, operations, rounds })
}

/// Matches the windows of `marks` with the rows, both in the order in which they were made.
pub fn costs(rows: &[Announced], marks: &Marks) -> Result<Vec<Cost>> {
    let mut windows = Vec::new();
    let mut start: Option<Count> = None;
    for (number, count) in &marks.0 {
        match *number {
            START => start = Some(*count),
            STOP => windows.push(count.since(&start.take().context("a window ends that never began")?)),
            _ => {}
        }
    }
    let wanted: usize = rows.iter().map(|r| r.rounds).sum();
    ensure!(wanted == windows.len(), "{} windows were counted, {wanted} announced", windows.len());
    let mut windows = windows.into_iter();
    Ok(rows.iter().map(|row| cost(row, windows.by_ref().take(row.rounds).collect())).collect())
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn cost(row: &Announced, mut windows: Vec<Count>) -> Cost {
    windows.sort_by_key(Count::total);
    let per_operation = |n: u64| n as f64 / row.operations.max(1) as f64;
    let middle = windows.get(windows.len() / 2).copied().unwrap_or_default();
    let total = |c: Option<&Count>| c.map_or(0, Count::total);
    let distance = total(windows.last()) - total(windows.first());
    Cost {
        name: row.name.clone(),
        instructions: per_operation(middle.total()),
        in_hypervisor: per_operation(middle.hypervisor),
        spread: 50.0 * distance as f64 / middle.total().max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_matched_with_rows_and_the_median_is_taken() {
        let rows = [announced("getppid n=10 rounds=3").unwrap(), announced("fork n=2 rounds=1").unwrap()];
        let marks = Marks::parse(
            "1 0 0 0\n2 0 0 0\n3 50 50 0\n2 100 50 0\n3 200 150 0\n2 200 150 0\n3 300 160 0\n2 300 160 0\n3 300 160 80\n",
        )
        .unwrap();
        let costs = costs(&rows, &marks).unwrap();
        assert_eq!((costs[0].name.as_str(), costs[0].instructions, costs[0].in_hypervisor), ("getppid", 11.0, 1.0));
        assert!((costs[0].spread - 50.0 * 100.0 / 110.0).abs() < 1e-9);
        assert_eq!(costs[1].instructions, 40.0);
    }

    #[test]
    fn a_missing_window_is_an_error() {
        let rows = [announced("getppid n=10 rounds=2").unwrap()];
        assert!(costs(&rows, &Marks::parse("2 0 0 0\n3 1 1 1\n").unwrap()).is_err());
        assert!(costs(&rows, &Marks::parse("3 0 0 0\n").unwrap()).is_err());
        assert_eq!(announced("getppid rounds=2"), None);
    }
}
