//! What waits for an interface: for a guest's first come first served, for a way out in turns of its senders.

use super::backlog::Backlog;
use crate::card::turns::{NoMemory, Turns};
use crate::packet::Size;

/// Who has sent a packet: its number and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Its number, among all.
    pub nr: u16,
    /// Its weight.
    pub weight: u16,
}

/// A way out counts as shared for so long (ns) after somebody else than the last one has sent.
pub const SHARED_NS: u64 = 1_000_000_000;

/// Whether several send by a way out at one time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Company {
    last: Option<u16>,
    until_ns: u64,
}

impl Company {
    /// `sender` has sent a packet at `now` (ns). Does anybody else?
    #[inline]
    pub fn sends(&mut self, sender: u16, now: u64) -> bool {
        if self.last != Some(sender) && self.last.replace(sender).is_some() {
            self.until_ns = now.saturating_add(SHARED_NS);
        }
        now < self.until_ns
    }
}

/// Packets that wait for an interface.
pub enum Waiting<T> {
    /// For a guest.
    InOrder(Backlog<T>),
    /// For a way out, which is a device that its senders share.
    InTurns(Turns<T>, Company),
}

impl<T: Copy> Waiting<T> {
    /// For a guest, from the time `now` (ns) on.
    pub fn for_guest(now: u64) -> Self {
        Waiting::InOrder(Backlog::new(now))
    }

    /// For a way out of so many senders.
    pub fn for_way_out(nr_senders: u16, now: u64) -> Result<Self, NoMemory> {
        Ok(Waiting::InTurns(Turns::new(nr_senders, now)?, Company::default()))
    }

    /// Whether nothing waits. A packet may then be delivered at once; else it would overtake.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match self {
            Waiting::InOrder(backlog) => backlog.is_empty(),
            Waiting::InTurns(turns, _) => turns.is_empty(),
        }
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        match self {
            Waiting::InOrder(backlog) => backlog.len(),
            Waiting::InTurns(turns, _) => turns.len().into(),
        }
    }

    /// `sender` has sent a packet at `now` (ns), whether it waits or not. Are there others with whom it takes turns?
    #[inline]
    pub fn sends(&mut self, sender: u16, now: u64) -> bool {
        match self {
            Waiting::InOrder(_) => false,
            Waiting::InTurns(_, company) => company.sends(sender, now),
        }
    }

    /// Makes a packet wait. An error gives it back: too much waits already, or nothing was taken for too long.
    pub fn push(&mut self, sender: Sender, packet: T, size: Size, now: u64) -> Result<(), T> {
        match self {
            Waiting::InOrder(backlog) => backlog.push(packet, size.bytes, now),
            Waiting::InTurns(turns, _) => {
                turns.weigh(sender.nr, sender.weight);
                turns.push(sender.nr, packet, size, now)
            }
        }
    }

    /// The packet whose turn it is. It stays the same until something is pushed or taken.
    pub fn first(&mut self) -> Option<&mut T> {
        match self {
            Waiting::InOrder(backlog) => backlog.first(),
            Waiting::InTurns(turns, _) => turns.first(),
        }
    }

    /// Takes that packet: it was delivered, at time `now` (ns), or is to go elsewhere.
    pub fn pop(&mut self, now: u64) -> Option<T> {
        match self {
            Waiting::InOrder(backlog) => backlog.pop(now),
            Waiting::InTurns(turns, _) => turns.pop(now),
        }
    }

    /// Takes a packet that is to be lost: it has waited for too long, or nothing was taken for too long.
    pub fn expire(&mut self, now: u64) -> Option<T> {
        match self {
            Waiting::InOrder(backlog) => backlog.expire(now),
            Waiting::InTurns(turns, _) => turns.expire(now),
        }
    }

    /// Forgets what a sender has waiting, of which `is_its` says so: it is gone, and its names of packets with it.
    pub fn forget(&mut self, nr: u16, mut is_its: impl FnMut(&T) -> bool) {
        match self {
            Waiting::InOrder(backlog) => backlog.retain(|packet| !is_its(packet)),
            Waiting::InTurns(turns, _) => turns.forget(nr),
        }
    }

    /// There is room again, at time `now` (ns).
    pub fn has_room(&mut self, now: u64) {
        match self {
            Waiting::InOrder(backlog) => backlog.has_room(now),
            Waiting::InTurns(turns, _) => turns.has_room(now),
        }
    }

    /// Whether nothing was taken for too long.
    pub fn is_stalled(&self) -> bool {
        match self {
            Waiting::InOrder(backlog) => backlog.is_stalled(),
            Waiting::InTurns(turns, _) => turns.is_stalled(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_out_is_shared_while_two_send() {
        let mut company = Company::default();
        assert!((0..9).all(|n| !company.sends(1, n)), "one alone");
        assert!(company.sends(2, 10) && company.sends(1, 11) && company.sends(1, 10 + SHARED_NS));
        assert!(!company.sends(1, 11 + SHARED_NS), "the other one has ceased");
        assert!(company.sends(2, 12 + SHARED_NS), "and begins again");
    }
}
