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

/// Packets that wait for an interface.
pub enum Waiting<T> {
    /// For a guest.
    InOrder(Backlog<T>),
    /// For a way out, which is a device that its senders share.
    InTurns(Turns<T>),
}

impl<T: Copy> Waiting<T> {
    /// For a guest, from the time `now` (ns) on.
    pub fn for_guest(now: u64) -> Self {
        Waiting::InOrder(Backlog::new(now))
    }

    /// For a way out of so many senders.
    pub fn for_way_out(nr_senders: u16, now: u64) -> Result<Self, NoMemory> {
        Turns::new(nr_senders, now).map(Waiting::InTurns)
    }

    /// Whether nothing waits. A packet may then be delivered at once; else it would overtake.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match self {
            Waiting::InOrder(backlog) => backlog.is_empty(),
            Waiting::InTurns(turns) => turns.is_empty(),
        }
    }

    /// Packets that wait.
    pub fn len(&self) -> usize {
        match self {
            Waiting::InOrder(backlog) => backlog.len(),
            Waiting::InTurns(turns) => turns.len().into(),
        }
    }

    /// Makes a packet wait. An error gives it back: too much waits already, or nothing was taken for too long.
    pub fn push(&mut self, sender: Sender, packet: T, size: Size, now: u64) -> Result<(), T> {
        match self {
            Waiting::InOrder(backlog) => backlog.push(packet, size.bytes, now),
            Waiting::InTurns(turns) => {
                turns.weigh(sender.nr, sender.weight);
                turns.push(sender.nr, packet, size, now)
            }
        }
    }

    /// The packet whose turn it is. It stays the same until something is pushed or taken.
    pub fn first(&mut self) -> Option<&mut T> {
        match self {
            Waiting::InOrder(backlog) => backlog.first(),
            Waiting::InTurns(turns) => turns.first(),
        }
    }

    /// Takes that packet: it was delivered, at time `now` (ns), or is to go elsewhere.
    pub fn pop(&mut self, now: u64) -> Option<T> {
        match self {
            Waiting::InOrder(backlog) => backlog.pop(now),
            Waiting::InTurns(turns) => turns.pop(now),
        }
    }

    /// Takes a packet that is to be lost: it has waited for too long, or nothing was taken for too long.
    pub fn expire(&mut self, now: u64) -> Option<T> {
        match self {
            Waiting::InOrder(backlog) => backlog.expire(now),
            Waiting::InTurns(turns) => turns.expire(now),
        }
    }

    /// Forgets what a sender has waiting, of which `is_its` says so: it is gone, and its names of packets with it.
    pub fn forget(&mut self, nr: u16, mut is_its: impl FnMut(&T) -> bool) {
        match self {
            Waiting::InOrder(backlog) => backlog.retain(|packet| !is_its(packet)),
            Waiting::InTurns(turns) => turns.forget(nr),
        }
    }

    /// There is room again, at time `now` (ns).
    pub fn has_room(&mut self, now: u64) {
        match self {
            Waiting::InOrder(backlog) => backlog.has_room(now),
            Waiting::InTurns(turns) => turns.has_room(now),
        }
    }

    /// Whether nothing was taken for too long.
    pub fn is_stalled(&self) -> bool {
        match self {
            Waiting::InOrder(backlog) => backlog.is_stalled(),
            Waiting::InTurns(turns) => turns.is_stalled(),
        }
    }
}
