//! A driver domain waits to take the place of the one that serves.

use super::*;

#[test]
fn what_is_made_ahead_takes_no_place_that_another_disk_needs() {
    let mut bench = Bench::new();
    bench.service.nr_slots = 2;
    bench.world().create_driver(10);
    bench.world().create_waiting(11);
    bench.run();
    let second = "/local/domain/3/device/vbd/1/serves";
    assert_eq!(bench.world().get(second), Some("7/51712"));
    create_other(&bench);
    bench.run();
    assert_eq!(bench.world().get(second), Some("9/51712"));
    assert!(bench.world().nodes.paths().all(|path| !path.starts_with("/local/domain/11/backend/")));
    assert!(bench.world().nodes.watched().all(|path| !path.starts_with("/local/domain/11/backend/")));
    // The one that waited takes the place, and has no back ends there yet.
    assert_eq!(bench.back(), Some(10));
    bench.world().destroy_driver(10);
    bench.world().create_driver(11);
    bench.run();
    assert_eq!(bench.back(), Some(11));
}

#[test]
fn who_waits_to_take_the_place_has_a_back_end_that_lacks_nothing_but_the_medium() {
    let mut bench = Bench::new();
    bench.world().create_driver(10);
    bench.run();
    // They have slots 1 and 0 in turns.
    for domain in 11..16 {
        let slot = domain % 2;
        bench.world().create_waiting(domain);
        bench.run();
        let (near, far) =
            (format!("/local/domain/3/device/vbd/{slot}"), format!("/local/domain/{domain}/backend/vbd/3/{slot}"));
        let state = |bench: &Bench, end: &str| bench.world().get(&format!("{end}/state")).map(String::from);
        assert_eq!((bench.back(), state(&bench, &near).as_deref()), (Some(domain - 1), Some("3")));
        // What is to be known of it is told from now on.
        let told = [format!("/local/domain/{domain}/name"), format!("{far}/state")];
        assert!(told.iter().all(|path| bench.world().nodes.watched().any(|watched| watched == path)));
        assert_eq!(state(&bench, &far).as_deref(), Some("2"));
        let ring = bench.world().get(&format!("{near}/ring-ref")).map(String::from).unwrap();
        // It takes the place, and its device comes.
        bench.world().destroy_driver(domain - 1);
        bench.world().create_driver(domain);
        bench.world().set(&format!("{far}/physical-device"), "103:0");
        bench.world().others();
        let event = Event { path: taken_by("disk"), token: bench.service.token() };
        bench.service.handle(&[event], bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
        assert_eq!(bench.back(), Some(domain), "at once");
        assert_eq!(bench.world().get(&format!("{near}/ring-ref")), Some(&*ring));
        // Nothing stays of the one before.
        bench.run();
        assert_eq!(bench.places(), [format!("{far}/state"), format!("{near}/state")]);
        assert!(bench.world().ports.is_empty());
    }
    assert_eq!(bench.world().shown, ["1", "2", "4"]);
}

#[test]
fn who_waits_has_its_back_end_soon_after_the_disk_has_one_and_soon_after_it_came() {
    let mut bench = Bench::new();
    bench.world().create_driver(10);
    bench.world().create_waiting(11);
    let is_ready = |bench: &Bench| bench.world().get("/local/domain/3/device/vbd/1/state") == Some("3");
    for _ in 0..60 {
        bench.step();
        if bench.back().is_some_and(|back| back != DISK_NO_BACK) {
            break;
        }
    }
    assert_eq!((bench.back(), is_ready(&bench)), (Some(10), false));
    (0..4).for_each(|_| bench.step());
    assert!(is_ready(&bench), "a death in the first seconds finds nothing prepared");
    // The one that waits becomes another one.
    bench.world().destroy_driver(11);
    bench.world().disks.values_mut().for_each(|disk| disk.back = 10);
    bench.world().create_waiting(13);
    let event = Event { path: waits_for("disk"), token: bench.service.token() };
    bench.service.handle(&[event], bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
    (0..5).for_each(|_| bench.step());
    assert!(is_ready(&bench));
    let far = "/local/domain/13/backend/vbd/3/1/state";
    assert_eq!(bench.world().get(far), Some("2"));
    // When all is made, it is not looked oftener than before.
    bench.run();
    let looked = bench.now;
    while bench.service.due().is_some_and(|due| due > bench.now) {
        bench.now += Duration::from_millis(100);
    }
    bench.service.handle(&[], bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
    assert!(bench.service.due().is_some_and(|due| due >= bench.now + UNTIL_NEXT), "{:?}", bench.now - looked);
}

#[test]
fn while_the_place_changes_hands_nothing_is_done_and_nothing_is_forgotten() {
    let mut bench = Bench::new();
    bench.world().create_driver(10);
    bench.run();
    bench.world().create_waiting(11);
    bench.run();
    bench.world().destroy_driver(10);
    bench.world().create_driver(11);
    bench.world().set("/local/domain/11/backend/vbd/3/1/physical-device", "103:0");
    bench.world().others();
    bench.service.set_changing(true);
    let mut events = vec![Event { path: taken_by("disk"), token: bench.service.token() }];
    for _ in 0..3 {
        bench.service.handle(&events, bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
        assert_eq!(bench.back(), Some(DISK_NO_BACK));
        // Nobody looks all the time meanwhile, though it may have been time.
        assert_eq!(bench.service.due(), Some(bench.now + A_MOMENT));
        events.clear();
        bench.now += UNTIL_TRIED;
    }
    bench.service.set_changing(false);
    bench.service.handle(&[], bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
    assert_eq!(bench.back(), Some(11));
}

#[test]
fn nothing_stays_for_one_that_waited_and_went_or_whose_disk_went() {
    let mut bench = Bench::new();
    bench.world().create_driver(5);
    bench.run();
    let own = bench.places();
    for domain in 16..19 {
        bench.world().create_waiting(domain);
        bench.run();
        assert_eq!(bench.places().len(), 4);
        assert_eq!(bench.world().ports.len(), 1);
        // One that is called otherwise is none that waits.
        let left = if domain == 16 { "dd-standby-not" } else { "" };
        bench.world().destroy_driver(domain);
        bench.world().disks.values_mut().for_each(|disk| disk.back = 5);
        if !left.is_empty() {
            bench.world().set("/local/domain/16/name", left);
        }
        bench.run();
        assert_eq!(bench.places(), own);
        assert!(bench.world().ports.is_empty());
        assert!(bench.world().nodes.watched().all(|path| !path.contains(&format!("/{domain}/"))));
    }
    bench.world().create_waiting(19);
    bench.run();
    bench.world().set(&format!("{BACK}/online"), "0");
    bench.world().set(&format!("{BACK}/state"), "5");
    bench.world().set(&format!("{FRONT}/state"), "6");
    bench.run();
    assert_eq!((bench.places(), bench.back()), (vec![], None));
    assert!(bench.world().ports.is_empty());
}
