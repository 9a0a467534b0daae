//! A driver domain is rolled back to its snapshot.

use super::world::*;
use crate::supervisor::look::Act;
use crate::supervisor::settings::Settings;
use crate::supervisor::words::{self, Words};
use control::{Image, Order};
use std::time::Duration;
use xen_abi::sched as reason;

#[test]
fn one_with_a_snapshot_boots_is_noted_and_gets_the_devices() {
    for words in [&words::NET, &words::DISK] {
        let world = World::with_snapshot_of(words);
        assert_eq!(world.acts, [Act::CreateStandby, Act::Note(1), Act::Promote(1), Act::HandOver(1)]);
        let line = world.machine.record.last.last().unwrap();
        let steps = ["started: start ", ", created ", ", noted ", ", handed over ", words.up, words.came];
        assert!(steps.iter().all(|step| line.contains(step)), "{line}");
    }
}

#[test]
fn one_with_a_snapshot_that_fails_is_rolled_back_and_takes_its_own_place() {
    for words in [&words::NET, &words::DISK] {
        fails_and_is_rolled_back(words);
    }
}

/// It fails in the n-th way, or is restarted by the operator, and all is well before anybody could have booted.
fn fails(world: &mut World, n: u64) {
    let began = world.now;
    match n {
        2 => world.domain.as_mut().unwrap().does = Does::Spins,
        3 => world.domain.as_mut().unwrap().does = Does::Strays,
        4 => world.ask(Order::Restart).unwrap(),
        _ => world.end(reason::SHUTDOWN_CRASH, false),
    }
    world.run(TICK * 2);
    while !world.is_well() {
        world.run(TICK);
    }
    assert!(world.now - began < BOOT, "{:?}", world.acts);
}

fn fails_and_is_rolled_back(words: &'static Words) {
    let mut world = World::with_snapshot_of(words);
    for n in 1..5 {
        world.acts.clear();
        fails(&mut world, n);
        let acts: Vec<Act> = world.acts.iter().copied().filter(|act| !matches!(act, Act::Drain(_))).collect();
        let all = [Act::Quarantine(1), Act::Take(1), Act::RollBack(1), Act::Promote(1), Act::HandOver(1)];
        assert_eq!((acts, world.nr_domains), (all.to_vec(), 1));
        world.run(Duration::from_secs(20));
        let line = world.machine.record.last.last().unwrap();
        assert!(line.contains(", start ") && line.contains(", rolled back ") && line.contains(words.came), "{line}");
        assert!(world.is_well() && world.remains.is_empty());
        assert_eq!((world.count("rolled-back"), world.machine.snapshot()), (n, Some(true)));
    }
}

#[test]
fn what_cannot_be_rolled_back_is_cleared_away_and_another_one_boots() {
    type Obstacle = fn(&mut World);
    let obstacles: [Obstacle; 3] =
        [|w| w.native = Native::Fails, |w| w.domain.as_mut().unwrap().is_noted = false, |w| w.domain = None];
    for obstacle in obstacles {
        let mut world = World::with_snapshot();
        obstacle(&mut world);
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(5));
        world.native = Native::Works;
        world.run(Duration::from_secs(25));
        assert!(world.is_well() && world.remains.is_empty(), "{:?} {:?}", world.acts, world.log);
        assert_eq!((world.domain.as_ref().unwrap().id, world.machine.snapshot()), (2, Some(true)), "{:?}", world.acts);
    }
}

/// Another one is up long before the one that is left, paused, had not booted.
fn another_one_comes_soon(world: &mut World) {
    world.run(Duration::from_secs(12));
    assert!(world.is_well() && world.domain.as_ref().unwrap().id == 2, "{:?} {:?}", world.acts, world.log);
    assert_eq!((world.count("not-ready"), world.acts.contains(&Act::Dismiss(1))), (0, true), "{:?}", world.acts);
    assert_eq!(world.machine.snapshot(), Some(true));
}

