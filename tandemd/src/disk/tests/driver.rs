//! Driver domains come, die, are parked, and begin again.

use super::*;
use xen_abi::channel_op::{DISK_FLUSH, DISK_WRITE};

#[test]
fn a_guest_waits_for_a_driver_domain_and_is_told_what_its_medium_is() {
    let mut bench = Bench::new();
    bench.run();
    assert_eq!((bench.back(), bench.world().get(&format!("{FRONT}/state"))), (None, Some("3")));
    bench.world().create_driver(5);
    bench.run();
    assert_eq!((bench.back(), bench.world().get(&format!("{FRONT}/state"))), (Some(5), Some("4")));
    assert_eq!(bench.world().disk().unwrap().flags, DISK_WRITE | DISK_FLUSH);
    assert_eq!(bench.world().get(&format!("{NEAR}/state")), Some("4"));
}

#[test]
fn a_back_end_that_only_begins_again_does_not_fill_the_log() {
    let mut bench = Bench::new();
    bench.world().create_driver(5);
    bench.run();
    let far = "/local/domain/5/backend/vbd/3/0/state";
    for _ in 0..1000 {
        bench.world().nodes.remove(far);
        bench.world().plugged.clear();
        bench.world().disks.values_mut().for_each(|disk| disk.back = DISK_NO_BACK);
        let event = Event { path: far.into(), token: bench.service.token() };
        bench.now += Duration::from_millis(1);
        bench.service.handle(&[event], bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
    }
    assert!((10..=25).contains(&bench.service.lines.said.len()), "{:?}", bench.service.lines.said);
    assert_eq!(bench.back(), Some(DISK_NO_BACK));
    bench.run();
    assert_eq!(bench.back(), Some(5));
}

#[test]
fn a_guest_is_shown_nothing_when_its_driver_domain_dies_and_another_comes() {
    let mut bench = Bench::new();
    bench.world().create_driver(10);
    bench.run();
    for domain in 11..14 {
        bench.world().destroy_driver(domain - 1);
        bench.run();
        assert_eq!(bench.back(), Some(DISK_NO_BACK));
        bench.world().create_driver(domain);
        // The two before still have pages.
        bench.world().in_use.extend([0, 1]);
        bench.run();
        assert_eq!(bench.back(), Some(DISK_NO_BACK));
        // And then only one.
        bench.world().in_use.remove(&usize::from(domain % 2 == 1));
        bench.run();
        assert_eq!(bench.back(), Some(domain));
        // Whoever serves now.
        bench.world().nodes.connect_again();
        let mut store = bench.world.clone();
        bench.service = DiskService::start("disk", DOMAIN, Some("dd".into()), &mut store).unwrap();
    }
    assert_eq!(bench.world().shown, ["1", "2", "4"]);
}

#[test]
fn the_disk_of_a_suspended_guest_gets_its_back_end_when_that_goes_on() {
    let mut bench = Bench::new();
    bench.world().create_driver(5);
    bench.run();
    bench.world().destroy_driver(5);
    bench.world().is_suspended = true;
    bench.world().create_driver(6);
    bench.run();
    let nr_ports = bench.world().nr_ports;
    bench.run();
    assert_eq!((bench.back(), bench.world().nr_ports), (Some(DISK_NO_BACK), nr_ports), "its back end begins again");
    bench.world().is_suspended = false;
    bench.step();
    assert_eq!(bench.back(), Some(6));
}

#[test]
fn a_back_end_that_begins_again_leaves_no_port_open() {
    let mut bench = Bench::new();
    bench.world().refuses = true;
    for domain in 10..13 {
        bench.world().create_driver(domain);
        bench.run();
        assert!(bench.world().nr_ports > 3 && bench.world().ports.len() <= 1, "{:?}", bench.world().ports);
        bench.world().destroy_driver(domain);
    }
    bench.world().create_driver(13);
    bench.world().refuses = false;
    bench.run();
    assert_eq!((bench.back(), bench.world().ports.len()), (Some(13), 0));
    // One that is taken away in between.
    bench.world().refuses = true;
    bench.world().destroy_driver(13);
    bench.world().create_driver(14);
    bench.run();
    bench.world().set(&format!("{BACK}/online"), "0");
    bench.world().set(&format!("{BACK}/state"), "5");
    bench.world().set(&format!("{FRONT}/state"), "6");
    bench.run();
    assert_eq!((bench.back(), bench.world().ports.len()), (None, 0));
}

#[test]
fn while_its_driver_domain_is_parked_a_guest_gets_errors_and_is_shown_nothing() {
    let mut bench = Bench::new();
    bench.world().create_driver(5);
    bench.run();
    bench.world().destroy_driver(5);
    bench.run();
    let has_given_up = |bench: &Bench| bench.world().disk().unwrap().state & DISK_GIVEN_UP != 0;
    assert!(!has_given_up(&bench));
    bench.service.set_parked(true);
    bench.run();
    assert!(has_given_up(&bench));
    bench.service.set_parked(false);
    bench.run();
    assert!(!has_given_up(&bench));
    bench.service.set_parked(true);
    bench.run();
    bench.service.set_parked(false);
    bench.world().create_driver(6);
    bench.run();
    assert!(!has_given_up(&bench) && bench.back() == Some(6));
    assert_eq!(bench.world().shown, ["1", "2", "4"]);
}

#[test]
fn a_driver_domain_that_loses_a_device_has_its_disks_back_at_once() {
    let mut bench = Bench::new();
    let device = "/local/domain/0/backend/pci/5/0/state-1";
    bench.world().create_driver(5);
    bench.world().set(device, "4");
    bench.run();
    let told = |bench: &Bench| -> Vec<Event> {
        std::iter::from_fn(|| bench.world().nodes.next_event(None).unwrap()).collect()
    };
    drop(told(&bench));
    bench.service.next_look = bench.now + UNTIL_NEXT;
    // Whoever takes the device away has the hypervisor take the disks first.
    bench.world().disks.values_mut().for_each(|disk| disk.back = DISK_NO_BACK);
    bench.world().set(device, "5");
    for _ in 0..6 {
        let events = told(&bench);
        bench.service.handle(&events, bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
        bench.world().others();
    }
    assert_eq!(bench.back(), Some(5));
}

#[test]
fn a_driver_domain_that_the_store_does_not_know_yet_gets_nothing() {
    let mut bench = Bench::new();
    bench.world().create_driver(5);
    bench.world().is_early = true;
    bench.run();
    assert!(!bench.world().nodes.paths().any(|path| path.starts_with("/local/domain/5/backend")));
    bench.world().is_early = false;
    bench.run();
    assert_eq!(bench.back(), Some(5));
}
