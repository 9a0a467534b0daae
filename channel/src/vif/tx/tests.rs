#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::*;
use crate::oracle::frames::Shape;
use crate::oracle::memory::{Guest, Memory};
use crate::oracle::netfront::{Netfront, Send};
use crate::packet::Gso;
use hv_core::evtchn::oracle::TestPage;
use proptest::prelude::*;
use std::vec::Vec;

const A: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 1];
const B: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 2];
const OKAY: usize = 0;
const ERROR: usize = 1;

/// Offset, flags, size.
type RawSlot = (u16, u16, u16);

struct Rig {
    memory: Memory,
    guest: Guest,
    front: Netfront,
    queue: TxQueue<TestPage, u32>,
    packet: Packet<u32>,
}

impl Rig {
    fn new() -> Rig {
        let memory = Memory::new(1024);
        let guest = Guest::new(1..1000);
        let front = Netfront::new(&memory, guest.clone(), u32::MAX - 100);
        let queue = TxQueue::attach(front.tx.page.clone(), Credit::UNLIMITED).unwrap();
        Rig { memory, guest, front, queue, packet: Packet::default() }
    }

    fn take(&mut self) -> Result<Take, Fatal> {
        self.front.kick();
        self.queue.take(&mut self.guest, &self.memory, 0, &mut self.packet)
    }

    fn take_packet(&mut self) -> Token {
        match self.take() {
            Ok(Take::Packet(token)) => token,
            other => panic!("{other:?}"),
        }
    }

    fn complete(&mut self, token: Token) {
        self.queue.complete(&mut self.guest, token, XEN_NETIF_RSP_OKAY).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.packet.header().to_vec();
        for piece in self.packet.view().pieces() {
            let mut part = std::vec![0; piece.len.into()];
            self.memory.read(piece.frame, piece.offset, &mut part);
            bytes.extend(part);
        }
        assert_eq!(bytes.len(), self.packet.len() as usize);
        bytes
    }

    /// Slots as they are, each with a grant that holds.
    fn raw(&mut self, slots: &[RawSlot]) {
        for (id, (offset, flags, size)) in slots.iter().enumerate() {
            let (gref, _) = self.guest.grant(false).unwrap();
            let word = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
            self.front.tx.put([gref, word(*offset, *flags), word(id as u16, *size)]);
        }
    }

    /// Statuses of the answers so far, in order.
    fn statuses(&mut self) -> Vec<(u16, i16)> {
        self.queue.push();
        core::iter::from_fn(|| self.front.tx.take()).map(|(_, [w, ..])| (w as u16, (w >> 16) as i16)).collect()
    }
}

const MORE: u16 = XEN_NETTXF_MORE_DATA;
const EXTRA: u16 = XEN_NETTXF_EXTRA_INFO;

#[test]
fn what_comes_back_is_in_front_of_what_was_sent_since() {
    let mut rig = Rig::new();
    let send = |rig: &mut Rig| {
        assert!(rig.front.send(&Shape::tcp(B, A, 100).blank(), Send { is_blank: true, ..Send::default() }));
        rig.take_packet()
    };
    // Names of packets have no order: places are used again, the last one first.
    let old: Vec<Token> = (0..4).map(|_| send(&mut rig)).collect();
    [0, 3, 1].into_iter().for_each(|n| rig.complete(old[n]));
    let mut list = std::vec![send(&mut rig), send(&mut rig)];
    let sent = [old[2], list[0], list[1], send(&mut rig)];
    assert!(!sent.is_sorted());
    for token in [sent[3], sent[0]] {
        list.insert(rig.queue.place_in(&list, token), token);
    }
    assert_eq!(list, sent);
    // The same packet again, for another reader, stays beside itself.
    assert_eq!(rig.queue.place_in(&list, sent[1]), 2);
}

#[test]
fn a_packet_of_one_slot() {
    let mut rig = Rig::new();
    let bytes = Shape::tcp(B, A, 1000).blank();
    assert!(rig.front.send(&bytes, Send { is_blank: true, offset: 77, ..Send::default() }));
    let token = rig.take_packet();
    assert_eq!(rig.bytes(), bytes);
    assert_eq!(rig.packet.checksum, Checksum::Blank { start: 34, field: 50 });
    assert_eq!((rig.packet.header().len(), rig.packet.fragments().len()), (HEADER_BYTES, 1));
    assert_eq!(rig.guest.nr_uses(), 1);
    rig.complete(token);
    assert_eq!(rig.guest.nr_uses(), 0);
    assert!(rig.queue.push());
    assert_eq!((rig.front.collect(), rig.front.answers[OKAY]), (1, 1));
    assert_eq!(rig.take(), Ok(Take::Nothing));
}

