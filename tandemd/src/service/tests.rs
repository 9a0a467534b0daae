//! The daemon beside a store, a hypervisor, a toolstack and front ends that are all made of maps: any of them takes the
//! next step, in any order, and the daemon may be killed between any two of its own.

mod world;

use super::*;
use crate::config::Config;
use crate::control;
use crate::hypercall::Switches;
use crate::look;
use ::control::Mode;
use proptest::prelude::*;
use world::{Daemon, World, DOMAIN};
use xen_abi::channel_op::{
    CONNECT_CSUM_IPV4, CONNECT_CSUM_IPV6, CONNECT_GSO_TCPV4, CONNECT_GSO_TCPV6, CONNECT_NO_OFFLOAD, CONNECT_UPLINK,
};

const A: Device = Device { guest: 7, number: 0 };
const B: Device = Device { guest: 8, number: 1 };

#[test]
fn a_guest_is_connected_and_detached_and_nothing_stays() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, None);
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    assert!(world.is_connected(A));
    assert_eq!(world.get(&world.back(A, "feature-rx-copy")).as_deref(), Some("1"));
    assert_eq!(world.get(&world.back(A, "hotplug-status")).as_deref(), Some("connected"));
    world.detach(A);
    world.settle(&mut daemon);
    assert_eq!((world.plugged(), world.rest()), (vec![], vec![]));
}

#[test]
fn a_front_end_that_comes_back_while_it_is_taken_away_keeps_nobody_awake() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, None);
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    world.detach(A);
    daemon.run();
    world.front(A);
    daemon.run();
    assert_eq!(world.state(A), (state::CLOSED, state::CLOSED));
    assert_eq!(daemon.rests_for(), Some(UNTIL_SEEN));
    world.lie(A, state::CONNECTED);
    daemon.run();
    world.wait();
    daemon.run();
    assert_eq!(daemon.rests_for(), None, "it waits for what the front end says next");
    world.lie(A, state::CLOSED);
    world.settle(&mut daemon);
    assert_eq!((world.plugged(), world.get(&world.back(A, "state"))), (vec![], None));
}

#[test]
fn the_rate_and_the_way_out_are_told() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, Some("dd"));
    world.set("/local/domain/7/name", "dd");
    world.set("/local/domain/8/name", "guest");
    world.create(A, "00:16:3e:00:00:01", None);
    world.create(B, "00:16:3e:00:00:02", Some("1000,50000"));
    world.settle(&mut daemon);
    let (a, b) = (world.request(A).unwrap(), world.request(B).unwrap());
    assert_eq!((a.flags & CONNECT_UPLINK, b.flags & CONNECT_UPLINK), (CONNECT_UPLINK, 0));
    assert_eq!((b.rate_bytes, b.rate_interval_us), (1000, 50000));
    assert_eq!(a.switch, b.switch);
}

#[test]
fn a_guest_has_a_queue_for_each_vcpu_but_not_as_the_way_out_nor_with_a_rate() {
    let queues = |name: &str, vcpus: u32, rate: Option<&str>| {
        let world = World::new();
        let mut daemon = Daemon::start(&world, Some("dd"));
        world.set("/local/domain/7/name", name);
        (0..vcpus).for_each(|n| world.set(&format!("/local/domain/7/cpu/{n}/availability"), "online"));
        world.create(A, "00:16:3e:00:00:01", rate);
        world.settle(&mut daemon);
        let asked = world.request(A).map(|request| (request.nr_queues, request.queues[0].tx_ring));
        (world.get(&world.back(A, "multi-queue-max-queues")).unwrap(), asked)
    };
    assert_eq!(queues("guest", 3, None), ("3".into(), Some((3, 8))));
    assert_eq!(queues("guest", 1, None), ("1".into(), Some((1, 8))));
    assert_eq!(queues("guest", 99, None), ("8".into(), Some((8, 8))));
    assert_eq!(queues("guest", 3, Some("1000,50000")), ("1".into(), Some((1, 8))), "one limit for all that it sends");
    assert_eq!(queues("dd", 3, None), ("1".into(), Some((1, 8))));
    assert_eq!(queues("dd-standby", 3, None), ("1".into(), None));
}

