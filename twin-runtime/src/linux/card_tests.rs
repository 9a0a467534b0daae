//! What a host needs that drives a card by a twin: packets by reserved buffers, polls of its own, locks that are waited
//! for.

use super::fake::{domain, Event, Fake, BUFFERS, DEVICE, FRAGMENTS, SKBS, VMEMMAP};
use super::inbox::Inbox;
use super::lock::Sleepers;
use super::pool::{Forgetting, Kind, LentPage, Pool, Use};
use super::queue::Begun;
use super::skb::{Fragment, Frame, Packet, GSO_TCP_V4, HEADROOM};
use super::{Done, Foreign, Routine, Stop, Support};
use crate::memory::Memory;
use alloc::vec::Vec;

fn call(name: &str, s: &Support, f: &mut Fake, args: &[u64]) -> Done {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    Routine::by_name(name).expect("known").call(s, f, &all)
}

fn packet(cookie: u64) -> Packet<'static> {
    Packet {
        device: DEVICE,
        header: &[],
        fragments: &[],
        checksum: Some((34, 6)),
        segmentation: None,
        queue: 0,
        cookie,
    }
}

/// A card takes no packet that has no room in a buffer: it would wait for ever.
#[test]
fn the_smallest_buffer_says_what_has_room_in_all() {
    let (mut f, s) = domain(2);
    assert_eq!((f.pool.smallest(), s.room(f.pool.smallest())), (2048, 2048 - 320 - 64));
    f.pool.lend(SKBS + 0x8000, BUFFERS + 0x8000, 4096).expect("memory");
    assert_eq!(f.pool.smallest(), 2048);
    assert_eq!(domain(0).0.pool.smallest(), 0);
}

#[test]
fn a_reserved_buffer_is_the_hosts_until_it_goes_to_the_driver() {
    let (mut f, s) = domain(1);
    assert_eq!(f.pool.reserve(100, 0), None, "nobody knows where it is");
    assert_eq!(f.pool.free().0, 1);
    f.pool.locate(SKBS, 0x7000);
    assert_eq!(f.pool.reserve(100, 0).map(|own| (own.skb, own.machine)), Some((SKBS, 0x7000)));
    assert!(call("kfree_skb_reason", &s, &mut f, &[SKBS]).is_err(), "a driver gives back what it does not have");
    assert_eq!(f.pool.free().0, 0);
    f.write(BUFFERS + HEADROOM, &[1; 60]).expect("mapped");
    assert_eq!(s.prepare_reserved(&mut f, SKBS, (60, 0), packet(5)), Ok(true));
    assert_eq!((f.u32(SKBS + 112), f.u16(SKBS + 180)), (Ok(60), Ok(0x0101)), "length and protocol");
    assert_eq!(f.u8(BUFFERS + HEADROOM), Ok(1), "the packet stays where it is");
    assert_eq!(s.prepare_reserved(&mut f, SKBS, (60, 0), packet(6)), Ok(false), "it is the driver's");
    // The driver does not take it.
    assert!(!f.pool.take_over(SKBS, 6), "another packet");
    assert!(f.pool.take_over(SKBS, 5));
    assert_eq!(s.prepare_reserved(&mut f, SKBS, (60, 0), packet(5)), Ok(true));
    call("napi_consume_skb", &s, &mut f, &[SKBS, 64]).expect("done");
    assert_eq!(f.events, [Event::Transmitted(SKBS, 5)]);
    assert!(!f.pool.take_over(SKBS, 5), "it has given it back");
    f.pool.unreserve(SKBS);
    assert_eq!(f.pool.free().0, 1, "once");
}

