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

mod discards;
mod elevator;
mod late;
mod lost;
mod shares;

struct Bench {
    memory: Memory,
    guest: Guest,
    front: GuestRing<28, 32>,
    disk: Disk<TestPage, u32>,
    back: TestPage,
    /// What the back end has seen.
    seen: Vec<[u32; 28]>,
    /// Responses of the back end's.
    rsp_prod: u32,
    /// The time, in ns.
    now: u64,
    /// What the next back end takes.
    max_segments: u16,
    /// It is looked at soon though nobody notifies.
    may_be_late: bool,
}

fn pages() -> Box<[Page<u32>]> {
    (0..PAGES).map(|n| Page { gref: 500 + n, frame: 100 + n }).collect()
}

impl Bench {
    fn new() -> Bench {
        let memory = Memory::new(200);
        (1..200).for_each(|frame| memory.write(frame, 0, &[0xee; 4096]));
        let front = GuestRing::new(0);
        let disk = Disk::connect(front.page.clone(), ALL, SECRET).expect("a fresh ring");
        let back = TestPage::filled(0);
        let mut bench = Bench {
            memory,
            guest: Guest::new(1..100),
            front,
            disk,
            back,
            seen: Vec::new(),
            rsp_prod: 0,
            now: 7,
            max_segments: 0,
            may_be_late: false,
        };
        bench.attach();
        bench
    }

    fn attach(&mut self) {
        self.attach_to(pages());
    }

    fn attach_to(&mut self, pages: Box<[Page<u32>]>) {
        self.back = TestPage::filled(0);
        self.rsp_prod = 0;
        self.seen.clear();
        let guest = &mut self.guest;
        self.disk
            .attach(self.back.clone(), pages, self.max_segments, guest, &self.memory, self.now)
            .expect("good pages");
    }

    /// The guest asks; the grants and frames of its pages.
    fn ask(&mut self, operation: u8, id: u32, sector: u32, nr: usize) -> Vec<(u32, u32)> {
        let granted: Vec<_> = (0..nr).map(|_| self.guest.grant(operation == BLKIF_OP_READ).expect("frames")).collect();
        let mut words = [0; 28];
        words[0] = u32::from(operation) | (nr as u32) << 8;
        (words[2], words[4]) = (id, sector);
        for (pair, (gref, _)) in words[6..].chunks_exact_mut(2).zip(&granted) {
            pair.copy_from_slice(&[*gref, 7 << 8]);
        }
        self.front.put(words);
        self.front.push();
        granted
    }

    /// The guest asks to read 32 pages.
    fn ask_long(&mut self, id: u32, sector: u32) {
        let (list, frame) = self.guest.grant(false).expect("a frame");
        for n in 0..32u16 {
            let (gref, _) = self.guest.grant(true).expect("a frame");
            self.memory.write(frame, n * 8, &gref.to_le_bytes());
            self.memory.write(frame, n * 8 + 4, &[0, 7, 0, 0]);
        }
        let mut words = [0; 28];
        (words[0], words[2], words[4], words[7]) = (u32::from(BLKIF_OP_INDIRECT) | 32 << 16, id, sector, list);
        self.front.put(words);
        self.front.push();
    }

    fn serve(&mut self) -> Served {
        self.serve_some(1_000_000)
    }

    fn serve_some(&mut self, budget: u32) -> Served {
        self.serve_in_turn(&mut Alone, budget)
    }

    fn serve_in_turn(&mut self, turns: &mut impl Turns, mut budget: u32) -> Served {
        let served =
            self.disk.serve(&mut self.guest, &self.memory, turns, &|| self.now, &mut budget, &|| self.may_be_late);
        self.look();
        served
    }

    /// What the back end sees is noted.
    fn look(&mut self) {
        // Answers go over requests.
        for index in self.seen.len()..self.nr_passed_on() as usize {
            self.seen.push(core::array::from_fn(|i| self.back.0[16 + index % 32 * 28 + i].load(SeqCst)));
        }
    }

