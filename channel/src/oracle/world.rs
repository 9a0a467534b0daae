//! A host: guests that behave and one that does not, the switch, and a network card that is slow. The fuzz target `channel`
//! and the property tests run it.
//!
//! Input bytes choose what happens next: packets of all kinds, pages posted, back-end work in small portions, time, frames from
//! outside, restarts of the card's driver, and whatever a hostile guest can do to its rings and grants. It must hold that
//!
//! - every packet of a guest that behaves arrives where it belongs: every byte, in order, once, unless its receiver leaves too
//!   many waiting; as it was sent if the receiver takes that, else cut and with its checksum as a slow reference has it;
//! - every slot is answered once, after the last use of its grant (the front ends check that as Linux's does);
//! - nobody is told of news that are none, and everybody who sleeps is woken;
//! - no frame carries a behaving guest's address but its own;
//! - the card gets what a guest that takes as little would get, in order, and no sender's packets wait for ever;
//! - at the end nothing is in use, and everything that was sent has arrived.

use super::frames::{slow_sum, Shape};
use super::memory::{Guest, Memory};
use super::netfront::{Netfront, Received, Send};
use crate::card::frames::{self, Sent, Takes};
use crate::card::turns::Turns;
use crate::grants::Frames;
use crate::packet::{Checksum, Fragment, Gso, GsoKind, Packet, View, HEADER_BYTES};
use crate::switch::{Forward, Kind, Port, PortId, Table};
use crate::vif::backlog::{Backlog, MAX_BYTES, MAX_PACKETS};
use crate::vif::credit::Credit;
use crate::vif::features::Accepts;
use crate::vif::journal::Token;
use crate::vif::pace::LATE_NS;
use crate::vif::rx::{Delivered, Progress, RxQueue};
use crate::vif::tx::{Left, Take, TxQueue};
use core::sync::atomic::Ordering::SeqCst;
use hv_core::evtchn::oracle::TestPage;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

/// Guests; the last is the hostile one.
const GUESTS: usize = 4;
const HOSTILE: usize = GUESTS - 1;
const UPLINK: u16 = GUESTS as u16;
/// Frames of a guest.
const FRAMES: u32 = 640;
/// Frames that the card receives into.
const CARD: u32 = 1 + FRAMES * GUESTS as u32;
const CARD_FRAMES: u32 = 20;
const OUTSIDE: [u8; 6] = [2, 0, 0, 0, 0, 0x77];

fn mac(guest: usize) -> [u8; 6] {
    [0, 0x16, 0x3e, 0, 0, guest as u8]
}

/// What guests take.
const ACCEPTS: [Accepts; GUESTS] = [
    Accepts::ALL,
    Accepts { sg: true, gso_v4: false, gso_v6: false, csum_v4: false, csum_v6: false },
    Accepts { sg: true, gso_v4: true, gso_v6: false, csum_v4: true, csum_v6: false },
    Accepts::ALL,
];

/// Buffers of the card.
const CARD_ROOM: usize = 12;
/// What the card takes: it sums over IPv4.
const CARD_TAKES: Takes = Takes {
    max_frame: 2048,
    accepts: Accepts { sg: false, gso_v4: false, gso_v6: false, csum_v4: true, csum_v6: false },
};

/// A packet of a guest that waits for room at its receiver.
#[derive(Clone, Copy, PartialEq)]
struct Item {
    sender: usize,
    /// Which of its interfaces.
    incarnation: u32,
    token: Token,
    progress: Progress,
}

struct Interface {
    /// How many it had before.
    incarnation: u32,
    /// It may have something to send, from this time on (ns).
    awake: Option<u64>,
    front: Netfront,
    tx: TxQueue<TestPage, u32>,
    rx: RxQueue<TestPage>,
    backlog: Backlog<Item>,
    /// The front end sleeps until it hears of answers, or of packets.
    sleeps: [bool; 2],
    /// What it has sent and the back end has not looked at: number and shape.
    sent: VecDeque<u32>,
}

/// What is to arrive of one packet.
struct Expected {
    packet: u32,
    parts: VecDeque<Received>,
}