#[test]
fn pages_go_with_a_packet_and_come_back_with_it() {
    let (mut f, s) = domain(4);
    f.pool.locate(SKBS, 0x7000);
    f.pool.locate(SKBS + 3 * 512, 0x7000);
    for k in 4..7 {
        f.put_u32(VMEMMAP + k * 64 + 52, 2).expect("mapped");
        f.pool.lend_fragment(FRAGMENTS + k * 4096, VMEMMAP + k * 64, 2, 4096).expect("memory");
    }
    let skb = f.pool.reserve(100, 0).expect("free").skb;
    let mut pages = [LentPage::default(); 2];
    assert!(!f.pool.add_pages(skb, &mut pages), "nobody knows where they are");
    assert_eq!(f.pool.free().2, 7);
    for k in 0..7 {
        f.pool.locate(FRAGMENTS + k * 4096, 0x10_0000 + k * 4096);
    }
    assert!(!f.pool.add_pages(skb, &mut [LentPage::default(); 4]), "three are whole pages");
    assert!(!f.pool.add_pages(skb, &mut [LentPage::default(); 8]), "there are seven");
    assert!(!f.pool.add_pages(skb - 512, &mut pages), "it is not reserved");
    assert_eq!(f.pool.free().2, 7);
    assert!(f.pool.add_pages(skb, &mut pages));
    assert!(!f.pool.add_pages(skb, &mut pages.clone()), "it has some");
    assert_eq!(f.pool.free().2, 5);
    // Two pages do not hold more than two pages' bytes.
    assert_eq!(s.prepare_reserved(&mut f, skb, (60, 8193), packet(5)), Ok(false));
    assert_eq!(f.pool.free().2, 7, "it is given back with its pages");
    let skb = f.pool.reserve(100, 0).expect("free").skb;
    assert!(f.pool.add_pages(skb, &mut pages));
    let whole = Packet { segmentation: Some((1448, 6, GSO_TCP_V4)), ..packet(5) };
    assert_eq!(s.prepare_reserved(&mut f, skb, (60, 8000), whole), Ok(true));
    let o = s.offsets;
    assert_eq!((f.u32(skb + o.skb_len), f.u32(skb + o.skb_data_len)), (Ok(8060), Ok(8000)));
    let info = f.u64(skb + o.skb_head).expect("mapped") + u64::from(f.u32(skb + o.skb_end).expect("mapped"));
    assert_eq!((f.u8(info + o.info_nr_frags), f.u16(info + o.info_gso_size)), (Ok(2), Ok(1448)));
    for (page, at, len) in [(pages[0], 0, 4096), (pages[1], 16, 3904)] {
        let at = info + o.info_frags + at;
        assert_eq!((f.u64(at), f.u32(at + 8), f.u32(at + 12)), (Ok(page.page), Ok(len), Ok(0)));
    }
    // They are not the driver's to free, nor found to be freed by the domain.
    let theirs: alloc::vec::Vec<u64> = pages.iter().map(|page| (page.page - VMEMMAP) / 64).collect();
    for k in &theirs {
        assert!(call("page_frag_free", &s, &mut f, &[FRAGMENTS + k * 4096]).is_err());
        f.put_u32(VMEMMAP + k * 64 + 52, 1).expect("mapped");
    }
    let mut pool = core::mem::take(&mut f.pool);
    let mut search = pool.search();
    assert_eq!(pool.reclaim(&f, &o, &mut search, |_| true), Ok(0));
    f.pool = pool;
    assert_eq!(f.pool.free().2, 5);
    call("napi_consume_skb", &s, &mut f, &[skb, 64]).expect("done");
    assert_eq!((f.pool.free().2, f.events.len()), (7, 1));
    // One that was not sent gives them back, too.
    let skb = f.pool.reserve(100, 0).expect("free").skb;
    assert!(f.pool.add_pages(skb, &mut pages));
    f.pool.unreserve(skb);
    assert_eq!(f.pool.free().2, 7);
}

/// Those that `queue` may take and takes, which are all located, with `pages` pages each.
fn fill(f: &mut Fake, queue: usize, pages: usize) -> Vec<u64> {
    let mut taken = Vec::new();
    while f.pool.has_room_for(queue) {
        let skb = f.pool.reserve(100, queue).expect("there is room").skb;
        let mut list = [LentPage::default(); 16];
        if pages != 0 && !(f.pool.has_pages_for(queue, pages) && f.pool.add_pages(skb, &mut list[..pages])) {
            f.pool.unreserve(skb);
            break;
        }
        taken.push(skb);
    }
    taken
}

