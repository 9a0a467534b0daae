//! A driver domain that does what it is asked at its own pace, and disks that ask for as much as they may.

use super::*;
use std::collections::VecDeque;
use std::vec::Vec;

/// A disk that always has something to ask for: runs that cost so much each, at most so many at a time.
struct Flood {
    member: Member,
    cost: u32,
    most: u32,
    under_way: u32,
    done: u64,
}

struct World {
    shares: Shares<usize>,
    floods: Vec<Flood>,
    /// What the driver domain has to do: whose, and what it costs.
    asked: VecDeque<(usize, u32)>,
    /// The time, in ns.
    now: u64,
}

impl World {
    /// Disks of a weight, a cost and a number at a time each.
    fn new(disks: &[(u16, u32, u32)]) -> World {
        let mut shares = Shares::default();
        let flood = |(name, (weight, cost, most)): (usize, &(u16, u32, u32))| Flood {
            member: shares.join(name, *weight).expect("memory"),
            cost: *cost,
            most: *most,
            under_way: 0,
            done: 0,
        };
        let floods = disks.iter().enumerate().map(flood).collect();
        World { shares, floods, asked: VecDeque::new(), now: 0 }
    }

    /// A disk passes on what it may.
    fn pass_on(&mut self, name: usize) {
        let flood = &mut self.floods[name];
        while flood.under_way < flood.most {
            if !self.shares.may_begin(flood.member, self.now) {
                return;
            }
            self.shares.began(flood.member, flood.cost, self.now);
            flood.under_way += 1;
            self.asked.push_back((name, flood.cost));
        }
    }

    /// The driver domain does one of what it was asked: the oldest, or another.
    fn step(&mut self, which: usize) {
        let at = which % self.asked.len();
        let (name, cost) = self.asked.remove(at).expect("one of them");
        let flood = &mut self.floods[name];
        flood.under_way -= 1;
        flood.done += u64::from(cost);
        _ = self.shares.ended(flood.member, cost, self.now);
        self.pass_on(name);
        while let Some(next) = self.shares.next_turn() {
            self.pass_on(next);
        }
    }

    fn run(&mut self, steps: usize, which: impl Fn(usize) -> usize) -> Vec<u64> {
        (0..self.floods.len()).for_each(|name| self.pass_on(name));
        (0..steps).for_each(|n| self.step(which(n)));
        self.floods.iter().map(|flood| flood.done).collect()
    }
}

/// What `done` are of all, in thousandths.
fn shares_of(done: &[u64]) -> Vec<u64> {
    let all: u64 = done.iter().sum();
    done.iter().map(|done| (done * 1000 + all / 2) / all).collect()
}

#[test]
fn who_floods_gets_his_weight_whatever_he_asks_for_and_in_whatever_order_it_is_done() {
    for costs in [[2, 2], [12, 12], [2, 12], [12, 2]] {
        for step in [0, 7, 31] {
            let mut world = World::new(&[(1, costs[0], 32), (3, costs[1], 32)]);
            let shares = shares_of(&world.run(20_000, |n| n * step));
            assert!(shares[0].abs_diff(250) <= 10, "{costs:?}, {step}: {shares:?}");
        }
    }
    let mut world = World::new(&[(256, 2, 32), (0, 2, 32), (512, 12, 8), (65535, 2, 32), (1, 2, 32)]);
    let weights = [256, 256, 512, 65535, 1].map(|weight| weight * 1000 / 66560);
    let shares = shares_of(&world.run(200_000, |_| 0));
    assert!(shares.iter().zip(weights).all(|(share, weight)| share.abs_diff(weight) <= 2), "{shares:?}");
}

#[test]
fn what_one_does_not_use_the_others_have() {
    // The heaviest asks for one at a time, and has it each time; all else is shared by the two that flood.
    let mut world = World::new(&[(1000, 2, 1), (1, 2, 32), (1, 2, 32)]);
    let done = world.run(30_000, |_| 0);
    assert_eq!(done.iter().sum::<u64>(), 60_000, "the driver domain has always something to do");
    assert!(done[1].abs_diff(done[2]) <= 4 * u64::from(ROOM), "{done:?}");
    // What is under way before it is at most a room full.
    assert!(done[0] >= 30_000 / u64::from(ROOM / 2 + 1) * 2, "{done:?}");
}

#[test]
fn who_has_the_driver_domain_for_himself_is_not_held_back_until_another_comes() {
    let mut world = World::new(&[(1, 12, 80), (1, 2, 4)]);
    world.pass_on(0);
    assert_eq!(world.floods[0].under_way, 80);
    world.pass_on(1);
    assert_eq!(world.floods[1].under_way, 0, "there is no room");
    let mut waited = 0;
    while world.floods[1].under_way == 0 {
        world.step(0);
        waited += 1;
    }
    // Until as much is under way as may be, and no longer.
    assert_eq!(waited, 80 - ROOM.div_ceil(12) + 1);
}

#[test]
fn who_was_idle_has_saved_nothing() {
    let mut world = World::new(&[(1, 2, 32), (1, 2, 32)]);
    world.pass_on(0);
    (0..10_000).for_each(|_| world.step(0));
    world.floods[0].done = 0;
    world.pass_on(1);
    (0..10_000).for_each(|_| world.step(0));
    let shares = shares_of(&[world.floods[0].done, world.floods[1].done]);
    assert!(shares[0].abs_diff(500) <= 5, "{shares:?}");
}