#[test]
fn without_offload_the_driver_domain_gets_packets_that_lack_nothing_and_guests_are_left_what_they_offer() {
    let offload = CONNECT_CSUM_IPV4 | CONNECT_CSUM_IPV6 | CONNECT_GSO_TCPV4 | CONNECT_GSO_TCPV6;
    let flags = |is_left: bool| {
        let world = World::new();
        let mut daemon = Daemon::start(&world, Some("dd"));
        if !is_left {
            daemon = daemon.without_offload();
        }
        world.set("/local/domain/7/name", "dd");
        world.set("/local/domain/8/name", "guest");
        world.create(A, "00:16:3e:00:00:01", None);
        world.create(B, "00:16:3e:00:00:02", None);
        world.settle(&mut daemon);
        [A, B].map(|device| world.request(device).unwrap().flags)
    };
    let ([dd, guest], [left, same]) = (flags(false), flags(true));
    assert_ne!(left & offload, 0, "it offers something");
    assert_eq!((dd, guest), (left & !offload | CONNECT_NO_OFFLOAD, same));
}

#[test]
fn who_waits_for_the_driver_domains_name_is_plugged_in_when_it_has_it() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, Some("dd"));
    world.set("/local/domain/7/name", "dd-standby");
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    assert!(world.plugged().is_empty());
    world.set("/local/domain/7/name", "dd");
    world.settle(&mut daemon);
    assert!(world.is_connected(A));
    assert_eq!(world.request(A).unwrap().flags & CONNECT_UPLINK, CONNECT_UPLINK);
    // One that goes without ever having been asked.
    world.set("/local/domain/8/name", "dd-standby");
    world.create(B, "00:16:3e:00:00:02", None);
    world.settle(&mut daemon);
    world.detach(B);
    world.settle(&mut daemon);
    assert!(world.is_connected(A) && world.request(B).is_none());
}

#[test]
fn while_the_place_changes_hands_nothing_is_done_and_nothing_is_forgotten() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, Some("dd"));
    world.set("/local/domain/7/name", "dd-standby");
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    daemon.set_changing(true);
    world.set("/local/domain/7/name", "dd");
    world.create(B, "00:16:3e:00:00:02", None);
    for _ in 0..3 {
        daemon.run();
        assert!(world.plugged().is_empty());
        // Nobody looks all the time meanwhile.
        assert!(daemon.rests_for().is_some_and(|rest| rest >= A_MOMENT));
        world.pass(A_MOMENT);
    }
    daemon.set_changing(false);
    assert!(daemon.rests_for().is_some_and(|rest| rest <= A_MOMENT));
    world.pass(A_MOMENT);
    daemon.run();
    assert_eq!(world.plugged(), [7]);
    world.settle(&mut daemon);
    assert!(world.is_connected(A) && world.is_connected(B));
}

#[test]
fn what_is_left_of_a_driver_domain_is_offered_its_interface_anew_when_nobody_waits_for_the_next_one() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, Some("dd"));
    world.set("/local/domain/7/name", "dd");
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    // The supervisor takes it out of the switch.
    world.close_ports(A);
    world.set("/local/domain/7/name", "dd-remains");
    world.pass(LATER - A_MOMENT);
    daemon.run();
    assert_eq!(world.state(A).0, state::CONNECTED);
    world.pass(LATER);
    daemon.run();
    assert_eq!(world.state(A).0, state::INIT_WAIT);
    // It hears of what it has done itself.
    world.pass(LATER);
    daemon.run();
    assert_eq!(daemon.rests_for(), None);
    // It goes.
    world.detach(A);
    world.settle(&mut daemon);
    assert_eq!(world.state(A), (state::UNKNOWN, state::UNKNOWN));
}

/// It is a guest here: its disks were a network's, say.
#[test]
fn what_is_left_of_another_services_driver_domain_is_not_plugged_in_again() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, Some("dd")).with_remains(&["dd-remains", "dd-disk-remains"]);
    world.set("/local/domain/7/name", "dd-disk");
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    assert_eq!(world.plugged(), [7]);
    // The supervisor takes it out of the switch. Its front end does not know of that.
    world.close_ports(A);
    world.open_ports(A);
    world.set("/local/domain/7/name", "dd-disk-remains");
    daemon.run();
    assert!(world.plugged().is_empty());
    world.detach(A);
    world.settle(&mut daemon);
    assert_eq!(world.state(A), (state::UNKNOWN, state::UNKNOWN));
}

