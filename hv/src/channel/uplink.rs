//! A network card that a twin drives, as its switch's way out.
//!
//! A packet is copied into a buffer of the card's, cut and summed if the card does neither, while the guest sends it:
//! no grant of a guest's is in use for the card's sake. The guest is answered when the driver is done with all pieces,
//! which holds it back when the card is slow. A packet in one piece is the card's to answer; of one that is cut each
//! piece is one more reader. Without a buffer it waits for its turn ([`Turns`]), until the driver is done with others.

use super::access::{Bytes, Held, RingPage};
use super::held;
use super::timed::REST_NS;
use super::traffic::{self, Again, Batch, Budget, TICK_NS};
use super::tray::Tray;
use super::vif::{Handle, Item, Line, Tx, MAX_VIFS};
use crate::arch::tsc;
use crate::cpu::requests;
use crate::domain::dma_faults::DmaFaults;
use crate::domain::Domain;
use crate::sched::timers;
use crate::sync::FairMutex;
use crate::twin::net::{self, About, Card, CardQueue, Need, Room, Rooms, Segments, MAX_CARDS};
use ::channel::card::deal::Deal;
use ::channel::card::frames::{self, Sent, Takes};
use ::channel::card::lots::{self, Lots};
use ::channel::card::turns::{NoMemory, Turns};
use ::channel::grants::Frames;
use ::channel::offload::segment::Cutter;
use ::channel::packet::{Checksum, Fragment, Gso, GsoKind, View};
use ::channel::switch::{Onward, PortId};
use ::channel::vif::features::Accepts;
use ::channel::vif::journal::Token;
use ::channel::vif::rx::Progress;
use ::channel::vif::tx::TxQueue;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use x86::PAGE_SIZE;
use xen_abi::errno::Errno;

/// What went one way.
#[derive(Clone, Copy, Default)]
pub struct Passed {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were lost.
    pub dropped: u64,
}

impl Passed {
    /// A packet of `bytes` bytes, which was passed on or lost.
    #[inline]
    pub fn count(&mut self, bytes: u32, is_passed: bool) {
        if is_passed {
            self.packets += 1;
            self.bytes += u64::from(bytes);
        } else {
            self.dropped += 1;
        }
    }
}

/// What waits for a way out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// Packets.
    pub packets: u16,
    /// It, or one of its queues, has taken nothing for so long that nothing waits for it any more.
    pub is_stalled: bool,
}

/// A card.
pub struct Uplink {
    card: Card,
    takes: Takes,
    /// What it says of sums of what it receives is believed.
    is_believed: bool,
    /// The switch, and the first of its tables that has the card: in earlier ones its place is another's.
    link: Option<(u32, u64)>,
    /// Of its domain's devices.
    dma_faults: Arc<DmaFaults>,
    /// By which of its transmit queues each queue of an interface sends.
    deal: Deal,
    queues: Vec<Queue>,
    /// Which of them is tried first.
    first: usize,
    /// What went out.
    pub sent: Passed,
    /// What came in. Lost is what the switch did not pass on.
    pub received: Passed,
    /// One for each of its lanes, of which each is run by one CPU at a time; who sorts frames has one meanwhile.
    #[allow(clippy::vec_box, reason = "they are taken out and put back for each few frames")]
    trays: Vec<Box<Tray>>,
}

/// More frames than a card takes that has no queues.
const FEW: u64 = 8;

/// One of a card's transmit queues.
struct Queue {
    name: CardQueue,
    waiting: Turns<Item>,
}

/// All places.
static UPLINKS: [FairMutex<Option<Box<Uplink>>>; MAX_CARDS] = [const { FairMutex::new(None) }; MAX_CARDS];
/// Places that have ever been in use are below.
static USED: AtomicUsize = AtomicUsize::new(0);

impl Uplink {
    /// Frames that the card takes, with so many queues.
    pub fn frames(nr_queues: u8) -> u64 {
        let [waiting, senders] = Turns::<Item>::bytes(MAX_VIFS);
        let turns = waiting.div_ceil(PAGE_SIZE) + senders.div_ceil(PAGE_SIZE);
        // Besides: itself, and its short lists.
        FEW + u64::from(nr_queues) * (turns + Tray::FRAMES) as u64
    }

