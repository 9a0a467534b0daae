//! What is different of driver domains of disks.

use super::super::health::{Beat, Queue};
use super::super::look::{Act, Domain, Errand, Look, OtherWay, Way};
use super::super::machine::Machine;
use super::super::record::{Mode, Record};
use super::super::settings::Settings;
use super::super::words;
use super::world::{new, settings, Does, MediumOf, World};
use crate::config::Kind;
use crate::device::Device;
use control::{Image, Order};
use std::time::Duration;
use xen_abi::sched as reason;

/// Looks at a driver domain of disks, of whose devices its driver has taken hold.
fn disks_look(seconds: u64, way: Way) -> Look {
    let beat = Beat { vcpu: 0, upcalls: 1, ..Beat::default() };
    let domain = Some(Domain { id: 5, beats: vec![beat], ..Domain::default() });
    let way = Some(way);
    Look {
        now: Duration::from_secs(seconds),
        domain,
        has_all: true,
        has_devices: true,
        is_served: true,
        way,
        ..Look::default()
    }
}

fn disks_machine() -> Machine {
    let mut machine = Machine::new(settings(), &words::DISK, Record::default());
    for _ in 0..4 {
        assert_eq!(machine.next(&disks_look(1, Way { is_idle: true, ..Way::default() })), None);
    }
    assert_eq!(machine.state(), "up");
    machine
}

#[test]
fn a_disks_back_end_that_writes_nonsense_is_replaced() {
    let mut machine = disks_machine();
    let act = machine.next(&disks_look(2, Way { has_lied: true, ..Way::default() }));
    assert_eq!((act, machine.record.counts.get("bad-ring")), (Some(Act::Quarantine(5)), Some(&1)));
    assert!(machine.said.iter().any(|line| line.contains("ring")), "{:?}", machine.said);
}

#[test]
fn a_disks_back_end_that_reads_nothing_is_replaced() {
    let mut machine = disks_machine();
    let act = machine.next(&disks_look(2, Way { has_lost: true, ..Way::default() }));
    assert_eq!((act, machine.record.counts.get("empty-read")), (Some(Act::Quarantine(5)), Some(&1)));
}

#[test]
fn an_error_is_the_mediums_if_two_in_a_row_say_so() {
    for settings in [Settings { standby: 1, ..settings() }, Settings { snapshot: true, ..settings() }] {
        let mut world = World::of(&words::DISK, settings);
        world.run(Duration::from_secs(20));
        world.domain.as_mut().unwrap().does = Does::Errs;
        world.run(Duration::from_secs(20));
        let count = |world: &World| (world.count("failed-request"), world.machine.record.failures.len());
        assert_eq!((world.is_well(), count(&world)), (true, (1, 0)), "{:?}", world.acts);
        // Nor does the next daemon doubt it.
        world.medium_is_bad = true;
        world.run(Duration::from_secs(60));
        world.kill();
        world.run(Duration::from_secs(60));
        assert_eq!((world.is_well(), count(&world)), (true, (1, 0)), "{:?}", world.acts);
        // Who comes for another reason is not believed.
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(60));
        assert_eq!((world.is_well(), world.count("panicked"), count(&world)), (true, 1, (2, 1)), "{:?}", world.acts);
    }
}

