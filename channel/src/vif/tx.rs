//! What a guest sends: slots of its transmit ring become packets, and are answered when nobody reads them any more.
//!
//! What is right is what Linux's netback takes; what it refuses is refused in the same way. There are three ways:
//!
//! - *Refused*: each of the packet's slots is answered with an error, and the next packet is looked at. Too many slots,
//!   pieces longer than the whole, shorter than an Ethernet header; a grant that does not hold (only these slots have
//!   the error then).
//! - *Fatal*: what no front end does by mistake ends the interface. Nothing of that packet is answered. A packet that
//!   goes on behind the last request, a slot that leaves its page, unknown extra information, bad segment sizes,
//!   impossible indices.
//! - *Dropped*: answered as if it were sent. A packet that asks for its checksum to be completed and has none.

use super::credit::Credit;
use super::journal::{About, Entry, Journal, Token};
use super::request::{Extras, Slot};
use super::stats::TxStats;
use crate::grants::{Frames, Grants};
use crate::offload::checksum::pseudo_header;
use crate::offload::headers::{parse, L4};
use crate::pace::{Pace, Unseen};
use crate::packet::{Checksum, Fragment, GsoKind, Packet, HEADER_BYTES};
use crate::page::SharedPage;
use crate::ring::{BackRing, Indices, RingError};
use xen_abi::io::netif::{
    XEN_NETIF_NR_SLOTS_MIN, XEN_NETIF_RSP_ERROR, XEN_NETIF_RSP_NULL, XEN_NETIF_RSP_OKAY, XEN_NETIF_TX_RING_SIZE,
    XEN_NETTXF_CSUM_BLANK, XEN_NETTXF_DATA_VALIDATED, XEN_NETTXF_EXTRA_INFO, XEN_NETTXF_MORE_DATA,
};

pub use super::request::Fatal;

/// Slots of a packet that is accepted: netback counts the 18 without the first.
pub const MAX_SLOTS: usize = XEN_NETIF_NR_SLOTS_MIN as usize + 1;
/// Slots behind the first from which on a packet is not a mistake.
const FATAL_SLOTS: u32 = 20;
const PAGE: u32 = 4096;
/// An Ethernet header.
const MIN_BYTES: u16 = 14;

/// What [`TxQueue::take`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// No request.
    Nothing,
    /// A packet. It waits to be answered with [`TxQueue::complete`].
    Packet(Token),
    /// A packet that came to nothing. It is answered.
    Refused,
    /// The guest has changed the list of its multicast addresses: call [`TxQueue::answer_multicast`].
    Multicast(Multicast),
    /// The guest has used its credit; there is more at this time, in ns.
    NoCredit {
        /// System time, in ns.
        until: u64,
    },
}

/// A change of the list of multicast addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// Added, or else removed.
    pub is_added: bool,
    /// The address.
    pub address: [u8; 6],
    id: u16,
    nr_extra: u16,
}

/// How [`TxQueue::leave`] leaves a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It does not: there are requests.
    Work,
    /// The guest notifies of its next request.
    Asleep,
    /// The guest notifies only of one of its next: the ring is to be looked at within
    /// [`LATE_NS`](crate::pace::LATE_NS).
    Late,
}

/// There is no packet with this token that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadToken;

/// A transmit ring and the packets out of it that wait to be answered. `F`: the guest's frames.
pub struct TxQueue<P, F> {
    ring: BackRing<P, 3, XEN_NETIF_TX_RING_SIZE>,
    journal: Journal<F>,
    /// The slots of the packet in hand.
    slots: [Entry<F>; MAX_SLOTS],
    /// How much the guest may send.
    pub credit: Credit,
    /// What it has sent.
    pub stats: TxStats,
    pace: Pace,
    unseen: Unseen,
    /// Something was taken between the last two times that it was left.
    has_sent: bool,
    /// Requests taken so far when it was left last.
    left_at: u32,
    dead: Option<Fatal>,
}

