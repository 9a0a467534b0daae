//! The operator destroys a driver domain that runs.

use super::world::*;
use crate::supervisor::look::Act;
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