#[test]
fn segments_come_with_extra_information_that_is_answered_too() {
    let mut rig = Rig::new();
    let bytes = Shape::tcp(B, A, 60_000).blank();
    let how = Send { is_blank: true, gso: Some((1448, 1)), first: 100, ..Send::default() };
    assert!(rig.front.send(&bytes, how));
    let token = rig.take_packet();
    assert_eq!(rig.packet.gso, Some(Gso { kind: GsoKind::TcpV4, size: 1448 }));
    assert_eq!(rig.bytes(), bytes);
    rig.complete(token);
    rig.queue.push();
    assert_eq!(rig.front.collect(), Netfront::slots(bytes.len(), how));
    assert_eq!(rig.front.answers, [16, 0, 0, 1]);
}

#[test]
fn packets_are_answered_in_any_order_but_once() {
    let mut rig = Rig::new();
    let frame = Shape::tcp(B, A, 6000).complete();
    (0..5).for_each(|_| assert!(rig.front.send(&frame, Send::default())));
    let tokens: Vec<Token> = (0..5).map(|_| rig.take_packet()).collect();
    for i in [3, 0, 4] {
        rig.complete(tokens[i]);
        assert_eq!(rig.queue.complete(&mut rig.guest, tokens[i], 0), Err(BadToken));
    }
    rig.queue.push();
    assert_eq!(rig.front.collect(), 6);
    // A place that was used before gives another token.
    assert!(rig.front.send(&frame, Send::default()));
    let again = rig.take_packet();
    assert!(!tokens.contains(&again));
    for token in [tokens[3], tokens[0], tokens[4], Token(0), Token(u32::MAX), Token(0x1_0000)] {
        if token != tokens[1] && token != tokens[2] && token != again {
            assert_eq!(rig.queue.complete(&mut rig.guest, token, 0), Err(BadToken));
        }
    }
    // In the order in which they were sent.
    let mut left = Vec::new();
    while let Some(token) = rig.queue.journal().next_packet(left.last().copied()) {
        left.push(token);
    }
    assert_eq!(left, [tokens[1], tokens[2], again]);
    for token in left {
        assert!(rig.queue.rebuild(token, &rig.memory, &mut rig.packet));
        assert_eq!(rig.bytes(), frame);
        rig.complete(token);
    }
    rig.queue.push();
    rig.front.collect();
    assert_eq!((rig.front.nr_pending(), rig.guest.nr_free(), rig.queue.journal().nr_packets()), (0, 999, 0));
}

/// Each once, however many read the packet.
#[test]
fn a_queue_that_closes_gives_its_grants_back() {
    let mut rig = Rig::new();
    let frame = Shape::tcp(B, A, 6000).complete();
    for n in 0..20 {
        assert!(rig.front.send(&frame, Send::default()));
        let token = rig.take_packet();
        (0..1000).for_each(|_| assert_eq!(rig.queue.hold(token), Ok(())));
        if n % 3 == 0 {
            (0..=1000).for_each(|_| rig.complete(token));
        }
    }
    let waiting = rig.queue.journal().all_slots().count() as u32;
    assert_eq!((waiting, rig.guest.nr_uses()), (13 * 2, 13 * 2));
    rig.queue.close(&mut rig.guest);
    assert_eq!(rig.guest.nr_uses(), 0);
}

#[test]
fn the_journal_takes_a_full_ring_of_single_slots() {
    let mut rig = Rig::new();
    for round in 0..3 {
        (0..256).for_each(|_| assert!(rig.front.send(&[7; 60], Send::default())));
        let mut tokens: Vec<Token> = (0..256).map(|_| rig.take_packet()).collect();
        assert_eq!(rig.take(), Ok(Take::Nothing));
        tokens.rotate_left(round * 50);
        tokens.into_iter().for_each(|t| rig.complete(t));
        rig.queue.push();
        assert_eq!(rig.front.collect(), 256);
    }
}