    /// One without a switch, which belongs to the domain's interface in that place; and whether sums and segments are
    /// left to it. ENOMEM.
    pub fn new(
        card: Card,
        domain: &Domain,
        interface: u16,
        (takes, leaves_sums): (&net::Takes, bool),
    ) -> Result<Box<Self>, Errno> {
        let accepts = Accepts {
            sg: takes.pages,
            gso_v4: takes.segments_v4 && leaves_sums,
            gso_v6: takes.segments_v6 && leaves_sums,
            csum_v4: takes.checksum_v4 && leaves_sums,
            csum_v6: takes.checksum_v6 && leaves_sums,
        };
        let longest = if takes.pages { u16::MAX.into() } else { PAGE_SIZE as u32 };
        let nr_queues = takes.nr_queues;
        let takes = Takes { max_frame: takes.max_frame.min(longest), accepts };
        let no_memory = |_: NoMemory| Errno::ENOMEM;
        let mut deal = Deal::new(MAX_VIFS, nr_queues).map_err(no_memory)?;
        deal.leave_out(interface);
        let mut queues = Vec::new();
        queues.try_reserve_exact(deal.nr_queues()).map_err(|_| Errno::ENOMEM)?;
        let mut trays = Vec::new();
        trays.try_reserve_exact(deal.nr_queues()).map_err(|_| Errno::ENOMEM)?;
        for n in 0..deal.nr_queues() {
            let waiting = Turns::new(MAX_VIFS, tsc::now_ns()).map_err(no_memory)?;
            queues.push(Queue { name: card.queue(n), waiting });
            trays.push(Tray::new()?);
        }
        let (sent, received) = (Passed::default(), Passed::default());
        let dma_faults = domain.dma_faults.clone();
        let is_believed = leaves_sums;
        let (link, first) = (None, 0);
        Ok(Box::new(Self { card, takes, is_believed, link, dma_faults, deal, queues, first, sent, received, trays }))
    }

    /// Its switch, as long as what comes by it is to be believed; and whether its word for sums is, too.
    pub fn link(&self) -> Option<(u32, bool)> {
        self.link.filter(|_| !self.dma_faults.has_any()).map(|(switch, _)| (switch, self.is_believed))
    }

    /// What frames are sorted in, until [`Self::put_tray`].
    pub fn take_tray(&mut self) -> Option<Box<Tray>> {
        self.trays.pop()
    }

    /// They are.
    pub fn put_tray(&mut self, tray: Box<Tray>) {
        // There is room: it was here before.
        self.trays.push(tray);
    }

    /// So much came in.
    pub fn count_received(&mut self, passed: &Passed) {
        self.received.packets += passed.packets;
        self.received.bytes += passed.bytes;
        self.received.dropped += passed.dropped;
    }

    /// What waits for it.
    pub fn waits(&self) -> Waits {
        let packets = self.queues.iter().map(|queue| queue.waiting.len()).sum();
        Waits { packets, is_stalled: self.queues.iter().any(|queue| queue.waiting.is_stalled()) }
    }

    /// The queue of `sender`, if his packets may go at once: those that wait there go first.
    fn open_queue(&mut self, sender: Handle) -> Option<Out> {
        let queue = self.queues.get(self.deal.queue_of(sender.place()))?;
        queue.waiting.is_empty().then_some(Out { card: self.card, queue: queue.name, takes: self.takes })
    }

