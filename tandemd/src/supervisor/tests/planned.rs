//! One that is replaced though nothing is wrong with it: it is old, or short of memory.

use super::*;
use crate::supervisor::files::MissingFiles;

const MINUTE: Duration = Duration::from_secs(60);

fn aging() -> Settings {
    Settings { renew_s: 300, ..settings() }
}

fn sparing() -> Settings {
    Settings { least_free_kib: 4096, renew_pause_s: 600, ..settings() }
}

/// How often it was replaced for that, within this time, while it tells of so much memory whenever it is there.
fn replaced_within(world: &mut World, time: Duration, kib: Option<u64>) -> u64 {
    let (before, until) = (world.count("short-of-memory"), world.now + time);
    while world.now < until {
        world.domain.iter_mut().for_each(|d| d.available_kib = kib);
        world.run(TICK);
    }
    world.count("short-of-memory") - before
}

#[test]
fn one_that_is_old_is_replaced_in_peace_and_that_is_held_against_nobody() {
    for settings in [
        aging(),
        Settings { standby: 1, ..aging() },
        Settings { snapshot: true, ..aging() },
        Settings { standby: 1, snapshot: true, ..aging() },
    ] {
        let mut world = World::with(settings);
        world.run(5 * MINUTE);
        assert_eq!((world.count("aged"), world.is_well()), (0, true), "{:?}", world.log);
        world.acts.clear();
        world.run(MINUTE);
        assert_eq!((world.count("aged"), world.is_well()), (1, true), "{:?}", world.log);
        assert!(matches!(world.acts[0], Act::Drain(_)), "{:?}", world.acts);
        world.run(60 * MINUTE);
        while !world.is_well() && world.now < 90 * MINUTE {
            world.run(TICK);
        }
        assert!((10..=13).contains(&world.count("aged")), "{:?}", world.machine.record.counts);
        assert_eq!((world.machine.record.failures.len(), world.is_well()), (0, true), "{:?}", world.log);
        assert!(world.log.iter().any(|line| line.contains("it has been there for 300 s")), "{:?}", world.log);
    }
}

#[test]
fn who_is_old_stays_as_long_as_no_other_one_could_be_created() {
    for (settings, is_replaced) in
        [(aging(), false), (Settings { standby: 1, ..aging() }, true), (Settings { snapshot: true, ..aging() }, true)]
    {
        let mut world = World::with(settings);
        world.run(MINUTE);
        world.missing.config = Some("its kernel /boot/vmlinuz is no file any more".into());
        world.run(6 * MINUTE);
        assert_eq!((world.count("aged") > 0, world.is_well()), (is_replaced, true), "{:?}", world.log);
        if is_replaced {
            continue;
        }
        let said = |line: &&String| line.contains("should be replaced") && line.contains("/boot/vmlinuz");
        assert_eq!(world.log.iter().filter(said).count(), 1, "{:?}", world.log);
        let why = world.ask(Order::Restart).unwrap_err();
        assert!(why.contains("/boot/vmlinuz") && world.is_well(), "{why}");
        world.missing = MissingFiles::default();
        world.run(MINUTE);
        assert_eq!((world.count("aged"), world.is_well()), (1, true), "{:?}", world.log);
    }
}

#[test]
fn that_nobody_could_follow_is_said_at_once_and_once() {
    let ways = [settings(), Settings { standby: 1, ..settings() }, Settings { snapshot: true, ..settings() }];
    for (settings, is_said) in ways.into_iter().zip([true, false, false]) {
        let mut world = World::with(settings);
        world.run(MINUTE);
        assert_eq!(world.machine.not_replaceable(), None);
        world.missing.config = Some("its kernel /boot/vmlinuz is no file any more".into());
        world.run(TICK * 2);
        let said = |world: &World, words: &str| world.log.iter().filter(|line| line.contains(words)).count();
        assert_eq!(said(&world, "if it failed now: its kernel /boot/vmlinuz") > 0, is_said, "{:?}", world.log);
        world.run(10 * MINUTE);
        assert_eq!(said(&world, "/boot/vmlinuz"), usize::from(is_said), "{:?}", world.log);
        assert_eq!((world.machine.not_replaceable().is_some(), world.is_well()), (is_said, true));
        world.missing = MissingFiles::default();
        world.run(MINUTE);
        assert_eq!(said(&world, "could be created again"), usize::from(is_said), "{:?}", world.log);
        assert_eq!(world.machine.not_replaceable(), None);
    }
}

