//! Its twind is silent, or its twin is aborted.

use super::super::look::{TwinSeen, Twind};
use super::*;

fn with_twin() -> World {
    let mut world = World::with(Settings { twin: true, twind_s: 60, ..settings() });
    world.run(Duration::from_secs(80));
    assert_eq!((world.is_well(), world.count("recovered")), (true, 1), "{:?}", world.log);
    hears(&mut world, Duration::ZERO, seen(0));
    world.run(TICK);
    world
}

fn hears(world: &mut World, silent_for: Duration, twin: Option<TwinSeen>) {
    world.domain.as_mut().unwrap().twind = Some(Twind { silent_for, twin });
}

/// One that was aborted so often, and is loaded.
fn seen(aborts: u64) -> Option<TwinSeen> {
    Some(TwinSeen { aborts, is_loaded: true, is_wanted: true, was_aborted: false })
}

/// The same, and the last abort is just over.
fn aborted(aborts: u64) -> Option<TwinSeen> {
    Some(TwinSeen { aborts, is_loaded: false, is_wanted: true, was_aborted: true })
}

fn loads(world: &World) -> usize {
    world.acts.iter().filter(|act| matches!(act, Act::LoadTwin(_))).count()
}

/// It is aborted once more; whether it is loaded again, which is what becomes of it.
fn aborts(world: &mut World, count: u64) -> bool {
    let before = loads(world);
    hears(world, Duration::ZERO, aborted(count));
    world.run(TICK * 5);
    let is_loaded = loads(world) > before;
    assert!(loads(world) <= before + 1, "once");
    if is_loaded {
        hears(world, Duration::ZERO, seen(count));
        world.run(TICK * 5);
    }
    is_loaded
}

#[test]
fn one_that_is_aborted_now_and_then_is_loaded_again_each_time() {
    let mut world = with_twin();
    for n in 1..10 {
        assert!(aborts(&mut world, n), "{:?}", world.log);
        world.run(Duration::from_secs(31));
    }
    assert_eq!((world.count("twin-loaded-again"), world.count("twin-given-up")), (9, 0));
}

#[test]
fn one_that_is_aborted_in_a_row_is_left_until_another_instance_or_somebody_else_loads_it() {
    let mut world = with_twin();
    assert!(aborts(&mut world, 1) && aborts(&mut world, 2));
    assert!(!aborts(&mut world, 3), "{:?}", world.log);
    assert!(world.log.iter().any(|line| line.contains("aborted 3 times within 60 s")), "{:?}", world.log);
    world.run(Duration::from_secs(300));
    // The next daemon knows.
    world.kill();
    world.run(Duration::from_secs(300));
    assert_eq!((loads(&world), world.count("twin-given-up"), world.is_well()), (2, 1, true));
    // Somebody loads it.
    hears(&mut world, Duration::ZERO, seen(3));
    world.run(TICK);
    assert_eq!(world.machine.record.twin_given_up, None);
    assert!(aborts(&mut world, 4) && aborts(&mut world, 5) && !aborts(&mut world, 6));
    world.ask(Order::Restart).unwrap();
    world.run(Duration::from_secs(80));
    assert_eq!((world.is_well(), world.machine.record.twin_given_up), (true, None), "{:?}", world.log);
    assert!(aborts(&mut world, 1), "twind counts from nothing");
}

#[test]
fn who_is_told_of_several_aborts_at_once_counts_them_all_and_earlier_ones_not() {
    let mut world = with_twin();
    assert!(!aborts(&mut world, 3));
    let mut world = with_twin();
    world.kill();
    assert!(aborts(&mut world, 70), "one of them, for all that this daemon knows");
    assert!(aborts(&mut world, 1), "another twind");
}

#[test]
fn one_that_nobody_wants_is_not_loaded_and_neither_is_any_if_that_is_said() {
    let mut world = with_twin();
    let unwanted = aborted(1).map(|twin| TwinSeen { is_wanted: false, ..twin });
    hears(&mut world, Duration::ZERO, unwanted);
    world.run(TICK * 5);
    assert_eq!(loads(&world), 0);
    let mut world = World::with(Settings { twin: true, twin_aborts: 0, ..settings() });
    world.run(Duration::from_secs(80));
    assert!(!aborts(&mut world, 1) && !aborts(&mut world, 9));
    assert_eq!(world.count("twin-given-up"), 0);
}

#[test]
fn one_whose_twind_is_silent_is_replaced_in_peace_but_not_each_time() {
    let mut world = with_twin();
    hears(&mut world, Duration::from_secs(59), seen(0));
    world.run(Duration::from_secs(1));
    world.acts.clear();
    for (minutes, expected) in [(2, 1), (7, 1), (3, 2), (16, 2), (4, 3)] {
        let until = world.now + Duration::from_secs(minutes * 60);
        while world.now < until {
            world.domain.iter_mut().for_each(|d| {
                d.twind = Some(Twind { silent_for: Duration::from_secs(61), twin: None });
            });
            world.run(TICK);
        }
        assert_eq!(world.count("twind-silent"), expected, "{minutes} {:?}", world.log);
    }
    assert!(matches!(world.acts[0], Act::Drain(_)), "{:?}", world.acts);
    assert_eq!(world.machine.record.failures.len(), 0);
    // One that was paused has not answered then, and has its time.
    let mut world = with_twin();
    world.domain.as_mut().unwrap().is_paused = true;
    world.run(Duration::from_secs(100));
    hears(&mut world, Duration::from_secs(100), seen(0));
    world.domain.as_mut().unwrap().is_paused = false;
    world.run(Duration::from_secs(59));
    assert_eq!(world.count("twind-silent"), 0);
    world.run(Duration::from_secs(2));
    assert_eq!(world.count("twind-silent"), 1);
}
