//! The machine in a world of its own ([`world`]): a driver domain that fails in every way.

mod beside;
mod desk;
mod destroyed;
mod disks;
mod others;
mod planned;
mod snapshots;
mod standby;
mod twins;
mod upgrades;
mod world;

use super::look::{Act, Errand, Look};
use super::record::Mode;
use super::settings::Settings;
use super::words;
use control::{Image, Order};
use proptest::prelude::*;
use std::time::Duration;
use world::*;
use xen_abi::sched as reason;

#[test]
fn it_is_started_and_started_again_however_it_ends() {
    type End = fn(&mut World);
    let ends: [(&str, End); 9] = [
        ("panicked", |w| w.end(reason::SHUTDOWN_CRASH, false)),
        ("out-of-memory", |w| {
            w.domain.as_mut().unwrap().is_out_of_memory = true;
            w.end(reason::SHUTDOWN_CRASH, false);
        }),
        ("crashed", |w| w.end(reason::SHUTDOWN_CRASH, true)),
        ("watchdog", |w| w.end(reason::SHUTDOWN_WATCHDOG, false)),
        ("rebooted", |w| w.end(reason::SHUTDOWN_REBOOT, false)),
        ("destroyed", |w| w.domain = None),
        ("wedged", |w| w.domain.as_mut().unwrap().does = Does::Spins),
        ("dma-fault", |w| w.domain.as_mut().unwrap().does = Does::Strays),
        ("restart", |w| w.ask(Order::Restart).unwrap()),
    ];
    for (name, end) in ends {
        let mut world = World::up();
        let before = world.domain.as_ref().unwrap().id;
        end(&mut world);
        world.run(Duration::from_secs(10));
        assert!(world.is_well(), "{name}: {} {:?}", world.machine.state(), world.log);
        assert_ne!(world.domain.as_ref().unwrap().id, before);
        assert_eq!((world.count(name), world.count("recovered")), (1, 2), "{name}: {:?}", world.machine.record);
        let line = world.machine.record.last.last().unwrap();
        assert!(line.starts_with(name) && line.contains("first packet in"), "{line}");
    }
}

#[test]
fn it_is_told_how_long_nobody_had_noticed() {
    for (cause, least, most) in
        [("panicked", 100, 100), ("out-of-memory", 100, 100), ("wedged", 500, 600), ("dma-fault", 100, 200)]
    {
        let mut world = World::up();
        world.domain.as_mut().unwrap().is_out_of_memory = cause == "out-of-memory";
        match cause {
            "dma-fault" => world.domain.as_mut().unwrap().does = Does::Strays,
            "wedged" => world.domain.as_mut().unwrap().does = Does::Spins,
            _ => world.end(reason::SHUTDOWN_CRASH, false),
        }
        world.run(Duration::from_secs(10));
        let line = world.machine.record.last.last().unwrap();
        let noticed = line.strip_prefix(&format!("{cause}: noticed ")).and_then(|rest| rest.split(' ').next());
        let noticed: u64 = noticed.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        assert!((least..=most).contains(&noticed), "{line}");
        assert!(world.machine.record.outage > noticed, "{line}");
    }
}

#[test]
fn one_that_fails_again_before_its_twin_has_come_is_waited_for_anew() {
    let mut world = World::with(Settings { twin: true, ..settings() });
    world.run(Duration::from_secs(80));
    assert_eq!((world.count("recovered"), world.machine.record.outage), (1, 0), "it was started: {:?}", world.log);
    let mut outages = Vec::new();
    for failures in [1, 2] {
        let before = world.machine.record.outage;
        for _ in 0..failures {
            world.end(reason::SHUTDOWN_CRASH, false);
            world.run(Duration::from_secs(10));
            // Packets come, and the twin does not.
            assert!(world.is_well() && world.machine.record.under_way.is_some(), "{:?}", world.log);
        }
        world.run(Duration::from_secs(70));
        assert!(world.machine.record.under_way.is_none());
        outages.push(world.machine.record.outage - before);
    }
    assert_eq!(world.count("recovered"), 3, "{:?}", world.log);
    assert!(outages[1] >= 2 * outages[0], "both are counted, and the second start is put off: {outages:?}");
    let line = world.machine.record.last.last().unwrap();
    assert_eq!(line.matches("first packet in").count(), 2, "{line}");
}

