//! What waits to be sent by a card.

use super::link::{About, CardQueue};
use alloc::collections::VecDeque;
use x86::PAGE_SIZE;
use xen_abi::errno::Errno;

/// Packets that may wait.
const MAX_WAITING: usize = 512;

/// A packet that waits.
#[derive(Clone, Copy, Default)]
pub struct Outgoing {
    /// The `sk_buff` in whose buffer it lies.
    pub skb: u64,
    /// Its sender's.
    pub cookie: u64,
    /// What it is.
    pub about: About,
    /// Since when it waits, in ns.
    pub since_ns: u64,
}

/// The packets of one lane; [`CardQueue::NONE`]'s while no card is there.
pub struct Queue {
    of: CardQueue,
    /// Slots that are neither sent nor given back.
    slots: usize,
    waiting: VecDeque<Outgoing>,
}

impl Queue {
    /// Frames that [`Self::make_room`] takes.
    pub const FRAMES: usize = ((MAX_WAITING + 1) * size_of::<Outgoing>()).div_ceil(PAGE_SIZE);

    /// Of no card.
    pub const fn new() -> Self {
        Self { of: CardQueue::NONE, slots: 0, waiting: VecDeque::new() }
    }

    /// Makes room for all that may wait. ENOMEM.
    pub fn make_room(&mut self) -> Result<(), Errno> {
        self.waiting.try_reserve_exact(MAX_WAITING + 1).map_err(|_| Errno::ENOMEM)
    }

    /// From now on it is `of`'s. There is room.
    pub fn open(&mut self, of: CardQueue) {
        self.of = of;
    }

    /// Nobody gets a slot any more.
    pub fn close(&mut self) {
        self.of = CardQueue::NONE;
    }

    /// The memory for what may wait is given back; nothing does.
    pub fn free_room(&mut self) {
        self.waiting = VecDeque::new();
    }

    /// Are there slots that are neither sent nor given back?
    pub fn has_slots(&self) -> bool {
        self.slots != 0
    }

    /// There are `wanted` slots more, or as many as there is room for; how many. None: the card is gone, or there is no
    /// room.
    pub fn reserve(&mut self, of: CardQueue, wanted: usize) -> usize {
        let room = MAX_WAITING.saturating_sub(self.waiting.len() + self.slots);
        let granted = if self.of == of { wanted.min(room) } else { 0 };
        self.slots += granted;
        granted
    }

    /// `count` slots are given back.
    pub fn give_back(&mut self, count: usize) {
        self.slots -= count;
    }

    /// Slots are sent.
    pub fn send(&mut self, packets: &[Outgoing]) {
        self.slots -= packets.len();
        // Room for them was there when the slots were taken.
        self.waiting.extend(packets);
    }

    /// The first packet.
    #[inline(always)]
    pub fn next(&mut self) -> Option<Outgoing> {
        self.waiting.pop_front()
    }

    /// The first packet goes to `hand`. `false`: there is none, and none there either.
    #[inline(always)]
    pub fn next_to(&mut self, hand: &mut Option<Outgoing>) -> bool {
        *hand = self.next();
        hand.is_some()
    }

    /// The first packet, if it waits since before `since_ns`.
    pub fn next_before(&mut self, since_ns: u64) -> Option<Outgoing> {
        self.waiting.front().filter(|packet| packet.since_ns < since_ns)?;
        self.waiting.pop_front()
    }

    /// One that was taken waits on.
    pub fn put_back(&mut self, packet: Outgoing) {
        self.waiting.push_front(packet);
    }
}
