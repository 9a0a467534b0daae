//! Disks of several guests that one driver domain serves.

use super::*;
use crate::vbd::shares::{Member, Shares};
use core::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

type Common = Rc<RefCell<Shares<usize>>>;

struct Turn(Common, Member);

impl Turns for Turn {
    fn belief(&self) -> Belief {
        Belief::Yes
    }
    fn is_counted(&self) -> bool {
        self.0.borrow().nr_disks() > 1
    }
    fn may_begin(&mut self) -> bool {
        self.0.borrow_mut().may_begin(self.1, 0)
    }
    fn began(&mut self, cost: u32) {
        self.0.borrow_mut().began(self.1, cost, 0);
    }
    fn ended(&mut self, cost: u32) {
        _ = self.0.borrow_mut().ended(self.1, cost, 0);
    }
    fn abandoned(&mut self) {
        _ = self.0.borrow_mut().abandoned(self.1);
    }
}

/// A disk, whose guest may have so many reads of one page under way.
struct Flood {
    bench: Bench,
    turn: Turn,
    gref: u32,
    most: u32,
    asked: u32,
    answered: u32,
    /// Of what its back end has seen, what the driver domain has taken.
    taken: usize,
}

struct World {
    shares: Common,
    floods: Vec<Flood>,
    /// What the driver domain was asked, of which disk.
    asked: VecDeque<(usize, [u32; 28])>,
}

impl World {
    fn new(disks: &[(u16, u32)]) -> World {
        let shares = Common::default();
        let flood = |(name, (weight, most)): (usize, &(u16, u32))| {
            let bench = Bench::new();
            let member = shares.borrow_mut().join(name, *weight).expect("memory");
            let (gref, _) = bench.guest.grant(true).expect("a frame");
            Flood { bench, turn: Turn(shares.clone(), member), gref, most: *most, asked: 0, answered: 0, taken: 0 }
        };
        let floods = disks.iter().enumerate().map(flood).collect();
        World { shares, floods, asked: VecDeque::new() }
    }

    /// A guest asks for as much as it may, and the hypervisor looks.
    fn serve(&mut self, name: usize) {
        let flood = &mut self.floods[name];
        flood.answered += flood.bench.answers().iter().filter(|(_, status)| *status == 0).count() as u32;
        while flood.asked < flood.answered + flood.most {
            let mut words = [0; 28];
            // Never a neighbour's sector.
            (words[0], words[2], words[4]) = (1 << 8, flood.asked, flood.asked * 1000);
            (words[6], words[7]) = (flood.gref, 7 << 8);
            flood.bench.front.put(words);
            flood.bench.front.push();
            flood.asked += 1;
        }
        _ = flood.bench.serve_in_turn(&mut flood.turn, 1_000_000);
        self.take(name);
    }

    /// The driver domain takes what it is asked.
    fn take(&mut self, name: usize) {
        let flood = &mut self.floods[name];
        flood.bench.look();
        self.asked.extend(flood.bench.seen[flood.taken..].iter().map(|words| (name, *words)));
        flood.taken = flood.bench.seen.len();
    }

    fn go_on(&mut self) {
        loop {
            let Some(name) = self.shares.borrow_mut().next_turn() else { return };
            let flood = &mut self.floods[name];
            flood.bench.disk.go_on(&mut flood.turn, &flood.bench.memory);
            self.take(name);
        }
    }

    /// The driver domain answers what it was asked first.
    fn answer_one(&mut self) {
        let (name, words) = self.asked.pop_front().expect("always something to do");
        self.floods[name].bench.back_answers(words, 0);
        let flood = &mut self.floods[name];
        _ = flood.bench.serve_in_turn(&mut flood.turn, 1_000_000);
        self.take(name);
        self.serve(name);
        self.go_on();
    }

    fn answered(&self) -> Vec<u32> {
        self.floods.iter().map(|flood| flood.answered).collect()
    }
}

