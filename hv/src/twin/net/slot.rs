//! Room for packets, and the way of packets to a card.

use super::link::{Card, Checksum};
use super::place::{queue, want, wanted};
use super::queue::Outgoing;
use crate::arch::tsc;
use crate::domain::memory::log_dirty;
use crate::twin::common::Common;
use crate::twin::table;
use twin_runtime::linux::skb::HEADROOM;
use x86::{MachAddr, Mfn};

/// Room for a packet, in a buffer that the driver domain lent. Dropped, it is given back. It is not kept for long: whoever takes a
/// card away waits for those who have one.
pub struct Slot {
    /// The frame in which the room is; the hypervisor holds it, writable, while this lives.
    pub frame: Mfn,
    /// Where the room begins in it: the Ethernet header goes here.
    pub offset: u16,
    /// Bytes of it.
    pub room: u16,
    card: Card,
    skb: u64,
}

/// No `sk_buff`.
const NONE: u64 = 0;

impl Slot {
    /// Queues the packet of `len` bytes that was copied here. `cookie` comes back when the driver is done with it.
    pub fn send(mut self, cookie: u64, len: u16, checksum: Option<Checksum>) {
        if log_dirty::any() {
            log_dirty::mark(self.frame);
        }
        let skb = core::mem::replace(&mut self.skb, NONE);
        let since_ns = tsc::now_ns();
        let packet = Outgoing { skb, cookie, len: len.min(self.room), checksum, since_ns };
        queue(self.card).lock().send(packet);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.skb != NONE {
            // The twin does not go while there is a slot.
            table::with_common(self.card.place(), |common| common.with_pool(|pool| pool.unreserve(self.skb)));
            queue(self.card).lock().give_back();
        }
    }
}

/// Room for a packet of `len` bytes. `None`: there is none before `transmitted` was called again; or the card is gone.
pub fn reserve(card: Card, len: u32) -> Option<Slot> {
    if !queue(card).lock().reserve(card) {
        return None;
    }
    let take = |common: &Common| {
        // The rest is for what is received.
        let (skb, lent) = common.with_pool(|pool| {
            let has_enough = pool.free().0 > pool.whole() / 4;
            has_enough.then(|| pool.reserve(u64::from(len) + common.support.overhead())).flatten()
        })?;
        let start = MachAddr::new(lent.machine + HEADROOM);
        #[allow(clippy::cast_possible_truncation, reason = "in one page")]
        let (offset, room) = (start.page_offset() as u16, common.support.room(lent.size) as u16);
        Some(Slot { frame: Mfn::containing(start), offset, room, card, skb })
    };
    let slot = table::with_common(card.place(), take).flatten();
    if slot.is_none() {
        queue(card).lock().found_no_room();
    }
    slot
}

/// What was sent by slots goes out when this CPU leaves the hypervisor or has nothing else to do, if not earlier.
pub fn kick(card: Card) {
    want(card.place(), wanted::SEND);
}
