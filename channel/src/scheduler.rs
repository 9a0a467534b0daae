//! Whose turn it is to send: round robin, by bytes, among queues that have something to send and the credit for it.
//!
//! A turn is worth [`QUANTUM`] bytes; what a packet takes beyond it is missing in the next turn (deficit round robin), so
//! queues that always have something send the same number of bytes whatever the lengths of their packets.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a turn: the longest packet, so that every turn sends something.
pub const QUANTUM: i64 = 65536;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Ready,
    /// Has no credit until this time (ns).
    Waiting(u64),
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    state: State,
    /// Bytes that it may still send in its turn; negative: owed.
    left: i64,
}

/// The turns of queues `0..n`.
#[derive(Debug)]
pub struct Scheduler {
    queues: Box<[Queue]>,
    /// Whose turn it is.
    current: usize,
    /// It has begun.
    has_begun: bool,
}

impl Scheduler {
    /// For `n` queues, all idle. `None`: no memory.
    pub fn new(n: usize) -> Option<Scheduler> {
        let mut queues = Vec::new();
        queues.try_reserve_exact(n).ok()?;
        queues.extend(core::iter::repeat_n(Queue { state: State::Idle, left: 0 }, n));
        Some(Scheduler { queues: queues.into_boxed_slice(), current: 0, has_begun: false })
    }

    /// Queue `q` may have something to send. Does nothing if it waits for credit.
    #[inline]
    pub fn wake(&mut self, q: usize) {
        if let Some(queue) = self.queues.get_mut(q) {
            if queue.state == State::Idle {
                queue.state = State::Ready;
            }
        }
    }

    /// The queue whose turn it is. It keeps the turn until it has sent enough, is idle or has no credit.
    #[inline]
    pub fn turn(&mut self) -> Option<usize> {
        let n = self.queues.len();
        if self.has_begun {
            if self.is_on() {
                return Some(self.current);
            }
            self.current = (self.current + 1) % n;
            self.has_begun = false;
        }
        // Two rounds: a queue that owes more than a turn is worth is passed over once. It cannot owe two: see QUANTUM.
        for _ in 0..2 * n {
            let queue = &mut self.queues[self.current];
            if queue.state == State::Ready {
                queue.left += QUANTUM;
                if queue.left > 0 {
                    self.has_begun = true;
                    return Some(self.current);
                }
            }
            self.current = (self.current + 1) % n;
        }
        None
    }

    fn is_on(&self) -> bool {
        self.queues.get(self.current).is_some_and(|q| q.state == State::Ready && q.left > 0)
    }

    /// Queue `q` has sent a packet.
    #[inline]
    pub fn sent(&mut self, q: usize, bytes: u32) {
        if let Some(queue) = self.queues.get_mut(q) {
            queue.left -= i64::from(bytes);
        }
    }

    /// Queue `q` has nothing to send. What is left of its turn is lost, what it owes is not.
    #[inline]
    pub fn idle(&mut self, q: usize) {
        self.stop(q, State::Idle);
    }

    /// Queue `q` has no credit until `until` (ns).
    pub fn wait(&mut self, q: usize, until: u64) {
        self.stop(q, State::Waiting(until));
    }

    fn stop(&mut self, q: usize, state: State) {
        if let Some(queue) = self.queues.get_mut(q) {
            *queue = Queue { state, left: queue.left.min(0) };
        }
    }

    /// Ends the waits that are over at `now` (ns). Returns when the next one is.
    pub fn tick(&mut self, now: u64) -> Option<u64> {
        let mut next = None;
        for queue in &mut self.queues {
            match queue.state {
                State::Waiting(until) if until <= now => queue.state = State::Ready,
                State::Waiting(until) => next = Some(next.map_or(until, |n: u64| n.min(until))),
                _ => {}
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    #[test]
    fn nobody_is_served_who_has_nothing() {
        let mut s = Scheduler::new(3).unwrap();
        assert_eq!(s.turn(), None);
        s.wake(1);
        s.wake(7);
        assert_eq!((s.turn(), s.turn()), (Some(1), Some(1)));
        s.idle(1);
        assert_eq!(s.turn(), None);
        assert_eq!(Scheduler::new(0).unwrap().turn(), None);
    }

    #[test]
    fn a_queue_without_credit_waits_whatever_it_is_told() {
        let mut s = Scheduler::new(2).unwrap();
        s.wake(0);
        s.wait(0, 100);
        s.wake(0);
        assert_eq!((s.turn(), s.tick(99), s.turn()), (None, Some(100), None));
        assert_eq!((s.tick(100), s.turn()), (None, Some(0)));
    }

    proptest! {
        /// Queues that always have something send as much, but for a turn and a packet.
        #[test]
        fn shares_are_equal(sizes in prop::collection::vec(60u32..65536, 2..6), turns in 1000usize..3000) {
            let mut s = Scheduler::new(sizes.len()).unwrap();
            let mut sent = vec![0i64; sizes.len()];
            (0..sizes.len()).for_each(|q| s.wake(q));
            for _ in 0..turns {
                let q = s.turn().unwrap();
                s.sent(q, sizes[q]);
                sent[q] += i64::from(sizes[q]);
            }
            let (min, max) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
            prop_assert!(max - min <= 2 * QUANTUM, "{:?}", sent);
        }

        /// One that comes and goes gets no more than the others for it.
        #[test]
        fn napping_does_not_pay(naps in prop::collection::vec(1u32..40, 50..200)) {
            let mut s = Scheduler::new(2).unwrap();
            let mut sent = [0i64; 2];
            let mut naps = naps.into_iter().cycle();
            let mut until_nap = naps.next().unwrap();
            for _ in 0..5000 {
                s.wake(0);
                s.wake(1);
                let q = s.turn().unwrap();
                let size = [1500u32, 60000][q];
                s.sent(q, size);
                sent[q] += i64::from(size);
                if q == 1 {
                    until_nap -= 1;
                    if until_nap == 0 {
                        s.idle(1);
                        until_nap = naps.next().unwrap();
                    }
                }
            }
            prop_assert!(sent[1] <= sent[0] + 2 * QUANTUM, "{:?}", sent);
        }
    }
}