#[test]
fn what_is_rolled_back_by_half_goes_at_once_and_another_one_boots() {
    let mut world = World::with_snapshot();
    world.stays_paused = true;
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.acts.contains(&Act::RollBack(1)) {
        world.run(TICK);
    }
    another_one_comes_soon(&mut world);
}

#[test]
fn what_was_being_rolled_back_and_cannot_be_any_more_goes_at_once_and_another_one_boots() {
    let mut world = World::with(Settings { snapshot: true, back_off_ms: 4000, ..settings() });
    world.run(Duration::from_secs(20));
    fails(&mut world, 1);
    world.run(Duration::from_secs(10));
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(1));
    world.native = Native::IsKilled;
    while world.native == Native::IsKilled {
        world.run(TICK);
    }
    assert!(world.standby.as_ref().is_some_and(|d| d.id == 1 && d.is_paused), "{:?}", world.acts);
    world.standby.as_mut().unwrap().is_noted = false;
    another_one_comes_soon(&mut world);
}

#[test]
fn one_that_cannot_be_noted_runs_all_the_same() {
    let mut world = World::with(Settings { snapshot: true, ..settings() });
    world.native = Native::Fails;
    world.run(Duration::from_secs(20));
    assert!(world.is_well());
    assert_eq!((world.nr_domains, world.machine.snapshot()), (1, Some(false)));
}

#[test]
fn what_was_rolled_back_and_is_of_no_use_is_not_rolled_back_again() {
    let mut world = World::with_snapshot();
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.acts.contains(&Act::RollBack(1)) {
        world.run(TICK);
    }
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(30));
    assert!(world.is_well() && world.domain.as_ref().unwrap().id == 2, "{:?}", world.acts);
    assert_eq!(world.count("rolled-back"), 1);
}

#[test]
fn what_waits_for_its_back_off_to_be_rolled_back_is_not_cleared_away() {
    let mut world = World::with(Settings { snapshot: true, back_off_ms: 4000, ..settings() });
    world.run(Duration::from_secs(20));
    for _ in 0..2 {
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(10));
    }
    assert!(world.is_well() && world.nr_domains == 1 && !world.acts.contains(&Act::ClearAway(1)), "{:?}", world.acts);
}

#[test]
fn who_notes_or_rolls_back_and_is_killed_is_followed_by_one_that_does_it_again() {
    let mut world = World::with(Settings { snapshot: true, ..settings() });
    world.native = Native::IsKilled;
    while world.native == Native::IsKilled {
        world.run(TICK);
    }
    assert!(world.standby.as_ref().is_some_and(|d| d.is_paused));
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.machine.snapshot() == Some(true), "{:?}", world.acts);
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.acts.contains(&Act::Take(1)) {
        world.run(TICK);
    }
    world.kill();
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.nr_domains == 1, "{:?}", world.acts);
}

#[test]
fn a_domain_that_does_not_boot_to_be_noted_has_failed() {
    let mut world = World::with(Settings { snapshot: true, ..settings() });
    world.upgrade(None).unwrap_err();
    world.machine.record.image = with(Some(Flaw::NeverBoots));
    world.run(Duration::from_secs(24));
    assert_eq!(world.count("not-ready"), 1, "{:?}", world.acts);
    world.machine.record.image = with(Some(Flaw::Panics));
    world.run(Duration::from_secs(25));
    assert!(world.count("not-started") >= 1, "{:?} {:?}", world.machine.record.counts, world.acts);
    world.run(Duration::from_secs(60));
    assert_eq!((world.machine.state(), world.standby.is_none()), ("parked", true), "{:?}", world.log);
    world.machine.record.image = Image::default();
    world.ask(Order::Unpark).unwrap();
    world.run(Duration::from_secs(90));
    assert!(world.is_well(), "{} {:?}", world.machine.state(), world.log);
}