#[test]
fn one_that_has_just_begun_hears_orders_after_its_first_step() {
    let mut world = World::up();
    for _ in 0..2 {
        world.kill();
        let look = world.look();
        assert!(!world.machine.hears(&look));
        // An earlier daemon's toolstack may take long: that is said.
        assert!(world.machine.hears(&Look { errand: Errand::Runs, ..look.clone() }));
        assert_eq!(world.machine.next(&look), None);
        assert!(world.machine.hears(&look));
        assert!(world.machine.command(Order::Park, &look).is_ok());
    }
}

#[test]
fn an_order_does_not_keep_what_became_of_a_process_from_who_waits_for_that() {
    let mut world = World::with(Settings { standby: 1, ..settings() });
    while world.acts.last() != Some(&Act::CreateStandby) {
        world.run(TICK);
    }
    world.stubborn.insert(1, 1);
    // As the daemon does: it looks, hears, and does.
    let mut is_heard = false;
    let refused = Errand::Done(Err("there is no memory".into()));
    loop {
        world.pass();
        let mut look = world.look();
        let is_over = look.side != Errand::Runs;
        if is_over && look.side != Errand::None {
            look.side = refused.clone();
        }
        let mut act = None;
        if is_over && world.machine.hears(&look) {
            act = world.machine.command(Order::Park, &look).unwrap();
            is_heard = true;
        }
        while let Some(next) = act.take().or_else(|| world.machine.next(&look)) {
            world.take(next);
            look = world.look();
        }
        world.log.append(&mut world.machine.said);
        if is_heard {
            break;
        }
    }
    world.run(Duration::from_secs(10));
    let said = |what: &str| world.log.iter().any(|line| line.contains(what));
    assert!(said("the one that is to wait cannot be made") && said(": there is no memory"), "{:?}", world.log);
    assert!(
        said("xl destroy: it stays") && !said("it goes on without; that is tried again after 60 s: it stays"),
        "{:?}",
        world.log
    );
}

#[test]
fn it_stops_before_anything_is_taken_from_it() {
    let mut world = World::up();
    world.acts.clear();
    world.domain.as_mut().unwrap().does = Does::Spins;
    world.run(Duration::from_secs(10));
    assert_eq!(world.acts, [Act::Quarantine(1), Act::Destroy(1), Act::Create]);
}

#[test]
fn one_that_waits_meets_the_pci_back_end_once_and_before_it_is_needed() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    let met = |world: &World| world.acts.iter().filter(|act| **act == Act::Introduce(waits)).count();
    assert_eq!((met(&world), world.acts.contains(&Act::Promote(waits))), (1, false), "{:?}", world.acts);
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(20));
    assert!(world.is_well() && world.domain.as_ref().is_some_and(|d| d.id == waits));
    let next = world.standby.as_ref().unwrap().id;
    assert!(met(&world) == 1 && world.acts.contains(&Act::Introduce(next)), "{:?}", world.acts);
    assert!(!World::with_snapshot().acts.iter().any(|act| matches!(act, Act::Introduce(_))), "it is noted without");
}

#[test]
fn one_that_is_replaced_for_no_fault_of_its_own_sends_what_it_has() {
    let mut world = World::up();
    world.acts.clear();
    let began = world.now;
    world.ask(Order::Restart).unwrap();
    assert_eq!(world.acts, [Act::Drain(1)]);
    // Killed while it does so: it goes all the same.
    world.kill();
    while world.acts.len() < 2 {
        world.run(TICK);
    }
    assert!(world.acts[1] == Act::Quarantine(1) && world.now >= began + TICK);
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
    world.acts.clear();
    world.domain.as_mut().unwrap().is_paused = true;
    world.end(reason::SHUTDOWN_CRASH, false);
    world.ask(Order::Restart).unwrap();
    assert_eq!(world.acts, [Act::Quarantine(2)], "one that has ended sends nothing");
}

