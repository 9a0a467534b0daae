//! A driver domain that waits takes the place of the one that fails.

use super::world::*;
use crate::supervisor::look::Act;
use crate::supervisor::settings::Settings;
use crate::supervisor::words;
use control::{Image, Order};
use std::time::Duration;
use xen_abi::sched as reason;

/// The domain has failed, and the toolstack has just begun to clear it away. Gives who waits, too.
fn while_the_old_one_goes() -> (World, u16) {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.acts.clear();
    world.native = Native::Fails;
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.acts.last() != Some(&Act::Destroy(waits - 1)) {
        world.run(TICK);
    }
    (world, waits)
}

#[test]
fn the_one_that_waits_takes_the_place_and_another_one_waits() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.acts.clear();
    let began = world.now;
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.is_well() {
        world.run(TICK);
    }
    // Nobody has booted.
    assert!(world.now - began < BOOT, "{:?}", world.log);
    let old = waits - 1;
    let at_once = [Act::Quarantine(old), Act::Take(old), Act::Promote(waits), Act::HandOver(waits)];
    assert_eq!(world.acts[..4], at_once);
    assert_eq!(world.domain.as_ref().unwrap().id, waits);
    world.run(Duration::from_secs(20));
    assert_eq!(world.acts[4..], [Act::ClearAway(old), Act::CreateStandby, Act::Introduce(waits + 1)]);
    assert!(world.standby.as_ref().is_some_and(|d| d.id == waits + 1));
    let line = world.machine.record.last.last().unwrap();
    assert!(
        line.contains("released 100 ms, start 100 ms, handed over 100 ms") && line.contains("first packet in"),
        "{line}"
    );
    assert!(line.contains(", link "), "{line}");
}

#[test]
fn what_cannot_be_done_without_the_toolstack_the_toolstack_does() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.acts.clear();
    world.native = Native::Fails;
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.is_well() {
        world.run(TICK);
    }
    let old = waits - 1;
    let in_turn = [
        Act::Quarantine(old),
        Act::Take(old),
        Act::Destroy(old),
        Act::Promote(waits),
        Act::HandOver(waits),
        Act::Attach(waits),
    ];
    assert_eq!(world.acts[..6], in_turn);
}

#[test]
fn who_is_killed_half_way_is_followed_by_one_that_finds_the_rest_to_do() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.end(reason::SHUTDOWN_CRASH, false);
    world.native = Native::IsKilled;
    while world.native == Native::IsKilled {
        world.run(TICK);
    }
    // Its devices were taken, and it has the name.
    assert!(world.domain.as_ref().is_some_and(|d| d.id == waits - 1 && !d.has_devices));
    world.run(TICK * 3);
    assert!(world.domain.as_ref().is_some_and(|d| d.id == waits && d.has_devices), "{:?}", world.acts);
    world.run(Duration::from_secs(20));
    assert!(world.is_well() && world.remains.is_empty());
}

#[test]
fn the_one_that_waits_takes_the_place_when_the_old_one_has_no_devices_and_before_its_memory_is_back() {
    let (mut world, waits) = while_the_old_one_goes();
    world.run(DESTROY - CLEAR - TICK);
    assert_eq!((world.acts.len(), world.domain.is_some()), (3, true), "the old one has the devices still");
    world.run(TICK);
    assert_eq!(world.acts[3..], [Act::Promote(waits), Act::HandOver(waits), Act::Attach(waits)]);
    assert_eq!(world.aside.len(), 1, "its memory is not back");
    world.run(Duration::from_secs(10));
    let line = world.machine.record.last.last().unwrap();
    assert!(world.is_well() && line.contains(" released 300 ms, start 300 ms, handed over "), "{line}");
}

#[test]
fn one_is_made_only_when_the_old_ones_memory_is_back() {
    let mut world = World::up();
    world.acts.clear();
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.acts.last() != Some(&Act::Create) {
        world.run(TICK);
    }
    let line = world.machine.record.under_way.clone().unwrap();
    let at = |step| line.steps.iter().find(|(said, _)| said == step).map(|(_, at)| *at);
    assert_eq!((at("released"), at("destroyed"), at("start")), (Some(300), Some(500), Some(500)), "{line:?}");
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
}