impl<P: SharedPage, F: Copy + Default> TxQueue<P, F> {
    /// Takes up the ring in `page`.
    pub fn attach(page: P, credit: Credit) -> Result<Self, RingError> {
        let ring = BackRing::attach(page)?;
        Ok(TxQueue {
            left_at: ring.req_cons(),
            pace: Pace::default(),
            unseen: Unseen::default(),
            has_sent: false,
            ring,
            journal: Journal::default(),
            slots: [Entry::default(); MAX_SLOTS],
            credit,
            stats: TxStats::default(),
            dead: None,
        })
    }

    /// The ring's page.
    pub fn page(&self) -> &P {
        self.ring.page()
    }

    /// Where the ring is.
    pub fn indices(&self) -> Indices {
        self.ring.indices()
    }

    /// What ended it, if it has ended.
    pub fn fatal(&self) -> Option<Fatal> {
        self.dead
    }

    /// Slots that wait to be answered, out of `XEN_NETIF_TX_RING_SIZE`.
    #[inline]
    pub fn unanswered(&self) -> u32 {
        self.ring.unanswered()
    }

    /// Requests that are not taken yet.
    #[inline]
    pub fn untaken(&self) -> u32 {
        self.ring.available().unwrap_or(0)
    }

    /// Packets that wait to be answered.
    pub fn journal(&self) -> &Journal<F> {
        &self.journal
    }

