//! What one disk costs the others, and the service.

use super::*;

#[test]
fn what_happens_to_one_disk_costs_others_nothing() {
    let mut bench = Bench::new();
    bench.world().create_driver(5);
    let other = "/local/domain/3/backend/vbd/9/51712";
    for (key, value) in [("frontend", "/local/domain/9/device/vbd/51712"), ("online", "1"), ("state", "1")] {
        bench.world().set(&format!("{other}/{key}"), value);
    }
    bench.world().set("/local/domain/9/device/vbd/51712/state", "1");
    bench.run();
    assert_eq!(bench.back(), Some(5));
    // How often the hypervisor's list was gone through, to its end after one disk, and whether somebody has looked at
    // the other disk.
    let looks = |bench: &mut Bench, path: &str| {
        bench.world().nr_listed = 0;
        bench.world().asked.clear();
        let event = Event { path: path.into(), token: bench.service.token() };
        bench.service.handle(&[event], bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
        let world = bench.world();
        (world.nr_listed / 2, world.asked.iter().any(|path| path.starts_with(other)))
    };
    let far = "/local/domain/5/backend/vbd/3/0/state";
    for path in [&format!("{FRONT}/state"), &format!("{FRONT}/state/x"), &format!("{BACK}/online"), far] {
        assert_eq!(looks(&mut bench, path), (1, false), "{path}");
    }
    for path in ["@releaseDomain", "/local/domain/5/name", "/local/domain/3/backend/vbd/7"] {
        assert_eq!(looks(&mut bench, path), (1, true), "{path}");
    }
    // However many steps there are.
    bench.world().destroy_driver(5);
    bench.world().create_driver(6);
    assert_eq!(looks(&mut bench, "@introduceDomain"), (1, true));
    assert!(bench.places().iter().any(|path| path.starts_with("/local/domain/6/")));
    bench.run();
    assert_eq!(bench.back(), Some(6));
    // Nobody has to look at all for what is under way.
    bench.service.next_look = bench.now + UNTIL_NEXT;
    bench.now += UNTIL_TRIED;
    bench.world().asked.clear();
    bench.service.handle(&[], bench.now, &mut bench.world.clone(), &mut bench.world.clone()).unwrap();
    let asked = |of: &str| bench.world().asked.iter().any(|path| path.starts_with(of));
    assert!(asked(other) && !asked(FRONT));
}

#[test]
fn the_domain_may_end_when_it_is_asked_to_until_it_is_gone() {
    let mut bench = Bench::new();
    bench.world().nodes.remove(BACK);
    bench.run();
    // What becomes of it when this is told.
    let fate = |bench: &mut Bench, path: Option<&str>| {
        let token = bench.service.token();
        let event = path.map(|path| Event { path: path.into(), token });
        let (mut store, mut disks) = (bench.world.clone(), bench.world.clone());
        bench.service.handle(event.as_slice(), bench.now, &mut store, &mut disks).unwrap()
    };
    bench.world().set("/local/domain/3/control/shutdown", "poweroff");
    assert_eq!(fate(&mut bench, None), Fate::Lives, "nobody has told of it");
    assert_eq!(fate(&mut bench, Some("/local/domain/3/control/shutdown")), Fate::MayEnd);
    // Whoever ends it may have to try that again, when nothing happens.
    assert_eq!(fate(&mut bench, None), Fate::MayEnd);
    bench.service.set_changing(true);
    assert_eq!(fate(&mut bench, Some("/local/domain/3/vm")), Fate::MayEnd);
    bench.service.set_changing(false);
    bench.world().create_guest();
    assert_eq!(fate(&mut bench, Some(&format!("{BACK}/state"))), Fate::Lives, "somebody needs it");
    assert_eq!(fate(&mut bench, None), Fate::Lives);
}

#[test]
fn one_disk_too_many_is_told_of_and_has_its_turn() {
    let mut bench = Bench::new();
    bench.service.nr_slots = 1;
    bench.world().create_driver(5);
    bench.run();
    create_other(&bench);
    bench.run();
    let said = bench
        .service
        .lines
        .said
        .iter()
        .filter(|line| line.contains("domain 9: there is no room for its back end: the service has 1"));
    assert_eq!(said.count(), 1, "{:?}", bench.service.lines.said);
    bench.world().set(&format!("{BACK}/online"), "0");
    bench.world().set(&format!("{BACK}/state"), "5");
    bench.world().set(&format!("{FRONT}/state"), "6");
    bench.run();
    assert_eq!(bench.world().get(&format!("{NEAR}/serves")), Some("9/51712"));
}

#[test]
fn what_one_disk_lacks_does_not_end_the_service() {
    let mut bench = Bench::new();
    bench.world().has_no_memory = true;
    bench.world().create_driver(5);
    bench.run();
    assert_eq!(bench.back(), None);
    bench.world().has_no_memory = false;
    bench.run();
    assert_eq!(bench.back(), Some(5));
}

/// The driver domain's script takes both for one guest's.
#[test]
fn a_medium_that_one_guest_may_write_is_no_other_guests() {
    let other = "/local/domain/3/backend/vbd/9/51712";
    let served = |bench: &Bench| {
        let world = bench.world();
        world.nodes.all().filter(|(path, value)| path.ends_with("/serves") && value.starts_with("9/")).count()
    };
    // Modes and VMs of both, the other one's target and script, and whether it gets a back end.
    for (modes, vms, target, script, may) in [
        (["w", "w"], ["/vm/a", "/vm/b"], "/dev/x", "/etc/xen/scripts/block", false),
        (["w", "r"], ["/vm/a", "/vm/b"], "/dev/x", "block", false),
        (["r", "w"], ["/vm/a", "/vm/b"], "/dev/x", "", false),
        (["r", "r"], ["/vm/a", "/vm/b"], "/dev/x", "block", true),
        // It moves to where it is.
        (["w", "w"], ["/vm/a", "/vm/a"], "/dev/x", "block", true),
        (["w", "w"], ["/vm/a", ""], "/dev/x", "block", true),
        (["w", "w"], ["/vm/a", "/vm/b"], "/dev/y", "block", true),
        (["w", "w"], ["/vm/a", "/vm/b"], "/dev/x", "/etc/xen/scripts/block-iscsi", true),
    ] {
        let mut bench = Bench::new();
        bench.world().set(&format!("{BACK}/mode"), modes[0]);
        bench.world().create_driver(5);
        bench.run();
        create_other(&bench);
        for (key, value) in [("params", target), ("mode", modes[1]), ("script", script)] {
            if !value.is_empty() {
                bench.world().set(&format!("{other}/{key}"), value);
            }
        }
        for (guest, vm) in [7, 9].into_iter().zip(vms).filter(|(_, vm)| !vm.is_empty()) {
            bench.world().set(&format!("/local/domain/{guest}/vm"), vm);
        }
        bench.run();
        assert_eq!(served(&bench) > 0, may, "{modes:?} {vms:?} {target} {script}");
        let why = "vbd 51712 of domain 9: it gets no medium: /dev/x is that of vbd 51712 of domain 7";
        let said = bench.service.lines.said.iter().filter(|line| line.contains(why)).count();
        assert_eq!(said, usize::from(!may), "{:?}", bench.service.lines.said);
        // Who has it keeps it, whoever else wants it.
        bench.world().destroy_driver(5);
        bench.world().create_driver(6);
        bench.run();
        assert_eq!(bench.back(), Some(6));
        // It goes, and the other one has its turn.
        bench.world().set(&format!("{BACK}/online"), "0");
        bench.world().set(&format!("{BACK}/state"), "5");
        bench.world().set(&format!("{FRONT}/state"), "6");
        bench.run();
        assert!(bench.back().is_none() && served(&bench) > 0);
    }
}

#[test]
fn guests_that_have_one_medium_already_keep_it() {
    let mut bench = Bench::new();
    bench.world().create_driver(5);
    bench.run();
    create_other(&bench);
    for (key, value) in [("params", "/dev/x"), ("mode", "w")] {
        bench.world().set(&format!("/local/domain/3/backend/vbd/9/51712/{key}"), value);
    }
    bench.run();
    bench.world().set("/local/domain/7/vm", "/vm/a");
    bench.world().set("/local/domain/9/vm", "/vm/b");
    bench.world().destroy_driver(5);
    bench.world().create_driver(6);
    bench.run();
    assert_eq!(bench.back(), Some(6));
}
