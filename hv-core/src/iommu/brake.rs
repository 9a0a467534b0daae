//! The brake: a device that goes on trying what the IOMMU stops is switched off, and nobody else is.
//!
//! Each fault costs an interrupt and a look at the unit's registers, and the faults of a device can be as many as its
//! accesses to memory. So they are counted for each function, in windows of a second. A function beyond the limit is no
//! longer bus master: what its owner does about that is [`crate::passthrough`]'s to say. One that goes on nevertheless,
//! for it takes no notice of that bit, is not reported any more.
//!
//! A device can also name a function that there is not: PCI Express lets it, if it offers that (phantom functions), and
//! a broken one may at any time. That counts for a function that the device has ([`Brake::function_of`]). What names no
//! device that is known counts together, and is not reported any more when it is too much.

use crate::pcicfg::Sbdf;
use crate::rate::Rate;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;

/// Length of the window in which faults are counted.
const WINDOW_NS: u64 = 1_000_000_000;
/// Lines on the console per window.
const LINES: u32 = 10;
/// More faults of a function in a window are no accident.
pub const TOO_MANY: u32 = 1000;

/// What is to be done about a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// It is said on the console.
    pub is_said: bool,
    /// So many of the window before were not said.
    pub unsaid: u32,
    /// What becomes of the function.
    pub action: Action,
}

/// What becomes of a function that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Nothing.
    None,
    /// It must not be bus master.
    Stop,
    /// And as that did not help: its faults are not reported any more.
    Silence,
}

/// Faults of all functions.
#[derive(Debug)]
pub struct Brake {
    lines: Rate,
    /// In this window. There is a place for each function from the start on: a fault is no time to ask for memory.
    counts: Vec<(Sbdf, u32)>,
    /// In this window, under names of devices that are not known.
    strangers: u32,
}

impl Brake {
    /// No faults yet of any of `functions`.
    pub fn new(functions: impl Iterator<Item = Sbdf>) -> Self {
        let counts: BinaryHeap<_> = functions.map(|at| (at, 0)).collect();
        let counts = counts.into_sorted_vec();
        Self { lines: Rate::new(LINES, WINDOW_NS), counts, strangers: 0 }
    }

    /// A function appeared.
    pub fn add(&mut self, at: Sbdf) {
        if let Err(place) = self.place(at) {
            self.counts.insert(place, (at, 0));
        }
    }

    fn place(&self, at: Sbdf) -> Result<usize, usize> {
        self.counts.binary_search_by_key(&at, |(at, _)| *at)
    }

    /// The function that accesses memory by the name `source`: the one of this number; or, if there is none, one of the
    /// same device, whose phantom it may be: those differ from their function in the upper bits of its number, in one,
    /// two or all three (PCI Express 4.0, 6.8 and 7.5.3.3). If nothing is known of the device it is `source` itself.
    pub fn function_of(&self, source: Sbdf) -> Sbdf {
        const FUNCTION: u8 = 7;
        let of_same = |function| Sbdf { devfn: source.devfn & !FUNCTION | function, ..source };
        let masked = [7, 3, 1, 0].map(|mask| source.devfn & mask);
        let mut likely = masked.into_iter().chain(0..=FUNCTION).map(of_same);
        likely.find(|at| self.place(*at).is_ok()).unwrap_or(source)
    }

    /// An access of the function at `at` was stopped.
    pub fn fault(&mut self, at: Sbdf, now_ns: u64) -> Judgement {
        let judgement = self.event(now_ns);
        let known = self.place(at).ok().and_then(|n| self.counts.get_mut(n));
        let count = known.map_or(&mut self.strangers, |(_, count)| count);
        *count = count.saturating_add(1);
        let count = *count;
        let action = match count {
            0..=TOO_MANY => Action::None,
            _ if count <= 2 * TOO_MANY => Action::Stop,
            _ => Action::Silence,
        };
        Judgement { action, ..judgement }
    }

