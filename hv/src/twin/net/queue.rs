//! What waits to be sent by a card.

use super::link::{About, Card};
use alloc::collections::VecDeque;
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

/// The packets of one place; [`Card::NONE`]'s while no card is there.
pub struct Queue {
    card: Card,
    /// Slots that are neither sent nor given back.
    slots: usize,
    waiting: VecDeque<Outgoing>,
    /// Somebody has found no room.
    is_starved: bool,
}

impl Queue {
    /// Of no card.
    pub const fn new() -> Self {
        Self { card: Card::NONE, slots: 0, waiting: VecDeque::new(), is_starved: false }
    }

    /// From now on it is `card`'s. ENOMEM.
    pub fn open(&mut self, card: Card) -> Result<(), Errno> {
        self.waiting.try_reserve_exact(MAX_WAITING + 1).map_err(|_| Errno::ENOMEM)?;
        self.card = card;
        Ok(())
    }

    /// Nobody gets a slot any more.
    pub fn close(&mut self) {
        self.card = Card::NONE;
    }

    /// Are there slots that are neither sent nor given back?
    pub fn has_slots(&self) -> bool {
        self.slots != 0
    }

    /// There are `wanted` slots more, or as many as there is room for; how many. None: `card` is gone, or there is no room.
    pub fn reserve(&mut self, card: Card, wanted: usize) -> usize {
        let room = MAX_WAITING.saturating_sub(self.waiting.len() + self.slots);
        let granted = if self.card == card { wanted.min(room) } else { 0 };
        self.is_starved |= granted == 0;
        self.slots += granted;
        granted
    }

    /// `count` slots are given back.
    pub fn give_back(&mut self, count: usize) {
        self.slots -= count;
    }

    /// There was no buffer for `count` slots; if for none at all, somebody waits for one.
    pub fn found_no_room(&mut self, count: usize, for_any: bool) {
        self.give_back(count);
        self.is_starved |= for_any;
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

    /// Has somebody found no room who has not heard that there is some?
    pub fn is_starved(&self) -> bool {
        self.is_starved
    }

    /// Has somebody found no room since this was asked last?
    pub fn take_starved(&mut self) -> bool {
        core::mem::take(&mut self.is_starved)
    }
}