#[test]
fn one_whose_toolstack_waits_for_others_has_not_failed() {
    for snapshot in [false, true] {
        let mut world = World::with(Settings { snapshot, ..settings() });
        world.is_locked = true;
        world.run(Duration::from_secs(1000));
        assert_eq!((world.machine.state(), world.nr_domains), ("starting", 0), "{:?}", world.log);
        world.is_locked = false;
        world.run(Duration::from_secs(20));
        assert!(world.is_well() && world.machine.record.failures.is_empty(), "{:?}", world.log);
        let failed = ["not-started", "not-ready"].map(|cause| world.count(cause));
        assert_eq!((world.nr_domains, failed), (1, [0, 0]), "{:?}", world.acts);
    }
}

#[test]
fn who_is_busy_or_gets_no_time_is_left_alone() {
    let mut world = World::up();
    world.acts.clear();
    world.run(Duration::from_secs(300));
    world.domain.as_mut().unwrap().is_paused = true;
    world.run(Duration::from_secs(300));
    world.domain.as_mut().unwrap().is_paused = false;
    world.run(Duration::from_secs(300));
    assert_eq!(world.acts, []);
    // What happens to it meanwhile is seen.
    world.domain.as_mut().unwrap().is_paused = true;
    world.run(TICK);
    world.end(reason::SHUTDOWN_CRASH, true);
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.count("crashed") == 1, "{:?}", world.log);
}

#[test]
fn one_that_is_paused_while_it_comes_is_left_alone_and_has_its_time_afterwards() {
    let mut world = World::new();
    world.run(Duration::from_secs(2));
    assert_eq!(world.machine.state(), "starting", "{:?}", world.log);
    // Its driver is waited for for less long.
    let mut waited = World::with(Settings { standby: 1, probe_s: 5, connect_s: 5, ..settings() });
    waited.run(Duration::from_secs(20));
    waited.end(reason::SHUTDOWN_CRASH, false);
    while !waited.acts.iter().any(|act| matches!(act, Act::HandOver(_))) {
        waited.pass();
        waited.step(None);
    }
    for mut world in [world, waited] {
        let id = world.domain.as_ref().unwrap().id;
        for _ in 0..2 {
            world.domain.as_mut().unwrap().is_paused = true;
            world.run(Duration::from_secs(300));
            world.domain.as_mut().unwrap().is_paused = false;
            world.run(TICK);
        }
        world.run(Duration::from_secs(10));
        assert!(world.is_well() && world.domain.as_ref().unwrap().id == id, "{:?} {:?}", world.acts, world.log);
        assert!(["not-ready", "not-probed", "not-connected"].iter().all(|cause| world.count(cause) == 0));
    }
}

#[test]
fn one_that_the_operator_shuts_down_rests_until_somebody_starts_it() {
    let mut world = World::up();
    world.end(reason::SHUTDOWN_POWEROFF, false);
    world.run(Duration::from_secs(100));
    assert_eq!((world.machine.state(), world.domain.is_none()), ("off", true));
    world.kill();
    world.run(Duration::from_secs(10));
    assert_eq!(world.machine.state(), "off", "the next daemon knows");
    world.add_domain();
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
    world.domain = None;
    world.run(Duration::from_secs(10));
    assert!(world.is_well(), "it is looked after again");
}

#[test]
fn one_that_was_shut_down_with_the_machine_comes_with_it() {
    for order in [None, Some(Order::Park)] {
        let mut world = World::up();
        order.into_iter().for_each(|order| world.ask(order).unwrap());
        world.end(reason::SHUTDOWN_POWEROFF, false);
        world.run(Duration::from_secs(10));
        // Whatever becomes of the daemon meanwhile.
        world.kill();
        world.run(Duration::from_secs(10));
        assert_eq!(world.machine.state(), if order.is_some() { "parked" } else { "off" });
        world.machine_starts_anew();
        world.run(Duration::from_secs(10));
        assert_eq!((world.is_well(), world.machine.state() == "parked"), (order.is_none(), order.is_some()));
    }
}