    /// Takes the next packet at time `now` (ns) into `packet`. An error ends the queue: the same is answered from then
    /// on. What waits to be answered still is to be.
    #[inline]
    pub fn take<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        now: u64,
        packet: &mut Packet<F>,
    ) -> Result<Take, Fatal> {
        if let Some(fatal) = self.dead {
            return Err(fatal);
        }
        self.try_take(grants, frames, now, packet).inspect_err(|fatal| self.dead = Some(*fatal))
    }

    fn try_take<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        now: u64,
        packet: &mut Packet<F>,
    ) -> Result<Take, Fatal> {
        let available = self.ring.available()?;
        if available == 0 {
            return Ok(Take::Nothing);
        }
        let first = Slot::decode(self.ring.request(0));
        if let Err(until) = self.credit.charge(first.size, now) {
            return Ok(Take::NoCredit { until });
        }
        if first.flags & (XEN_NETTXF_EXTRA_INFO | XEN_NETTXF_MORE_DATA) == 0 {
            // As most are: no loop is left of what is done for each slot.
            let Some((_, total)) = self.gather(&first, &Extras::default(), available)? else {
                return Ok(Take::Refused);
            };
            self.ring.consume(1);
            return Ok(self.keep(grants, frames, About { flags: first.flags, gso: None }, (1, total), packet));
        }
        self.take_many(grants, frames, (&first, available), packet)
    }

    /// Takes a packet of more than one slot, `first` of `available`, or extra information.
    #[inline(never)]
    fn take_many<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        (first, available): (&Slot, u32),
        packet: &mut Packet<F>,
    ) -> Result<Take, Fatal> {
        let extras = if first.flags & XEN_NETTXF_EXTRA_INFO != 0 {
            Extras::read(available, |i| self.ring.request(i))?
        } else {
            Extras::default()
        };
        if let Some(address) = extras.added.or(extras.removed) {
            self.ring.consume(1 + extras.count);
            #[allow(clippy::cast_possible_truncation, reason = "fewer than 256")]
            let nr_extra = extras.count as u16;
            let is_added = extras.added.is_some();
            return Ok(Take::Multicast(Multicast { is_added, address, id: first.id, nr_extra }));
        }
        let Some((nr_slots, total)) = self.gather(first, &extras, available)? else { return Ok(Take::Refused) };
        let about = About { flags: first.flags, gso: extras.gso()? };
        self.ring.consume(extras.count + nr_slots);
        Ok(self.keep(grants, frames, about, (nr_slots as usize, total), packet))
    }

    /// Begins to use the packet in hand, of so many slots and bytes: it is put into `packet`, and kept until it is
    /// answered.
    #[inline(always)]
    fn keep<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        about: About,
        (nr_slots, total): (usize, u16),
        packet: &mut Packet<F>,
    ) -> Take {
        if !self.pin(grants, nr_slots) {
            return Take::Refused;
        }
        fill(&self.slots[..nr_slots], total.into(), frames, packet);
        packet.gso = about.gso;
        if !settle_checksum(about.flags, packet, &mut self.stats) {
            self.stats.dropped += 1;
            self.give_back(grants, nr_slots, 0);
            return Take::Refused;
        }
        let Some(token) = self.journal.add(about, &self.slots[..nr_slots]) else {
            self.give_back(grants, nr_slots, 0);
            return Take::Refused;
        };
        self.stats.packets += 1;
        self.stats.bytes += u64::from(packet.len());
        Take::Packet(token)
    }

    /// Reads a packet's slots into `self.slots`. Returns how many they are and the packet's length. `None`: the packet
    /// was refused.
    #[inline(always)]
    fn gather(&mut self, first: &Slot, extras: &Extras, available: u32) -> Result<Option<(u32, u16)>, Fatal> {
        let total = first.size;
        let mut rest = total;
        let mut more = 0;
        let mut is_bad = false;
        let mut flags = first.flags;
        while flags & XEN_NETTXF_MORE_DATA != 0 {
            if 1 + extras.count + more >= available {
                return Err(Fatal::SlotsMissing);
            }
            if more >= FATAL_SLOTS {
                return Err(Fatal::SlotsEndless);
            }
            let slot = Slot::decode(self.ring.request(1 + extras.count + more));
            is_bad |= more >= XEN_NETIF_NR_SLOTS_MIN;
            if slot.crosses_page() {
                return Err(Fatal::CrossesPage { offset: slot.offset, size: slot.size });
            }
            // Pieces longer than the whole leave nothing for the first slot, which is refused below.
            rest = rest.saturating_sub(slot.size);
            more += 1;
            if let Some(place) = self.slots.get_mut(more as usize) {
                *place = entry(&slot, slot.size);
            }
            flags = slot.flags;
        }
        // As in netback, the first slot is what the others leave of the whole.
        if is_bad || rest < MIN_BYTES {
            self.refuse(first, extras, more);
            return Ok(None);
        }
        if u32::from(first.offset) + u32::from(rest) > PAGE {
            return Err(Fatal::CrossesPage { offset: first.offset, size: rest });
        }
        self.slots[0] = entry(first, rest);
        #[allow(clippy::cast_possible_truncation, reason = "fewer than 256")]
        {
            self.slots[0].nr_extra = extras.count as u16;
        }
        Ok(Some((more + 1, total)))
    }

    /// Answers each slot of a packet with an error: the first, and `more` behind the extra information.
    #[cold]
    fn refuse(&mut self, first: &Slot, extras: &Extras, more: u32) {
        self.stats.errors += 1;
        // Answers go over requests, the first over the first: ids are read before.
        let mut ids = [0; FATAL_SLOTS as usize];
        for (id, i) in ids.iter_mut().zip(0..more) {
            *id = Slot::decode(self.ring.request(1 + extras.count + i)).id;
        }
        self.ring.consume(1 + extras.count + more);
        self.answer(first.id, extras.count, XEN_NETIF_RSP_ERROR);
        for (id, _) in ids.into_iter().zip(0..more) {
            self.answer(id, 0, XEN_NETIF_RSP_ERROR);
        }
    }

    /// Begins to use the grants of the packet in hand. `false`: not all hold; the packet is answered.
    #[inline(always)]
    fn pin<G: Grants<Frame = F>>(&mut self, grants: &mut G, nr_slots: usize) -> bool {
        let mut bad = 0u32;
        for (i, slot) in self.slots[..nr_slots].iter_mut().enumerate() {
            match grants.pin(slot.gref, false) {
                Ok(frame) => slot.frame = frame,
                Err(_) => bad |= 1 << i,
            }
        }
        if bad != 0 {
            self.stats.errors += 1;
            self.give_back(grants, nr_slots, bad);
        }
        bad == 0
    }

    /// Answers the packet in hand, whose grants are in use but for those that `bad` has bits of: these with an error.
    #[cold]
    fn give_back<G: Grants<Frame = F>>(&mut self, grants: &mut G, nr_slots: usize, bad: u32) {
        for i in 0..nr_slots {
            let slot = self.slots[i];
            let is_bad = bad >> i & 1 == 1;
            if !is_bad {
                grants.unpin(slot.gref, false);
            }
            let status = if is_bad { XEN_NETIF_RSP_ERROR } else { XEN_NETIF_RSP_OKAY };
            self.answer(slot.id, slot.nr_extra.into(), status);
        }
    }

    /// One more reads a packet: it is answered when [`TxQueue::complete`] was called once more. Readers are not told
    /// apart, so one that is not trusted gets another name for the packet, which is good once.
    pub fn hold(&mut self, token: Token) -> Result<(), BadToken> {
        if self.journal.hold(token) {
            Ok(())
        } else {
            Err(BadToken)
        }
    }

    /// A reader of a packet is done with it. After the last one its grants are given back, and then it is answered.
    /// `status`: `XEN_NETIF_RSP_*`.
    #[inline(always)]
    pub fn complete<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        token: Token,
        status: i16,
    ) -> Result<(), BadToken> {
        let ring = &mut self.ring;
        let is_known = self.journal.remove(token, |slot| {
            grants.unpin(slot.gref, false);
            respond(ring, slot.id, slot.nr_extra.into(), status);
        });
        if is_known {
            Ok(())
        } else {
            Err(BadToken)
        }
    }

    /// Answers a change of the multicast list.
    pub fn answer_multicast(&mut self, change: Multicast, is_done: bool) {
        let status = if is_done { XEN_NETIF_RSP_OKAY } else { XEN_NETIF_RSP_ERROR };
        self.answer(change.id, change.nr_extra.into(), status);
    }

    /// See [`Journal::place_in`].
    pub fn place_in(&self, list: &[Token], token: Token) -> usize {
        self.journal.place_in(list, token)
    }

    /// Makes a packet that waits anew, to send it again. Its sender may have changed it: whatever was decided about it
    /// is to be decided again. `false`: there is no such packet, or no longer one that can be sent.
    pub fn rebuild(&mut self, token: Token, frames: &impl Frames<F>, packet: &mut Packet<F>) -> bool {
        let Some(About { flags, gso }) = self.journal.about(token) else { return false };
        fill(self.journal.slots(token), HEADER_BYTES, frames, packet);
        packet.gso = gso;
        settle_checksum(flags, packet, &mut self.stats)
    }

    /// Lets the guest see all answers. `true`: it wants an event.
    #[inline]
    pub fn push(&mut self) -> bool {
        self.unseen.shown();
        self.ring.push()
    }

    /// Of a ring that was left [`Left::Late`] at `now` (ns): need the guest not see its answers before the next look? A
    /// busy sender is told of many together. One that has sent nothing since the look before may wait for them.
    #[inline]
    pub fn answers_may_wait(&mut self, now: u64) -> bool {
        let answers = self.ring.unpushed();
        answers == 0 || self.has_sent && self.unseen.may_wait(answers, now)
    }

    /// To be called before the ring is left alone, at time `now` (ns): asks for an event at the next request, or, of a
    /// guest that is busy sending and if `may_be_late`, at one of the next.
    #[inline]
    pub fn leave(&mut self, now: u64, may_be_late: bool) -> Result<Left, Fatal> {
        if let Some(fatal) = self.dead {
            return Err(fatal);
        }
        let mut pace = self.pace;
        let taken = self.ring.req_cons().wrapping_sub(self.left_at);
        let ahead = pace.looked(taken, now);
        let ahead = if may_be_late { ahead } else { 1 };
        if self.ring.ask_for_event(ahead)? {
            return Ok(Left::Work);
        }
        (self.pace, self.left_at, self.has_sent) = (pace, self.ring.req_cons(), taken > 0);
        Ok(if ahead > 1 { Left::Late } else { Left::Asleep })
    }

    /// Gives back all grants of packets that wait, without an answer: the guest has closed its end, or is gone. No
    /// device may still be reading them.
    pub fn close<G: Grants<Frame = F>>(self, grants: &mut G) {
        // However many read each.
        self.journal.all_slots().for_each(|slot| grants.unpin(slot.gref, false));
    }

    fn answer(&mut self, id: u16, nr_extra: u32, status: i16) {
        respond(&mut self.ring, id, nr_extra, status);
    }
}