#[test]
fn guests_that_flood_have_their_weights_of_what_is_answered() {
    let mut world = World::new(&[(1, 32), (3, 32)]);
    (0..2).for_each(|name| world.serve(name));
    (0..8000).for_each(|_| world.answer_one());
    let [light, heavy] = world.answered()[..] else { panic!("two") };
    assert!(light + heavy >= 7900 && (light * 1000 / (light + heavy)).abs_diff(250) <= 10, "{light} and {heavy}");
}

#[test]
fn who_asks_for_one_at_a_time_does_not_wait_behind_a_flood() {
    // By its weight it may have a hundredth, and it does not ask for more.
    let mut world = World::new(&[(99, 32), (99, 32), (2, 1)]);
    (0..3).for_each(|name| world.serve(name));
    let (mut waited, mut longest) = (0, 0);
    for _ in 0..20_000 {
        let before = world.floods[2].answered;
        world.answer_one();
        waited = if world.floods[2].answered == before { waited + 1 } else { 0 };
        longest = longest.max(waited);
    }
    let done = world.answered();
    assert!(done[2] >= 190, "{done:?}");
    assert!(longest < 150, "once it has waited for {longest}");
}

#[test]
fn what_waits_for_its_turn_does_not_look_lost() {
    // A slow medium that works in order, and one guest in whose favour all is decided.
    let mut world = World::new(&[(1, 32), (256, 32)]);
    (0..2).for_each(|name| world.serve(name));
    let (mut oldest, mut overdue) = (0, 0);
    for n in 1..12_000u64 {
        let now = n * 10_000_000;
        world.floods.iter_mut().for_each(|flood| flood.bench.now = now);
        world.answer_one();
        for flood in &mut world.floods {
            oldest = oldest.max(flood.bench.disk.oldest_for(now));
            overdue = overdue.max(flood.bench.disk.overdue_for(now));
        }
    }
    assert!(oldest > 60_000_000_000, "it waits for {oldest} ns only");
    assert!(overdue < 1_000_000_000, "it looks lost for {overdue} ns");
}

#[test]
fn who_loses_his_back_end_leaves_the_room_to_others() {
    let mut world = World::new(&[(1, 32), (1, 32)]);
    (0..2).for_each(|name| world.serve(name));
    assert_eq!(world.floods[1].bench.nr_passed_on(), 0, "the first one has all the room");
    // Its ring cannot be.
    world.floods[0].bench.back.0[2].store(1000, SeqCst);
    let flood = &mut world.floods[0];
    _ = flood.bench.serve_in_turn(&mut flood.turn, 1_000_000);
    assert!(world.floods[0].bench.disk.back_page().is_none());
    world.go_on();
    assert_eq!(world.floods[1].bench.nr_passed_on(), 32);
}

#[test]
fn what_was_counted_is_no_more_when_it_is_answered_whoever_is_there_then() {
    let mut world = World::new(&[(1, 32), (1, 32), (1, 32)]);
    // Not counted, and not held back: they are alone one after the other.
    let members = [0, 1, 2].map(|name| world.floods[name].turn.1);
    let join = |world: &mut World, name: usize| {
        assert_eq!(world.shares.borrow_mut().join(name, 1), Ok(members[name]));
    };
    (1..3).for_each(|name| world.shares.borrow_mut().leave(members[name]));
    world.serve(0);
    join(&mut world, 1);
    world.serve(1);
    assert_eq!(world.floods[1].bench.nr_passed_on(), 32, "nothing counts that one alone has passed on");
    world.shares.borrow_mut().leave(members[0]);
    // Counted, and answered when only one is left.
    let (mine, _) = (world.asked.split_off(32), world.asked.clear());
    assert!(mine.iter().all(|(name, _)| *name == 1));
    for (name, words) in mine {
        world.floods[name].bench.back_answers(words, 0);
    }
    world.floods[1].most = 0;
    let flood = &mut world.floods[1];
    _ = flood.bench.serve_in_turn(&mut flood.turn, 1_000_000);
    join(&mut world, 0);
    join(&mut world, 2);
    world.serve(2);
    assert_eq!(world.floods[2].bench.nr_passed_on(), 32, "all room is there");
}