#[test]
fn a_queue_that_is_not_served_leaves_the_others_their_buffers() {
    let (mut f, s) = domain(16);
    for n in 0..16 {
        f.pool.locate(SKBS + n * 512, 0x7000);
    }
    assert_eq!(fill(&mut f, 0, 0).len(), 12, "a quarter is for what is received");
    assert_eq!(f.pool.reserve(100, 0).map(|own| f.pool.unreserve(own.skb)), Some(()));
    let all: Vec<u64> = (0..16).map(|n| SKBS + n * 512).collect();
    all.iter().for_each(|skb| f.pool.unreserve(*skb));
    f.pool.share_among(2);
    let stuck = fill(&mut f, 0, 0);
    assert_eq!((stuck.len(), f.pool.has_room_for(0), f.pool.has_room_for(1)), (6, false, true));
    // The driver has them, and its card does nothing.
    for skb in &stuck {
        assert_eq!(s.prepare_reserved(&mut f, *skb, (60, 0), packet(7)), Ok(true));
    }
    for _ in 0..3 {
        let others = fill(&mut f, 1, 0);
        assert_eq!(others.len(), 6);
        for skb in others {
            assert_eq!(s.prepare_reserved(&mut f, skb, (60, 0), packet(8)), Ok(true));
            call("napi_consume_skb", &s, &mut f, &[skb, 64]).expect("done");
        }
    }
    assert!(!f.pool.has_room_for(0));
    // Their sender does not wait for them any more, and they are still out.
    let mut cookies = [0; 16];
    assert_eq!(f.pool.forget_cookies(&mut Forgetting::default(), &mut cookies), 6);
    assert!(!f.pool.has_room_for(0));
    for skb in &stuck {
        call("kfree_skb_reason", &s, &mut f, &[*skb]).expect("done");
    }
    assert_eq!((fill(&mut f, 0, 0).len(), f.pool.free().0), (6, 10));
}

/// What lies in rings is nobody's share.
#[test]
fn a_queue_that_is_not_served_leaves_the_others_theirs_also_if_rings_are_long() {
    let (mut f, _) = domain(0);
    for n in 0..3072 {
        f.pool.lend(SKBS + n * 512, BUFFERS + n * 4096, 2048).expect("memory");
        f.pool.locate(SKBS + n * 512, 0x7000);
        f.pool.lend_fragment(FRAGMENTS + n * 4096, VMEMMAP + n * 64, 2, 4096).expect("memory");
        f.pool.locate(FRAGMENTS + n * 4096, 0x10_0000 + n * 4096);
    }
    f.pool.share_among(2);
    for _ in 0..2048 {
        assert!(f.pool.take(100, Use::Driver).is_some() && f.pool.take_fragment(2048).is_some());
    }
    let stuck = fill(&mut f, 0, 2);
    let others = fill(&mut f, 1, 2);
    assert_eq!((stuck.len(), others.len()), (192, 191), "of 384 pages each; some more are kept than a quarter");
    stuck.iter().chain(&others).for_each(|skb| f.pool.unreserve(*skb));
    assert_eq!((fill(&mut f, 0, 0).len(), fill(&mut f, 1, 0).len()), (384, 384));
}

