//! The counting plugin's output: how many instructions had been executed at each mark.

use anyhow::{Context, Result};
use std::path::Path;

/// The mark at QEMU's end.
pub const END: u8 = 255;

/// Instructions executed so far, by the address of the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// User space, and everything before paging.
    pub low: u64,
    /// The part of the address space that belongs to the hypervisor.
    pub hypervisor: u64,
    /// The rest: the kernel.
    pub kernel: u64,
}

impl Count {
    /// All instructions.
    pub fn total(&self) -> u64 {
        self.low + self.hypervisor + self.kernel
    }

    /// What was executed since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            low: self.low.saturating_sub(earlier.low),
            hypervisor: self.hypervisor.saturating_sub(earlier.hypervisor),
            kernel: self.kernel.saturating_sub(earlier.kernel),
        }
    }
}

/// All marks of a run, in order.
#[derive(Clone, Debug, Default)]
pub struct Marks(pub Vec<(u8, Count)>);

impl Marks {
    /// Reads the plugin's file.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&std::fs::read_to_string(path).with_context(|| format!("no counts at {}", path.display()))?)
    }

    /// Reads the plugin's lines. A last line that QEMU's end cut off is left out.
    pub fn parse(text: &str) -> Result<Self> {
        let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        complete.lines().map(parse_line).collect::<Result<_>>().map(Self)
    }

    /// The count at the first mark `number`.
    pub fn first(&self, number: u8) -> Option<Count> {
        self.0.iter().find(|(n, _)| *n == number).map(|(_, count)| *count)
    }
}

fn parse_line(line: &str) -> Result<(u8, Count)> {
    let mut words = line.split_whitespace();
    let mut next = || words.next().with_context(|| format!("an incomplete mark: `{line}`"));
    let number = next()?.parse().with_context(|| format!("not a mark: `{line}`"))?;
    Ok((number, Count { low: next()?.parse()?, hypervisor: next()?.parse()?, kernel: next()?.parse()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_in_order_and_a_cut_line_is_left_out() {
        let marks = Marks::parse("1 10 20 30\n2 11 22 33\n1 100 200 300\n255 5 ").unwrap();
        assert_eq!(marks.0.len(), 3);
        let first = marks.first(1).unwrap();
        assert_eq!(first.total(), 60);
        assert_eq!(marks.first(2).unwrap().since(&first), Count { low: 1, hypervisor: 2, kernel: 3 });
        assert_eq!(marks.first(END), None);
        assert!(Marks::parse("1 2\n").is_err());
    }
}
