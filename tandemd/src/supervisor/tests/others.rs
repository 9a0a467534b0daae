//! Ways out of other services whose driver domain it is, too.

use super::super::health::{Beat, Queue};
use super::super::look::{Act, Domain, Look, OtherWay, Way};
use super::super::machine::Machine;
use super::super::record::Record;
use super::super::words;
use super::world::settings;
use crate::config::Kind;
use control::Order;
use std::time::Duration;

/// Packets come and go by it.
fn carries(seconds: u64) -> Way {
    let queue = Queue { taken: 100 * seconds, ..Queue::default() };
    Way { queue, came: 100 * seconds, ..Way::default() }
}

/// A look at one with two cards, which is looked after for `net`. `far`: the way of the other service.
fn look(seconds: u64, far: Option<Way>) -> Look {
    let beat = Beat { vcpu: 0, upcalls: 1, ..Beat::default() };
    Look {
        now: Duration::from_secs(seconds),
        domain: Some(Domain { id: 5, beats: vec![beat], ..Domain::default() }),
        has_all: true,
        has_devices: true,
        is_served: true,
        way: Some(carries(seconds)),
        others: vec![OtherWay { service: "far".into(), kind: Kind::Net, way: far, may_be_none: false }],
        ..Look::default()
    }
}

fn machine(far: Option<Way>) -> Machine {
    let mut machine = Machine::new(settings(), &words::NET, Record::default());
    for _ in 0..4 {
        assert_eq!(machine.next(&look(1, far)), None);
    }
    assert_eq!(machine.state(), "up");
    machine
}

#[test]
fn one_that_is_no_way_out_of_another_service_any_more_is_replaced() {
    let mut lost = machine(Some(carries(1)));
    assert_eq!((2..22).find_map(|seconds| lost.next(&look(seconds, None))), None);
    assert_eq!(lost.next(&look(22, None)), Some(Act::Quarantine(5)));
    assert_eq!(lost.record.counts.get("way-lost"), Some(&1));
    let why = "far: its interface has been gone for 20 s";
    assert!(lost.said.iter().any(|line| line.starts_with(why)), "{:?}", lost.said);
    // It comes back in time, each time.
    let mut back = machine(Some(carries(1)));
    for seconds in 2..200_u64 {
        let far = seconds.is_multiple_of(15).then(|| carries(seconds));
        assert_eq!(back.next(&look(seconds, far)), None, "{seconds}");
    }
    // One that never was it is let alone: one instance is replaced in vain at most.
    let mut never = machine(None);
    assert_eq!((2..500).find_map(|seconds| never.next(&look(seconds, None))), None);
}

#[test]
fn one_whose_cable_is_out_need_not_be_another_services_way_out() {
    let mut machine = machine(Some(carries(1)));
    for seconds in 2..500 {
        let mut look = look(seconds, None);
        look.others[0].may_be_none = true;
        assert_eq!(machine.next(&look), None, "{seconds}");
    }
}

#[test]
fn what_waits_at_another_services_switch_and_is_not_taken_is_noticed() {
    let mut machine = machine(Some(carries(1)));
    let stuck = Way { queue: Queue { is_waiting: true, taken: 100, ..Queue::default() }, came: 100, ..Way::default() };
    assert_eq!((2..12).find_map(|seconds| machine.next(&look(seconds, Some(stuck)))), None);
    assert_eq!(machine.next(&look(12, Some(stuck))), Some(Act::Quarantine(5)));
    let why = "far: it has taken nothing of what waits for the outside for 10000 ms";
    assert!(machine.said.iter().any(|line| line.starts_with(why)), "{:?}", machine.said);
}

#[test]
fn one_of_disks_that_is_also_a_way_out_sends_what_it_has_before_it_is_restarted() {
    for (far, act) in [(Some(carries(1)), Act::Drain(5)), (None, Act::Quarantine(5))] {
        let mut machine = Machine::new(settings(), &words::DISK, Record::default());
        for _ in 0..4 {
            assert_eq!(machine.next(&look(1, far)), None);
        }
        assert_eq!(machine.command(Order::Restart, &look(2, far)), Ok(Some(act)));
    }
}