/// It has nothing to do with who drives it, so all else is not to stand still for it, time and again.
#[test]
fn a_medium_that_hangs_has_the_driver_domain_replaced_once_and_no_service_parked() {
    for way_back in [settings(), Settings { standby: 1, ..settings() }, Settings { snapshot: true, ..settings() }] {
        for whose in [MediumOf::Own, MediumOf::Far] {
            let words = if whose == MediumOf::Own { &words::DISK } else { &words::NET };
            let mut world = World::of(words, way_back.clone());
            (world.far, world.far_kind) = (Some("other".into()), Kind::Disk);
            world.run(Duration::from_secs(100));
            let hang = |world: &mut World, seconds| {
                world.hangs_for = Some(whose);
                (0..seconds).for_each(|_| {
                    world.run(Duration::from_secs(1));
                    assert_ne!(world.machine.record.mode, Mode::Parked, "{whose:?}: {:?}", world.log);
                });
                (world.count("undrained"), world.machine.record.failures.len(), world.is_well())
            };
            assert_eq!(hang(&mut world, 600), (1, 0, true), "{whose:?}: {:?}", world.acts);
            // The next daemon knows it, too.
            world.kill();
            assert_eq!(hang(&mut world, 600), (1, 0, true), "{whose:?}: {:?}", world.acts);
            // Who has answered and then does not is replaced once more.
            world.hangs_for = None;
            world.run(Duration::from_secs(2));
            assert_eq!(hang(&mut world, 600), (2, 0, true), "{whose:?}: {:?}", world.acts);
            // The operator may try.
            world.ask(Order::Restart).unwrap();
            assert_eq!(hang(&mut world, 600), (3, 0, true), "{whose:?}: {:?}", world.acts);
        }
    }
}

/// What another one does not answer of it either is no matter of the medium alone, if others of its are answered.
#[test]
fn a_request_that_looks_lost_counts_though_the_medium_is_taken_for_slow() {
    let mut machine = disks_machine();
    machine.record.slow.insert(String::new());
    let stuck = |seconds: u64| {
        let queue = Queue { is_waiting: true, taken: 1, overdue_for: Duration::from_secs(seconds - 5) };
        disks_look(seconds, Way { queue, ..Way::default() })
    };
    assert_eq!((5..305).find_map(|seconds| machine.next(&stuck(seconds))), None);
    assert_eq!(machine.next(&stuck(305)), Some(Act::Quarantine(5)));
    assert_eq!((machine.record.counts.get("overdue"), machine.record.failures.len()), (Some(&1), 1));
}

#[test]
fn an_error_is_told_where_the_next_one_takes_its_time_or_does_not_come() {
    for settings in [settings(), Settings { restart: false, standby: 1, ..settings() }] {
        let mut machine = Machine::new(settings, &words::DISK, Record::default());
        for _ in 0..4 {
            let act = machine.next(&disks_look(1, Way { has_failed: true, ..Way::default() }));
            assert!(!matches!(act, Some(Act::Quarantine(_))));
        }
        assert_eq!(machine.state(), "up");
    }
}

#[test]
fn a_device_that_was_stopped_is_told_apart_from_nonsense_in_a_ring() {
    // The hypervisor looks at no ring of that domain's any more.
    let mut look = disks_look(2, Way { has_lied: true, ..Way::default() });
    let domain = look.domain.as_mut().unwrap();
    domain.beats = vec![Beat { dma_fault_for: Some(Duration::from_millis(3)), ..Beat::default() }];
    let mut machine = disks_machine();
    assert_eq!((machine.next(&look), machine.record.counts.get("dma-fault")), (Some(Act::Quarantine(5)), Some(&1)));
    assert!(machine.said.iter().any(|line| line.contains("memory that is not its own")), "{:?}", machine.said);
}

#[test]
fn a_disks_back_end_that_never_answers_is_replaced() {
    let mut machine = disks_machine();
    let stuck = Way { queue: Queue { is_waiting: true, taken: 1, ..Queue::default() }, ..Way::default() };
    assert_eq!(machine.next(&disks_look(10, stuck)), None);
    assert_eq!(machine.next(&disks_look(19, stuck)), None);
    assert_eq!(machine.next(&disks_look(20, stuck)), Some(Act::Quarantine(5)));
}