#[test]
fn one_that_waits_and_ends_while_the_old_one_goes_does_not_get_the_place() {
    let (mut world, waits) = while_the_old_one_goes();
    world.standby.as_mut().unwrap().end = Some((reason::SHUTDOWN_CRASH, true));
    world.run(Duration::from_secs(20));
    assert!(world.is_well() && !world.acts.contains(&Act::Promote(waits)), "{:?}", world.acts);
}

#[test]
fn parked_while_the_old_one_goes_nobody_takes_the_place() {
    let mut world = World::with_standby();
    world.native = Native::Fails;
    world.acts.clear();
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.acts.len() < 2 {
        world.run(TICK);
    }
    world.ask(Order::Park).unwrap();
    world.run(Duration::from_secs(20));
    assert!(world.acts.iter().all(|act| !matches!(act, Act::Promote(_) | Act::Create)), "{:?}", world.acts);
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true));
}

#[test]
fn one_that_is_parked_or_off_has_none_that_waits() {
    for order in [Some(Order::Park), None] {
        let mut world = World::with_standby();
        match order {
            Some(order) => world.ask(order).unwrap(),
            None => world.end(reason::SHUTDOWN_POWEROFF, false),
        }
        world.run(Duration::from_secs(20));
        assert_eq!((world.domain.is_none(), world.standby.is_none()), (true, true), "{order:?}");
        world.ask(Order::Unpark).unwrap();
        world.run(Duration::from_secs(30));
        assert!(world.is_well() && world.standby.is_some());
    }
}

#[test]
fn one_that_waits_and_ends_is_replaced_but_not_at_once() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.standby.as_mut().unwrap().end = Some((reason::SHUTDOWN_CRASH, true));
    world.run(Duration::from_secs(50));
    assert!(world.is_well() && world.standby.is_none());
    world.run(Duration::from_secs(30));
    assert!(world.standby.as_ref().is_some_and(|d| d.id != waits));
}

#[test]
fn one_that_is_to_wait_and_does_not_boot_is_replaced_but_not_at_once() {
    let mut world = World::with(Settings { standby: 1, ..settings() });
    while !world.is_well() {
        world.run(TICK);
    }
    world.machine.record.image = with(Some(Flaw::NeverBoots));
    while world.standby.is_none() {
        world.run(TICK);
    }
    let hangs = world.standby.as_ref().unwrap().id;
    world.machine.record.image = Image::default();
    world.run(Duration::from_secs(19));
    assert!(world.standby.as_ref().is_some_and(|d| d.id == hangs), "it may boot still: {:?}", world.log);
    world.run(Duration::from_secs(3));
    assert!(world.standby.is_none(), "{:?}", world.acts);
    let line = format!("domain {hangs} has not booted within 20 s, and goes");
    assert_eq!(world.log.iter().filter(|said| **said == line).count(), 1, "{:?}", world.log);
    world.run(Duration::from_secs(50));
    assert!(world.standby.is_none(), "{:?}", world.acts);
    world.run(Duration::from_secs(30));
    assert_eq!((world.machine.standby(), world.count("not-ready")), (Some(true), 0), "{:?}", world.log);
}

#[test]
fn what_cannot_be_cleared_away_is_tried_on_and_keeps_nobody() {
    let mut world = World::with_standby();
    let old = world.domain.as_ref().unwrap().id;
    world.stubborn.insert(old, 11);
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(30));
    assert!(world.is_well() && world.machine.standby() == Some(true), "{:?}", world.log);
    assert_eq!(world.remains.iter().map(|d| d.id).collect::<Vec<_>>(), [old]);
    let tries = world.acts.iter().filter(|act| **act == Act::ClearAway(old)).count();
    assert_eq!(tries, 11, "seldom from then on");
    world.run(Duration::from_secs(90));
    assert!(world.remains.is_empty(), "{:?}", world.acts);
    let line = format!("what is left of domain {old} cannot be destroyed; that is tried each minute");
    assert_eq!(world.log.iter().filter(|said| **said == line).count(), 1, "{:?}", world.log);
}