struct World {
    memory: Memory,
    interfaces: Vec<Interface>,
    table: Table,
    /// Whose ring is looked at next.
    turn: usize,
    now: u64,
    packet: Packet<u32>,
    /// Packets sent so far, by number.
    shapes: Vec<(Shape, Send)>,
    /// The number of a packet that waits for its answer.
    numbers: BTreeMap<(usize, Token), u32>,
    /// By sender (or the uplink) and receiver.
    expected: BTreeMap<(usize, usize), VecDeque<Expected>>,
    /// What is in the card's buffers: pieces of packets.
    card: Vec<Item>,
    /// What waits for a buffer.
    turns: Turns<Item>,
    /// Packets that were refused room.
    nr_refused: usize,
}

/// Runs a world on `ops`. Panics if something does not hold.
pub fn run(ops: &[u8]) {
    let mut world = World::new();
    let mut bytes = ops.iter().copied();
    while let Some(op) = bytes.next() {
        let mut args = [0; 6];
        args.iter_mut().for_each(|a| *a = bytes.next().unwrap_or(0));
        world.step(op, args);
    }
    world.finish();
}

impl World {
    fn new() -> World {
        let memory = Memory::new((CARD + CARD_FRAMES) as usize);
        let interfaces = (0..GUESTS).map(|i| connect(&memory, i, new_guest(i), 0)).collect();
        let mut ports: Vec<Port> = (0..GUESTS)
            .map(|i| Port { id: PortId(i as u16), kind: Kind::Guest { any_source: false }, mac: mac(i) })
            .collect();
        ports.push(Port { id: PortId(UPLINK), kind: Kind::Uplink, mac: [0; 6] });
        World {
            memory,
            interfaces,
            table: Table::build(1, &ports).expect("memory"),
            turn: 0,
            now: 0,
            packet: Packet::default(),
            shapes: Vec::new(),
            numbers: BTreeMap::new(),
            expected: BTreeMap::new(),
            card: Vec::new(),
            turns: Turns::new(GUESTS as u16, 0).expect("memory"),
            nr_refused: 0,
        }
    }

    fn step(&mut self, op: u8, args: [u8; 6]) {
        let guest = usize::from(args[0]) % GUESTS;
        match op % 12 {
            0..=2 => self.send(guest, args),
            3 => self.interfaces[guest].front.post(u32::from(args[1])),
            4 => self.kick(guest),
            5 | 6 => self.work(u32::from(args[0]) % 32 + 1),
            7 => self.listen(guest),
            8 => self.card_done(args),
            9 => self.arrive(args),
            10 => {
                self.now += u64::from(args[1]) << (args[2] % 28);
                self.expire();
            }
            _ if op < 24 => self.restart(),
            _ => self.mischief(args),
        }
    }

    /// A guest sends a packet: to another guest, outside, or to all.
    fn send(&mut self, guest: usize, [_, to, kind, a, b, c]: [u8; 6]) {
        let to = match to % 8 {
            n @ 0..4 => mac(n.into()),
            4 | 5 => OUTSIDE,
            6 => [0xff; 6],
            _ => [0x33, 0x33, 0, 0, 0, 1],
        };
        let is_long = kind & 0xc0 == 0xc0;
        let shape = Shape {
            to,
            from: if guest == HOSTILE && b & 1 == 1 { mac(c.into()) } else { mac(guest) },
            tags: u8::from(kind & 0x18 == 0),
            is_v6: kind & 1 != 0,
            is_tcp: is_long || kind & 2 != 0,
            options: a % 41,
            payload: if is_long { usize::from(a) * 220 } else { usize::from(a) * 7 },
            seed: u32::from(b) << 8 | u32::from(c),
        };
        let gso = is_long.then_some((u16::from(b) * 5 + 100, 1 + u8::from(shape.is_v6)));
        let is_blank = is_long || kind & 4 != 0;
        // A page short of the whole, so that it is at most 18 slots.
        let cut = if is_long { 3700 } else { 100 + usize::from(c) };
        let offset = usize::from(b).min(4096 - cut);
        let how = Send { is_blank, is_validated: kind & 0x20 != 0, gso, first: cut, others: cut, offset };
        let bytes = if is_blank { shape.blank() } else { shape.complete() };
        if Netfront::slots(bytes.len(), how) > 19 {
            return;
        }
        let interface = &mut self.interfaces[guest];
        if interface.front.send(&bytes, how) {
            interface.sent.push_back(self.shapes.len() as u32);
            self.shapes.push((shape, how));
        }
    }

