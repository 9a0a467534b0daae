//! Room for packets, and the way of packets to a card.

use super::lane::wanted;
use super::link::{About, CardQueue};
use super::place::{lane, look_soon, want, PLACES};
use super::queue::Outgoing;
use crate::domain::memory::log_dirty;
use crate::twin::common::Common;
use crate::twin::table;
use core::sync::atomic::Ordering;
use twin_runtime::linux::pool::{LentPage, Pool, Reserved, MAX_PAGES};
use twin_runtime::linux::skb::HEADROOM;
use x86::{MachAddr, Mfn, PAGE_SIZE};

/// What a packet needs.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Bytes of it.
    pub len: u32,
    /// Of these, the first that are to lie in the buffer; what does not fit there otherwise goes into pages, if the
    /// card takes that.
    pub header: u16,
    /// The card takes pages.
    pub may_have_pages: bool,
}

/// Rooms that are asked for at once, and packets that are queued at once.
const AT_ONCE: usize = 8;

/// Room for a packet, in a buffer that the driver domain lent, and in lent pages behind it: the hypervisor holds their
/// frames, writable.
#[derive(Clone, Copy, Default)]
pub struct Room {
    skb: u64,
    /// Where the buffer begins in the machine: the Ethernet header goes here.
    machine: u64,
    /// Bytes of it.
    room: u16,
    /// Pages for the rest; 0: all of the packet fits into the buffer.
    nr_pages: u8,
}

impl Room {
    /// The frame in which the buffer is.
    #[inline]
    pub fn frame(&self) -> Mfn {
        Mfn::containing(MachAddr::new(self.machine))
    }

    /// Where the buffer begins in it.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "in one page")]
    pub fn offset(&self) -> u16 {
        MachAddr::new(self.machine).page_offset() as u16
    }

    /// Number of its pages.
    #[inline]
    pub fn nr_pages(&self) -> usize {
        self.nr_pages.into()
    }
}

/// Room for the next packets of a sender, and its packets that are not queued yet. Each is a slot of one of the card's
/// queues, and is not kept for long: whoever takes a card away waits for those who have one. See [`Self::finish`].
pub struct Rooms {
    of: CardQueue,
    rooms: [Room; AT_ONCE],
    nr_rooms: usize,
    sent: [Outgoing; AT_ONCE],
    nr_sent: usize,
}

impl Default for Rooms {
    fn default() -> Self {
        let (rooms, sent) = ([Room::default(); AT_ONCE], [Outgoing::default(); AT_ONCE]);
        Self { of: CardQueue::NONE, rooms, nr_rooms: 0, sent, nr_sent: 0 }
    }
}

impl Rooms {
    /// Makes room for a packet to a queue of a card's, and if there is none here, for as many more as are `wanted` at
    /// once. It stays here until
    /// [`Self::send`]. `None`: there is none before `transmitted` was called again; or the card is gone.
    #[inline(always)]
    pub fn make(&mut self, of: CardQueue, need: Need, wanted: impl FnOnce() -> usize) -> Option<Room> {
        if self.nr_rooms == 0 || self.of != of {
            self.reserve(of, need, wanted());
        }
        let is_enough = self.next().is_some_and(|room| need.len <= room.room.into()) || self.add_pages(need);
        self.next().filter(|_| is_enough).copied()
    }

    /// The room for the next packet.
    #[inline(always)]
    fn next(&self) -> Option<&Room> {
        self.rooms.get(self.nr_rooms.checked_sub(1)?)
    }

    /// The pages behind it, and how many those are. If they are fewer than its room says the packet is given up when it
    /// is made ready for the driver.
    pub fn pages(&self) -> ([Mfn; MAX_PAGES], usize) {
        let mut pages = [LentPage::default(); MAX_PAGES];
        let mut count = |common: &Common, skb| common.with_pool(|pool| pool.pages(skb, &mut pages));
        let skb = self.next().map(|room| room.skb);
        let count = skb.and_then(|skb| table::with_common(self.of.place(), |common| count(common, skb)));
        (pages.map(|page| Mfn::containing(MachAddr::new(page.machine))), count.unwrap_or(0))
    }

    /// Adds pages to the next room, for what does not fit into its buffer. `false`: there are none, or there may be
    /// none.
    #[cold]
    #[inline(never)]
    fn add_pages(&mut self, need: Need) -> bool {
        let Some(at) = self.nr_rooms.checked_sub(1) else { return false };
        let Some(room) = self.rooms.get_mut(at) else { return false };
        let may = need.may_have_pages && need.header <= room.room && room.nr_pages == 0;
        let bytes = need.len.checked_sub(need.header.into()).filter(|_| may);
        let (of, skb) = (self.of, room.skb);
        let add = |bytes| move |common: &Common| common.with_pool(|pool| add_pages(pool, of, skb, bytes));
        let added = bytes.and_then(|bytes| table::with_common(of.place(), add(bytes)).flatten());
        if added.is_none() {
            found_no_room(of);
        }
        added.map(|nr_pages| room.nr_pages = nr_pages).is_some()
    }

