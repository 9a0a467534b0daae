use super::oracle::{grant, in_use_flags, Frames};
use super::*;
use crate::evtchn::oracle::TestPage;
use crate::room::{boundless, Room};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::SeqCst};
use proptest::prelude::*;
use std::cell::Cell;
use std::sync::Mutex;
use std::thread;
use xen_abi::grant::{
    CopyPtr, GrantCopy, GNTCOPY_DEST_GREF, GNTCOPY_SOURCE_GREF, GTF_ACCEPT_TRANSFER, GTF_PERMIT_ACCESS, GTF_READING,
    GTF_READONLY, GTF_TRANSFER_COMMITTED, GTF_TRANSFER_COMPLETED, GTF_TRANSITIVE, GTF_WRITING,
};
use xen_abi::layout::DOMID_SELF;

fn table() -> GrantTable<TestPage> {
    let mut t = GrantTable::new(1, 1, 4);
    t.grow(1, boundless, || Some(TestPage::filled(0))).unwrap();
    t
}

const HOST: MapFlags =
    MapFlags { host: true, device: false, writable: true, application: false, contains_pte: false, available: 0 };

#[test]
fn a_writable_map_marks_the_entry_and_unmapping_clears_it() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 105);
    let (handle, frame) = map(&mut m, &mut t, &f, 2, 3, HOST).unwrap();
    assert_eq!(frame, 105);
    assert_eq!(in_use_flags(&t, 3), GTF_READING | GTF_WRITING);
    let retired = m.retire(handle, true, false).unwrap();
    assert_eq!(in_use_flags(&t, 3), GTF_READING | GTF_WRITING, "until TLBs are flushed");
    assert!(m.retire(handle, true, true).is_none(), "once");
    unmap_finish(&mut m, &mut t, &f, retired);
    assert_eq!(in_use_flags(&t, 3), 0);
    assert!(f.counts.borrow().is_empty());
    assert_eq!(m.get(handle), None);
}

#[test]
fn a_grant_that_is_used_once_is_marked_meanwhile() {
    let (mut t, f) = (table(), Frames::default());
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 105);
    let page = t.frames()[0].clone();
    let mut seen = None;
    let wrote = t.use_once(&f, 2, 3, true, |frame| seen = Some((frame, page.as_ref()[6].load(SeqCst) & 0xffff)));
    let flags = GTF_PERMIT_ACCESS | GTF_READING | GTF_WRITING;
    assert_eq!((wrote, seen), (Ok(()), Some((105, flags.into()))));
    assert_eq!(in_use_flags(&t, 3), 0);
    assert!(f.counts.borrow().is_empty());
    let never = |_| panic!("it may not");
    assert_eq!(t.use_once(&f, 1, 3, true, never), Err(GntStatus::GeneralError), "another's");
    assert_eq!(t.use_once(&f, 2, 600, true, never), Err(GntStatus::BadGntref));
    grant(&t, 3, GTF_PERMIT_ACCESS | GTF_READONLY, 2, 105);
    assert_eq!(t.use_once(&f, 2, 3, true, never), Err(GntStatus::GeneralError), "read-only");
    let mut seen = None;
    assert_eq!(t.use_once(&f, 2, 3, false, |_| seen = Some(page.as_ref()[6].load(SeqCst) & 0xffff)), Ok(()));
    assert_eq!(seen, Some((GTF_PERMIT_ACCESS | GTF_READONLY | GTF_READING).into()));
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 109);
    assert_eq!(t.use_once(&f, 2, 3, true, never), Err(GntStatus::GeneralError), "a page table");
    assert_eq!(in_use_flags(&t, 3), 0);
    assert_eq!(t.nr_used(), 0);
}

