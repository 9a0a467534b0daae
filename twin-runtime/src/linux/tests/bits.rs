//! Bytes that are copied out of a packet.

use super::{call, domain, structure, Fake, Reason, Stop, Support, BUFFERS, DEVICE, FRAGMENTS, VMEMMAP};
use crate::linux::Host;
use crate::memory::Memory;
use alloc::vec;
use alloc::vec::Vec;

/// In the unsafe area, where variables are of which a driver takes the address.
const VARIABLE: u64 = 0x0080_0000_2000;
const EFAULT: u64 = 0xffff_fff2;

/// A packet of 20 bytes, and two pieces, of 30 and 50: each byte is its number. Where it is, and its shared info.
fn packet(f: &mut Fake, s: &Support) -> (u64, u64) {
    f.map(VARIABLE, 1);
    let skb = call("__netdev_alloc_skb", s, f, &[DEVICE, 1000, 0]).expect("allocated");
    let data = call("skb_put", s, f, &[skb, 20]).expect("room");
    let bytes: Vec<u8> = (0..100).collect();
    f.write(data, &bytes[..20]).expect("mapped");
    let info =
        f.u64(skb + s.offsets.skb_head).expect("mapped") + u64::from(f.u32(skb + s.offsets.skb_end).expect("mapped"));
    f.put_u8(info + s.offsets.info_nr_frags, 2).expect("mapped");
    let page = |address: u64| VMEMMAP + (address - s.kernel.page_offset) / 4096 * 64;
    for (n, at, part) in [(0, FRAGMENTS + 16, &bytes[20..50]), (1, FRAGMENTS + 4096 + 8, &bytes[50..])] {
        f.write(at, part).expect("mapped");
        f.put_u64(info + s.offsets.info_frags + 16 * n, page(at)).expect("mapped");
        f.put_u32(info + s.offsets.info_frags + 16 * n + 8, part.len() as u32).expect("mapped");
        f.put_u32(info + s.offsets.info_frags + 16 * n + 12, (at % 4096) as u32).expect("mapped");
    }
    f.put_u32(skb + s.offsets.skb_len, 100).expect("mapped");
    f.put_u32(skb + s.offsets.skb_data_len, 80).expect("mapped");
    (skb, info)
}

/// What a driver reads that looks for what is behind the tags of a frame which ends within them, and all else that it
/// may ask for.
#[test]
fn bytes_of_a_packet_are_copied_wherever_they_lie() {
    let (mut f, s) = domain(2);
    let (skb, _) = packet(&mut f, &s);
    for offset in 0..=101 {
        for len in 0..=101 {
            f.fill(VARIABLE, 0xee, 128).expect("mapped");
            f.written.borrow_mut().clear();
            let answer = call("skb_copy_bits", &s, &mut f, &[skb, offset, VARIABLE, len]).expect("done");
            let mut there = [0; 128];
            f.read(VARIABLE, &mut there).expect("mapped");
            let inside = offset + len <= 100;
            assert_eq!(answer, if inside { 0 } else { EFAULT }, "{len} at {offset}");
            let (copied, rest) = there.split_at(if inside { len as usize } else { 0 });
            assert!(copied.iter().copied().eq((offset..).take(copied.len()).map(|n| n as u8)), "{len} at {offset}");
            assert!(rest.iter().all(|byte| *byte == 0xee), "{len} at {offset}");
        }
    }
    // Of arguments the low halves count. None is below 0.
    let high = 1 << 32;
    assert_eq!(call("skb_copy_bits", &s, &mut f, &[skb, high | 14, VARIABLE, high | 4]), Ok(0));
    assert_eq!(f.u32(VARIABLE), Ok(u32::from_le_bytes([14, 15, 16, 17])));
    let minus = |n: u32| u64::from(n.wrapping_neg());
    for (offset, len) in [(minus(1), 1), (minus(4), 8), (0, minus(1)), (8, minus(4)), (minus(1), minus(1))] {
        assert_eq!(call("skb_copy_bits", &s, &mut f, &[skb, offset, VARIABLE, len]), Ok(EFAULT), "{len} at {offset}");
    }
}

