//! A guest is told of its medium what can be, and keeps it.

use super::*;

#[test]
fn a_guest_is_told_nothing_of_its_medium_that_is_no_number() {
    for said in ["x".repeat(4050), "1\n2".into(), String::new()] {
        let mut bench = Bench::new();
        bench.world().create_driver(5);
        while bench.places().is_empty() {
            bench.step();
        }
        let far = "/local/domain/5/backend/vbd/3/0";
        bench.world().set(&format!("{far}/info"), &said);
        bench.world().set(&format!("{far}/physical-sector-size"), "0512");
        bench.run();
        assert_eq!((bench.back(), bench.world().get(&format!("{FRONT}/state"))), (Some(5), Some("4")));
        assert_eq!(bench.world().get(&format!("{BACK}/info")), None);
        assert_eq!(bench.world().get(&format!("{BACK}/physical-sector-size")), Some("512"));
    }
}

#[test]
fn a_guest_is_connected_to_no_medium_that_cannot_be() {
    for said in ["0", "513", "1099511627776", "x"] {
        let mut bench = Bench::new();
        bench.world().create_driver(5);
        while bench.places().is_empty() {
            bench.step();
        }
        let far = "/local/domain/5/backend/vbd/3/0";
        bench.world().set(&format!("{far}/sector-size"), said);
        bench.run();
        assert_eq!((bench.back(), bench.world().get(&format!("{FRONT}/state"))), (None, Some("3")), "{said}");
        assert_eq!(bench.world().get(&format!("{BACK}/sector-size")), None);
        assert!(bench.world().nr_ports > 1, "it does not begin again");
        bench.world().set(&format!("{far}/sector-size"), "4096");
        bench.run();
        assert_eq!((bench.back(), bench.world().get(&format!("{FRONT}/state"))), (Some(5), Some("4")), "{said}");
        assert_eq!(bench.world().get(&format!("{BACK}/sector-size")), Some("4096"));
    }
}

/// A toolstack takes the device from a driver domain that it destroys, first of all.
#[test]
fn a_guest_that_comes_when_its_medium_has_just_gone_waits_for_the_next_driver_domain() {
    let mut bench = Bench::new();
    // It takes its time.
    bench.world().set(&format!("{FRONT}/state"), "2");
    bench.world().create_driver(10);
    bench.run();
    let far = "/local/domain/10/backend/vbd/3/0";
    assert_eq!((bench.back(), bench.world().get(&format!("{far}/state"))), (None, Some("4")));
    bench.world().medium = vec![("sectors", "0")];
    bench.world().set(&format!("{far}/sectors"), "0");
    bench.world().set(&format!("{FRONT}/state"), "1");
    bench.run();
    assert_eq!((bench.back(), bench.world().get(&format!("{FRONT}/state"))), (None, Some("3")));
    assert_eq!(bench.service.bad_media.values().collect::<Vec<_>>(), [&"a number of sectors that cannot be"]);
    assert_eq!(bench.world().get(&format!("{BACK}/sectors")), None);
    bench.world().destroy_driver(10);
    bench.world().medium.clear();
    bench.world().create_driver(11);
    bench.run();
    assert_eq!((bench.back(), bench.world().get(&format!("{BACK}/sectors"))), (Some(11), Some("4096")));
}

#[test]
fn a_guest_keeps_its_medium_and_gets_no_other_one() {
    let others = [
        ([("sectors", "4095")], medium::OTHER_SIZE),
        ([("sectors", "8192")], medium::LARGER),
        ([("sector-size", "4096")], medium::OTHER_SIZE),
    ];
    let mut bench = Bench::new();
    bench.world().create_driver(10);
    bench.run();
    for (domain, (other, why)) in (11..).step_by(2).zip(others) {
        bench.world().destroy_driver(domain - 1);
        bench.world().medium = other.into();
        bench.world().create_driver(domain);
        bench.run();
        assert_eq!(bench.back(), Some(DISK_NO_BACK), "{other:?}");
        assert_eq!(bench.service.bad_media.values().collect::<Vec<_>>(), [&why]);
        assert_eq!(bench.world().get(&format!("{BACK}/sectors")), Some("4096"));
        assert!(bench.world().ports.len() <= 1);
        // The same domain, if it finds the right one after all; or the next.
        bench.world().medium = vec![("sector-size", "512"), ("feature-flush-cache", "0")];
        bench.run();
        assert_eq!(bench.back(), Some(domain), "{other:?}");
        bench.world().destroy_driver(domain);
        bench.world().create_driver(domain + 1);
        bench.run();
        assert_eq!((bench.back(), bench.service.bad_media.len()), (Some(domain + 1), 0));
    }
    assert_eq!(bench.world().shown, ["1", "2", "4"]);
}

