//! What a guest's end of a disk asks for, and when the disk is taken away from it.

use super::*;

#[test]
fn a_guest_has_the_weight_of_its_name() {
    for (name, weight) in [("u1", 768), ("u2", 0)] {
        let mut bench = Bench::new();
        bench.service = bench.service.with_weights([("u1".into(), 768)].into());
        bench.world().set(&name_of(7), name);
        bench.world().create_driver(10);
        bench.run();
        assert_eq!((bench.back(), bench.world().weight), (Some(10), weight));
    }
}

#[test]
fn nothing_stays_of_a_disk_that_is_taken_away_with_or_without_its_driver_domain() {
    for is_there in [true, false] {
        let mut bench = Bench::new();
        bench.world().create_driver(5);
        bench.run();
        if !is_there {
            bench.world().destroy_driver(5);
        }
        bench.world().set(&format!("{BACK}/online"), "0");
        bench.world().set(&format!("{BACK}/state"), "5");
        bench.world().set(&format!("{FRONT}/state"), "6");
        bench.run();
        assert_eq!(bench.back(), None);
        let left: Vec<String> = bench
            .world()
            .nodes
            .paths()
            .filter(|path| path.contains("vbd/") && !path.starts_with(FRONT))
            .map(String::from)
            .collect();
        assert_eq!(left, [""; 0], "with a driver domain: {is_there}");
        assert_eq!(bench.service.closed.len(), 0);
    }
}

/// Linux before 5.15 says that it is closing, and closes when nothing is mounted there any more; a guest that does not
/// run says nothing.
#[test]
fn a_disk_that_is_detached_while_its_guest_uses_it_has_back_ends_until_that_has_closed_it() {
    for says in ["5", "4"] {
        let mut bench = Bench::new();
        bench.world().create_driver(10);
        bench.run();
        bench.world().set(&format!("{FRONT}/state"), says);
        bench.world().set(&format!("{BACK}/online"), "0");
        bench.world().nodes.set(&format!("{BACK}/state"), "5");
        bench.world().is_detached = true;
        for domain in 11..14 {
            bench.run();
            assert_eq!(bench.back(), Some(domain - 1), "{says}");
            assert!(bench.service.unsettled.is_empty());
            bench.world().destroy_driver(domain - 1);
            bench.run();
            bench.world().create_driver(domain);
            // One waits to take the place after that.
            bench.world().create_waiting(20 + domain);
        }
        bench.run();
        assert_eq!(bench.back(), Some(13), "{says}");
        bench.world().set(&format!("{FRONT}/state"), "6");
        bench.run();
        assert_eq!((bench.back(), bench.places()), (None, vec![]), "{says}");
        assert!(bench.world().ports.is_empty());
        assert_eq!(bench.world().shown, ["1", "2", "4", "6"], "{says}");
    }
}

/// `xl devd` looks when it can, and does nothing for a disk that it takes for one that it has already.
#[test]
fn a_disk_that_is_attached_again_gets_its_medium_again() {
    for (is_slow, is_gone) in [(false, false), (true, false), (true, true)] {
        let mut bench = Bench::new();
        bench.world().create_driver(10);
        bench.run();
        assert_eq!(bench.back(), Some(10));
        bench.world().is_detached = true;
        bench.world().has_no_daemon = is_slow;
        bench.world().set(&format!("{BACK}/online"), "0");
        bench.world().nodes.set(&format!("{BACK}/state"), "5");
        bench.world().set(&format!("{FRONT}/state"), "6");
        (0..10).for_each(|_| bench.step());
        assert_eq!((bench.back(), bench.places().len()), (None, if is_slow { 2 } else { 0 }));
        if is_gone {
            // Nobody is waited for without a limit.
            bench.run();
            assert_eq!(bench.places().len(), 0);
            continue;
        }
        // The toolstack has what it waits for, and attaches the same again.
        bench.world().is_detached = false;
        bench.world().create_guest();
        bench.step();
        bench.world().has_no_daemon = false;
        bench.run();
        assert_eq!(bench.back(), Some(10), "slow {is_slow}");
    }
}

#[test]
fn what_is_under_way_may_end_before_a_disk_is_let_go_but_not_for_long() {
    let under_way = |bench: &Bench, nr| bench.world().disks.values_mut().for_each(|disk| disk.waiting = nr);
    for what in ["is answered", "never ends", "has nobody to end it"] {
        let mut bench = Bench::new();
        bench.world().create_driver(5);
        bench.run();
        under_way(&bench, 2);
        bench.world().set(&format!("{BACK}/online"), "0");
        bench.world().set(&format!("{BACK}/state"), "5");
        bench.world().set(&format!("{FRONT}/state"), "6");
        let event = Event { path: format!("{FRONT}/state"), token: bench.service.token() };
        bench.service.handle(&[event], bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
        (0..3).for_each(|_| bench.step());
        assert_eq!((bench.back(), bench.world().get(&format!("{BACK}/state"))), (Some(5), Some("5")), "{what}");
        match what {
            "is answered" => under_way(&bench, 0),
            "has nobody to end it" => bench.world().destroy_driver(5),
            _ => {}
        }
        bench.step();
        assert_eq!(bench.back().is_none(), what != "never ends");
        bench.run();
        assert_eq!((bench.back(), bench.places(), bench.service.draining.len()), (None, vec![], 0), "{what}");
    }
}

#[test]
fn a_ring_that_was_not_offered_is_refused_in_words() {
    let mut bench = Bench::new();
    bench.world().set(&format!("{FRONT}/ring-page-order"), "1");
    bench.world().create_driver(5);
    bench.world().set(&format!("{FRONT}/state"), "3");
    bench.world().set(&format!("{BACK}/state"), "2");
    bench.run();
    let error = bench.world().get("/local/domain/3/error/backend/vbd/7/51712/error").map(String::from);
    assert!(error.is_some_and(|why| why.contains("not offered")));
}