/// A frame that ends within its tags: there is nothing behind its type.
#[test]
fn what_a_short_frame_has_not_is_not_read() {
    let (mut f, s) = domain(1);
    f.map(VARIABLE, 1);
    for len in 14..=18 {
        let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
        call("skb_put", &s, &mut f, &[skb, len]).expect("room");
        let answer = if len < 18 { EFAULT } else { 0 };
        assert_eq!(call("skb_copy_bits", &s, &mut f, &[skb, 14, VARIABLE, 4]), Ok(answer), "{len} bytes");
        call("napi_consume_skb", &s, &mut f, &[skb, 64]).expect("freed");
    }
}

#[test]
fn what_is_copied_out_of_a_packet_is_bounded() {
    let (mut f, s) = domain(2);
    let (skb, info) = packet(&mut f, &s);
    f.written.borrow_mut().clear();
    // More than the pieces make up: the domain knows of further packets.
    f.put_u32(skb + s.offsets.skb_len, 101).expect("mapped");
    f.put_u32(skb + s.offsets.skb_data_len, 81).expect("mapped");
    f.written.borrow_mut().clear();
    assert_eq!(call("skb_copy_bits", &s, &mut f, &[skb, 0, VARIABLE, 101]), Err(Stop::Upcall));
    assert!(f.written.borrow().is_empty(), "nothing is changed before the domain is asked");
    assert_eq!(call("skb_copy_bits", &s, &mut f, &[skb, 99, VARIABLE, 1]), Ok(0));
    assert_eq!(f.u8(VARIABLE), Ok(99));
    // No page, and no address.
    f.put_u64(info + s.offsets.info_frags, VMEMMAP + 1).expect("mapped");
    assert!(structure(call("skb_copy_bits", &s, &mut f, &[skb, 0, VARIABLE, 21])));
    assert_eq!(call("skb_copy_bits", &s, &mut f, &[skb, 0, VARIABLE, 20]), Ok(0), "nobody looks");
    for (to, from) in [(0x1000, skb), (VARIABLE, 0x1000)] {
        let result = call("skb_copy_bits", &s, &mut f, &[from, 0, to, 20]);
        assert!(matches!(result, Err(Stop::Abort(Reason::Memory(_)))), "{result:?}");
    }
    // More than a buffer has.
    for (member, value) in [(s.offsets.skb_len, u32::MAX), (s.offsets.skb_data_len, 0)] {
        f.put_u32(skb + member, value).expect("mapped");
    }
    assert!(structure(call("skb_copy_bits", &s, &mut f, &[skb, 0, VARIABLE, 1 << 20 | 1])));
}

/// Between pieces others are answered, and the time is looked at.
#[test]
fn copies_out_of_a_packet_pause() {
    let (mut f, s) = domain(20);
    let (skb, info) = packet(&mut f, &s);
    let page = VMEMMAP + (BUFFERS - s.kernel.page_offset) / 4096 * 64;
    f.map(VARIABLE, 20);
    f.put_u8(info + s.offsets.info_nr_frags, 17).expect("mapped");
    for n in 0..17 {
        let fragment = info + s.offsets.info_frags + 16 * n;
        f.put_u64(fragment, page + n * 64).expect("mapped");
        f.put_u64(fragment + 8, 4096).expect("mapped");
    }
    let len = 20 + 17 * 4096;
    f.put_u32(skb + s.offsets.skb_len, len).expect("mapped");
    f.put_u32(skb + s.offsets.skb_data_len, len - 20).expect("mapped");
    let bytes = vec![0x5a; 17 * 4096 - 2048];
    f.write(BUFFERS + 2048, &bytes).expect("mapped");
    let args = [skb, 20 + 2048, VARIABLE, u64::from(len) - 20 - 2048];
    // Not in the first buffer, which has the packet's own beginning.
    f.goes_on();
    (f.asked, f.most) = (0, Default::default());
    assert_eq!(call("skb_copy_bits", &s, &mut f, &args), Ok(0));
    let mut there = vec![0; bytes.len()];
    let most = f.most.get();
    assert!(f.asked == 17 && most.bytes <= 4096 + 512 && most.accesses <= 256, "{} {most:?}", f.asked);
    f.read(VARIABLE, &mut there).expect("mapped");
    assert!(there == bytes);
    (f.asked, f.ends_after) = (0, Some(3));
    assert_eq!(call("skb_copy_bits", &s, &mut f, &args), Err(Stop::Abort(Reason::TimeOut)));
    assert_eq!(f.asked, 3);
}