/// Answers a slot and the extra information behind it.
#[inline]
fn respond<P: SharedPage>(ring: &mut BackRing<P, 3, XEN_NETIF_TX_RING_SIZE>, id: u16, nr_extra: u32, status: i16) {
    let word = |id: u16, status: i16| [u32::from(id) | u32::from(u16::from_ne_bytes(status.to_ne_bytes())) << 16];
    let mut is_room = ring.respond(word(id, status));
    for _ in 0..nr_extra {
        is_room &= ring.respond(word(0, XEN_NETIF_RSP_NULL));
    }
    debug_assert!(is_room, "more answers than requests");
}

fn entry<F: Default>(slot: &Slot, size: u16) -> Entry<F> {
    Entry { frame: F::default(), gref: slot.gref, offset: slot.offset, size, id: slot.id, nr_extra: 0 }
}

/// Copies a packet's beginning and lists the rest. `total`: its length, or more.
#[inline(always)]
fn fill<'a, F: Copy + 'a>(
    slots: impl IntoIterator<Item = &'a Entry<F>>,
    total: usize,
    frames: &impl Frames<F>,
    packet: &mut Packet<F>,
) {
    packet.clear();
    let mut want = total.min(HEADER_BYTES);
    for slot in slots {
        #[allow(clippy::cast_possible_truncation, reason = "at most slot.size")]
        let copied = want.min(slot.size.into()) as u16;
        if copied > 0 {
            frames.read(slot.frame, slot.offset, packet.extend_header(copied.into()));
            want -= usize::from(copied);
        }
        packet.push(Fragment { frame: slot.frame, offset: slot.offset + copied, len: slot.size - copied });
    }
}