#[test]
fn it_waits_for_a_kernel_that_is_gone_and_is_not_parked() {
    for settings in [settings(), Settings { snapshot: true, ..settings() }] {
        let mut world = World::with(settings);
        world.missing.config = Some("its kernel /boot/vmlinuz is no file any more".into());
        world.run(60 * MINUTE);
        assert_eq!((world.nr_domains, world.count("not-started")), (0, 0), "{:?}", world.log);
        assert_eq!((world.machine.record.mode, world.machine.state()), (Mode::Run, "waiting"), "{:?}", world.log);
        assert!(world.machine.not_replaceable().unwrap().contains("/boot/vmlinuz"));
        let said = world.log.iter().filter(|line| line.contains("waits for what it is made of: its kernel")).count();
        assert_eq!(said, 1, "{:?}", world.log);
        world.missing = MissingFiles::default();
        world.run(MINUTE);
        assert!(world.is_well() && world.machine.not_replaceable().is_none(), "{:?}", world.log);
    }
}

#[test]
fn its_age_is_known_to_the_next_daemon_and_begins_anew_with_the_next_instance() {
    let mut world = World::with(aging());
    world.run(4 * MINUTE);
    let age = world.machine.age(world.now).unwrap();
    assert!(age > 3 * MINUTE, "{age:?}");
    world.kill();
    world.run(TICK * 20);
    assert!(world.machine.age(world.now).unwrap() > age);
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(4 * MINUTE);
    assert_eq!((world.count("aged"), world.is_well()), (0, true), "{:?}", world.log);
    world.run(2 * MINUTE);
    assert_eq!(world.count("aged"), 1);
}

#[test]
fn nobody_is_replaced_for_its_age_while_something_else_is_under_way() {
    // An upgrade whose new one never boots.
    let mut world = World::with(Settings { ready_s: 400, ..aging() });
    world.run(4 * MINUTE);
    world.upgrade(Some(Flaw::NeverBoots)).unwrap();
    world.run(6 * MINUTE);
    assert_eq!((world.count("aged"), world.machine.upgrading().is_some()), (0, true), "{:?}", world.log);
    world.run(2 * MINUTE);
    assert_eq!((world.count("aged"), world.machine.record.refused.is_empty()), (1, false), "{:?}", world.log);
    // One that the operator has paused.
    let mut world = World::with(aging());
    world.run(4 * MINUTE);
    world.domain.as_mut().unwrap().is_paused = true;
    world.run(6 * MINUTE);
    assert_eq!(world.count("aged"), 0);
    world.domain.as_mut().unwrap().is_paused = false;
    world.run(MINUTE);
    assert_eq!((world.count("aged"), world.is_well()), (1, true), "{:?}", world.log);
}

#[test]
fn one_that_is_old_stays_until_another_one_waits_but_not_for_ever() {
    let mut world = World::with(Settings { standby: 1, ..aging() });
    world.run(MINUTE);
    // Those that are made from now on do not boot.
    world.is_broken = true;
    world.standby = None;
    world.run(13 * MINUTE);
    assert_eq!((world.count("aged"), world.is_well()), (0, true), "{:?}", world.log);
    world.is_broken = false;
    world.run(3 * MINUTE);
    assert_eq!((world.count("aged"), world.is_well()), (1, true), "{:?}", world.log);
}

