//! What a card and those who send and receive by it are to each other.

use super::card::{queue, want, wanted};
use super::queue::Outgoing;
use crate::arch::tsc;
use crate::domain::memory::log_dirty;
use crate::sync::Once;
use crate::twin;
use crate::twin::common::Common;
use crate::twin::instance::MAX_TWINS;
use twin_runtime::linux::skb::HEADROOM;
use x86::{MachAddr, Mfn};
use xen_abi::errno::Errno;

/// Cards at one time, of which each has a place: its twin's.
pub const MAX_CARDS: usize = MAX_TWINS;

/// Names an attached card. The number is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card(u64);

impl Card {
    /// The `count`-th card, in `place`.
    pub fn new(place: usize, count: u64) -> Self {
        Self(count.wrapping_mul(MAX_CARDS as u64) | (place % MAX_CARDS) as u64)
    }

    /// No card's.
    pub(super) const NONE: Self = Self(0);

    /// Its place.
    #[allow(clippy::cast_possible_truncation, reason = "a small number")]
    pub fn place(self) -> usize {
        self.0 as usize % MAX_CARDS
    }
}

/// What a card takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Bytes of the longest frame, with its Ethernet header and without its checksum.
    pub max_frame: u32,
    /// It sums TCP and UDP over IPv4.
    pub checksum_v4: bool,
    /// It sums TCP and UDP over IPv6.
    pub checksum_v6: bool,
}

/// Where a card is to sum a packet, and where the sum goes: bytes from the Ethernet header on, and from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// From here to the end is summed.
    pub start: u16,
    /// The sum goes here, from `start` on.
    pub offset: u16,
}

/// Bytes in a frame that the hypervisor holds.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The frame.
    pub frame: Mfn,
    /// Where they begin in it.
    pub offset: u16,
    /// How many.
    pub len: u16,
}

/// A frame from the wire, from its Ethernet header on, without its checksum.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Its bytes. The driver domain may change them meanwhile: each is read once, or copied first.
    pub pieces: &'a [Piece],
    /// The card found the checksum of its TCP or UDP right.
    pub is_verified: bool,
}

/// What those who send and receive are told.
pub struct Hooks {
    /// Card of domain `u16` is the way out of the switch in which that domain's interface `u32` is plugged in. ENODEV: there is none.
    pub attached: fn(Card, u16, u32, &Takes) -> Result<(), Errno>,
    /// It is no more. All cookies have come back.
    pub detached: fn(Card),
    /// A frame came from the wire.
    pub received: fn(Card, &Received<'_>),
    /// The driver is done with the packets of these cookies, or they are lost. Each cookie comes back once. With no cookies: there is
    /// room again for who found none.
    pub transmitted: fn(Card, &[u64]),
}

static HOOKS: Once<Hooks> = Once::new();

/// Says who sends and receives.
pub fn install(hooks: Hooks) {
    HOOKS.call_once(|| hooks);
}

/// Who sends and receives, if anybody does.
pub(super) fn hooks() -> Option<&'static Hooks> {
    HOOKS.get()
}

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
            twin::with_common(self.card.place(), |common| common.with_pool(|pool| pool.unreserve(self.skb)));
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
    let slot = twin::with_common(card.place(), take).flatten();
    if slot.is_none() {
        queue(card).lock().found_no_room();
    }
    slot
}

/// What was sent by slots goes out when this CPU leaves the hypervisor or has nothing else to do, if not earlier.
pub fn kick(card: Card) {
    want(card.place(), wanted::SEND);
}
