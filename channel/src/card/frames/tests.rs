#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::*;
use crate::oracle::frames::Shape;
use crate::oracle::memory::Memory;
use crate::packet::{Checksum, Fragment, Gso, GsoKind, Packet};
use proptest::prelude::*;
use std::rc::Rc;
use std::vec::Vec;

const A: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 1];
const B: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 2];

/// A card with so many places, which keeps what it is given.
struct TestCard {
    memory: Memory,
    /// As many as there are clones besides this one.
    places: Rc<()>,
    nr_places: usize,
    /// Bytes; is the checksum blank?
    sent: Vec<(Vec<u8>, bool)>,
    /// How many of them the card cuts.
    whole: u32,
}

impl TestCard {
    fn new(memory: &Memory, nr_places: usize) -> TestCard {
        TestCard { memory: memory.clone(), places: Rc::new(()), nr_places, sent: Vec::new(), whole: 0 }
    }
}

impl Card<u32> for TestCard {
    type Room = (Rc<()>, u32);

    fn reserve(&mut self, frame: &View<'_, u32>) -> Option<Self::Room> {
        let in_use = Rc::strong_count(&self.places) - 1 + self.sent.len();
        (in_use < self.nr_places).then(|| (self.places.clone(), frame.len()))
    }

    fn send(&mut self, (_, room): Self::Room, frame: &View<'_, u32>) {
        assert_eq!(room, frame.len(), "room for what is sent");
        self.whole += u32::from(frame.gso.is_some());
        let mut bytes = frame.header.to_vec();
        for piece in frame.pieces() {
            let mut part = std::vec![0; piece.len.into()];
            self.memory.read(piece.frame, piece.offset, &mut part);
            bytes.extend(part);
        }
        self.sent.push((bytes, matches!(frame.checksum, Checksum::Blank { .. })));
    }
}

/// A packet as it comes from a guest.
fn packet(memory: &Memory, bytes: &[u8], is_blank: bool, gso: Option<Gso>) -> Packet<u32> {
    let mut packet = Packet::default();
    let header = bytes.len().min(HEADER_BYTES);
    packet.extend_header(header).copy_from_slice(&bytes[..header]);
    for (frame, part) in (1..).zip(bytes[header..].chunks(3900)) {
        memory.write(frame, 100, part);
        packet.push(Fragment { frame, offset: 100, len: part.len() as u16 });
    }
    if is_blank {
        let h = crate::offload::headers::parse(bytes).expect("TCP or UDP");
        packet.checksum = Checksum::Blank {
            start: h.l4 as u16,
            field: (h.l4 + if h.protocol.number() == 6 { 16 } else { 6 }) as u16,
        };
    }
    packet.gso = gso;
    packet
}

fn takes(csum_v4: bool, csum_v6: bool) -> Takes {
    Takes { max_frame: 1514, accepts: Accepts { csum_v4, csum_v6, ..Accepts::default() } }
}

#[test]
fn what_is_too_long_is_not_taken() {
    let memory = Memory::new(20);
    for (payload, fits) in [(1460, true), (1461, false)] {
        let shape = Shape::tcp(B, A, payload);
        let mut card = TestCard::new(&memory, 1);
        let packet = packet(&memory, &shape.complete(), false, None);
        let sent = send(&mut card, &takes(true, true), &packet.view(), &memory, &mut Progress::default());
        assert_eq!((sent == Sent::Done, card.sent.len()), (fits, usize::from(fits)));
        assert_ne!(sent, Sent::NoRoom);
    }
    // Linux's drivers and bridges take a tag more.
    for (tags, payload, fits) in [(1, 1460, true), (1, 1461, false), (2, 1456, true), (2, 1460, false)] {
        let shape = Shape { tags, ..Shape::tcp(B, A, payload) };
        for is_blank in [false, true] {
            let bytes = if is_blank { shape.blank() } else { shape.complete() };
            let mut card = TestCard::new(&memory, 1);
            let packet = packet(&memory, &bytes, is_blank, None);
            let sent = send(&mut card, &takes(false, false), &packet.view(), &memory, &mut Progress::default());
            let expected = if fits { (Sent::Done, 1) } else { (Sent::Unfit, 0) };
            assert_eq!((sent, card.sent.len()), expected, "{tags} tags, {payload} bytes");
        }
    }
    // Nor is one whose segments are.
    for (size, fits) in [(1460, true), (1461, false)] {
        for tags in [0, 1] {
            let shape = Shape { tags, ..Shape::tcp(B, A, 5000) };
            let gso = Some(Gso { kind: GsoKind::TcpV4, size });
            let mut card = TestCard::new(&memory, 9);
            let packet = packet(&memory, &shape.blank(), true, gso);
            let sent = send(&mut card, &takes(true, true), &packet.view(), &memory, &mut Progress::default());
            assert_eq!((sent, card.sent.len()), if fits { (Sent::Done, 4) } else { (Sent::Unfit, 0) }, "{tags} tags");
        }
    }
}

