//! What a network card receives: from its buffers into guests' rings.

use super::access::{Bytes, Held};
use super::tray::Tray;
use super::uplink::{Passed, Uplink};
use super::vif::{at_port, Rx};
use super::{switch, traffic, uplink};
use crate::arch::tsc;
use crate::cpu::requests;
use crate::domain::{Domain, DomainRef};
use crate::sync::FairGuard;
use crate::twin::net::{Card, Kept, Many, Piece, Received, Said};
use ::channel::card::arrival::{Arrival, Whole};
use ::channel::card::lots::{self, Lot, Lots};
use ::channel::offload::checksum;
use ::channel::offload::headers::{self, Headers};
use ::channel::offload::merge::Merger;
use ::channel::packet::{Checksum, Fragment, Gso, GsoKind, View};
use ::channel::switch::{Forward, PortId, Table};
use ::channel::vif::rx::Progress;
use alloc::boxed::Box;

/// Frames came from the wire. A guest without room loses them. Those of each guest are his at once, in order, whoever's
/// came in between.
pub fn received(card: Card, frames: &[Kept]) {
    let begin = |uplink: &mut Uplink| Some((uplink.link()?, uplink.take_tray()?));
    let Some(((switch, is_believed), mut tray)) = uplink::with(card, begin).flatten() else { return };
    let (mut passed, mut storm) = (Passed::default(), Patience::default());
    if let Some(table) = switch::table(switch) {
        for frames in frames.chunks(lots::MOST) {
            let frames = Frames { all: frames, is_believed };
            pass_on(frames, &mut tray, (uplink::port(card), switch, &table), &mut passed, &mut storm);
        }
    }
    uplink::with(card, |uplink| {
        uplink.count_received(&passed);
        uplink.put_tray(tray);
    });
}

/// What is much work for few frames may take so long, in ns: those for all, with many interfaces, and those that are
/// cut into tiny segments. All of it is done before the guests of this CPU go on.
const LONG_NS: u64 = 1_000_000;
/// A frame that has more bytes than this is much work for each of many interfaces.
const LONG: u32 = 4096;

/// Since when such work is done, for frames that came at once.
#[derive(Default)]
struct Patience(Option<u64>);

impl Patience {
    /// Is there time for more of it? At first there always is.
    fn allows(&mut self) -> bool {
        let now = tsc::now_ns();
        now.saturating_sub(*self.0.get_or_insert(now)) < LONG_NS
    }
}

/// Frames, and whether the card is believed that it has found their sums right.
#[derive(Clone, Copy)]
struct Frames<'a> {
    all: &'a [Kept],
    is_believed: bool,
}

impl Frames<'_> {
    #[inline]
    fn received(&self, kept: &Kept) -> Received {
        let Received { piece, is_verified } = kept.into();
        Received { piece, is_verified: is_verified && self.is_believed }
    }
}

/// The same of frames that are at most [`lots::MOST`].
#[inline]
fn pass_on(
    frames: Frames<'_>,
    Tray { rooms, put_off, recents }: &mut Tray,
    (from, switch, table): (PortId, u32, &Table),
    passed: &mut Passed,
    storm: &mut Patience,
) {
    let (mut receiver, mut routes) = (None, recents.of(table, from));
    for (n, kept) in frames.all.iter().enumerate() {
        let Some(room) = rooms.get_mut(n) else { break };
        let Received { piece, is_verified } = frames.received(kept);
        let whole = held(&piece);
        let forward = routes.forward(room.open(whole, &Bytes, is_verified).header);
        // Who does not believe the card's drivers leaves it to receivers, whose bytes nobody can change any more.
        if frames.is_believed && !matches!(forward, Forward::Drop(_)) {
            room.check(&Bytes);
        }
        let is_passed = match forward {
            Forward::To(port) => {
                let view = room.view();
                if put_off.is_turn(n, port) {
                    to(&mut receiver, port, switch, table, |receiver| receiver.give(view, Some(whole)));
                }
                true
            }
            forward => {
                // What came before it goes before it.
                give_lots(&mut receiver, put_off, rooms, (switch, table));
                let view = rooms.get(n).map(Whole::view);
                view.is_some_and(|view| flood(&mut receiver, (from, switch, table), forward, view, storm))
            }
        };
        passed.count(whole.len.into(), is_passed);
    }
    give_lots(&mut receiver, put_off, rooms, (switch, table));
}