    /// Does nothing wait?
    fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| queue.waiting.is_empty())
    }

    /// At time `now` (ns) the driver was done with packets of these: their queues go on. With none: all of them may.
    fn has_room(&mut self, cookies: &[u64], now: u64) {
        let deal = &self.deal;
        let goes_on = |queue: usize| {
            let is_its = |cookie: &u64| deal.known(sender_of(*cookie).place()) == Some(queue);
            deal.nr_queues() == 1 || cookies.is_empty() || cookies.iter().any(is_its)
        };
        for (queue, Queue { waiting, .. }) in self.queues.iter_mut().enumerate() {
            if !waiting.is_idle() && goes_on(queue) {
                waiting.has_room(now);
            }
        }
    }

    /// Packets were sent without its being locked.
    fn count_sent(&mut self, passed: &Passed) {
        self.sent.packets += passed.packets;
        self.sent.bytes += passed.bytes;
    }

    /// The packet in the hand of `tx`, which waits, goes out by a queue; `more` of the same sender's follow. It counts.
    #[cold]
    #[inline(never)]
    fn send(
        &mut self,
        queue: usize,
        (tx, item): (&mut Tx, &mut Item),
        now: u64,
        more: u16,
        budget: &mut Budget,
    ) -> Went {
        let out = Out { card: self.card, queue: self.card.queue(queue), takes: self.takes };
        let went = out.send(tx, item, now, Some(more), budget);
        match went {
            Went::Not => {}
            Went::Lost => self.sent.dropped += 1,
            Went::Out | Went::Done => self.sent.count(tx.packet.len(), true),
        }
        went
    }
}

/// The card to which the next packets of a sender go as well, for as long as its transmit side is held.
#[derive(Default)]
pub struct Ahead {
    to: Option<(PortId, Out)>,
    /// What it was given, and has not counted.
    sent: Passed,
    rooms: Rooms,
}

impl Ahead {
    /// What was sent goes out; nothing is kept of the card.
    #[inline]
    pub fn finish(&mut self) {
        if let Some((_, out)) = self.to.take() {
            self.rooms.finish();
            let sent = core::mem::take(&mut self.sent);
            with(out.card, |uplink| uplink.count_sent(&sent));
        }
    }
}

/// A card's queue, for who sends a packet by it.
#[derive(Clone, Copy)]
struct Out {
    card: Card,
    queue: CardQueue,
    takes: Takes,
}

impl Out {
    /// The packet in the hand of `tx` goes out, if there is room. Whoever takes the card away waits until it is copied.
    /// `more`: how many of the same sender's follow, if it is known; else as many as are in his ring.
    #[inline(always)]
    fn send(self, tx: &mut Tx, item: &mut Item, now: u64, more: Option<u16>, budget: &mut Budget) -> Went {
        let Tx { packet, queue, ahead: Ahead { rooms, .. }, .. } = tx;
        let view = packet.view();
        if !frames::is_plain(&self.takes, &view) {
            return self.send_changed(tx, item, now, more, budget);
        }
        let mut way = Way { out: self, cookie: cookie_of(item), queue, budget, is_one: true, more, now, rooms };
        match frames::send_plain(&mut way, &self.takes, &view) {
            Sent::NoRoom => Went::Not,
            Sent::Unfit => Went::Lost,
            Sent::Done => Went::Out,
        }
    }

    /// The same of a packet that is cut, or summed here. Apart, so that what is said of a plain one need not lie in
    /// memory.
    #[inline(never)]
    fn send_changed(self, tx: &mut Tx, item: &mut Item, now: u64, more: Option<u16>, budget: &mut Budget) -> Went {
        let Tx { packet, queue, ahead: Ahead { rooms, .. }, .. } = tx;
        let view = packet.view();
        let is_one = view.gso.is_none();
        let mut way = Way { out: self, cookie: cookie_of(item), queue, budget, is_one, more, now, rooms };
        match frames::send(&mut way, &self.takes, &view, &Bytes, &mut item.progress) {
            Sent::NoRoom => Went::Not,
            Sent::Unfit => Went::Lost,
            Sent::Done if is_one => Went::Out,
            Sent::Done => Went::Done,
        }
    }
}

/// What became of a packet.
enum Went {
    /// Nothing: there is no room, or the portion is spent.
    Not,
    /// The card has it, and answers for its reader.
    Out,
    /// Its reader is done with it: the card answers for each of its pieces.
    Done,
    /// The same: the card does not take such.
    Lost,
}

