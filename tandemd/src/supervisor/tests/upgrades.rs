//! Another image takes the place of the one that runs, or is refused.

use super::world::*;
use crate::device::Device;
use crate::supervisor::files::MissingFiles;
use crate::supervisor::look::Act;
use crate::supervisor::record::Mode;
use crate::supervisor::settings::Settings;
use control::{Image, Order};
use std::time::Duration;
use xen_abi::sched as reason;

#[test]
fn a_new_image_is_noted_and_the_old_instance_comes_back_if_it_is_refused() {
    for flaw in [None, Some(Flaw::NotReady)] {
        let mut world = World::with_snapshot();
        world.upgrade(flaw).unwrap();
        while world.machine.record.upgrades == 0 {
            world.run(TICK);
        }
        world.run(Duration::from_secs(20));
        assert!(world.is_well() && world.remains.is_empty() && world.candidate.is_none(), "{:?}", world.acts);
        let id = if flaw.is_none() { 2 } else { 1 };
        assert_eq!(world.domain.as_ref().unwrap().id, id, "{:?} {:?}", world.acts, world.machine.record.refused);
        assert_eq!((world.nr_domains, world.machine.snapshot()), (2, Some(true)));
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(20));
        assert!(world.is_well() && world.domain.as_ref().unwrap().id == id && world.nr_domains == 2);
    }
}

#[test]
fn one_of_a_new_image_takes_the_place_when_it_has_booted() {
    for standby in [0, 1] {
        let mut world = World::with(Settings { standby, ..settings() });
        world.run(Duration::from_secs(20));
        let old = world.domain.as_ref().unwrap().id;
        world.acts.clear();
        world.upgrade(None).unwrap();
        assert!(world.upgrade(None).unwrap_err().contains("under way"));
        while world.machine.record.upgrades == 0 {
            world.run(TICK);
        }
        let is_of_standby = |act: &Act| matches!(act, Act::Dismiss(_) | Act::CreateStandby | Act::ClearAway(_));
        let acts: Vec<Act> = world.acts.iter().copied().filter(|act| !is_of_standby(act)).collect();
        let new_one = world.domain.as_ref().unwrap().id;
        let replaced =
            [Act::Drain(old), Act::Quarantine(old), Act::Take(old), Act::Promote(new_one), Act::HandOver(new_one)];
        assert_eq!(acts, [&[Act::CreateCandidate], &replaced[..]].concat(), "{:?}", world.log);
        let line = world.machine.record.last.last().unwrap();
        assert!(line.starts_with("upgrade: ") && line.contains("handed over"), "{line}");
        assert!(world.machine.record.outage < 3000, "it had booted before: {line}");
        assert_eq!((world.machine.record.refused.as_str(), &world.machine.record.image), ("", &new()));
        world.run(Duration::from_secs(20));
        assert!(world.is_well() && world.machine.record.failures.is_empty());
        assert_eq!(world.standby.as_ref().map(|d| d.image.clone()), (standby == 1).then(new));
        // What fails later comes back of the new image, by the next daemon too.
        world.kill();
        world.domain = None;
        world.run(Duration::from_secs(20));
        assert!(world.is_well() && world.domain.as_ref().unwrap().image == new());
        let look = world.look();
        world.machine.upgrade(Image::default(), true, &look).unwrap();
        let upgrade = world.machine.record.upgrade.as_ref().unwrap();
        assert_eq!(upgrade.to, Image::default(), "as configured is without what was said before");
    }
}

