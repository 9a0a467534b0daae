//! A host: guests that behave and one that does not, the switch, and a network card that is slow. The fuzz target
//! `channel` and the property tests run it.
//!
//! Input bytes choose what happens next: packets of all kinds, pages posted, back-end work in small portions, time,
//! frames from outside, restarts of the card's driver, and whatever a hostile guest can do to its rings and grants. It
//! must hold that
//!
//! - every packet of a guest that behaves arrives where it belongs: every byte, in order, once, unless its receiver
//!   leaves too many waiting; as it was sent if the receiver takes that, else cut and with its checksum as a slow
//!   reference has it;
//! - every slot is answered once, after the last use of its grant (the front ends check that as Linux's does);
//! - nobody is told of news that are none, and everybody who sleeps is woken;
//! - no frame carries a behaving guest's address but its own;
//! - the card gets what a guest that takes as little would get, in order, and no sender's packets wait for ever;
//! - at the end nothing is in use, and everything that was sent has arrived.

mod card;
mod expected;
mod guests;
mod passing;

use super::frames::Shape;
use super::memory::Memory;
use super::netfront::{Netfront, Send};
use crate::card::turns::Turns;
use crate::packet::Packet;
use crate::switch::{Kind, Port, PortId, Table};
use crate::vif::backlog::{Backlog, MAX_BYTES, MAX_PACKETS};
use crate::vif::features::Accepts;
use crate::vif::journal::Token;
use crate::vif::rx::{Progress, RxQueue};
use crate::vif::tx::TxQueue;
use card::{CARD, CARD_FRAMES};
use expected::Expected;
use guests::{connect, new_guest};
use hv_core::evtchn::oracle::TestPage;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

/// Guests; the last is the hostile one.
const GUESTS: usize = 4;
const HOSTILE: usize = GUESTS - 1;
const UPLINK: u16 = GUESTS as u16;
/// Frames of a guest.
const FRAMES: u32 = 640;

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
            .map(|i| Port { id: PortId(i as u16), nr_queues: 1, kind: Kind::Guest { any_source: false }, mac: mac(i) })
            .collect();
        ports.push(Port { id: PortId(UPLINK), nr_queues: 1, kind: Kind::Uplink, mac: [0; 6] });
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
