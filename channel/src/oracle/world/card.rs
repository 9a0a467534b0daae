//! The network card: what it sends, what it receives, and the restart of its driver.

use super::{mac, Item, World, FRAMES, GUESTS, HOSTILE, UPLINK};
use crate::card::frames::{self, Sent, Takes};
use crate::grants::Frames;
use crate::oracle::frames::{slow_sum, Shape};
use crate::oracle::memory::Memory;
use crate::oracle::netfront::Send;
use crate::packet::{Checksum, Fragment, Gso, GsoKind, View, HEADER_BYTES};
use crate::switch::{Forward, PortId};
use crate::vif::features::Accepts;
use crate::vif::journal::Token;
use crate::vif::rx::Progress;
use crate::vif::tx::TxQueue;
use hv_core::evtchn::oracle::TestPage;
use std::vec::Vec;

/// Frames that the card receives into.
pub(super) const CARD: u32 = 1 + FRAMES * GUESTS as u32;
pub(super) const CARD_FRAMES: u32 = 20;
pub(super) const OUTSIDE: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
/// Buffers of the card.
const CARD_ROOM: usize = 12;
/// What the card takes: it sums over IPv4.
pub(super) const CARD_TAKES: Takes = Takes {
    max_frame: 2048,
    accepts: Accepts { sg: false, gso_v4: false, gso_v6: false, csum_v4: true, csum_v6: false },
};

impl World {
    /// Gives `self.packet` to the card. `false`: there is no room.
    pub(super) fn send_out(&mut self, item: &mut Item) -> bool {
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
            assert_eq!(
                was_blank,
                (how.is_blank || how.gso.is_some()) && !shape.is_v6 && shape.tags == 0 && bytes.len() >= 60,
                "only what the card sums"
            );
            self.check_sent(item.sender, &bytes);
        }
        assert!(sent != Sent::Unfit || item.sender == HOSTILE, "a packet that the card does not take");
        sent != Sent::NoRoom
    }

    /// The card has sent some frames, in any order. What waits goes on, now or later.
    pub(super) fn card_done(&mut self, [_, n, which, ..]: [u8; 6]) {
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
    pub(super) fn restart(&mut self) {
        for item in core::mem::take(&mut self.card) {
            self.came_back(item);
        }
        while let Some(item) = self.turns.drain() {
            self.dropped(UPLINK.into(), item);
        }
        assert!(self.turns.is_empty());
    }

    /// The card has received a frame. If there is no room for it, it is lost.
    pub(super) fn arrive(&mut self, [_, to, kind, a, b, c]: [u8; 6]) {
        let shape = Shape {
            to: if to % 8 == 7 { [0xff; 6] } else { mac(usize::from(to) % 6) },
            from: if kind & 0x30 == 0x30 { mac(c.into()) } else { OUTSIDE },
            tags: u8::from(kind & 0x0c == 0x0c),
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

    pub(super) fn packet_bytes(&self) -> Vec<u8> {
        bytes_of(&self.memory, &self.packet.view())
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