#[test]
fn one_that_was_shut_down_with_all_others_comes_when_that_is_over() {
    for (is_killed, order) in [(false, None), (true, None), (false, Some(Order::Park)), (false, Some(Order::Restart))] {
        let mut world = World::with_standby();
        world.are_all_ended = true;
        world.end(reason::SHUTDOWN_POWEROFF, false);
        world.run(Duration::from_secs(10));
        assert_eq!((world.machine.state(), world.domain.is_none()), ("off", true), "{:?}", world.log);
        if is_killed {
            world.kill();
        }
        world.run(Duration::from_secs(100));
        assert_eq!((world.domain.is_none(), world.standby.is_none()), (true, true), "who ends them waits for names");
        order.into_iter().for_each(|order| world.ask(order).unwrap());
        world.are_all_ended = false;
        world.run(Duration::from_secs(20));
        let expected = if order == Some(Order::Park) { "parked" } else { "up" };
        assert_eq!((world.machine.state(), world.machine.record.with_all), (expected, false), "{:?}", world.log);
        // The next time it is the operator who means it.
        world.end(reason::SHUTDOWN_POWEROFF, false);
        world.run(Duration::from_secs(100));
        assert!(world.domain.is_none(), "{:?}", world.log);
        assert_eq!(world.count("powered-off"), if order == Some(Order::Park) { 1 } else { 2 });
    }
}

#[test]
fn while_nobody_says_whether_all_are_ended_nothing_is_concluded() {
    for (are_all_ended, is_killed) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut world = World::with_standby();
        (world.are_all_ended, world.is_in_doubt) = (are_all_ended, true);
        world.end(reason::SHUTDOWN_POWEROFF, false);
        world.run(Duration::from_secs(50));
        assert_eq!((world.count("powered-off"), world.domain.is_some()), (0, true), "{:?}", world.log);
        if is_killed {
            world.kill();
            world.run(Duration::from_secs(5));
        }
        world.is_in_doubt = false;
        world.run(Duration::from_secs(5));
        assert_eq!((world.machine.state(), world.count("powered-off")), ("off", 1), "{:?}", world.log);
        // Whoever waits until it is over waits also while nobody says so.
        (world.are_all_ended, world.is_in_doubt) = (false, true);
        world.run(Duration::from_secs(20));
        assert_eq!((world.machine.state(), world.machine.record.with_all), ("off", are_all_ended));
        world.is_in_doubt = false;
        world.run(Duration::from_secs(20));
        assert_eq!(world.machine.state(), if are_all_ended { "up" } else { "off" }, "{:?}", world.log);
    }
    // The operator need not wait.
    let mut world = World::up();
    world.is_in_doubt = true;
    world.end(reason::SHUTDOWN_POWEROFF, false);
    world.run(Duration::from_secs(1));
    world.ask(Order::Restart).unwrap();
    world.run(Duration::from_secs(20));
    assert!(world.is_well(), "{:?}", world.log);
}

#[test]
fn one_that_always_fails_is_parked_after_longer_and_longer_waits() {
    let mut world = World::up();
    world.is_broken = true;
    world.end(reason::SHUTDOWN_CRASH, false);
    let mut starts = Vec::new();
    for _ in 0..1000 {
        world.run(TICK);
        if world.acts.last() == Some(&Act::Create) {
            starts.push(world.now);
            world.acts.clear();
        }
        if world.domain.as_ref().is_some_and(|d| d.age > Duration::from_secs(1)) {
            world.end(reason::SHUTDOWN_CRASH, true);
        }
    }
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true), "{:?}", world.log);
    assert!(world.log.iter().any(|line| line.contains("failed 4 times within 60 s")), "{:?}", world.log);
    // Guests have waited until then, and what they do meanwhile is not known.
    let record = world.machine.record.clone();
    let line = record.last.last().unwrap();
    assert!(line.starts_with("panicked: ") && line.ends_with(&format!(", parked {} ms", record.outage)), "{line}");
    assert!(record.outage > 5000 && world.log.contains(&format!("given up, {line}")), "{:?}", world.log);
    let waits: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.len() == 2 && waits[1] >= waits[0] + Duration::from_millis(400), "{waits:?}");
    world.is_broken = false;
    assert!(world.ask(Order::Unpark).is_ok());
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
    assert!(world.ask(Order::Unpark).unwrap_err().contains("up"));
}

#[test]
fn one_that_always_reboots_is_parked_too() {
    // Whenever it is of use, or before.
    for is_of_use in [true, false] {
        let mut world = World::up();
        for _ in 0..1000 {
            world.run(TICK);
            let is_there = world.domain.as_ref().is_some_and(|d| d.age > Duration::from_secs(1));
            if if is_of_use { world.is_well() } else { is_there } {
                world.end(reason::SHUTDOWN_REBOOT, false);
            }
        }
        assert_eq!((world.machine.state(), world.count("rebooted")), ("parked", 4), "{:?}", world.log);
    }
}

