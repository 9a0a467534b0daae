//! Which requests go together, and in which order.

use super::*;
use crate::vbd::journal::PLACES;
use crate::vbd::request::halves;
use crate::vbd::run::Ended;

/// What the back end was asked: operation, segments and sector.
fn asked(bench: &Bench) -> Vec<(u8, u8, u32)> {
    let head = |words: &[u32; 28]| (words[0].to_le_bytes()[0], words[0].to_le_bytes()[1], words[4]);
    bench.seen.iter().map(head).collect()
}

/// Answers what the back end was asked from the `from`th on without an error.
fn answer_from(bench: &mut Bench, from: usize) {
    for index in from..bench.seen.len() {
        bench.back_answers(bench.passed_on(index), 0);
    }
}

#[test]
fn neighbours_go_together_by_sector_and_each_is_answered_once() {
    let mut bench = Bench::new();
    let mut granted = Vec::new();
    for (id, sector, nr) in [(1, 24, 1), (2, 0, 2), (3, 16, 1)] {
        let pages = bench.ask(BLKIF_OP_WRITE, id, sector, nr);
        pages.iter().for_each(|(_, frame)| bench.memory.write(*frame, 5, &[id as u8; 3]));
        granted.extend(pages);
    }
    assert!(bench.serve().tell_back);
    assert_eq!(asked(&bench), [(BLKIF_OP_WRITE, 4, 0)]);
    let words = bench.passed_on(0);
    let written = |at: usize| {
        let mut bytes = [0; 3];
        bench.memory.read(words[at] - 500 + 100, 5, &mut bytes);
        bytes
    };
    assert_eq!([6, 8, 10, 12].map(written), [[2; 3], [2; 3], [3; 3], [1; 3]]);
    assert_eq!([7, 9, 11, 13].map(|at| words[at]), [7 << 8; 4]);
    answer_from(&mut bench, 0);
    assert!(bench.serve().tell_guest);
    let mut answers = bench.answers();
    answers.sort_unstable();
    assert_eq!(answers, [(1, 0), (2, 0), (3, 0)]);
    assert_eq!((bench.disk.stats.writes, bench.disk.stats.passed_on), (3, 1));
    assert_eq!((bench.disk.nr_free_pages(), bench.disk.waiting()), (PAGES as usize, 0));
}

#[test]
fn what_is_read_together_goes_to_whom_it_is_for() {
    let mut bench = Bench::new();
    let second = bench.ask(BLKIF_OP_READ, 2, 8, 1);
    let first = bench.ask(BLKIF_OP_READ, 1, 0, 1);
    _ = bench.serve();
    assert_eq!(asked(&bench), [(BLKIF_OP_READ, 2, 0)]);
    let words = bench.passed_on(0);
    for (at, byte) in [(6, 0x11), (8, 0x22)] {
        bench.memory.write(words[at] - 500 + 100, 0, &[byte; 4096]);
    }
    answer_from(&mut bench, 0);
    _ = bench.serve();
    for (granted, byte) in [(first, 0x11), (second, 0x22)] {
        let mut bytes = [0; 4096];
        bench.memory.read(granted[0].1, 0, &mut bytes);
        assert_eq!(bytes, [byte; 4096]);
    }
}

#[test]
fn only_neighbours_of_one_direction_go_together_and_no_more_than_a_slot_takes() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_READ, 1, 0, 1);
    bench.ask(BLKIF_OP_WRITE, 2, 8, 1);
    bench.ask(BLKIF_OP_WRITE, 3, 24, 1);
    bench.ask(BLKIF_OP_DISCARD, 4, 32, 0);
    bench.ask(BLKIF_OP_DISCARD, 5, 32, 0);
    bench.ask(BLKIF_OP_WRITE, 6, 40, 1);
    // The same sectors twice are no neighbours.
    bench.ask(BLKIF_OP_WRITE, 7, 40, 1);
    for n in 0..14 {
        bench.ask(BLKIF_OP_READ, 8 + n, 1000 + 8 * n, 1);
    }
    _ = bench.serve();
    let (read, write, discard) = (BLKIF_OP_READ, BLKIF_OP_WRITE, BLKIF_OP_DISCARD);
    let expected = [
        (read, 1, 0),
        (write, 1, 8),
        (write, 1, 24),
        (discard, 0, 32),
        (discard, 0, 32),
        (write, 1, 40),
        (write, 1, 40),
    ];
    assert_eq!(asked(&bench), [&expected[..], &[(read, 11, 1000), (read, 3, 1088)]].concat());
}