/// A granter that sees that nobody writes to a frame any more may have it be a page table at once.
#[test]
fn nobody_has_a_reference_when_the_granter_sees_that_a_use_has_ended() {
    struct Seen(TestPage, Cell<u32>);
    impl Seen {
        fn ends(&self, flag: u16) {
            assert_ne!(self.0.as_ref()[6].load(SeqCst) & u32::from(flag), 0, "it was seen to end before");
            self.1.set(self.1.get() + 1);
        }
    }
    impl FrameRefs for Seen {
        fn take(&self, _: DomId, _: u64, _: bool) -> bool {
            true
        }
        fn give_back(&self, _: u64, writable: bool) {
            self.ends(if writable { GTF_WRITING } else { GTF_READING });
        }
        fn make_writable(&self, _: DomId, _: u64) -> bool {
            true
        }
        fn make_readable(&self, _: u64) {
            self.ends(GTF_WRITING);
        }
    }
    let mut t = table();
    let refs = Seen(t.frames()[0].clone(), Cell::new(0));
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 105);
    t.use_once(&refs, 2, 3, true, |_| ()).unwrap();
    t.pin(&refs, 2, 3, Use::host(false)).unwrap();
    t.pin(&refs, 2, 3, Use::host(true)).unwrap();
    t.unpin(&refs, 3, Use::host(true));
    t.unpin(&refs, 3, Use::host(false));
    assert_eq!((refs.1.get(), in_use_flags(&t, 3)), (3, 0));
}

#[test]
fn a_handle_does_not_touch_the_grants_of_the_next_domain_of_the_same_number() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 105);
    let (handle, _) = map(&mut m, &mut t, &f, 2, 3, HOST).unwrap();
    let mut next = GrantTable::new(1, 2, 4);
    next.grow(1, boundless, || Some(TestPage::filled(0))).unwrap();
    grant(&next, 3, GTF_PERMIT_ACCESS, 2, 105);
    map(&mut m, &mut next, &f, 2, 3, HOST).unwrap();
    let retired = m.retire(handle, true, false).unwrap();
    unmap_finish(&mut m, &mut next, &f, retired);
    assert_eq!(in_use_flags(&next, 3), GTF_READING | GTF_WRITING, "somebody still maps it");
    assert_eq!((m.get(handle), m.sizes().0), (None, 1), "the handle is free all the same");
}

#[test]
fn handles_want_memory_only_when_none_is_free() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 105);
    assert!(m.is_full());
    let mut handles = Vec::new();
    while handles.is_empty() || !m.is_full() {
        handles.push(map(&mut m, &mut t, &f, 2, 3, HOST).unwrap().0);
    }
    let retired = m.retire(handles[0], true, false).unwrap();
    assert!(m.is_full(), "until it is unpinned");
    unmap_finish(&mut m, &mut t, &f, retired);
    assert!(!m.is_full());
    assert_eq!(map(&mut m, &mut t, &f, 2, 3, HOST).unwrap().0, handles[0]);
    assert!(m.is_full());
}

#[test]
fn handles_take_their_memory_while_nobody_else_counts_on_it() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 105);
    let full: Room = |bytes, _take| {
        assert!(bytes >= 128 * size_of::<u64>(), "{bytes}");
        false
    };
    assert!(!m.make_room(full) && m.is_full());
    assert_eq!(m.sizes(), (0, 0));
    assert!(m.make_room(boundless) && !m.is_full());
    assert!(m.make_room(full), "it is there");
    assert_eq!(m.sizes(), (0, 128));
    let handles: Vec<u32> = (0..128).map(|_| map(&mut m, &mut t, &f, 2, 3, HOST).unwrap().0).collect();
    assert!(handles.iter().copied().eq(0..128) && m.is_full());
    assert!(m.make_room(boundless));
    for handle in 128..256 {
        assert_eq!(map(&mut m, &mut t, &f, 2, 3, HOST).unwrap().0, handle);
    }
    assert!(m.make_room(full), "there are no more handles, whatever memory there is");
    assert_eq!(map(&mut m, &mut t, &f, 2, 3, HOST), Err(GntStatus::NoDeviceSpace));
}

