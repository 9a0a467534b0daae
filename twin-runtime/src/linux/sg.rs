//! Scatter lists, by which drivers name a packet's pieces to what moves them: `struct scatterlist` in a row.

use super::skb::{read_fragments, Parts};
use super::{bad, text, Done, Host, Stop, Support};
use crate::memory::{Fault, Memory};

const PAGE: u64 = 4096;
/// In the word of the page: the entry leads to another list; it is the last one.
const CHAIN: u64 = 1;
const END: u64 = 2;
/// No list has more entries.
const MOST: u64 = 4096;

/// Sets an entry's page and bytes; whether it is the last one stays.
fn set<M: Memory>(s: &Support, m: &M, entry: u64, page: u64, offset: u32, len: u32) -> Result<(), Fault> {
    let o = &s.offsets;
    let link = entry.wrapping_add(o.sg_page_link);
    m.put_u64(link, page | m.u64(link)? & (CHAIN | END))?;
    m.put_u32(entry.wrapping_add(o.sg_offset), offset)?;
    m.put_u32(entry.wrapping_add(o.sg_length), len)
}

/// Sets an entry to `len` bytes at `address`. What is not in the domain's direct map, its own routine knows.
fn set_bytes<M: Memory>(s: &Support, m: &M, entry: u64, address: u64, len: u32) -> Result<(), Stop> {
    let page = s.page_of(address).filter(|_| address < s.kernel.vmalloc_start).ok_or(Stop::Upcall)?;
    Ok(set(s, m, entry, page, (address % PAGE) as u32, len)?)
}

fn mark_end<M: Memory>(s: &Support, m: &M, entry: u64) -> Result<(), Fault> {
    let link = entry.wrapping_add(s.offsets.sg_page_link);
    m.put_u64(link, m.u64(link)? & !CHAIN | END)
}

/// `sg_init_table(list, entries)`.
pub fn init_table<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let (list, count) = (args[0], args[1] & 0xffff_ffff);
    if !(1..=MOST).contains(&count) {
        return Err(bad("scatter list of no length", count));
    }
    let size = s.offsets.sg_size;
    text::fill_bytes(host, list, 0, count.saturating_mul(size))?;
    mark_end(s, host, list.wrapping_add((count - 1).wrapping_mul(size)))?;
    Ok(0)
}

/// `sg_init_one(entry, data, len)`.
pub fn init_one<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [entry, data, len, ..] = *args;
    if s.page_of(data).is_none() || data >= s.kernel.vmalloc_start {
        return Err(Stop::Upcall);
    }
    init_table(s, host, &[entry, 1, 0, 0, 0, 0])?;
    set_bytes(s, host, entry, data, (len & 0xffff_ffff) as u32)?;
    Ok(0)
}

/// `sg_next(entry)`: 0 after the last one.
pub fn next<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let link = |entry: u64| host.u64(entry.wrapping_add(s.offsets.sg_page_link));
    if link(args[0])? & END != 0 {
        return Ok(0);
    }
    let next = args[0].wrapping_add(s.offsets.sg_size);
    let word = link(next)?;
    Ok(if word & CHAIN != 0 { word & !(CHAIN | END) } else { next })
}