#[test]
fn what_is_rolled_back_never_sees_that_its_back_end_has_closed() {
    for front in [state::CONNECTED, state::CLOSING, state::CLOSED] {
        let world = World::new();
        let mut daemon = Daemon::start(&world, Some("dd"));
        world.set("/local/domain/7/name", "dd");
        world.create(A, "00:16:3e:00:00:01", None);
        world.settle(&mut daemon);
        // It may have closed by itself, as one that reboots does.
        world.set(&world.front_key(A, "state"), &front.to_string());
        daemon.run();
        world.close_ports(A);
        world.set("/local/domain/7/name", "dd-remains");
        daemon.run();
        world.pass(LATER);
        daemon.run();
        assert_eq!(world.state(A).0, state::INIT_WAIT, "{front}");
        // It is as far as it was, and another one has just failed.
        daemon.set_changing(true);
        world.open_ports(A);
        world.set("/local/domain/7/data/link", "down");
        world.set(&world.front_key(A, "state"), &state::CONNECTED.to_string());
        world.set("/local/domain/7/name", "dd");
        daemon.run();
        assert_eq!(world.state(A).0, state::INIT_WAIT, "{front}");
        daemon.set_changing(false);
        world.pass(A_MOMENT);
        daemon.run();
        assert!(world.plugged().is_empty());
        world.set("/local/domain/7/data/link", "up");
        daemon.run();
        assert!(world.is_connected(A), "{front}: {:?}", world.state(A));
    }
}

#[test]
fn a_driver_domain_whose_link_is_down_is_not_the_way_out() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, Some("dd"));
    world.set("/local/domain/7/name", "dd");
    world.set("/local/domain/7/data/link", "down");
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    assert!(world.plugged().is_empty());
    world.set("/local/domain/7/data/link", "up");
    world.settle(&mut daemon);
    assert!(world.is_connected(A));
    // A guest may write there what it likes.
    world.set("/local/domain/8/data/link", "down");
    world.create(B, "00:16:3e:00:00:02", None);
    world.settle(&mut daemon);
    assert!(world.is_connected(B));
    world.set("/local/domain/7/data/link", "down");
    world.settle(&mut daemon);
    assert!(world.request(A).is_none() && world.is_connected(B));
}

/// One of two cards of a driver domain has no cable, and each is the way out of a service of its own.
#[test]
fn a_link_that_is_down_is_that_of_one_interface_if_the_driver_domain_says_so() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, Some("dd"));
    world.set("/local/domain/7/name", "dd");
    let link = |of: &str| format!("/local/domain/7/data/link{of}");
    world.set(&link(&format!("-{}", A.number)), "down");
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    assert!(world.plugged().is_empty());
    // What it says of all does not count for that one.
    world.set(&link(""), "up");
    world.settle(&mut daemon);
    assert!(world.plugged().is_empty());
    world.set(&link(&format!("-{}", A.number)), "up");
    world.settle(&mut daemon);
    assert!(world.is_connected(A));
    world.set(&link(&format!("-{}", A.number + 1)), "down");
    world.settle(&mut daemon);
    assert!(world.is_connected(A), "it is another one's");
    world.set(&link(""), "down");
    world.settle(&mut daemon);
    assert!(world.is_connected(A));
}

