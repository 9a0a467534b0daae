//! Which requests look lost, and to whom.

use super::*;

const SECOND: u64 = 1_000_000_000;

impl Bench {
    /// So many seconds go by, with a look at each: for how many one looks lost at the last.
    fn look_for(&mut self, seconds: u64) -> u64 {
        let mut overdue = 0;
        for _ in 0..seconds {
            self.now += SECOND;
            _ = self.serve();
            overdue = self.disk.overdue_for(self.now);
        }
        overdue / SECOND
    }

    /// The guest asks for a page, where it asks for no neighbour.
    fn read(&mut self, gref: u32, id: u32) {
        let mut words = [0; 28];
        (words[0], words[2], words[4]) = (1 << 8, id, 1000 * id);
        (words[6], words[7]) = (gref, 7 << 8);
        self.front.put(words);
        self.front.push();
    }

    /// The back end answers what it was asked as the `n`th.
    fn answer(&mut self, n: usize) {
        self.back_answers(self.passed_on(n), 0);
        _ = self.serve();
        _ = self.answers();
    }

    /// There is another back end, which is asked for all that waits.
    fn attach_again(&mut self) {
        self.disk.detach();
        self.attach();
        _ = self.serve();
    }
}

#[test]
fn what_others_overtake_looks_lost_from_then_on() {
    let mut bench = Bench::new();
    let (gref, _) = bench.guest.grant(true).expect("a frame");
    (0..3).for_each(|id| bench.read(gref, id));
    _ = bench.serve();
    assert_eq!(bench.look_for(1), 0);
    bench.answer(0);
    assert_eq!(bench.look_for(1), 0, "what came before it is answered");
    bench.answer(2);
    assert_eq!((bench.look_for(1), bench.look_for(5)), (0, 5));
    // Whatever others there are, and however many.
    for n in 3..1000 {
        bench.read(gref, n);
        _ = bench.serve();
        bench.answer(n as usize);
    }
    assert_eq!((bench.look_for(295), bench.disk.waiting()), (300, 1));
    bench.answer(1);
    assert_eq!(bench.look_for(1), 0);
}

#[test]
fn what_is_alone_looks_lost_while_nothing_is_answered() {
    let mut bench = Bench::new();
    let (gref, _) = bench.guest.grant(true).expect("a frame");
    assert_eq!(bench.look_for(100), 0, "nothing is under way");
    bench.read(gref, 0);
    _ = bench.serve();
    assert_eq!(bench.look_for(101), 100);
    // And what came later and was overtaken by nobody begins anew.
    bench.read(gref, 1);
    _ = bench.serve();
    bench.answer(0);
    assert_eq!(bench.look_for(11), 10);
    bench.answer(1);
    assert_eq!(bench.look_for(10), 0);
}

/// As Linux' back end does discards, each of them for three seconds.
#[test]
fn a_guest_cannot_have_a_back_end_that_works_in_order_look_as_if_it_had_lost_something() {
    let mut bench = Bench::new();
    let (mut asked, mut answered, mut longest, mut oldest) = (0, 0, 0, 0);
    for _ in 0..200 {
        while bench.disk.waiting() < 32 {
            // Those that wait for others, too, and the same sectors over and over.
            match asked % 8 {
                5 => _ = bench.ask(BLKIF_OP_WRITE, asked, 0, 1),
                6 => _ = bench.ask(BLKIF_OP_FLUSH_DISKCACHE, asked, 0, 0),
                7 => _ = bench.ask(BLKIF_OP_WRITE_BARRIER, asked, 0, 0),
                n => {
                    bench.front.put(discard(asked, 1000 - 100 * n, 1 << 22));
                    bench.front.push();
                }
            }
            asked += 1;
            _ = bench.serve();
        }
        for _ in 0..3 {
            longest = longest.max(bench.look_for(1));
        }
        oldest = oldest.max(bench.disk.oldest_for(bench.now));
        bench.answer(answered);
        answered += 1;
    }
    assert!(longest <= 3, "one looks lost for {longest} s");
    assert!(oldest > 60 * SECOND, "none waits for long");
}

/// The words of a discard.
fn discard(id: u32, sector: u32, sectors: u32) -> [u32; 28] {
    let mut words = [0; 28];
    words[0] = u32::from(BLKIF_OP_DISCARD);
    (words[2], words[4], words[6]) = (id, sector, sectors);
    words
}

#[test]
fn a_medium_that_does_the_next_one_first_loses_nothing() {
    let mut bench = Bench::new();
    let (gref, _) = bench.guest.grant(true).expect("a frame");
    for round in 0..100 {
        (0..8).for_each(|id| bench.read(gref, 8 * round + id));
        _ = bench.serve();
        for n in (0..8).rev() {
            assert!(bench.look_for(1) < 8);
            bench.answer((8 * round + n) as usize);
        }
    }
}

#[test]
fn what_a_second_back_end_does_not_answer_either_is_not_its_fault() {
    let mut bench = Bench::new();
    let (gref, _) = bench.guest.grant(true).expect("a frame");
    (0..4).for_each(|id| bench.read(gref, id));
    _ = bench.serve();
    bench.answer(3);
    assert_eq!(bench.look_for(9), 8);
    bench.answer(2);
    assert_eq!(bench.look_for(1), 9, "too short a time to say");
    bench.attach_again();
    assert_eq!(bench.look_for(1), 0, "whoever comes is not blamed for the time before");
    bench.read(gref, 4);
    _ = bench.serve();
    bench.answer(2);
    assert_eq!(bench.look_for(12), 11);
    bench.answer(0);
    bench.attach_again();
    // It was the second one that made it wait for so long.
    bench.read(gref, 5);
    _ = bench.serve();
    bench.answer(1);
    assert_eq!((bench.look_for(300), bench.disk.waiting()), (0, 1));
    // Another one is, that comes now.
    (6..8).for_each(|id| bench.read(gref, id));
    _ = bench.serve();
    bench.answer(3);
    assert_eq!(bench.look_for(21), 20);
    bench.answer(2);
    assert_eq!(bench.look_for(1), 0);
    // What takes the place of what was excused is not.
    bench.answer(0);
    (8..11).for_each(|id| bench.read(gref, id));
    _ = bench.serve();
    for n in [4, 6] {
        bench.answer(n);
    }
    assert_eq!(bench.look_for(21), 20);
}

#[test]
fn all_that_a_medium_that_hangs_was_asked_for_is_excused_together() {
    let mut bench = Bench::new();
    let (gref, _) = bench.guest.grant(true).expect("a frame");
    (0..5).for_each(|id| bench.read(gref, id));
    _ = bench.serve();
    assert_eq!(bench.look_for(61), 60);
    bench.attach_again();
    assert_eq!(bench.look_for(300), 0);
    // Nor is what comes later, and waits behind them.
    bench.read(gref, 5);
    assert_eq!(bench.look_for(300), 0);
}
