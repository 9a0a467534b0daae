//! Headers that are looked for in packets of IPv6.

use super::{call, domain, structure, Fake, Reason, Stop, Support, DEVICE, FRAGMENTS, VMEMMAP};
use crate::linux::Host;
use crate::memory::Memory;
use alloc::vec;
use alloc::vec::Vec;

/// In the unsafe area, where variables are of which a driver takes the address: of `ipv6_find_hdr`, then of
/// `ipv6_skip_exthdr`.
const OFFSET: u64 = 0x0080_0000_2000;
const FRAGMENT: u64 = OFFSET + 4;
const FLAGS: u64 = OFFSET + 8;
const NEXT: u64 = OFFSET + 12;

const ENOENT: u64 = 0xffff_fffe;
const EBADMSG: u64 = 0xffff_ffb6;
const NOT_THERE: u64 = 0xffff_ffff;
const ANY: u64 = 0xffff_ffff;

/// Ethernet and IPv6, then these headers. The place of the first of them is 54.
const FIRST: u32 = 54;

/// A packet of this, of which `linear` bytes are in the linear part and the rest in two fragments.
fn packet(f: &mut Fake, s: &Support, first: u8, headers: &[u8], linear: usize) -> u64 {
    let mut bytes = vec![0; FIRST as usize];
    (bytes[14], bytes[20]) = (0x60, first);
    bytes.extend(headers);
    f.map(OFFSET, 1);
    let skb = call("__netdev_alloc_skb", s, f, &[DEVICE, 1000, 0]).expect("allocated");
    let linear = linear.min(bytes.len());
    let data = call("skb_put", s, f, &[skb, linear as u64]).expect("room");
    let (here, there) = bytes.split_at(linear);
    f.write(data, here).expect("mapped");
    let head = f.u64(skb + s.offsets.skb_head).expect("mapped");
    f.put_u16(skb + s.offsets.skb_network_header, (data - head) as u16 + 14).expect("mapped");
    let info = head + u64::from(f.u32(skb + s.offsets.skb_end).expect("mapped"));
    let pieces: Vec<&[u8]> = match there.len() {
        0 => vec![],
        n => vec![&there[..n / 2], &there[n / 2..]],
    };
    f.put_u8(info + s.offsets.info_nr_frags, pieces.len() as u8).expect("mapped");
    for (n, piece) in (0..).zip(pieces) {
        let at = FRAGMENTS + 4096 * n + 24;
        f.write(at, piece).expect("mapped");
        let page = VMEMMAP + (at - s.kernel.page_offset) / 4096 * 64;
        f.put_u64(info + s.offsets.info_frags + 16 * n, page).expect("mapped");
        f.put_u32(info + s.offsets.info_frags + 16 * n + 8, piece.len() as u32).expect("mapped");
        f.put_u32(info + s.offsets.info_frags + 16 * n + 12, (at % 4096) as u32).expect("mapped");
    }
    f.put_u32(skb + s.offsets.skb_len, bytes.len() as u32).expect("mapped");
    f.put_u32(skb + s.offsets.skb_data_len, there.len() as u32).expect("mapped");
    skb
}

/// The value of `ipv6_find_hdr`, and what it puts to the offset, the fragment's place and the flags.
fn find(f: &mut Fake, s: &Support, skb: u64, offset: u32, target: u64, flags: u32) -> (u64, u32, u16, u32) {
    f.put_u32(OFFSET, offset).expect("mapped");
    f.put_u32(FRAGMENT, 0xeeee_eeee).expect("mapped");
    f.put_u32(FLAGS, flags).expect("mapped");
    let value = call("ipv6_find_hdr", s, f, &[skb, OFFSET, target, FRAGMENT, FLAGS]).expect("done");
    assert_eq!(f.u16(FRAGMENT + 2), Ok(0xeeee));
    (value, f.u32(OFFSET).expect("mapped"), f.u16(FRAGMENT).expect("mapped"), f.u32(FLAGS).expect("mapped"))
}

/// The value of `ipv6_skip_exthdr`, and what it puts to the number and the fragment's word.
fn skip(f: &mut Fake, s: &Support, skb: u64, start: u32, first: u8) -> (u64, u8, u16) {
    f.put_u16(NEXT, 0xee00 | u16::from(first)).expect("mapped");
    f.put_u32(FRAGMENT, 0xeeee_eeee).expect("mapped");
    let value = call("ipv6_skip_exthdr", s, f, &[skb, start.into(), NEXT, FRAGMENT]).expect("done");
    assert_eq!((f.u16(FRAGMENT + 2), f.u8(NEXT + 1)), (Ok(0xeeee), Ok(0xee)));
    let word = f.u16(FRAGMENT).expect("mapped");
    (value, f.u8(NEXT).expect("mapped"), u16::from_be_bytes(word.to_le_bytes()))
}