#[test]
fn an_image_that_is_of_no_use_is_refused_and_the_old_one_stays_or_comes_back() {
    for (flaw, words, is_disturbed) in [
        (Flaw::NotCreated, "no kernel", false),
        (Flaw::NeverBoots, "not booted within 20 s", false),
        (Flaw::Panics, "ended while it booted", false),
        (Flaw::NotReady, "of the new one: its interface was not there", true),
        (Flaw::NotReceiving, "of the new one: nothing has come by it within 60 s", true),
        (Flaw::NotProbed, "30 s later no driver of its had turned them on", true),
    ] {
        for standby in [0, 1] {
            let mut world = World::with(Settings { standby, ..settings() });
            world.run(Duration::from_secs(20));
            let old = world.domain.as_ref().unwrap().id;
            world.upgrade(Some(flaw)).unwrap();
            world.run(Duration::from_secs(100));
            let record = &world.machine.record;
            assert_eq!((record.upgrades, &record.image), (1, &Image::default()), "{flaw:?} {:?}", world.log);
            assert!(record.refused.contains(words), "{flaw:?}: {}", record.refused);
            assert!(world.log.iter().any(|line| line.contains("the upgrade is refused: ")));
            assert!(record.failures.is_empty(), "it is not held against the old image");
            assert!(world.is_well() && world.candidate.is_none());
            let domain = world.domain.as_ref().unwrap();
            assert_eq!((domain.id != old, &domain.image), (is_disturbed, &Image::default()), "{flaw:?}");
            assert_eq!(world.standby.is_some(), standby == 1, "{flaw:?}");
        }
    }
}

#[test]
fn where_nothing_came_before_an_image_need_not_show_that_something_comes() {
    for came_before in [false, true] {
        let mut world = World::up();
        let ours = world.domain.as_mut().unwrap();
        ours.does = if came_before { Does::Its } else { Does::IsDeaf };
        world.upgrade(Some(Flaw::NotReceiving)).unwrap();
        world.run(Duration::from_secs(100));
        let record = &world.machine.record;
        assert_eq!((record.upgrades, record.refused.is_empty()), (1, !came_before), "{:?}", world.log);
        assert!(came_before || record.last.last().unwrap().contains("interface"), "{:?}", record.last);
    }
}

#[test]
fn an_image_through_which_nothing_comes_is_refused_by_the_next_daemon_too() {
    let mut world = World::up();
    world.upgrade(Some(Flaw::NotReceiving)).unwrap();
    while world.domain.as_ref().is_none_or(|d| d.does != Does::IsDeaf) {
        world.run(TICK);
    }
    world.run(Duration::from_secs(10));
    world.kill();
    world.run(Duration::from_secs(45));
    assert_eq!(world.machine.record.upgrades, 0, "{:?}", world.log);
    world.run(Duration::from_secs(40));
    let record = &world.machine.record;
    assert!(world.is_well() && record.image == Image::default(), "{:?}", world.log);
    assert_eq!((world.count("nothing-came"), record.failures.len()), (1, 0));
}

#[test]
fn what_happens_to_the_old_one_or_is_ordered_meanwhile_calls_an_upgrade_off() {
    type Meanwhile = fn(&mut World);
    let all: [(Meanwhile, &str); 3] = [
        (|w| w.end(reason::SHUTDOWN_CRASH, false), "of the old one, meanwhile"),
        (|w| w.ask(Order::Restart).unwrap(), "something else"),
        (|w| w.ask(Order::Park).unwrap(), "something else"),
    ];
    for (meanwhile, words) in all {
        let mut world = World::up();
        world.upgrade(None).unwrap();
        world.run(Duration::from_secs(2));
        assert!(world.candidate.is_some() && world.machine.upgrading().is_some());
        meanwhile(&mut world);
        world.run(Duration::from_secs(30));
        let record = &world.machine.record;
        assert!(record.refused.contains(words), "{}", record.refused);
        assert_eq!((world.candidate.is_none(), &record.image), (true, &Image::default()));
        assert!(world.is_well() || record.mode == Mode::Parked);
        if record.mode == Mode::Parked {
            assert!(world.upgrade(None).unwrap_err().contains("it is parked"));
        }
    }
}

/// A world in which an upgrade has brought another image, whose kernel was then deleted.
fn bereft_of_its_kernel() -> World {
    let mut world = World::up();
    world.upgrade(None).unwrap();
    while world.machine.record.upgrades == 0 {
        world.run(TICK);
    }
    world.run(Duration::from_secs(20));
    assert_eq!(world.machine.record.image, new());
    world.missing = MissingFiles { image: Some("its kernel /boot/new is no file any more".into()), config: None };
    world
}

