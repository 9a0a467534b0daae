//! What the domain has lent: what is taken of it, freed, found again and called back.

use super::{call, domain_of_many, most_received, taken_and_freed};
use crate::linux::fake::{domain, BUFFERS, DEVICE, FRAGMENTS, SKBS, VMEMMAP};
use crate::linux::pool::{Given, Kind, LentPage, Pool, Refusal, Use, MAX_PAGES};
use crate::linux::skb::Packet;
use crate::linux::Stop;
use crate::memory::Memory;
use alloc::vec::Vec;

#[test]
fn what_the_pool_lacks_the_domain_gives_to_who_can_wait() {
    let (mut f, s) = domain(0);
    let empty = [("__netdev_alloc_skb", DEVICE), ("napi_build_skb", DEVICE), ("__netdev_alloc_frag_align", 2048)];
    for (name, first) in empty {
        f.can_wait = false;
        assert_eq!(call(name, &s, &mut f, &[first, 1000]), Ok(0), "{name}");
        f.can_wait = true;
        assert_eq!(call(name, &s, &mut f, &[first, 1000]), Err(Stop::Upcall), "{name}");
    }
}

#[test]
fn an_object_is_lent_once() {
    let (mut f, s) = domain(2);
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    f.pool.lend(skb, BUFFERS, 2048).expect("memory");
    assert_eq!(f.pool.free(), (1, 2, 2), "it is still out");
    call("napi_consume_skb", &s, &mut f, &[skb, 1]).expect("freed");
    assert_eq!(f.pool.free(), (2, 2, 2));
}

/// Also if the domain lends what is at 0, by which the pool says that there is none: the pages that a packet is given
/// are the pages that it has.
#[test]
fn the_pages_that_a_packet_was_given_are_those_that_it_has() {
    const PAGES: u64 = 8;
    let mut pool = Pool::default();
    pool.share_among(1);
    for n in 0..PAGES {
        let is_lent = pool.lend_fragment(n * 4096, VMEMMAP + n * 64, 2, 4096).is_ok();
        assert_eq!(is_lent, n != 0);
        pool.locate(n * 4096, 0x10_0000 + n * 4096);
    }
    pool.lend(SKBS, BUFFERS, 2048).expect("memory");
    pool.locate(SKBS, 0x20_0000);
    let nr_free = pool.free().2;
    for wanted in 1..=PAGES as usize {
        let skb = pool.reserve(100, 0).expect("free").skb;
        let (mut given, mut has) = ([LentPage::default(); MAX_PAGES], [LentPage::default(); MAX_PAGES]);
        let nr_given = if pool.add_pages(skb, &mut given[..wanted]) { wanted } else { 0 };
        assert_eq!((pool.pages(skb, &mut has), has), (nr_given, given), "{wanted} pages");
        assert_eq!(nr_given, if wanted <= nr_free { wanted } else { 0 });
        pool.unreserve(skb);
        assert_eq!(pool.free(), (1, 0, nr_free));
    }
}

/// An `sk_buff` whose buffer is said to be at 0 would come home to those without one, where there is no room for it.
#[test]
fn what_comes_home_comes_to_where_it_was_lent() {
    for (skb, head) in [(SKBS, 0), (0, BUFFERS), (0, 0), (SKBS, BUFFERS)] {
        let (mut f, _) = domain(0);
        let lent = f.pool.lend(skb, head, 2048);
        let free = f.pool.free();
        if let Some((taken, _)) = f.pool.take(100, Use::Driver) {
            assert!(matches!(f.pool.give(taken), Given::Back(_)));
        }
        assert_eq!(f.pool.free(), free, "{skb:#x} {head:#x}");
        assert_eq!(lent, if skb == 0 || head == 0 { Err(Refusal::AtZero) } else { Ok(()) });
    }
    assert_eq!(Pool::default().lend_bare(0), Err(Refusal::AtZero));
}

#[test]
fn what_the_domain_freed_is_reclaimed() {
    let (mut f, s) = domain(2);
    let o = s.offsets;
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    let kept = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    let data = call("__netdev_alloc_frag_align", &s, &mut f, &[2048, 0]).expect("allocated");
    assert_eq!(f.reclaim(&o), Ok(0));
    f.put_u32(skb + 220, 1).expect("mapped");
    let page = VMEMMAP + (data - FRAGMENTS) / 4096 * 64;
    f.put_u32(page + 52, 1).expect("mapped");
    assert_eq!(f.reclaim(&o), Ok(2));
    assert_eq!(
        (f.pool.free(), f.u32(page + 52), f.u32(kept + 220), f.u32(skb + 220)),
        ((1, 2, 2), Ok(2), Ok(2), Ok(2))
    );
}