#[test]
fn two_that_can_be_rolled_back_take_turns_and_nobody_boots() {
    for words in [&words::NET, &words::DISK] {
        let mut world = World::with_turns_of(words);
        let begin = [
            Act::CreateStandby,
            Act::Note(1),
            Act::Promote(1),
            Act::HandOver(1),
            Act::CreateStandby,
            Act::Note(2),
            Act::Introduce(2),
        ];
        assert_eq!(world.acts, begin);
        for n in 1..5 {
            let (old, new) = if n % 2 == 1 { (1, 2) } else { (2, 1) };
            world.acts.clear();
            fails(&mut world, n);
            world.run(Duration::from_secs(20));
            let acts: Vec<Act> = world.acts.iter().copied().filter(|act| !matches!(act, Act::Drain(_))).collect();
            let taken = [Act::Quarantine(old), Act::Take(old), Act::Promote(new), Act::HandOver(new)];
            let renewed = [Act::RollBackBeside(old), Act::Introduce(old)];
            assert_eq!((acts, world.nr_domains), ([&taken[..], &renewed].concat(), 2));
            assert_eq!((world.count("rolled-back"), world.machine.snapshot()), (n, Some(true)));
            assert_eq!((world.machine.standby(), world.remains.is_empty()), (Some(true), true));
        }
    }
}

#[test]
fn one_that_was_rolled_back_waits_from_then_on_and_nobody_watches_it_boot() {
    let mut world = World::with_turns_of(&words::NET);
    fails(&mut world, 1);
    while world.going_back.is_none() {
        world.run(TICK);
    }
    world.run(BACK + TICK);
    assert_eq!(world.machine.standby(), Some(true), "{:?}", world.acts);
    assert_eq!(world.acts.last(), Some(&Act::Introduce(1)));
}

#[test]
fn one_that_fails_before_the_other_is_rolled_back_waits_for_that_and_no_longer() {
    let mut world = World::with_turns_of(&words::NET);
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.acts.contains(&Act::HandOver(2)) {
        world.run(TICK);
    }
    world.run(TICK * 5);
    assert!(world.is_well() && !world.acts.contains(&Act::RollBackBeside(1)), "{:?}", world.acts);
    let began = world.now;
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(TICK);
    while !world.is_well() {
        world.run(TICK);
    }
    // It is put off, as after each second failure.
    assert!(world.now - began < Duration::from_secs(2), "{:?}", world.acts);
    world.run(Duration::from_secs(20));
    assert_eq!((world.domain.as_ref().map(|d| d.id), world.standby.as_ref().map(|d| d.id)), (Some(1), Some(2)));
    assert_eq!((world.nr_domains, world.count("rolled-back")), (2, 2), "{:?}", world.acts);
}

#[test]
fn one_that_fails_while_the_other_is_rolled_back_is_noticed_at_once_and_waits_for_the_rest_of_that() {
    let mut world = World::with_turns_of(&words::NET);
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.going_back.is_none() {
        world.run(TICK);
    }
    world.acts.clear();
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(TICK * 2);
    assert!(world.acts.contains(&Act::Take(2)) && world.going_back.is_some(), "{:?}", world.acts);
    world.run(Duration::from_secs(2));
    let taken = [Act::Quarantine(2), Act::Take(2), Act::RollBack(1), Act::Promote(1), Act::HandOver(1)];
    assert!(world.is_well() && world.acts.starts_with(&taken), "{:?}", world.acts);
    world.run(Duration::from_secs(20));
    assert_eq!((world.machine.standby(), world.nr_domains), (Some(true), 2), "{:?}", world.acts);
}

/// One that is up, and the other one has booted and is noted just now.
fn noting_another(words: &'static Words) -> World {
    let mut world = World::of(words, Settings { standby: 1, snapshot: true, ..settings() });
    while world.noting.is_none_or(|(id, _)| id != 2) {
        world.run(TICK);
    }
    assert!(world.is_well() && world.machine.standby() == Some(false), "{:?}", world.acts);
    world
}

