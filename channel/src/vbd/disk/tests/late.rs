//! Guests and back ends that are busy notify only now and then, if somebody looks.

use super::*;
use crate::pace::LATE_NS;

/// The guest is to notify after so many more requests.
fn ahead(bench: &Bench) -> u32 {
    let head = bench.front.word(0);
    bench.front.word(1).wrapping_sub(head)
}

/// The back end is to, after so many more answers.
fn answers_ahead(bench: &Bench) -> u32 {
    bench.back.0[3].load(SeqCst).wrapping_sub(bench.rsp_prod)
}

/// Asks for one page after the other, a microsecond apart, that the back end does not answer: after how many more the guest is to notify.
fn ask_quickly(bench: &mut Bench, nr: u32) -> Vec<u32> {
    let ask = |n| {
        bench.ask(BLKIF_OP_READ, n, 1000 * n, 1);
        bench.now += 1_000;
        let served = bench.serve();
        assert_eq!(served.is_late, ahead(bench) > 1);
        ahead(bench)
    };
    (0..nr).map(ask).collect()
}

#[test]
fn who_asks_for_more_while_much_is_under_way_notifies_less_often() {
    let mut bench = Bench::new();
    bench.may_be_late = true;
    // Never after more than half of what will be answered.
    assert_eq!(ask_quickly(&mut bench, 12), [1, 1, 1, 1, 1, 2, 3, 4, 4, 5, 5, 6]);
    bench.now += LATE_NS;
    assert!(!bench.serve().is_late, "nothing has come");
    assert_eq!(ahead(&bench), 1);
}

#[test]
fn who_is_looked_after_by_nobody_else_notifies_of_each() {
    let mut bench = Bench::new();
    assert_eq!(ask_quickly(&mut bench, 12), [1; 12]);
    (0..12).for_each(|n| {
        bench.back_answers(bench.passed_on(n), 0);
        assert!(!bench.serve().is_late);
        assert_eq!(answers_ahead(&bench), 1);
    });
}

#[test]
fn a_busy_back_end_is_heard_after_half_of_what_it_has() {
    let mut bench = Bench::new();
    ask_quickly(&mut bench, 24);
    bench.may_be_late = true;
    let asked: Vec<u32> = (0..24)
        .map(|n| {
            bench.back_answers(bench.passed_on(n), 0);
            bench.now += 1_000;
            _ = bench.serve();
            answers_ahead(&bench)
        })
        .collect();
    assert_eq!(asked[..8], [1, 1, 2, 4, 8, 9, 8, 8]);
    assert!((0..24).all(|n| asked[n] <= (23 - n as u32) / 2 || asked[n] == 1), "{asked:?}");
    assert_eq!(asked[20..], [1; 4]);
}

/// All that a guest has asked for is answered at one time.
fn answer_all(bench: &mut Bench, from: usize) {
    (from..bench.seen.len()).for_each(|n| bench.back_answers(bench.passed_on(n), BLKIF_RSP_OKAY));
    bench.now += 10 * LATE_NS;
    let _ = bench.serve();
    assert_eq!(bench.disk.waiting(), 0);
    let _ = bench.answers();
}

#[test]
fn who_brings_as_many_at_a_time_as_twice_before_notifies_of_the_first_and_the_last() {
    let mut bench = Bench::new();
    bench.may_be_late = true;
    let mut burst = |nr| {
        let before = bench.seen.len();
        bench.now += 10 * LATE_NS;
        let asked = ask_quickly(&mut bench, nr);
        answer_all(&mut bench, before);
        assert_eq!(ahead(&bench), 1, "nothing is under way");
        asked
    };
    assert_eq!([burst(10)[0], burst(10)[0]], [1, 1]);
    // It is looked at after each of them here, so it is seen how many are to come.
    assert_eq!(burst(10)[..5], [9, 8, 7, 6, 5]);
    // The shorter one of two counts.
    assert_eq!(burst(2), [9, 8]);
    assert_eq!(burst(10)[..2], [1, 1]);
    assert_eq!(burst(10)[..2], [1, 1]);
    assert_eq!(burst(10)[..2], [9, 8]);
    // One request at a time has always been served at once, but for the first time.
    assert_eq!([burst(1)[0], burst(1)[0], burst(1)[0]], [9, 1, 1]);
}
