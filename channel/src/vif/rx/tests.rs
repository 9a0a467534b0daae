#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::*;
use crate::oracle::frames::Shape;
use crate::oracle::memory::{Guest, Memory};
use crate::oracle::netfront::{Netfront, Received, Send};
use crate::packet::Packet;
use crate::vif::credit::Credit;
use crate::vif::tx::{Take, TxQueue};
use core::sync::atomic::Ordering::SeqCst;
use hv_core::evtchn::oracle::TestPage;
use proptest::prelude::*;
use std::vec::Vec;

const A: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 1];
const B: [u8; 6] = [0, 0x16, 0x3e, 0, 0, 2];

/// A sender and a receiver.
struct Rig {
    memory: Memory,
    sender: Netfront,
    tx: TxQueue<TestPage, u32>,
    receiver: Netfront,
    rx: RxQueue<TestPage>,
    packet: Packet<u32>,
}

impl Rig {
    fn new(accepts: Accepts) -> Rig {
        let memory = Memory::new(2048);
        let sender = Netfront::new(&memory, Guest::new(1..1000), 0);
        let receiver = Netfront::new(&memory, Guest::new(1000..2048), u32::MAX - 5);
        let tx = TxQueue::attach(sender.tx.page.clone(), Credit::UNLIMITED).unwrap();
        let rx = RxQueue::attach(receiver.rx.page.clone(), accepts).unwrap();
        Rig { memory, sender, tx, receiver, rx, packet: Packet::default() }
    }

    fn deliver(&mut self, progress: &mut Progress) -> Result<Delivered, RingError> {
        self.rx.deliver(&mut self.receiver.guest, &self.memory, self.packet.view(), progress)
    }

    /// Sends a packet, delivers it in as many goes as it takes with `posted` pages for each, and answers it.
    fn pass(&mut self, bytes: &[u8], how: Send, posted: u32) -> (Vec<Received>, usize) {
        assert!(self.sender.send(bytes, how));
        self.sender.kick();
        let taken = self.tx.take(&mut self.sender.guest, &self.memory, 0, &mut self.packet);
        let Ok(Take::Packet(token)) = taken else { panic!("{taken:?}") };
        let (mut progress, mut all, mut errors) = (Progress::default(), Vec::new(), 0);
        for _ in 0..2000 {
            self.receiver.post(posted);
            self.receiver.kick();
            let delivered = self.deliver(&mut progress).unwrap();
            self.rx.push();
            let (packets, bad) = self.receiver.receive();
            (all, errors) = ([all, packets].concat(), errors + bad);
            if delivered == Delivered::Done {
                self.tx.complete(&mut self.sender.guest, token, 0).unwrap();
                self.tx.push();
                self.sender.collect();
                assert_eq!((self.sender.guest.nr_uses(), self.sender.nr_pending()), (0, 0));
                assert_eq!(self.receiver.guest.nr_uses(), 0);
                return (all, errors);
            }
        }
        panic!("no end");
    }
}

fn received(bytes: Vec<u8>) -> Received {
    Received { bytes, is_blank: false, is_validated: false, gso: None }
}

#[test]
fn a_packet_arrives_as_it_was_sent() {
    let mut rig = Rig::new(Accepts::ALL);
    let bytes = Shape::tcp(B, A, 1400).blank();
    let (got, _) = rig.pass(&bytes, Send { is_blank: true, is_validated: true, ..Send::default() }, 256);
    assert_eq!(got, [Received { is_blank: true, is_validated: true, ..received(bytes) }]);
    let bytes = Shape::tcp(B, A, 1400).complete();
    let (got, _) = rig.pass(&bytes, Send { is_validated: true, ..Send::default() }, 256);
    assert_eq!(got, [Received { is_validated: true, ..received(bytes.clone()) }]);
    let (got, _) = rig.pass(&bytes, Send::default(), 256);
    assert_eq!(got, [received(bytes)]);
    assert_eq!((rig.rx.stats.packets, rig.rx.stats.bytes), (3, 3 * 1454));
}