#[test]
fn one_that_does_not_become_ready_has_failed() {
    let mut world = World::new();
    world.is_broken = true;
    world.run(Duration::from_secs(22));
    assert_eq!(world.count("not-ready"), 1);
    world.is_broken = false;
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
}

#[test]
fn one_that_never_becomes_ready_is_parked_though_that_takes_longer_than_failures_count() {
    for more in ["", "snapshot = true", "standby = 1"] {
        let usual: Settings = toml::from_str(&format!("config = \"/dd.cfg\"\n{more}")).unwrap();
        let mut world = World::with(usual);
        world.is_broken = true;
        world.run(Duration::from_secs(1800));
        assert_eq!((world.machine.state(), world.count("not-ready")), ("parked", 6), "{more}: {:?}", world.log);
        assert!(world.log.iter().any(|line| line.contains("parked: it failed 6 times")), "{:?}", world.log);
    }
}

#[test]
fn failures_between_which_it_was_of_use_count_for_a_while_only() {
    let mut world = World::up();
    for _ in 0..10 {
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(21));
        assert!(world.is_well(), "{:?}", world.log);
    }
}

#[test]
fn without_restart_it_is_parked_and_cleared_away() {
    let mut world = World::with(Settings { restart: false, ..settings() });
    world.run(Duration::from_secs(8));
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(30));
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true));
}

#[test]
fn parked_by_the_operator_it_is_gone_and_stays_so() {
    let mut world = World::up();
    world.ask(Order::Park).unwrap();
    world.run(Duration::from_secs(60));
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true));
    world.kill();
    world.run(Duration::from_secs(60));
    assert_eq!(world.machine.state(), "parked");
    world.ask(Order::Unpark).unwrap();
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
}

#[test]
fn one_that_goes_because_it_is_parked_may_be_unparked_before_it_is_gone() {
    // From the order on, and for as long as its toolstack is at work, also when the domain itself is gone already.
    let mut ticks = 0;
    loop {
        let mut world = World::up();
        world.ask(Order::Park).unwrap();
        world.run(TICK * ticks);
        let is_over = world.machine.state() == "parked";
        world.ask(Order::Unpark).unwrap();
        assert!(world.ask(Order::Unpark).is_err(), "it is wanted already: {}", world.machine.state());
        let record = &world.machine.record;
        assert_eq!((record.mode, record.why.as_str()), (Mode::Run, ""));
        if ticks % 2 == 1 {
            world.kill();
        }
        world.run(Duration::from_secs(10));
        assert!(world.is_well() && world.domain.as_ref().unwrap().id != 1, "{ticks}: {:?}", world.log);
        if is_over {
            break;
        }
        ticks += 1;
    }
    assert!(ticks > 2, "it is gone at once: {ticks}");
}

#[test]
fn one_that_was_just_created_when_the_operator_parks_it_goes_too() {
    // An earlier daemon has asked for it; this one has not looked at what became of that.
    let mut world = World::new();
    world.run(TICK * 9);
    world.pass();
    world.kill();
    world.run(TICK);
    assert!(world.domain.is_some() && world.ask(Order::Park).is_ok());
    world.run(Duration::from_secs(10));
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true));
}

#[test]
fn one_that_others_start_and_that_fails_at_once_was_wanted() {
    let mut world = World::up();
    world.end(reason::SHUTDOWN_POWEROFF, false);
    world.run(Duration::from_secs(10));
    assert_eq!(world.machine.state(), "off");
    world.add_domain();
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(10));
    assert!(world.is_well(), "{} {:?}", world.machine.state(), world.domain);
}

#[test]
fn the_next_daemon_stops_it_before_anything_is_taken_from_it() {
    let mut world = World::up();
    world.acts.clear();
    world.domain.as_mut().unwrap().does = Does::Spins;
    while world.machine.record.going.is_none() {
        world.pass();
        // Killed when it is written down that it has to go, and nothing was done to it.
        world.step(Some(0));
    }
    assert_eq!(world.acts, []);
    world.run(Duration::from_secs(10));
    assert_eq!(world.acts, [Act::Quarantine(1), Act::Destroy(1), Act::Create]);
    assert!(world.is_well());
}