#[test]
fn one_that_fails_while_the_other_is_noted_is_noticed_at_once_and_waits_for_the_rest_of_that() {
    for words in [&words::NET, &words::DISK] {
        let mut world = noting_another(words);
        world.acts.clear();
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(TICK * 2);
        assert_eq!((&world.acts[..], world.noting.is_some()), (&[Act::Quarantine(1), Act::Take(1)][..], true));
        world.run(Duration::from_secs(20));
        let taken = [Act::Quarantine(1), Act::Take(1), Act::Promote(2), Act::HandOver(2)];
        assert!(world.is_well() && world.acts.starts_with(&taken), "{:?}", world.acts);
        assert_eq!((world.machine.snapshot(), world.machine.standby()), (Some(true), Some(true)), "{:?}", world.acts);
        assert_eq!((world.nr_domains, world.count("rolled-back")), (2, 1), "{:?}", world.acts);
    }
}

#[test]
fn who_is_parked_restarted_or_killed_while_another_one_is_noted_is_followed_in_the_end() {
    for order in [None, Some(Order::Park), Some(Order::Restart)] {
        let mut world = noting_another(&words::NET);
        match order {
            Some(order) => world.ask(order).unwrap(),
            None => world.kill(),
        }
        world.run(Duration::from_secs(20));
        if order == Some(Order::Park) {
            assert!(world.all().next().is_none() && world.machine.state() == "parked", "{:?}", world.acts);
            world.ask(Order::Unpark).unwrap();
            world.run(Duration::from_secs(20));
        }
        assert!(world.is_well() && world.machine.standby() == Some(true), "{:?} {:?}", world.acts, world.log);
    }
}

#[test]
fn one_that_an_earlier_daemon_was_noting_takes_the_place_of_one_that_has_failed_since() {
    let mut world = noting_another(&words::NET);
    world.end(reason::SHUTDOWN_CRASH, false);
    world.kill();
    assert!(world.standby.as_ref().is_some_and(|d| d.is_paused && !d.is_noted));
    world.run(Duration::from_secs(20));
    assert!(world.is_well() && world.machine.standby() == Some(true), "{:?} {:?}", world.acts, world.log);
    assert!(world.acts.contains(&Act::Promote(2)) && world.nr_domains == 2, "{:?}", world.acts);
}

#[test]
fn who_is_destroyed_or_parked_while_another_one_is_rolled_back_is_followed_in_the_end() {
    for order in [Order::Park, Order::Restart] {
        let mut world = World::with_turns_of(&words::DISK);
        world.end(reason::SHUTDOWN_CRASH, false);
        while world.going_back.is_none() {
            world.run(TICK);
        }
        world.ask(order).unwrap();
        world.run(Duration::from_secs(20));
        if order == Order::Park {
            assert!(world.all().next().is_none() && world.machine.state() == "parked", "{:?}", world.acts);
            world.ask(Order::Unpark).unwrap();
            world.run(Duration::from_secs(20));
        }
        assert!(world.is_well() && world.machine.standby() == Some(true), "{:?} {:?}", world.acts, world.log);
    }
}

#[test]
fn one_that_fails_before_it_is_of_use_is_not_rolled_back_to_wait() {
    let mut world = World::with_turns_of(&words::NET);
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.acts.contains(&Act::HandOver(2)) {
        world.pass();
        world.step(None);
    }
    world.machine.record.under_way.as_ref().expect("nothing has come yet");
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(30));
    assert!(world.is_well() && world.nr_domains == 3, "{:?}", world.acts);
    assert!(!world.acts.contains(&Act::RollBackBeside(2)) && !world.acts.contains(&Act::RollBack(2)));
    assert!(world.acts.contains(&Act::RollBack(1)), "{:?}", world.acts);
}

#[test]
fn what_cannot_be_rolled_back_to_wait_is_cleared_away_and_another_one_boots() {
    for is_killed in [false, true] {
        let mut world = World::with_turns_of(&words::DISK);
        world.end(reason::SHUTDOWN_CRASH, false);
        while !world.is_well() {
            world.run(TICK);
        }
        world.native = Native::Fails;
        while !world.acts.contains(&Act::RollBackBeside(1)) {
            world.pass();
            // It is written down what is to be done, and nothing was done.
            let is_killed = is_killed && world.machine.record.rolling.is_none();
            world.step(is_killed.then_some(0));
        }
        world.native = Native::Works;
        world.run(Duration::from_secs(30));
        assert!(world.is_well() && world.remains.is_empty(), "{:?} {:?}", world.acts, world.log);
        let waits = world.standby.as_ref().map(|d| d.id);
        assert_eq!((waits, world.machine.standby()), (Some(3), Some(true)), "{:?}", world.acts);
    }
}

