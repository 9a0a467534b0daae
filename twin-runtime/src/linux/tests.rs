//! The support routines on a fake domain.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;

use super::fake::{domain, Event, Fake, Work, BUFFERS, DEVICE, FRAGMENTS, SKBS, VMEMMAP};
use super::lock::Sleepers;
use super::offsets::Offsets;
use super::pool::{Kind, MAX_PAGES, USERS};
use super::queue::{Begun, Limits};
use super::skb::{Fragment, Many, Packet, UnknownKind, MOST_FOREIGN};
use super::{Foreign, Host, Routine, Stop, Support};
use crate::abort::Reason;
use crate::memory::{Fault, Memory};

fn call(name: &str, s: &Support, f: &mut Fake, args: &[u64]) -> Result<u64, Stop> {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    Routine::by_name(name).expect("native").call(s, f, &all)
}

fn structure(result: Result<u64, Stop>) -> bool {
    matches!(result, Err(Stop::Abort(Reason::Structure { .. })))
}

#[test]
fn every_routine_of_the_hot_paths_is_native() {
    let e1000 = [
        "is_vmalloc_addr",
        "dma_map_page_attrs",
        "skb_clone_tx_timestamp",
        "napi_schedule_prep",
        "__napi_schedule",
        "dma_unmap_page_attrs",
        "napi_consume_skb",
        "dql_completed",
        "napi_complete_done",
        "__napi_alloc_skb",
        "dma_sync_single_for_cpu",
        "skb_put",
        "memcpy",
        "skb_trim",
        "eth_type_trans",
        "napi_gro_receive",
        "napi_build_skb",
        "__netdev_alloc_frag_align",
        "netif_schedule_queue",
        "netif_tx_wake_queue",
        "__dev_kfree_skb_any",
        "__netdev_alloc_skb",
        "__skb_pad",
    ];
    for name in e1000 {
        assert!(Routine::by_name(name).is_some(), "{name}");
    }
    for routine in Routine::ALL {
        assert_eq!(Routine::by_name(routine.name()), Some(*routine));
    }
    assert_eq!(Routine::by_name("_printk"), None);
}

#[test]
fn a_missing_member_is_named() {
    let filled = Offsets::fill(|s, m| (s != "dql" || m != "limit").then_some(0), |_| Some(0));
    assert_eq!(filled.err(), Some(("dql", "limit")));
}

#[test]
fn dma_mapping_gives_machine_addresses_of_contiguous_buffers() {
    let (mut f, mut s) = domain(2);
    let page = VMEMMAP + 7 * 64;
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, page, 0x234, 100, 1]), Ok(0x100_7234));
    f.foreign.insert(8);
    assert_eq!(
        call("dma_map_page_attrs", &s, &mut f, &[0, page, 0x800, 0x800, 1]),
        Ok(0x100_7800),
        "ends with the page"
    );
    assert_eq!(
        call("dma_map_page_attrs", &s, &mut f, &[0, page, 0x801, 0x800, 1]),
        Ok(u64::MAX),
        "reaches a foreign page"
    );
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, page + 1, 0, 1, 1]), Ok(u64::MAX), "no page structure");
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, 0x1000, 0, 1, 1]), Ok(u64::MAX), "below the map");
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, page, 0, u64::MAX, 1]), Ok(u64::MAX));
    s.dma_limit = 0x100_7100;
    assert_eq!(call("dma_map_page_attrs", &s, &mut f, &[0, page, 0, 0x101, 1]), Ok(u64::MAX), "beyond the device");
    f.can_wait = true;
    for (page, offset, bytes) in [(page, 0, 0x101), (page, 0x801, 0x800)] {
        let asked = call("dma_map_page_attrs", &s, &mut f, &[0, page, offset, bytes, 1]);
        assert_eq!(asked, Err(Stop::Upcall), "the domain copies");
    }
    assert_eq!(call("is_vmalloc_addr", &s, &mut f, &[0xffff_c900_0000_1000]), Ok(1));
    assert_eq!(call("is_vmalloc_addr", &s, &mut f, &[BUFFERS]), Ok(0));
}

#[test]
fn what_the_domain_has_copied_it_copies_back() {
    let (mut f, s) = domain(1);
    f.bounced = Some(0x5000);
    for name in ["dma_unmap_page_attrs", "dma_sync_single_for_cpu", "dma_sync_single_for_device"] {
        assert_eq!(call(name, &s, &mut f, &[DEVICE, 0x5000, 100, 2]), Err(Stop::Upcall), "{name}");
        assert_eq!(call(name, &s, &mut f, &[DEVICE, 0x6000, 100, 2]), Ok(0), "{name}");
    }
}