/// What ends within its tags is of no use, and what a driver looks for behind them is not there.
#[test]
fn what_ends_within_its_tags_is_not_taken() {
    let memory = Memory::new(20);
    for tags in 0..10 {
        for kind in [[0x81, 0x00], [0x88, 0xa8]] {
            for len in 14..64 {
                let mut bytes = std::vec![0; len];
                bytes[..6].copy_from_slice(&B);
                for at in (12..).step_by(4).take(tags).filter(|at| at + 2 <= len) {
                    bytes[at..at + 2].copy_from_slice(&kind);
                }
                let fits = len >= 14 + 4 * tags;
                let mut card = TestCard::new(&memory, 1);
                let packet = packet(&memory, &bytes, false, None);
                let sent = send(&mut card, &takes(true, true), &packet.view(), &memory, &mut Progress::default());
                let expected = if fits { (Sent::Done, 1) } else { (Sent::Unfit, 0) };
                assert_eq!((sent, card.sent.len()), expected, "{len} bytes, {tags} tags {kind:x?}");
            }
        }
    }
    // One that has no end of tags.
    let mut bytes = std::vec![0; 1000];
    (12..1000).step_by(4).for_each(|at| bytes[at] = 0x81);
    let mut card = TestCard::new(&memory, 1);
    let packet = packet(&memory, &bytes, false, None);
    let sent = send(&mut card, &takes(true, true), &packet.view(), &memory, &mut Progress::default());
    assert_eq!((sent, card.sent.len()), (Sent::Unfit, 0));
}

/// What a card that cuts is given of `shape`, which is for segments of `size` bytes: how many frames, how many of them
/// to be cut.
fn whole(shape: &Shape, gso: Gso, change: impl Fn(&mut Packet<u32>)) -> (usize, u32) {
    let memory = Memory::new(20);
    let mut card = TestCard::new(&memory, 64);
    let mut packet = packet(&memory, &shape.blank(), true, Some(gso));
    change(&mut packet);
    let takes = Takes { max_frame: 1514, accepts: Accepts::ALL };
    assert_ne!(send(&mut card, &takes, &packet.view(), &memory, &mut Progress::default()), Sent::NoRoom);
    assert_eq!(Rc::strong_count(&card.places), 1);
    (card.sent.len(), card.whole)
}

#[test]
fn a_card_cuts_what_is_plain_and_nothing_else() {
    let kind = GsoKind::TcpV4;
    let tcp = Shape::tcp(B, A, 5000);
    let v6 = Shape { is_v6: true, ..tcp };
    let as_it_is = |_: &mut Packet<u32>| {};
    assert_eq!(whole(&tcp, Gso { kind, size: 1460 }, as_it_is), (1, 1));
    assert_eq!(whole(&v6, Gso { kind: GsoKind::TcpV6, size: 1440 }, as_it_is), (1, 1));
    // A tag, tiny segments, a single one, the other protocol, another place for the sum: cut as by a card that does
    // not.
    assert_eq!(whole(&Shape { tags: 1, ..tcp }, Gso { kind, size: 1400 }, as_it_is), (4, 0));
    assert_eq!(whole(&tcp, Gso { kind, size: 255 }, as_it_is), (20, 0));
    assert_eq!(whole(&Shape { payload: 1000, ..tcp }, Gso { kind, size: 1460 }, as_it_is), (1, 0));
    assert_eq!(whole(&tcp, Gso { kind: GsoKind::TcpV6, size: 1460 }, as_it_is), (4, 0));
    let elsewhere = |packet: &mut Packet<u32>| packet.checksum = Checksum::Blank { start: 34, field: 40 };
    assert_eq!(whole(&tcp, Gso { kind, size: 1460 }, elsewhere), (4, 0));
    // Segments that are too long are not taken at all.
    assert_eq!(whole(&tcp, Gso { kind, size: 1461 }, as_it_is), (0, 0));
}

/// Linux's r8169 does not leave the sum of a packet to its cards that is shorter than a wire has them.
#[test]
fn short_packets_are_summed_here() {
    let memory = Memory::new(20);
    for (is_tcp, payload, is_left) in
        [(true, 0, false), (true, 5, false), (true, 6, true), (false, 17, false), (false, 18, true)]
    {
        let shape = Shape { payload, is_tcp, ..Shape::tcp(B, A, 0) };
        let mut card = TestCard::new(&memory, 1);
        let packet = packet(&memory, &shape.blank(), true, None);
        let sent = send(&mut card, &takes(true, true), &packet.view(), &memory, &mut Progress::default());
        let bytes = if is_left { shape.blank() } else { shape.complete() };
        assert_eq!((sent, card.sent), (Sent::Done, [(bytes, is_left)].into()));
    }
}