#[test]
fn a_guest_keeps_a_medium_that_has_grown_if_its_target_names_it_and_is_told_of_its_size() {
    let mut bench = Bench::new();
    bench.world().set(&format!("{BACK}/params"), "/dev/vg/u1");
    bench.world().create_driver(10);
    bench.run();
    bench.world().destroy_driver(10);
    bench.world().medium = vec![("sectors", "8192")];
    bench.world().create_driver(11);
    bench.run();
    assert_eq!((bench.back(), bench.world().get(&format!("{BACK}/sectors"))), (Some(11), Some("8192")));
    // Once, by its state.
    assert_eq!(bench.world().shown, ["1", "2", "4", "4"]);
    let grown = |line: &&String| line.contains("its medium has grown, to 8192 sectors");
    assert_eq!(bench.service.lines.said.iter().filter(grown).count(), 1, "{:?}", bench.service.lines.said);
    // What it has been told of is there no more.
    for (domain, other) in [(11, [("sectors", "8191")]), (12, [("sector-size", "4096")])] {
        bench.world().destroy_driver(domain);
        bench.world().medium = other.into();
        bench.world().create_driver(domain + 1);
        bench.run();
        assert_eq!((bench.back(), bench.world().get(&format!("{BACK}/sectors"))), (Some(DISK_NO_BACK), Some("8192")));
    }
    assert_eq!(bench.world().shown.len(), 4);
}

#[test]
fn a_medium_that_grows_while_it_is_served_is_told_of_and_kept_whatever_its_target_is() {
    let mut bench = Bench::new();
    let tell = |bench: &mut Bench| {
        let mut store = bench.world.clone();
        let events: Vec<Event> = std::iter::from_fn(|| store.next_event(None).unwrap()).collect();
        bench.service.handle(&events, bench.now, &mut store, &mut bench.world.clone()).unwrap();
    };
    let told = |bench: &Bench| bench.world().get(&format!("{BACK}/sectors")).map(String::from);
    bench.world().create_driver(10);
    bench.run();
    tell(&mut bench);
    let far = "/local/domain/10/backend/vbd/3/0";
    let says = |bench: &Bench, sectors: &str| {
        bench.world().set(&format!("{far}/sectors"), sectors);
        bench.world().set(&format!("{far}/state"), "4");
    };
    says(&bench, "8192");
    tell(&mut bench);
    assert_eq!((told(&bench).as_deref(), bench.world().shown.len()), (Some("8192"), 4));
    // Once, and nothing of one that has gone, or gets smaller.
    for sectors in ["8192", "0", "8191", "x"] {
        says(&bench, sectors);
        tell(&mut bench);
        assert_eq!((told(&bench).as_deref(), bench.world().shown.len()), (Some("8192"), 4), "{sectors}");
    }
    // While nobody looks, for one or another reason.
    bench.service.set_changing(true);
    says(&bench, "8200");
    tell(&mut bench);
    bench.service.set_changing(false);
    tell(&mut bench);
    assert_eq!(told(&bench).as_deref(), Some("8200"));
    bench.world().nodes.connect_again();
    bench.service = DiskService::start("disk", DOMAIN, Some("dd".into()), &mut bench.world.clone()).unwrap();
    says(&bench, "8208");
    (0..2).for_each(|_| tell(&mut bench));
    assert_eq!((told(&bench).as_deref(), bench.back()), (Some("8208"), Some(10)));
    // What does not say anything is not asked.
    bench.world().asked.clear();
    bench.run();
    assert!(!bench.world().asked.contains(&format!("{far}/sectors")));
    bench.world().destroy_driver(10);
    bench.world().medium = vec![("sectors", "8208")];
    bench.world().create_driver(11);
    bench.run();
    assert_eq!(bench.back(), Some(11));
    assert_eq!(bench.world().shown, ["1", "2", "4", "4", "4", "4"]);
}

#[test]
fn a_disk_that_is_given_no_medium_though_it_is_reminded_is_told_of_once() {
    let mut bench = Bench::new();
    let told = |bench: &Bench, driver: u16| {
        let is_it = |line: &&String| line.contains(&format!("in domain {driver} has had no medium for 30 s"));
        bench.service.lines.said.iter().filter(is_it).count()
    };
    bench.world().has_no_medium = true;
    bench.world().create_driver(5);
    (0..90).for_each(|_| bench.step());
    assert_eq!(told(&bench, 5), 0, "27 s may be what it takes");
    (0..300).for_each(|_| bench.step());
    assert_eq!((told(&bench, 5), bench.back()), (1, None));
    bench.world().has_no_medium = false;
    bench.run();
    assert_eq!((told(&bench, 5), bench.back()), (1, Some(5)));
    // The next one has none either.
    bench.world().destroy_driver(5);
    bench.world().has_no_medium = true;
    bench.world().create_driver(6);
    (0..300).for_each(|_| bench.step());
    assert_eq!((told(&bench, 5), told(&bench, 6)), (1, 1));
}

#[test]
fn a_disk_that_never_gets_its_medium_keeps_no_other_from_being_reminded() {
    let mut bench = Bench::new();
    bench.world().create_driver(5);
    let other = Device { guest: 70, number: 51_712 };
    for _ in 0..60 {
        bench.service.next_reminder.insert(other, bench.now + Duration::from_secs(3600));
        bench.step();
    }
    assert_eq!(bench.back(), Some(5));
}

#[test]
fn a_medium_that_is_a_file_is_told_of() {
    for (target, lines) in [("/srv/u1.img", 1), ("/dev/x", 0), ("/dev/vg/u1", 0)] {
        let mut bench = Bench::new();
        bench.world().set(&format!("{BACK}/params"), target);
        for driver in 5..8 {
            bench.world().create_driver(driver);
            bench.run();
            assert_eq!(bench.back(), Some(driver));
            bench.world().destroy_driver(driver);
        }
        let said = bench.service.lines.said.iter().filter(|line| line.contains("its medium is a file"));
        assert_eq!(said.count(), lines, "{target}: {:?}", bench.service.lines.said);
    }
}