/// Finds out what a packet's checksum needs. `false`: it cannot be done.
#[inline(always)]
fn settle_checksum<F: Copy>(flags: u16, packet: &mut Packet<F>, stats: &mut TxStats) -> bool {
    let is_blank = flags & XEN_NETTXF_CSUM_BLANK != 0;
    if !is_blank && packet.gso.is_none() {
        if flags & XEN_NETTXF_DATA_VALIDATED != 0 {
            packet.checksum = Checksum::Validated;
        }
        return true;
    }
    let Some(headers) = parse(packet.header()) else { return false };
    if let Some(gso) = packet.gso {
        if headers.protocol != L4::Tcp || headers.is_v6 != (gso.kind == GsoKind::TcpV6) {
            return false;
        }
    }
    let field = headers.l4 + headers.protocol.field();
    #[allow(clippy::cast_possible_truncation, reason = "headers are short")]
    let (start, at) = (headers.l4 as u16, field as u16);
    if !is_blank {
        // A packet to be cut has no checksum yet, even if its sender forgot to say so: make it what it should be.
        stats.gso_checksum_fixup += 1;
        let Some(sum) = pseudo_header(packet.header(), &headers, packet.len() - u32::from(start)) else { return false };
        let Some(place) = packet.header_mut().get_mut(field..field + 2) else { return false };
        place.copy_from_slice(&sum.to_be_bytes());
    }
    packet.checksum = Checksum::Blank { start, field: at };
    true
}

#[cfg(test)]
mod tests;
