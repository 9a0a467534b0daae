//! Taking a unit's records of faults (VT-d specification, chapter 7): the unit interrupts when the first of them is
//! filled, and not again before all are empty.

use super::decode_fault;
use crate::iommu::Fault;

/// Looks at all records before others get their turn.
const ROUNDS: u32 = 64;

/// A unit's records.
pub trait Records {
    /// How many there are.
    fn count(&self) -> usize;
    /// Reads record `n`.
    fn read(&self, n: usize) -> [u64; 2];
    /// Empties record `n`.
    fn empty(&self, n: usize);
    /// Forgets that there were more faults than records, if there were.
    fn forget_overflow(&self);
    /// Is a record full?
    fn is_pending(&self) -> bool;
}

/// What a look at the records led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Taken {
    /// All are empty: the unit interrupts at the next fault.
    All,
    /// They are filled as fast as they are emptied. The unit does not interrupt: somebody has to look again.
    NotAll,
}

/// Tells of the accesses that were stopped since the last time, those included that are stopped meanwhile.
pub fn take(records: &impl Records, mut tell: impl FnMut(Fault)) -> Taken {
    for _ in 0..ROUNDS {
        for n in 0..records.count() {
            if let Some(fault) = decode_fault(records.read(n)) {
                records.empty(n);
                tell(fault);
            }
        }
        records.forget_overflow();
        if !records.is_pending() {
            return Taken::All;
        }
    }
    Taken::NotAll
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::vec::Vec;

    /// Four records; whenever the last one is looked at, the first is filled again, as often as is left.
    struct Unit {
        full: RefCell<[bool; 4]>,
        left: Cell<u32>,
    }

    impl Records for Unit {
        fn count(&self) -> usize {
            4
        }
        fn read(&self, n: usize) -> [u64; 2] {
            if n == 3 && self.left.get() > 0 {
                self.left.set(self.left.get() - 1);
                self.full.borrow_mut()[0] = true;
            }
            [0x1000 * n as u64, u64::from(self.full.borrow()[n]) << 63]
        }
        fn empty(&self, n: usize) {
            assert!(
                self.full.replace_with(|full| {
                    let mut now = *full;
                    now[n] = false;
                    now
                })[n],
                "{n} is empty"
            );
        }
        fn forget_overflow(&self) {}
        fn is_pending(&self) -> bool {
            self.full.borrow().contains(&true)
        }
    }

    fn take_from(full: [bool; 4], left: u32) -> (Taken, Vec<u64>, Unit) {
        let unit = Unit { full: RefCell::new(full), left: Cell::new(left) };
        let mut told = Vec::new();
        let taken = take(&unit, |fault| told.push(fault.addr));
        (taken, told, unit)
    }

    #[test]
    fn records_that_are_filled_behind_the_look_are_taken_too() {
        let (taken, told, unit) = take_from([false, true, false, true], 0);
        assert_eq!((taken, told.as_slice(), unit.is_pending()), (Taken::All, &[0x1000, 0x3000][..], false));
        let (taken, told, unit) = take_from([false, true, false, false], 2);
        assert_eq!((taken, told.as_slice(), unit.is_pending()), (Taken::All, &[0x1000, 0, 0][..], false));
    }

    #[test]
    fn a_flood_is_left_for_later() {
        let (taken, told, _) = take_from([true; 4], u32::MAX);
        assert_eq!(taken, Taken::NotAll);
        assert!(told.len() < 1000, "{} faults in one go", told.len());
    }
}