#[test]
fn what_netback_answers_with_errors() {
    let last = |n: usize, size: u16| -> Vec<RawSlot> {
        let mut slots = std::vec![(0, MORE, size)];
        slots.extend((1..n).map(|i| (0, if i + 1 < n { MORE } else { 0 }, 100)));
        slots
    };
    // The longest that is good: 18 behind the first.
    let mut rig = Rig::new();
    rig.raw(&last(19, 1820));
    assert!(matches!(rig.take(), Ok(Take::Packet(_))));
    for slots in [
        last(20, 1920),
        last(21, 2020),
        // Pieces longer than the whole, as when the length of a packet above 64 KiB wraps.
        std::vec![(0, MORE, 90), (0, 0, 100)],
        // Nothing, or less than a header, is left for the first.
        std::vec![(0, MORE, 100), (0, 0, 100)],
        std::vec![(0, MORE, 113), (0, 0, 100)],
        std::vec![(0, 0, 13)],
    ] {
        let mut rig = Rig::new();
        let n = slots.len();
        rig.raw(&slots);
        rig.raw(&[(0, 0, 60)]);
        assert_eq!(rig.take(), Ok(Take::Refused), "{slots:?}");
        assert_eq!(rig.statuses(), (0..n as u16).map(|id| (id, -1)).collect::<Vec<_>>());
        assert_eq!(rig.queue.stats.errors, 1);
        assert!(matches!(rig.take(), Ok(Take::Packet(_))), "the next one is good");
    }
}

#[test]
fn what_netback_ends_the_interface_for() {
    let endless: Vec<RawSlot> = (0..22).map(|_| (0, MORE, 2000)).collect();
    let cases: [(&[RawSlot], Fatal); 6] = [
        (&[(0, MORE, 200)], Fatal::SlotsMissing),
        (&[(0, EXTRA, 200)], Fatal::ExtraMissing),
        (&endless, Fatal::SlotsEndless),
        (&[(4000, 0, 97)], Fatal::CrossesPage { offset: 4000, size: 97 }),
        (&[(0, MORE, 200), (4095, 0, 2)], Fatal::CrossesPage { offset: 4095, size: 2 }),
        (&[(u16::MAX, 0, u16::MAX)], Fatal::CrossesPage { offset: u16::MAX, size: u16::MAX }),
    ];
    for (slots, fatal) in cases {
        let mut rig = Rig::new();
        rig.raw(slots);
        assert_eq!(rig.take(), Err(fatal));
        assert_eq!(rig.take(), Err(fatal));
        assert_eq!((rig.statuses(), rig.guest.nr_uses()), (std::vec![], 0));
    }
    for (extra, fatal) in [
        ([0, 0, 0], Fatal::ExtraUnknown(0)),
        ([6, 0, 0], Fatal::ExtraUnknown(6)),
        ([1, 1, 0], Fatal::GsoSize),
        ([1 | 100 << 16, 3, 0], Fatal::GsoKind(3)),
        ([1 | 1 << 8, 1, 0], Fatal::ExtraMissing),
    ] {
        let mut rig = Rig::new();
        rig.raw(&[(0, EXTRA, 200)]);
        rig.front.tx.put(extra);
        assert_eq!(rig.take(), Err(fatal));
    }
    let mut rig = Rig::new();
    rig.front.tx.page.0[0].store(5000, std::sync::atomic::Ordering::SeqCst);
    let Err(Fatal::Ring(_)) = rig.queue.take(&mut rig.guest, &rig.memory, 0, &mut rig.packet) else { panic!() };
}

#[test]
fn a_chain_of_extra_information_as_long_as_the_ring_is_read_once() {
    let mut rig = Rig::new();
    rig.raw(&[(0, EXTRA, 200)]);
    (0..255).for_each(|_| rig.front.tx.put([4 | 1 << 8, 0, 0]));
    assert_eq!(rig.take(), Err(Fatal::ExtraMissing));
    let mut rig = Rig::new();
    rig.raw(&[(0, EXTRA, 200)]);
    (0..255).for_each(|i| rig.front.tx.put([4 | u32::from(i < 254) << 8, 0, 0]));
    let token = rig.take_packet();
    rig.complete(token);
    assert_eq!(rig.statuses()[1..].iter().filter(|s| s.1 == 1).count(), 255);
}

#[test]
fn a_grant_that_does_not_hold_spoils_the_packet_and_no_other_slot() {
    let mut rig = Rig::new();
    assert!(rig.front.send(&[1; 300], Send { first: 100, others: 100, ..Send::default() }));
    rig.guest.fail_every(2);
    assert_eq!(rig.take(), Ok(Take::Refused));
    rig.guest.fail_every(0);
    assert_eq!(rig.guest.nr_uses(), 0);
    rig.queue.push();
    rig.front.collect();
    assert_eq!((rig.front.answers[OKAY], rig.front.answers[ERROR]), (2, 1));
}