#[test]
fn a_disks_back_end_that_has_lost_a_request_is_replaced_though_it_answers_others() {
    let mut machine = disks_machine();
    let mut next = |seconds, overdue_s| {
        let queue = Queue { is_waiting: true, taken: 100 * seconds, overdue_for: Duration::from_secs(overdue_s) };
        machine.next(&disks_look(seconds, Way { queue, came: 100 * seconds, ..Way::default() }))
    };
    assert_eq!((next(5, 1), next(319, 299), next(320, 300)), (None, None, Some(Act::Quarantine(5))));
    assert_eq!(machine.record.counts.get("overdue"), Some(&1));
    let why = "a disk's request that it was given has looked lost for 300000 ms";
    assert!(machine.said.iter().any(|line| line.contains(why)), "{:?}", machine.said);
}

#[test]
fn a_disks_recovery_is_complete_with_its_first_answer_or_when_nobody_asks() {
    for is_idle in [true, false] {
        let mut machine = disks_machine();
        machine.said.clear();
        let gone = Look { domain: None, way: None, ..disks_look(2, Way::default()) };
        assert_eq!(machine.next(&gone), Some(Act::Create));
        let created = Look { way: None, errand: Errand::Done(Ok(())), ..disks_look(3, Way::default()) };
        assert_eq!(machine.next(&created), None);
        let way = Way { queue: Queue { is_waiting: true, taken: 1, ..Queue::default() }, ..Way::default() };
        assert_eq!(machine.next(&disks_look(4, Way { is_idle, ..way })), None);
        assert_eq!(machine.next(&disks_look(5, Way { came: u64::from(!is_idle), is_idle, ..way })), None);
        let line = machine.said.iter().find(|line| line.starts_with("recovered, ")).expect("a time line");
        assert!(line.contains("back end 2000 ms") && line.contains("first answer 3000 ms") != is_idle, "{line}");
        assert_eq!(machine.record.outage, if is_idle { 2000 } else { 3000 });
    }
}

#[test]
fn one_that_waits_takes_the_place_of_a_disks_driver_domain() {
    let settings = Settings { standby: 1, ..settings() };
    let mut machine = Machine::new(settings, &words::DISK, Record::default());
    let beat = Beat { vcpu: 0, upcalls: 1, ..Beat::default() };
    let standby = Some(Domain { id: 6, beats: vec![beat], ..Domain::default() });
    let idle = Way { is_idle: true, ..Way::default() };
    let up = |seconds| Look { standby: standby.clone(), ..disks_look(seconds, idle) };
    for _ in 0..4 {
        assert_eq!(machine.next(&up(1)), None);
    }
    let panicked = Domain { id: 5, end: Some((reason::SHUTDOWN_CRASH, false)), ..Domain::default() };
    let dead = Look { domain: Some(panicked), way: None, ..up(2) };
    assert_eq!(machine.next(&dead), Some(Act::Quarantine(5)));
    assert_eq!(machine.next(&dead), Some(Act::Take(5)));
    let gone = Look { domain: None, has_all: false, way: None, remains: vec![5], ..up(3) };
    assert_eq!(machine.next(&gone), Some(Act::Promote(6)));
    let named = Look { domain: standby.clone(), standby: None, ..gone };
    assert_eq!(machine.next(&named), Some(Act::HandOver(6)));
    let has_all = Look { has_all: true, ..named };
    assert_eq!(machine.next(&has_all), None);
    // What is left of the old one waits until the guest has its disk.
    assert_eq!(machine.next(&Look { now: Duration::from_secs(4), ..has_all.clone() }), None);
    let mut acts_at = |ms| {
        let (now, way) = (Duration::from_millis(ms), Some(Way { came: 1, ..idle }));
        let served = Look { now, way, ..has_all.clone() };
        (0..3).filter_map(|_| machine.next(&served)).collect::<Vec<_>>()
    };
    assert_eq!(acts_at(4100), [], "the guest goes on before that");
    assert_eq!(acts_at(5100), [Act::ClearAway(5)]);
    assert_eq!(machine.record.counts["recovered"], 1);
}

