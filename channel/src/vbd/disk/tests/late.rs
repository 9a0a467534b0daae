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

/// Asks for one page after the other, a microsecond apart, that the back end does not answer: after how many more the
/// guest is to notify.
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

/// A back end that has answered eight at a time, of twelve, again and again.
fn in_bursts() -> Bench {
    let mut bench = Bench::new();
    bench.may_be_late = true;
    let mut asked = 0;
    for _ in 0..8 {
        while bench.disk.waiting() < 12 {
            asked += 1;
            bench.ask(BLKIF_OP_READ, asked, 1000 * asked, 1);
            _ = bench.serve();
        }
        bench.now += 10 * LATE_NS;
        _ = bench.serve();
        let first = bench.rsp_prod as usize;
        for n in first..first + 8 {
            bench.back_answers(bench.passed_on(n), BLKIF_RSP_OKAY);
            bench.now += 1_000;
            _ = bench.serve();
        }
        let _ = bench.answers();
    }
    bench
}

#[test]
fn a_medium_that_takes_long_is_not_asked_for_again_and_again() {
    let mut bench = in_bursts();
    assert_eq!(bench.disk.waiting(), 4);
    assert!(bench.serve().is_late && answers_ahead(&bench) == 2, "it is expected to answer soon");
    let looks = (0..100).take_while(|_| {
        bench.now += LATE_NS;
        bench.serve().is_late
    });
    assert!(looks.count() < 3);
    assert_eq!((answers_ahead(&bench), ahead(&bench)), (1, 1), "both ends notify of the next");
    // When something happens it is as before.
    bench.back_answers(bench.passed_on(bench.rsp_prod as usize), BLKIF_RSP_OKAY);
    (900..908).for_each(|id| _ = bench.ask(BLKIF_OP_READ, id, 1000 * id, 1));
    bench.now += LATE_NS;
    assert!(bench.serve().is_late);
}

#[test]
fn a_guest_that_waits_for_its_only_request_is_not_looked_at_again_and_again() {
    let mut bench = Bench::new();
    bench.may_be_late = true;
    for _ in 0..3 {
        let before = bench.seen.len();
        bench.now += 10 * LATE_NS;
        ask_quickly(&mut bench, 8);
        answer_all(&mut bench, before);
    }
    bench.now += 10 * LATE_NS;
    assert_eq!(ask_quickly(&mut bench, 1), [7]);
    let looks = (0..100).take_while(|_| {
        bench.now += LATE_NS;
        bench.serve().is_late
    });
    assert!(looks.count() < 3);
    assert_eq!((ahead(&bench), answers_ahead(&bench)), (1, 1));
}

#[test]
fn a_busy_disk_is_looked_at_late_all_the_time() {
    let mut bench = Bench::new();
    bench.may_be_late = true;
    let mut granted: Vec<_> = (0..32).map(|id| bench.ask(BLKIF_OP_READ, id, 1000 * id, 1)).collect();
    _ = bench.serve();
    for round in 0..200 {
        // All of it is done at one time, after a time that differs.
        bench.now += LATE_NS + LATE_NS / 2;
        let served = bench.serve();
        assert!(round < 4 || served.is_late, "{round}");
        bench.now += LATE_NS * (round % 2);
        let first = bench.rsp_prod as usize;
        (first..first + 16).for_each(|n| bench.back_answers(bench.passed_on(n), BLKIF_RSP_OKAY));
        _ = bench.serve();
        for (id, _) in bench.answers() {
            let done = core::mem::take(&mut granted[id as usize]);
            assert!(bench.guest.end_access(done[0].0).is_some());
            granted[id as usize] = bench.ask(BLKIF_OP_READ, id, 1000 * id, 1);
        }
        bench.now += 1_000;
        let served = bench.serve();
        assert!(round < 4 || served.is_late, "{round}");
    }
}