#[test]
fn polling_is_owned_once_and_a_missed_poll_runs_again() {
    let (mut f, s) = domain(1);
    let napi = DEVICE;
    assert_eq!(call("napi_schedule_prep", &s, &mut f, &[napi]), Ok(1));
    assert_eq!(f.taken, Some(napi), "who ends now owns it");
    call("__napi_schedule", &s, &mut f, &[napi]).expect("scheduled");
    assert_eq!(call("napi_schedule_prep", &s, &mut f, &[napi]), Ok(0), "owned");
    assert_eq!(f.taken, None, "it is scheduled, or was not taken");
    assert_eq!(f.u64(napi + 16), Ok(3), "SCHED and MISSED");
    assert_eq!(call("napi_complete_done", &s, &mut f, &[napi, 1]), Ok(0), "again");
    assert_eq!((f.u64(napi + 16), f.events.len()), (Ok(1), 2));
    assert_eq!(call("napi_complete_done", &s, &mut f, &[napi, 1]), Ok(1));
    assert_eq!((f.u64(napi + 16), &f.completed[..]), (Ok(0), &[napi, napi][..]));
    f.put_u64(napi + 16, 4).expect("mapped");
    assert_eq!(call("napi_schedule_prep", &s, &mut f, &[napi]), Ok(0), "disabled");
    f.put_u64(napi + 16, 1 | 8).expect("mapped");
    assert_eq!(call("napi_complete_done", &s, &mut f, &[napi, 1]), Ok(0), "netpoll has it");
    assert_eq!((f.u64(napi + 16), f.taken, f.completed.len()), (Ok(9), None, 2));
    // The domain schedules what it runs itself.
    f.has_card = false;
    f.put_u64(napi + 16, 0).expect("mapped");
    assert_eq!(call("napi_schedule_prep", &s, &mut f, &[napi]), Ok(1));
    assert_eq!((call("__napi_schedule", &s, &mut f, &[napi]), f.taken), (Err(Stop::Upcall), None));
}

#[test]
fn locks_are_tried_for_a_bounded_time() {
    let (mut f, s) = domain(1);
    let lock = DEVICE + 64;
    assert_eq!(call("_raw_spin_lock_irqsave", &s, &mut f, &[lock]), Ok(0));
    assert_eq!(call("_raw_spin_trylock", &s, &mut f, &[lock]), Ok(0));
    assert_eq!(call("_raw_spin_lock", &s, &mut f, &[lock]), Err(Stop::Abort(Reason::Lock(lock))));
    assert_eq!(f.events, [Event::Busy(1), Event::Busy(2), Event::Busy(3)]);
    f.frees_after = Some((2, lock));
    assert_eq!(call("_raw_spin_lock", &s, &mut f, &[lock]), Ok(0), "freed while waiting");
    f.put_u32(lock, 0x0004_0001).expect("mapped");
    assert_eq!(call("_raw_spin_unlock_irqrestore", &s, &mut f, &[lock]), Ok(0));
    assert_eq!(f.u32(lock), Ok(0x0004_0000), "the queue behind it stays");
    f.put_u32(lock, 3).expect("mapped");
    assert_eq!(call("_raw_spin_unlock", &s, &mut f, &[lock]), Err(Stop::Upcall), "paravirtual waiter");
    f.put_u32(lock, 0).expect("mapped");
    assert!(structure(call("_raw_spin_unlock", &s, &mut f, &[lock])));
    assert_eq!(call("_raw_spin_lock", &s, &mut f, &[0x10]), Err(Fault { address: 0x10, write: false }.into()));
}

#[test]
fn a_small_packet_is_received_through_pool_and_copy() {
    let (mut f, s) = domain(2);
    f.write(FRAGMENTS, &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 8, 0, 0xaa, 0xbb, 0xcc]).expect("mapped");
    f.put_u64(DEVICE + 56, DEVICE).expect("mapped");
    let skb = call("__napi_alloc_skb", &s, &mut f, &[DEVICE, 64, 0]).expect("allocated");
    assert_eq!(f.u64(skb + 16), Ok(DEVICE));
    let at = call("skb_put", &s, &mut f, &[skb, 20]).expect("room");
    call("memcpy", &s, &mut f, &[at, FRAGMENTS, 17]).expect("copied");
    call("skb_trim", &s, &mut f, &[skb, 17]).expect("trimmed");
    let protocol = call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
    assert_eq!(protocol, 8);
    assert_eq!(f.u8(skb + 128), Ok(0), "to this host");
    f.put_u16(skb + 180, 8).expect("mapped");
    assert_eq!(call("napi_gro_receive", &s, &mut f, &[DEVICE, skb]), Ok(3));
    assert_eq!(f.events, [Event::Received { linear: 3, protocol: 8, fragments: 0 }]);
    assert_eq!((f.pool.free(), f.u32(skb + 220)), ((2, 2, 2), Ok(2)), "home again");
    assert!(structure(call("napi_consume_skb", &s, &mut f, &[skb, 1])), "freed twice");
}

#[test]
fn a_large_packet_is_received_in_the_buffer_it_came_in() {
    let (mut f, s) = domain(1);
    let data = call("__netdev_alloc_frag_align", &s, &mut f, &[2048, u64::MAX]).expect("allocated");
    assert_eq!(call("__netdev_alloc_frag_align", &s, &mut f, &[2048, u64::MAX]), Ok(0), "empty");
    f.write(data, &[0xff; 14]).expect("mapped");
    let skb = call("napi_build_skb", &s, &mut f, &[data, 2048]).expect("built");
    assert_eq!((f.u64(skb + 200), f.u32(skb + 192), f.u8(skb + 126)), (Ok(data), Ok(2048 - 320), Ok(32)));
    call("skb_put", &s, &mut f, &[skb, 1500]).expect("room");
    let protocol = call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
    assert_eq!((protocol, f.u8(skb + 128)), (0xffff, Ok(1)), "broadcast");
    call("netif_receive_skb", &s, &mut f, &[skb]).expect("received");
    assert_eq!(f.pool.free(), (1, 1, 1));
    assert!(structure(call("napi_build_skb", &s, &mut f, &[data, 100])), "no room for the shared info");
}

#[test]
fn buffers_of_the_domain_are_left_to_it() {
    let (mut f, s) = domain(1);
    let skb = call("napi_build_skb", &s, &mut f, &[DEVICE + 0x1000, 1024]).expect("built");
    call("napi_consume_skb", &s, &mut f, &[skb, 1]).expect("freed");
    call("__dev_kfree_skb_any", &s, &mut f, &[DEVICE, 1]).expect("handed over");
    assert_eq!(f.events, [Event::Free(Foreign::Fragment(DEVICE + 0x1000)), Event::Free(Foreign::Skb(DEVICE))]);
    assert_eq!(f.pool.free(), (1, 1, 1), "the bare sk_buff is home");
}

