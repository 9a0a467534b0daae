//! What waits for a network card: packets of several senders, who take turns.
//!
//! A sender's packets go in the order in which it has sent them. A turn is worth [`QUANTUM`] bytes; what is left of it at its end is
//! added to the next (deficit round robin), so senders that always have something send the same number of bytes whatever the
//! lengths of their packets, but for short ones, which count for more: they are as much work. How much a sender may leave waiting depends on how many wait: whoever comes later finds room when
//! the card has sent something. What waits here is a name of the packet; its bytes stay where its sender has them.

use crate::vif::backlog::{MAX_WAIT_NS, STALL_NS};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes of a turn.
pub const QUANTUM: u32 = 8192;
/// Bytes that a shorter packet counts for.
pub const LEAST: u32 = 512;
/// After so many turns whoever has the longest packet has saved enough for it.
const ROUNDS: u32 = 65536 / QUANTUM + 1;
/// Packets from which on nothing more waits.
pub const CAPACITY: u16 = 1024;

const NONE: u16 = u16::MAX;

/// Not enough memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

#[derive(Clone, Copy)]
struct Waiting<T> {
    packet: T,
    /// Bytes that it counts for.
    cost: u32,
    until: u64,
    /// The sender's next packet, or the next free place.
    next: u16,
}

#[derive(Clone, Copy)]
struct Sender {
    /// Its packets: first, last and how many.
    first: u16,
    last: u16,
    nr: u16,
    /// Who has the turn before it and after it. All who have something waiting are in one circle.
    before: u16,
    after: u16,
    /// Bytes that it may still send in its turn.
    left: u32,
}

const IDLE: Sender = Sender { first: NONE, last: NONE, nr: 0, before: NONE, after: NONE, left: 0 };

/// The packets that wait for a card.
pub struct Turns<T> {
    waiting: Vec<Waiting<T>>,
    free: u16,
    nr: u16,
    senders: Box<[Sender]>,
    /// Senders that have something waiting.
    nr_senders: u16,
    /// Whose turn it is.
    turn: u16,
    /// When the card last took something, or nothing waited.
    last_progress: u64,
    is_stalled: bool,
}

impl<T: Copy> Turns<T> {
    /// None, of senders `0..nr_senders`, at time `now` (ns).
    pub fn new(nr_senders: u16, now: u64) -> Result<Self, NoMemory> {
        let (mut waiting, mut senders) = (Vec::new(), Vec::new());
        waiting.try_reserve_exact(CAPACITY.into()).map_err(|_| NoMemory)?;
        senders.try_reserve_exact(nr_senders.into()).map_err(|_| NoMemory)?;
        senders.extend(core::iter::repeat_n(IDLE, nr_senders.into()));
        let senders = senders.into_boxed_slice();
        let (free, turn) = (NONE, NONE);
        Ok(Turns { waiting, free, nr: 0, senders, nr_senders: 0, turn, last_progress: now, is_stalled: false })
    }

