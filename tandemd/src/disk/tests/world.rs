//! A store, a hypervisor, a driver domain with a stock back end, and a guest that are all made of maps.

use super::*;
use crate::fake_store::{Asked, Nodes};
use crate::hypercall::{DiskList, Left};
use xen_abi::channel_op::ChannelDiskConnect;

/// Grants of the rings in the sets of both slots.
const RINGS: [[u32; 2]; 2] = [[64, 900], [1700, 2500]];

/// All of it but the daemon.
#[derive(Default)]
pub struct World {
    pub nodes: Nodes,
    pub disks: BTreeMap<u32, ChannelDiskStatus>,
    /// To whom rings are granted, and pages with them; and slots that have such.
    pub granted: BTreeMap<u32, u16>,
    pub with_pages: BTreeSet<u32>,
    /// Sets of slot 0 of which somebody uses a page.
    pub in_use: BTreeSet<usize>,
    pub nr_ports: u32,
    /// Those that are open.
    pub ports: BTreeSet<u32>,
    /// The toolstack has not introduced the driver domain yet.
    pub is_early: bool,
    /// The hypervisor does not take back ends.
    pub refuses: bool,
    /// Nor any for a guest that is suspended, as this one is.
    pub is_suspended: bool,
    /// It has no memory for pages.
    pub has_no_memory: bool,
    /// The toolstack wants the disk back, and has told the guest so.
    pub is_detached: bool,
    /// The driver domain's script finds none.
    pub has_no_medium: bool,
    /// What driver domains say of the medium that they have, if that is not the usual one.
    pub medium: Vec<(&'static str, &'static str)>,
    /// States that the guest was shown.
    pub shown: Vec<String>,
    /// Of its disk.
    pub weight: u16,
    /// How often the driver domain was rolled back; in which life it got the disk; and in which its back end has bound
    /// ports.
    pub life: u32,
    pub attached: u32,
    pub bound: BTreeMap<u32, u32>,
    /// Back ends' directories that its kernel has seen begin.
    pub known: BTreeSet<String>,
    /// Before the daemon has done so many more operations; it was that it was killed.
    pub happens: Option<(usize, lives::Happens)>,
    pub is_killed: bool,
    /// Those of which who runs scripts there (`xl devd`) knows: of one that it knows it does nothing until that has
    /// closed and gone.
    pub plugged: BTreeSet<String>,
    /// Nobody runs scripts there any more, or is slow.
    pub has_no_daemon: bool,
    /// Calls of the hypervisor's list of disks, and nodes that were read.
    pub nr_listed: u32,
    pub asked: BTreeSet<String>,
}

impl World {
    pub fn set(&mut self, path: &str, value: &str) {
        if path == format!("{BACK}/state") {
            self.shown.push(value.into());
        }
        self.nodes.set(path, value);
    }

    pub fn get(&self, path: &str) -> Option<&str> {
        self.nodes.get(path)
    }

    pub fn create_guest(&mut self) {
        self.set("/local/domain/3/vm", "/vm/x");
        for (key, value) in [("frontend", FRONT), ("online", "1"), ("mode", "w"), ("params", "/dev/x"), ("dev", "xvda")]
        {
            self.set(&format!("{BACK}/{key}"), value);
        }
        self.set(&format!("{BACK}/state"), "1");
        self.set(&format!("{FRONT}/state"), "1");
    }

    pub fn create_driver(&mut self, domain: u16) {
        self.set(&format!("/local/domain/{domain}/name"), "dd");
    }

    /// One waits to take the driver domain's place, and its supervisor says so.
    pub fn create_waiting(&mut self, domain: u16) {
        self.set(&format!("/local/domain/{domain}/name"), "dd-standby");
        self.set(&waits_for("disk"), &domain.to_string());
    }

    /// It is destroyed: the hypervisor has noticed.
    pub fn destroy_driver(&mut self, domain: u16) {
        self.nodes.remove(&format!("/local/domain/{domain}"));
        self.plugged.retain(|far| !far.starts_with(&format!("/local/domain/{domain}/")));
        self.disks.values_mut().for_each(|disk| disk.back = DISK_NO_BACK);
    }

    /// Guest and driver domain do what they do.
    pub fn others(&mut self) {
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
            ("4", "5" | "6") if !self.is_detached => panic!("a guest that is connected is shown that its disk closes"),
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
        if !self.has_no_daemon {
            self.unplug();
        }
    }

    /// Who runs scripts in the driver domain takes away what has closed for good.
    fn unplug(&mut self) {
        for far in self.plugged.clone() {
            if self.get(&format!("{far}/state")) == Some("6") && self.get(&format!("{far}/online")) == Some("0") {
                self.plugged.remove(&far);
                let mut gone = far.as_str();
                while self.nodes.names(gone).is_empty() || gone == far {
                    self.nodes.remove(gone);
                    gone = gone.rsplit_once('/').map_or("", |(parent, _)| parent);
                }
            }
        }
    }

    /// Rings of a slot that somebody uses.
    fn in_use_of(&self, slot: u32) -> Vec<u32> {
        self.in_use.iter().filter(|_| slot == 0).map(|set| RINGS[0][*set]).collect()
    }

    /// Whom rings are granted that nobody uses, though he has no place there.
    pub fn granted_in_vain(&self) -> Vec<(u32, u16)> {
        let of_slot = |(slot, rings): (u32, &[u32; 2])| {
            let its = self.get(&format!("/local/domain/3/device/vbd/{slot}/backend-id")).and_then(|id| id.parse().ok());
            let used = self.in_use_of(slot);
            let granted = rings.iter().filter_map(|ring| Some((*ring, *self.granted.get(ring)?)));
            granted.filter(|(ring, to)| Some(*to) != its && !used.contains(ring)).collect::<Vec<_>>()
        };
        (0..).zip(&RINGS).flat_map(of_slot).collect()
    }

    pub fn disk(&self) -> Option<ChannelDiskStatus> {
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
            Change::Repeat(path) if !self.has_no_medium => {
                let far = path.strip_suffix("/state").expect("a state");
                if self.has_no_daemon || !self.plugged.insert(far.into()) {
                    return;
                }
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
pub type Shared = crate::fake_store::Shared<World>;

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
        if world.is_suspended {
            return Err(Errno::AGAIN);
        }
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
        world.with_pages.insert(slot);
        Ok(ring)
    }

    fn revoke(&mut self, front: u16, slot: u32, but: Option<u16>) -> Result<Left, Errno> {
        assert_eq!(front, DOMAIN);
        let mut world = self.0.borrow_mut();
        if !world.with_pages.contains(&slot) {
            return Ok(Left::NoPages);
        }
        let is_used = world.in_use_of(slot);
        let is_other = |(ring, to): (&u32, &u16)| RINGS[slot as usize].contains(ring) && Some(*to) != but;
        let others: Vec<u32> =
            world.granted.iter().filter(|entry| is_other((entry.0, entry.1))).map(|e| *e.0).collect();
        let (used, free): (Vec<u32>, Vec<u32>) = others.into_iter().partition(|ring| is_used.contains(ring));
        world.granted.retain(|ring, _| !free.contains(ring));
        Ok(if used.is_empty() { Left::Nothing } else { Left::InUse })
    }
}
