//! The run queue: vCPUs that wait, lowest effective virtual time first, linked through their slots.

use super::entry::{later, Entry};

/// No slot.
pub(super) const NIL: u16 = u16::MAX;

pub(super) struct Queue {
    head: u16,
    tail: u16,
}

impl Queue {
    pub fn new() -> Queue {
        Queue { head: NIL, tail: NIL }
    }

    pub fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// The first, or [`NIL`].
    pub fn first(&self) -> u16 {
        self.head
    }

    /// The first vCPU that may run on one of `cpus`, or [`NIL`].
    #[inline]
    pub fn first_for(&self, entries: &[Entry], cpus: u64) -> u16 {
        let mut at = self.head;
        while let Some(e) = entries.get(usize::from(at)) {
            if e.affinity & cpus != 0 {
                return at;
            }
            at = e.next;
        }
        NIL
    }

    /// The virtual time of the first vCPU that may run on one of `cpus` and has not borrowed.
    pub fn first_unwarped(&self, entries: &[Entry], cpus: u64) -> Option<u64> {
        let mut at = self.head;
        while let Some(e) = entries.get(usize::from(at)) {
            if e.affinity & cpus != 0 && !e.warped {
                return Some(e.actual);
            }
            at = e.next;
        }
        None
    }

    /// Puts `who` after all that are not later than it; one that was just woken before those that are as late.
    pub fn insert(&mut self, entries: &mut [Entry], who: u16) {
        let (key, is_fresh) = (entries[usize::from(who)].effective, entries[usize::from(who)].is_fresh());
        // A preempted vCPU belongs near the end, a woken one near the start; the lists are short either way.
        let mut before = self.tail;
        while let Some(e) = entries.get(usize::from(before)) {
            let goes_first = later(e.effective, key) || is_fresh && !e.is_fresh() && e.effective == key;
            if !goes_first {
                break;
            }
            before = e.prev;
        }
        let after = match entries.get(usize::from(before)) {
            Some(e) => e.next,
            None => self.head,
        };
        let e = &mut entries[usize::from(who)];
        e.prev = before;
        e.next = after;
        match entries.get_mut(usize::from(before)) {
            Some(e) => e.next = who,
            None => self.head = who,
        }
        match entries.get_mut(usize::from(after)) {
            Some(e) => e.prev = who,
            None => self.tail = who,
        }
    }

    /// Takes `who`, which must be on the queue, off it.
    pub fn remove(&mut self, entries: &mut [Entry], who: u16) {
        let e = &mut entries[usize::from(who)];
        let (prev, next) = (core::mem::replace(&mut e.prev, NIL), core::mem::replace(&mut e.next, NIL));
        match entries.get_mut(usize::from(prev)) {
            Some(e) => e.next = next,
            None => self.head = next,
        }
        match entries.get_mut(usize::from(next)) {
            Some(e) => e.prev = prev,
            None => self.tail = prev,
        }
    }
}