    /// Whether nothing waits. A packet may then be sent at once; else it would overtake.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.nr == 0
    }

    /// Packets that wait.
    pub fn len(&self) -> u16 {
        self.nr
    }

    /// Makes a packet of `bytes` bytes wait. An error gives it back: too much waits already, in all or of this sender, or the card
    /// has taken nothing for too long.
    pub fn push(&mut self, sender: u16, packet: T, bytes: u32, now: u64) -> Result<(), T> {
        self.look(now);
        let Some(own) = self.senders.get(usize::from(sender)).map(|s| s.nr) else { return Err(packet) };
        let nr_senders = self.nr_senders + u16::from(own == 0);
        if self.is_stalled || self.nr >= CAPACITY || own >= (CAPACITY / nr_senders).max(1) {
            return Err(packet);
        }
        let at =
            self.keep(Waiting { packet, cost: bytes.max(LEAST), until: now.saturating_add(MAX_WAIT_NS), next: NONE });
        let s = &mut self.senders[usize::from(sender)];
        s.nr += 1;
        let last = core::mem::replace(&mut s.last, at);
        if own == 0 {
            s.first = at;
            self.join(sender);
        } else {
            self.waiting[usize::from(last)].next = at;
        }
        Ok(())
    }

    /// The packet whose turn it is. It stays the same until something is pushed or taken.
    pub fn first(&mut self) -> Option<&mut T> {
        for _ in 0..u32::from(self.nr_senders) * ROUNDS {
            let Sender { first, left, after, .. } = *self.senders.get(usize::from(self.turn))?;
            if self.waiting[usize::from(first)].cost <= left {
                break;
            }
            self.begin_turn(after);
        }
        let first = self.senders.get(usize::from(self.turn))?.first;
        Some(&mut self.waiting[usize::from(first)].packet)
    }

    /// Takes the packet whose turn it is: the card has it, at time `now` (ns), or it is not to be sent any more.
    pub fn pop(&mut self, now: u64) -> Option<T> {
        self.first()?;
        self.has_room(now);
        let sender = self.turn;
        let (packet, cost) = self.take(sender)?;
        // Unless that was its last one: then it owes nothing, and has nothing left.
        if let Some(s) = self.senders.get_mut(usize::from(sender)).filter(|s| s.nr > 0) {
            s.left = s.left.saturating_sub(cost);
        }
        Some(packet)
    }

    /// The card goes on, at time `now` (ns).
    pub fn has_room(&mut self, now: u64) {
        (self.last_progress, self.is_stalled) = (now, false);
    }

    /// Takes a packet that is to be lost: it has waited for too long, or the card has taken nothing for too long.
    pub fn expire(&mut self, now: u64) -> Option<T> {
        self.look(now);
        let mut sender = self.turn;
        for _ in 0..self.nr_senders {
            let s = self.senders[usize::from(sender)];
            if self.is_stalled || now >= self.waiting[usize::from(s.first)].until {
                return self.take(sender).map(|(packet, _)| packet);
            }
            sender = s.after;
        }
        None
    }

    /// Forgets what a sender has waiting: it is gone, and its names of packets with it.
    pub fn forget(&mut self, sender: u16) {
        while self.take(sender).is_some() {}
    }

    /// Takes any packet: the card is gone.
    pub fn drain(&mut self) -> Option<T> {
        self.take(self.turn).map(|(packet, _)| packet)
    }

    fn look(&mut self, now: u64) {
        if self.nr == 0 && !self.is_stalled {
            self.last_progress = now;
        }
        self.is_stalled |= now.saturating_sub(self.last_progress) >= STALL_NS;
    }

    /// The first packet of a sender, and what it counts for.
    fn take(&mut self, sender: u16) -> Option<(T, u32)> {
        let s = self.senders.get_mut(usize::from(sender)).filter(|s| s.nr > 0)?;
        let at = s.first;
        let Waiting { packet, cost, next, .. } = self.waiting[usize::from(at)];
        (s.first, s.nr) = (next, s.nr - 1);
        if s.nr == 0 {
            self.leave(sender);
        }
        self.waiting[usize::from(at)].next = self.free;
        self.free = at;
        self.nr -= 1;
        Some((packet, cost))
    }

    /// A place for a packet; there is one.
    fn keep(&mut self, packet: Waiting<T>) -> u16 {
        self.nr += 1;
        let at = self.free;
        if let Some(place) = self.waiting.get_mut(usize::from(at)) {
            self.free = place.next;
            *place = packet;
            return at;
        }
        // Within what is reserved: places that are not free are fewer than CAPACITY.
        self.waiting.push(packet);
        #[allow(clippy::cast_possible_truncation, reason = "at most CAPACITY")]
        {
            self.waiting.len() as u16 - 1
        }
    }

    fn begin_turn(&mut self, sender: u16) {
        self.turn = sender;
        if let Some(s) = self.senders.get_mut(usize::from(sender)) {
            s.left += QUANTUM;
        }
    }

    /// A sender that has something waiting now comes last.
    fn join(&mut self, sender: u16) {
        self.nr_senders += 1;
        let (mut before, mut after) = (sender, sender);
        if self.nr_senders > 1 {
            after = self.turn;
            before = self.senders[usize::from(after)].before;
            self.senders[usize::from(before)].after = sender;
            self.senders[usize::from(after)].before = sender;
        }
        let s = &mut self.senders[usize::from(sender)];
        (s.before, s.after) = (before, after);
        if self.nr_senders == 1 {
            self.begin_turn(sender);
        }
    }

    /// One that has nothing waiting any more. What is left of its turn is lost.
    fn leave(&mut self, sender: u16) {
        self.nr_senders -= 1;
        let Sender { before, after, .. } = core::mem::replace(&mut self.senders[usize::from(sender)], IDLE);
        self.senders[usize::from(before)].after = after;
        self.senders[usize::from(after)].before = before;
        // It was its own neighbour if it was the last.
        self.senders[usize::from(sender)] = IDLE;
        if self.turn == sender {
            self.begin_turn(if self.nr_senders == 0 { NONE } else { after });
        }
    }
}

#[cfg(test)]
mod tests;
