//! Answers that are not to be believed, or not yet.

use super::*;

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