/// What the card calls a piece of a packet: who has sent it, and which of its packets it is.
fn cookie_of(item: &Item) -> u64 {
    u64::from(item.sender.raw()) << 32 | u64::from(item.token.0)
}

fn sender_of(cookie: u64) -> Handle {
    #[allow(clippy::cast_possible_truncation, reason = "the high half")]
    Handle::of_raw((cookie >> 32) as u32)
}

fn token_of(cookie: u64) -> Token {
    #[allow(clippy::cast_possible_truncation, reason = "the low half")]
    Token(cookie as u32)
}

/// The way of one packet to a card.
struct Way<'a> {
    out: Out,
    cookie: u64,
    /// Its sender's ring.
    queue: &'a mut TxQueue<RingPage, Held>,
    budget: &'a mut Budget,
    /// The packet goes in one piece, which is the reader that there is.
    is_one: bool,
    /// Packets that follow, if it is known.
    more: Option<u16>,
    /// Time in ns.
    now: u64,
    rooms: &'a mut Rooms,
}

impl frames::Card<Held> for Way<'_> {
    /// The next of `rooms`.
    type Room = Room;

    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "headers are short")]
    fn reserve(&mut self, frame: &View<'_, Held>) -> Option<Room> {
        if self.budget.is_spent() {
            return None;
        }
        let (header, may_have_pages) = (frame.header.len() as u16, self.out.takes.accepts.sg);
        let need = Need { len: frame.len(), header, may_have_pages };
        let more = || self.more.map_or_else(|| self.queue.untaken(), u32::from);
        let wanted = || more().saturating_add(1) as usize;
        self.rooms.make(self.out.queue, need, wanted)
    }

    #[inline(always)]
    fn send(&mut self, to: Room, frame: &View<'_, Held>) {
        if !self.is_one {
            // A piece is work beside what its packet is charged for.
            self.budget.spend(0);
            // One more reader of the packet. It cannot have too many: there are fewer buffers.
            if self.queue.hold(token_of(self.cookie)).is_err() {
                return;
            }
        }
        let (room, mut at) = (Held::by_card(to.frame()), to.offset());
        #[allow(clippy::cast_possible_truncation, reason = "what is in the room, which has fewer than 65536 bytes")]
        let (header, len) = (frame.header.len() as u16, frame.len() as u16);
        Bytes.write(room, at, frame.header);
        at += header;
        let (len, more) = if to.nr_pages() == 0 {
            for piece in frame.pieces() {
                Bytes.copy(piece.frame, piece.offset, room, at, piece.len);
                at += piece.len;
            }
            (len, 0)
        } else {
            spread((frame.fragments, frame.skip, frame.body), self.rooms, to.nr_pages());
            (header, frame.body)
        };
        let checksum = match frame.checksum {
            Checksum::Blank { start, field } => Some(net::Checksum { start, offset: field.saturating_sub(start) }),
            _ => None,
        };
        let about = About { len, more, checksum, segments: segments_of(frame) };
        self.rooms.send(to, self.cookie, about, self.now);
    }
}

/// Copies what is behind a frame's header into the pages of the next room: the fragments, how many bytes of them come
/// first that are not its, and its bytes.
#[cold]
#[inline(never)]
fn spread((fragments, skip, body): (&[Fragment<Held>], u32, u32), rooms: &Rooms, nr_pages: usize) {
    let frame = View { header: &[], fragments, skip, body, checksum: Checksum::Unknown, gso: None };
    let (pages, count) = rooms.pages();
    frames::spread(&frame, &Bytes, &pages.map(Held::by_card)[..count.min(nr_pages)]);
}

/// How the card is to cut a packet, if it is one for many.
#[inline]
fn segments_of(frame: &View<'_, Held>) -> Option<Segments> {
    frame.gso.and_then(|gso| cut(*frame, gso))
}

#[inline(never)]
fn cut(frame: View<'_, Held>, Gso { kind, size }: Gso) -> Option<Segments> {
    let count = Cutter::new(frame)?.nr_segments();
    Some(Segments { is_v6: kind == GsoKind::TcpV6, size, count: u16::try_from(count).unwrap_or(u16::MAX) })
}