    /// Requests that the back end sees.
    fn nr_passed_on(&self) -> u32 {
        self.back.0[0].load(SeqCst)
    }

    /// Words of one of them.
    fn passed_on(&self, index: usize) -> [u32; 28] {
        self.seen[index]
    }

    /// The back end answers what has these words, and has read what is not there yet.
    fn back_answers(&mut self, words: [u32; 28], status: i16) {
        for page in self.disk.pages() {
            let mut bytes = [0; 8];
            self.memory.read(page.frame, 4088, &mut bytes);
            if bytes == SECRET.to_le_bytes() && status >= BLKIF_RSP_OKAY && self.grefs(&words).contains(&page.gref) {
                self.memory.write(page.frame, 0, &[0xda; 4096]);
            }
        }
        self.back_says(words, status);
    }

    /// The grants of segments of what has these words.
    fn grefs(&self, words: &[u32; 28]) -> Vec<u32> {
        let [operation, nr, low, high] = words[0].to_le_bytes();
        if operation != BLKIF_OP_INDIRECT {
            return words[6..].chunks(2).take(nr.into()).map(|segment| segment[0]).collect();
        }
        let list = self.disk.pages().iter().find(|page| page.gref == words[7]).expect("its page");
        let mut bytes = std::vec![0; 8 * usize::from(u16::from_le_bytes([low, high]))];
        self.memory.read(list.frame, 0, &mut bytes);
        bytes.chunks(8).map(|s| u32::from_le_bytes([s[0], s[1], s[2], s[3]])).collect()
    }

    /// The back end answers what has these words, and has done nothing.
    fn back_says(&mut self, words: [u32; 28], status: i16) {
        let at = 16 + (self.rsp_prod % 32) as usize * 28;
        let status = u32::from(u16::from_ne_bytes(status.to_ne_bytes()));
        for (i, word) in [words[2], words[3], words[0] & 0xff | status << 16].into_iter().enumerate() {
            self.back.0[at + i].store(word, SeqCst);
        }
        self.rsp_prod += 1;
        self.back.0[2].store(self.rsp_prod, SeqCst);
    }

    /// What the guest is answered: id and status.
    fn answers(&mut self) -> Vec<(u32, i16)> {
        core::iter::from_fn(|| self.front.take())
            .map(|(_, words)| (words[0], Answer::decode([words[0], words[1], words[2]]).status))
            .collect()
    }
}

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
fn a_ring_that_cannot_be_ends_the_back_end_and_not_the_disk() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_WRITE, 1, 0, 1);
    _ = bench.serve();
    bench.back.0[2].store(2, SeqCst);
    assert_eq!(bench.serve(), Served::default());
    assert_eq!((bench.disk.stats.bad_rings, bench.disk.back_page().is_some()), (1, false));
    bench.attach();
    _ = bench.serve();
    bench.back_answers(bench.passed_on(0), 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(1, 0)]);
}

#[test]
fn a_read_that_brought_nothing_is_asked_of_the_next_back_end() {
    let mut bench = Bench::new();
    let granted = bench.ask(BLKIF_OP_READ, 1, 8, 2);
    bench.ask(BLKIF_OP_WRITE, 2, 100, 1);
    _ = bench.serve();
    bench.look();
    let (read, write) = (bench.passed_on(0), bench.passed_on(1));
    // Of two segments one has come.
    bench.memory.write(read[6] - 500 + 100, 0, &[0xda; 4096]);
    bench.back_says(read, 0);
    bench.back_says(write, 0);
    let served = bench.serve();
    assert!(!served.tell_guest && bench.answers().is_empty(), "what he says of others is not believed either");
    assert_eq!((bench.disk.stats.empty_reads, bench.disk.waiting(), bench.disk.back_page().is_some()), (1, 2, false));
    bench.attach();
    _ = bench.serve();
    bench.look();
    (0..2).for_each(|n| bench.back_answers(bench.passed_on(n), 0));
    _ = bench.serve();
    assert_eq!(bench.answers(), [(1, 0), (2, 0)]);
    let mut bytes = [0; 4096];
    for (_, frame) in granted {
        bench.memory.read(frame, 0, &mut bytes);
        assert_eq!(bytes, [0xda; 4096]);
    }
}