/// Frames that were put off go to their receivers, those of each at once.
#[inline]
fn give_lots(
    receiver: &mut Option<Receiver>,
    put_off: &mut Lots<PortId>,
    rooms: &[Whole<Held>; lots::MOST],
    (switch, table): (u32, &Table),
) {
    for (port, lot) in put_off.drain() {
        give_lot(receiver, lot, rooms, (port, switch, table));
    }
}

#[inline(never)]
fn give_lot(
    receiver: &mut Option<Receiver>,
    lot: Lot,
    rooms: &[Whole<Held>; lots::MOST],
    (port, switch, table): (PortId, u32, &Table),
) {
    to(receiver, port, switch, table, |receiver| {
        for room in lot.filter_map(|n| rooms.get(n)) {
            receiver.give(room.view(), Some(room.piece()));
        }
    });
}

/// The same of a frame in pieces.
pub fn received_in_pieces(card: Card, pieces: &[Piece], said: &Said) {
    let Some((switch, is_believed)) = uplink::with(card, |uplink| uplink.link()).flatten() else { return };
    let Some(table) = switch::table(switch) else { return };
    let from = uplink::port(card);
    let (mut arrival, mut receiver, mut passed) = (Arrival::default(), None, Passed::default());
    let checksum = match said.blank {
        // No card has looked at it, which might be wrong.
        Some(blank) => Checksum::Blank { start: blank.start, field: blank.start.saturating_add(blank.offset) },
        None if said.is_verified && is_believed => Checksum::Validated,
        None => Checksum::Unknown,
    };
    let kind_of = |many| match many {
        Many::TcpV4 => GsoKind::TcpV4,
        Many::TcpV6 => GsoKind::TcpV6,
        Many::Udp => GsoKind::Udp,
    };
    let gso = said.many.map(|(many, size)| Gso { kind: kind_of(many), size });
    let view = arrival.open(pieces.iter().map(held), &Bytes, checksum, gso);
    let is_passed = view.is_some_and(|view| match table.forward(from, view.header) {
        Forward::To(port) => {
            to(&mut receiver, port, switch, &table, |receiver| receiver.give(view, None));
            true
        }
        forward => flood(&mut receiver, (from, switch, &table), forward, view, &mut Patience::default()),
    });
    passed.count(view.as_ref().map_or(0, View::len), is_passed);
    drop(receiver);
    uplink::with(card, |uplink| uplink.count_received(&passed));
}

/// A frame came that cannot be passed on: it counts.
pub fn lost(card: Card) {
    let passed = Passed { dropped: 1, ..Passed::default() };
    uplink::with(card, |uplink| uplink.count_received(&passed));
}

/// Where a card's bytes are, which it holds.
fn held(p: &Piece) -> Fragment<Held> {
    Fragment { frame: Held::by_card(p.frame), offset: p.offset, len: p.len }
}

/// What is not for one is for all, or for nobody. `false`: it was for nobody; or it is lost, to some at least, since it
/// would take too long. Nobody sends segments of TCP to all, and to cut them for each would take longest.
#[inline(never)]
fn flood(
    receiver: &mut Option<Receiver>,
    (from, switch, table): (PortId, u32, &Table),
    forward: Forward,
    view: View<'_, Held>,
    storm: &mut Patience,
) -> bool {
    let is_of_tcp = view.gso.is_some_and(|gso| matches!(gso.kind, GsoKind::TcpV4 | GsoKind::TcpV6));
    if forward != Forward::Flood || is_of_tcp || !storm.allows() {
        return false;
    }
    let is_long = view.len() > LONG || view.gso.is_some();
    for port in table.others(from) {
        // What asks for addresses is short: who is last in the table hears it, too.
        if is_long && !storm.allows() {
            return false;
        }
        requests::answer();
        to(receiver, port.id, switch, table, |receiver| receiver.give(view, None));
    }
    true
}