/// A card's port.
pub fn port(card: Card) -> PortId {
    #[allow(clippy::cast_possible_truncation, reason = "few cards")]
    PortId(MAX_VIFS + card.place() as u16)
}

fn at_port(port: PortId) -> Option<&'static FairMutex<Option<Box<Uplink>>>> {
    UPLINKS.get(usize::from(port.0.checked_sub(MAX_VIFS)?))
}

/// Does something with a card, if it is there.
pub fn with<R>(card: Card, work: impl FnOnce(&mut Uplink) -> R) -> Option<R> {
    UPLINKS[card.place()].lock().as_deref_mut().filter(|uplink| uplink.card == card).map(work)
}

/// A new card, whose place is empty.
pub fn put(card: Card, uplink: Box<Uplink>) {
    USED.fetch_max(card.place() + 1, Ordering::Relaxed);
    *UPLINKS[card.place()].lock() = Some(uplink);
}

/// A card is gone, with what waited for it. No lock of an interface's may be held.
pub fn take_out(card: Card) {
    unlink(card);
    *UPLINKS[card.place()].lock() = None;
}

/// A card is in a switch, from the table of that number on, if it was not before.
pub fn link(card: Card, switch: u32, generation: u64) {
    with(card, |uplink| {
        if uplink.link.is_none_or(|(was, _)| was != switch) {
            uplink.link = Some((switch, generation));
        }
    });
}

/// A card is in no switch. What waited for it waits for the next way out. No lock of an interface's may be held.
pub fn unlink(card: Card) {
    with(card, |uplink| uplink.link = None);
    take_back(card);
}

/// What waits for a card waits for the next way out. No lock of an interface's may be held.
pub fn take_back(card: Card) {
    let drain = |uplink: &mut Uplink| uplink.queues.iter_mut().find_map(|queue| queue.waiting.drain());
    while let Some(item) = with(card, drain).flatten() {
        held::put(item);
        requests::answer();
    }
}

/// What an interface, which is gone, had waiting is forgotten; `line` is that of one of its queues, each of which is to
/// be forgotten.
pub fn forget(line: &Line) {
    for place in UPLINKS.iter().take(USED.load(Ordering::Relaxed)) {
        if let Some(uplink) = place.lock().as_deref_mut() {
            let sender = line.handle.place();
            if let Some(queue) = uplink.deal.known(sender).and_then(|queue| uplink.queues.get_mut(queue)) {
                queue.waiting.forget(line.interface);
            }
            uplink.deal.forget(sender);
        }
    }
}

/// The packet in the hand of `tx` goes to the card at `port`. `false`: it waits there, or the card has it.
///
/// Only whether it may go at once is settled with the card locked, for this packet and those that follow it: it is
/// copied without, so that several guests' packets are copied at one time. Its sender's order is kept, since its
/// transmit side is held.
#[inline(never)]
pub fn pass(batch: &mut Batch<'_>, tx: &mut Tx, port: PortId, mut item: Item) -> bool {
    let out = match tx.ahead.to {
        Some((to, out)) if to == port => out,
        _ => {
            tx.ahead.finish();
            let Some(place) = at_port(port) else { return true };
            let out = {
                let mut side = place.lock();
                its(&mut side, batch).and_then(|uplink| uplink.open_queue(item.sender))
            };
            let Some(out) = out else { return wait(batch, tx, port, item, None) };
            tx.ahead.to = Some((port, out));
            out
        }
    };
    let went = out.send(tx, &mut item, batch.now, None, batch.budget);
    if matches!(went, Went::Out | Went::Done) {
        tx.ahead.sent.count(tx.packet.len(), true);
        return matches!(went, Went::Done);
    }
    // Those that follow come after it.
    tx.ahead.finish();
    wait(batch, tx, port, item, Some((out.card, went)))
}

