//! Long discards go in parts.

use super::*;

/// The guest asks to discard.
fn ask(bench: &mut Bench, id: u32, sector: u64, sectors: u64) {
    let mut words = [0; 28];
    words[0] = u32::from(BLKIF_OP_DISCARD) | u32::from(BLKIF_DISCARD_SECURE) << 8;
    words[2] = id;
    words[4..6].copy_from_slice(&halves(sector));
    words[6..8].copy_from_slice(&halves(sectors));
    bench.front.put(words);
    bench.front.push();
    _ = bench.serve();
}

/// What the back end was asked to discard: the first sector, and how many.
fn asked(bench: &Bench) -> Vec<(u64, u64)> {
    let whole = |words: &[u32]| u64::from(words[0]) | u64::from(words[1]) << 32;
    let is_one = |words: &&[u32; 28]| words[0] == u32::from(BLKIF_OP_DISCARD) | u32::from(BLKIF_DISCARD_SECURE) << 8;
    bench.seen.iter().filter(is_one).map(|words| (whole(&words[4..6]), whole(&words[6..8]))).collect()
}

fn answer(bench: &mut Bench, n: usize, status: i16) {
    bench.back_answers(bench.passed_on(n), status);
    _ = bench.serve();
}

/// From the `next`th on all that it was asked, and is asked meanwhile.
fn answer_from(bench: &mut Bench, mut next: usize) {
    while next < bench.seen.len() {
        answer(bench, next, 0);
        next += 1;
    }
}

#[test]
fn a_long_one_is_answered_after_its_last_part() {
    let mut bench = Bench::new();
    let part = crate::vbd::journal::DISCARD_SECTORS;
    ask(&mut bench, 1, 24, 2 * part + 8);
    ask(&mut bench, 2, 8 * part, part);
    ask(&mut bench, 3, 16 * part, 0);
    let begun = [(24, part), (8 * part, part), (16 * part, 0)];
    assert_eq!(asked(&bench), begun);
    // A flush waits for all of it.
    bench.ask(BLKIF_OP_FLUSH_DISKCACHE, 4, 0, 0);
    _ = bench.serve();
    for n in [2, 0, 1, 3] {
        answer(&mut bench, n, 0);
    }
    assert_eq!(asked(&bench), [&begun[..], &[(24 + part, part), (24 + 2 * part, 8)]].concat());
    assert_eq!((bench.answers(), bench.nr_passed_on()), (std::vec![(3, 0), (2, 0)], 5));
    answer(&mut bench, 4, 0);
    assert_eq!((bench.answers(), bench.nr_passed_on()), (std::vec![(1, 0)], 6));
    assert_eq!((bench.disk.stats.discards, bench.disk.stats.answered), (3, 5));
}

#[test]
fn what_comes_meanwhile_goes_between_its_parts() {
    let mut bench = Bench::new();
    bench.disk.cut_discards(8);
    ask(&mut bench, 1, 0, 8 * 100);
    assert_eq!(asked(&bench), [(0, 8)], "one at a time");
    // One after another, as long as it lasts.
    for n in 0..50 {
        bench.ask(BLKIF_OP_READ, 2 + n, 10_000, 1);
        _ = bench.serve();
        let read = bench.seen.len() - 1;
        assert_eq!(asked(&bench).len(), 1 + n as usize, "before its next part");
        answer(&mut bench, read - 1, 0);
        answer(&mut bench, read, 0);
        assert_eq!((bench.answers(), asked(&bench).len()), (std::vec![(2 + n, 0)], 2 + n as usize));
    }
    let next = bench.seen.len() - 1;
    answer_from(&mut bench, next);
    let expected: Vec<_> = (0..100).map(|n| (8 * n, 8)).collect();
    assert_eq!((asked(&bench), bench.answers()), (expected, std::vec![(1, 0)]));
    assert_eq!(bench.disk.waiting(), 0);
}

/// Nobody goes on for ever with what cannot be done.
#[test]
fn after_an_error_no_part_is_begun() {
    for (status, told) in [(BLKIF_RSP_ERROR, BLKIF_RSP_ERROR), (BLKIF_RSP_EOPNOTSUPP, BLKIF_RSP_EOPNOTSUPP)] {
        let mut bench = Bench::new();
        bench.disk.cut_discards(8);
        ask(&mut bench, 1, 0, u64::MAX);
        (0..3).for_each(|n| answer(&mut bench, n, 0));
        answer(&mut bench, 3, status);
        bench.now += DOUBT_NS;
        _ = bench.serve();
        assert_eq!((bench.nr_passed_on(), bench.answers()), (4, std::vec![(1, told)]));
    }
}

#[test]
fn the_next_back_end_begins_with_its_first_part() {
    let mut bench = Bench::new();
    bench.disk.cut_discards(8);
    ask(&mut bench, 1, 80, 8 * 40);
    answer(&mut bench, 0, 0);
    bench.disk.detach();
    assert_eq!(bench.disk.stats.repeated, 1);
    bench.attach();
    _ = bench.serve();
    assert_eq!(asked(&bench), [(80, 8)]);
    answer_from(&mut bench, 0);
    assert_eq!((bench.nr_passed_on(), bench.answers()), (40, std::vec![(1, 0)]));
}