    fn kick(&mut self, guest: usize) {
        let (tx, rx) = self.interfaces[guest].front.kick();
        if tx || guest == HOSTILE {
            self.wake(guest);
        }
        if rx {
            self.retry(guest);
        }
    }

    fn wake(&mut self, guest: usize) {
        self.interfaces[guest].awake = Some(0);
    }

    /// The front end looks at its rings, if it was told to.
    fn listen(&mut self, guest: usize) {
        if guest == HOSTILE {
            return;
        }
        let interface = &mut self.interfaces[guest];
        if !interface.sleeps[0] {
            interface.front.collect();
            interface.sleeps[0] = true;
        }
        if !interface.sleeps[1] {
            let (packets, errors) = interface.front.receive();
            assert_eq!(errors, 0, "no grant of such a guest fails");
            interface.sleeps[1] = true;
            packets.into_iter().for_each(|p| self.check_received(guest, p));
        }
    }

    fn check_received(&mut self, guest: usize, packet: Received) {
        let source: [u8; 6] = packet.bytes[6..12].try_into().expect("an Ethernet header");
        let sender = match source {
            [0, 0x16, 0x3e, 0, 0, n] if usize::from(n) < GUESTS => n.into(),
            _ => usize::from(UPLINK),
        };
        if sender == HOSTILE {
            return;
        }
        let flow = self.expected.get_mut(&(sender, guest)).expect("a packet that nobody sent");
        let first = flow.front_mut().expect("a packet too many");
        let part = first.parts.pop_front().expect("not empty");
        assert_eq!(packet, part, "packet {} from {sender} to {guest}", first.packet);
        if first.parts.is_empty() {
            flow.pop_front();
        }
    }

    /// What `guest` is to see of a packet.
    fn expect(&mut self, sender: usize, guest: usize, number: u32) {
        let (shape, how) = self.shapes[number as usize];
        let accepts = ACCEPTS.get(guest).copied().unwrap_or(CARD_TAKES.accepts);
        let (takes_csum, takes_gso) =
            if shape.is_v6 { (accepts.csum_v6, accepts.gso_v6) } else { (accepts.csum_v4, accepts.gso_v4) };
        let received = |bytes: Vec<u8>, is_blank: bool, gso| {
            let is_validated = how.is_validated || how.is_blank;
            Received { bytes, is_blank, is_validated, gso }
        };
        let parts: VecDeque<Received> = match how.gso {
            Some((size, _)) if !takes_gso => {
                let segments = shape.segments(size.into()).into_iter();
                assert!(!takes_csum || guest == usize::from(UPLINK), "no such guest here");
                segments.map(|s| received(s, false, None)).collect()
            }
            gso if how.is_blank && takes_csum && guest != usize::from(UPLINK) => {
                [received(shape.blank(), true, gso)].into()
            }
            _ => [received(shape.complete(), false, None)].into(),
        };
        self.expected.entry((sender, guest)).or_default().push_back(Expected { packet: number, parts });
    }

    /// A packet will not arrive, or not all of it.
    fn forget(&mut self, sender: usize, guest: usize, number: u32) {
        if let Some(flow) = self.expected.get_mut(&(sender, guest)) {
            flow.retain(|e| e.packet != number);
        }
    }

