//! One that is made while another one that has died still has its memory.

use super::world::*;
use crate::supervisor::look::Act;
use std::time::Duration;
use xen_abi::sched as reason;

fn with_room() -> World {
    let mut world = World::up();
    world.has_room = true;
    world.acts.clear();
    world
}

/// How long it took until it was up again.
fn recover(world: &mut World) -> Duration {
    let from = world.now;
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.now < from + Duration::from_secs(60) {
        world.run(TICK);
        if world.is_well() {
            return world.now - from;
        }
    }
    panic!("it does not come back: {:?}", world.log);
}

#[test]
fn where_there_is_memory_the_next_one_is_made_at_once() {
    let mut narrow = World::up();
    let long = recover(&mut narrow);
    let mut world = with_room();
    let short = recover(&mut world);
    assert_eq!(world.acts[..3], [Act::Quarantine(1), Act::Take(1), Act::Create]);
    assert!(short < long, "{short:?}, {long:?}");
    world.run(Duration::from_secs(5));
    assert_eq!(world.acts[3..], [Act::ClearAway(1)], "when guests have what they waited for");
    assert!(world.remains.is_empty() && world.is_well());
    assert_eq!(world.count("panicked"), 1);
}

#[test]
fn what_was_no_memory_after_all_is_no_failure() {
    let mut world = with_room();
    world.is_full = true;
    recover(&mut world);
    assert_eq!(world.acts[..4], [Act::Quarantine(1), Act::Take(1), Act::Create, Act::ClearAway(1)]);
    assert_eq!(world.acts[4..], [Act::Create], "when the memory is free");
    assert_eq!((world.count("panicked"), world.count("not-started")), (1, 0), "{:?}", world.log);
    assert!(world.log.iter().any(|line| line.contains("made again without: no memory")), "{:?}", world.log);
    // The next one is made beside the old one again.
    world.is_full = false;
    world.run(Duration::from_secs(61));
    world.acts.clear();
    recover(&mut world);
    assert_eq!(world.acts[..3], [Act::Quarantine(2), Act::Take(2), Act::Create]);
}

#[test]
fn one_that_cannot_be_made_at_all_fails_as_ever() {
    let mut world = with_room();
    world.is_full = true;
    world.stubborn.insert(1, 1000);
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(120));
    assert_eq!((world.machine.state(), world.count("not-started")), ("parked", 3), "{:?}", world.log);
}

#[test]
fn one_that_fails_before_all_of_the_last_one_is_gone_goes_as_ever() {
    let mut world = with_room();
    world.is_broken = true;
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(23));
    assert_eq!(world.acts[..3], [Act::Quarantine(1), Act::Take(1), Act::Create]);
    // It was not ready.
    assert_eq!(world.acts[3..], [Act::Quarantine(2), Act::Destroy(2), Act::ClearAway(1), Act::Create]);
    world.is_broken = false;
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.remains.is_empty(), "{:?}", world.log);
}

#[test]
fn who_is_killed_meanwhile_is_followed_by_one_that_finds_its_way() {
    for ticks in 0..40 {
        let mut world = with_room();
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(TICK * ticks);
        world.kill();
        world.run(Duration::from_secs(30));
        assert!(world.is_well() && world.remains.is_empty(), "{ticks}: {:?}", world.log);
        assert_eq!(world.nr_domains, 2, "{ticks}: {:?}", world.log);
    }
}

#[test]
fn one_that_waits_or_is_rolled_back_has_the_place_all_the_same() {
    let mut world = World::with_snapshot();
    world.has_room = true;
    world.acts.clear();
    recover(&mut world);
    assert!(!world.acts.contains(&Act::Create) && !world.acts.contains(&Act::CreateStandby), "{:?}", world.acts);
    let mut world = World::with_standby();
    world.has_room = true;
    world.acts.clear();
    recover(&mut world);
    assert!(!world.acts.contains(&Act::Create), "{:?}", world.acts);
}
