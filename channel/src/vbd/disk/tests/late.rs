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
