//! Turns at a lock: whoever asks first is served first, so nobody keeps others away by asking again and again.

use core::sync::atomic::{AtomicU16, Ordering};

/// The turns of one lock. There are far fewer CPUs than tickets.
#[derive(Debug, Default)]
pub struct Tickets {
    /// The ticket that has the lock, or will have it first.
    served: AtomicU16,
    /// The one that is given next.
    next: AtomicU16,
}

impl Tickets {
    /// The lock is free.
    pub const fn new() -> Self {
        Self { served: AtomicU16::new(0), next: AtomicU16::new(0) }
    }

    /// Takes a ticket, and waits until it is served; `relax` is called as long as it is not.
    #[inline]
    pub fn wait(&self, relax: impl FnMut()) {
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        if self.served.load(Ordering::Acquire) != ticket {
            self.wait_for(ticket, relax);
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_for(&self, ticket: u16, mut relax: impl FnMut()) {
        while self.served.load(Ordering::Acquire) != ticket {
            relax();
        }
    }

    /// Serves the next one. For who has been served.
    #[inline]
    pub fn done(&self) {
        // Only who has the lock changes it.
        self.served.store(self.served.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::thread;
    use std::time::Duration;
    use std::vec::Vec;

    /// Those who wait come in the order in which they began to, and who asks again comes after them.
    #[test]
    fn who_asks_first_is_served_first() {
        for start in [0, u16::MAX - 3] {
            let tickets = Tickets { served: AtomicU16::new(start), next: AtomicU16::new(start) };
            let order = Mutex::new(Vec::new());
            let turn = |who: u16| {
                tickets.wait(|| thread::sleep(Duration::from_micros(50)));
                order.lock().unwrap().push(who);
                tickets.done();
            };
            tickets.wait(|| panic!("it is free"));
            thread::scope(|scope| {
                for who in 0..8u16 {
                    scope.spawn(move || turn(who));
                    let expected = start.wrapping_add(2 + who);
                    while tickets.next.load(Ordering::Relaxed) != expected {
                        thread::yield_now();
                    }
                }
                tickets.done();
                turn(99);
            });
            assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7, 99]);
        }
    }
}