#[test]
fn memory_for_many_handles_goes_back_with_them() {
    let (mut t, mut m, f) = (table(), Maptrack::new(2), Frames::default());
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 105);
    let free = |m: &mut Maptrack, t: &mut GrantTable<TestPage>, handle| {
        let retired = m.retire(handle, true, false).unwrap();
        unmap_finish(m, t, &f, retired);
    };
    let handles: Vec<u32> = (0..512).map(|_| map(&mut m, &mut t, &f, 2, 3, HOST).unwrap().0).collect();
    assert!(handles.iter().copied().eq(0..512));
    assert_eq!(map(&mut m, &mut t, &f, 2, 3, HOST), Err(GntStatus::NoDeviceSpace), "the limit");
    assert_eq!(m.sizes(), (512, 512));
    (128..256).for_each(|handle| free(&mut m, &mut t, handle));
    assert_eq!(m.sizes(), (384, 384), "from the middle");
    assert_eq!((m.next_used(127), m.next_used(128)), (Some(127), Some(256)));
    (257..512).for_each(|handle| free(&mut m, &mut t, handle));
    assert_eq!(m.sizes(), (129, 256), "handle 256 keeps its own");
    assert_eq!(map(&mut m, &mut t, &f, 2, 3, HOST).unwrap().0, 128, "the lowest is next");
    (0..129).chain([256]).for_each(|handle| free(&mut m, &mut t, handle));
    assert_eq!((m.sizes(), m.next_used(0)), ((0, 0), None));
    assert!(f.counts.borrow().is_empty());
}

#[test]
fn statuses_are_those_of_xen() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    let mut try_map = |gref, user, writable| {
        let flags = MapFlags { writable, ..HOST };
        map(&mut m, &mut t, &f, user, gref, flags).map(|_| ()).map_err(|e| (e, ()).0)
    };
    assert_eq!(try_map(512, 2, true), Err(GntStatus::BadGntref), "beyond the table");
    assert_eq!(try_map(u32::MAX, 2, true), Err(GntStatus::BadGntref));
    assert_eq!(try_map(0, 2, true), Err(GntStatus::GeneralError), "no grant");
    for (flags, user, writable) in [
        (GTF_PERMIT_ACCESS, 3, true),
        (GTF_PERMIT_ACCESS | GTF_READONLY, 2, true),
        (GTF_TRANSITIVE, 2, false),
        (GTF_ACCEPT_TRANSFER, 2, false),
    ] {
        let mut t = table();
        grant(&t, 0, flags, 2, 105);
        let r = map(&mut m, &mut t, &f, user, 0, MapFlags { writable, ..HOST });
        assert_eq!(r, Err(GntStatus::GeneralError), "flags {flags:#x} user {user}");
        assert_eq!(in_use_flags(&t, 0), 0);
    }
    assert!(f.counts.borrow().is_empty());
    assert_eq!(m.next_used(0), None);
}

#[test]
fn a_frame_that_cannot_be_given_leaves_nothing_behind() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    for frame in [205, 1105, 109] {
        grant(&t, 0, GTF_PERMIT_ACCESS, 2, frame);
        assert_eq!(map(&mut m, &mut t, &f, 2, 0, HOST), Err(GntStatus::GeneralError));
        assert_eq!(in_use_flags(&t, 0), 0);
        assert!(f.counts.borrow().is_empty());
    }
    // 109 is a page table: it may be read.
    let (_, frame) = map(&mut m, &mut t, &f, 2, 0, MapFlags { writable: false, ..HOST }).unwrap();
    assert_eq!(frame, 109);
}