/// The card at a place, if the packets of `batch` may go there. The table may be an old one, and the place another's by
/// now.
#[inline]
fn its<'a>(side: &'a mut Option<Box<Uplink>>, batch: &Batch<'_>) -> Option<&'a mut Uplink> {
    let is_linked = |(switch, joined): (u32, u64)| switch == batch.switch && joined <= batch.table.generation();
    side.as_deref_mut().filter(|uplink| uplink.link.is_some_and(is_linked))
}

/// The packet in the hand of `tx` did not go at once. `false`: it waits, or the card has it now.
#[cold]
fn wait(batch: &mut Batch<'_>, tx: &mut Tx, port: PortId, mut item: Item, tried: Option<(Card, Went)>) -> bool {
    let size = tx.packet.view().size();
    let Some(place) = at_port(port) else { return true };
    let mut side = place.lock();
    if let Some((card, Went::Lost)) = tried {
        if let Some(uplink) = side.as_deref_mut().filter(|uplink| uplink.card == card) {
            uplink.sent.dropped += 1;
        }
        return true;
    }
    let Some(uplink) = its(&mut side, batch) else {
        drop(side);
        return held::is_lost(tx, batch.table, port, item.token, batch.now);
    };
    // Whoever has made room since has woken only those that waited.
    let queue = uplink.deal.queue_of(item.sender.place());
    let is_first = uplink.open_queue(item.sender).is_some();
    if is_first {
        let went = uplink.send(queue, (tx, &mut item), batch.now, 0, batch.budget);
        tx.ahead.rooms.finish();
        match went {
            Went::Not => {}
            Went::Out => return false,
            Went::Done | Went::Lost => return true,
        }
    }
    // Without room the driver will have some; else it is only that this portion is spent.
    let is_spent = is_first && batch.budget.is_spent();
    timers::arm_channels(if is_spent { batch.now } else { batch.now.saturating_add(TICK_NS) });
    let Line { interface, weight, .. } = tx.line;
    let put = |queue: &mut Queue| {
        queue.waiting.weigh(interface, weight);
        queue.waiting.push(interface, item, size, batch.now).is_ok()
    };
    let is_refused = !batch.may_wait || !uplink.queues.get_mut(queue).is_some_and(put);
    uplink.sent.dropped += u64::from(is_refused);
    is_refused
}

/// The driver is done with pieces of packets: their senders are answered, and what waits goes on.
pub fn transmitted(card: Card, cookies: &[u64]) {
    for cookies in cookies.chunks(lots::MOST) {
        answer(cookies);
    }
    let now = tsc::now_ns();
    with(card, |uplink| uplink.has_room(cookies, now));
    if refill(card, now, &mut Budget::default()) {
        timers::arm_channels(now.saturating_add(REST_NS));
    }
}

/// A card is gone, and the driver has not sent these pieces of packets, as far as is known: the packets wait for the
/// next way out, as a whole. So the outside may see one twice.
#[cold]
pub fn unsent(cookies: &[u64]) {
    for cookie in cookies {
        held::put(Item { sender: sender_of(*cookie), token: token_of(*cookie), progress: Progress::default() });
    }
}

/// At most [`lots::MOST`] pieces are done with: each sender is answered at once for all of his, whoever's came in
/// between.
fn answer(cookies: &[u64]) {
    let Some((first, rest)) = cookies.split_first() else { return };
    let sender = sender_of(*first);
    if rest.iter().all(|cookie| sender_of(*cookie) == sender) {
        return traffic::answer(sender, cookies.iter().map(|cookie| token_of(*cookie)));
    }
    let mut lots = Lots::default();
    cookies.iter().enumerate().for_each(|(n, cookie)| lots.put_off(n, sender_of(*cookie).raw()));
    for (sender, lot) in lots.drain() {
        traffic::answer(Handle::of_raw(sender), lot.filter_map(|n| cookies.get(n)).map(|cookie| token_of(*cookie)));
    }
}

/// What waits for a card goes on, as far as there is room in its queues, one of which does not wait for another.
/// `true`: there may be more.
fn refill(card: Card, now: u64, budget: &mut Budget) -> bool {
    let begin = |uplink: &mut Uplink| {
        let (first, count) = (uplink.first, uplink.queues.len());
        uplink.first = (first + 1) % count.max(1);
        (!uplink.is_empty()).then_some((first, count))
    };
    let Some((first, count)) = with(card, begin).flatten() else { return false };
    (0..count).any(|n| refill_queue(card, (first + n) % count, now, budget))
}