    /// The back end works: `n` looks at transmit rings.
    fn work(&mut self, n: u32) {
        for _ in 0..n {
            self.turn = (self.turn + 1) % GUESTS;
            let is_ready = |i: &usize| self.interfaces[*i].awake.is_some_and(|from| from <= self.now);
            let Some(sender) = (self.turn..GUESTS).chain(0..self.turn).find(is_ready) else { return };
            if sender == HOSTILE && self.interfaces[sender].rx.fatal().is_some() {
                self.reconnect(sender);
                continue;
            }
            let Interface { tx, front, .. } = &mut self.interfaces[sender];
            let taken = tx.take(&mut front.guest, &self.memory, self.now, &mut self.packet);
            match taken {
                Ok(Take::Packet(token)) => self.taken(sender, token),
                Ok(Take::Nothing) => match self.interfaces[sender].tx.leave(self.now, true) {
                    Ok(Left::Work) => {}
                    Ok(Left::Asleep) => self.interfaces[sender].awake = None,
                    Ok(Left::Late) => self.interfaces[sender].awake = Some(self.now + LATE_NS),
                    Err(_) => self.reconnect(sender),
                },
                Ok(Take::NoCredit { until }) => {
                    assert!(until > self.now);
                    self.interfaces[sender].awake = Some(until);
                }
                Ok(Take::Refused) => assert_eq!(sender, HOSTILE),
                Ok(Take::Multicast(change)) => {
                    assert_eq!(sender, HOSTILE);
                    self.interfaces[sender].tx.answer_multicast(change, true);
                }
                Err(_) => self.reconnect(sender),
            }
            self.push_answers(sender);
        }
    }

    fn push_answers(&mut self, guest: usize) {
        let interface = &mut self.interfaces[guest];
        interface.sleeps[0] &= !interface.tx.push();
    }

    fn taken(&mut self, sender: usize, token: Token) {
        let number = if sender == HOSTILE { 0 } else { self.interfaces[sender].sent.pop_front().expect("sent") };
        if sender != HOSTILE {
            let (shape, how) = self.shapes[number as usize];
            let expected = if how.is_blank { shape.blank() } else { shape.complete() };
            assert_eq!(self.packet_bytes(), expected);
        }
        assert!(self.numbers.insert((sender, token), number).is_none(), "a token of two packets");
        let header = self.packet.header().to_vec();
        match self.table.forward(PortId(sender as u16), &header) {
            Forward::To(port) => self.pass(sender, token, port, number),
            Forward::Flood => {
                let others: Vec<PortId> = self.table.others(PortId(sender as u16)).map(|p| p.id).collect();
                for port in others {
                    self.interfaces[sender].tx.hold(token).expect("it waits");
                    self.pass(sender, token, port, number);
                }
                self.done(sender, token);
            }
            Forward::Drop(_) => self.done(sender, token),
        }
    }

    /// `self.packet` goes to a port.
    fn pass(&mut self, sender: usize, token: Token, port: PortId, number: u32) {
        let guest = usize::from(port.0);
        if sender != HOSTILE && guest != HOSTILE {
            self.expect(sender, guest, number);
        }
        let incarnation = self.interfaces[sender].incarnation;
        let mut item = Item { sender, incarnation, token, progress: Progress::default() };
        if port.0 == UPLINK {
            if self.turns.is_empty() && self.send_out(&mut item) {
                self.done(sender, token);
            } else if self.turns.push(sender as u16, item, self.packet.len(), self.now).is_err() {
                self.dropped(guest, item);
            }
            return;
        }
        if self.interfaces[guest].backlog.is_empty() && self.deliver(guest, &mut item) {
            self.done(sender, token);
            return;
        }
        let bytes = self.packet.len();
        let interface = &mut self.interfaces[guest];
        if interface.backlog.push(item, bytes, self.now).is_err() {
            self.nr_refused += 1;
            self.dropped(guest, item);
        }
    }

    /// A packet of which its receiver gets no more. If it has got some segments, they stay expected.
    fn dropped(&mut self, guest: usize, item: Item) {
        let number = self.numbers[&(item.sender, item.token)];
        if item.progress == Progress::default() {
            self.forget(item.sender, guest, number);
        } else if let Some(flow) = self.expected.get_mut(&(item.sender, guest)) {
            if let Some(e) = flow.iter_mut().find(|e| e.packet == number) {
                let (shape, how) = self.shapes[number as usize];
                let all = shape.segments(how.gso.expect("was cut").0.into()).len();
                let missing = all - item.progress.segments as usize;
                e.parts.truncate(e.parts.len() - missing);
            }
            flow.retain(|e| !e.parts.is_empty());
        }
        self.done(item.sender, item.token);
    }

