//! What waits to be sent by a card.

use super::link::{About, Card};
use alloc::collections::VecDeque;
use xen_abi::errno::Errno;

/// Packets that may wait.
const MAX_WAITING: usize = 512;

/// A packet that waits.
#[derive(Clone, Copy)]
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

    /// There is a slot more. `false`: `card` is gone, or there is no room.
    pub fn reserve(&mut self, card: Card) -> bool {
        if self.card != card || self.waiting.len() + self.slots >= MAX_WAITING {
            self.is_starved = true;
            return false;
        }
        self.slots += 1;
        true
    }

    /// A slot is given back.
    pub fn give_back(&mut self) {
        self.slots -= 1;
    }

    /// There was no buffer for a slot.
    pub fn found_no_room(&mut self) {
        self.give_back();
        self.is_starved = true;
    }

    /// A slot is sent.
    pub fn send(&mut self, packet: Outgoing) {
        self.slots -= 1;
        self.waiting.push_back(packet);
    }

    /// The first packet.
    pub fn next(&mut self) -> Option<Outgoing> {
        self.waiting.pop_front()
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

    /// Has somebody found no room since this was asked last?
    pub fn take_starved(&mut self) -> bool {
        core::mem::take(&mut self.is_starved)
    }
}
