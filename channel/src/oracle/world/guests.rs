//! What guests do: those that behave, and the hostile one.

use super::card::OUTSIDE;
use super::{mac, Interface, World, ACCEPTS, FRAMES, HOSTILE};
use crate::oracle::frames::Shape;
use crate::oracle::memory::{Guest, Memory};
use crate::oracle::netfront::{Netfront, Send};
use crate::vif::backlog::Backlog;
use crate::vif::credit::Credit;
use crate::vif::rx::RxQueue;
use crate::vif::tx::TxQueue;
use core::sync::atomic::Ordering::SeqCst;
use std::collections::VecDeque;

impl World {
    /// A guest sends a packet: to another guest, outside, or to all.
    pub(super) fn send(&mut self, guest: usize, [_, to, kind, a, b, c]: [u8; 6]) {
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

    pub(super) fn kick(&mut self, guest: usize) {
        let (tx, rx) = self.interfaces[guest].front.kick();
        if tx || guest == HOSTILE {
            self.wake(guest);
        }
        if rx {
            self.retry(guest);
        }
    }

    pub(super) fn wake(&mut self, guest: usize) {
        self.interfaces[guest].awake = Some(0);
    }

    /// The front end looks at its rings, if it was told to.
    pub(super) fn listen(&mut self, guest: usize) {
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

    /// What a hostile guest does to its rings and grants.
    pub(super) fn mischief(&mut self, [how, a, b, c, d, e]: [u8; 6]) {
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
    pub(super) fn reconnect(&mut self, guest: usize) {
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
}

pub(super) fn new_guest(guest: usize) -> Guest {
    let first = 1 + FRAMES * guest as u32;
    Guest::new(first..first + FRAMES)
}

pub(super) fn connect(memory: &Memory, guest: usize, grants: Guest, now: u64) -> Interface {
    let front = Netfront::new(memory, grants, 0u32.wrapping_sub(guest as u32 * 50));
    // One of them has a rate: 20 MB/s.
    let credit = if guest == 0 { Credit::new(20_000, 1000, now) } else { Credit::UNLIMITED };
    let tx = TxQueue::attach(front.tx.page.clone(), credit).expect("a fresh ring");
    let rx = RxQueue::attach(front.rx.page.clone(), ACCEPTS[guest]).expect("a fresh ring");
    let sleeps = [true, true];
    Interface { incarnation: 0, awake: None, front, tx, rx, backlog: Backlog::new(now), sleeps, sent: VecDeque::new() }
}