#[test]
fn one_of_disks_is_tried_goes_and_is_started_of_the_new_image() {
    let mut machine = disks_machine();
    let idle = |seconds| disks_look(seconds, Way { is_idle: true, ..Way::default() });
    let tried = |at_ms, run_ms| {
        let beat = Beat { upcalls: 1, run: Duration::from_millis(run_ms), ..Beat::default() };
        let candidate = Some(Domain { id: 6, beats: vec![beat], ..Domain::default() });
        Look { now: Duration::from_millis(at_ms), candidate, ..idle(0) }
    };
    machine.upgrade(new(), false, &idle(2)).unwrap();
    assert_eq!(machine.next(&idle(3)), Some(Act::CreateCandidate));
    assert_eq!(machine.next(&Look { side: Errand::Done(Ok(())), ..tried(4000, 900) }), None);
    assert_eq!(machine.next(&tried(7000, 1000)), Some(Act::Dismiss(6)));
    assert_eq!(machine.record.image_to_start(), &new());
    assert_eq!(machine.next(&idle(8)), Some(Act::Quarantine(5)));
    assert_eq!(machine.next(&idle(8)), Some(Act::Destroy(5)));
    let gone = Look { domain: None, way: None, errand: Errand::Done(Ok(())), ..idle(9) };
    assert_eq!((machine.next(&gone), machine.record.image_to_start()), (Some(Act::Create), &new()));
    assert_eq!(machine.next(&Look { errand: Errand::Done(Ok(())), way: None, ..idle(10) }), None);
    assert_eq!(machine.next(&idle(11)), None);
    assert_eq!((machine.record.upgrades, &machine.record.image, machine.record.refused.as_str()), (1, &new(), ""));
}

/// One of a new image finds only some of the media.
#[test]
fn an_image_that_leaves_a_guest_without_its_disk_is_refused() {
    let disk = |guest| Device { guest, number: 51712 };
    let idle = |seconds| disks_look(seconds, Way { is_idle: true, ..Way::default() });
    // What one of the new image does not serve, of what the old one served: a guest that waited before, or has gone, is
    // none of that.
    let upgraded = |disks_without: Vec<Device>, began: u64| {
        let mut machine = disks_machine();
        machine.upgrade(new(), false, &idle(2)).unwrap();
        assert_eq!(machine.next(&idle(3)), Some(Act::CreateCandidate));
        let booted = |at_s, run_ms| {
            let beat = Beat { upcalls: 1, run: Duration::from_millis(run_ms), ..Beat::default() };
            Look { candidate: Some(Domain { id: 6, beats: vec![beat], ..Domain::default() }), ..idle(at_s) }
        };
        assert_eq!(machine.next(&Look { side: Errand::Done(Ok(())), ..booted(4, 900) }), None);
        assert_eq!(machine.next(&booted(7, 1000)), Some(Act::Dismiss(6)));
        let served = Look { disks: vec![disk(7), disk(8)], disks_without: vec![disk(9)], ..idle(8) };
        assert_eq!(machine.next(&served), Some(Act::Quarantine(5)));
        assert_eq!(machine.next(&served), Some(Act::Destroy(5)));
        // The next daemon knows it, too.
        let mut machine = Machine::new(settings(), &words::DISK, machine.record);
        let gone = Look { domain: None, way: None, ..idle(9) };
        assert_eq!((machine.next(&gone), machine.next(&gone)), (None, Some(Act::Create)));
        let created =
            Look { errand: Errand::Done(Ok(())), way: None, disks_without: vec![disk(7), disk(8)], ..idle(10) };
        assert_eq!(machine.next(&created), None);
        let now = |seconds| Look { disks: vec![disk(8)], disks_without: disks_without.clone(), ..idle(seconds) };
        let acts = (began..began + 59).find_map(|seconds| machine.next(&now(seconds)));
        assert_eq!(acts, None);
        let acts = machine.next(&now(began + 60));
        (acts, machine.record.upgrades, machine.record.image.clone(), machine.record.refused)
    };
    assert_eq!(upgraded(vec![disk(9)], 11), (None, 1, new(), String::new()));
    let (act, upgrades, image, refused) = upgraded(vec![disk(9), disk(7)], 11);
    assert_eq!((act, upgrades, image), (Some(Act::Quarantine(5)), 1, Image::default()));
    assert_eq!(refused, "of the new one: vbd 51712 of domain 7, which the old one served, is not served within 60 s");
}