/// Whoever receives, as long as the frames are his. He hears of them at the end.
struct Receiver {
    port: PortId,
    guest: DomainRef,
    side: FairGuard<'static, Option<Box<Rx>>>,
    /// Segments that wait for others. It is the interface's own.
    merger: Option<Box<Merger<Held>>>,
}

impl Receiver {
    /// The interface at `port`, if it is in this switch.
    fn at(port: PortId, switch: u32, table: &Table) -> Option<Self> {
        let mut side = at_port(port)?.rx.lock();
        let rx = side.as_deref_mut()?;
        // The table may be an old one, and the place another's by now.
        if rx.line.switch != switch || rx.joined > table.generation() {
            return None;
        }
        let guest = rx.line.guest()?;
        // What comes from a card does not wait, so all of the ring is for it.
        rx.queue.keep_few_unread(false);
        let merger = rx.merger.take();
        Some(Self { port, guest, side, merger })
    }

    /// A frame is his, if there is room now. If `whole` says where all of it lies, it may be put together with others.
    /// What the card has not said about its checksum is found out then: the guest would have to.
    #[inline]
    fn give(&mut self, view: View<'_, Held>, whole: Option<Fragment<Held>>) {
        let Some(rx) = self.side.as_deref_mut() else { return };
        if let Some(merger) = self.merger.as_deref_mut() {
            let may_be_in = !merger.is_empty() || !headers::is_ipv4_without_tcp(view.header);
            if may_be_in && merge(merger, rx, &self.guest, view, whole) {
                return;
            }
        }
        put(rx, &self.guest, view);
    }
}

/// Puts a frame together with those that are in `merger`; these go on if it does not follow them. `false`: it is in no
/// other.
#[inline(never)]
fn merge(
    merger: &mut Merger<Held>,
    rx: &mut Rx,
    guest: &Domain,
    view: View<'_, Held>,
    whole: Option<Fragment<Held>>,
) -> bool {
    let is_in = |merger: &mut Merger<Held>, rx: &Rx| {
        let Some(whole) = whole else { return false };
        let is_right = |headers: &Headers| {
            view.checksum == Checksum::Validated || checksum::is_right(view.header, headers, &whole, &Bytes)
        };
        merger.add(view.header, whole, |kind| rx.queue.takes(kind), is_right)
    };
    if is_in(merger, rx) {
        return true;
    }
    if merger.is_empty() {
        return false;
    }
    put_merged(rx, guest, merger);
    is_in(merger, rx)
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(rx) = self.side.as_deref_mut() {
            if let Some(merger) = self.merger.as_deref_mut() {
                put_merged(rx, &self.guest, merger);
            }
            rx.merger = self.merger.take();
            traffic::show(rx, &self.guest);
        }
    }
}

fn put_merged(rx: &mut Rx, guest: &Domain, merger: &mut Merger<Held>) {
    if let Some(view) = merger.view() {
        put(rx, guest, view);
        merger.clear();
    }
}

#[inline]
fn put(rx: &mut Rx, guest: &Domain, view: View<'_, Held>) {
    // Whatever waits: those are others' packets, and who keeps many of them waiting must not keep the network away.
    let mut progress = Progress::default();
    if !traffic::put(rx, guest, view, &mut progress) {
        put_rest(rx, guest, view, progress);
    }
}

/// Of a frame that is cut for its guest the other segments follow, as far as there is room for them: it waits nowhere.
/// The driver's buffer is held meanwhile.
#[cold]
fn put_rest(rx: &mut Rx, guest: &Domain, view: View<'_, Held>, mut progress: Progress) {
    let (mut before, mut patience) = (Progress::default(), Patience::default());
    while progress != before && patience.allows() {
        requests::answer();
        before = progress;
        if traffic::put(rx, guest, view, &mut progress) {
            return;
        }
    }
    rx.queue.stats.dropped += 1;
}

/// Does something for whoever is at a port; `receiver` had the frame before.
#[inline]
fn to(receiver: &mut Option<Receiver>, port: PortId, switch: u32, table: &Table, work: impl FnOnce(&mut Receiver)) {
    if receiver.as_ref().is_none_or(|receiver| receiver.port != port) {
        // Of two one is locked at a time.
        *receiver = None;
        *receiver = Receiver::at(port, switch, table);
    }
    if let Some(receiver) = receiver {
        work(receiver);
    }
}
