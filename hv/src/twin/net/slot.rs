//! Room for packets, and the way of packets to a card.

use super::link::{About, Card};
use super::place::{queue, want, wanted};
use super::queue::Outgoing;
use crate::domain::memory::log_dirty;
use crate::twin::common::Common;
use crate::twin::table;
use twin_runtime::linux::pool::{LentPage, Pool};
use twin_runtime::linux::skb::HEADROOM;
use x86::{MachAddr, Mfn, PAGE_SIZE};

/// Most pages of a packet besides its buffer: as many as its 65535 bytes need.
const MAX_PAGES: usize = 16;

/// What a packet needs.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Bytes of it.
    pub len: u32,
    /// Of these, the first that are to lie in the buffer; what does not fit there otherwise goes into pages, if the card takes that.
    pub header: u16,
    /// The card takes pages.
    pub may_have_pages: bool,
}

/// Room for a packet, in a buffer that the driver domain lent, and in lent pages behind it. Dropped, it is given back. It is not kept for
/// long: whoever takes a card away waits for those who have one.
pub struct Slot {
    /// The frame in which the buffer is; the hypervisor holds it, and the pages, writable, while this lives.
    pub frame: Mfn,
    /// Where the buffer begins in it: the Ethernet header goes here.
    pub offset: u16,
    /// Bytes of it.
    pub room: u16,
    /// Pages for the rest; 0: all of the packet fits into the buffer.
    pub nr_pages: u8,
    card: Card,
    skb: u64,
}

impl Slot {
    /// Its pages.
    pub fn pages(&self) -> [Mfn; MAX_PAGES] {
        let mut pages = [LentPage::default(); MAX_PAGES];
        table::with_common(self.card.place(), |common| common.with_pool(|pool| pool.pages(self.skb, &mut pages)));
        pages.map(|page| Mfn::containing(MachAddr::new(page.machine)))
    }

    /// What was copied here counts as written.
    #[cold]
    fn mark_dirty(&self) {
        log_dirty::mark(self.frame);
        self.pages().iter().take(self.nr_pages.into()).for_each(|page| log_dirty::mark(*page));
    }

    /// Queues the packet that was copied here at `now` (ns). `cookie` comes back when the driver is done with it.
    #[inline(always)]
    pub fn send(self, cookie: u64, about: About, now: u64) {
        if log_dirty::any() {
            self.mark_dirty();
        }
        let about = About { len: about.len.min(self.room), ..about };
        queue(self.card).lock().send(Outgoing { skb: self.skb, cookie, about, since_ns: now });
        core::mem::forget(self);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The twin does not go while there is a slot.
        table::with_common(self.card.place(), |common| common.with_pool(|pool| pool.unreserve(self.skb)));
        queue(self.card).lock().give_back();
    }
}

/// Room for a packet. `None`: there is none before `transmitted` was called again; or the card is gone.
#[inline(always)]
pub fn reserve(card: Card, need: Need) -> Option<Slot> {
    if !queue(card).lock().reserve(card) {
        return None;
    }
    let slot = table::with_common(card.place(), |common| take(common, card, need)).flatten();
    if slot.is_none() {
        queue(card).lock().found_no_room();
    }
    slot
}

#[inline(always)]
fn take(common: &Common, card: Card, need: Need) -> Option<Slot> {
    common.with_pool(|pool| {
        // The rest is for what is received.
        let has_enough = pool.free().0 > pool.whole() / 4;
        let overhead = common.support.overhead();
        let (skb, lent) = has_enough.then(|| pool.reserve(u64::from(need.header) + overhead)).flatten()?;
        let start = MachAddr::new(lent.machine + HEADROOM);
        #[allow(clippy::cast_possible_truncation, reason = "in one page")]
        let (offset, room) = (start.page_offset() as u16, common.support.room(lent.size) as u16);
        let nr_pages = match need.len <= room.into() {
            true => Some(0),
            false => need.may_have_pages.then(|| add_pages(pool, skb, need.len - u32::from(need.header))).flatten(),
        };
        let Some(nr_pages) = nr_pages else {
            pool.unreserve(skb);
            return None;
        };
        Some(Slot { frame: Mfn::containing(start), offset, room, nr_pages, card, skb })
    })
}

/// Gives `skb` pages for `bytes` bytes, and says how many.
#[cold]
fn add_pages(pool: &mut Pool, skb: u64, bytes: u32) -> Option<u8> {
    let count = bytes.div_ceil(PAGE_SIZE as u32);
    let mut pages = [LentPage::default(); MAX_PAGES];
    let pages = pages.get_mut(..count as usize)?;
    let (_, nr_lent) = pool.lent();
    // Some of them for what is received, too.
    let has_enough = pool.free().2 > nr_lent / 4 + pages.len();
    (has_enough && pool.add_pages(skb, pages)).then(|| u8::try_from(count).ok()).flatten()
}

/// What was sent by slots goes out when this CPU leaves the hypervisor or has nothing else to do, if not earlier.
pub fn kick(card: Card) {
    want(card.place(), wanted::SEND);
}