/// Who gets a lent `sk_buff` in the domain makes a copy of it that shares its data, and frees it. The data is free when
/// the copy is.
#[test]
fn what_a_copy_of_the_domains_shares_is_not_reclaimed() {
    let (mut f, s) = domain(1);
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
    f.put_u32(skb + 220, 1).expect("mapped");
    for shared in [2, 0x1_0002, 0xffff] {
        f.put_u32(info + 32, shared).expect("mapped");
        assert_eq!((f.reclaim(&s.offsets), f.pool.free().0), (Ok(0), 0), "{shared:#x}");
    }
    f.put_u32(info + 32, 0x1_0001).expect("mapped");
    assert_eq!((f.reclaim(&s.offsets), f.pool.free().0), (Ok(1), 1));
}

/// Who frees a lent `sk_buff` in the domain frees nothing of what is in it: the lender's reference is left.
#[test]
fn what_the_domain_freed_with_pages_in_it_waits_for_who_frees_those() {
    let (mut f, s) = domain(1);
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
    f.put_u32(skb + 220, 1).expect("mapped");
    f.put_u8(info + s.offsets.info_nr_frags, 2).expect("mapped");
    assert_eq!((f.reclaim(&s.offsets), f.pool.free().0), (Ok(0), 0));
    f.put_u8(info + s.offsets.info_nr_frags, 0).expect("mapped");
    f.put_u64(info + s.offsets.info_frag_list, SKBS).expect("mapped");
    assert_eq!((f.reclaim(&s.offsets), f.pool.free().0), (Ok(0), 0));
    f.put_u64(info + s.offsets.info_frag_list, 0).expect("mapped");
    assert_eq!((f.reclaim(&s.offsets), f.pool.free().0), (Ok(1), 1));
}

/// However many there are, what the domain freed is found after some looks, and what was to be sent at the next one.
#[test]
fn what_the_domain_freed_is_reclaimed_in_portions() {
    const MANY: u64 = 500;
    let (mut f, s) = domain_of_many(MANY);
    let o = s.offsets;
    let sent = f.pool.reserve(100, 0).expect("free").skb;
    let packet =
        Packet { device: DEVICE, header: &[], fragments: &[], checksum: None, segmentation: None, queue: 0, cookie: 9 };
    assert_eq!(s.prepare_reserved(&mut f, sent, (60, 0), packet), Ok(true));
    f.put_u32(sent + o.skb_users, 1).expect("mapped");
    let others = MANY * 3 / 4 - 2;
    taken_and_freed(&mut f, &s, others);
    let mut found = f.reclaim(&o).expect("mapped");
    assert_eq!(f.reclaimed, [9]);
    assert!(found < others as usize / 2, "not all at once: {found}");
    for _ in 0..7 {
        found += f.reclaim(&o).expect("mapped");
    }
    assert_eq!((found, f.pool.free().0, f.reclaimed.len()), (others as usize + 1, MANY as usize, 1));
}

/// What waits for a buffer waits for one look, however many the domain has freed. Nothing else may happen meanwhile
/// that makes for another.
#[test]
fn all_that_the_domain_freed_is_reclaimed_if_the_pool_is_short() {
    const MANY: u64 = 500;
    let (mut f, s) = domain_of_many(MANY);
    let freed = taken_and_freed(&mut f, &s, MANY * 3 / 4).len();
    // The host has what it may have of the others.
    let mut held = Vec::new();
    while f.pool.has_room() {
        held.push(f.pool.reserve(100, 0).expect("there is room").skb);
    }
    assert_eq!(f.reclaim(&s.offsets), Ok(freed));
    assert_eq!((f.pool.has_room(), f.pool.free().0), (true, MANY as usize - held.len()));
    held.iter().for_each(|skb| f.pool.unreserve(*skb));
    // The driver has found nothing, and what it looked for came back otherwise.
    let freed = taken_and_freed(&mut f, &s, most_received(MANY));
    assert_eq!(call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]), Ok(0));
    let (back, others) = freed.split_at(freed.len() / 2);
    for skb in back {
        call("napi_consume_skb", &s, &mut f, &[*skb, 1]).expect("lent");
    }
    assert_eq!(f.reclaim(&s.offsets), Ok(others.len()));
}