#[test]
fn a_guests_ring_that_cannot_be_ends_the_disk_and_what_waits_is_answered() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_WRITE, 1, 0, 1);
    _ = bench.serve();
    bench.front.page.0[0].store(100, SeqCst);
    _ = bench.serve();
    assert!(bench.disk.fatal().is_some());
    bench.back_answers(bench.passed_on(0), 0);
    _ = bench.serve();
    assert_eq!(bench.front.word(2), 1);
}

#[test]
fn errors_are_passed_on_as_front_ends_know_them() {
    for (operation, told, expected) in [
        (BLKIF_OP_WRITE, BLKIF_RSP_ERROR, BLKIF_RSP_ERROR),
        (BLKIF_OP_WRITE, -77, BLKIF_RSP_ERROR),
        (BLKIF_OP_READ, BLKIF_RSP_EOPNOTSUPP, BLKIF_RSP_ERROR),
        (BLKIF_OP_READ, 5, BLKIF_RSP_OKAY),
        (BLKIF_OP_FLUSH_DISKCACHE, BLKIF_RSP_EOPNOTSUPP, BLKIF_RSP_EOPNOTSUPP),
        (BLKIF_OP_WRITE_BARRIER, i16::MIN, BLKIF_RSP_ERROR),
    ] {
        let mut bench = Bench::new();
        bench.ask(operation, 1, 0, 1);
        _ = bench.serve();
        bench.back_answers(bench.passed_on(0), told);
        _ = bench.serve();
        bench.now += DOUBT_NS;
        _ = bench.serve();
        assert_eq!(bench.answers(), [(1, expected)]);
        assert_eq!(bench.disk.stats.errors, u64::from(expected != 0));
    }
}

#[test]
fn a_back_end_that_answers_with_an_error_and_then_dies_was_not_right() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_WRITE, 1, 0, 1);
    bench.ask(BLKIF_OP_READ, 2, 8, 1);
    bench.ask(BLKIF_OP_FLUSH_DISKCACHE, 3, 0, 0);
    _ = bench.serve();
    bench.back_answers(bench.passed_on(0), BLKIF_RSP_ERROR);
    assert!(!bench.disk.has_doubts());
    assert_eq!(bench.serve().look_at, Some(7 + DOUBT_NS));
    assert!(bench.disk.has_doubts());
    bench.now += 100;
    bench.back_answers(bench.passed_on(1), BLKIF_RSP_ERROR);
    assert_eq!(bench.serve().look_at, Some(7 + DOUBT_NS), "the first is the next");
    bench.now += DOUBT_NS - 101;
    let served = bench.serve();
    assert!(!served.tell_guest && bench.answers().is_empty());
    assert_eq!((bench.nr_passed_on(), bench.disk.waiting()), (2, 3), "a flush waits for the write before it");
    bench.disk.detach();
    assert!(!bench.disk.has_doubts());
    bench.now += DOUBT_NS;
    bench.attach();
    assert_eq!(bench.serve(), Served { tell_back: true, ..Served::default() });
    for n in 0..2 {
        bench.back_answers(bench.passed_on(n), 0);
    }
    assert!(bench.serve().tell_guest);
    assert_eq!((bench.answers(), bench.nr_passed_on()), (std::vec![(1, 0), (2, 0)], 3));
    assert_eq!((bench.disk.stats.errors, bench.disk.stats.repeated), (0, 2));
}

#[test]
fn an_error_that_its_back_end_outlives_is_the_mediums() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_WRITE, 1, 0, 1);
    _ = bench.serve();
    bench.back_answers(bench.passed_on(0), BLKIF_RSP_ERROR);
    _ = bench.serve();
    bench.now += DOUBT_NS;
    assert_eq!(bench.serve(), Served { tell_guest: true, ..Served::default() });
    assert_eq!((bench.answers(), bench.disk.waiting()), (std::vec![(1, BLKIF_RSP_ERROR)], 0));
    // The next one in its place is not doubted.
    bench.ask(BLKIF_OP_WRITE, 2, 0, 1);
    assert_eq!(bench.serve().look_at, None);
    bench.back_answers(bench.passed_on(1), 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(2, 0)]);
}