#[test]
fn a_queue_leaves_the_others_their_pages() {
    let (mut f, s) = domain(16);
    f.pool = Pool::default();
    for n in 0..16 {
        f.pool.lend(SKBS + n * 512, BUFFERS + n * 4096, 2048).expect("memory");
        f.pool.locate(SKBS + n * 512, 0x7000);
        f.pool.lend_fragment(FRAGMENTS + n * 4096, VMEMMAP + n * 64, 2, 4096).expect("memory");
        f.pool.locate(FRAGMENTS + n * 4096, 0x10_0000 + n * 4096);
    }
    f.pool.share_among(2);
    let stuck = fill(&mut f, 0, 2);
    assert_eq!((stuck.len(), f.pool.free().2), (3, 10));
    let others = fill(&mut f, 1, 2);
    assert_eq!(others.len(), 2, "the rest is for what is received");
    for skb in stuck.iter().chain(&others) {
        assert_eq!(s.prepare_reserved(&mut f, *skb, (60, 5000), packet(7)), Ok(true));
        call("napi_consume_skb", &s, &mut f, &[*skb, 64]).expect("done");
    }
    assert_eq!((f.pool.free().0, f.pool.free().2, fill(&mut f, 0, 2).len()), (16, 16, 3));
}

/// Nobody would tell its sender that it is sent.
#[test]
fn a_packet_of_a_sender_is_the_domains_to_free_where_there_is_no_card() {
    let (mut f, s) = domain(1);
    f.pool.locate(SKBS, 0x7000);
    let skb = f.pool.reserve(100, 0).expect("free").skb;
    assert_eq!(s.prepare_reserved(&mut f, skb, (60, 0), packet(5)), Ok(true));
    f.has_card = false;
    for name in ["napi_consume_skb", "consume_skb", "__dev_kfree_skb_any"] {
        assert_eq!(call(name, &s, &mut f, &[skb, 64]), Err(Stop::Upcall), "{name}");
    }
    assert_eq!(f.events, []);
    let mut cookies = [0; 2];
    assert_eq!(f.pool.forget_cookies(&mut Forgetting::default(), &mut cookies), 1);
    assert_eq!(cookies, [5, 0]);
    // It is the driver's like any other then.
    assert_eq!((call("napi_consume_skb", &s, &mut f, &[skb, 64]), f.pool.free().0), (Ok(0), 1));
    assert_eq!(f.events, []);
}

#[test]
fn cookies_of_what_the_driver_has_come_back_once() {
    let (mut f, s) = domain(3);
    for n in 0..3 {
        f.pool.locate(SKBS + n * 512, 0x7000);
    }
    for cookie in 1..=3 {
        let skb = f.pool.reserve(100, 0).expect("free").skb;
        assert_eq!(s.prepare_reserved(&mut f, skb, (60, 0), packet(cookie)), Ok(true));
    }
    let (mut two, mut forgetting) = ([0; 2], Forgetting::default());
    assert_eq!((f.pool.forget_cookies(&mut forgetting, &mut two), forgetting.is_over()), (2, false));
    let mut rest = [0; 2];
    assert_eq!((f.pool.forget_cookies(&mut forgetting, &mut rest), forgetting.is_over()), (1, true));
    let mut all = [two[0], two[1], rest[0]];
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3]);
    assert_eq!(f.pool.forget_cookies(&mut Forgetting::default(), &mut two), 0);
    call("napi_consume_skb", &s, &mut f, &[SKBS, 64]).expect("done");
    assert_eq!(f.events, [], "its sender was told");
}

/// However many are with the driver, each object is looked at once, and none is passed over when others come and go
/// meanwhile.
#[test]
fn cookies_are_forgotten_in_one_pass() {
    const MANY: u64 = 2000;
    const SENT: u64 = 1500;
    const LARGE: u64 = 0xffff_8880_0100_0000;
    let (mut f, s) = domain(0);
    f.map(LARGE, MANY);
    let skb = |n: u64| LARGE + n * 4096;
    for n in 0..MANY {
        f.pool.lend(skb(n), skb(n) + 512, 2048).expect("memory");
        f.pool.locate(skb(n), 0x7000);
    }
    for cookie in 0..SENT {
        let skb = f.pool.reserve(100, 0).expect("free").skb;
        assert_eq!(s.prepare_reserved(&mut f, skb, (60, 0), packet(cookie)), Ok(true));
    }
    let (mut all, mut forgetting, mut calls) = (Vec::new(), Forgetting::default(), 0);
    while !forgetting.is_over() {
        let (mut some, before) = ([0; 64], forgetting.looks);
        let count = f.pool.forget_cookies(&mut forgetting, &mut some);
        assert!(forgetting.looks - before <= 512, "nobody has the pool for long");
        all.extend_from_slice(&some[..count]);
        // Free ones are taken back, and another one is lent.
        calls += 1;
        assert_eq!(f.pool.recall(&mut [(Kind::Whole, 0); 8]), 8);
        f.pool.lend(LARGE - calls * 4096, LARGE - calls * 4096 + 512, 2048).expect("memory");
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..SENT));
    assert!(forgetting.looks as u64 <= MANY && calls <= SENT / 64 + 5, "{} in {calls}", forgetting.looks);
    assert_eq!(f.pool.transmitting(), 0);
}