    /// Delivers `self.packet`. `false`: there is no room, and the guest will say when there is.
    fn deliver(&mut self, guest: usize, item: &mut Item) -> bool {
        loop {
            let Interface { rx, front, sleeps, .. } = &mut self.interfaces[guest];
            let view = self.packet.view();
            let delivered = rx.deliver(&mut front.guest, &self.memory, &view, &mut item.progress);
            sleeps[1] &= !rx.push();
            match delivered {
                Ok(Delivered::Done) => return true,
                Ok(Delivered::NoRoom { slots }) => match rx.ask_for_event(slots) {
                    Ok(true) => {}
                    Ok(false) => return false,
                    Err(_) => return self.lost_receiver(guest),
                },
                Ok(Delivered::Unfit) => panic!("a packet that nobody takes"),
                Err(_) => return self.lost_receiver(guest),
            }
        }
    }

    /// The receiver has ended: its packets are as good as delivered.
    fn lost_receiver(&mut self, guest: usize) -> bool {
        assert_eq!(guest, HOSTILE);
        true
    }

    /// A reader of a packet is done.
    fn done(&mut self, sender: usize, token: Token) {
        let Interface { tx, front, .. } = &mut self.interfaces[sender];
        tx.complete(&mut front.guest, token, 0).expect("it waits for its answer");
        if tx.journal().slots(token).next().is_none() {
            self.numbers.remove(&(sender, token));
            self.push_answers(sender);
        }
    }

    /// The guest has posted pages: what waits for them goes on.
    fn retry(&mut self, guest: usize) {
        while let Some(&mut item) = self.interfaces[guest].backlog.first() {
            let mut item = item;
            if !self.interfaces[item.sender].tx.rebuild(item.token, &self.memory, &mut self.packet) {
                assert_eq!(item.sender, HOSTILE);
                self.packet.clear();
            }
            let is_done = self.packet.is_empty() || self.deliver(guest, &mut item);
            let interface = &mut self.interfaces[guest];
            if !is_done {
                *interface.backlog.first().expect("it is there") = item;
                return;
            }
            interface.backlog.pop(self.now);
            self.done(item.sender, item.token);
        }
        self.interfaces[guest].backlog.has_room(self.now);
    }

    /// Packets that have waited for too long are dropped.
    fn expire(&mut self) {
        for guest in 0..GUESTS {
            while let Some(item) = self.interfaces[guest].backlog.expire(self.now) {
                self.dropped(guest, item);
            }
        }
        while let Some(item) = self.turns.expire(self.now) {
            self.dropped(UPLINK.into(), item);
        }
    }

    /// Gives `self.packet` to the card. `false`: there is no room.
    fn send_out(&mut self, item: &mut Item) -> bool {
        let mut out = Out {
            item: *item,
            card: &mut self.card,
            tx: &mut self.interfaces[item.sender].tx,
            memory: &self.memory,
            sent: Vec::new(),
        };
        let sent = frames::send(&mut out, &CARD_TAKES, &self.packet.view(), &self.memory, &mut item.progress);
        for (bytes, was_blank) in out.sent {
            if item.sender == HOSTILE {
                continue;
            }
            let (shape, how) = self.shapes[self.numbers[&(item.sender, item.token)] as usize];
            assert_eq!(was_blank, (how.is_blank || how.gso.is_some()) && !shape.is_v6, "only what the card sums");
            self.check_sent(item.sender, &bytes);
        }
        assert!(sent != Sent::Unfit || item.sender == HOSTILE, "a packet that the card does not take");
        sent != Sent::NoRoom
    }

