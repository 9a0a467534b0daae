//! The operator destroys a driver domain that runs.

use super::world::*;
use crate::supervisor::look::Act;
use control::Order;
use std::time::Duration;

#[test]
fn the_one_that_waits_takes_the_place_while_the_operator_destroys_the_old_one() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.acts.clear();
    let old = world.begin_destroy();
    assert_eq!((old, world.acts.len()), (waits - 1, 0), "who has lost its devices and runs may get others");
    world.run(2 * TICK);
    let at_once = [Act::Quarantine(old), Act::Take(old), Act::Promote(waits), Act::HandOver(waits)];
    assert_eq!(world.acts, at_once);
    world.run(Duration::from_secs(5));
    assert_eq!(world.acts.len(), 4, "the operator's toolstack is at work on it: {:?}", world.acts);
    world.end_destroy(old);
    world.run(Duration::from_secs(20));
    assert_eq!(world.acts[4..], [Act::CreateStandby, Act::Introduce(waits + 1)]);
    assert_eq!(world.machine.record.counts["destroyed"], 1);
}

#[test]
fn what_the_operator_has_not_destroyed_after_a_while_is_cleared_away() {
    let mut world = World::with_standby();
    let old = world.begin_destroy();
    world.acts.clear();
    world.run(Duration::from_secs(20));
    assert_eq!(world.acts[4], Act::ClearAway(old));
}

#[test]
fn without_one_that_waits_another_one_is_created_when_the_operator_is_done() {
    let mut world = World::up();
    world.acts.clear();
    let old = world.begin_destroy();
    world.run(Duration::from_secs(5));
    assert_eq!(world.acts, [Act::Quarantine(old)]);
    world.end_destroy(old);
    world.run(TICK);
    assert_eq!(world.acts[1..], [Act::Create]);
}

#[test]
fn one_that_the_operator_has_begun_to_destroy_is_destroyed_in_the_end() {
    let mut world = World::up();
    world.acts.clear();
    let old = world.begin_destroy();
    world.run(Duration::from_secs(18));
    assert_eq!(world.acts[..3], [Act::Quarantine(old), Act::Destroy(old), Act::Create]);
}

#[test]
fn who_is_destroyed_is_not_rolled_back() {
    let mut world = World::with_snapshot();
    world.acts.clear();
    let old = world.begin_destroy();
    world.run(Duration::from_secs(5));
    assert_eq!(world.acts, [Act::Quarantine(old)]);
    world.end_destroy(old);
    world.run(Duration::from_secs(20));
    assert_eq!(world.acts[1..3], [Act::CreateStandby, Act::Note(old + 1)]);
    assert!(world.is_well(), "{:?}", world.log);
}

/// One that is wedged, and is not gone after all tries.
fn parked_and_there() -> (World, u16) {
    let mut world = World::up();
    let old = world.domain.as_ref().unwrap().id;
    world.stubborn.insert(old, 10);
    world.domain.as_mut().unwrap().does = Does::Spins;
    world.run(Duration::from_secs(30));
    assert_eq!((world.machine.state(), world.domain.as_ref().map(|d| d.id)), ("parked", Some(old)), "{:?}", world.log);
    assert!(world.log.iter().any(|line| line.contains("cannot be destroyed")), "{:?}", world.log);
    (world, old)
}

#[test]
fn one_that_could_not_be_destroyed_has_to_go_before_another_one_comes() {
    for order in [Order::Unpark, Order::Restart] {
        let (mut world, old) = parked_and_there();
        world.acts.clear();
        world.ask(order).unwrap();
        world.run(Duration::from_secs(10));
        assert_eq!(world.acts[..3], [Act::Quarantine(old), Act::Destroy(old), Act::Create], "{order:?}");
        assert!(world.is_well() && world.machine.record.going.is_none(), "{order:?}: {:?}", world.log);
    }
}

#[test]
fn one_that_could_not_be_destroyed_is_forgotten_when_it_is_gone() {
    let (mut world, old) = parked_and_there();
    world.end_destroy(old);
    world.run(TICK);
    assert_eq!((world.machine.state(), world.machine.record.going), ("parked", None));
    // The next daemon tries again, and it stays parked.
    let (mut world, _) = parked_and_there();
    world.kill();
    world.run(Duration::from_secs(5));
    assert_eq!((world.machine.state(), world.domain.is_none(), world.machine.record.going), ("parked", true, None));
}