#[test]
fn what_there_is_can_be_looked_at() {
    let world = World::new();
    let config = Config::parse("[service.net]\ndriver-domain = \"dd\"\n[service.lab]\n").unwrap();
    let look = |world: &World, name| look::services(&config, name, &mut world.clone(), &mut world.clone());
    let none = look(&world, None).unwrap();
    assert_eq!(
        none.iter().map(|of| (of.name.as_str(), of.switch, of.mode)).collect::<Vec<_>>(),
        [("lab", None, None), ("net", None, None)]
    );
    let error = look(&world, Some("nat")).unwrap_err().to_string();
    assert!(error.contains("no service nat") && error.contains("lab, net"), "{error}");
    let mut daemon = Daemon::start(&world, Some("dd"));
    world.set("/local/domain/7/name", "dd");
    world.create(A, "00:16:3e:00:00:01", None);
    world.create(B, "00:16:3e:00:00:02", None);
    world.settle(&mut daemon);
    world.has_twin(7);
    let [net] = &look(&world, Some("net")).unwrap()[..] else { panic!("one service") };
    assert_eq!((net.mode, net.driver_domain.as_deref()), (Some(Mode::Vm), Some("dd")));
    assert_eq!(net.way_out.map(|way| (way.domain, way.vif, way.sent.packets, way.received.bytes)), Some((7, 0, 3, 4)));
    assert_eq!(net.counts.map(|counts| (counts.packets, counts.cycles)), Some((9, 10)));
    let vifs: Vec<_> = net.vifs.iter().map(|vif| (vif.guest.as_str(), vif.number, vif.state.as_str())).collect();
    assert_eq!(vifs, [("dd", 0, "connected"), ("8", 1, "connected")]);
    // Its twind knows it by that number, and not by the hypervisor's.
    let way = world.clone().way_out(net.switch.unwrap()).unwrap();
    assert_ne!(way.vif, 0);
    let number = |vif| look::number_of(vif, &mut world.clone()).unwrap();
    assert_eq!((number(way.vif), number(99)), (Some(0), None));
    // Somebody else's twin.
    world.has_twin(9);
    assert_eq!(look(&world, Some("net")).unwrap()[0].counts, None);
    // The switch that xenstore names may be one of an earlier hypervisor's.
    world.set("/tool/tandem/net/switch", "99");
    assert_eq!(look(&world, Some("net")).unwrap()[0].switch, None);
}

#[test]
fn no_reload_takes_a_service_away_of_which_a_guest_has_a_device() {
    let config = |text: &str| Config::parse(text).unwrap();
    let now = config("[service.net]\ndriver-domain = \"dd\"\n[service.lab]\n");
    let world = World::new();
    let reload = |next: &Config| control::deserts_nobody(&now, next, &mut world.clone(), &mut world.clone());
    let renamed = config("[service.lan]\ndriver-domain = \"dd\"\n");
    assert!(reload(&renamed).is_ok());
    let mut daemon = Daemon::start(&world, Some("dd"));
    world.set("/local/domain/7/name", "dd");
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    assert!(world.is_connected(A) && reload(&renamed).is_ok(), "only its driver domain has one");
    world.set("/local/domain/8/name", "u1");
    world.create(B, "00:16:3e:00:00:02", None);
    world.settle(&mut daemon);
    let said = reload(&renamed).unwrap_err().to_string();
    assert!(said.contains("no service net any more") && said.contains("have devices: u1;"), "{said}");
    let of_disks = config("[service.net]\nkind = \"disk\"\ndriver-domain = \"dd\"\n");
    assert!(reload(&of_disks).is_err(), "it has the name, and no interfaces");
    assert!(reload(&config("[service.net]\n")).is_ok());
    world.detach(B);
    world.settle(&mut daemon);
    assert!(reload(&renamed).is_ok());
}

#[test]
fn what_cannot_be_is_said_where_xenbus_says_it_until_it_can() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, None);
    world.create(A, "00:16:3e:00:00", None);
    world.settle(&mut daemon);
    let error = format!("/local/domain/{DOMAIN}/error/backend/vif/7/0/error");
    assert!(world.get(&error).unwrap().contains("mac"));
    // The front end was shown that it is to close, and did.
    assert_eq!((world.plugged(), world.state(A)), (vec![], (state::CLOSED, state::CLOSED)));
    world.set(&world.back(A, "mac"), "00:16:3e:00:00:01");
    world.reload(A);
    world.settle(&mut daemon);
    assert!(world.is_connected(A));
    assert_eq!(world.get(&error), None);
}

