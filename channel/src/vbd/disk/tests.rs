//! Single steps; `oracle::disk` plays whole lives.
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use super::*;
use crate::oracle::front_ring::FrontRing as GuestRing;
use crate::oracle::memory::{Guest, Memory};
use crate::vbd::shares::{Alone, Belief, Turns};
use core::sync::atomic::Ordering::SeqCst;
use hv_core::evtchn::oracle::TestPage;

const PAGES: u32 = 40;
const SECRET: u64 = 0x0123_4567_89ab_cdef;
const ALL: Offers = Offers { write: true, flush: true, barrier: true, discard: true };

mod belief;
mod bench;
mod discards;
mod elevator;
mod errors;
mod late;
mod lost;
mod meanwhile;
mod shares;

use bench::{pages, Bench};

#[test]
fn a_write_goes_down_as_the_guest_had_it_and_is_answered_after() {
    let mut bench = Bench::new();
    let granted = bench.ask(BLKIF_OP_WRITE, 7, 16, 2);
    bench.memory.write(granted[1].1, 100, b"written");
    let served = bench.serve();
    assert!(served.tell_back && !served.tell_guest && !served.more);
    // What the guest does with its page from here on is nobody's concern.
    bench.memory.write(granted[1].1, 100, b"changed");
    assert!(bench.guest.end_access(granted[1].0).is_some());
    let words = bench.passed_on(0);
    assert_eq!((bench.nr_passed_on(), words[0], words[4]), (1, 1 | 2 << 8, 16));
    assert_eq!((words[7], words[9]), (7 << 8, 7 << 8));
    let mut bytes = [0; 7];
    bench.memory.read(words[8] - 500 + 100, 100, &mut bytes);
    assert_eq!(&bytes, b"written");
    assert_eq!(bench.answers(), []);
    bench.back_answers(words, 0);
    assert!(bench.serve().tell_guest);
    assert_eq!(bench.answers(), [(7, 0)]);
    assert_eq!((bench.disk.stats.writes, bench.disk.stats.written_sectors), (1, 16));
}

#[test]
fn a_page_begins_without_what_was_another_disks() {
    let bench = Bench::new();
    let mut bytes = [1; 4096];
    bench.memory.read(100 + PAGES - 1, 0, &mut bytes);
    assert_eq!(bytes, [0; 4096]);
}

#[test]
fn a_back_end_that_follows_does_what_was_not_answered_and_no_other_answer_counts() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_WRITE, 1, 0, 1);
    bench.ask(BLKIF_OP_READ, 2, 8, 1);
    _ = bench.serve();
    let (old_write, old_read) = (bench.passed_on(0), bench.passed_on(1));
    bench.back_answers(old_read, 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(2, 0)]);
    assert!(bench.disk.detach());
    // Nothing is taken meanwhile.
    bench.ask(BLKIF_OP_WRITE, 3, 16, 1);
    assert_eq!(bench.serve(), Served::default());
    bench.attach();
    assert!(bench.serve().tell_back);
    let new = [bench.passed_on(0), bench.passed_on(1)];
    assert_eq!((bench.nr_passed_on(), new[0][4], new[1][4]), (2, 0, 16));
    assert_eq!(new[0][6], old_write[6], "the page with the bytes");
    // Who answers more than there was asked has ended his ring.
    (4..7).for_each(|id| _ = bench.ask(BLKIF_OP_READ, id, 0, 1));
    _ = bench.serve();
    // A name of the life before, one twice, and one that never was.
    bench.back_answers(old_write, 0);
    bench.back_answers(new[1], 0);
    bench.back_answers(new[1], 0);
    bench.back_answers([u32::MAX; 28], 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(3, 0)]);
    assert_eq!((bench.disk.stats.bad_answers, bench.disk.stats.repeated, bench.disk.waiting()), (3, 1, 4));
    bench.back_answers(new[0], 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(1, 0)]);
}