#[test]
fn without_restart_an_order_is_one_still() {
    let mut world = World::with(Settings { restart: false, ..settings() });
    world.run(Duration::from_secs(8));
    world.ask(Order::Restart).unwrap();
    world.run(Duration::from_secs(10));
    assert!(world.is_well(), "{}", world.machine.state());
    assert_eq!(world.domain.as_ref().unwrap().id, 2);
}

#[test]
fn it_waits_for_a_device_that_is_gone() {
    let mut world = World::up();
    world.has_devices = false;
    world.run(Duration::from_secs(100));
    assert_eq!((world.count("device-gone"), world.domain.is_none()), (1, true));
    assert_eq!(world.log.iter().filter(|line| line.contains("waits for its device")).count(), 1);
    world.has_devices = true;
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
}

#[test]
fn who_runs_is_not_ended_for_a_device_that_it_has_never_had() {
    let mut world = World::up();
    world.lacks_another = true;
    world.run(Duration::from_secs(100));
    world.kill();
    world.run(Duration::from_secs(100));
    assert!(world.is_well() && world.domain.as_ref().unwrap().id == 1, "{:?}", world.log);
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(100));
    assert_eq!((world.count("device-gone"), world.domain.is_none()), (0, true));
    assert_eq!(world.log.iter().filter(|line| line.contains("waits for its device")).count(), 1);
    world.lacks_another = false;
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
}