#[test]
fn a_grant_has_one_reference_which_is_for_writing_while_somebody_writes() {
    let (mut t, f) = (table(), Frames::default());
    grant(&t, 0, GTF_PERMIT_ACCESS, 2, 105);
    let (read, write) = (Use::host(false), Use::device(true));
    let refs = |f: &Frames| f.counts.borrow().get(&105).copied().unwrap_or_default();
    t.pin(&f, 2, 0, read).unwrap();
    assert_eq!((refs(&f), in_use_flags(&t, 0)), ((1, 0), GTF_READING));
    t.pin(&f, 2, 0, write).unwrap();
    t.pin(&f, 2, 0, write).unwrap();
    assert_eq!((refs(&f), in_use_flags(&t, 0)), ((0, 1), GTF_READING | GTF_WRITING));
    t.unpin(&f, 0, write);
    assert_eq!(refs(&f), (0, 1));
    t.unpin(&f, 0, write);
    assert_eq!((refs(&f), in_use_flags(&t, 0)), ((1, 0), GTF_READING));
    t.unpin(&f, 0, read);
    assert_eq!((refs(&f), in_use_flags(&t, 0)), ((0, 0), 0));
    t.pin(&f, 2, 0, write).unwrap();
    assert_eq!((refs(&f), in_use_flags(&t, 0)), ((0, 1), GTF_READING | GTF_WRITING));
}

#[test]
fn a_page_table_that_is_read_stays_readable_when_it_cannot_be_written() {
    let (mut t, f) = (table(), Frames::default());
    grant(&t, 0, GTF_PERMIT_ACCESS, 2, 109);
    t.pin(&f, 2, 0, Use::host(false)).unwrap();
    assert_eq!(t.pin(&f, 2, 0, Use::host(true)), Err(GntStatus::GeneralError));
    assert_eq!((f.counts.borrow()[&109], in_use_flags(&t, 0)), ((1, 0), GTF_READING));
}

#[test]
fn a_grant_is_in_use_65535_times_at_most() {
    let (mut t, f) = (table(), Frames::default());
    grant(&t, 0, GTF_PERMIT_ACCESS, 2, 105);
    let how = Use::device(true);
    (0..65535).for_each(|_| assert_eq!(t.pin(&f, 2, 0, how), Ok(105)));
    assert_eq!(t.pin(&f, 2, 0, how), Err(GntStatus::GeneralError));
    t.pin(&f, 2, 0, Use::host(true)).unwrap();
    (0..65535).for_each(|_| t.unpin(&f, 0, how));
    assert_eq!(t.nr_used(), 1);
    t.unpin(&f, 0, Use::host(true));
    assert_eq!((t.nr_used(), f.counts.borrow().len()), (0, 0));
}

#[test]
fn a_pinned_entry_keeps_its_frame_whatever_the_guest_writes() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    grant(&t, 0, GTF_PERMIT_ACCESS, 2, 105);
    let (h1, _) = map(&mut m, &mut t, &f, 2, 0, MapFlags { writable: false, ..HOST }).unwrap();
    grant(&t, 0, GTF_PERMIT_ACCESS, 2, 106);
    let (h2, frame) = map(&mut m, &mut t, &f, 2, 0, HOST).unwrap();
    assert_eq!(frame, 105);
    assert_eq!(map(&mut m, &mut t, &f, 3, 0, HOST), Err(GntStatus::GeneralError), "one user at a time");
    for h in [h1, h2] {
        let r = m.retire(h, true, true).unwrap();
        unmap_finish(&mut m, &mut t, &f, r);
    }
    assert!(f.counts.borrow().is_empty());
}

#[test]
fn host_and_device_maps_of_one_handle_are_counted_apart() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    grant(&t, 0, GTF_PERMIT_ACCESS, 2, 105);
    let (h, _) = map(&mut m, &mut t, &f, 2, 0, MapFlags { device: true, ..HOST }).unwrap();
    let r = m.retire(h, false, true).unwrap();
    unmap_finish(&mut m, &mut t, &f, r);
    assert!(m.retire(h, false, true).is_none(), "the device map is gone");
    assert_eq!(in_use_flags(&t, 0), GTF_READING | GTF_WRITING);
    let r = m.retire(h, true, false).unwrap();
    unmap_finish(&mut m, &mut t, &f, r);
    assert_eq!(in_use_flags(&t, 0), 0);
    assert_eq!(t.nr_used(), 0);
}