/// The same of one queue.
fn refill_queue(card: Card, queue: usize, now: u64, budget: &mut Budget) -> bool {
    while !budget.is_spent() {
        let first = |uplink: &mut Uplink| uplink.queues.get_mut(queue)?.waiting.first().copied();
        let Some(first) = with(card, first).flatten() else { return false };
        if !retry(card, queue, first, now, budget) {
            return budget.is_spent();
        }
    }
    true
}

/// Packets that go to a card without its being let go of.
const RUN: u16 = 8;

/// Tries once more to send `item`, which waits for a queue of a card, and what follows it in its sender's turn.
/// `false`: there is no room, or the portion is spent.
fn retry(card: Card, queue: usize, mut item: Item, now: u64, budget: &mut Budget) -> bool {
    let mut sender = item.sender.sides().tx.lock();
    let mut side = UPLINKS[card.place()].lock();
    let Some(uplink) = side.as_deref_mut().filter(|uplink| uplink.card == card) else { return false };
    let Some(Queue { waiting, .. }) = uplink.queues.get_mut(queue) else { return false };
    if waiting.first() != Some(&mut item) {
        // Somebody else was quicker.
        budget.spend(0);
        return true;
    }
    let Some(tx) = sender.as_deref_mut().filter(|tx| tx.line.handle == item.sender) else {
        // Its sender is gone, and the packet with it.
        waiting.pop(now);
        budget.spend(0);
        return true;
    };
    let Some(from) = tx.line.guest() else { return false };
    let mut again = Again::of(tx);
    let run = waiting.in_turn(RUN);
    let mut went = Went::Not;
    for more in (0..run).rev() {
        budget.spend(0);
        went = match again.onward(tx, port(card), item.token) {
            Onward::Goes => uplink.send(queue, (tx, &mut item), now, more, budget),
            Onward::Stays => Went::Not,
            Onward::Elsewhere(_) | Onward::Not => Went::Lost,
        };
        let Some(Queue { waiting, .. }) = uplink.queues.get_mut(queue) else { break };
        if matches!(went, Went::Not) {
            if let Some(first) = waiting.first() {
                *first = item;
            }
            break;
        }
        if matches!(went, Went::Out | Went::Done) {
            budget.spend(tx.packet.len());
        }
        waiting.pop(now);
        let next = waiting.first().filter(|next| more > 0 && next.sender == item.sender);
        match (&went, next) {
            (Went::Out, Some(next)) => item = *next,
            _ => break,
        }
    }
    tx.ahead.rooms.finish();
    drop(side);
    if matches!(went, Went::Done | Went::Lost) {
        tx.complete(&from, item.token);
        tx.push(&from);
    }
    !matches!(went, Went::Not)
}

/// Looks at all cards at time `now` (ns): what has waited for too long is lost, the rest tried again. When they are to
/// be looked at again.
pub fn look(now: u64) -> u64 {
    let (mut next, mut budget) = (u64::MAX, Budget::default());
    for place in UPLINKS.iter().take(USED.load(Ordering::Relaxed)) {
        let Some(card) = place.lock().as_deref().map(|uplink| uplink.card) else { continue };
        let expire = |uplink: &mut Uplink| {
            let item = uplink.queues.iter_mut().find_map(|queue| queue.waiting.expire(now))?;
            uplink.sent.dropped += 1;
            Some(item)
        };
        while !budget.is_spent() {
            let Some(item) = with(card, expire).flatten() else { break };
            budget.spend(0);
            traffic::done(item);
        }
        if budget.is_spent() || refill(card, now, &mut Budget::default()) {
            next = next.min(now.saturating_add(REST_NS));
        } else if with(card, |uplink| !uplink.is_empty()) == Some(true) {
            next = next.min(now.saturating_add(TICK_NS));
        }
    }
    next
}