#[test]
fn one_that_was_left_half_built_is_replaced() {
    let mut world = World::with(Settings { ready_s: 1000, ..settings() });
    world.add_domain();
    world.domain.as_mut().unwrap().is_paused = true;
    world.run(Duration::from_secs(45));
    assert!(world.is_well(), "{:?}", world.log);
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Ends(u32, bool),
    Destroyed,
    Does(Does),
    CreatedByOthers,
    StandbyEnds,
    StandbyDestroyed,
    Device(bool),
    Another(bool),
    CandidateEnds,
    CandidateDestroyed,
    Upgrade(Option<Flaw>),
    Native(Native),
    DismissHangs,
    SnapshotsLost,
    MachineStartsAnew,
    AllAreShutDown,
    GoesOn,
    Asked(Order),
    Passes(u64),
    Killed(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let code = prop_oneof![Just(0_u32), Just(1), Just(3), Just(4)];
    let order = prop_oneof![Just(Order::Restart), Just(Order::Park), Just(Order::Unpark)];
    let flaw = prop_oneof![
        Just(Flaw::NotCreated),
        Just(Flaw::NeverBoots),
        Just(Flaw::Panics),
        Just(Flaw::NotReady),
        Just(Flaw::NotReceiving),
        Just(Flaw::NotProbed),
    ];
    let event = prop_oneof![
        3 => (code, any::<bool>()).prop_map(|(code, by_hypervisor)| Event::Ends(code, by_hypervisor && code == 3)),
        2 => Just(Event::Destroyed),
        2 => prop_oneof![Just(Does::Spins), Just(Does::Strays), Just(Does::Errs)].prop_map(Event::Does),
        1 => Just(Event::CreatedByOthers),
        1 => Just(Event::StandbyEnds),
        1 => Just(Event::StandbyDestroyed),
        1 => Just(Event::CandidateEnds),
        1 => Just(Event::CandidateDestroyed),
        3 => proptest::option::of(flaw).prop_map(Event::Upgrade),
        1 => any::<bool>().prop_map(Event::Device),
        1 => any::<bool>().prop_map(Event::Another),
        2 => prop_oneof![Just(Native::Works), Just(Native::Fails), Just(Native::IsKilled)].prop_map(Event::Native),
        1 => Just(Event::DismissHangs),
        1 => Just(Event::SnapshotsLost),
        1 => Just(Event::MachineStartsAnew),
        2 => Just(Event::AllAreShutDown),
        1 => Just(Event::GoesOn),
        2 => order.prop_map(Event::Asked),
        8 => (0..60_u64).prop_map(Event::Passes),
        3 => (0..4_usize).prop_map(Event::Killed),
    ];
    proptest::collection::vec(event, 0..30)
}

proptest! {
    #[test]
    fn whatever_happens_and_whenever_the_daemon_is_killed_all_is_well_in_the_end(
        events in events(),
        way in 0..4_u8,
        is_of_disks in any::<bool>(),
        has_far in any::<bool>(),
    ) {
        let (standby, snapshot) = (way % 2, way >= 2);
        let words = if is_of_disks { &words::DISK } else { &words::NET };
        let mut world = World::of(words, Settings { standby, snapshot, ..settings() });
        world.far = has_far.then(|| "far".into());
        for event in &events {
            match *event {
                Event::Ends(code, by_hypervisor) => world.end(code, by_hypervisor),
                Event::Destroyed => world.domain = None,
                Event::Does(does) => {
                    if let Some(d) = world.domain.as_mut().filter(|d| d.does == Does::Its) {
                        d.does = does;
                    }
                }
                Event::CreatedByOthers if world.domain.is_none() => {
                    world.add_domain();
                    world.domain.as_mut().unwrap().is_others = true;
                }
                Event::CreatedByOthers => {}
                Event::StandbyEnds => {
                    if let Some(d) = &mut world.standby {
                        d.end = Some((reason::SHUTDOWN_CRASH, false));
                    }
                }
                Event::StandbyDestroyed => world.standby = None,
                Event::CandidateEnds => {
                    if let Some(d) = &mut world.candidate {
                        d.end = Some((reason::SHUTDOWN_CRASH, false));
                    }
                }
                Event::CandidateDestroyed => world.candidate = None,
                Event::Upgrade(flaw) => { let _ = world.upgrade(flaw); }
                Event::Device(is_there) => world.has_devices = is_there,
                Event::Another(is_there) => world.lacks_another = !is_there,
                Event::Native(native) => world.native = native,
                Event::DismissHangs => world.hangs = 1,
                Event::SnapshotsLost => world.all_mut().for_each(|d| d.is_noted = false),
                Event::MachineStartsAnew => {
                    world.machine_starts_anew();
                    prop_assert!(world.machine.record.mode != Mode::Off, "it was shut down with the machine");
                }
                Event::AllAreShutDown => {
                    world.are_all_ended = true;
                    world.end(reason::SHUTDOWN_POWEROFF, false);
                }
                Event::GoesOn => world.are_all_ended = false,
                Event::Asked(order) => { let _ = world.ask(order); }
                Event::Passes(ticks) => world.run(TICK * u32::try_from(ticks).unwrap()),
                Event::Killed(acts) => {
                    world.pass();
                    world.step(Some(acts));
                    world.kill();
                }
            }
        }
        (world.has_devices, world.lacks_another, world.are_all_ended, world.hangs) = (true, false, false, 0);
        // One that is believed errs as long as it lives.
        if let Some(d) = world.domain.as_mut().filter(|d| d.does == Does::Errs) {
            d.does = Does::Its;
        }
        world.run(Duration::from_secs(300) + HANGS);
        match world.machine.record.mode {
            Mode::Run => prop_assert!(world.is_well(), "{} {:?} {:?}", world.machine.state(), world.domain, world.log),
            // One that somebody else has started while it was parked is let alone.
            Mode::Parked => prop_assert!(world.domain.as_ref().is_none_or(|d| d.is_others), "{:?}", world.domain),
            Mode::Off => {
                prop_assert!(world.domain.is_none() && !world.machine.record.with_all, "{:?}", world.domain);
            }
        }
        prop_assert_eq!((world.machine.record.going, world.machine.record.promoted), (None, None));
        prop_assert_eq!((world.machine.record.noting, world.machine.record.rolling), (None, None));
        prop_assert_eq!((&world.machine.record.upgrade, world.candidate.is_some()), (&None, false));
        let image = &world.machine.record.image;
        prop_assert!([Image::default(), new()].contains(image), "{:?} is of no use", image);
        prop_assert!(world.remains.is_empty(), "{:?}", world.remains);
        let is_wanted = standby == 1 && world.machine.record.mode == Mode::Run;
        prop_assert_eq!(world.standby.as_ref().is_some_and(|d| d.end.is_none()), is_wanted);
    }
}