#[test]
fn sizes_that_leave_the_buffer_end_the_invocation() {
    let (mut f, s) = domain(1);
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    assert_eq!(call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]), Ok(0), "empty");
    assert!(structure(call("skb_put", &s, &mut f, &[skb, 2000])));
    assert!(structure(call("skb_put", &s, &mut f, &[skb, u64::from(u32::MAX)])));
    f.put_u32(skb + 112, 5000).expect("mapped");
    assert!(structure(call("napi_gro_receive", &s, &mut f, &[0, skb])), "longer than its buffer");
    f.put_u32(skb + 192, u32::MAX).expect("mapped");
    assert!(structure(call("napi_gro_receive", &s, &mut f, &[0, skb])), "a buffer of 4 GiB");
    f.put_u64(skb + 208, 8).expect("mapped");
    assert!(structure(call("skb_trim", &s, &mut f, &[skb, 1])), "data outside the head");
    assert_eq!(f.pool.exhausted, 1);
}

/// A received packet with its Ethernet header at `mac`, and one page fragment.
fn received(mac: u16, page: u64, offset: u32, len: u32) -> (Result<u64, Stop>, Vec<Event>, (usize, usize, usize)) {
    let (mut f, s) = domain(1);
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    call("skb_put", &s, &mut f, &[skb, 100]).expect("room");
    call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
    f.put_u16(skb + 186, mac).expect("mapped");
    let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
    f.put_u8(info + 2, 1).expect("mapped");
    f.put_u64(info + 48, page).expect("mapped");
    f.put_u32(info + 56, len).expect("mapped");
    f.put_u32(info + 60, offset).expect("mapped");
    f.put_u32(skb + 112, 86 + len).expect("mapped");
    f.put_u32(skb + 116, len).expect("mapped");
    f.put_u32(VMEMMAP + 5 * 64 + 52, 2).expect("mapped");
    let result = call("netif_receive_skb", &s, &mut f, &[skb]);
    (result, f.events, f.pool.free())
}

#[test]
fn a_packet_in_pages_without_room_for_a_header_is_nobodys() {
    for (len, piece) in [(5, 1000), (0, 0), (13, 13)] {
        let (mut f, s) = domain(1);
        let napi = DEVICE + 0x1400;
        f.put_u64(napi + 56, DEVICE).expect("mapped");
        let skb = call("napi_get_frags", &s, &mut f, &[napi]).expect("one");
        let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
        f.put_u8(info + 2, u8::from(piece != 0)).expect("mapped");
        f.put_u64(info + 48, VMEMMAP + 5 * 64).expect("mapped");
        f.put_u32(info + 56, piece).expect("mapped");
        f.put_u32(skb + 112, len).expect("mapped");
        f.put_u32(skb + 116, len).expect("mapped");
        assert_eq!(call("napi_gro_frags", &s, &mut f, &[napi]), Ok(3), "{len}");
        assert!(f.last.is_none() && f.pool.free().0 == 1, "{len}");
    }
}

#[test]
fn a_packet_in_pages_is_received_with_its_header() {
    let (mut f, s) = domain(1);
    let (napi, page) = (DEVICE + 0x1400, VMEMMAP + 5 * 64);
    let data = s.kernel.page_offset + 5 * 4096;
    f.map(data, 1);
    f.put_u64(napi + 56, DEVICE).expect("mapped");
    f.put_u32(page + 52, 2).expect("mapped");
    f.write(data + 32, &[2, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 8, 0, 0x45]).expect("mapped");
    let skb = call("napi_get_frags", &s, &mut f, &[napi]).expect("one");
    assert_eq!(call("napi_get_frags", &s, &mut f, &[napi]), Ok(skb), "until it is handed over");
    let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
    f.put_u8(info + 2, 1).expect("mapped");
    f.put_u64(info + 48, page).expect("mapped");
    f.put_u32(info + 56, 1000).expect("mapped");
    f.put_u32(info + 60, 32).expect("mapped");
    f.put_u32(skb + 112, 1000).expect("mapped");
    f.put_u32(skb + 116, 1000).expect("mapped");
    assert_eq!(call("napi_gro_frags", &s, &mut f, &[napi]), Ok(3));
    let frame = f.last.expect("received");
    assert_eq!(f.events, [Event::Received { linear: 0, protocol: 8, fragments: 1 }]);
    assert_eq!((frame.len, f.u32(info + 60), f.u32(info + 56)), (14, Ok(46), Ok(986)));
    let mut header = [0; 14];
    f.read(frame.mac_header, &mut header).expect("mapped");
    assert_eq!(header[..7], [2, 0, 0, 0, 0, 1, 2]);
    assert_eq!((f.u64(napi + 200), f.u32(page + 52), f.pool.free().0), (Ok(0), Ok(1), 1));
}

#[test]
fn a_tag_that_the_device_took_out_comes_with_the_packet() {
    let (mut f, s) = domain(1);
    for tag in [None, Some([0x81, 0, 0x20, 5])] {
        let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
        call("skb_put", &s, &mut f, &[skb, 100]).expect("room");
        call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
        if tag.is_some() {
            f.put_u16(skb + 152, 0x8100u16.to_be()).expect("mapped");
            f.put_u16(skb + 154, 0x2005).expect("mapped");
        }
        call("napi_gro_receive", &s, &mut f, &[0, skb]).expect("received");
        assert_eq!(f.last.expect("received").tag, tag);
    }
}