#[test]
fn who_only_begins_again_neither_fills_the_log_nor_keeps_others() {
    for mac in ["00:16:3e:00:00:01", "no mac"] {
        let world = World::new();
        let mut daemon = Daemon::start(&world, None);
        world.create(A, mac, None);
        for _ in 0..500 {
            // As quick as it can.
            for _ in 0..2 {
                daemon.run();
                world.front(A);
            }
            world.reload(A);
            world.pass(Duration::from_millis(1));
        }
        assert!((10..=20).contains(&daemon.said().len()), "{:?}", daemon.said());
        world.create(B, "00:16:3e:00:00:02", None);
        for _ in 0..2 {
            daemon.run();
            world.front(B);
        }
        daemon.run();
        assert!(world.is_connected(B));
        // It is heard again.
        world.set(&world.back(A, "mac"), "00:16:3e:00:00:01");
        world.settle(&mut daemon);
        world.reload(A);
        world.settle(&mut daemon);
        assert!(world.is_connected(A) && world.is_connected(B));
    }
}

#[test]
fn a_switch_that_the_hypervisor_does_not_know_is_made_anew() {
    let world = World::new();
    world.set("/tool/tandem/net/switch", "99");
    let mut daemon = Daemon::start(&world, None);
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    assert!(world.is_connected(A));
    // The next daemon uses it, too.
    let mut daemon = Daemon::start(&world, None);
    world.create(B, "00:16:3e:00:00:02", None);
    world.settle(&mut daemon);
    assert_eq!(world.request(A).unwrap().switch, world.request(B).unwrap().switch);
}

#[test]
fn a_hypervisor_without_memory_for_a_switch_does_not_end_the_daemon() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, None);
    world.create(A, "00:16:3e:00:00:01", None);
    let error = format!("/local/domain/{DOMAIN}/error/backend/vif/7/0/error");
    for (switch, hold) in [(true, false), (false, true)] {
        world.lacks(switch, hold);
        world.settle(&mut daemon);
        assert!(world.get(&error).unwrap().contains("12 the hypervisor has no memory"));
        assert_eq!((world.plugged(), world.state(A)), (vec![], (state::CLOSED, state::CLOSED)));
        // Nor one that begins then.
        daemon = daemon.killed(0);
        world.reload(A);
    }
    assert_eq!(world.nr_switches(), 1);
    world.lacks(false, false);
    world.settle(&mut daemon);
    world.reload(A);
    world.settle(&mut daemon);
    assert!(world.is_connected(A));
    world.check();
    assert_eq!(world.nr_switches(), 1);
}

#[test]
fn the_next_daemon_leaves_alone_what_is_connected() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, None);
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    let vif = world.vif(A);
    world.settle(&mut daemon.killed(0));
    assert!(world.is_connected(A));
    assert_eq!(world.vif(A), vif, "it was connected anew");
}

#[test]
fn nothing_is_written_where_a_directory_was() {
    // At the offer, when it is connected, and when it closes.
    for steps in 0..3 {
        let world = World::new();
        let mut daemon = Daemon::start(&world, None);
        world.create(A, "00:16:3e:00:00:01", None);
        for _ in 0..steps {
            daemon.run();
            world.front(A);
        }
        if steps == 2 {
            world.lie(A, state::CLOSING);
        }
        world.vanish_before_change(A);
        daemon.run();
        world.check();
        assert_eq!((world.state(A).0, world.plugged()), (state::UNKNOWN, vec![]), "after {steps} steps");
    }
}

#[test]
fn the_domain_may_end_when_it_is_asked_to_and_no_device_is_left() {
    let world = World::new();
    let mut daemon = Daemon::start(&world, None);
    world.create(A, "00:16:3e:00:00:01", None);
    world.settle(&mut daemon);
    world.set(&format!("/local/domain/{DOMAIN}/control/shutdown"), "poweroff");
    assert_eq!(daemon.run(), Fate::Lives);
    // Who asks for it waits for that, and the next daemon knows of it.
    assert_eq!(world.get(&format!("/local/domain/{DOMAIN}/control/shutdown")).as_deref(), Some(""));
    let mut daemon = Daemon::start(&world, None);
    assert_eq!(daemon.run(), Fate::Lives);
    world.detach(A);
    world.settle(&mut daemon);
    assert_eq!(daemon.fate, Fate::MayEnd);
    // Whoever ends it may have to try that again, when nothing happens; until somebody needs it.
    for (guest, expected) in [(None, Fate::MayEnd), (Some(B), Fate::Lives)] {
        guest.into_iter().for_each(|guest| world.create(guest, "00:16:3e:00:00:02", None));
        daemon.run();
        daemon.fate = Fate::Lives;
        assert_eq!(daemon.run(), expected);
    }
    world.detach(B);
    world.settle(&mut daemon);
    assert_eq!(daemon.fate, Fate::MayEnd);
    world.remove(&format!("/local/domain/{DOMAIN}"));
    daemon.run();
    assert_eq!(daemon.fate, Fate::Gone);
}

