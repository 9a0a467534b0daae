//! What waits for a network card: packets of several senders, who take turns.
//!
//! A sender's packets go in the order in which it has sent them. A turn is worth [`QUANTUM`] bytes for the heaviest
//! sender, and for others as many less as they are lighter; what is left of it at its end is added to the next (deficit
//! round robin). So senders that always have something send bytes by their weights, the same number if those are the
//! same, whatever the lengths of their packets, but for short ones, which count for more: they are as much work. One
//! that goes out as many counts for all of them. How much a sender may leave waiting depends on how many wait: whoever
//! comes later finds room when the card has sent something. What waits here is a name of the packet; its bytes stay
//! where its sender has them.

use crate::packet::Size;
use crate::vif::backlog::{MAX_WAIT_NS, STALL_NS};
use alloc::boxed::Box;
use alloc::vec::Vec;
use xen_abi::channel_op::WEIGHT;

/// Bytes of a turn of the heaviest sender's.
pub const QUANTUM: u32 = 8192;
/// Bytes that a shorter packet counts for.
pub const LEAST: u32 = 512;
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
    weight: u16,
}

const IDLE: Sender = Sender { first: NONE, last: NONE, nr: 0, before: NONE, after: NONE, left: 0, weight: WEIGHT };

impl Sender {
    /// Bytes of a turn, beside a sender of the weight `heaviest`.
    fn quantum(&self, heaviest: u16) -> u32 {
        (QUANTUM * u32::from(self.weight) / u32::from(heaviest)).max(1)
    }
}

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
    /// The heaviest weight since nothing waited.
    heaviest: u16,
    /// When the card last took something, or nothing waited.
    last_progress: u64,
    is_stalled: bool,
}

/// Bytes that a packet counts for.
fn cost(Size { bytes, segments }: Size) -> u32 {
    bytes.max(segments.saturating_mul(LEAST))
}

impl<T: Copy> Turns<T> {
    /// Bytes of each of the two lists of one with senders `0..nr_senders`.
    #[must_use]
    pub const fn bytes(nr_senders: u16) -> [usize; 2] {
        [CAPACITY as usize * size_of::<Waiting<T>>(), nr_senders as usize * size_of::<Sender>()]
    }

    /// None, of senders `0..nr_senders`, at time `now` (ns).
    pub fn new(nr_senders: u16, now: u64) -> Result<Self, NoMemory> {
        let (mut waiting, mut senders) = (Vec::new(), Vec::new());
        waiting.try_reserve_exact(CAPACITY.into()).map_err(|_| NoMemory)?;
        senders.try_reserve_exact(nr_senders.into()).map_err(|_| NoMemory)?;
        senders.extend(core::iter::repeat_n(IDLE, nr_senders.into()));
        let senders = senders.into_boxed_slice();
        let (free, turn, heaviest) = (NONE, NONE, 1);
        let (last_progress, is_stalled) = (now, false);
        Ok(Turns { waiting, free, nr: 0, senders, nr_senders: 0, turn, heaviest, last_progress, is_stalled })
    }

    /// Whether nothing waits. A packet may then be sent at once; else it would overtake.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.nr == 0
    }

    /// Whether nothing waits, and whatever comes may.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.nr == 0 && !self.is_stalled
    }

    /// Packets that wait.
    pub fn len(&self) -> u16 {
        self.nr
    }

    /// What `sender` has waiting goes by this weight, of at least 1.
    pub fn weigh(&mut self, sender: u16, weight: u16) {
        if let Some(s) = self.senders.get_mut(usize::from(sender)) {
            s.weight = weight.max(1);
            self.heaviest = self.heaviest.max(s.weight);
        }
    }

    /// The card has taken nothing for too long: nothing waits for it.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    /// Makes a packet wait that is as long, and goes out as so many, as `size` says. An error gives it back: too much
    /// waits already, in all or of this sender, or the card has taken nothing for too long.
    pub fn push(&mut self, sender: u16, packet: T, size: Size, now: u64) -> Result<(), T> {
        self.look(now);
        let Some(own) = self.senders.get(usize::from(sender)).map(|s| s.nr) else { return Err(packet) };
        let nr_senders = self.nr_senders + u16::from(own == 0);
        if self.is_stalled || self.nr >= CAPACITY || own >= (CAPACITY / nr_senders).max(1) {
            return Err(packet);
        }
        let at = self.keep(Waiting { packet, cost: cost(size), until: now.saturating_add(MAX_WAIT_NS), next: NONE });
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
        if !self.find_turn() {
            // Nobody has saved enough yet for the packet that he has. Nobody would for so many rounds.
            self.save(self.rounds_of_nothing());
            self.find_turn();
        }
        let first = self.senders.get(usize::from(self.turn))?.first;
        Some(&mut self.waiting[usize::from(first)].packet)
    }

    /// How many of the packets of whose turn it is follow each other, with the first: those that his turn is enough
    /// for; at most so many.
    pub fn in_turn(&mut self, most: u16) -> u16 {
        if self.first().is_none() {
            return 0;
        }
        let Some(&Sender { mut first, mut left, .. }) = self.senders.get(usize::from(self.turn)) else { return 0 };
        let mut count = 0;
        while let Some(&Waiting { cost, next, .. }) = self.waiting.get(usize::from(first)).filter(|_| count < most) {
            let Some(rest) = left.checked_sub(cost) else { break };
            (first, left, count) = (next, rest, count + 1);
        }
        count
    }

    /// The next sender in the circle who may send his packet has the turn; in one round at most. `false`: nobody may.
    fn find_turn(&mut self) -> bool {
        for _ in 0..=self.nr_senders {
            let Some(Sender { first, left, after, .. }) = self.senders.get(usize::from(self.turn)).copied() else {
                return true;
            };
            if self.waiting[usize::from(first)].cost <= left {
                return true;
            }
            self.begin_turn(after);
        }
        false
    }

    /// Rounds that can be left out, since after them still nobody may send.
    fn rounds_of_nothing(&self) -> u32 {
        let (mut rounds, mut at) = (u32::MAX, self.turn);
        for _ in 0..self.nr_senders {
            let s = &self.senders[usize::from(at)];
            let lacks = self.waiting[usize::from(s.first)].cost.saturating_sub(s.left);
            rounds = rounds.min(lacks.div_ceil(s.quantum(self.heaviest)).saturating_sub(1));
            at = s.after;
        }
        rounds
    }

    /// All who have something waiting get what so many turns are worth.
    fn save(&mut self, rounds: u32) {
        let mut at = self.turn;
        for _ in 0..self.nr_senders {
            let s = &mut self.senders[usize::from(at)];
            s.left += rounds * s.quantum(self.heaviest);
            at = s.after;
        }
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
            s.left += s.quantum(self.heaviest);
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
            self.heaviest = s.weight;
            self.begin_turn(sender);
        }
    }

    /// One that has nothing waiting any more. What is left of its turn is lost.
    fn leave(&mut self, sender: u16) {
        self.nr_senders -= 1;
        let Sender { before, after, weight, .. } = self.senders[usize::from(sender)];
        self.senders[usize::from(before)].after = after;
        self.senders[usize::from(after)].before = before;
        // It was its own neighbour if it was the last.
        self.senders[usize::from(sender)] = Sender { weight, ..IDLE };
        if self.turn == sender {
            self.begin_turn(if self.nr_senders == 0 { NONE } else { after });
        }
    }
}

#[cfg(test)]
mod tests;