#[test]
fn what_waits_moves_to_other_pages_and_not_to_fewer_or_to_some_of_the_same() {
    let mut bench = Bench::new();
    let page = TestPage::filled(0);
    let others: Box<[Page<u32>]> = (0..PAGES).map(|n| Page { gref: 900 + n, frame: 150 + n }).collect();
    let mut mixed = others.clone();
    mixed[20].frame = pages()[3].frame;
    let granted = bench.ask(BLKIF_OP_WRITE, 1, 0, 2);
    bench.ask(BLKIF_OP_READ, 2, 8, 1);
    granted.iter().for_each(|(_, frame)| bench.memory.write(*frame, 0, &[0x5a; 4096]));
    _ = bench.serve();
    for bad in [&mixed[..], &others[..39], &pages()[..31], &pages().iter().rev().copied().collect::<Vec<_>>()] {
        assert_eq!(bench.disk.attach(page.clone(), bad.into(), 0, &mut bench.guest, &bench.memory, 0), Err(BadPages));
    }
    // Who was there still is, and its pages hold what they held.
    assert_eq!(bench.disk.pages(), &pages()[..]);
    let old = [bench.passed_on(0), bench.passed_on(1)];
    // A guest may take back what it has granted, though what it had asked for is not answered.
    assert!(granted.iter().all(|(gref, _)| bench.guest.end_access(*gref).is_some()));
    bench.disk.detach();
    bench.attach_to(others.clone());
    _ = bench.serve();
    let new = [bench.passed_on(0), bench.passed_on(1)];
    let frame_in = |words: &[u32; 28], at: usize| {
        let page = others.iter().find(|page| page.gref == words[at]).expect("one of the new pages");
        let mut bytes = [0; 4096];
        bench.memory.read(page.frame, 0, &mut bytes);
        bytes
    };
    for at in [6, 8] {
        assert_eq!(new[0][at] - 900, old[0][at] - 500, "the page of that number");
        // The sectors that the request has.
        assert_eq!(frame_in(&new[0], at)[..4096], [0x5a; 4096]);
    }
    assert_eq!(frame_in(&new[1], 6)[..4088], [0; 4088], "a page to be read into holds nothing of others");
    bench.back_answers(new[0], 0);
    bench.back_answers(new[1], 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(1, 0), (2, 0)]);
    assert_eq!(bench.disk.nr_free_pages(), PAGES as usize);
    // Nothing waits: any pages will do.
    assert_eq!(bench.disk.attach(page, mixed, 0, &mut bench.guest, &bench.memory, 0), Ok(()));
}

#[test]
fn it_is_known_how_long_the_oldest_waits_for_the_back_end_of_now() {
    let mut bench = Bench::new();
    bench.now = 1_000;
    (1..4).for_each(|id| _ = bench.ask(BLKIF_OP_WRITE, id, 100 * id, 1));
    _ = bench.serve();
    assert_eq!((bench.disk.oldest_for(1_000), bench.disk.oldest_for(1_300)), (0, 300));
    bench.now = 1_400;
    bench.ask(BLKIF_OP_WRITE, 4, 400, 1);
    _ = bench.serve();
    // Others are answered, and it is not.
    (1..3).for_each(|n| bench.back_answers(bench.passed_on(n), 0));
    _ = bench.serve();
    assert_eq!((bench.disk.oldest_for(1_500), bench.disk.waiting()), (500, 2));
    bench.back_answers(bench.passed_on(0), 0);
    _ = bench.serve();
    assert_eq!(bench.disk.oldest_for(1_500), 100);
    // Whoever comes is not blamed for the time before, and who has answered with an error has answered.
    bench.disk.detach();
    assert_eq!(bench.disk.oldest_for(9_000), 0);
    bench.now = 2_000;
    bench.attach();
    _ = bench.serve();
    assert_eq!(bench.disk.oldest_for(2_050), 50);
    bench.back_answers(bench.passed_on(0), BLKIF_RSP_ERROR);
    _ = bench.serve();
    assert_eq!((bench.disk.has_doubts(), bench.disk.oldest_for(2_100)), (true, 0));
}