#[test]
fn who_goes_takes_what_he_has_under_way_with_him_and_his_place_is_anothers() {
    let mut world = World::new(&[(1, 2, 32), (1, 2, 32), (1, 2, 32)]);
    (0..3).for_each(|name| world.pass_on(name));
    assert_eq!([0, 1, 2].map(|name| world.floods[name].under_way), [32, 0, 0]);
    let (first, second) = (world.floods[0].member, world.floods[1].member);
    assert_eq!(world.shares.next_turn(), None, "all room is taken");
    world.shares.leave(second);
    world.shares.leave(first);
    assert_eq!(world.shares.nr_disks(), 1);
    assert_eq!(world.shares.next_turn(), Some(2), "not one that is gone");
    assert_eq!(world.shares.next_turn(), None);
    // Answers to one that is gone, and its questions, change nothing.
    assert!(!world.shares.ended(first, 2, 0));
    world.shares.began(second, 1000, 0);
    assert!(world.shares.may_begin(world.floods[2].member, 0));
    let another = world.shares.join(7, 1).expect("memory");
    assert_eq!(another, first);
    assert!(world.shares.may_begin(another, 0));
}

#[test]
fn what_nobody_waits_for_makes_room() {
    let mut world = World::new(&[(1, 2, 32), (1, 2, 32)]);
    world.pass_on(0);
    world.pass_on(1);
    assert!(world.shares.abandoned(world.floods[0].member), "there is room, and somebody waits for it");
    assert_eq!(world.shares.next_turn(), Some(1));
    assert!(world.shares.may_begin(world.floods[1].member, 0));
}

#[test]
fn who_is_not_answered_is_not_waited_for_until_he_is() {
    let mut world = World::new(&[(1, 12, 80), (1, 2, 32), (3, 2, 32)]);
    world.pass_on(0);
    // The medium of the first does nothing; it has all the room.
    let hung = core::mem::take(&mut world.asked);
    world.pass_on(1);
    world.now = STALL_NS - 1;
    world.pass_on(2);
    assert_eq!([1, 2].map(|name| world.floods[name].under_way), [0, 0]);
    world.now = STALL_NS + STALL_NS / 4;
    world.pass_on(1);
    while let Some(next) = world.shares.next_turn() {
        world.pass_on(next);
    }
    for _ in 0..10_000 {
        world.now += 1000;
        world.step(0);
        assert_eq!(world.asked.len(), 32, "all the room is theirs");
        world.pass_on(0);
    }
    let shares = shares_of(&[world.floods[1].done, world.floods[2].done]);
    assert!(shares[0].abs_diff(250) <= 5, "{shares:?}");
    assert_eq!((world.floods[0].under_way, world.floods[0].done), (80, 0));
    // It is, and all share again.
    world.floods[0].most = 20;
    world.asked = hung.into_iter().chain(core::mem::take(&mut world.asked)).collect();
    world.run(2_000, |_| 0);
    (0..3).for_each(|name| world.floods[name].done = 0);
    let shares = shares_of(&world.run(20_000, |_| 0));
    assert!(shares.iter().zip([200, 200, 600]).all(|(share, of)| share.abs_diff(of) <= 10), "{shares:?}");
}

/// A driver domain, or a medium, that is so slow that what one has under way takes longer than a medium that hangs is
/// waited for.
#[test]
fn who_is_slow_does_not_hang() {
    for (costs, weights) in [([2, 33], [1, 1]), ([12, 2], [1, 3]), ([2, 2], [3, 1])] {
        let mut world = World::new(&[(weights[0], costs[0], 32), (weights[1], costs[1], 32)]);
        (0..2).for_each(|name| world.pass_on(name));
        for n in 0..5_000 {
            world.now += u64::from(world.asked[0].1) * 4_000_000;
            world.step(0);
            if n == 500 {
                // The first one was alone for a moment, and had all that it wants.
                world.floods.iter_mut().for_each(|flood| flood.done = 0);
            }
        }
        let shares = shares_of(&[world.floods[0].done, world.floods[1].done]);
        let wanted = u64::from(weights[0]) * 1000 / u64::from(weights[0] + weights[1]);
        assert!(shares[0].abs_diff(wanted) <= 20, "{costs:?}, {weights:?}: {shares:?}");
    }
}

/// Now and then nothing is answered for a while, as when who answers has no processor. All of them look as if they hung
/// then.
#[test]
fn a_break_lets_nobody_take_all() {
    let mut world = World::new(&[(1, 2, 32), (1, 33, 32)]);
    (0..2).for_each(|name| world.pass_on(name));
    for n in 0..20_000 {
        world.now += if n % 40 == 0 { 2 * STALL_NS } else { u64::from(world.asked[0].1) * 100_000 };
        (0..2).for_each(|name| world.pass_on(name));
        world.step(0);
    }
    let shares = shares_of(&[world.floods[0].done, world.floods[1].done]);
    assert!(shares[0].abs_diff(500) <= 50, "{shares:?}");
}

/// A medium that hangs and has not all the room: the others have the rest, and soon all.
#[test]
fn who_hangs_while_others_are_answered_is_not_waited_for_either() {
    let mut world = World::new(&[(1, 12, 3), (1, 2, 32)]);
    world.pass_on(0);
    world.asked.clear();
    world.pass_on(1);
    assert_eq!(world.floods[1].under_way, (ROOM - 36) / 2, "it has the rest");
    for _ in 0..1_000 {
        world.now += 1_000_000;
        world.step(0);
    }
    assert_eq!(world.floods[1].under_way, 32);
}