#[test]
fn a_packet_to_be_cut_stays_whole_for_those_who_cut_it_themselves() {
    let mut rig = Rig::new(Accepts::ALL);
    for (is_v6, kind) in [(false, 1), (true, 2)] {
        let bytes = Shape { is_v6, ..Shape::tcp(B, A, 65_000) }.blank();
        let gso = Some((1448, kind));
        let (got, _) = rig.pass(&bytes, Send { is_blank: true, gso, ..Send::default() }, 256);
        assert_eq!(got, [Received { is_blank: true, is_validated: true, gso, ..received(bytes) }]);
    }
}

#[test]
fn others_get_segments_also_if_they_have_little_room() {
    for (accepts, is_complete) in [
        (Accepts { gso_v4: false, ..Accepts::ALL }, false),
        (Accepts { csum_v4: false, ..Accepts::ALL }, true),
        (Accepts { sg: false, ..Accepts::ALL }, false),
        (Accepts::default(), true),
    ] {
        for posted in [1, 3, 256] {
            let mut rig = Rig::new(accepts);
            let bytes = Shape::tcp(B, A, 10_000).blank();
            let how = Send { is_blank: true, gso: Some((1000, 1)), ..Send::default() };
            let (got, _) = rig.pass(&bytes, how, posted);
            assert_eq!(got.len(), 10);
            assert!(got.iter().all(|p| p.gso.is_none() && p.is_validated && p.is_blank != is_complete));
            let payload: Vec<u8> = got.iter().flat_map(|p| p.bytes[54..].to_vec()).collect();
            assert_eq!(payload, bytes[54..]);
        }
    }
}

/// Guests know no way to take datagrams that are one for many, whatever they take.
#[test]
fn datagrams_that_came_as_one_are_cut_for_everybody() {
    for (accepts, is_complete) in
        [(Accepts::ALL, false), (Accepts { csum_v4: false, ..Accepts::ALL }, true), (Accepts::default(), true)]
    {
        let mut rig = Rig::new(accepts);
        let shape = Shape { is_tcp: false, ..Shape::tcp(B, A, 150) };
        let bytes = shape.blank();
        rig.packet.extend_header(bytes.len()).copy_from_slice(&bytes);
        rig.packet.checksum = Checksum::Blank { start: 34, field: 40 };
        rig.packet.gso = Some(Gso { kind: GsoKind::Udp, size: 70 });
        rig.receiver.post(3);
        rig.receiver.kick();
        assert_eq!(rig.deliver(&mut Progress::default()), Ok(Delivered::Done));
        rig.rx.push();
        let (got, _) = rig.receiver.receive();
        assert_eq!(got.iter().map(|p| p.bytes.len()).collect::<Vec<_>>(), [42 + 70, 42 + 70, 42 + 10]);
        assert!(got.iter().all(|p| p.gso.is_none() && p.is_validated && p.is_blank != is_complete));
        let same_but_sums = |(got, expected): (&Received, Vec<u8>)| {
            got.bytes[..40] == expected[..40] && got.bytes[42..] == expected[42..]
        };
        assert!(got.iter().zip(shape.segments(70)).all(same_but_sums));
        assert!(!is_complete || got.iter().map(|p| &p.bytes).eq(&shape.segments(70)));
    }
}

#[test]
fn however_short_segments_are_a_guest_gets_so_many_at_one_time() {
    let mut rig = Rig::new(Accepts { gso_v4: false, ..Accepts::ALL });
    let bytes = Shape::tcp(B, A, 150).blank();
    assert!(rig.sender.send(&bytes, Send { is_blank: true, gso: Some((1, 1)), ..Send::default() }));
    rig.sender.kick();
    assert!(matches!(rig.tx.take(&mut rig.sender.guest, &rig.memory, 0, &mut rig.packet), Ok(Take::Packet(_))));
    let mut progress = Progress::default();
    let mut portion = || {
        rig.receiver.post(200);
        rig.receiver.kick();
        let delivered = rig.deliver(&mut progress).unwrap();
        rig.rx.push();
        (delivered, rig.receiver.receive().0.len())
    };
    assert_eq!(portion(), (Delivered::Part, 128));
    assert_eq!(portion(), (Delivered::Done, 22));
}