#[test]
fn a_blank_checksum_where_none_is_drops_the_packet() {
    let mut rig = Rig::new();
    for (bytes, gso) in [
        (std::vec![9; 64], None),
        // IPv6 that is to be cut as IPv4, and UDP.
        (Shape { is_v6: true, ..Shape::tcp(B, A, 3000) }.blank(), Some((1000, 1))),
        (Shape { is_tcp: false, ..Shape::tcp(B, A, 3000) }.blank(), Some((1000, 1))),
    ] {
        assert!(rig.front.send(&bytes, Send { is_blank: true, gso, ..Send::default() }));
        assert_eq!(rig.take(), Ok(Take::Refused));
    }
    rig.queue.push();
    rig.front.collect();
    assert_eq!((rig.front.answers, rig.guest.nr_uses(), rig.queue.stats.dropped), ([3, 0, 0, 2], 0, 3));
}

#[test]
fn a_packet_to_be_cut_is_blank_even_if_its_sender_forgot() {
    for is_v6 in [false, true] {
        let mut rig = Rig::new();
        let shape = Shape { is_v6, options: 12, ..Shape::tcp(B, A, 20_000) };
        let how = Send { gso: Some((1400, 1 + u8::from(is_v6))), ..Send::default() };
        assert!(rig.front.send(&shape.complete(), how));
        let token = rig.take_packet();
        assert_eq!(rig.bytes(), shape.blank(), "the sum of the pseudo header instead of the checksum");
        assert!(matches!(rig.packet.checksum, Checksum::Blank { .. }));
        assert_eq!(rig.queue.stats.gso_checksum_fixup, 1);
        assert!(rig.queue.rebuild(token, &rig.memory, &mut rig.packet));
        assert_eq!(rig.bytes(), shape.blank());
    }
}

#[test]
fn multicast_requests_are_answered_and_send_nothing() {
    let mut rig = Rig::new();
    for kind in [2u32, 3] {
        rig.raw(&[(0, EXTRA, 0)]);
        rig.front.tx.put([kind | 0x0001 << 16, 0x5e00_fb5e, 0]);
        let Ok(Take::Multicast(change)) = rig.take() else { panic!() };
        assert_eq!((change.is_added, change.address), (kind == 2, [1, 0, 0x5e, 0xfb, 0, 0x5e]));
        rig.queue.answer_multicast(change, kind == 2);
        assert_eq!(rig.statuses(), [(0, if kind == 2 { 0 } else { -1 }), (0, 1)]);
    }
}

#[test]
fn without_credit_the_packet_stays_where_it_is() {
    let mut rig = Rig::new();
    rig.queue.credit = Credit::new(1000, 1000, 0);
    assert!(rig.front.send(&[5; 800], Send::default()) && rig.front.send(&[6; 800], Send::default()));
    let token = rig.take_packet();
    assert_eq!(rig.take(), Ok(Take::NoCredit { until: 1_000_000 }));
    rig.complete(token);
    let later = rig.queue.take(&mut rig.guest, &rig.memory, 1_000_000, &mut rig.packet);
    assert!(matches!(later, Ok(Take::Packet(_))));
    assert_eq!(rig.bytes(), [6; 800]);
}

#[test]
fn what_waits_at_the_end_is_given_back_unanswered() {
    let mut rig = Rig::new();
    (0..7).for_each(|_| assert!(rig.front.send(&[3; 5000], Send::default())));
    (0..7).for_each(|_| assert!(matches!(rig.take(), Ok(Take::Packet(_)))));
    assert_eq!(rig.guest.nr_uses(), 14);
    rig.queue.close(&mut rig.guest);
    assert_eq!((rig.guest.nr_uses(), rig.front.collect()), (0, 0));
}

proptest! {
    /// However a packet is cut into slots, it is the same packet.
    #[test]
    fn any_cut_is_the_same_packet(
        payload in 0usize..60_000, first in 14usize..4096, others in 1usize..4096, offset in 0usize..4096,
        is_v6: bool, is_tcp: bool, options in 0u8..41, tags in 0u8..3, seed: u32,
    ) {
        let bytes = Shape { to: B, from: A, tags, is_v6, is_tcp, options, payload, seed }.blank();
        let how = Send { is_blank: true, first, others, offset: offset.min(4096 - first), ..Send::default() };
        let slots = Netfront::slots(bytes.len(), how);
        prop_assume!(slots <= 19);
        let mut rig = Rig::new();
        prop_assert!(rig.front.send(&bytes, how));
        let token = rig.take_packet();
        prop_assert_eq!(rig.bytes(), bytes);
        rig.complete(token);
        rig.queue.push();
        prop_assert_eq!(rig.front.collect(), slots);
    }
}