#[test]
fn one_that_is_short_of_memory_for_long_is_replaced() {
    let mut world = World::with(sparing());
    world.run(MINUTE);
    assert_eq!(replaced_within(&mut world, MINUTE, None), 0, "it tells nothing");
    assert_eq!(replaced_within(&mut world, MINUTE, Some(4096)), 0, "it has enough");
    for _ in 0..5 {
        assert_eq!(replaced_within(&mut world, 9 * TICK * 10, Some(4095)), 0, "for a moment");
        assert_eq!(replaced_within(&mut world, TICK, Some(5000)), 0);
    }
    world.acts.clear();
    assert_eq!(replaced_within(&mut world, 11 * TICK * 10, Some(1000)), 1);
    assert!(matches!(world.acts[0], Act::Drain(_)), "{:?}", world.acts);
    world.run(MINUTE);
    assert_eq!((world.is_well(), world.machine.record.failures.len()), (true, 0));
    assert!(world.log.iter().any(|line| line.contains("less than 4096 KiB") && line.contains("1000 now")));
    // Nobody asks.
    let mut world = World::up();
    assert_eq!(replaced_within(&mut world, 5 * MINUTE, Some(0)), 0);
}

#[test]
fn one_that_is_always_short_of_memory_is_replaced_more_and_more_rarely() {
    let mut world = World::with(sparing());
    world.run(MINUTE);
    let mut gaps = Vec::new();
    let mut last = None;
    while gaps.len() < 4 {
        if replaced_within(&mut world, Duration::from_secs(10), Some(7)) > 0 {
            gaps.extend(last.replace(world.now).map(|last| (world.now - last).as_secs() / 60));
            if gaps.len() == 2 {
                world.kill();
            }
        }
    }
    assert_eq!(gaps, [10, 20, 40, 80]);
    let told = world.log.iter().filter(|line| line.contains("it is short of memory again")).count();
    assert!((4..=6).contains(&told), "{:?}", world.log);
    // It was enough for long: that is forgotten.
    assert_eq!(replaced_within(&mut world, 400 * MINUTE, Some(5000)), 0);
    assert_eq!(replaced_within(&mut world, MINUTE, Some(7)), 1);
    assert_eq!(replaced_within(&mut world, 9 * MINUTE, Some(7)), 0);
    assert_eq!(replaced_within(&mut world, 2 * MINUTE, Some(7)), 1);
}

#[test]
fn no_time_is_longer_than_a_year() {
    let all = ["within", "ready", "probe", "connect", "renew", "least-free", "renew-pause", "twind"];
    let all = all.map(|name| (format!("{name}-s"), 365 * 24 * 3600)).into_iter();
    let in_ms = ["back-off", "wedged", "undrained", "overdue", "silent"]
        .map(|name| (format!("{name}-ms"), 365 * 24 * 3600 * 1000));
    for (key, most) in all.chain(in_ms) {
        let said = |value: u64| {
            let text = format!("config = \"/nowhere/dd.cfg\"\n{key} = {value}");
            format!("{:#}", toml::from_str::<Settings>(&text).unwrap().claims("dd").unwrap_err())
        };
        assert!(said(most).contains("/nowhere/dd.cfg"), "{}", said(most));
        for longer in [most + 1, i64::MAX.unsigned_abs(), u64::MAX] {
            assert_eq!(said(longer), format!("`{key} = {longer}`: that is longer than a year"));
        }
    }
}

#[test]
fn what_says_nothing_is_refused() {
    let refused = |line: &str| {
        let said = format!("config = \"/nowhere/dd.cfg\"\n{line}");
        format!("{:#}", toml::from_str::<Settings>(&said).unwrap().claims("dd").unwrap_err())
    };
    for (line, words) in [
        ("renew-s = 59", "60 is the least"),
        ("renew-pause-s = 0", "without an end"),
        ("twin = true\ntwind-s = 9", "10 is the least"),
        ("twin = true\ntwind-s = 0\ntwin-aborts = 9", "/nowhere/dd.cfg"),
        ("least-free-kib = 1\nleast-free-s = 0\nrenew-s = 60", "/nowhere/dd.cfg"),
    ] {
        assert!(refused(line).contains(words), "{line}: {}", refused(line));
    }
}