#[test]
fn a_checksum_is_completed_for_those_who_cannot() {
    for (is_v6, is_tcp) in [(false, false), (false, true), (true, false), (true, true)] {
        let shape = Shape { is_v6, is_tcp, ..Shape::tcp(B, A, 1001) };
        let mut rig = Rig::new(Accepts { csum_v4: is_v6, csum_v6: !is_v6, ..Accepts::ALL });
        let (got, _) = rig.pass(&shape.blank(), Send { is_blank: true, first: 333, ..Send::default() }, 256);
        assert_eq!(got, [Received { is_validated: true, ..received(shape.complete()) }]);
        // The other protocol's is left to the guest.
        let other = Shape { is_v6: !is_v6, ..shape };
        let (got, _) = rig.pass(&other.blank(), Send { is_blank: true, ..Send::default() }, 256);
        assert_eq!((got[0].is_blank, &got[0].bytes), (true, &other.blank()));
    }
}

/// Linux's front end looks for IP's header right behind the addresses, if something is left to it, and throws away what
/// has a tag there.
#[test]
fn what_has_a_tag_is_cut_and_summed_for_everybody() {
    let mut rig = Rig::new(Accepts::ALL);
    for (tags, is_v6) in [(1, false), (2, false), (1, true), (2, true)] {
        let shape = Shape { tags, is_v6, ..Shape::tcp(B, A, 3000) };
        let how = Send { is_blank: true, ..Send::default() };
        let (got, _) = rig.pass(&shape.blank(), how, 256);
        assert_eq!(got, [Received { is_validated: true, ..received(shape.complete()) }]);
        let gso = Some((1400, 1 + u8::from(is_v6)));
        let (got, _) = rig.pass(&shape.blank(), Send { gso, ..how }, 256);
        let segments = shape.segments(1400).into_iter().map(|bytes| Received { is_validated: true, ..received(bytes) });
        assert_eq!(got, segments.collect::<Vec<_>>());
    }
}

#[test]
fn a_packet_is_not_begun_without_room_for_all_of_it() {
    let mut rig = Rig::new(Accepts::ALL);
    rig.packet.extend_header(100).fill(1);
    for i in 0..3 {
        rig.packet.push(crate::packet::Fragment { frame: 1 + i, offset: 0, len: 4000 });
    }
    rig.receiver.post(2);
    rig.receiver.kick();
    let mut progress = Progress::default();
    assert_eq!(rig.deliver(&mut progress), Ok(Delivered::NoRoom { slots: 3 }));
    assert_eq!(rig.rx.ask_for_event(3), Ok(false));
    assert!(!rig.rx.push(), "no news");
    rig.receiver.post(1);
    assert!(rig.receiver.kick().1, "there is room now");
    assert_eq!(rig.rx.ask_for_event(3), Ok(true));
    assert_eq!(rig.deliver(&mut progress), Ok(Delivered::Done));
    assert!(rig.rx.push());
    assert_eq!(rig.receiver.receive().0[0].bytes.len(), 12_100);
}

#[test]
fn no_event_is_asked_for_while_there_is_room() {
    let mut rig = Rig::new(Accepts::ALL);
    rig.pass(&[1; 60], Send::default(), 256);
    let before = rig.receiver.rx.word(1);
    for _ in 0..300 {
        rig.pass(&[1; 60], Send::default(), 8);
    }
    assert_eq!(rig.receiver.rx.word(1), before);
}

/// Puts short packets into the ring until there is no room; how many.
fn fill(rig: &mut Rig) -> u32 {
    let packets = (0..1000).take_while(|_| rig.deliver(&mut Progress::default()) == Ok(Delivered::Done)).count();
    rig.rx.push();
    packets as u32
}

