//! Packets that a guest has sent and that are not yet answered.
//!
//! Each slot of such a packet is kept as it was when it was taken, since answers are written over requests in the ring
//! and need not come in order: from here a packet is answered, once, and from here it can be sent again when the driver
//! that was to send it is gone. There are never more of them than the ring has slots.
//!
//! A packet is known by a [`Token`], which may go through hands that are not trusted: one that is not of a packet that
//! waits is refused, also if its place has got another packet since.

use crate::packet::Gso;
use alloc::boxed::Box;
use xen_abi::io::netif::XEN_NETIF_TX_RING_SIZE;

const SIZE: usize = XEN_NETIF_TX_RING_SIZE as usize;
const NONE: u16 = u16::MAX;

/// Names a packet that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u32);

/// A slot of a packet that waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry<F> {
    /// Its frame, in use for reading.
    pub frame: F,
    /// Its grant.
    pub gref: u32,
    /// First byte.
    pub offset: u16,
    /// Bytes.
    pub size: u16,
    /// What the guest calls it.
    pub id: u16,
    /// Slots of extra information behind it. They are answered, too.
    pub nr_extra: u16,
}

/// What the first slot of a packet says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// `XEN_NETTXF_*`.
    pub flags: u16,
    /// How it is to be cut.
    pub gso: Option<Gso>,
}

#[derive(Clone, Copy)]
struct Place<F> {
    entry: Entry<F>,
    about: About,
    /// How many answers more than one it takes.
    nr_holds: u16,
    /// Next slot of the packet, or next free place.
    next: u16,
    /// Counts the packets that began here; odd while one does.
    generation: u16,
    /// When its packet was taken.
    order: u32,
}

/// The journal of one queue.
pub struct Journal<F> {
    places: Box<[Place<F>]>,
    free: u16,
    nr_packets: u16,
    order: u32,
}

impl<F: Copy + Default> Default for Journal<F> {
    fn default() -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "256 places")]
        let place = |i| Place {
            entry: Entry::default(),
            about: About::default(),
            nr_holds: 0,
            next: if i + 1 < SIZE { i as u16 + 1 } else { NONE },
            generation: 0,
            order: 0,
        };
        Journal { places: (0..SIZE).map(place).collect(), free: 0, nr_packets: 0, order: 0 }
    }
}

impl<F: Copy + Default> Journal<F> {
    /// Number of packets that wait.
    pub fn nr_packets(&self) -> u16 {
        self.nr_packets
    }

    /// Keeps a packet of these slots. `None`: there is no room, which cannot be if they are in the ring; or there are
    /// no slots.
    #[inline(always)]
    pub fn add(&mut self, about: About, slots: &[Entry<F>]) -> Option<Token> {
        let first = self.free;
        let mut last = NONE;
        let mut at = first;
        for slot in slots {
            let Some(place) = self.places.get_mut(usize::from(at)) else {
                debug_assert!(false, "more slots than the ring has");
                return None;
            };
            place.entry = *slot;
            last = at;
            at = place.next;
        }
        // Up to here nothing has changed but the contents of free places.
        self.places.get_mut(usize::from(last))?.next = NONE;
        self.free = at;
        self.nr_packets += 1;
        self.order = self.order.wrapping_add(1);
        let head = self.places.get_mut(usize::from(first))?;
        head.generation = head.generation.wrapping_add(1) | 1;
        head.order = self.order;
        head.about = about;
        Some(Token(u32::from(head.generation) << 16 | u32::from(first)))
    }

    /// What is known of a packet.
    pub fn about(&self, token: Token) -> Option<About> {
        Some(self.places.get(usize::from(self.head(token)?))?.about)
    }

    /// The slots of a packet, in order; nothing if there is no such packet.
    #[inline]
    pub fn slots(&self, token: Token) -> impl Iterator<Item = &Entry<F>> {
        let mut at = self.head(token).unwrap_or(NONE);
        core::iter::from_fn(move || {
            let place = self.places.get(usize::from(at))?;
            at = place.next;
            Some(&place.entry)
        })
    }

    /// The slots of all packets that wait.
    pub fn all_slots(&self) -> impl Iterator<Item = &Entry<F>> {
        let waiting = self.places.iter().zip(0u16..).filter(|(place, _)| place.generation & 1 == 1);
        waiting.flat_map(|(place, at)| self.slots(Token(u32::from(place.generation) << 16 | u32::from(at))))
    }

    /// One more reader of a packet: it takes one more [`Journal::remove`]. `false`: there is no such packet, or too
    /// many of them.
    pub fn hold(&mut self, token: Token) -> bool {
        let head = self.head(token).and_then(|at| self.places.get_mut(usize::from(at)));
        let nr_holds = head.and_then(|head| Some((head.nr_holds.checked_add(1)?, head)));
        nr_holds.map(|(n, head)| head.nr_holds = n).is_some()
    }

    /// Forgets a packet that nobody else holds, telling `f` each of its slots in order. `false`: there is no such
    /// packet.
    #[inline(always)]
    pub fn remove(&mut self, token: Token, mut f: impl FnMut(&Entry<F>)) -> bool {
        let Some(first) = self.head(token) else { return false };
        if let Some(head) = self.places.get_mut(usize::from(first)).filter(|head| head.nr_holds > 0) {
            head.nr_holds -= 1;
            return true;
        }
        let mut at = first;
        let mut last = first;
        while let Some(place) = self.places.get(usize::from(at)) {
            f(&place.entry);
            last = at;
            at = place.next;
        }
        if let Some(place) = self.places.get_mut(usize::from(last)) {
            place.next = self.free;
        }
        if let Some(head) = self.places.get_mut(usize::from(first)) {
            head.generation = head.generation.wrapping_add(1);
        }
        self.free = first;
        self.nr_packets -= 1;
        true
    }

    /// The packet that was taken next after `after` (first of all, without), of those that wait. For a walk over all of
    /// them, in the order in which the guest has sent them; packets may be removed between the steps, but none added.
    pub fn next_packet(&self, after: Option<Token>) -> Option<Token> {
        let oldest = self.order.wrapping_sub(u32::MAX / 2);
        let age = |p: &Place<F>| p.order.wrapping_sub(oldest);
        let after = after.and_then(|t| Some(age(self.places.get(usize::from(t.place()))?)));
        let waiting = self.places.iter().zip(0u16..).filter(|(p, _)| p.generation & 1 == 1);
        let (place, at) = waiting.filter(|(p, _)| after.is_none_or(|a| age(p) > a)).min_by_key(|(p, _)| age(p))?;
        Some(Token(u32::from(place.generation) << 16 | u32::from(at)))
    }

    /// Where a packet belongs in a list of packets that wait, which is in the order in which the guest has sent them.
    pub fn place_in(&self, list: &[Token], token: Token) -> usize {
        let age = |token: &Token| {
            self.places.get(usize::from(token.place())).map_or(u32::MAX, |place| self.order.wrapping_sub(place.order))
        };
        list.partition_point(|other| age(other) >= age(&token))
    }

    fn head(&self, token: Token) -> Option<u16> {
        let place = self.places.get(usize::from(token.place()))?;
        (place.generation & 1 == 1 && place.generation == token.generation()).then_some(token.place())
    }
}

impl Token {
    #[allow(clippy::cast_possible_truncation, reason = "the low half")]
    fn place(self) -> u16 {
        self.0 as u16
    }

    #[allow(clippy::cast_possible_truncation, reason = "the high half")]
    fn generation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}