#[test]
fn one_of_disks_that_is_rolled_back_is_upgraded_by_one_that_can_be_too() {
    let mut world = World::with_snapshot_of(&words::DISK);
    world.acts.clear();
    world.upgrade(None).unwrap();
    world.run(Duration::from_secs(20));
    let all = [
        Act::CreateCandidate,
        Act::Note(2),
        Act::Quarantine(1),
        Act::Take(1),
        Act::Promote(2),
        Act::HandOver(2),
        Act::ClearAway(1),
    ];
    assert_eq!((&world.acts[..], world.machine.record.refused.as_str()), (&all[..], ""));
    assert_eq!((world.is_well(), world.machine.snapshot(), world.count("recovered")), (true, Some(true), 2));
}

/// A disk that is a network's: what its driver domain does not do while there is no way there is not held against it.
#[test]
fn one_whose_network_is_away_is_not_blamed() {
    let mut machine = disks_machine();
    let way = |seconds| {
        let queue = Queue { is_waiting: true, taken: 1, overdue_for: Duration::from_secs(seconds) };
        Way { queue, ..Way::default() }
    };
    let look = |seconds, is_cut_off| Look { is_cut_off, ..disks_look(seconds, way(seconds)) };
    for seconds in 10..1000 {
        assert_eq!(machine.next(&look(seconds, true)), None, "{seconds}");
    }
    // From now on it could, and it may be two minutes until it tries again.
    for seconds in [1000, 1060, 1119, 1128] {
        assert_eq!(machine.next(&look(seconds, false)), None, "{seconds}");
    }
    assert_eq!(machine.next(&look(1129, false)), Some(Act::Quarantine(5)));
    assert_eq!(machine.record.counts.get("undrained"), Some(&1));
    // What is its own fault is noticed all the same.
    let mut machine = disks_machine();
    let mut wedged = look(10, true);
    wedged.domain.as_mut().unwrap().beats =
        vec![Beat { wedged_for: Some(Duration::from_millis(500)), upcalls: 1, ..Beat::default() }];
    assert_eq!(machine.next(&wedged), Some(Act::Quarantine(5)));
}

#[test]
fn one_that_waits_for_its_network_may_take_its_time_to_become_ready() {
    let mut machine = Machine::new(settings(), &words::DISK, Record::default());
    let look = |seconds, is_cut_off| Look { way: None, is_cut_off, ..disks_look(seconds, Way::default()) };
    for seconds in 1..1000 {
        assert_eq!(machine.next(&look(seconds, true)), None, "{seconds}");
    }
    // As long as one has that is started then: 20 seconds.
    assert_eq!((machine.next(&look(1000, false)), machine.next(&look(1017, false))), (None, None));
    assert_eq!(machine.next(&look(1030, false)), Some(Act::Quarantine(5)));
    assert_eq!(machine.record.counts.get("not-ready"), Some(&1));
}

/// A look at a driver domain that is looked after for a network, by which packets come and go, and that serves another
/// service's disks.
fn beside_a_network(seconds: u64, way: Option<Way>) -> Look {
    let net = Way { queue: Queue { taken: 100 * seconds, ..Queue::default() }, came: 100 * seconds, ..Way::default() };
    let others = vec![OtherWay { service: "disk".into(), kind: Kind::Disk, way, may_be_none: true }];
    Look { others, ..disks_look(seconds, net) }
}

fn network_machine(settings: Settings) -> Machine {
    let mut machine = Machine::new(settings, &words::NET, Record::default());
    for _ in 0..4 {
        // It may make one that waits.
        machine.next(&beside_a_network(1, None));
    }
    assert_eq!(machine.state(), "up");
    machine
}