    /// A frame is on the wire, with its checksum.
    fn check_sent(&mut self, sender: usize, bytes: &[u8]) {
        let flow = self.expected.get_mut(&(sender, UPLINK.into())).expect("a packet that nobody sent");
        let first = flow.front_mut().expect("a packet too many");
        let part = first.parts.pop_front().expect("not empty");
        assert_eq!(bytes, part.bytes, "packet {} from {sender} to the card", first.packet);
        if first.parts.is_empty() {
            flow.pop_front();
        }
    }

    /// The card has sent some frames, in any order. What waits goes on, now or later.
    fn card_done(&mut self, [_, n, which, ..]: [u8; 6]) {
        for i in 0..n % 16 {
            if self.card.is_empty() {
                break;
            }
            let at = usize::from(which).wrapping_mul(usize::from(i) + 1) % self.card.len();
            let item = self.card.swap_remove(at);
            self.came_back(item);
        }
        self.turns.has_room(self.now);
        if which & 0x60 == 0x60 {
            return;
        }
        while let Some(&mut first) = self.turns.first() {
            let mut item = first;
            if !self.interfaces[item.sender].tx.rebuild(item.token, &self.memory, &mut self.packet) {
                assert_eq!(item.sender, HOSTILE);
                self.packet.clear();
            }
            let is_done = self.packet.is_empty() || self.send_out(&mut item);
            if !is_done {
                *self.turns.first().expect("it is there") = item;
                return;
            }
            assert!(self.turns.pop(self.now) == Some(first));
            self.done(item.sender, item.token);
        }
    }

    /// The card is done with a piece of a packet, whose sender may be gone.
    fn came_back(&mut self, item: Item) {
        if self.interfaces[item.sender].incarnation == item.incarnation {
            self.done(item.sender, item.token);
        }
    }

    /// The card is gone and another one comes: what it has comes back, what waits for it is lost.
    fn restart(&mut self) {
        for item in core::mem::take(&mut self.card) {
            self.came_back(item);
        }
        while let Some(item) = self.turns.drain() {
            self.dropped(UPLINK.into(), item);
        }
        assert!(self.turns.is_empty());
    }

    /// The card has received a frame. If there is no room for it, it is lost.
    fn arrive(&mut self, [_, to, kind, a, b, c]: [u8; 6]) {
        let shape = Shape {
            to: if to % 8 == 7 { [0xff; 6] } else { mac(usize::from(to) % 6) },
            from: if kind & 0x30 == 0x30 { mac(c.into()) } else { OUTSIDE },
            tags: 0,
            is_v6: kind & 1 != 0,
            is_tcp: kind & 2 != 0,
            options: a % 41,
            payload: usize::from(a) * if kind & 0x80 != 0 { 200 } else { 6 },
            seed: u32::from(b) << 8 | u32::from(c),
        };
        let is_gso = kind & 0x80 != 0 && shape.is_tcp;
        let gso = is_gso.then_some((1448, 1 + u8::from(shape.is_v6)));
        let bytes = if is_gso { shape.blank() } else { shape.complete() };
        let header = bytes.len().min(HEADER_BYTES);
        self.packet.clear();
        self.packet.extend_header(header).copy_from_slice(&bytes[..header]);
        for (frame, part) in (CARD..).zip(bytes[header..].chunks(3900)) {
            self.memory.write(frame, 100, part);
            self.packet.push(Fragment { frame, offset: 100, len: part.len() as u16 });
        }
        if let Some((size, kind)) = gso {
            let kind = if kind == 2 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
            self.packet.gso = Some(Gso { kind, size });
            let h = crate::offload::headers::parse(&bytes).expect("TCP");
            let (start, field) = (h.l4 as u16, (h.l4 + 16) as u16);
            self.packet.checksum = Checksum::Blank { start, field };
        }
        let number = self.shapes.len() as u32;
        self.shapes.push((shape, Send { is_blank: is_gso, gso, ..Send::default() }));
        let ports: Vec<PortId> = match self.table.forward(PortId(UPLINK), &bytes) {
            Forward::To(port) => [port].into(),
            Forward::Flood => self.table.others(PortId(UPLINK)).map(|p| p.id).collect(),
            Forward::Drop(_) => return,
        };
        for guest in ports.into_iter().map(|p| usize::from(p.0)) {
            if !self.interfaces[guest].backlog.is_empty() {
                continue;
            }
            if guest != HOSTILE {
                self.expect(UPLINK.into(), guest, number);
            }
            let mut item = Item { sender: 0, incarnation: 0, token: Token(0), progress: Progress::default() };
            if self.deliver(guest, &mut item) || guest == HOSTILE {
                continue;
            }
            let flow = self.expected.get_mut(&(UPLINK.into(), guest)).expect("expected");
            let all = flow.back_mut().expect("expected");
            all.parts.truncate(item.progress.segments as usize);
            if all.parts.is_empty() {
                flow.pop_back();
            }
        }
    }