/// A header of this kind, of `bytes` bytes, before the next.
fn header(next: u8, more: u8, bytes: usize) -> Vec<u8> {
    let mut header = vec![0; bytes];
    (header[0], header[1]) = (next, more);
    header
}

fn fragment(next: u8, word: u16) -> Vec<u8> {
    let mut header = header(next, 0, 8);
    header[2..4].copy_from_slice(&word.to_be_bytes());
    header
}

/// Wherever the packet's linear part ends.
fn everywhere(first: u8, headers: &[u8], check: impl Fn(&mut Fake, &Support, u64)) {
    for linear in [FIRST as usize, 55, 56, 57, 60, 62, 63, 65, 70, 78, 1000] {
        let (mut f, s) = domain(2);
        let skb = packet(&mut f, &s, first, headers, linear);
        check(&mut f, &s, skb);
    }
}

#[test]
fn a_plain_packet_has_its_last_header_behind_the_first() {
    everywhere(6, &[0; 20], |f, s, skb| {
        assert_eq!(find(f, s, skb, 0, ANY, 0), (6, FIRST - 14 + 14, 0, 0));
        assert_eq!(find(f, s, skb, 0, 6, 0), (6, FIRST, 0, 0));
        assert_eq!(find(f, s, skb, 0, 17, 0), (ENOENT, 0, 0, 0));
        assert_eq!(skip(f, s, skb, FIRST, 6), (FIRST.into(), 6, 0));
        // The header of another packet, inside; there is none.
        assert_eq!(find(f, s, skb, 14, ANY, 0), (6, FIRST, 0, 0));
        assert_eq!(find(f, s, skb, 15, ANY, 0), (EBADMSG, 15, 0, 0));
        assert_eq!(find(f, s, skb, 500, ANY, 0), (EBADMSG, 500, 0, 0));
        // Nobody wants to know of fragments, or of flags.
        f.put_u32(OFFSET, 0).expect("mapped");
        assert_eq!(call("ipv6_find_hdr", s, f, &[skb, OFFSET, ANY, 0, 0]), Ok(6));
        assert_eq!(f.u32(OFFSET), Ok(FIRST));
    });
}

#[test]
fn extensions_are_passed_by_their_lengths() {
    // Hop-by-hop (16 bytes), destination (8), routing (24), authentication (12), then TCP.
    let headers = [header(60, 1, 16), header(43, 0, 8), header(51, 2, 24), header(6, 1, 12), vec![0; 20]].concat();
    everywhere(0, &headers, |f, s, skb| {
        assert_eq!(find(f, s, skb, 0, ANY, 0), (6, 114, 0, 0));
        for (target, at) in [(0, 54), (60, 70), (43, 78), (51, 102), (6, 114)] {
            assert_eq!(find(f, s, skb, 0, target, 0), (target, at, 0, 0));
        }
        assert_eq!(find(f, s, skb, 0, 44, 0), (ENOENT, 0, 0, 0));
        assert_eq!(skip(f, s, skb, FIRST, 0), (114, 6, 0));
        assert_eq!(skip(f, s, skb, 78, 43), (114, 6, 0));
        // The search ends at the authentication header; the routing header has no segments left.
        assert_eq!(find(f, s, skb, 0, ANY, 2), (51, 102, 0, 2));
        assert_eq!(find(f, s, skb, 0, 6, 2), (6, 114, 0, 2));
        assert_eq!(find(f, s, skb, 0, 43, 4), (ENOENT, 0, 0, 4));
    });
    let mut headers = [header(6, 0, 8), vec![0; 20]].concat();
    headers[3] = 1;
    everywhere(43, &headers, |f, s, skb| assert_eq!(find(f, s, skb, 0, 43, 4), (43, FIRST, 0, 4)));
}