#[test]
fn one_that_is_to_have_few_unread_has_no_more() {
    let mut rig = Rig::new(Accepts::ALL);
    rig.packet.extend_header(60).fill(1);
    rig.receiver.post(256);
    rig.receiver.kick();
    rig.rx.keep_few_unread(true);
    assert_eq!(fill(&mut rig), MOST_UNREAD);
    assert_eq!(rig.rx.ask_for_event(1), Ok(false));
    // An event comes when it has read half of them, and there is room for as many.
    let mut read = 0;
    while !{
        read += 1;
        rig.receiver.receive_some(1);
        rig.receiver.post(1);
        rig.receiver.kick().1
    } {}
    assert_eq!((read, fill(&mut rig)), (MOST_UNREAD / 2, MOST_UNREAD / 2));
    // Nobody else sends any more: it gets what there is room for.
    rig.rx.keep_few_unread(false);
    assert_eq!(fill(&mut rig), 256 - MOST_UNREAD);
    // And then somebody does: nothing, until most of that is read.
    rig.rx.keep_few_unread(true);
    assert_eq!(rig.receiver.receive().0.len(), 256);
    rig.receiver.post(256);
    rig.receiver.kick();
    assert_eq!(fill(&mut rig), MOST_UNREAD);
}

/// It is looked at by a timer while it has not read what there is, as if it had been kept from running.
#[test]
fn one_that_is_slow_has_few_unread_once_it_has_read() {
    let mut rig = Rig::new(Accepts::ALL);
    rig.packet.extend_header(60).fill(1);
    rig.receiver.post(256);
    rig.receiver.kick();
    rig.rx.keep_few_unread(true);
    for _ in 0..5 {
        let mut unread = fill(&mut rig);
        assert_eq!(unread, MOST_UNREAD);
        for _ in 0..4 {
            let _ = rig.rx.ask_for_event(1);
            unread += fill(&mut rig);
        }
        assert!(unread > MOST_UNREAD, "it might post fewer pages");
        // It reads as Linux does, and is not done before the next look.
        for read in [MOST_UNREAD, unread - MOST_UNREAD] {
            rig.receiver.receive_some(read as usize);
            rig.receiver.post(read);
            rig.receiver.kick();
        }
    }
    // Nor once its sender was alone, and had the whole ring.
    rig.rx.keep_few_unread(false);
    assert_eq!(fill(&mut rig), 256);
    rig.rx.keep_few_unread(true);
    let _ = rig.rx.ask_for_event(1);
    let _ = rig.rx.ask_for_event(1);
    rig.receiver.receive_some(256);
    rig.receiver.post(256);
    rig.receiver.kick();
    assert_eq!(fill(&mut rig), MOST_UNREAD);
}

#[test]
fn segments_that_were_not_shown_are_not_taken_for_read() {
    let mut rig = Rig::new(Accepts::ALL);
    rig.packet.extend_header(60).fill(1);
    rig.receiver.post(256);
    rig.receiver.kick();
    rig.rx.keep_few_unread(true);
    // It waits for the first one.
    let put = |rig: &mut Rig| {
        (0..1000).take_while(|_| rig.deliver(&mut Progress::default()) == Ok(Delivered::Done)).count() as u32
    };
    assert_eq!(put(&mut rig), MOST_UNREAD);
    assert_eq!(rig.rx.ask_for_event(1), Ok(false));
    assert_eq!(put(&mut rig), 0);
}

#[test]
fn one_that_posts_fewer_pages_is_known_to_have_read_them() {
    for posted in [1, 40, 100] {
        let mut rig = Rig::new(Accepts::ALL);
        rig.packet.extend_header(60).fill(1);
        rig.receiver.post(posted);
        rig.receiver.kick();
        rig.rx.keep_few_unread(true);
        assert_eq!(fill(&mut rig), posted.min(MOST_UNREAD));
        // One that looks by itself never says that it waits; but nothing moves.
        rig.receiver.receive_some(MOST_UNREAD as usize);
        rig.receiver.post(posted / 2 + 1);
        rig.receiver.kick();
        let mut asked = 0;
        while fill(&mut rig) == 0 && asked < 3 {
            let _ = rig.rx.ask_for_event(1);
            asked += 1;
        }
        assert!(asked < 3, "{posted}");
    }
}

