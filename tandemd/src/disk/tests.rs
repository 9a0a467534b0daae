//! The service beside a store, a hypervisor, a driver domain with a stock back end, and a guest that are all made of maps.

mod lives;

use super::*;
use crate::fake_store::{Asked, Nodes};
use crate::hypercall::DiskList;
use xen_abi::channel_op::ChannelDiskStatus;
use xen_abi::channel_op::{ChannelDiskConnect, DISK_FLUSH, DISK_WRITE};

const DOMAIN: u16 = 3;
const BACK: &str = "/local/domain/3/backend/vbd/7/51712";
const FRONT: &str = "/local/domain/7/device/vbd/51712";
const NEAR: &str = "/local/domain/3/device/vbd/0";
/// Grants of the rings in the sets of both slots.
const RINGS: [[u32; 2]; 2] = [[64, 900], [1700, 2500]];

/// All of it but the daemon.
#[derive(Default)]
struct World {
    nodes: Nodes,
    disks: BTreeMap<u32, ChannelDiskStatus>,
    /// To whom rings are granted.
    granted: BTreeMap<u32, u16>,
    /// Sets of slot 0 of which somebody uses a page.
    in_use: BTreeSet<usize>,
    nr_ports: u32,
    /// Those that are open.
    ports: BTreeSet<u32>,
    /// The toolstack has not introduced the driver domain yet.
    is_early: bool,
    /// The hypervisor does not take back ends.
    refuses: bool,
    /// It has no memory for pages.
    has_no_memory: bool,
    /// What driver domains say of the medium that they have, if that is not the usual one.
    medium: Vec<(&'static str, &'static str)>,
    /// States that the guest was shown.
    shown: Vec<String>,
    /// Of its disk.
    weight: u16,
    /// How often the driver domain was rolled back; in which life it got the disk; and in which its back end has bound ports.
    life: u32,
    attached: u32,
    bound: BTreeMap<u32, u32>,
    /// Back ends' directories that its kernel has seen begin.
    known: BTreeSet<String>,
    /// Before the daemon has done so many more operations; it was that it was killed.
    happens: Option<(usize, lives::Happens)>,
    is_killed: bool,
    /// Calls of the hypervisor's list of disks, and nodes that were read.
    nr_listed: u32,
    asked: BTreeSet<String>,
}

impl World {
    fn set(&mut self, path: &str, value: &str) {
        if path == format!("{BACK}/state") {
            self.shown.push(value.into());
        }
        self.nodes.set(path, value);
    }

    fn get(&self, path: &str) -> Option<&str> {
        self.nodes.get(path)
    }

    fn create_guest(&mut self) {
        self.set("/local/domain/3/vm", "/vm/x");
        for (key, value) in [("frontend", FRONT), ("online", "1"), ("mode", "w"), ("params", "/dev/x"), ("dev", "xvda")]
        {
            self.set(&format!("{BACK}/{key}"), value);
        }
        self.set(&format!("{BACK}/state"), "1");
        self.set(&format!("{FRONT}/state"), "1");
    }

    fn create_driver(&mut self, domain: u16) {
        self.set(&format!("/local/domain/{domain}/name"), "dd");
    }

    /// One waits to take the driver domain's place, and its supervisor says so.
    fn create_waiting(&mut self, domain: u16) {
        self.set(&format!("/local/domain/{domain}/name"), "dd-standby");
        self.set(&waits_for("disk"), &domain.to_string());
    }

    /// It is destroyed: the hypervisor has noticed.
    fn destroy_driver(&mut self, domain: u16) {
        self.nodes.remove(&format!("/local/domain/{domain}"));
        self.disks.values_mut().for_each(|disk| disk.back = DISK_NO_BACK);
    }