#[test]
fn the_table_grows_up_to_its_limit() {
    let mut t = table();
    t.grow(4, boundless, || Some(TestPage::filled(0))).unwrap();
    t.grow(2, boundless, || panic!("it is longer")).unwrap();
    assert_eq!(t.frames().len(), 4);
    assert_eq!(t.grow(5, boundless, || panic!("beyond the limit")), Err(GntStatus::GeneralError));
    t.set_max_frames(6);
    assert_eq!(t.grow(6, boundless, || None), Err(GntStatus::NoSpace));
    assert_eq!(t.frames().len(), 4);
}

#[test]
fn room_is_asked_for_each_frame_with_what_goes_with_it() {
    let left = Cell::new(100_000);
    let room = |bytes: usize, take: &mut dyn FnMut() -> bool| match left.get() {
        rest if rest < bytes => false,
        rest => {
            left.set(rest - bytes);
            take()
        }
    };
    let mut t = GrantTable::new(1, 1, 64);
    assert_eq!(t.grow(64, room, || Some(TestPage::filled(0))), Err(GntStatus::NoSpace));
    let nr = u32::try_from(t.frames().len()).unwrap();
    assert!((2..64).contains(&nr), "what there is room for is added: {nr}");
    assert_eq!(t.grow(nr + 1, |_, _| false, || panic!("nobody let it")), Err(GntStatus::NoSpace));
    assert_eq!(t.frames().len(), nr as usize);
    let asked = Cell::new(0);
    let count = |bytes: usize, take: &mut dyn FnMut() -> bool| {
        assert!(bytes >= x86::PAGE_SIZE);
        asked.set(asked.get() + 1);
        take()
    };
    t.grow(64, count, || Some(TestPage::filled(0))).unwrap();
    assert_eq!(asked.get(), 64 - nr);
}

#[test]
fn who_has_no_room_for_twice_as_many_gets_what_it_asks_for() {
    let entries = 512 * 24;
    for most in [9, 10] {
        // Room for the frame, and for the entries of so many.
        let room = |bytes: usize, take: &mut dyn FnMut() -> bool| bytes <= x86::PAGE_SIZE + most * entries && take();
        let mut t = GrantTable::new(1, 1, 64);
        t.grow(8, room, || Some(TestPage::filled(0))).unwrap();
        assert_eq!(t.grow(9, room, || Some(TestPage::filled(0))), Ok(()), "twice eight is more");
        assert_eq!(t.grow(64, room, || Some(TestPage::filled(0))), Err(GntStatus::NoSpace));
        assert_eq!(t.frames().len(), most);
    }
}

#[test]
fn handles_run_out_in_their_own_unit_and_are_reused() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    grant(&t, 0, GTF_PERMIT_ACCESS, 2, 105);
    let all: Vec<_> = core::iter::from_fn(|| map(&mut m, &mut t, &f, 2, 0, HOST).ok()).collect();
    assert_eq!(all.len(), 256);
    assert_eq!(map(&mut m, &mut t, &f, 2, 0, HOST), Err(GntStatus::NoDeviceSpace));
    let mut from = 0;
    while let Some(h) = m.next_used(from) {
        let r = m.retire(h, true, true).unwrap();
        unmap_finish(&mut m, &mut t, &f, r);
        from = h;
    }
    assert!(f.counts.borrow().is_empty());
    map(&mut m, &mut t, &f, 2, 0, HOST).unwrap();
}

#[test]
fn map_flags_are_an_allow_list() {
    assert!(MapFlags::decode(0x12).unwrap().contains_pte);
    let gntdev = MapFlags::decode(0x1001a).unwrap();
    assert!(gntdev.application && gntdev.writable && gntdev.available == 1);
    assert_eq!(MapFlags::decode(0x4), Err(GntStatus::BadGntref), "nothing to map");
    assert_eq!(MapFlags::decode(0x22), Err(GntStatus::BadGntref), "unknown bit");
}