#[test]
fn one_that_never_goes_keeps_what_is_left_of_no_other_one() {
    let mut world = World::with_standby();
    let old = world.domain.as_ref().unwrap().id;
    world.stubborn.insert(old, u32::MAX);
    for n in 1..4 {
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(70));
        assert!(world.is_well() && world.machine.standby() == Some(true), "{n}: {:?}", world.log);
        assert_eq!(world.remains.iter().map(|d| d.id).collect::<Vec<_>>(), [old], "{n}: {:?}", world.acts);
    }
}

#[test]
fn nobody_waits_any_more_when_the_configuration_says_so() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.settings.standby = 0;
    world.kill();
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.standby.is_none(), "{:?}", world.acts);
    assert_eq!(world.acts.iter().filter(|act| **act == Act::Dismiss(waits)).count(), 1, "{:?}", world.acts);
    // Nor is one in the way of another image.
    let mut world = World::with_standby();
    world.settings.standby = 0;
    world.kill();
    while world.machine.state() != "up" {
        world.run(TICK);
    }
    world.upgrade(None).unwrap();
    world.run(Duration::from_secs(30));
    assert!(world.is_well() && world.machine.record.image == new(), "{:?}", world.log);
}

#[test]
fn one_that_was_being_noted_when_the_configuration_changed_does_not_stay_paused() {
    let mut world = World::of(&words::NET, Settings { standby: 1, snapshot: true, ..settings() });
    while world.noting.is_none() || world.domain.is_none() {
        world.run(TICK);
    }
    let waits = world.standby.as_ref().unwrap().id;
    world.settings.snapshot = false;
    world.kill();
    assert!(world.standby.as_ref().unwrap().is_paused);
    world.run(Duration::from_secs(60));
    assert!(world.is_well() && world.machine.standby() == Some(true), "{:?}", world.log);
    assert!(world.standby.as_ref().is_some_and(|d| d.id != waits && !d.is_paused));
    assert_eq!(world.machine.record.noting, None);
}

#[test]
fn what_cannot_be_handed_over_is_started_anew() {
    let mut world = World::with_standby();
    world.native = Native::Fails;
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.machine.record.promoted.is_none() {
        world.run(TICK);
    }
    world.end(reason::SHUTDOWN_CRASH, true);
    world.run(Duration::from_secs(30));
    assert!(world.is_well(), "{:?}", world.log);
}

#[test]
fn one_whose_place_never_becomes_free_is_parked() {
    let mut world = World::with_standby();
    world.is_clung_to = true;
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(300));
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true), "{:?}", world.log);
    assert!(world.log.iter().any(|line| line.contains("it is clung to")), "{:?}", world.log);
    let tries = world.acts.iter().filter(|act| matches!(act, Act::Promote(_))).count();
    assert_eq!(u32::try_from(tries), Ok(world.settings.crashes));
    world.is_clung_to = false;
    assert!(world.ask(Order::Unpark).is_ok());
    world.run(Duration::from_secs(60));
    assert!(world.is_well(), "{:?}", world.log);
}

#[test]
fn one_that_does_not_find_its_devices_has_failed_long_before_it_is_not_ready() {
    let mut world = World::with(Settings { standby: 1, probe_s: 5, ..settings() });
    world.run(Duration::from_secs(20));
    let waits = world.standby.as_mut().unwrap();
    waits.image = with(Some(Flaw::NotReady));
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(5));
    assert_eq!(world.count("not-probed"), 0, "{:?}", world.log);
    world.run(Duration::from_secs(1));
    assert_eq!((world.count("not-probed"), world.count("not-ready")), (1, 0), "{:?}", world.log);
    assert!(
        world.log.iter().any(|line| line.contains("5 s later no driver of its had turned them on")),
        "{:?}",
        world.log
    );
    world.run(Duration::from_secs(20));
    assert!(world.is_well(), "{:?}", world.log);
}

#[test]
fn one_that_gets_the_place_while_it_boots_has_as_long_as_any_that_is_started() {
    let mut world = World::with(Settings { standby: 1, probe_s: 1, ..settings() });
    while world.standby.is_none() {
        world.run(TICK);
    }
    let boots = world.standby.as_ref().unwrap().id;
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(10));
    assert_eq!((world.count("not-probed"), world.domain.as_ref().map(|d| d.id)), (0, Some(boots)), "{:?}", world.log);
    assert!(world.is_well(), "{:?}", world.log);
    // Its standby has booted by now, and is judged.
    world.run(Duration::from_secs(20));
    world.standby.as_mut().unwrap().image = with(Some(Flaw::NotReady));
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(3));
    assert_eq!(world.count("not-probed"), 1, "{:?}", world.log);
}