#[test]
fn who_has_given_up_answers_with_errors_until_there_is_a_back_end() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_WRITE, 1, 0, 1);
    bench.ask(BLKIF_OP_FLUSH_DISKCACHE, 2, 0, 0);
    _ = bench.serve();
    assert!(!bench.disk.give_up(true) && !bench.disk.has_given_up(), "there is a back end");
    bench.disk.detach();
    bench.ask(BLKIF_OP_READ, 3, 0, 1);
    bench.disk.give_up(true);
    assert!(bench.serve().tell_guest);
    let failed = |id| (id, BLKIF_RSP_ERROR);
    assert_eq!(bench.answers(), [failed(1), failed(2), failed(3)]);
    assert_eq!((bench.disk.waiting(), bench.disk.nr_free_pages()), (0, PAGES as usize));
    // What comes later is, too, and the guest is asked to tell.
    assert_eq!(bench.front.word(1), 4);
    bench.ask(BLKIF_OP_WRITE, 4, 0, 1);
    _ = bench.serve();
    assert_eq!(bench.answers(), [failed(4)]);
    assert!(bench.disk.give_up(false));
    bench.ask(BLKIF_OP_WRITE, 5, 0, 1);
    assert_eq!(bench.serve(), Served::default());
    bench.disk.give_up(true);
    bench.attach();
    assert!(!bench.disk.has_given_up() && bench.serve().tell_back);
    bench.back_answers(bench.passed_on(0), 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(5, 0)]);
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

/// What is known of a back end's domain, and how often it was asked.
struct Known(Belief, core::cell::Cell<u32>);

impl Turns for Known {
    fn belief(&self) -> Belief {
        self.1.set(self.1.get() + 1);
        self.0
    }
    fn is_counted(&self) -> bool {
        false
    }
    fn may_begin(&mut self) -> bool {
        true
    }
    fn began(&mut self, _: u32) {}
    fn ended(&mut self, _: u32) {}
    fn abandoned(&mut self) {}
}

#[test]
fn answers_wait_until_it_is_known_whether_to_believe_them() {
    let mut bench = Bench::new();
    bench.now = 1_000;
    for id in 0..3 {
        bench.ask(BLKIF_OP_WRITE, id, 80 * id, 1);
    }
    _ = bench.serve();
    (0..3).for_each(|n| bench.back_says(bench.passed_on(n), BLKIF_RSP_OKAY));
    let asked = || core::cell::Cell::new(0);
    let served = bench.serve_in_turn(&mut Known(Belief::NotYet, asked()), 1_000_000);
    assert_eq!(served, Served { look_at: Some(1_000 + WORD_NS), ..Served::default() });
    assert_eq!(bench.answers(), []);
    let mut known = Known(Belief::Yes, asked());
    assert!(bench.serve_in_turn(&mut known, 1_000_000).tell_guest);
    assert_eq!((bench.answers().len(), known.1.get()), (3, 1), "it is asked once for all that it has seen");
}

#[test]
fn answers_that_are_not_believed_are_another_back_ends_to_give() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_WRITE, 5, 80, 1);
    _ = bench.serve();
    bench.back_says(bench.passed_on(0), BLKIF_RSP_OKAY);
    let known = Known(Belief::No, core::cell::Cell::new(0));
    _ = bench.serve_in_turn(&mut { known }, 1_000_000);
    assert_eq!((bench.answers(), bench.disk.back_page().is_none()), (Vec::new(), true));
    bench.attach();
    assert!(bench.serve().tell_back);
    bench.back_answers(bench.passed_on(0), BLKIF_RSP_OKAY);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(5, BLKIF_RSP_OKAY)]);
}