#[test]
fn copies_are_checked_before_anything_is_looked_up() {
    let ptr = |u, domid, offset| CopyPtr { u, domid, offset, pad: 0 };
    let op = |source, dest, len, flags| GrantCopy { source, dest, len, flags, status: 0, pad: 0 };
    let ok = op(ptr(8, 1, 96), ptr(77, DOMID_SELF, 0), 4000, GNTCOPY_SOURCE_GREF);
    assert_eq!(check_copy(&ok, 2), Ok((CopySide::Grant { dom: 1, gref: 8 }, CopySide::Own(77))));
    let too_long = op(ptr(8, 1, 97), ptr(77, DOMID_SELF, 0), 4000, GNTCOPY_SOURCE_GREF);
    assert_eq!(check_copy(&too_long, 2), Err(GntStatus::BadCopyArg));
    let foreign = op(ptr(8, 1, 0), ptr(77, 3, 0), 1, GNTCOPY_SOURCE_GREF);
    assert_eq!(check_copy(&foreign, 2), Err(GntStatus::PermissionDenied), "a frame of another domain");
    let unknown = op(ptr(8, 1, 0), ptr(7, 3, 0), 1, 4 | GNTCOPY_SOURCE_GREF | GNTCOPY_DEST_GREF);
    assert_eq!(check_copy(&unknown, 2), Err(GntStatus::BadCopyArg));
}

#[test]
fn a_transfer_is_committed_filled_and_then_shown() {
    let mut t = table();
    grant(&t, 5, GTF_ACCEPT_TRANSFER, 2, 0);
    assert_eq!(t.accept_transfer(3, 5), Err(GntStatus::BadGntref), "not from 3");
    assert_eq!(t.accept_transfer(2, 5000), Err(GntStatus::BadGntref));
    t.accept_transfer(2, 5).unwrap();
    assert_eq!(t.accept_transfer(2, 5), Err(GntStatus::BadGntref), "once");
    t.finish_transfer(5, None);
    t.accept_transfer(2, 5).unwrap();
    t.finish_transfer(5, Some(0x1234));
    let words = t.frames()[0].as_ref();
    assert_eq!(words[11].load(SeqCst), 0x1234);
    let flags = GTF_ACCEPT_TRANSFER | GTF_TRANSFER_COMMITTED | GTF_TRANSFER_COMPLETED;
    assert_eq!(words[10].load(SeqCst), u32::from(flags) | 2 << 16);
}

/// Two vCPUs of one domain unmap the same handle at the same time, again and again: one wins.
#[test]
fn racing_unmaps_take_a_mapping_once() {
    struct Counted(AtomicU32);
    impl FrameRefs for Counted {
        fn take(&self, _: DomId, _: u64, _: bool) -> bool {
            self.0.fetch_add(1, SeqCst);
            true
        }
        fn give_back(&self, _: u64, _: bool) {
            assert_ne!(self.0.fetch_sub(1, SeqCst), 0);
        }
        fn make_writable(&self, _: DomId, _: u64) -> bool {
            unreachable!("the only use is for writing from its beginning")
        }
        fn make_readable(&self, _: u64) {
            unreachable!("the only use is for writing to its end")
        }
    }
    let refs = Counted(AtomicU32::new(0));
    let (t, m) = (Mutex::new(table()), Mutex::new(Maptrack::new(1)));
    grant(&t.lock().unwrap(), 0, GTF_PERMIT_ACCESS, 2, 105);
    for _ in 0..2_000 {
        let (handle, _) = map(&mut m.lock().unwrap(), &mut t.lock().unwrap(), &refs, 2, 0, HOST).unwrap();
        let wins = AtomicU32::new(0);
        thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    let retired = m.lock().unwrap().retire(handle, true, true);
                    if let Some(r) = retired {
                        wins.fetch_add(1, SeqCst);
                        unmap_finish(&mut m.lock().unwrap(), &mut t.lock().unwrap(), &refs, r);
                    }
                });
            }
        });
        assert_eq!(wins.load(SeqCst), 1);
    }
    assert_eq!(refs.0.load(SeqCst), 0);
}