/// `skb_to_sgvec(skb, list, offset, len)`: how many entries `len` bytes of a packet take.
pub fn of_skb<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [skb, list, offset, len, ..] = *args;
    let parts = Parts::read(host, &s.offsets, skb)?;
    let (fragments, nr) = if parts.data_len == 0 { (Default::default(), 0) } else { read_fragments(host, s, &parts)? };
    let (mut skip, mut left) = ((offset & 0xffff_ffff) as u32, (len & 0xffff_ffff) as u32);
    // The part of a piece that is wanted.
    let mut cut = |piece: u32| {
        let before = skip.min(piece);
        let now = (piece - before).min(left);
        skip -= before;
        left -= now;
        (before, now)
    };
    let (mut entry, mut last) = (list, None);
    let (before, now) = cut(parts.len - parts.data_len);
    if now != 0 {
        set_bytes(s, host, entry, parts.data.wrapping_add(before.into()), now)?;
        last = Some((entry, 1));
    }
    for fragment in fragments.get(..nr).unwrap_or_default() {
        let (before, now) = cut(fragment.len);
        if now == 0 {
            continue;
        }
        let count = last.map_or(0, |(at, count)| {
            entry = at.wrapping_add(s.offsets.sg_size);
            count
        });
        let at = fragment.offset + before;
        let page = fragment.page.wrapping_add((u64::from(at) / PAGE).wrapping_mul(s.offsets.page_size));
        set(s, host, entry, page, (u64::from(at) % PAGE) as u32, now)?;
        last = Some((entry, count + 1));
    }
    // The rest is in further packets, of which its own routine knows; it begins anew.
    if left != 0 {
        return Err(Stop::Upcall);
    }
    match last {
        Some((entry, count)) => {
            mark_end(s, host, entry)?;
            Ok(count)
        }
        None => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{domain, Fake, BUFFERS, DEVICE, VMEMMAP};
    use super::super::Routine;
    use super::*;

    const LIST: u64 = DEVICE + 0x1000;

    fn call(name: &str, s: &Support, f: &mut Fake, args: &[u64]) -> Done {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        Routine::by_name(name).expect("served").call(s, f, &all)
    }

    fn entry(f: &Fake, n: u64) -> (u64, u32, u32) {
        let at = LIST + 32 * n;
        (f.u64(at).expect("mapped"), f.u32(at + 8).expect("mapped"), f.u32(at + 12).expect("mapped"))
    }

    #[test]
    fn a_list_ends_with_its_last_entry() {
        let (mut f, s) = domain(1);
        f.write(LIST, &[0xff; 96]).expect("mapped");
        assert_eq!(call("sg_init_table", &s, &mut f, &[LIST, 3]), Ok(0));
        assert_eq!([0, 1, 2].map(|n| entry(&f, n)), [(0, 0, 0), (0, 0, 0), (END, 0, 0)]);
        assert_eq!(call("sg_next", &s, &mut f, &[LIST]), Ok(LIST + 32));
        assert_eq!(call("sg_next", &s, &mut f, &[LIST + 64]), Ok(0));
        f.put_u64(LIST + 32, 0xffff_8880_0040_0100 | CHAIN).expect("mapped");
        assert_eq!(call("sg_next", &s, &mut f, &[LIST]), Ok(0xffff_8880_0040_0100), "goes on elsewhere");
        assert!(call("sg_init_table", &s, &mut f, &[LIST, 0]).is_err());
        assert!(call("sg_init_table", &s, &mut f, &[LIST, 4097]).is_err());
    }

    /// The domain says how large an entry is.
    #[test]
    fn no_list_takes_long_to_clear() {
        let (mut f, mut s) = domain(1);
        s.offsets.sg_size = 65536;
        for count in [17, 4096] {
            assert_eq!(call("sg_init_table", &s, &mut f, &[LIST, count]), Err(bad("fill too long", count * 65536)));
        }
        assert!(f.written.borrow().is_empty());
    }

    #[test]
    fn an_entry_names_bytes_of_the_direct_map() {
        let (mut f, s) = domain(1);
        let data = s.kernel.page_offset + 0x5123;
        assert_eq!(call("sg_init_one", &s, &mut f, &[LIST, data, 77]), Ok(0));
        assert_eq!(entry(&f, 0), ((VMEMMAP + 5 * 64) | END, 0x123, 77));
        f.written.borrow_mut().clear();
        assert_eq!(call("sg_init_one", &s, &mut f, &[LIST, s.kernel.vmalloc_start, 77]), Err(Stop::Upcall));
        assert!(f.written.borrow().is_empty(), "nothing is changed before the domain is asked");
    }

    /// A packet of 100 bytes and two pieces, of 200 and 300.
    fn packet(f: &mut Fake, s: &Support) -> u64 {
        let skb = call("__netdev_alloc_skb", s, f, &[DEVICE, 1000, 0]).expect("allocated");
        call("skb_put", s, f, &[skb, 100]).expect("room");
        let info = f.u64(skb + 200).expect("mapped") + u64::from(f.u32(skb + 192).expect("mapped"));
        f.put_u8(info + 2, 2).expect("mapped");
        for (n, page, offset, len) in [(0, 7, 16, 200), (1, 9, 4096 + 8, 300)] {
            f.put_u64(info + 48 + 16 * n, VMEMMAP + page * 64).expect("mapped");
            f.put_u32(info + 56 + 16 * n, len).expect("mapped");
            f.put_u32(info + 60 + 16 * n, offset).expect("mapped");
        }
        f.put_u32(skb + 112, 600).expect("mapped");
        f.put_u32(skb + 116, 500).expect("mapped");
        skb
    }

    #[test]
    fn a_packet_becomes_a_list() {
        let (mut f, s) = domain(1);
        let skb = packet(&mut f, &s);
        call("sg_init_table", &s, &mut f, &[LIST, 19]).expect("set up");
        assert_eq!(call("skb_to_sgvec", &s, &mut f, &[skb, LIST, 0, 600]), Ok(3));
        let linear = VMEMMAP + (BUFFERS - s.kernel.page_offset) / 4096 * 64;
        let wanted = [(linear, 64, 100), (VMEMMAP + 7 * 64, 16, 200), ((VMEMMAP + 10 * 64) | END, 8, 300)];
        assert_eq!([0, 1, 2].map(|n| entry(&f, n)), wanted);
        // A part of it, from inside the first piece to inside the second.
        call("sg_init_table", &s, &mut f, &[LIST, 19]).expect("set up");
        assert_eq!(call("skb_to_sgvec", &s, &mut f, &[skb, LIST, 150, 200]), Ok(2));
        let wanted = [(VMEMMAP + 7 * 64, 66, 150), ((VMEMMAP + 10 * 64) | END, 8, 50)];
        assert_eq!([0, 1].map(|n| entry(&f, n)), wanted);
        assert_eq!(call("skb_to_sgvec", &s, &mut f, &[skb, LIST, 0, 601]), Err(Stop::Upcall), "more than there is");
        // A list that ends with all addresses goes on at the first.
        f.map(u64::MAX - 31, 1);
        assert!(call("skb_to_sgvec", &s, &mut f, &[skb, u64::MAX - 31, 0, 600]).is_err());
    }
}