/// A packet of `len` bytes at `address`, in `skb` with its buffer at `head`.
fn frame(skb: u64, head: u64, address: u64, len: u32) -> Frame<'static> {
    let (linear, protocol, ip_summed) = (len, 0, 1);
    Frame {
        skb,
        head,
        data: address,
        linear,
        mac_header: address,
        len,
        protocol,
        ip_summed,
        tag: None,
        fragments: &[],
        blank: None,
        segmentation: None,
    }
}

#[test]
fn packets_in_lent_buffers_are_kept_for_a_while() {
    let (mut f, s) = domain(2);
    let mut inbox = Inbox::default();
    f.pool.locate(SKBS, 0x7800);
    f.pool.locate(FRAGMENTS + 4096, 0x9000);
    assert!(f.pool.knows(SKBS) && f.pool.knows(FRAGMENTS) && !f.pool.knows(BUFFERS));
    let good = [frame(SKBS, BUFFERS, BUFFERS + 100, 1948), frame(SKBS + 256, FRAGMENTS + 4096, FRAGMENTS + 4096, 2048)];
    let keep = |f: &mut Fake, inbox: &mut Inbox, frame: Frame<'_>| inbox.keep(&mut f.pool, frame);
    // What the driver does not have the domain may take back meanwhile.
    assert_eq!(good.map(|frame| keep(&mut f, &mut inbox, frame)), [false; 2], "in the pool");
    while f.pool.take(1, Use::Reserved).is_some() {}
    assert!(!keep(&mut f, &mut inbox, good[0]), "the host's");
    f.pool.unreserve(SKBS);
    f.pool.unreserve(SKBS + 512);
    while f.pool.take(1, Use::Driver).is_some() {}
    while f.pool.take_bare().is_some() {}
    assert!(!keep(&mut f, &mut inbox, good[1]), "its fragment is in the pool");
    while f.pool.take_fragment(1).is_some() {}
    for bad in [
        frame(SKBS, BUFFERS, BUFFERS + 100, 1949),
        frame(SKBS, BUFFERS, BUFFERS - 1, 2),
        frame(SKBS + 512, BUFFERS + 4096, BUFFERS + 4096, 1),
        frame(SKBS + 256, FRAGMENTS + 4096, FRAGMENTS + 4096 + 8, 2041),
        frame(SKBS + 256, FRAGMENTS, FRAGMENTS + 8, 8),
        frame(SKBS + 256, 8, 8, 8),
        frame(0x1234, FRAGMENTS + 4096, FRAGMENTS + 4096, 8),
        Frame { fragments: &[Fragment { page: 0, offset: 0, len: 1 }], ..good[0] },
        Frame { tag: Some([0x81, 0, 0, 1]), ..good[0] },
        Frame { blank: Some((34, 50)), ..good[0] },
        Frame { segmentation: Some((1448, 1)), ..good[0] },
    ] {
        assert!(!keep(&mut f, &mut inbox, bad), "{bad:x?}");
    }
    assert_eq!(good.map(|frame| keep(&mut f, &mut inbox, frame)), [true; 2]);
    let places: Vec<_> = inbox.kept().iter().map(|kept| (kept.machine, kept.len, kept.ip_summed)).collect();
    assert_eq!(places, [(0x7800 + 100, 1948, 1), (0x9000, 2048, 1)]);
    // Nobody else has them now.
    assert_eq!(good.map(|frame| keep(&mut f, &mut inbox, frame)), [false; 2]);
    let freed = |f: &mut Fake, name, object| call(name, &s, f, &[object, 0]);
    assert!(freed(&mut f, "napi_consume_skb", SKBS).is_err() && freed(&mut f, "napi_consume_skb", SKBS + 256).is_err());
    assert!(freed(&mut f, "page_frag_free", FRAGMENTS + 4096).is_err());
    assert_eq!(f.pool.recall(&mut [(Kind::Whole, 0); 8]), 0);
    inbox.let_go(&mut f.pool);
    assert_eq!((inbox.kept(), f.pool.free()), (&[][..], (1, 1, 1)));
    assert_eq!(f.pool.recall(&mut [(Kind::Whole, 0); 8]), 3);
}