#[test]
fn a_disks_back_end_that_lies_is_replaced_though_its_driver_domain_is_looked_after_for_a_network() {
    let lies = Way { has_lied: true, ..Way::default() };
    let loses = Way { has_lost: true, ..Way::default() };
    for (way, cause, words) in [(lies, "bad-ring", "ring"), (loses, "empty-read", "brought nothing")] {
        let mut machine = network_machine(settings());
        let act = machine.next(&beside_a_network(2, Some(way)));
        assert_eq!((act, machine.record.counts.get(cause)), (Some(Act::Quarantine(5)), Some(&1)));
        let is_told = |line: &String| line.starts_with("disk: it has ") && line.contains(words);
        assert!(machine.said.iter().any(is_told), "{:?}", machine.said);
        assert_eq!(machine.record.failures.len(), 1, "it counts as any other failure");
    }
}

#[test]
fn a_disk_of_another_service_that_nobody_answers_is_noticed_by_the_limits_of_disks() {
    let stuck = |overdue_s| {
        let queue = Queue { is_waiting: true, taken: 1, overdue_for: Duration::from_secs(overdue_s) };
        Some(Way { queue, ..Way::default() })
    };
    let mut machine = network_machine(settings());
    assert_eq!((2..62).find_map(|seconds| machine.next(&beside_a_network(seconds, stuck(0)))), None);
    assert_eq!(machine.next(&beside_a_network(62, stuck(0))), Some(Act::Quarantine(5)));
    let why = "disk: it has answered nothing of what guests have asked their disks for for 60000 ms";
    assert!(machine.said.iter().any(|line| line.starts_with(why)), "{:?}", machine.said);
    assert_eq!(machine.record.counts.get("undrained"), Some(&1));
    // One request among others that are answered.
    let mut machine = network_machine(settings());
    let lost = |seconds| {
        let way = stuck(seconds).unwrap();
        Some(Way { queue: Queue { taken: seconds, ..way.queue }, ..way })
    };
    assert_eq!((2..302).find_map(|seconds| machine.next(&beside_a_network(seconds, lost(seconds)))), None);
    assert_eq!(machine.next(&beside_a_network(302, lost(302))), Some(Act::Quarantine(5)));
    assert_eq!(machine.record.counts.get("overdue"), Some(&1));
    // Nobody wants that.
    let mut machine = network_machine(Settings { undrained_ms: Some(0), ..settings() });
    assert_eq!((2..1000).find_map(|seconds| machine.next(&beside_a_network(seconds, stuck(seconds)))), None);
}

#[test]
fn an_error_of_another_services_disk_is_the_mediums_if_two_in_a_row_say_so() {
    let failed = Some(Way { has_failed: true, ..Way::default() });
    let mut machine = network_machine(Settings { standby: 1, ..settings() });
    assert_eq!(machine.next(&beside_a_network(2, failed)), Some(Act::Quarantine(5)));
    let record = &machine.record;
    assert_eq!((record.counts.get("failed-request"), record.is_believed, record.failures.len()), (Some(&1), true, 0));
    let mut machine = network_machine(settings());
    assert_eq!(machine.next(&beside_a_network(2, failed)), None, "the next one would take its time");
}

#[test]
fn what_is_not_done_for_another_service_while_it_is_paused_is_not_held_against_it() {
    let stuck = Some(Way { queue: Queue { is_waiting: true, taken: 1, ..Queue::default() }, ..Way::default() });
    let mut machine = network_machine(settings());
    for seconds in 2..200 {
        let mut look = beside_a_network(seconds, stuck);
        look.domain.as_mut().unwrap().is_paused = seconds >= 30;
        assert_eq!(machine.next(&look), None, "{seconds}");
    }
    assert_eq!((200..260).find_map(|seconds| machine.next(&beside_a_network(seconds, stuck))), None);
    assert_eq!(machine.next(&beside_a_network(260, stuck)), Some(Act::Quarantine(5)));
}
