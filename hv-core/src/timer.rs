//! One pCPU's timers: a binary heap of deadlines with a fixed place for each timer.
//!
//! A timer is a number that its owner chooses, below the capacity: the shell numbers them densely (a few per vCPU), so
//! the same number works in every pCPU's queue and a vCPU that moves takes its timers along by disarming
//! there and arming here. Arming, disarming and expiring do not allocate. All times are absolute, in ns of system time;
//! arithmetic saturates, and a deadline of `u64::MAX` never comes.

use alloc::vec;
use alloc::vec::Vec;

/// A timer's number.
pub type TimerId = u32;

/// In `TimerQueue::place`: the timer is not armed.
const NOWHERE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Armed {
    deadline: u64,
    id: TimerId,
}

/// See the module's documentation.
pub struct TimerQueue {
    heap: Vec<Armed>,
    /// Index into `heap`, by timer.
    place: Vec<u32>,
}

impl TimerQueue {
    /// Room for the timers 0 .. `capacity`.
    pub fn new(capacity: u32) -> TimerQueue {
        TimerQueue { heap: Vec::with_capacity(capacity as usize), place: vec![NOWHERE; capacity as usize] }
    }

    /// Arms a timer, or moves its deadline. `false`: there is no such timer.
    #[inline]
    pub fn arm(&mut self, id: TimerId, deadline: u64) -> bool {
        let Some(place) = self.place.get(id as usize).copied() else { return false };
        let at = if let Some(armed) = self.heap.get_mut(place as usize) {
            armed.deadline = deadline;
            place as usize
        } else {
            self.heap.push(Armed { deadline, id });
            self.heap.len() - 1
        };
        let at = self.sift_up(at);
        self.sift_down(at);
        true
    }

    /// Disarms a timer. `true` if it was armed.
    #[inline]
    pub fn disarm(&mut self, id: TimerId) -> bool {
        let Some(place) = self.place.get_mut(id as usize) else { return false };
        let at = core::mem::replace(place, NOWHERE) as usize;
        if at >= self.heap.len() {
            return false;
        }
        self.heap.swap_remove(at);
        if at < self.heap.len() {
            let at = self.sift_up(at);
            self.sift_down(at);
        }
        true
    }

    /// When a timer is due, if it is armed.
    pub fn deadline_of(&self, id: TimerId) -> Option<u64> {
        let place = *self.place.get(id as usize)?;
        self.heap.get(place as usize).map(|a| a.deadline)
    }

    /// When the first timer is due; `u64::MAX`: none is armed.
    #[inline]
    pub fn next_deadline(&self) -> u64 {
        self.heap.first().map_or(u64::MAX, |a| a.deadline)
    }

    /// Takes one timer that is due, earliest first: it is disarmed. Call until `None`.
    /// A handler that arms it again does so for a time after `now`, else this does not end.
    #[inline]
    pub fn expire(&mut self, now: u64) -> Option<(TimerId, u64)> {
        let first = *self.heap.first()?;
        if first.deadline > now || first.deadline == u64::MAX {
            return None;
        }
        self.disarm(first.id);
        Some((first.id, first.deadline))
    }

    /// Moves an entry towards the root; returns where it ends. Keeps `place` right for all that moved.
    fn sift_up(&mut self, mut at: usize) -> usize {
        let moving = self.heap[at];
        while at > 0 {
            let parent = (at - 1) / 2;
            let above = self.heap[parent];
            if above.deadline <= moving.deadline {
                break;
            }
            self.put(at, above);
            at = parent;
        }
        self.put(at, moving);
        at
    }

    fn sift_down(&mut self, mut at: usize) {
        let moving = self.heap[at];
        loop {
            let left = 2 * at + 1;
            let Some(l) = self.heap.get(left).copied() else { break };
            let (child, c) = match self.heap.get(left + 1) {
                Some(r) if r.deadline < l.deadline => (left + 1, *r),
                _ => (left, l),
            };
            if moving.deadline <= c.deadline {
                break;
            }
            self.put(at, c);
            at = child;
        }
        self.put(at, moving);
    }

    #[allow(clippy::cast_possible_truncation, reason = "the heap is no longer than the capacity, a u32")]
    fn put(&mut self, at: usize, armed: Armed) {
        self.heap[at] = armed;
        self.place[armed.id as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn timers_expire_in_order_and_only_once() {
        let mut q = TimerQueue::new(4);
        assert_eq!(q.next_deadline(), u64::MAX);
        assert!(q.arm(2, 30) && q.arm(0, 10) && q.arm(3, 20));
        assert!(!q.arm(4, 1), "no such timer");
        assert_eq!(q.next_deadline(), 10);
        assert_eq!(q.expire(9), None);
        assert_eq!(q.expire(25), Some((0, 10)));
        assert_eq!(q.expire(25), Some((3, 20)));
        assert_eq!(q.expire(25), None);
        assert!(q.arm(2, 5), "moved");
        assert_eq!(q.expire(25), Some((2, 5)));
        assert_eq!(q.next_deadline(), u64::MAX);
        assert!(!q.disarm(2));
    }

    #[test]
    fn the_end_of_time_never_comes() {
        let mut q = TimerQueue::new(1);
        q.arm(0, u64::MAX);
        assert_eq!(q.expire(u64::MAX), None);
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(ops in prop::collection::vec((0u8..4, 0u32..20, 0u64..50), 1..300)) {
            let mut q = TimerQueue::new(16);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (op, id, t) in ops {
                match op {
                    0 | 1 => {
                        prop_assert_eq!(q.arm(id, t), id < 16);
                        if id < 16 {
                            model.insert(id, t);
                        }
                    }
                    2 => prop_assert_eq!(q.disarm(id), model.remove(&id).is_some()),
                    _ => match q.expire(t) {
                        Some((id, due)) => {
                            prop_assert!(due <= t);
                            prop_assert_eq!(Some(&due), model.values().min());
                            prop_assert_eq!(model.remove(&id), Some(due));
                        }
                        None => prop_assert!(model.values().all(|d| *d > t)),
                    },
                }
                prop_assert_eq!(q.next_deadline(), model.values().min().copied().unwrap_or(u64::MAX));
                prop_assert_eq!(q.deadline_of(id), model.get(&id).copied());
            }
        }
    }
}