/// The same of pages of a packet.
#[test]
fn pages_that_the_domain_freed_are_reclaimed_if_they_are_short() {
    const MANY: u64 = 200;
    const RECEIVING: usize = 100;
    /// Of the others a quarter is for what is received.
    const MOST_HELD: usize = 75 - MAX_PAGES;
    let (mut f, s) = domain_of_many(256);
    let pages = FRAGMENTS + 0x10_0000;
    let page = |n: u64| VMEMMAP + 0x4000 + n * 64;
    f.map(VMEMMAP, 8);
    for n in 0..MANY {
        f.pool.lend_fragment(pages + n * 4096, page(n), 2, 4096).expect("memory");
        f.pool.locate(pages + n * 4096, 0x10_0000 + n * 4096);
        f.put_u32(page(n) + s.offsets.page_refcount, 2).expect("mapped");
    }
    for count in [MOST_HELD, MOST_HELD - 1] {
        for _ in 0..RECEIVING {
            call("__netdev_alloc_frag_align", &s, &mut f, &[2048, 0]).expect("allocated");
        }
        let held: Vec<u64> = (0..count).map(|_| f.pool.reserve(100, 0).expect("free").skb).collect();
        assert!(held.iter().all(|skb| f.pool.add_pages(*skb, &mut [LentPage::default()])));
        (0..MANY).for_each(|n| f.put_u32(page(n) + s.offsets.page_refcount, 1).expect("mapped"));
        let is_short = !f.pool.has_pages(MAX_PAGES);
        let found = f.reclaim(&s.offsets).expect("mapped");
        let (was_short, all) = (count == MOST_HELD, found == RECEIVING);
        assert_eq!((is_short, all), (was_short, was_short), "{count} of {MANY}: {found}");
        held.iter().for_each(|skb| f.pool.unreserve(*skb));
        while f.pool.free().2 < MANY as usize {
            f.reclaim(&s.offsets).expect("mapped");
        }
    }
}

/// What lies in the driver's rings comes back when something was received into it, which may be never. A pool is as
/// large as the rings were when it was lent, and 512 for each queue that sends.
#[test]
fn however_long_rings_are_something_is_left_to_send() {
    for (rings, all) in [(256, 768), (2048, 2560), (4096, 4608), (4096, 768)] {
        let mut pool = Pool::default();
        for n in 0..all {
            pool.lend(SKBS + n * 512, BUFFERS + n * 4096, 2048).expect("memory");
            pool.locate(SKBS + n * 512, 0x7000);
            pool.lend_fragment(FRAGMENTS + n * 4096, VMEMMAP + n * 64, 2, 4096).expect("memory");
            pool.locate(FRAGMENTS + n * 4096, 0x10_0000 + n * 4096);
        }
        pool.share_among(1);
        let taken: Vec<u64> = (0..rings).filter_map(|_| Some(pool.take(1000, Use::Driver)?.0)).collect();
        let data: Vec<u64> = (0..rings).filter_map(|_| pool.take_fragment(2048)).collect();
        let have_room = rings < all;
        for in_rings in [taken.len(), data.len()] {
            assert_eq!(in_rings as u64, if have_room { rings } else { most_received(all) }, "{rings} of {all}");
        }
        let (mut nr_sent, mut nr_pages) = (0, 0);
        while pool.has_room_for(0) {
            let skb = pool.reserve(100, 0).expect("there is room").skb;
            nr_sent += 1;
            if pool.has_pages_for(0, MAX_PAGES) && pool.add_pages(skb, &mut [LentPage::default(); MAX_PAGES]) {
                nr_pages += MAX_PAGES;
            }
        }
        assert!(nr_sent >= 48 && nr_pages >= MAX_PAGES, "{rings} of {all}: {nr_sent} packets, {nr_pages} pages");
        // And there is as much to receive into as before, with what a poll has in its hands.
        assert!(matches!(pool.give(taken[0]), Given::Back(_)) && pool.give_fragment(data[0]) == Some(true));
        let more = if have_room { 64 } else { 1 };
        assert!((0..more).all(|_| pool.take(1000, Use::Driver).is_some() && pool.take_fragment(2048).is_some()));
    }
}

#[test]
fn what_nobody_uses_is_recalled() {
    let (mut f, s) = domain(2);
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    let data = call("__netdev_alloc_frag_align", &s, &mut f, &[2048, 0]).expect("allocated");
    let mut gone = [(Kind::Whole, 0); 3];
    assert_eq!(f.pool.recall(&mut gone), 3, "one with a buffer, two without");
    assert_eq!(gone.map(|(kind, _)| kind), [Kind::Whole, Kind::Bare, Kind::Bare]);
    assert!(gone.iter().all(|(_, address)| *address != skb));
    assert_eq!(f.pool.free(), (0, 0, 1));
    assert_eq!((f.pool.recall(&mut gone), gone[0].0, gone[0].1 == data), (1, Kind::Fragment, false));
    assert_eq!((f.pool.recall(&mut gone), f.pool.lent()), (0, (1, 1)), "what the driver has stays lent");
    call("napi_consume_skb", &s, &mut f, &[skb, 1]).expect("freed");
    call("page_frag_free", &s, &mut f, &[data]).expect("freed");
    assert_eq!((f.pool.recall(&mut gone), f.pool.lent()), (2, (0, 0)));
    assert_eq!(gone[..2], [(Kind::Whole, skb), (Kind::Fragment, data)]);
}