/// Whether or not the next back end has the same pages.
#[test]
fn what_a_back_end_leaves_in_the_pages_is_not_written() {
    let others: Box<[Page<u32>]> = (0..PAGES).map(|n| Page { gref: 900 + n, frame: 150 + n }).collect();
    for next in [pages(), others] {
        let mut bench = Bench::new();
        let granted = bench.ask(BLKIF_OP_WRITE, 1, 0, 2);
        granted.iter().for_each(|(_, frame)| bench.memory.write(*frame, 0, &[0x5a; 4096]));
        _ = bench.serve();
        for page in pages() {
            bench.memory.write(page.frame, 0, &[0xbd; 4096]);
        }
        // Of what is not there any more the copy is all that is left.
        bench.guest.end_access(granted[1].0);
        bench.attach_to(next.clone());
        _ = bench.serve();
        let words = bench.passed_on(0);
        for (at, byte) in [(6, 0x5a), (8, 0xbd)] {
            let page = next.iter().find(|page| page.gref == words[at]).expect("one of the new pages");
            let mut bytes = [0; 4096];
            bench.memory.read(page.frame, 0, &mut bytes);
            assert_eq!(bytes, [byte; 4096]);
        }
    }
}

#[test]
fn a_long_request_is_answered_after_its_last_part_with_the_worst_of_all() {
    let mut bench = Bench::new();
    bench.ask_long(9, 1000);
    _ = bench.serve();
    assert_eq!(bench.nr_passed_on(), 3);
    let parts = [0, 1, 2].map(|n| bench.passed_on(n));
    assert_eq!(parts.map(|words| (words[0] >> 8, words[4])), [(11, 1000), (11, 1088), (10, 1176)]);
    bench.back_answers(parts[2], 0);
    bench.back_answers(parts[0], BLKIF_RSP_ERROR);
    _ = bench.serve();
    assert_eq!(bench.answers(), []);
    bench.back_answers(parts[1], 0);
    _ = bench.serve();
    bench.now += DOUBT_NS;
    _ = bench.serve();
    assert_eq!(bench.answers(), [(9, BLKIF_RSP_ERROR)]);
    assert_eq!(bench.disk.nr_free_pages(), PAGES as usize);
}

#[test]
fn a_flush_waits_for_the_writes_before_it_and_nothing_passes_a_barrier() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_READ, 1, 0, 1);
    bench.ask(BLKIF_OP_WRITE, 2, 8, 1);
    bench.ask(BLKIF_OP_FLUSH_DISKCACHE, 3, 0, 0);
    bench.ask(BLKIF_OP_READ, 4, 16, 1);
    bench.ask(BLKIF_OP_WRITE_BARRIER, 5, 0, 0);
    bench.ask(BLKIF_OP_WRITE, 6, 24, 1);
    _ = bench.serve();
    let operations = |bench: &Bench| bench.seen.iter().map(|words| words[0] as u8).collect::<Vec<_>>();
    assert_eq!(operations(&bench), [0, 1, 0]);
    bench.back_answers(bench.passed_on(1), 0);
    _ = bench.serve();
    assert_eq!(operations(&bench), [0, 1, 0, 3]);
    for n in [0, 2] {
        bench.back_answers(bench.passed_on(n), 0);
    }
    _ = bench.serve();
    assert_eq!(bench.nr_passed_on(), 4);
    bench.back_answers(bench.passed_on(3), 0);
    _ = bench.serve();
    assert_eq!(operations(&bench), [0, 1, 0, 3, 2]);
    bench.back_answers(bench.passed_on(4), 0);
    _ = bench.serve();
    assert_eq!(operations(&bench), [0, 1, 0, 3, 2, 1]);
}

#[test]
fn work_is_done_in_portions() {
    let mut bench = Bench::new();
    for id in 0..10 {
        bench.ask(BLKIF_OP_WRITE, id, id * 16, 1);
    }
    let mut rounds = 0;
    while bench.serve_some(6000).more {
        rounds += 1;
        assert!(bench.nr_passed_on() <= 2 * rounds, "too much at a time");
    }
    assert_eq!(bench.nr_passed_on(), 10);
}