/// A neighbour on the same host leaves sums and segments to whoever has a wire.
#[test]
fn what_was_on_no_wire_says_what_is_left_to_do() {
    let (mut f, s) = domain(1);
    let mut come = |ip_summed: u8, (start, offset): (u16, u16), (size, kind): (u16, u32)| {
        let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
        call("skb_put", &s, &mut f, &[skb, 100]).expect("room");
        f.put_u8(skb + 128, ip_summed << 5).expect("mapped");
        f.put_u16(skb + 136, start.wrapping_add(64)).expect("mapped");
        f.put_u16(skb + 138, offset).expect("mapped");
        let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
        f.put_u16(info + 4, size).expect("mapped");
        f.put_u32(info + 24, kind).expect("mapped");
        call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
        let result = call("napi_gro_receive", &s, &mut f, &[0, skb]);
        let frame = f.last.take();
        if result.is_err() {
            f.pool.give(skb);
        }
        assert_eq!(f.pool.free(), (1, 1, 1));
        (result, frame.map(|frame| (frame.blank, frame.segmentation, frame.many())))
    };
    let plain = |blank| Some((blank, None, Ok(None)));
    let many = |kind, many| Some((Some((34, 40)), Some((500, kind)), many));
    assert_eq!(come(0, (34, 16), (0, 0)), (Ok(3), plain(None)));
    assert_eq!(come(1, (34, 16), (500, 1)), (Ok(3), plain(None)), "put together by a device, in one buffer");
    assert_eq!(come(3, (34, 16), (0, 1)), (Ok(3), plain(Some((34, 50)))));
    assert_eq!(come(3, (82, 16), (0, 0)), (Ok(3), plain(Some((82, 98)))), "the last bytes");
    // Each as a guest may have sent it, whom the host does not believe (`SKB_GSO_DODGY`).
    for (kind, is_many) in [
        (1, Ok(Some((Many::TcpV4, 500)))),
        (1 << 4, Ok(Some((Many::TcpV6, 500)))),
        (1 << 17, Ok(Some((Many::Udp, 500)))),
        (1 << 16, Ok(None)),
        (1 << 14, Err(UnknownKind)),
    ] {
        assert_eq!(come(3, (34, 6), (500, kind | 2)), (Ok(3), many(kind | 2, is_many)));
    }
    let before = 0u16.wrapping_sub(1);
    for bad in [(83, 16), (0, 99), (u16::MAX - 64, 0), (0, u16::MAX), (before, 16)] {
        let (result, frame) = come(3, bad, (0, 0));
        assert!(structure(result) && frame.is_none(), "{bad:?}");
    }
}

#[test]
fn references_to_pages_of_the_domain_are_given_up_but_for_the_last() {
    let (mut f, s) = domain(1);
    let page = VMEMMAP + 6 * 64;
    let data = s.kernel.page_offset + 6 * 4096;
    f.put_u32(page + 52, 3).expect("mapped");
    // The next page is a part of the same allocation.
    f.put_u64(page + 64 + 8, page + 1).expect("mapped");
    call("page_frag_free", &s, &mut f, &[data + 2048]).expect("given up");
    assert_eq!((f.u32(page + 52), f.events.len()), (Ok(2), 0));
    call("page_frag_free", &s, &mut f, &[data + 4096]).expect("given up");
    assert_eq!((f.u32(page + 52), f.events.len()), (Ok(1), 0));
    call("page_frag_free", &s, &mut f, &[data]).expect("left to the domain");
    assert_eq!((f.u32(page + 52), f.events), (Ok(1), vec![Event::Free(Foreign::Fragment(data))]));
}

#[test]
fn pieces_of_a_packet_are_given_up_with_it() {
    let (mut f, s) = domain(1);
    let page = VMEMMAP + 5 * 64;
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
    f.put_u8(info + 2, 2).expect("mapped");
    f.put_u64(info + 48, page).expect("mapped");
    f.put_u64(info + 64, VMEMMAP).expect("mapped");
    f.put_u32(page + 52, 2).expect("mapped");
    f.put_u32(VMEMMAP + 52, 1).expect("mapped");
    call("__dev_kfree_skb_any", &s, &mut f, &[skb, 1]).expect("freed");
    assert_eq!((f.u32(page + 52), f.u32(VMEMMAP + 52)), (Ok(1), Ok(1)));
    assert_eq!(f.events, [Event::Free(Foreign::Fragment(s.kernel.page_offset))]);
    assert_eq!(f.pool.free(), (1, 1, 1));
}

/// The host has room for so much.
#[test]
fn no_packet_leaves_more_to_the_domain() {
    for name in ["__dev_kfree_skb_any", "netif_receive_skb"] {
        let (mut f, s) = domain(1);
        let page = VMEMMAP + 5 * 64;
        f.put_u32(page + 52, 1).expect("mapped");
        f.map(s.kernel.page_offset + 5 * 4096, 1);
        let skb = call("napi_build_skb", &s, &mut f, &[s.kernel.page_offset + 5 * 4096, 2048]).expect("built");
        call("skb_put", &s, &mut f, &[skb, 100]).expect("room");
        call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
        let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
        f.put_u8(info + 2, 17).expect("mapped");
        (0..17).for_each(|n| f.put_u64(info + 48 + 16 * n, page).expect("mapped"));
        call(name, &s, &mut f, &[skb, 1]).expect("done");
        let left = f.events.iter().filter(|event| matches!(event, Event::Free(_))).count();
        assert_eq!(left, MOST_FOREIGN, "{name}");
    }
}