#[test]
fn fragments_are_told_from_whole_packets() {
    // The first: bit 0 says that more follow.
    everywhere(44, &[fragment(17, 1), vec![0; 8]].concat(), |f, s, skb| {
        assert_eq!(find(f, s, skb, 0, ANY, 0), (17, 62, 0, 1));
        assert_eq!(find(f, s, skb, 0, 44, 0), (44, FIRST, 0, 1));
        assert_eq!(skip(f, s, skb, FIRST, 44), (62, 17, 1));
    });
    // A later one, of UDP, and of something that is an extension again.
    everywhere(44, &[fragment(17, 0x59), vec![0; 8]].concat(), |f, s, skb| {
        assert_eq!(find(f, s, skb, 0, ANY, 0), (17, 0, 0x58, 1));
        assert_eq!(find(f, s, skb, 0, 44, 0), (44, FIRST, 0x58, 1));
        assert_eq!(find(f, s, skb, 0, 17, 0), (ENOENT, 0, 0, 1));
        assert_eq!(skip(f, s, skb, FIRST, 44), (FIRST.into(), 44, 0x59));
    });
    everywhere(44, &[fragment(60, 0x58), vec![0; 8]].concat(), |f, s, skb| {
        assert_eq!(find(f, s, skb, 0, ANY, 0), (ENOENT, 0, 0, 1));
    });
    everywhere(44, &[fragment(59, 0x58), vec![0; 8]].concat(), |f, s, skb| {
        assert_eq!(find(f, s, skb, 0, ANY, 0), (59, 0, 0x58, 1));
    });
}

#[test]
fn what_a_packet_has_not_is_not_found() {
    everywhere(59, &[0; 8], |f, s, skb| {
        assert_eq!(find(f, s, skb, 0, ANY, 0), (59, FIRST, 0, 0));
        assert_eq!(find(f, s, skb, 0, 6, 0), (ENOENT, 0, 0, 0));
        assert_eq!(skip(f, s, skb, FIRST, 59), (NOT_THERE, 59, 0));
    });
    // It ends within a header, or says that it is longer.
    for cut in 0..16 {
        everywhere(60, &header(6, 1, 16)[..cut], |f, s, skb| {
            assert_eq!(find(f, s, skb, 0, ANY, 0), (EBADMSG, 0, 0, 0), "{cut}");
            let expected = if cut < 2 { (NOT_THERE, 60, 0) } else { (70, 6, 0) };
            assert_eq!(skip(f, s, skb, FIRST, 60), expected, "{cut}");
        });
        everywhere(44, &fragment(6, 0)[..cut.min(3)], |f, s, skb| {
            let flags = u32::from(cut >= 2);
            assert_eq!(find(f, s, skb, 0, ANY, 0), (EBADMSG, 0, 0, flags), "{cut}");
            assert_eq!(skip(f, s, skb, FIRST, 44), (NOT_THERE, 44, 0), "{cut}");
        });
    }
    everywhere(60, &header(6, 255, 16), |f, s, skb| assert_eq!(find(f, s, skb, 0, ANY, 0).0, EBADMSG));
}

#[test]
fn a_search_for_headers_is_bounded() {
    let (mut f, s) = domain(2);
    // Headers of eight bytes as far as the packet goes.
    let headers: Vec<u8> = (0..90).flat_map(|_| header(60, 0, 8)).collect();
    let skb = packet(&mut f, &s, 60, &headers, 100);
    f.goes_on();
    (f.asked, f.most) = (0, Default::default());
    assert_eq!(find(&mut f, &s, skb, 0, ANY, 0).0, EBADMSG);
    assert_eq!(skip(&mut f, &s, skb, FIRST, 60).0, NOT_THERE);
    let most = f.most.get();
    assert!(f.asked >= 180 && most.bytes <= 4096 && most.accesses <= 256, "{} {most:?}", f.asked);
    (f.asked, f.ends_after) = (0, Some(3));
    for (name, args) in
        [("ipv6_find_hdr", [skb, OFFSET, ANY, 0, 0]), ("ipv6_skip_exthdr", [skb, 54, NEXT, FRAGMENT, 0])]
    {
        f.put_u32(OFFSET, 0).expect("mapped");
        f.put_u8(NEXT, 60).expect("mapped");
        assert_eq!(call(name, &s, &mut f, &args), Err(Stop::Abort(Reason::TimeOut)), "{name}");
        f.asked = 0;
    }
    f.ends_after = None;
    // Variables and packets that are not there; fragments that are none.
    for args in [[skb, 0x1000, ANY, 0, 0], [0x1000, OFFSET, ANY, 0, 0], [skb, OFFSET, ANY, 0x1000, 0]] {
        let result = call("ipv6_find_hdr", &s, &mut f, &args);
        assert!(matches!(result, Err(Stop::Abort(Reason::Memory(_))) | Ok(EBADMSG)), "{result:?}");
    }
    let end = f.u32(skb + s.offsets.skb_end).expect("mapped");
    let info = f.u64(skb + s.offsets.skb_head).expect("mapped") + u64::from(end);
    f.put_u64(info + s.offsets.info_frags, VMEMMAP + 1).expect("mapped");
    assert!(structure(call("ipv6_find_hdr", &s, &mut f, &[skb, OFFSET, ANY, 0, 0])));
}
