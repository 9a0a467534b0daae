//! Packets that are sent.

use super::call;
use crate::abort::Reason;
use crate::linux::fake::{domain, Event, BUFFERS, DEVICE, VMEMMAP};
use crate::linux::pool::Forgetting;
use crate::linux::skb::{Fragment, Packet};
use crate::linux::Stop;
use crate::memory::Memory;
use alloc::vec::Vec;

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

/// IP's header is behind the tags of a packet, and that is where a driver looks for it.
#[test]
fn ips_header_is_behind_the_tags() {
    let (mut f, s) = domain(1);
    let tagged = |kinds: &[[u8; 2]]| {
        let mut header = [0; 60];
        header[12..].fill(8);
        kinds.iter().enumerate().for_each(|(n, kind)| header[12 + 4 * n..][..2].copy_from_slice(kind));
        header
    };
    let (vlan, service, ip) = ([0x81, 0], [0x88, 0xa8], [8, 0]);
    for (kinds, len, at) in [
        (&[ip][..], 60, 14),
        (&[ip, vlan], 60, 14),
        (&[vlan, ip], 60, 18),
        (&[service, ip, vlan], 60, 18),
        (&[service, vlan, ip], 60, 22),
        (&[vlan, vlan, vlan], 60, 22),
        // What is behind its end is not the packet's.
        (&[vlan, vlan], 18, 22),
        (&[vlan, vlan], 17, 18),
        (&[vlan], 14, 18),
    ] {
        // The buffer has had another packet before.
        f.write(BUFFERS + 64, &tagged(kinds)).expect("mapped");
        let packet = Packet {
            device: DEVICE,
            header: &tagged(kinds)[..len],
            fragments: &[],
            checksum: None,
            segmentation: None,
            queue: 0,
            cookie: 1,
        };
        let skb = s.prepare(&mut f, &packet).expect("memory").expect("free");
        let found = f.u16(skb + s.offsets.skb_network_header);
        assert_eq!(found, Ok(64 + at), "{kinds:x?}, {len} bytes");
        assert_eq!(f.u16(skb + s.offsets.skb_protocol), Ok(u16::from_le_bytes(kinds[0])));
        s.withdraw(&mut f, skb);
    }
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
        assert_eq!(
            f.pool.forget_cookies(&mut Forgetting::default(), &mut cookies),
            0,
            "{routine}: it would hear of it twice"
        );
    }
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