#[test]
fn who_is_killed_while_it_notes_or_rolls_back_the_one_that_waits_is_followed_by_one_that_does_it_again() {
    let mut world = World::of(&words::DISK, Settings { standby: 1, snapshot: true, ..settings() });
    while !world.is_well() {
        world.run(TICK);
    }
    world.native = Native::IsKilled;
    while world.native == Native::IsKilled {
        world.run(TICK);
    }
    assert!(world.standby.as_ref().is_some_and(|d| d.id == 2 && d.is_paused));
    world.run(Duration::from_secs(10));
    assert_eq!((world.machine.snapshot(), world.machine.standby()), (Some(true), Some(true)), "{:?}", world.acts);
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(TICK * 3);
    assert!(world.is_well());
    world.native = Native::IsKilled;
    while world.native == Native::IsKilled {
        world.run(TICK);
    }
    assert!(world.standby.as_ref().is_some_and(|d| d.id == 1 && d.is_paused));
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.nr_domains == 2, "{:?}", world.acts);
    assert_eq!((world.machine.standby(), world.count("rolled-back")), (Some(true), 1), "{:?}", world.acts);
}

#[test]
fn one_that_is_paused_does_not_take_the_place_and_the_one_that_fails_comes_back() {
    let mut world = World::with_turns_of(&words::NET);
    world.standby.as_mut().unwrap().is_paused = true;
    world.acts.clear();
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(BOOT);
    assert!(world.is_well(), "{} {:?} {:?}", world.machine.state(), world.acts, world.log);
    let acts = [Act::Quarantine(1), Act::Take(1), Act::Dismiss(2), Act::RollBack(1), Act::Promote(1), Act::HandOver(1)];
    assert_eq!((&world.acts[..], world.nr_domains), (&acts[..], 2));
    world.run(Duration::from_secs(20));
    assert_eq!((world.machine.standby(), world.nr_domains), (Some(true), 3), "{:?}", world.acts);
}

#[test]
fn another_image_comes_to_both_that_take_turns() {
    let mut world = World::with_turns_of(&words::NET);
    world.upgrade(None).unwrap();
    world.run(Duration::from_secs(30));
    assert!(world.is_well() && world.remains.is_empty(), "{:?}", world.acts);
    assert!(world.all().all(|d| d.image == new() && d.is_noted), "{:?}", world.acts);
    assert_eq!((world.machine.snapshot(), world.machine.standby()), (Some(true), Some(true)));
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.count("rolled-back") == 1, "{:?}", world.acts);
}

#[test]
fn what_was_noted_is_lost_while_it_is_rolled_back() {
    let mut world = World::with_turns_of(&words::NET);
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.acts.contains(&Act::RollBackBeside(1)) {
        world.run(TICK);
    }
    world.all_mut().for_each(|d| d.is_noted = false);
    world.run(Duration::from_secs(60));
    assert!(world.is_well() && world.remains.is_empty(), "{} {:?}", world.machine.state(), world.acts);
    assert_eq!(world.machine.standby(), Some(true), "{:?}", world.acts);
}

#[test]
fn what_was_of_use_is_rolled_back_again_though_its_twin_had_not_come() {
    let mut world = World::with(Settings { snapshot: true, twin: true, ..settings() });
    world.run(Duration::from_secs(90));
    for times in [1, 2] {
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(10));
        assert!(world.is_well() && world.machine.record.under_way.is_some(), "{:?}", world.log);
        assert_eq!((world.count("rolled-back"), world.nr_domains), (times, 1), "{:?}", world.log);
    }
}