#[test]
fn a_request_that_shares_a_run_and_has_others_is_answered_after_the_last() {
    let mut bench = Bench::new();
    bench.ask_long(1, 0);
    bench.ask(BLKIF_OP_READ, 2, 256, 2);
    _ = bench.serve();
    assert_eq!(asked(&bench), [(0, 11, 0), (0, 11, 88), (0, 11, 176), (0, 1, 264)]);
    bench.back_answers(bench.passed_on(2), 0);
    bench.back_answers(bench.passed_on(3), 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(2, 0)]);
    bench.back_answers(bench.passed_on(1), 0);
    bench.back_answers(bench.passed_on(0), 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(1, 0)]);
}

#[test]
fn a_long_run_is_listed_in_a_page_if_the_back_end_takes_that_and_one_is_free() {
    let mut bench = Bench::new();
    bench.max_segments = 32;
    bench.attach();
    // All pages but eight: then there is one for the list.
    bench.ask_long(1, 0);
    _ = bench.serve();
    let words = bench.passed_on(0);
    assert_eq!((words[0], words[4]), (u32::from(BLKIF_OP_INDIRECT) | 32 << 16, 0));
    assert_eq!(bench.disk.nr_free_pages(), PAGES as usize - 33);
    let listed = |n: u16| {
        let mut bytes = [0; 8];
        bench.memory.read(100 + words[7] - 500, 8 * n, &mut bytes);
        bytes.map(u32::from)
    };
    let mut grefs: Vec<u32> = (0..32).map(|n| listed(n)[0] | listed(n)[1] << 8).collect();
    assert_eq!(listed(31)[4..], [0, 7, 0, 0]);
    grefs.push(words[7]);
    grefs.sort_unstable();
    grefs.dedup();
    assert_eq!(grefs.len(), 33, "a page is there once");
    // Without a page for a list it goes in parts.
    bench.ask(BLKIF_OP_READ, 2, 2000, 7);
    bench.ask(BLKIF_OP_READ, 3, 2056, 5);
    _ = bench.serve();
    assert_eq!(asked(&bench)[1..], [(0, 7, 2000)]);
    bench.back_answers(words, 0);
    bench.back_answers(bench.passed_on(1), 0);
    _ = bench.serve();
    bench.back_answers(bench.passed_on(2), 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(1, 0), (2, 0), (3, 0)]);
    assert_eq!((bench.disk.nr_free_pages(), bench.disk.waiting()), (PAGES as usize, 0));
}

#[test]
fn pages_of_lists_come_back_with_the_end_of_a_back_end() {
    let mut bench = Bench::new();
    bench.max_segments = 12;
    bench.attach();
    bench.ask_long(1, 0);
    _ = bench.serve();
    let indirect = |nr: u8| (BLKIF_OP_INDIRECT, 0, nr);
    let head = |words: &[u32; 28]| (words[0].to_le_bytes()[0], words[0].to_le_bytes()[1], words[0].to_le_bytes()[2]);
    assert_eq!(bench.seen.iter().map(head).collect::<Vec<_>>(), [indirect(12), indirect(12), (0, 8, 0)]);
    assert_eq!(bench.disk.nr_free_pages(), PAGES as usize - 34);
    bench.disk.detach();
    assert_eq!(bench.disk.nr_free_pages(), PAGES as usize - 32);
    // The next one takes none.
    bench.max_segments = 0;
    bench.attach();
    _ = bench.serve();
    assert_eq!(asked(&bench), [(0, 11, 0), (0, 11, 88), (0, 10, 176)]);
    (0..3).for_each(|n| bench.back_answers(bench.passed_on(n), 0));
    _ = bench.serve();
    assert_eq!((bench.answers(), bench.disk.nr_free_pages()), (std::vec![(1, 0)], PAGES as usize));
}

#[test]
fn an_error_reaches_only_whose_it_is() {
    let mut bench = Bench::new();
    (0..3).for_each(|id| _ = bench.ask(BLKIF_OP_WRITE, id, 8 * id, 1));
    _ = bench.serve();
    let shared = bench.passed_on(0);
    bench.back_answers(shared, BLKIF_RSP_ERROR);
    assert!(!bench.serve().tell_guest);
    assert_eq!(asked(&bench), [(1, 3, 0), (1, 1, 0), (1, 1, 8), (1, 1, 16)]);
    assert_eq!([1, 2, 3].map(|n| bench.passed_on(n)[6]), [6, 8, 10].map(|at| shared[at]), "the same bytes");
    bench.ask(BLKIF_OP_READ, 3, 1000, 1);
    _ = bench.serve();
    // Once more the answer of all.
    bench.back_answers(shared, 0);
    bench.back_answers(bench.passed_on(1), 0);
    bench.back_answers(bench.passed_on(2), BLKIF_RSP_ERROR);
    bench.back_answers(bench.passed_on(3), 0);
    _ = bench.serve();
    assert_eq!((bench.answers(), bench.disk.stats.bad_answers), (std::vec![(0, 0), (2, 0)], 1));
    // It is not tried a third time.
    assert_eq!(bench.nr_passed_on(), 5);
    bench.now += DOUBT_NS;
    _ = bench.serve();
    assert_eq!(bench.answers(), [(1, BLKIF_RSP_ERROR)]);
    assert_eq!((bench.disk.stats.writes, bench.disk.stats.errors), (2, 1));
}