    #[inline(never)]
    fn reserve(&mut self, of: CardQueue, need: Need, wanted: usize) {
        self.finish();
        self.of = of;
        let granted = {
            let mut queue = lane(of).queue.lock();
            let granted = queue.reserve(of, wanted.clamp(1, AT_ONCE));
            if granted == 0 {
                // Said before its runner makes room, who goes on by himself.
                return PLACES[of.place()].is_starved.store(true, Ordering::Relaxed);
            }
            granted
        };
        let queue = of.number();
        let take = |common: &Common| {
            let bytes = u64::from(need.header) + common.support.overhead();
            common.with_pool(|pool| {
                for to in self.rooms.iter_mut().take(granted) {
                    let room = pool.has_room_for(queue).then(|| pool.reserve(bytes, queue));
                    let Some(Reserved { skb, size, machine }) = room.flatten() else { break };
                    #[allow(clippy::cast_possible_truncation, reason = "in one page")]
                    let room = common.support.room(size) as u16;
                    *to = Room { skb, machine: machine + HEADROOM, room, nr_pages: 0 };
                    self.nr_rooms += 1;
                }
            });
        };
        table::with_common(of.place(), take);
        if self.nr_rooms < granted {
            lane(of).queue.lock().give_back(granted - self.nr_rooms);
        }
        if self.nr_rooms == 0 {
            found_no_room(of);
        }
    }

    /// The packet that was copied to `room`, which [`Self::make`] said last, goes out at `now` (ns), with those that
    /// follow. `cookie` comes back when the driver is done with it.
    #[inline(always)]
    pub fn send(&mut self, room: Room, cookie: u64, about: About, now: u64) {
        if log_dirty::any() {
            self.mark_dirty();
        }
        if self.nr_sent == AT_ONCE {
            self.flush();
        }
        if let (Some(left), Some(to)) = (self.nr_rooms.checked_sub(1), self.sent.get_mut(self.nr_sent)) {
            let about = About { len: about.len.min(room.room), ..about };
            *to = Outgoing { skb: room.skb, cookie, about, since_ns: now };
            (self.nr_rooms, self.nr_sent) = (left, self.nr_sent + 1);
        }
    }

    /// The packet that was copied to the next room counts as written.
    #[cold]
    fn mark_dirty(&self) {
        let Some(room) = self.next() else { return };
        log_dirty::mark(room.frame());
        let (pages, count) = self.pages();
        pages.iter().take(count.min(room.nr_pages())).for_each(|page| log_dirty::mark(*page));
    }

    /// What was sent is queued: it goes out when this CPU leaves the hypervisor or has nothing else to do, if not
    /// earlier.
    fn flush(&mut self) {
        let sent = self.sent.get(..self.nr_sent).unwrap_or_default();
        lane(self.of).queue.lock().send(sent);
        self.nr_sent = 0;
        want(self.of.place(), self.of.number(), wanted::SEND);
    }

    /// What was sent goes out, and what is left of the room is given back: to be called before the sender's side is let
    /// go of.
    #[inline]
    pub fn finish(&mut self) {
        if self.nr_sent != 0 {
            self.flush();
        }
        if self.nr_rooms != 0 {
            self.give_back();
        }
    }

    #[inline(never)]
    fn give_back(&mut self) {
        let rooms = self.rooms.get(..self.nr_rooms).unwrap_or_default();
        // The twin does not go while there is a slot.
        table::with_common(self.of.place(), |common| {
            common.with_pool(|pool| rooms.iter().for_each(|room| pool.unreserve(room.skb)));
        });
        lane(self.of).queue.lock().give_back(rooms.len());
        self.nr_rooms = 0;
    }
}

impl Drop for Rooms {
    fn drop(&mut self) {
        self.finish();
    }
}

/// There was no buffer for a packet to this queue: a runner of the card's has to look for some, as the domain may have
/// freed what the driver had, of which nothing tells.
#[cold]
fn found_no_room(of: CardQueue) {
    PLACES[of.place()].is_starved.store(true, Ordering::Relaxed);
    look_soon(of.place(), of.number());
}

/// Gives `skb` pages for `bytes` bytes, and says how many.
fn add_pages(pool: &mut Pool, of: CardQueue, skb: u64, bytes: u32) -> Option<u8> {
    let count = bytes.div_ceil(PAGE_SIZE as u32);
    let mut pages = [LentPage::default(); MAX_PAGES];
    let pages = pages.get_mut(..count as usize)?;
    (pool.has_pages_for(of.number(), pages.len()) && pool.add_pages(skb, pages))
        .then(|| u8::try_from(count).ok())
        .flatten()
}
