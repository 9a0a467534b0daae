//! A xenstored that serves one domain's ring when it is asked for anything, and a hypervisor that notes the page of the
//! ring.

mod world;
mod xenstored;

use super::stand_in::Words;
use super::*;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use world::{watches, World};
use xen_abi::channel_op::{ChannelSnapshot, SNAPSHOT_COMPRESS, SNAPSHOT_FRAMES};

const DOMAIN: u16 = 7;
const OWN: &str = "/local/domain/7";
const FAR: &str = "/local/domain/2/backend/vif/7/0";
/// The domain of the service whose way out it is to be.
const NET: u16 = 2;

fn file(name: &str) -> PathBuf {
    path(&std::env::temp_dir(), &format!("tandemd-{name}-{}", std::process::id()), DOMAIN)
}

fn sorted(mut watches: Vec<(String, String)>) -> Vec<(String, String)> {
    watches.sort();
    watches
}

#[test]
fn what_has_died_becomes_what_it_was_as_often_as_it_has_to() {
    let (mut world, file) = (World::new(), file("back"));
    assert_eq!(world.note(&file).unwrap().copies, 9);
    let own = world.own();
    assert!(!world.0.borrow().is_paused);
    // It may have missed something, so it hears of all that it watches.
    let told = world.reads();
    for path in ["backend", "control/shutdown", "cpu/0/availability", "device/vif/0/state", "memory/target"] {
        assert!(told.iter().any(|of| of == path), "{path} of {told:?}");
    }
    for n in 1..4 {
        world.live();
        world.roll_back(&file).unwrap();
        let state = world.0.borrow();
        assert_eq!((sorted(state.watches.clone()), state.rolled_back), (sorted(watches()), n));
        assert!(!state.is_paused && !state.has_shut_down);
        let name = |path: &str| state.nodes.get(path);
        assert_eq!([name("/local/domain/7/name"), name("/vm/7/name")], [Some("dd-standby"); 2]);
        assert_eq!(name("/local/domain/7/memory/target"), Some("250000"), "that is the tools'");
        // Who has a back end there makes another one, which it hears of.
        assert!(state.nodes.get("/local/domain/7/backend").is_some());
        assert!(!state.nodes.paths().any(|path| path.starts_with("/local/domain/7/backend/")));
        drop(state);
        assert_eq!(world.own(), own);
        // It looks at what others may have changed; its devices are as it knows them.
        let told = world.reads();
        assert!(
            told.iter().any(|of| of == "memory/target") && told.iter().all(|of| !of.starts_with("device/")),
            "{told:?}"
        );
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn wherever_it_is_killed_the_next_one_makes_the_same_of_it() {
    let file = file("killed");
    let mut nr_killed = 0;
    for budget in 0..1000 {
        let mut world = World::new();
        world.0.borrow_mut().budget = budget;
        let is_noted = world.note(&file).is_ok();
        world.0.borrow_mut().budget = u32::MAX;
        nr_killed += u32::from(!is_noted);
        if !is_noted {
            world.note(&file).unwrap();
        }
        world.reads();
        let own = world.own();
        world.live();
        world.0.borrow_mut().budget = budget;
        let is_back = world.roll_back(&file).is_ok();
        world.0.borrow_mut().budget = u32::MAX;
        if !is_back {
            world.roll_back(&file).unwrap();
        }
        assert_eq!((sorted(world.0.borrow().watches.clone()), world.own()), (sorted(watches()), own), "{budget}");
        assert!(!world.0.borrow().is_paused);
        world.reads();
        if is_noted && is_back {
            assert!(nr_killed > 30);
            return std::fs::remove_file(file).unwrap();
        }
    }
    panic!("it never ends");
}

#[test]
fn what_is_noted_while_xenstore_writes_is_noted_again() {
    let (mut world, file) = (World::new(), file("meanwhile"));
    world.0.borrow_mut().told_meanwhile = 2;
    world.note(&file).unwrap();
    assert!(world.reads().iter().any(|of| of == "memory/target"));
    world.live();
    world.roll_back(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    world.0.borrow_mut().told_meanwhile = TRIES;
    let file = super::path(&std::env::temp_dir(), &format!("tandemd-{}-always", std::process::id()), DOMAIN);
    assert!(format!("{:#}", world.note(&file).unwrap_err()).contains("meanwhile"));
    assert!(world.0.borrow().snapshot.is_none() && !world.0.borrow().is_paused);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn one_that_is_stopped_within_a_request_says_the_rest_first() {
    let (mut world, file) = (World::new(), file("within"));
    world.0.borrow_mut().halves = 3;
    world.note(&file).unwrap();
    let state = world.0.borrow();
    assert_eq!((state.nr_answered, state.half.len(), state.halves), (3, 0, 0));
    drop(state);
    assert!(!world.reads().is_empty());
    world.live();
    world.roll_back(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    // It is left alone if that never ends.
    world.0.borrow_mut().halves = TRIES;
    let error = format!("{:#}", world.note(&file).unwrap_err());
    assert!(error.contains("always has something to do"), "{error}");
    let state = world.0.borrow();
    assert_eq!((state.nr_answered, state.half.len(), state.is_paused), (3 + TRIES, 0, false));
}

#[test]
fn what_it_calls_another_end_is_one_or_is_not_touched() {
    let mut world = World::new();
    for (n, far) in ["/local/domain/2/name", "@releaseDomain", "/local/domain/2/backend/vif/8/0", ""].iter().enumerate()
    {
        world.0.borrow_mut().set(&format!("{OWN}/device/vif/{n}/backend"), far);
    }
    world.0.borrow_mut().set(&format!("{OWN}/device/vif/9/backend"), FAR);
    let all = watchable(DOMAIN, &mut world).unwrap();
    let outside: Vec<&String> = all.iter().filter(|path| !path.starts_with(OWN)).collect();
    assert_eq!(outside, [FAR, &format!("{FAR}/state")]);
}

#[test]
fn what_others_write_into_its_ring_reaches_nobody_elses_nodes() {
    for (is_its, path) in [
        (false, "/local/domain/5/x"),
        (false, "/local/domain/70/x"),
        (false, "/local/domain/2/backend/vif/8/0/state"),
        (false, "console/ring-ref"),
        (false, "/local/domain/7/store/ring-ref"),
        (false, "/tool"),
        (true, "data/x"),
        (true, "/local/domain/2/backend/vif/7/0/state"),
    ] {
        // When it is to be idle, and when it is to hear of all.
        for at in 0..2 {
            let (mut world, file) = (World::new(), file("lies"));
            world.0.borrow_mut().lies = Some((at, path));
            world.note(&file).unwrap();
            assert!(world.0.borrow().lies.is_none());
            let absolute = super::absolute(DOMAIN, path);
            assert_eq!(world.0.borrow().repeated.contains(&absolute), is_its, "{path} at {at}");
            let noted: Noted = toml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
            assert!(is_its || !noted.seen.iter().any(|seen| seen == path), "{path} at {at}");
            world.live();
            world.0.borrow_mut().repeated.clear();
            world.roll_back(&file).unwrap();
            assert!(is_its || !world.0.borrow().repeated.contains(&absolute), "{path} at {at}");
            std::fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn one_that_is_busy_is_not_noted_and_runs_on() {
    let (mut world, file) = (World::new(), file("busy"));
    // It has asked, and has not read the answer.
    {
        let mut state = world.0.borrow_mut();
        state.say(2, 4, b"dd");
        state.serve();
        state.is_stuck = true;
    }
    let error = format!("{:#}", world.note(&file).unwrap_err());
    assert!(error.contains("something under way in xenstore"), "{error}");
    let state = world.0.borrow();
    assert!(!state.is_paused && state.snapshot.is_none());
}

#[test]
fn one_that_is_somebodys_back_end_is_not_noted() {
    let (mut world, file) = (World::new(), file("back-end"));
    world.0.borrow_mut().set(&format!("{OWN}/backend/vbd/3/0/state"), "2");
    let error = format!("{:#}", world.note(&file).unwrap_err());
    assert!(error.contains("somebody's back end"), "{error}");
    assert!(world.0.borrow().snapshot.is_none() && !world.0.borrow().is_paused);
}

#[test]
fn one_with_a_device_whose_back_end_does_not_go_back_is_not_noted() {
    for (device, far, state, is_noted) in [
        ("vbd/51712", "/local/domain/0/backend/vbd/7/51712", "4", false),
        ("vbd/51712", "/local/domain/0/backend/vbd/7/51712", "3", false),
        ("vif/1", "/local/domain/0/backend/vif/7/1", "4", false),
        ("vif/1", "", "4", false),
        // Its driver has not begun, or has ended.
        ("vbd/51712", "/local/domain/0/backend/vbd/7/51712", "1", true),
        ("vbd/51712", "/local/domain/0/backend/vbd/7/51712", "6", true),
        // It is plugged in when it is the way out.
        ("vif/0", FAR, "4", true),
        ("vbd/51712", "/local/domain/2/backend/vbd/7/51712", "4", false),
    ] {
        let (mut world, file) = (World::new(), file("front"));
        for (key, value) in [("backend", far), ("state", state)] {
            world.0.borrow_mut().set(&format!("{OWN}/device/{device}/{key}"), value);
        }
        // As the toolstack makes it, and no device.
        world.0.borrow_mut().set(&format!("{OWN}/device/suspend/event-channel"), "");
        let noted = world.note(&file);
        assert_eq!(noted.is_ok(), is_noted, "{device} {far} {state}");
        if let Err(error) = noted {
            let error = format!("{error:#}");
            assert!(error.contains(&format!("its {} is served by ", device.replace('/', " "))), "{error}");
            assert!(world.0.borrow().snapshot.is_none() && !world.0.borrow().is_paused);
        }
        let _ = std::fs::remove_file(file);
    }
}

#[test]
fn one_that_has_died_in_the_middle_of_a_request_is_not_rolled_back() {
    let (mut world, file) = (World::new(), file("half"));
    world.note(&file).unwrap();
    world.live();
    // The head says that more follows than the next requests have.
    let head: Vec<u8> = [11_u32, 9, 0, 900].iter().flat_map(|word| word.to_le_bytes()).collect();
    world.0.borrow_mut().half = head;
    let error = format!("{:#}", world.roll_back(&file).unwrap_err());
    assert!(error.contains("does not answer in its name"), "{error}");
    assert_eq!(world.0.borrow().rolled_back, 0);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn what_xenstore_had_said_by_half_and_says_the_rest_of_later_is_thrown_away() {
    // However often it is called until it looks.
    for is_late in 0..20 {
        let (mut world, file) = (World::new(), file("late"));
        world.note(&file).unwrap();
        let own = world.own();
        world.live();
        assert!(!world.0.borrow().queued.is_empty(), "there was no room for all of it");
        world.0.borrow_mut().is_late = is_late;
        world.roll_back(&file).unwrap_or_else(|error| panic!("{is_late}: {error:#}"));
        assert_eq!((sorted(world.0.borrow().watches.clone()), world.own()), (sorted(watches()), own), "{is_late}");
        world.reads();
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn what_the_hypervisor_refuses_is_said() {
    let (mut world, file) = (World::new(), file("refused"));
    world.note(&file).unwrap();
    world.live();
    world.0.borrow_mut().why_not = SNAPSHOT_FRAMES;
    let error = format!("{:#}", world.roll_back(&file).unwrap_err());
    assert_eq!(error, "its frame 0x5 is another's now");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn what_it_takes_is_said() {
    let mut taken = ChannelSnapshot { copies: 150 * 256, found: 50 * 256, ..ChannelSnapshot::default() };
    assert_eq!(takes(&taken), "that takes 100 MiB, beside 50 MiB that are the same as what was noted before");
    (taken.packed, taken.packed_bytes) = (80 * 256, 30 << 20);
    assert_eq!(
        takes(&taken),
        "that takes 50 MiB, beside 50 MiB that are the same as what was noted before; 80 MiB of it are packed into 30 MiB"
    );
}

#[test]
fn what_was_noted_is_forgotten_and_no_other_services_record() {
    let dir = std::env::temp_dir().join(format!("tandemd-kept-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let its = ["net.snapshot.7", "net.snapshot.8", "net.snapshot.new"];
    let others = ["net.toml", "net.snapshot.toml", "net.snapshot.snapshot.7", "net.snapshot.7.toml", "lab.snapshot.7"];
    for name in its.iter().chain(&others) {
        std::fs::write(dir.join(name), "").unwrap();
    }
    let left = || {
        let names = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<BTreeSet<_>>()
    };
    keep_only(&dir, "net", &[8]).unwrap();
    assert_eq!(left(), others.iter().chain(&["net.snapshot.8"]).map(ToString::to_string).collect());
    // An earlier daemon has kept it on the disk.
    let (run, notes) = (dir.join("run"), ["net.snapshot.8", "net.snapshot.9"]);
    std::fs::create_dir(&run).unwrap();
    std::fs::write(dir.join(notes[1]), "older").unwrap();
    std::fs::write(run.join(notes[1]), "newer").unwrap();
    bring(&dir, &run, "net").unwrap();
    bring(&dir.join("nowhere"), &run, "net").unwrap();
    assert!(notes.iter().all(|name| run.join(name).exists() && !dir.join(name).exists()));
    assert_eq!(std::fs::read_to_string(run.join(notes[1])).unwrap(), "newer");
    std::fs::remove_dir_all(run).unwrap();
    keep_only(&dir, "net", &[]).unwrap();
    assert_eq!(left(), others.iter().map(ToString::to_string).collect());
    std::fs::remove_dir_all(&dir).unwrap();
}