#[test]
fn one_whose_image_is_gone_is_started_as_it_is_configured() {
    let mut world = bereft_of_its_kernel();
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(20));
    assert!(world.is_well(), "{:?}", world.log);
    assert_eq!(world.domain.as_ref().unwrap().image, Image::default());
    assert_eq!(world.machine.record.image, Image::default());
    assert_eq!(world.log.iter().filter(|line| line.contains("/boot/new")).count(), 1, "{:?}", world.log);
}

#[test]
fn what_upgrades_have_brought_can_be_forgotten_while_there_is_none() {
    let mut world = bereft_of_its_kernel();
    world.ask(Order::Park).unwrap();
    world.run(Duration::from_secs(20));
    assert_eq!(world.machine.record.mode, Mode::Parked);
    let look = world.look();
    assert!(world.machine.upgrade(new(), false, &look).unwrap_err().contains("--as-configured"));
    let upgrades = world.machine.record.upgrades;
    world.machine.upgrade(Image::default(), true, &look).unwrap();
    let record = &world.machine.record;
    assert_eq!((&record.image, record.upgrades, &record.upgrade), (&Image::default(), upgrades + 1, &None));
    world.missing = MissingFiles::default();
    world.ask(Order::Unpark).unwrap();
    world.run(Duration::from_secs(20));
    assert!(world.is_well(), "{:?}", world.log);
}

#[test]
fn an_upgrade_for_which_nobody_makes_room_is_refused_and_all_stays_as_it_was() {
    let mut world = World::with_standby();
    world.hangs = 1;
    world.upgrade(None).unwrap();
    world.run(Duration::from_secs(59));
    assert_eq!((world.machine.record.upgrades, world.hung), (0, Some(2)));
    world.run(Duration::from_secs(3));
    let record = &world.machine.record;
    assert_eq!((record.upgrades, &record.image), (1, &Image::default()));
    assert!(record.refused.contains("the one that waits has to go first"), "{}", record.refused);
    world.run(HANGS + Duration::from_secs(90));
    assert!(world.is_well() && world.domain.as_ref().is_some_and(|d| d.id == 1), "{:?}", world.log);
    assert!(world.machine.standby() == Some(true) && world.nr_domains == 3, "{:?}", world.log);
}

/// It has the card of the service for which it is looked after, and not what another service's disks are on.
#[test]
fn an_image_that_leaves_another_services_disk_is_refused_though_packets_come_by_it() {
    let disk = |guest| Device { guest, number: 51712 };
    for is_served in [true, false] {
        let mut world = World::up();
        world.disks = vec![disk(7), disk(8)];
        world.lacks_disks = if is_served { Vec::new() } else { vec![disk(8)] };
        world.upgrade(None).unwrap();
        world.run(Duration::from_secs(100));
        let record = &world.machine.record;
        let image = if is_served { new() } else { Image::default() };
        assert_eq!((record.upgrades, &record.image), (1, &image), "{:?}", world.log);
        assert_eq!(world.count("leaves-disk"), u64::from(!is_served));
        let words = "of the new one: vbd 51712 of domain 8, which the old one served, is not served within 60 s";
        assert_eq!(record.refused, if is_served { "" } else { words });
        assert!(world.is_well() && record.failures.is_empty());
    }
}

/// It finds one of two cards.
#[test]
fn an_image_by_which_another_service_has_no_way_out_is_refused_though_packets_come_by_it() {
    for is_whole in [true, false] {
        let mut world = World::up();
        world.far = Some("far".into());
        world.lacks_far = !is_whole;
        world.run(TICK);
        world.upgrade(None).unwrap();
        world.run(Duration::from_secs(100));
        let record = &world.machine.record;
        let image = if is_whole { new() } else { Image::default() };
        assert_eq!((record.upgrades, &record.image), (1, &image), "{:?}", world.log);
        assert_eq!(world.count("leaves-way"), u64::from(!is_whole));
        let words = "of the new one: far, whose way out the old one was, has none within 60 s";
        assert_eq!(record.refused, if is_whole { "" } else { words });
        assert!(world.is_well() && record.failures.is_empty());
    }
}