    /// The unit reports something else.
    pub fn event(&mut self, now_ns: u64) -> Judgement {
        let turn = self.lines.count(now_ns);
        if turn.is_first {
            self.counts.iter_mut().for_each(|(_, count)| *count = 0);
            self.strangers = 0;
        }
        Judgement { is_said: turn.is_said, unsaid: turn.unsaid, action: Action::None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: Sbdf = Sbdf::new(0, 0, 3 << 3);
    const GOOD: Sbdf = Sbdf::new(0, 0, 4 << 3);
    const UNKNOWN: Sbdf = Sbdf::new(0, 7, 0);

    fn brake() -> Brake {
        Brake::new([GOOD, BAD].into_iter())
    }

    #[test]
    fn who_floods_is_stopped_and_not_who_comes_last() {
        let mut b = brake();
        for n in 0..TOO_MANY {
            assert_eq!(b.fault(BAD, 5 + u64::from(n)).action, Action::None, "{n}");
        }
        assert_eq!(b.fault(GOOD, 2000).action, Action::None, "one fault, though the thousandth");
        assert_eq!(b.fault(BAD, 2001).action, Action::Stop);
        assert_eq!(b.fault(GOOD, 2002).action, Action::None);
    }

    #[test]
    fn it_is_stopped_each_time_until_it_is_not_heard_any_more() {
        let mut b = brake();
        let actions: Vec<_> = (0..3 * TOO_MANY).map(|n| b.fault(BAD, n.into()).action).collect();
        assert!(actions.is_sorted());
        let count = |action| actions.iter().filter(|a| **a == action).count();
        assert_eq!([Action::None, Action::Stop, Action::Silence].map(count), [TOO_MANY as usize; 3]);
    }

    #[test]
    fn each_second_is_a_new_one() {
        let mut b = brake();
        for second in 1..4u64 {
            let now = second * 2 * WINDOW_NS;
            let last = (0..=TOO_MANY).map(|_| b.fault(BAD, now)).last().unwrap();
            assert_eq!((last.action, last.is_said), (Action::Stop, false), "in second {second}");
        }
        let first = b.fault(BAD, 20 * WINDOW_NS);
        assert_eq!(first, Judgement { is_said: true, unsaid: TOO_MANY + 1 - LINES, action: Action::None });
    }

    #[test]
    fn a_phantom_counts_for_a_function_of_its_device() {
        let mut b = brake();
        let named = |function: u8| Sbdf::new(0, 0, 3 << 3 | function);
        assert!((0..8).all(|devfn| b.function_of(named(devfn)) == BAD), "it has one function");
        assert_eq!((b.function_of(GOOD), b.function_of(UNKNOWN)), (GOOD, UNKNOWN));
        b.add(named(1));
        assert_eq!([2, 3, 4, 5, 6, 7].map(|devfn| b.function_of(named(devfn)).devfn & 7), [0, 1, 0, 1, 0, 1]);
        b.add(named(3));
        assert_eq!([2, 4, 5, 6, 7].map(|devfn| b.function_of(named(devfn)).devfn & 7), [0, 0, 1, 0, 3]);
        let mut only = Brake::new([Sbdf::new(0, 2, 5)].into_iter());
        assert_eq!(only.function_of(Sbdf::new(0, 2, 2)), Sbdf::new(0, 2, 5), "no phantom of any");
        // Under all its names together it is too much.
        let of = only.function_of(Sbdf::new(0, 2, 2));
        let last = (0..=TOO_MANY).map(|_| only.fault(of, 1).action).last();
        assert_eq!(last, Some(Action::Stop));
    }

    #[test]
    fn what_nobody_knows_is_not_heard_any_more_when_it_is_too_much() {
        let mut b = brake();
        let actions: Vec<_> = (0..3 * TOO_MANY).map(|_| b.fault(UNKNOWN, 1).action).collect();
        assert_eq!((actions.first(), actions.last()), (Some(&Action::None), Some(&Action::Silence)));
        assert_eq!(b.fault(BAD, 1).action, Action::None, "which is not for those that are known");
        assert_eq!(b.fault(UNKNOWN, 9 * WINDOW_NS).action, Action::None, "a new second");
        b.add(UNKNOWN);
        b.add(UNKNOWN);
        assert_eq!((0..=TOO_MANY).map(|_| b.fault(UNKNOWN, 9 * WINDOW_NS).action).last(), Some(Action::Stop));
        assert_eq!(
            (0..20).filter(|_| b.event(19 * WINDOW_NS).is_said).count(),
            LINES as usize,
            "other events are lines, too"
        );
    }
}