/// A granter on another CPU changes the entry all the time: the answer is yes or no, and nothing is left behind.
#[test]
fn an_entry_that_changes_under_us_does_no_harm() {
    let (mut t, f) = (table(), Frames::default());
    let page = t.frames()[0].clone();
    let stop = AtomicU32::new(0);
    thread::scope(|s| {
        s.spawn(|| {
            let mut x = 7u32;
            while stop.load(SeqCst) == 0 {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                page.0[0].store(u32::from(GTF_PERMIT_ACCESS) | (x >> 13 & 0xc) | 2 << 16, SeqCst);
                page.0[1].store(100 + (x >> 20 & 7), SeqCst);
            }
        });
        for n in 0..20_000 {
            let how = Use::host(n % 2 == 0);
            if t.pin(&f, 2, 0, how).is_ok() {
                t.unpin(&f, 0, how);
            }
        }
        stop.store(1, SeqCst);
    });
    assert!(f.counts.borrow().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn agrees_with_the_model(data in prop::collection::vec(any::<u8>(), 0..1500)) {
        oracle::run(&data);
    }
}

/// What the recount of these tables and of domain 2's handles leaves over: the grant, and handles more than uses.
fn left_over(tables: &[&GrantTable<TestPage>], m: &Maptrack) -> Vec<(u32, [i64; 4])> {
    let mut ledger = audit::Ledger::new();
    ledger.handles(2, m).unwrap();
    tables.iter().for_each(|t| ledger.table(t).unwrap());
    let mut found = Vec::new();
    ledger.finish(|named, more| found.push((named.gref, more)));
    found
}

#[test]
fn every_use_is_a_handle_and_every_handle_a_use() {
    let (mut t, mut m, f) = (table(), Maptrack::new(1), Frames::default());
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 105);
    grant(&t, 4, GTF_PERMIT_ACCESS, 2, 106);
    let read = MapFlags { writable: false, device: true, ..HOST };
    for flags in [HOST, read, read] {
        map(&mut m, &mut t, &f, 2, 3, flags).unwrap();
    }
    let (handle, _) = map(&mut m, &mut t, &f, 2, 4, HOST).unwrap();
    assert_eq!(left_over(&[&t], &m), []);
    assert_eq!(left_over(&[], &m), [(3, [2, 2, 1, 0]), (4, [0, 0, 1, 0])], "the granter is gone");
    assert_eq!(left_over(&[&t], &Maptrack::new(1)), [(3, [-2, -2, -1, 0]), (4, [0, 0, -1, 0])], "the mapper is gone");
    let next: GrantTable<TestPage> = GrantTable::new(1, 2, 4);
    assert_eq!(left_over(&[&next], &m).len(), 2, "another domain has the number");
    let retired = m.retire(handle, true, true).unwrap();
    assert_eq!(left_over(&[&t], &m), [(4, [0, 0, -1, 0])], "not unpinned yet");
    unmap_finish(&mut m, &mut t, &f, retired);
    assert_eq!(left_over(&[&t], &m), []);
}

#[test]
fn the_audit_counts_what_the_hypervisor_uses_itself() {
    let (mut t, f) = (table(), Frames::default());
    grant(&t, 3, GTF_PERMIT_ACCESS, 2, 105);
    t.pin(&f, 2, 3, Use::host(true)).unwrap();
    t.pin(&f, 2, 3, Use::host(false)).unwrap();
    let named = audit::Named { granter: 1, incarnation: 1, gref: 3, user: 2, frame: 105 };
    let left_over = |uses: &[bool]| {
        let mut ledger = audit::Ledger::new();
        ledger.table(&t).unwrap();
        uses.iter().for_each(|writable| ledger.own_use(named, *writable).unwrap());
        let mut found = Vec::new();
        ledger.finish(|named, more| found.push((named.gref, more)));
        found
    };
    assert_eq!(left_over(&[true, false]), []);
    assert_eq!(left_over(&[false]), [(3, [0, 0, -1, 0])]);
    assert_eq!(left_over(&[true, true, false]), [(3, [0, 0, 1, 0])]);
}