    /// Guest and driver domain do what they do.
    fn others(&mut self) {
        let state = |world: &Self, path: &str| world.get(&format!("{path}/state")).unwrap_or("0").to_string();
        match (&*state(self, FRONT), &*state(self, BACK)) {
            ("1", "2") => {
                for (key, value) in
                    [("ring-ref", "8"), ("event-channel", "9"), ("protocol", "x86_64-abi"), ("state", "3")]
                {
                    self.set(&format!("{FRONT}/{key}"), value);
                }
            }
            ("3", "4") => {
                assert_eq!(self.get(&format!("{BACK}/sectors")), Some("4096"));
                self.set(&format!("{FRONT}/state"), "4");
            }
            ("4", "5" | "6") => panic!("a guest that is connected is shown that its disk closes"),
            _ => {}
        }
        let ends = self.nodes.paths().filter_map(|path| path.strip_suffix("/frontend-id"));
        let ends: Vec<String> = ends.map(String::from).collect();
        for far in &ends {
            let near_path = format!("/local/domain/3/device/vbd/{}", &far[far.len() - 1..]);
            let (near, far_state) = (state(self, &near_path), state(self, far));
            // Linux takes up no back end that has begun before it looks.
            if far_state == "1" {
                self.known.insert(far.clone());
            }
            if !self.known.contains(far) {
                continue;
            }
            let next = match (&*near, &*far_state, self.get(&format!("{far}/physical-device"))) {
                (_, "1", _) | ("1", "6", _) => "2",
                ("3", "2", Some(_)) => {
                    assert!(self.get(&format!("{near_path}/ring-ref")).is_some());
                    let port = self.get(&format!("{near_path}/event-channel")).and_then(|port| port.parse().ok());
                    self.bound.insert(port.expect("a port"), self.life);
                    self.set(&format!("{far}/sectors"), "4096");
                    self.set(&format!("{far}/feature-flush-cache"), "1");
                    self.medium.clone().into_iter().for_each(|(key, said)| self.set(&format!("{far}/{key}"), said));
                    "4"
                }
                ("6", "2" | "4", _) => "6",
                _ => continue,
            };
            self.set(&format!("{far}/state"), next);
        }
    }

    fn disk(&self) -> Option<ChannelDiskStatus> {
        self.disks.values().next().copied()
    }
}

impl crate::fake_store::World for World {
    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn asked(&mut self, what: Asked<'_>) -> Result<()> {
        match what {
            Asked::Watch => return Ok(()),
            Asked::Read(path) => drop(self.asked.insert(path.into())),
            Asked::List | Asked::Change => {}
        }
        Ok(self.spend()?)
    }

    fn changed(&mut self, change: &Change) {
        match change {
            Change::Write(path, value) if *path == format!("{BACK}/state") => self.shown.push(value.clone()),
            Change::Repeat(path) if *path == format!("{BACK}/state") => {
                let state = self.get(path).expect("it is there").into();
                self.shown.push(state);
            }
            // What a script does that looks again.
            Change::Repeat(path) => {
                let far = path.strip_suffix("/state").expect("a state");
                self.set(&format!("{far}/physical-device"), "103:0");
            }
            _ => {}
        }
    }

    fn is_introduced(&mut self, _: u16) -> bool {
        !self.is_early
    }
}

/// The same, for whoever needs it.
type Shared = crate::fake_store::Shared<World>;

impl DiskList for Shared {
    fn next_disk(&mut self, place: u32) -> Result<ChannelDiskStatus, Errno> {
        let mut world = self.0.borrow_mut();
        world.spend()?;
        world.nr_listed += 1;
        world.disk().filter(|_| place == 0).ok_or(Errno::NOENT)
    }
}

impl Disks for Shared {
    fn connect_disk(&mut self, request: &ChannelDiskConnect) -> Result<u32, Errno> {
        let &ChannelDiskConnect { guest, backend, device, flags, weight, .. } = request;
        self.0.borrow_mut().weight = weight;
        assert_eq!((request.ring, request.port), (8, 9));
        let status = ChannelDiskStatus {
            disk: 77,
            next: 1,
            guest,
            backend,
            device,
            flags,
            back: DISK_NO_BACK,
            ..Default::default()
        };
        assert!(self.0.borrow_mut().disks.insert(77, status).is_none(), "connected twice");
        Ok(77)
    }

    fn disconnect_disk(&mut self, disk: u32) -> Result<(), Errno> {
        self.0.borrow_mut().disks.remove(&disk).map(|_| ()).ok_or(Errno::NOENT)
    }

