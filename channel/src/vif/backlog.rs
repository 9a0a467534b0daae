//! Packets that wait because their receiver has not posted enough pages.
//!
//! A guest that does not run for a moment must not lose what others send meanwhile, and one that never takes anything
//! must not make them wait: so there is a limit of bytes and one of time. Both are netback's. What waits here is a name
//! of the packet; its bytes stay where its sender has them.

use alloc::collections::VecDeque;

/// Bytes from which on nothing more waits.
pub const MAX_BYTES: u32 = 128 * 4096;
/// Packets from which on nothing more waits.
pub const MAX_PACKETS: usize = 512;
/// How long a packet waits, in ns.
pub const MAX_WAIT_NS: u64 = 10_000_000_000;
/// How long a guest may leave packets waiting until it counts as stalled, in ns: then nothing waits for it any more.
pub const STALL_NS: u64 = 60_000_000_000;

#[derive(Debug)]
struct Waiting<T> {
    packet: T,
    bytes: u32,
    until: u64,
}

/// What waits for one receive ring, first come first served.
#[derive(Debug)]
pub struct Backlog<T> {
    waiting: VecDeque<Waiting<T>>,
    bytes: u32,
    /// When the guest last took something, or nothing waited.
    last_progress: u64,
    is_stalled: bool,
}

impl<T> Backlog<T> {
    /// An empty one at time `now` (ns).
    pub fn new(now: u64) -> Backlog<T> {
        Backlog { waiting: VecDeque::with_capacity(MAX_PACKETS), bytes: 0, last_progress: now, is_stalled: false }
    }

    /// Whether nothing waits. A packet may then be delivered at once; else it would overtake.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Makes a packet wait. An error gives it back: too much waits already, or the guest is stalled.
    pub fn push(&mut self, packet: T, bytes: u32, now: u64) -> Result<(), T> {
        self.look(now);
        if self.is_stalled || self.bytes >= MAX_BYTES || self.waiting.len() >= MAX_PACKETS {
            return Err(packet);
        }
        self.bytes += bytes;
        self.waiting.push_back(Waiting { packet, bytes, until: now.saturating_add(MAX_WAIT_NS) });
        Ok(())
    }

    /// The packet whose turn it is.
    pub fn first(&mut self) -> Option<&mut T> {
        self.waiting.front_mut().map(|w| &mut w.packet)
    }

    /// Takes the first packet: it was delivered, at time `now` (ns).
    pub fn pop(&mut self, now: u64) -> Option<T> {
        self.last_progress = now;
        self.is_stalled = false;
        self.take()
    }

    /// Takes the first packet if it is to be dropped: it has waited for too long, or the guest is stalled.
    pub fn expire(&mut self, now: u64) -> Option<T> {
        self.look(now);
        let is_over = self.is_stalled || self.waiting.front().is_some_and(|w| now >= w.until);
        if is_over {
            self.take()
        } else {
            None
        }
    }

    /// Forgets the packets of which `keep` says no: their sender is gone, and its names of packets with it.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.waiting.retain(|w| keep(&w.packet));
        self.bytes = self.waiting.iter().map(|w| w.bytes).sum();
    }

    /// When [`Backlog::expire`] is to be called, in ns.
    pub fn deadline(&self) -> Option<u64> {
        self.waiting.front().map(|w| w.until)
    }

    /// The guest has room again, at time `now` (ns): it is not stalled.
    pub fn has_room(&mut self, now: u64) {
        self.last_progress = now;
        self.is_stalled = false;
    }

    /// Whether the guest has taken nothing for too long: its carrier is off.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    fn look(&mut self, now: u64) {
        if self.waiting.is_empty() && !self.is_stalled {
            self.last_progress = now;
        }
        self.is_stalled |= now.saturating_sub(self.last_progress) >= STALL_NS;
    }

    fn take(&mut self) -> Option<T> {
        let Waiting { packet, bytes, .. } = self.waiting.pop_front()?;
        self.bytes -= bytes;
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn packets_wait_in_order_up_to_a_limit() {
        let mut b = Backlog::new(0);
        let n = (0..).find(|n| b.push(*n, 1500, 0).is_err()).unwrap();
        assert_eq!(n, 350, "half a megabyte");
        assert_eq!(b.pop(1), Some(0));
        assert_eq!(b.push(1000, 65535, 1), Ok(()), "the last may be longer than what is left");
        assert_eq!(b.push(1001, 1, 1), Err(1001));
        let mut b = Backlog::new(0);
        assert_eq!((0..).find(|n| b.push(*n, 60, 0).is_err()), Some(512));
        assert!((0..512).all(|n| b.pop(0) == Some(n)) && b.is_empty() && b.bytes == 0);
    }

    #[test]
    fn packets_wait_for_ten_seconds() {
        let mut b = Backlog::new(0);
        assert!(b.push('a', 60, 0).is_ok() && b.push('b', 60, 5 * SECOND).is_ok());
        assert_eq!((b.deadline(), b.expire(10 * SECOND - 1)), (Some(10 * SECOND), None));
        assert_eq!((b.expire(10 * SECOND), b.expire(10 * SECOND)), (Some('a'), None));
        assert_eq!((b.expire(15 * SECOND), b.deadline()), (Some('b'), None));
    }

    #[test]
    fn a_guest_that_never_takes_anything_is_not_waited_for() {
        let mut b = Backlog::new(0);
        // New packets all the time: the first waits since 0.
        for s in 0..60 {
            assert!(b.push(s, 60, s * SECOND).is_ok());
            while b.expire(s * SECOND).is_some() {}
        }
        assert!(b.push(60, 60, 60 * SECOND).is_err() && b.is_stalled());
        while b.expire(60 * SECOND).is_some() {}
        assert!(b.is_empty() && b.push(61, 60, 61 * SECOND).is_err());
        b.has_room(62 * SECOND);
        assert!(b.push(62, 60, 62 * SECOND).is_ok() && !b.is_stalled());
    }

    #[test]
    fn idle_time_is_no_stall() {
        let mut b = Backlog::new(0);
        assert!(b.push(1, 60, 500 * SECOND).is_ok());
        assert_eq!((b.expire(501 * SECOND), b.is_stalled()), (None, false));
        // Also if it is looked at meanwhile.
        assert_eq!((b.pop(502 * SECOND), b.expire(600 * SECOND), b.is_stalled()), (Some(1), None, false));
        assert!(b.push(2, 60, 601 * SECOND).is_ok());
    }
}
