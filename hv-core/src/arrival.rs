//! A CPU that is started either comes up, or is given up before: never both. One that comes late must not take part, as
//! all others go on without it.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{AcqRel, Acquire};

const AWAITED: u8 = 0;
const CAME: u8 = 1;
const GIVEN_UP: u8 = 2;

/// What became of one CPU.
pub struct Arrival(AtomicU8);

impl Arrival {
    /// It is awaited.
    pub const fn new() -> Self {
        Self(AtomicU8::new(AWAITED))
    }

    /// The CPU itself has come. `false`: too late.
    pub fn come(&self) -> bool {
        self.decide(CAME)
    }

    /// It is awaited no longer. `false`: it has come.
    pub fn give_up(&self) -> bool {
        self.decide(GIVEN_UP)
    }

    fn decide(&self, what: u8) -> bool {
        self.0.compare_exchange(AWAITED, what, AcqRel, Acquire).is_ok()
    }
}

impl Default for Arrival {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::Arrival;
    use std::thread;

    #[test]
    fn who_was_given_up_comes_too_late_and_who_has_come_is_not_given_up() {
        let arrival = Arrival::default();
        assert!(arrival.give_up());
        assert!(!arrival.come());
        let arrival = Arrival::new();
        assert!(arrival.come());
        assert!(!arrival.give_up());
    }

    #[test]
    fn both_never_happen() {
        for _ in 0..200 {
            let arrival = Arrival::new();
            let (came, given_up) = thread::scope(|s| {
                let came = s.spawn(|| arrival.come());
                let given_up = arrival.give_up();
                (came.join().unwrap(), given_up)
            });
            assert_ne!(came, given_up);
        }
    }
}
