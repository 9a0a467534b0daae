//! Packets that are received.

use super::{call, structure};
use crate::linux::fake::{domain, Event, DEVICE, FRAGMENTS, SKBS, VMEMMAP};
use crate::linux::pool::USERS;
use crate::linux::skb::{Many, UnknownKind};
use crate::linux::Stop;
use crate::memory::Memory;
use alloc::vec;
use alloc::vec::Vec;

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
    const LARGE: u64 = 0xffff_8880_0100_0000;
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
    // In a buffer that is longer than any packet.
    for (start, offset, blank) in
        [(60_000, 5_535, Some((60_000, 65_535))), (60_000, 5_536, None), (60_000, 60_000, None)]
    {
        let (mut f, s) = domain(0);
        f.map(LARGE, 40);
        f.pool.lend(SKBS, LARGE, 150_000).expect("memory");
        f.put_u32(SKBS + s.offsets.skb_users, USERS).expect("mapped");
        let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 140_000, 0]).expect("allocated");
        call("skb_put", &s, &mut f, &[skb, 140_000]).expect("room");
        f.put_u8(skb + 128, 3 << 5).expect("mapped");
        f.put_u16(skb + 136, start + 64).expect("mapped");
        f.put_u16(skb + 138, offset).expect("mapped");
        call("eth_type_trans", &s, &mut f, &[skb, DEVICE]).expect("typed");
        let result = call("napi_gro_receive", &s, &mut f, &[0, skb]);
        assert_eq!(f.last.map(|frame| frame.blank), blank.map(Some), "{start} + {offset}");
        assert!(if blank.is_some() { result == Ok(3) } else { structure(result) }, "{start} + {offset}");
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