#[test]
fn one_whose_link_is_up_and_that_is_connected_to_nothing_has_failed_soon() {
    let mut world = World::with(Settings { standby: 1, connect_s: 5, ..settings() });
    world.run(Duration::from_secs(20));
    world.standby.as_mut().unwrap().image = with(Some(Flaw::NotConnected));
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(5));
    assert_eq!(world.count("not-connected"), 0, "{:?}", world.log);
    world.run(Duration::from_secs(1));
    assert_eq!((world.count("not-connected"), world.count("not-ready")), (1, 0), "{:?}", world.log);
    world.run(Duration::from_secs(20));
    assert!(world.is_well(), "{:?}", world.log);
}

#[test]
fn one_that_just_meets_the_pci_back_end_gets_its_devices_afterwards() {
    let mut world = World::with(Settings { standby: 1, ..settings() });
    world.meeting = Duration::from_secs(2);
    while !world.acts.iter().any(|act| matches!(act, Act::Introduce(_))) {
        world.run(TICK);
    }
    let waits = world.standby.as_ref().unwrap().id;
    world.acts.clear();
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(1));
    assert!(
        world.acts.contains(&Act::Promote(waits)) && !world.acts.contains(&Act::HandOver(waits)),
        "{:?}",
        world.acts
    );
    world.run(Duration::from_secs(1) + TICK);
    assert!(
        world.acts.contains(&Act::HandOver(waits)) && !world.acts.contains(&Act::Attach(waits)),
        "{:?}",
        world.acts
    );
    world.run(Duration::from_secs(5));
    assert!(world.is_well(), "{:?}", world.log);
}

#[test]
fn one_that_is_paused_or_has_ended_is_not_said_to_wait() {
    let mut world = World::with_standby();
    for (is_paused, is_ready) in [(true, false), (false, true)] {
        world.standby.as_mut().unwrap().is_paused = is_paused;
        world.run(TICK);
        assert_eq!(world.machine.standby(), Some(is_ready));
    }
    world.standby.as_mut().unwrap().end = Some((reason::SHUTDOWN_CRASH, false));
    world.run(TICK);
    assert_eq!(world.machine.standby(), Some(false));
}

#[test]
fn a_toolstack_that_hangs_on_one_that_waits_keeps_nobody_from_the_place() {
    for snapshot in [false, true] {
        let mut world = World::with(Settings { standby: 1, snapshot, ..settings() });
        world.run(Duration::from_secs(20));
        world.standby.as_mut().unwrap().end = Some((reason::SHUTDOWN_CRASH, false));
        world.hangs = 1;
        world.run(Duration::from_secs(10));
        let waited = world.hung.expect("it is being destroyed");
        let from = world.now;
        world.end(reason::SHUTDOWN_CRASH, false);
        while !world.is_well() || world.count("recovered") < 2 {
            world.run(TICK);
            assert!(world.now < from + Duration::from_secs(60) || snapshot, "{:?} {:?}", world.acts, world.log);
            assert!(world.now < from + Duration::from_secs(400), "{:?} {:?}", world.acts, world.log);
        }
        world.run(Duration::from_secs(400));
        assert!(world.is_well() && world.standby.as_ref().is_some_and(|d| d.id != waited && !d.is_paused));
    }
}

#[test]
fn a_creation_that_takes_long_keeps_the_next_failure_from_nothing_but_a_creation() {
    let mut world = World::with(Settings { standby: 1, ..settings() });
    while world.acts.last() != Some(&Act::CreateStandby) {
        world.run(TICK);
    }
    world.is_locked = true;
    world.run(Duration::from_secs(300));
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(10));
    assert!(world.domain.is_none() && world.acts.ends_with(&[Act::Quarantine(1), Act::Destroy(1)]), "{:?}", world.acts);
    world.is_locked = false;
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.domain.as_ref().is_some_and(|d| d.id == 2), "{:?}", world.log);
}