/// A packet that is kept is not taken back when it has been handed over, but when its buffer is wanted.
#[test]
fn the_host_may_keep_what_it_receives() {
    let (mut f, s) = domain(1);
    f.keeps = true;
    f.pool.locate(SKBS, 0x7800);
    for round in 1..=2 {
        let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
        call("skb_put", &s, &mut f, &[skb, 100]).expect("room");
        call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
        assert_eq!(call("napi_gro_receive", &s, &mut f, &[DEVICE, skb]), Ok(3));
        assert_eq!((f.inbox.kept().len(), f.pool.free().0, f.events.len()), (1, 0, round));
    }
}

#[test]
fn without_a_card_polls_and_packets_are_the_domains() {
    let (mut f, s) = domain(1);
    f.has_card = false;
    let state = DEVICE + s.offsets.napi_state;
    f.put_u64(state, 1).expect("mapped");
    for (name, args) in [
        ("__napi_schedule", [DEVICE, 0]),
        ("napi_complete_done", [DEVICE, 1]),
        ("napi_gro_receive", [DEVICE, SKBS]),
        ("netif_receive_skb", [SKBS, 0]),
    ] {
        assert_eq!(call(name, &s, &mut f, &args), Err(Stop::Upcall), "{name}");
    }
    assert_eq!((f.u64(state), f.events.len()), (Ok(1), 0), "nothing was changed");
}

#[test]
fn a_poll_goes_back_to_whoever_waits_for_it() {
    let (mut f, s) = domain(1);
    let state = DEVICE + s.offsets.napi_state;
    for (before, again, after) in [(1, true, 1), (5, false, 4), (7, false, 4), (0x41, true, 0x41), (8, false, 8)] {
        f.put_u64(state, before).expect("mapped");
        assert_eq!(s.after_poll(&mut f, DEVICE, false), Ok(again), "{before:#x}");
        assert_eq!(f.u64(state), Ok(after));
        assert_eq!(
            (s.after_poll(&mut f, DEVICE, true), f.u64(state)),
            (Ok(false), Ok(after)),
            "it is another's by now"
        );
    }
    for (before, after) in [(1, 0), (3, 0), (0x15, 0x14), (2, 2)] {
        f.put_u64(state, before).expect("mapped");
        s.give_poll_back(&mut f, DEVICE).expect("there");
        assert_eq!(f.u64(state), Ok(after), "{before:#x}");
    }
}

/// Another polls it as well (`NPSVC`), so the driver may not give it up: whoever owns it has to run it again.
#[test]
fn a_poll_that_could_not_be_given_up_runs_again() {
    let (mut f, s) = domain(1);
    let state = DEVICE + s.offsets.napi_state;
    for (before, value, after) in [(9, 0, 9), (0x41, 0, 0x41), (1, 1, 0), (3, 0, 1)] {
        f.completed.clear();
        f.events.clear();
        f.put_u64(state, before).expect("mapped");
        assert_eq!(call("napi_complete_done", &s, &mut f, &[DEVICE, 1]), Ok(value), "{before:#x}");
        let was_given_up = f.completed == [DEVICE];
        let is_scheduled = f.events == [Event::Poll(DEVICE)];
        let runs_again = s.after_poll(&mut f, DEVICE, was_given_up).expect("there") || is_scheduled;
        assert_eq!((runs_again, f.u64(state)), (after & 1 != 0, Ok(after)), "{before:#x}");
    }
}

