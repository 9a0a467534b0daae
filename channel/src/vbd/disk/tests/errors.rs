//! Errors and what cannot be: whose they are, and who is told.

use super::*;

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