    fn attach_disk(&mut self, request: &ChannelDiskAttach) -> Result<(), Errno> {
        let mut world = self.0.borrow_mut();
        assert_eq!(world.granted.get(&request.ring), Some(&request.back));
        assert_eq!(request.ring + 1, request.first_page);
        assert!(world.ports.contains(&request.port));
        world.spend()?;
        // A port of a former life's is not connected.
        if world.refuses || world.bound.get(&request.port) != Some(&world.life) {
            return Err(Errno::INVAL);
        }
        let disk = world.disks.get_mut(&request.disk).ok_or(Errno::NOENT)?;
        assert_eq!(disk.back, DISK_NO_BACK);
        (disk.back, disk.state) = (request.back, 0);
        world.attached = world.life;
        // The hypervisor takes its place.
        world.ports.remove(&request.port);
        Ok(())
    }

    fn open_port(&mut self, front: u16, _: u16) -> Result<u32, Errno> {
        assert_eq!(front, DOMAIN);
        let mut world = self.0.borrow_mut();
        world.spend()?;
        world.nr_ports += 1;
        let port = world.nr_ports;
        world.ports.insert(port);
        Ok(port)
    }

    fn close_port(&mut self, front: u16, port: u32) -> Result<(), Errno> {
        assert_eq!(front, DOMAIN);
        assert!(self.0.borrow_mut().ports.remove(&port), "port {port} may be another's");
        Ok(())
    }

    fn give_up_disk(&mut self, disk: u32, is_wanted: bool) -> Result<(), Errno> {
        let mut world = self.0.borrow_mut();
        let disk = world.disks.get_mut(&disk).ok_or(Errno::NOENT)?;
        assert_eq!(disk.back, DISK_NO_BACK);
        disk.state = if is_wanted { DISK_GIVEN_UP } else { 0 };
        Ok(())
    }

    fn grant(&mut self, _: u16, slot: u32, to: u16) -> Result<u32, Errno> {
        let mut world = self.0.borrow_mut();
        world.spend()?;
        if world.has_no_memory {
            return Err(Errno::NOMEM);
        }
        let set = (0..2).find(|set| slot > 0 || !world.in_use.contains(set)).ok_or(Errno::BUSY)?;
        let ring = RINGS[slot as usize][set];
        world.granted.insert(ring, to);
        Ok(ring)
    }
}

/// A daemon, and the world in which it serves.
struct Bench {
    service: DiskService,
    world: Shared,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let mut world = Shared::default();
        world.0.borrow_mut().create_guest();
        let service = DiskService::start("disk", DOMAIN, Some("dd".into()), &mut world).unwrap();
        Self { service, world, now: Instant::now() }
    }

    /// Time passes.
    fn run(&mut self) {
        (0..60).for_each(|_| self.step());
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(300);
        let fate = self.service.handle(&[], self.now, &mut self.world.clone(), &mut self.world.clone());
        assert_eq!(fate.unwrap(), Fate::Lives);
        self.world.0.borrow_mut().others();
    }

    fn world(&self) -> std::cell::RefMut<'_, World> {
        self.world.0.borrow_mut()
    }

    /// What is between here and driver domains.
    fn places(&self) -> Vec<String> {
        let is_one = |path: &String| path.contains("/vbd/") && path.ends_with("/state");
        let ends = [format!("{BACK}/state"), format!("{FRONT}/state")];
        self.world().nodes.paths().map(String::from).filter(is_one).filter(|path| !ends.contains(path)).collect()
    }

    /// Domain of the back end, if the disk is connected.
    fn back(&self) -> Option<u16> {
        self.world().disk().map(|disk| disk.back)
    }
}

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
    // How often the hypervisor's list was gone through, to its end after one disk, and whether somebody has looked at the other disk.
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
fn a_back_end_that_only_begins_again_does_not_fill_the_log() {
    let mut bench = Bench::new();
    bench.world().create_driver(5);
    bench.run();
    let far = "/local/domain/5/backend/vbd/3/0/state";
    for _ in 0..1000 {
        bench.world().nodes.remove(far);
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

/// Another guest's, which never comes up. Its front end's directory here.
fn create_other(bench: &Bench) {
    let other = "/local/domain/3/backend/vbd/9/51712";
    for (key, value) in [("frontend", "/local/domain/9/device/vbd/51712"), ("online", "1"), ("state", "1")] {
        bench.world().set(&format!("{other}/{key}"), value);
    }
    bench.world().set("/local/domain/9/device/vbd/51712/state", "1");
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