#[test]
fn a_page_that_is_cut_up_is_used_to_its_end() {
    let (mut f, s) = domain(1);
    let (fragment, page) = (DEVICE + 0xa00, VMEMMAP + 3 * 64);
    assert_eq!(call("skb_page_frag_refill", &s, &mut f, &[1500, fragment, 0]), Err(Stop::Upcall), "no page");
    f.put_u64(fragment, page).expect("mapped");
    f.put_u32(fragment + 12, 4096).expect("mapped");
    f.put_u32(page + 52, 2).expect("mapped");
    for (offset, wanted) in [(0, Ok(1)), (2596, Ok(1)), (2597, Err(Stop::Upcall)), (u32::MAX, Err(Stop::Upcall))] {
        f.put_u32(fragment + 8, offset).expect("mapped");
        assert_eq!(call("skb_page_frag_refill", &s, &mut f, &[1500, fragment, 0]), wanted, "{offset}");
    }
    f.put_u32(page + 52, 1).expect("mapped");
    assert_eq!(call("skb_page_frag_refill", &s, &mut f, &[1500, fragment, 0]), Ok(1));
    assert_eq!(f.u32(fragment + 8), Ok(0), "nobody else has it: from the start");
}

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
fn a_received_packet_names_its_own_bytes() {
    let page = VMEMMAP + 5 * 64;
    let good = [Event::Received { linear: 86, protocol: 0, fragments: 1 }];
    assert_eq!(received(64, page, 16, 500), (Ok(0), good.to_vec(), (1, 1, 1)));
    assert_eq!(received(64, page, 0, 1 << 20).1, good, "the largest");
    let refused = |mac, page, offset, len| {
        let (result, events, _) = received(mac, page, offset, len);
        structure(result) && events.is_empty()
    };
    assert!(refused(u16::MAX, page, 0, 1), "no header was set");
    assert!(refused(79, page, 0, 1), "behind the data");
    assert!(refused(64, page + 8, 0, 1), "inside a page structure");
    assert!(refused(64, VMEMMAP - 64, 0, 1), "below all page structures");
    assert!(refused(64, 0, 0, 1));
    assert!(refused(64, page, 1, 1 << 20), "too large");
    assert!(refused(64, page, u32::MAX, 1), "wraps");
}