#[test]
fn after_a_death_those_that_were_alone_go_together_again() {
    let mut bench = Bench::new();
    (0..3).for_each(|id| _ = bench.ask(BLKIF_OP_WRITE, id, 8 * id, 1));
    _ = bench.serve();
    bench.back_answers(bench.passed_on(0), BLKIF_RSP_ERROR);
    _ = bench.serve();
    bench.back_answers(bench.passed_on(1), 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(0, 0)]);
    bench.disk.detach();
    bench.attach();
    _ = bench.serve();
    assert_eq!(asked(&bench), [(1, 2, 8)]);
    answer_from(&mut bench, 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(1, 0), (2, 0)]);
    assert_eq!((bench.disk.stats.repeated, bench.disk.stats.errors), (2, 0));
}

#[test]
fn nothing_goes_with_what_is_behind_a_barrier_or_before_it() {
    let mut bench = Bench::new();
    bench.ask(BLKIF_OP_WRITE, 1, 8, 1);
    bench.ask(BLKIF_OP_WRITE_BARRIER, 2, 16, 1);
    bench.ask(BLKIF_OP_WRITE, 3, 24, 1);
    bench.ask(BLKIF_OP_WRITE, 4, 0, 1);
    for expected in [&[(1, 1, 8)][..], &[(2, 1, 16)], &[(1, 1, 0), (1, 1, 24)]] {
        let before = bench.seen.len();
        _ = bench.serve();
        assert_eq!(asked(&bench)[before..], *expected);
        answer_from(&mut bench, before);
    }
}

#[test]
fn what_finds_no_room_is_passed_on_in_its_sweep_before_what_comes_later() {
    let mut bench = Bench::new();
    bench.attach_to((0..64).map(|n| Page { gref: 500 + n, frame: 100 + n }).collect());
    bench.ask_long(0, 2000);
    (1..32).for_each(|id| _ = bench.ask(BLKIF_OP_WRITE, id, 16 * id, 1));
    _ = bench.serve();
    assert_eq!(bench.nr_passed_on(), 32, "as many as there are slots");
    assert_eq!(asked(&bench)[30..], [(1, 1, 16 * 31), (0, 11, 2000)]);
    // Room for one: it is not for one that comes now, whatever its sector.
    bench.back_answers(bench.passed_on(5), 0);
    _ = bench.serve();
    assert_eq!(bench.answers(), [(6, 0)]);
    bench.ask(BLKIF_OP_WRITE, 6, 0, 1);
    _ = bench.serve();
    assert_eq!(asked(&bench)[32..], [(0, 11, 2088)]);
    bench.back_answers(bench.passed_on(6), 0);
    bench.back_answers(bench.passed_on(7), 0);
    _ = bench.serve();
    assert_eq!(asked(&bench)[33..], [(0, 10, 2176), (1, 1, 0)]);
}

/// The guest asks to write one page.
fn write_at(journal: &mut Journal, sector: u64) {
    let mut words = [0; WORDS];
    words[0] = u32::from(BLKIF_OP_WRITE) | 1 << 8;
    words[4..6].copy_from_slice(&halves(sector));
    words[7] = 7 << 8;
    let entry = journal.vacant().expect("a place");
    assert_eq!(entry.request.decode(|at| words[at], ALL), Slot::Whole);
    journal.add();
}

#[test]
fn nobody_is_passed_over_by_more_than_two_sweeps() {
    // The back end takes one at a time, the guest keeps its ring full, and all but one are for lower sectors.
    const LAST: u64 = 1 << 40;
    let mut journal = Journal::default();
    let pass_on_one = |journal: &mut Journal| {
        let run = journal.next_run(11, true, |_, _, _| ()).expect("all may go");
        assert_eq!(
            journal.answered(run.name, 0),
            Some((Ended { members: 1 << run.first, cost: 2, list: None }, 1 << run.first))
        );
        journal.remove(run.first);
        run.sector
    };
    (0..PLACES as u64).for_each(|n| write_at(&mut journal, 16 * n));
    // It comes when a sweep has just begun.
    assert_eq!(pass_on_one(&mut journal), 0);
    write_at(&mut journal, LAST);
    let mut passed_over = 0;
    while pass_on_one(&mut journal) != LAST {
        passed_over += 1;
        assert!(passed_over < 2 * PLACES, "it starves");
        write_at(&mut journal, 16 * passed_over as u64);
    }
    assert_eq!(passed_over, 2 * (PLACES - 1));
}