/// Somebody's next step.
#[derive(Clone, Copy, Debug)]
enum Act {
    Create(Device),
    Detach(Device),
    Destroy(Device),
    /// The toolstack goes on with what it has begun.
    Finish(Device),
    /// Time passes.
    Wait,
    /// A front end does what it is to do next.
    Front(Device),
    /// It closes, and begins anew.
    Reload(Device),
    /// It writes a state that it has no reason for.
    Lie(Device, u32),
    /// A guest closes its ports.
    ClosePorts(Device),
    /// The daemon does what it has heard of.
    Daemon,
    /// It is killed after that many operations, and is started again.
    Kill(usize),
}

fn acts(is_honest: bool) -> impl Strategy<Value = Vec<Act>> {
    let device = prop_oneof![Just(A), Just(B)];
    let unless_honest = move |device, act| if is_honest { Act::Front(device) } else { act };
    let act = prop_oneof![
        3 => device.clone().prop_map(Act::Create),
        1 => device.clone().prop_map(Act::Detach),
        1 => device.clone().prop_map(Act::Destroy),
        2 => device.clone().prop_map(Act::Finish),
        1 => Just(Act::Wait),
        4 => device.clone().prop_map(Act::Front),
        1 => device.clone().prop_map(Act::Reload),
        2 => (device.clone(), 0..9_u32).prop_map(move |(d, s)| unless_honest(d, Act::Lie(d, s))),
        2 => device.prop_map(move |d| unless_honest(d, Act::ClosePorts(d))),
        5 => Just(Act::Daemon),
        1 => (0..60_usize).prop_map(Act::Kill),
    ];
    proptest::collection::vec(act, 0..40)
}

fn play(acts: &[Act]) -> (World, Daemon) {
    let world = World::new();
    let mut daemon = Daemon::start(&world, None);
    for act in acts {
        match *act {
            Act::Create(device) => world.create(device, "00:16:3e:00:00:01", None),
            Act::Detach(device) => world.detach(device),
            Act::Destroy(device) => world.destroy(device),
            Act::Finish(device) => world.finish(device),
            Act::Wait => world.wait(),
            Act::Front(device) => world.front(device),
            Act::Reload(device) => world.reload(device),
            Act::Lie(device, state) => world.lie(device, state),
            Act::ClosePorts(device) => world.close_ports(device),
            Act::Daemon => {
                daemon.run();
            }
            Act::Kill(after) => daemon = daemon.killed(after),
        }
        world.check();
    }
    world.settle(&mut daemon);
    world.check();
    (world, daemon)
}

proptest! {
    #[test]
    fn in_any_order_who_is_there_is_connected_and_nothing_else_stays(acts in acts(true)) {
        let (world, mut daemon) = play(&acts);
        for device in [A, B] {
            prop_assert_eq!(world.is_there(device), world.is_connected(device), "{:?} {:?}", device, world.state(device));
        }
        for device in [A, B] {
            world.detach(device);
        }
        world.settle(&mut daemon);
        prop_assert_eq!((world.plugged(), world.rest(), world.nr_watches()), (vec![], vec![], World::NR_WATCHES));
    }

    #[test]
    fn whatever_a_front_end_says_nothing_of_it_stays(acts in acts(false)) {
        let (world, mut daemon) = play(&acts);
        for device in [A, B] {
            world.destroy(device);
        }
        world.settle(&mut daemon);
        prop_assert_eq!((world.plugged(), world.rest(), world.nr_watches()), (vec![], vec![], World::NR_WATCHES));
    }
}