#[test]
fn a_page_whose_grant_does_not_hold_spoils_its_packet_only() {
    let mut rig = Rig::new(Accepts::ALL);
    rig.receiver.guest.fail_every(2);
    let (got, errors) = rig.pass(&[7; 10_000], Send::default(), 256);
    assert_eq!((got.len(), errors, rig.rx.stats.errors), (0, 1, 1));
    rig.receiver.guest.fail_every(0);
    let (got, errors) = rig.pass(&[7; 10_000], Send::default(), 256);
    assert_eq!((got, errors), (std::vec![received(std::vec![7; 10_000])], 0));
}

#[test]
fn impossible_indices_end_it() {
    let mut rig = Rig::new(Accepts::ALL);
    rig.packet.extend_header(60).fill(1);
    rig.receiver.rx.page.0[0].store(5000, SeqCst);
    let e = rig.deliver(&mut Progress::default()).unwrap_err();
    rig.receiver.post(10);
    rig.receiver.kick();
    assert_eq!(rig.deliver(&mut Progress::default()), Err(e));
    assert_eq!(rig.rx.ask_for_event(1), Err(e));
}

#[test]
fn packets_longer_than_a_page_do_not_fit_those_who_take_one_page() {
    let mut rig = Rig::new(Accepts { sg: false, ..Accepts::ALL });
    rig.receiver.post(10);
    rig.receiver.kick();
    rig.packet.extend_header(100).fill(1);
    rig.packet.push(crate::packet::Fragment { frame: 1, offset: 0, len: 3996 });
    assert_eq!(rig.deliver(&mut Progress::default()), Ok(Delivered::Done));
    rig.packet.push(crate::packet::Fragment { frame: 2, offset: 0, len: 1 });
    assert_eq!(rig.deliver(&mut Progress::default()), Ok(Delivered::Unfit));
}

proptest! {
    /// Whatever it posts and reads, and whether it is to have few unread or not: who has read everything and waits gets
    /// the next packet, by an event or at the second look.
    #[test]
    fn nobody_waits_for_each_other(
        steps in prop::collection::vec((0u32..260, 0u32..260, any::<bool>(), 1usize..8, any::<bool>()), 1..60),
    ) {
        let mut rig = Rig::new(Accepts::ALL);
        for (posted, read, few, pages, waits) in steps {
            rig.packet.clear();
            rig.packet.extend_header(100).fill(1);
            for page in 0..pages as u32 {
                rig.packet.push(crate::packet::Fragment { frame: 1 + page, offset: 0, len: 4000 });
            }
            rig.rx.keep_few_unread(few);
            rig.receiver.post(posted);
            rig.receiver.kick();
            fill(&mut rig);
            let _ = rig.rx.ask_for_event(pages as u32 + 1);
            rig.receiver.receive_some(read as usize);
            if waits {
                rig.receiver.receive();
                rig.receiver.post(9);
                rig.receiver.kick();
                // At most two looks by a timer.
                let got = (0..3).any(|_| {
                    let got = fill(&mut rig) > 0;
                    let again = !got && rig.rx.ask_for_event(pages as u32 + 1) == Ok(true);
                    got || again && fill(&mut rig) > 0
                });
                prop_assert!(got, "{:?}", rig.rx.indices());
            }
        }
    }

    /// However it is cut by its sender, a packet arrives whole.
    #[test]
    fn any_packet_arrives(
        len in 14usize..60_000, first in 14usize..4096, others in 1usize..4096, offset in 0usize..4096, posted in 1u32..40,
    ) {
        let how = Send { first, others, offset: offset.min(4096 - first), ..Send::default() };
        prop_assume!(Netfront::slots(len, how) <= 19);
        let bytes: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        let mut rig = Rig::new(Accepts::ALL);
        let (got, errors) = rig.pass(&bytes, how, posted);
        prop_assert_eq!((got, errors), (std::vec![received(bytes)], 0));
    }
}