    /// What a hostile guest does to its rings and grants.
    fn mischief(&mut self, [how, a, b, c, d, e]: [u8; 6]) {
        let front = &mut self.interfaces[HOSTILE].front;
        let value = u32::from_le_bytes([b, c, d, e]);
        let page = if a & 1 == 0 { &front.tx.page } else { &front.rx.page };
        match how % 8 {
            // Indices: anything, or a little beside what they are.
            0 => page.0[usize::from(a >> 1) % 4].store(value, SeqCst),
            1 => {
                page.0[usize::from(a >> 1) % 4].fetch_add(u32::from(b).wrapping_sub(128), SeqCst);
            }
            // Slots.
            2 | 3 => page.0[16 + value as usize % 784].store(value.rotate_left(u32::from(a)), SeqCst),
            // A field of a request, changed a little.
            4 => {
                page.0[16 + usize::from(b) * 3].fetch_xor(1 << (c % 32), SeqCst);
            }
            5 => front.guest.spoil(u32::from(b) | u32::from(c & 1) << 8),
            6 => front.guest.fail_every(u32::from(a) % 8),
            // More requests, whatever is in the slots.
            _ => {
                page.0[0].fetch_add(u32::from(a) % 20, SeqCst);
            }
        }
        self.wake(HOSTILE);
        if how & 0x10 != 0 {
            self.retry(HOSTILE);
        }
    }

    /// A guest's interface has ended: what it holds is given back, and it connects anew.
    fn reconnect(&mut self, guest: usize) {
        assert_eq!(guest, HOSTILE, "a guest that behaves");
        // Packets of others that wait for it go nowhere; its own, wherever they are, are forgotten with their names.
        while let Some(&mut item) = self.interfaces[guest].backlog.first() {
            self.interfaces[guest].backlog.pop(self.now);
            self.done(item.sender, item.token);
        }
        self.interfaces.iter_mut().for_each(|i| i.backlog.retain(|item| item.sender != guest));
        self.turns.forget(guest as u16);
        self.numbers.retain(|(sender, _), _| *sender != guest);
        let incarnation = self.interfaces[guest].incarnation + 1;
        let fresh = connect(&self.memory, guest, new_guest(guest), self.now);
        let Interface { tx, mut front, .. } =
            core::mem::replace(&mut self.interfaces[guest], Interface { incarnation, ..fresh });
        tx.close(&mut front.guest);
        assert_eq!(front.guest.nr_uses(), 0, "something stays in use");
    }

    fn packet_bytes(&self) -> Vec<u8> {
        bytes_of(&self.memory, &self.packet.view())
    }

