//! The back end at work: packets are taken, passed on, answered, and dropped when nobody takes them.

use super::{Interface, Item, World, GUESTS, HOSTILE, UPLINK};
use crate::pace::LATE_NS;
use crate::switch::{Forward, PortId};
use crate::vif::journal::Token;
use crate::vif::rx::{Delivered, Progress};
use crate::vif::tx::{Left, Take};
use std::vec::Vec;

impl World {
    /// The back end works: `n` looks at transmit rings.
    pub(super) fn work(&mut self, n: u32) {
        for _ in 0..n {
            self.turn = (self.turn + 1) % GUESTS;
            let is_ready = |i: &usize| self.interfaces[*i].awake.is_some_and(|from| from <= self.now);
            let Some(sender) = (self.turn..GUESTS).chain(0..self.turn).find(is_ready) else { return };
            if sender == HOSTILE && self.interfaces[sender].rx.fatal().is_some() {
                self.reconnect(sender);
                continue;
            }
            let Interface { tx, front, .. } = &mut self.interfaces[sender];
            let mut is_late = false;
            let taken = tx.take(&mut front.guest, &self.memory, self.now, &mut self.packet);
            match taken {
                Ok(Take::Packet(token)) => {
                    // Its answer is shown when the ring is left, at the earliest.
                    self.taken(sender, token);
                    continue;
                }
                Ok(Take::Nothing) => match self.interfaces[sender].tx.leave(self.now, true) {
                    Ok(Left::Work) => {}
                    Ok(Left::Asleep) => self.interfaces[sender].awake = None,
                    Ok(Left::Late) => {
                        self.interfaces[sender].awake = Some(self.now + LATE_NS);
                        is_late = true;
                    }
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
            let tx = &mut self.interfaces[sender].tx;
            if !is_late || !tx.answers_may_wait(self.now) {
                self.push_answers(sender);
            }
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
            } else if self.turns.push(sender as u16, item, self.packet.view().size(), self.now).is_err() {
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
            self.dropped(guest, item);
        }
    }

    /// A packet of which its receiver gets no more. If it has got some segments, they stay expected.
    pub(super) fn dropped(&mut self, guest: usize, item: Item) {
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
    pub(super) fn deliver(&mut self, guest: usize, item: &mut Item) -> bool {
        loop {
            let Interface { rx, front, sleeps, .. } = &mut self.interfaces[guest];
            let view = self.packet.view();
            let delivered = rx.deliver(&mut front.guest, &self.memory, view, &mut item.progress);
            sleeps[1] &= !rx.push();
            match delivered {
                Ok(Delivered::Done) => return true,
                Ok(Delivered::Part) => {}
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
    pub(super) fn done(&mut self, sender: usize, token: Token) {
        let Interface { tx, front, .. } = &mut self.interfaces[sender];
        tx.complete(&mut front.guest, token, 0).expect("it waits for its answer");
        if tx.journal().slots(token).next().is_none() {
            self.numbers.remove(&(sender, token));
            self.push_answers(sender);
        }
    }

    /// The guest has posted pages: what waits for them goes on.
    pub(super) fn retry(&mut self, guest: usize) {
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
    pub(super) fn expire(&mut self) {
        for guest in 0..GUESTS {
            while let Some(item) = self.interfaces[guest].backlog.expire(self.now) {
                self.dropped(guest, item);
            }
        }
        while let Some(item) = self.turns.expire(self.now) {
            self.dropped(UPLINK.into(), item);
        }
    }
}
