//! Copies, and how long a routine may keep the CPU from all else.

use super::{call, domain_of_many, most_received, structure, taken_and_freed};
use crate::abort::Reason;
use crate::linux::fake::{domain, Event, Work, BUFFERS, DEVICE, FRAGMENTS, VMEMMAP};
use crate::linux::lock::Sleepers;
use crate::linux::skb::Packet;
use crate::linux::{Host, Routine, Stop};
use crate::memory::Memory;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::Cell;

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

/// Whatever the structures say, others on the machine have something of the CPU after 4 KiB, and a little for what is
/// around them. All of it may be registers of a device.
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

/// So it is when a count of references is a register that counts: none is given up, and the domain gives them up.
#[test]
fn what_never_stays_the_same_keeps_nobody() {
    let (mut f, s) = domain(1);
    let page = VMEMMAP + 5 * 64;
    f.put_u32(page + s.offsets.page_refcount, 0x102).expect("mapped");
    f.restless = Some(page + s.offsets.page_refcount);
    let skb = call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]).expect("allocated");
    let end = u64::from(f.u32(skb + s.offsets.skb_end).expect("mapped"));
    let info = f.u64(skb + s.offsets.skb_head).expect("mapped") + end;
    f.put_u8(info + s.offsets.info_nr_frags, 17).expect("mapped");
    for n in 0..17 {
        let fragment = info + s.offsets.info_frags + 16 * n;
        f.put_u64(fragment, page).expect("mapped");
        f.put_u32(fragment + 8, 100).expect("mapped");
    }
    f.goes_on();
    (f.asked, f.most) = (0, Cell::default());
    call("__dev_kfree_skb_any", &s, &mut f, &[skb, 1]).expect("given up");
    assert_eq!((f.asked, f.events.len()), (17, 17), "{:?}", f.events);
    assert!(f.most.get().accesses <= 256, "{:?}", f.most.get());
}

/// So it is when the domain has freed all that the driver may have, or has put registers in its place.
#[test]
fn a_search_stays_away_for_no_longer() {
    const MANY: u64 = 500;
    let (mut f, s) = domain_of_many(MANY);
    let freed = taken_and_freed(&mut f, &s, most_received(MANY)).len();
    assert_eq!(call("__netdev_alloc_skb", &s, &mut f, &[DEVICE, 1000, 0]), Ok(0), "the rest is left to send");
    f.goes_on();
    (f.asked, f.most) = (0, Cell::default());
    assert_eq!(f.reclaim(&s.offsets), Ok(freed));
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