#[test]
fn room_that_is_not_used_is_given_back() {
    let memory = Memory::new(20);
    let shape = Shape::tcp(B, A, 1000);
    // A checksum that is to be completed outside of the copied part.
    let mut packet = packet(&memory, &shape.blank(), true, None);
    packet.checksum = Checksum::Blank { start: 500, field: 516 };
    let mut card = TestCard::new(&memory, 1);
    let sent = send(&mut card, &takes(false, false), &packet.view(), &memory, &mut Progress::default());
    assert_eq!((sent, card.sent.len(), Rc::strong_count(&card.places)), (Sent::Unfit, 0, 1));
}

proptest! {
    /// What lies in pieces lies in pages, one after the other.
    #[test]
    fn a_body_is_spread_over_pages(pieces in prop::collection::vec((0u16..4096, 1u16..4096), 1..17), skip in 0u32..5000, less in 0u32..3000) {
        let memory = Memory::new(64);
        let mut packet = Packet::default();
        let mut all = Vec::new();
        for (frame, (offset, len)) in (1..).zip(pieces) {
            let len = len.min(4096 - offset);
            let part: Vec<u8> = (0..len).map(|i| (i % 251) as u8 ^ frame as u8).collect();
            memory.write(frame, offset, &part);
            all.extend(part);
            packet.push(Fragment { frame, offset, len });
        }
        let mut view = packet.view();
        view.skip = skip.min(view.body);
        view.body = (view.body - view.skip).saturating_sub(less);
        let pages: Vec<u32> = (20..20 + view.body.div_ceil(4096)).collect();
        spread(&view, &memory, &pages);
        let mut got = Vec::new();
        for page in pages {
            let mut part = std::vec![0; 4096];
            memory.read(page, 0, &mut part);
            got.extend(part);
        }
        got.truncate(view.body as usize);
        prop_assert_eq!(got, &all[view.skip as usize..][..view.body as usize]);
    }

    /// Whatever the card can do and however often it is full, it gets what it would get from a reference, in order and
    /// once.
    #[test]
    fn cards_get_frames(
        is_v6: bool, is_tcp: bool, tags in 0u8..3, options in 0u8..41, payload in 0usize..9000, seed: u32,
        size in prop::option::of(100u16..1400), is_blank: bool, csum: (bool, bool), places in 1usize..5,
    ) {
        let shape = Shape { to: B, from: A, tags, is_v6, is_tcp, options, payload, seed };
        let gso = size.filter(|_| is_tcp).map(|size| Gso { kind: if is_v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 }, size });
        let is_blank = is_blank || gso.is_some();
        let bytes = if is_blank { shape.blank() } else { shape.complete() };
        let takes = Takes { max_frame: 10_000, ..takes(csum.0, csum.1) };
        let sums = if is_v6 { csum.1 } else { csum.0 };
        let memory = Memory::new(20);
        let mut card = TestCard::new(&memory, places);
        let packet = packet(&memory, &bytes, is_blank, gso);
        let (mut progress, mut got, mut rounds) = (Progress::default(), Vec::new(), 0);
        loop {
            let sent = send(&mut card, &takes, &packet.view(), &memory, &mut progress);
            prop_assert_eq!(Rc::strong_count(&card.places), 1);
            got.append(&mut card.sent);
            match sent {
                Sent::Done => break,
                Sent::NoRoom => rounds += 1,
                Sent::Unfit => panic!("unfit"),
            }
            prop_assert!(rounds < 100);
        }
        let segments = gso.map_or_else(|| std::vec![shape.complete()], |gso| shape.segments(gso.size.into()));
        prop_assert_eq!(got.len(), segments.len());
        for ((bytes, blank), mut expected) in got.into_iter().zip(segments) {
            prop_assert_eq!(blank, is_blank && sums && tags == 0 && bytes.len() >= 60);
            if blank {
                // The card's part: from the transport header to the end, whose field has the pseudo header's sum.
                let h = crate::offload::headers::parse(&bytes).expect("TCP or UDP");
                let field = h.l4 + h.protocol.field();
                let mut filled = bytes.clone();
                let sum = match !crate::oracle::frames::slow_sum(&[&bytes[h.l4..]]) { 0 => 0xffff, x => x };
                filled[field..field + 2].copy_from_slice(&sum.to_be_bytes());
                prop_assert_eq!(&filled, &expected);
                expected = bytes.clone();
            }
            prop_assert_eq!(bytes, expected);
        }
    }
}