#[test]
fn an_invocation_that_can_wait_waits_for_locks() {
    let (mut f, s) = domain(1);
    f.can_wait = true;
    let lock = DEVICE + 64;
    f.put_u32(lock, 1).expect("mapped");
    assert_eq!(call("_raw_spin_lock", &s, &mut f, &[lock]), Err(Stop::Upcall));
    // Somebody sleeps behind it, who is put down nowhere: the domain lets go of it, later.
    f.events.clear();
    f.put_u32(lock, 3).expect("mapped");
    assert_eq!(call("_raw_spin_unlock_irqrestore", &s, &mut f, &[lock]), Ok(0));
    assert_eq!((f.u32(lock), &f.events[..]), (Ok(3), &[Event::Free(Foreign::Lock(lock))][..]));
    // The transmit lock is tried once.
    f.events.clear();
    let queue = lock - s.offsets.queue_lock;
    assert_eq!(s.begin_transmit(&mut f, queue), Ok(Begun::Busy));
    assert_eq!(f.events, []);
    f.put_u32(lock, 0).expect("mapped");
    assert_eq!(s.begin_transmit(&mut f, queue), Ok(Begun::Open));
    assert_eq!(s.is_open(&f, queue), Ok(true));
    // Also when the card is taken away, and nobody could wait.
    for can_wait in [true, false] {
        f.can_wait = can_wait;
        f.events.clear();
        f.put_u32(lock, 3).expect("mapped");
        s.end_transmit(&mut f, queue, false).expect("the domain's to do");
        assert_eq!(f.events, [Event::Free(Foreign::Lock(lock))]);
    }
}

#[test]
fn who_sleeps_behind_a_lock_is_struck_out_and_woken() {
    let (mut f, mut s) = domain(1);
    let (lock, table) = (DEVICE + 64, DEVICE + 0x100);
    s.kernel.sleepers = Sleepers { table, count: 8, stride: 16 };
    let put = |f: &mut Fake, n: u64, who: u64| f.put_u64(table + 16 * n, who).expect("mapped");
    for can_wait in [false, true] {
        f.can_wait = can_wait;
        f.events.clear();
        put(&mut f, 2, lock + 64);
        put(&mut f, 5, lock);
        // Somebody is in the queue behind the one who sleeps.
        f.put_u32(lock, 0x0005_0003).expect("mapped");
        assert_eq!(call("_raw_spin_unlock", &s, &mut f, &[lock]), Ok(0));
        assert_eq!((f.u32(lock), f.u64(table + 32), f.u64(table + 80)), (Ok(0x0005_0000), Ok(lock + 64), Ok(0)));
        assert_eq!(f.events, [Event::Woken]);
    }
    // One that is not there, or beyond the end, is the domain's to find.
    f.events.clear();
    put(&mut f, 8, lock);
    f.put_u32(lock, 3).expect("mapped");
    assert_eq!(call("_raw_spin_unlock", &s, &mut f, &[lock]), Ok(0));
    assert_eq!((f.u32(lock), &f.events[..]), (Ok(3), &[Event::Free(Foreign::Lock(lock))][..]));
    // Nobody sleeps: the table is not looked at.
    s.kernel.sleepers.table = 8;
    f.put_u32(lock, 1).expect("mapped");
    assert_eq!(call("_raw_spin_unlock", &s, &mut f, &[lock]), Ok(0));
    // A table that is not there ends the invocation.
    f.put_u32(lock, 3).expect("mapped");
    assert!(matches!(call("_raw_spin_unlock", &s, &mut f, &[lock]), Err(Stop::Abort(_))));
}