/// What came over the wire must not end the twin.
#[test]
fn a_packet_too_short_for_a_header_is_dropped() {
    let (mut f, s) = domain(1);
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    call("skb_put", &s, &mut f, &[skb, 13]).expect("room");
    call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
    assert_eq!(call("netif_receive_skb", &s, &mut f, &[skb]), Ok(0));
    assert_eq!((f.events, f.pool.free()), (vec![], (1, 1, 1)));
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

#[test]
fn a_prepared_packet_comes_back_with_its_cookie() {
    let (mut f, s) = domain(1);
    let fragments =
        [Fragment { page: VMEMMAP, offset: 16, len: 900 }, Fragment { page: VMEMMAP + 64, offset: 0, len: 100 }];
    let header: Vec<u8> = (0..96).collect();
    let packet = Packet {
        device: DEVICE,
        header: &header,
        fragments: &fragments,
        checksum: Some((34, 6)),
        segmentation: Some((1448, 3, 1)),
        queue: 0,
        cookie: 77,
    };
    let skb = s.prepare(&mut f, &packet).expect("memory").expect("free");
    assert_eq!((f.u32(skb + 112), f.u32(skb + 116)), (Ok(1096), Ok(1000)));
    assert_eq!((f.u16(skb + 136), f.u16(skb + 138), f.u8(skb + 128)), (Ok(98), Ok(6), Ok(0x60)));
    assert_eq!(f.u16(skb + 180), Ok(0x0d0c), "bytes 12 and 13");
    let info = BUFFERS + 2048 - 320;
    assert_eq!(
        (f.u8(info + 2), f.u16(info + 4), f.u64(info + 64), f.u32(info + 72)),
        (Ok(2), Ok(1448), Ok(VMEMMAP + 64), Ok(100))
    );
    assert_eq!(s.prepare(&mut f, &packet), Ok(None), "pool empty");
    call("napi_consume_skb", &s, &mut f, &[skb, 64]).expect("done");
    assert_eq!(f.events, [Event::Transmitted(skb, 77)]);
    let again = s.prepare(&mut f, &packet).expect("memory").expect("free");
    s.withdraw(&mut f, again);
    assert_eq!((f.pool.free().0, f.events.len()), (1, 1));
}

/// Whatever the domain does with its memory, whoever sent a packet hears of it once.
#[test]
fn the_sender_hears_of_a_packet_that_the_domain_has_taken_away() {
    for routine in ["napi_consume_skb", "__dev_kfree_skb_any"] {
        let (mut f, s) = domain(1);
        let packet = Packet {
            device: DEVICE,
            header: &[0; 60],
            fragments: &[],
            checksum: None,
            segmentation: None,
            queue: 0,
            cookie: 78,
        };
        let skb = s.prepare(&mut f, &packet).expect("memory").expect("free");
        f.unmap(skb);
        assert_eq!(call(routine, &s, &mut f, &[skb, 64]), Ok(0), "{routine}");
        assert_eq!(f.events, [Event::Transmitted(skb, 78)], "{routine}");
        assert!(matches!(s.prepare(&mut f, &packet), Err(Reason::Memory(_))), "{routine}: it is found when it is used");
        f.pool.give(skb);
        let mut cookies = [0; 2];
        assert_eq!(f.pool.forget_cookies(&mut cookies), 0, "{routine}: it would hear of it twice");
    }
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

/// Who gets a lent `sk_buff` in the domain makes a copy of it that shares its data, and frees it. The data is free when the copy is.
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

/// A domain that has lent so many `sk_buff`s, which are located, and nothing else.
fn domain_of_many(count: u64) -> (Fake, Support) {
    let (mut f, s) = domain(0);
    let skbs = SKBS + 0x10_0000;
    f.map(skbs, count);
    for n in 0..count {
        f.pool.lend(skbs + n * 4096, skbs + n * 4096 + 512, 2048).expect("memory");
        f.put_u32(skbs + n * 4096 + s.offsets.skb_users, USERS).expect("mapped");
        f.pool.locate(skbs + n * 4096, 0x7000);
    }
    (f, s)
}

/// The driver gets so many to receive into, and the domain frees them.
fn taken_and_freed(f: &mut Fake, s: &Support, count: u64) {
    let take = |_| call("__netdev_alloc_skb", s, f, &[DEVICE, 1000, 0]).expect("allocated");
    let taken: Vec<u64> = (0..count).map(take).collect();
    for skb in taken {
        f.put_u32(skb + s.offsets.skb_users, 1).expect("mapped");
    }
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

/// What waits for a buffer waits for one look, however many the domain has freed. Nothing else may happen meanwhile that makes for another.
#[test]
fn all_that_the_domain_freed_is_reclaimed_if_the_pool_is_short() {
    const MANY: u64 = 500;
    let (mut f, s) = domain_of_many(MANY);
    taken_and_freed(&mut f, &s, MANY * 3 / 4);
    assert!(!f.pool.has_room());
    assert_eq!(f.reclaim(&s.offsets), Ok(MANY as usize * 3 / 4));
    assert_eq!((f.pool.has_room(), f.pool.free().0), (true, MANY as usize));
    // The driver has found nothing, and what it looked for came back otherwise.
    taken_and_freed(&mut f, &s, MANY);
    assert_eq!(call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]), Ok(0));
    for n in 0..MANY / 2 {
        call("napi_consume_skb", &s, &mut f, &[SKBS + 0x10_0000 + n * 4096, 1]).expect("lent");
    }
    assert_eq!(f.reclaim(&s.offsets), Ok(MANY as usize / 2));
}

/// The same of pages of a packet.
#[test]
fn pages_that_the_domain_freed_are_reclaimed_if_they_are_short() {
    const MANY: u64 = 200;
    let (mut f, s) = domain(0);
    let pages = FRAGMENTS + 0x10_0000;
    let page = |n: u64| VMEMMAP + 0x4000 + n * 64;
    f.map(VMEMMAP, 8);
    for n in 0..MANY {
        f.pool.lend_fragment(pages + n * 4096, page(n), 2, 4096).expect("memory");
        f.put_u32(page(n) + s.offsets.page_refcount, 2).expect("mapped");
    }
    let few = MANY * 3 / 4 - MAX_PAGES as u64;
    for left in [few, few - 1] {
        for _ in 0..left {
            call("__netdev_alloc_frag_align", &s, &mut f, &[2048, 0]).expect("allocated");
        }
        (0..MANY).for_each(|n| f.put_u32(page(n) + s.offsets.page_refcount, 1).expect("mapped"));
        let is_short = !f.pool.has_pages(MAX_PAGES);
        let found = f.reclaim(&s.offsets).expect("mapped");
        assert_eq!((is_short, found == left as usize), (left == few, left == few), "{left} of {MANY}: {found}");
        while f.pool.free().2 < MANY as usize {
            f.reclaim(&s.offsets).expect("mapped");
        }
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

#[test]
fn short_packets_are_padded_in_place_or_by_the_domain() {
    let (mut f, s) = domain(1);
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 100, 0]).expect("allocated");
    let at = call("skb_put", &s, &mut f, &[skb, 20]).expect("room");
    f.fill(at, 0xee, 60).expect("mapped");
    assert_eq!(call("__skb_pad", &s, &mut f, &[skb, 40, 1]), Ok(0));
    assert_eq!((f.u8(at + 19), f.u8(at + 20), f.u8(at + 59)), (Ok(0xee), Ok(0), Ok(0)));
    f.put_u8(skb + 126, 1).expect("mapped");
    assert_eq!(call("__skb_pad", &s, &mut f, &[skb, 40, 1]), Err(Stop::Upcall), "cloned");
}

#[test]
fn queues_wake_once() {
    let (mut f, s) = domain(1);
    let queue = DEVICE;
    f.put_u64(queue + 144, 1).expect("mapped");
    call("netif_schedule_queue", &s, &mut f, &[queue]).expect("looked at");
    assert_eq!(f.events, [], "still stopped by the driver");
    call("netif_tx_wake_queue", &s, &mut f, &[queue]).expect("woken");
    call("netif_tx_wake_queue", &s, &mut f, &[queue]).expect("nothing to do");
    call("netif_schedule_queue", &s, &mut f, &[queue]).expect("scheduled");
    assert_eq!(f.events, [Event::Queue(queue), Event::Queue(queue)]);
}

#[test]
fn a_sender_takes_the_queue_as_linux_does() {
    let (mut f, s) = domain(1);
    let queue = DEVICE;
    f.put_u64(DEVICE + 0x800, 4321).expect("mapped");
    assert_eq!(s.begin_transmit(&mut f, queue), Ok(Begun::Open));
    assert_eq!(s.begin_transmit(&mut f, queue), Ok(Begun::Busy));
    assert_eq!((f.u32(queue + 128), f.u32(queue + 132)), (Ok(1), Ok(0x7fff_fff0)));
    s.end_transmit(&mut f, queue, true).expect("released");
    assert_eq!((f.u32(queue + 128), f.u32(queue + 132), f.u64(queue + 136)), (Ok(0), Ok(u32::MAX), Ok(4321)));
    f.put_u64(queue + 144, 4).expect("mapped");
    assert_eq!(s.begin_transmit(&mut f, queue), Ok(Begun::Stopped), "frozen");
    assert_eq!(f.u32(queue + 128), Ok(0));
}

/// Between the pieces of what may take long others are answered, and the time is looked at.
#[test]
fn long_copies_and_fills_pause() {
    const LEN: u64 = 12_000;
    let (mut f, s) = domain(4);
    let bytes: Vec<u8> = (0..=250).cycle().take(12_000).collect();
    let mut there = vec![0; 12_000];
    f.write(BUFFERS, &bytes).expect("mapped");
    assert_eq!(call("memcpy", &s, &mut f, &[FRAGMENTS, BUFFERS, LEN]), Ok(FRAGMENTS));
    f.read(FRAGMENTS, &mut there).expect("mapped");
    assert_eq!((core::mem::take(&mut f.asked), &there), (2, &bytes));
    assert_eq!(call("memmove", &s, &mut f, &[BUFFERS + 100, BUFFERS, LEN]), Ok(BUFFERS + 100));
    f.read(BUFFERS + 100, &mut there).expect("mapped");
    assert_eq!((core::mem::take(&mut f.asked), &there), (2, &bytes));
    assert_eq!(call("memset", &s, &mut f, &[FRAGMENTS, 7, LEN]), Ok(FRAGMENTS));
    f.read(FRAGMENTS, &mut there).expect("mapped");
    assert_eq!((core::mem::take(&mut f.asked), there.iter().all(|byte| *byte == 7)), (3, true));
    f.ends_after = Some(2);
    for routine in ["memset", "memcpy"] {
        f.asked = 0;
        let done = call(routine, &s, &mut f, &[FRAGMENTS, BUFFERS, LEN]);
        assert_eq!((done, f.asked), (Err(Stop::Abort(Reason::TimeOut)), 2), "{routine}");
        assert_eq!(f.u8(FRAGMENTS + 8192), Ok(7), "{routine}: what comes later was not touched");
    }
    f.asked = 0;
    call("memset", &s, &mut f, &[FRAGMENTS, 7, 4096]).expect("a short one");
    assert_eq!(f.asked, 0);
}

/// Whatever the structures say, others on the machine have something of the CPU after 4 KiB, and a little for what is around them. All of it may be
/// registers of a device.
#[test]
fn no_routine_stays_away_for_long() {
    const MOST: Work = Work { bytes: 4096 + 256, accesses: 256 };
    const LARGE: u64 = 0xffff_8880_0100_0000;
    const LEN: u64 = 1 << 17;
    const SKB: u64 = LARGE + LEN;
    const LOCK: u64 = SKB + 0x800;
    let all = [
        [SKB, LEN, LEN, LEN, LEN, LEN],
        [LARGE, LEN, LEN, LEN, LEN, LEN],
        [LARGE, LARGE + 8, LEN - 8, 0, 0, 0],
        [LARGE + 8, LARGE, LEN - 8, 0, 0, 0],
        [LARGE, 4096, 0, 0, 0, 0],
        [LOCK, 0, 0, 0, 0, 0],
        [DEVICE, 1000, 0, 0, 0, 0],
    ];
    let (mut done, mut longest) = (0, Work::default());
    for routine in Routine::ALL {
        for (args, info_dataref) in all.iter().flat_map(|args| [32, 65_000].map(|dataref| (args, dataref))) {
            let (mut f, mut s) = domain(4);
            s.offsets.info_dataref = info_dataref;
            s.kernel.sleepers = Sleepers { table: LARGE, count: Sleepers::MOST, stride: 64 };
            f.map(LARGE, LEN / 4096 + 2);
            f.put_u64(SKB + s.offsets.skb_head, LARGE).expect("mapped");
            f.put_u64(SKB + s.offsets.skb_data, LARGE).expect("mapped");
            f.put_u32(SKB + s.offsets.skb_end, LEN as u32).expect("mapped");
            f.put_u32(LOCK, 3).expect("mapped");
            f.goes_on();
            f.most.take();
            done += usize::from(routine.call(&s, &mut f, args).is_ok());
            let most = f.most.get();
            assert!(most.bytes <= MOST.bytes && most.accesses <= MOST.accesses, "{routine:?}{args:x?}: {most:?}");
            longest = Work { bytes: longest.bytes.max(most.bytes), accesses: longest.accesses.max(most.accesses) };
        }
    }
    assert!(done > 50 && longest.bytes >= 4096, "{done} were done, {longest:?}");
}

/// So it is when the domain has freed all that there is, or has put registers in its place.
#[test]
fn a_search_stays_away_for_no_longer() {
    const MANY: u64 = 500;
    let (mut f, s) = domain_of_many(MANY);
    taken_and_freed(&mut f, &s, MANY);
    f.goes_on();
    (f.asked, f.most) = (0, Cell::default());
    assert_eq!(f.reclaim(&s.offsets), Ok(MANY as usize));
    assert!(f.asked == 8 && f.most.get().accesses <= 512, "{} portions, {:?}", f.asked, f.most.get());
    let sent = f.pool.reserve(100, 0).expect("free").skb;
    let packet =
        Packet { device: DEVICE, header: &[], fragments: &[], checksum: None, segmentation: None, queue: 0, cookie: 9 };
    assert_eq!(s.prepare_reserved(&mut f, sent, (60, 0), packet), Ok(true));
    let mut search = f.pool.search();
    let mut pool = core::mem::take(&mut f.pool);
    assert!(pool.take_over(sent, 9), "it comes back meanwhile");
    let mut rounds = 0;
    while !search.is_over() {
        assert_eq!(pool.reclaim(&f, &s.offsets, &mut search, |_| true), Ok(0));
        rounds += 1;
    }
    assert_eq!(rounds, 1);
}

#[test]
fn copies_may_overlap_and_are_bounded() {
    let (mut f, s) = domain(1);
    let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
    f.write(BUFFERS, &bytes).expect("mapped");
    call("memmove", &s, &mut f, &[BUFFERS + 100, BUFFERS, 1000]).expect("copied");
    let mut there = vec![0; 1000];
    f.read(BUFFERS + 100, &mut there).expect("mapped");
    assert_eq!(there, bytes);
    call("memmove", &s, &mut f, &[BUFFERS, BUFFERS + 100, 1000]).expect("copied");
    f.read(BUFFERS, &mut there).expect("mapped");
    assert_eq!(there, bytes);
    assert!(structure(call("memcpy", &s, &mut f, &[BUFFERS, BUFFERS, 1 << 40])));
    assert!(structure(call("memset", &s, &mut f, &[BUFFERS, 0, u64::MAX])));
    assert_eq!(call("ioread32", &s, &mut f, &[BUFFERS]), Ok(0x0302_0100));
    assert_eq!(call("ioread32", &s, &mut f, &[0xc000]), Err(Stop::Upcall), "a port");
    call("iowrite16", &s, &mut f, &[0x12345, BUFFERS]).expect("written");
    assert_eq!(f.u32(BUFFERS), Ok(0x0302_2345));
    assert_eq!(f.written.borrow().last(), Some(&(BUFFERS, 2)), "one access of its width");
    assert_eq!(call("mod_timer", &s, &mut f, &[1, 2]), Ok(0));
    assert_eq!(call("queue_delayed_work_on", &s, &mut f, &[1, 2, 3, 0]), Ok(1));
    assert_eq!(f.events, [Event::Note(Routine::ModTimer), Event::Note(Routine::QueueDelayedWork)]);
}

fn limits() -> Limits {
    Limits {
        queued: 3000,
        last: 1500,
        limit: 0,
        completed: 0,
        prev_over: 0,
        prev_queued: 0,
        prev_last: 0,
        slack: u32::MAX,
        since: 0,
        bounds: (0, 10_000),
        hold: 250,
    }
}

#[test]
fn the_queue_limit_grows_when_the_device_runs_dry() {
    let after = limits().after(3000, 10);
    assert_eq!((after.limit, after.completed, after.prev_queued, after.prev_over), (3000, 3000, 3000, 0));
    assert_eq!((after.since, after.slack), (10, u32::MAX));
}

#[test]
fn the_queue_limit_shrinks_by_what_was_not_needed_for_a_period() {
    let before = Limits { queued: 9000, prev_queued: 8000, completed: 5000, limit: 6000, slack: 9999, ..limits() };
    let held = before.after(1000, 100);
    assert_eq!((held.limit, held.slack), (6000, 4000), "6000 - 2 * 1000 unused");
    let ended = before.after(1000, 251);
    assert_eq!((ended.limit, ended.slack, ended.since), (2000, u32::MAX, 251));
}

#[test]
fn completing_more_than_was_queued_ends_the_invocation() {
    let (mut f, s) = domain(1);
    f.put_u32(DEVICE, 3000).expect("mapped");
    f.put_u32(DEVICE + 9 * 8, 10_000).expect("mapped");
    assert!(structure(call("dql_completed", &s, &mut f, &[DEVICE, 3001])));
    assert_eq!(call("dql_completed", &s, &mut f, &[DEVICE, 3000]), Ok(0));
    assert_eq!((f.u32(DEVICE + 8), f.u32(DEVICE + 24)), (Ok(6000), Ok(3000)), "adj_limit, limit");
    assert_eq!(f.u32(SKBS), Ok(0));
}

/// Arguments and structures are the driver's: whatever they are, a routine returns, stops, or asks for the domain.
#[test]
fn any_arguments_and_contents_are_survived() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut done, mut stopped) = (0, 0);
    for _ in 0..60 {
        let (mut f, s) = domain(2);
        let mut objects = vec![SKBS, SKBS + 256, BUFFERS, FRAGMENTS, DEVICE, VMEMMAP];
        for _ in 0..120 {
            let routine = Routine::ALL[(random() % Routine::ALL.len() as u64) as usize];
            let args = core::array::from_fn(|_| match random() % 8 {
                0 => random(),
                1 => random() % 4096,
                2 => u64::from(u32::MAX) - random() % 16,
                _ => objects[(random() % objects.len() as u64) as usize] + random() % 3 * 8,
            });
            let at = objects[(random() % objects.len() as u64) as usize] + random() % 32 * 8;
            let value = if random() % 2 == 0 { random() } else { random() % 3000 };
            if random() % 3 == 0 {
                f.put_u64(at & !7, value).unwrap_or(());
            }
            match routine.call(&s, &mut f, &args) {
                Ok(object) if (1 << 32..u64::MAX - 4096).contains(&object) => objects.push(object & !7),
                Ok(_) => done += 1,
                Err(_) => stopped += 1,
            }
        }
    }
    assert!(done > 500 && stopped > 500, "{done} {stopped}");
}