    /// Everybody does what is left to do. Then nothing is left.
    fn finish(&mut self) {
        self.reconnect(HOSTILE);
        for _ in 0..2000 {
            self.now += 1_000_000;
            for guest in 0..HOSTILE {
                self.listen(guest);
                self.interfaces[guest].front.post(256);
                self.kick(guest);
            }
            self.interfaces[HOSTILE].front.post(256);
            self.kick(HOSTILE);
            self.work(200);
            self.card_done([0, 15, 3, 0, 0, 0]);
            self.interfaces[HOSTILE].front.collect();
            self.interfaces[HOSTILE].front.receive();
            let is_idle = self.interfaces.iter().all(|i| i.front.nr_pending() == 0 && i.backlog.is_empty());
            if is_idle && self.expected.values().all(VecDeque::is_empty) {
                break;
            }
        }
        for (guest, interface) in self.interfaces.iter().enumerate().take(HOSTILE) {
            assert_eq!(interface.front.nr_pending(), 0, "guest {guest} has no answer");
            assert!(interface.sent.is_empty() && interface.backlog.is_empty());
            assert_eq!(interface.front.guest.nr_uses(), 0);
            assert_eq!(interface.front.answers[1] + interface.front.answers[2], 0, "an error for a good packet");
        }
        for ((sender, guest), flow) in &self.expected {
            assert!(flow.is_empty(), "{} packets from {sender} to {guest} are lost", flow.len());
        }
        assert!(self.numbers.is_empty() && self.card.is_empty());
    }
}

/// The way of one packet to the card.
struct Out<'a> {
    item: Item,
    card: &'a mut Vec<Item>,
    tx: &'a mut TxQueue<TestPage, u32>,
    memory: &'a Memory,
    /// Bytes, with the checksum that the card completes; did it?
    sent: Vec<(Vec<u8>, bool)>,
}

impl frames::Card<u32> for Out<'_> {
    type Room = u32;

    fn reserve(&mut self, frame: &View<'_, u32>) -> Option<u32> {
        (self.card.len() < CARD_ROOM).then_some(frame.len())
    }

    fn send(&mut self, room: u32, frame: &View<'_, u32>) {
        assert!(frame.len() == room && frame.gso.is_none());
        self.tx.hold(self.item.token).expect("it waits");
        self.card.push(self.item);
        let mut bytes = bytes_of(self.memory, frame);
        let mut was_blank = false;
        if let Checksum::Blank { start, field } = frame.checksum {
            let sum = match !slow_sum(&[&bytes[start.into()..]]) {
                0 => 0xffff,
                x => x,
            };
            bytes[field.into()..usize::from(field) + 2].copy_from_slice(&sum.to_be_bytes());
            was_blank = true;
        }
        self.sent.push((bytes, was_blank));
    }
}

/// What a packet is when it is all in one place.
fn bytes_of(memory: &Memory, view: &View<'_, u32>) -> Vec<u8> {
    let mut bytes = view.header.to_vec();
    for piece in view.pieces() {
        let mut part = std::vec![0; piece.len.into()];
        memory.read(piece.frame, piece.offset, &mut part);
        bytes.extend(part);
    }
    bytes
}

fn new_guest(guest: usize) -> Guest {
    let first = 1 + FRAMES * guest as u32;
    Guest::new(first..first + FRAMES)
}

fn connect(memory: &Memory, guest: usize, grants: Guest, now: u64) -> Interface {
    let front = Netfront::new(memory, grants, 0u32.wrapping_sub(guest as u32 * 50));
    // One of them has a rate: 20 MB/s.
    let credit = if guest == 0 { Credit::new(20_000, 1000, now) } else { Credit::UNLIMITED };
    let tx = TxQueue::attach(front.tx.page.clone(), credit).expect("a fresh ring");
    let rx = RxQueue::attach(front.rx.page.clone(), ACCEPTS[guest]).expect("a fresh ring");
    let sleeps = [true, true];
    Interface { incarnation: 0, awake: None, front, tx, rx, backlog: Backlog::new(now), sleeps, sent: VecDeque::new() }
}

/// Pseudo-random bytes.
pub fn random(seed: u64) -> impl Iterator<Item = u8> {
    let mut x = seed | 1;
    core::iter::from_fn(move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        Some((x >> 32) as u8)
    })
}

const _: () = assert!(MAX_PACKETS > 256 && MAX_BYTES > 65536);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_million_operations() {
        for seed in 1..=50u64 {
            let ops: Vec<u8> = random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).take(7 * 20_000).collect();
            run(&ops);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]
        #[test]
        fn whatever_happens_nothing_is_lost(ops in prop::collection::vec(any::<u8>(), 0..7 * 300)) {
            run(&ops);
        }
    }
}
