//! Everybody but the daemon.

use super::super::places::{self, Places};
use super::super::{state, Device, Fate, Service, UNTIL_SEEN};
use crate::fake_store::{Asked, Nodes, Shared};
use crate::hypercall::{DiskList, Switches};
use crate::store::Store;
use anyhow::{ensure, Result};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use twin_abi::op::TwinStats;
use xen_abi::channel_op::{
    ChannelConnect, ChannelDiskStatus, ChannelStatus, ChannelWayOut, CONNECT_UPLINK, WAY_OUT_INTERFACE,
};

/// The back end's domid.
pub const DOMAIN: u16 = 3;
pub const HOLD_MS: u32 = 7;

fn back_of(device: Device) -> String {
    Places { service: "net".into(), domain: DOMAIN }.back(device)
}

#[derive(Default)]
pub struct State {
    nodes: Nodes,
    switches: BTreeSet<u32>,
    /// How long packets wait, by switch.
    pub holds: BTreeMap<u32, u32>,
    vifs: BTreeMap<u32, ChannelConnect>,
    /// Switches and interfaces so far.
    count: u32,
    /// Ports of guests that wait for the back end, by device.
    ports: BTreeMap<Device, u32>,
    /// Devices in the toolstack's own list; of those that it takes away, whether it has seen that they are closed.
    listed: BTreeMap<Device, Option<bool>>,
    /// How long all this has been going on.
    time: Duration,
    /// What the toolstack removes right before the daemon's next change.
    vanishes: Option<String>,
    /// The hypervisor makes no switches, or no room for what waits at them.
    lacks: [bool; 2],
    /// The domain that has a twin.
    twin_of: Option<u16>,
    /// Operations that the daemon has left.
    left: Option<usize>,
}

/// Shared by all.
pub type World = Shared<State>;

impl State {
    /// An operation of the daemon's, unless it is dead.
    fn spend(&mut self) -> bool {
        match &mut self.left {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

impl crate::fake_store::World for State {
    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn asked(&mut self, what: Asked<'_>) -> Result<()> {
        ensure!(self.spend(), "killed");
        if let (Asked::Change, Some(path)) = (what, &self.vanishes) {
            self.nodes.remove(path);
            self.vanishes = None;
        }
        Ok(())
    }
}

fn describe(vif: u32, request: &ChannelConnect) -> ChannelStatus {
    let &ChannelConnect { guest, backend, device, switch, .. } = request;
    ChannelStatus { vif, next: vif + 1, guest, backend, device, switch, ..ChannelStatus::default() }
}

impl DiskList for World {
    fn next_disk(&mut self, _: u32) -> Result<ChannelDiskStatus, Errno> {
        Err(Errno::NOENT)
    }
}

impl Switches for World {
    fn create(&mut self) -> Result<u32, Errno> {
        let mut state = self.0.borrow_mut();
        if !state.spend() {
            return Err(Errno::CANCELED);
        }
        if state.lacks[0] {
            return Err(Errno::NOMEM);
        }
        state.count += 1;
        let made = state.count;
        state.switches.insert(made);
        Ok(made)
    }

    fn hold(&mut self, switch: u32, hold_ms: u32) -> Result<(), Errno> {
        let mut state = self.0.borrow_mut();
        if !state.spend() {
            return Err(Errno::CANCELED);
        }
        state.switches.get(&switch).ok_or(Errno::NOENT)?;
        if state.lacks[1] {
            return Err(Errno::NOMEM);
        }
        state.holds.insert(switch, hold_ms);
        Ok(())
    }

    fn connect(&mut self, request: &ChannelConnect) -> Result<u32, Errno> {
        let mut state = self.0.borrow_mut();
        if !state.spend() {
            return Err(Errno::CANCELED);
        }
        let device = Device { guest: request.guest, number: request.device };
        if !state.switches.contains(&request.switch) {
            return Err(Errno::NOENT);
        }
        if state.vifs.values().any(|r| (r.guest, r.device) == (request.guest, request.device)) {
            return Err(Errno::BUSY);
        }
        if state.ports.get(&device) != Some(&request.queues[0].tx_port) {
            return Err(Errno::INVAL);
        }
        state.count += 1;
        let made = state.count;
        state.vifs.insert(made, *request);
        Ok(made)
    }

    fn disconnect(&mut self, vif: u32) -> Result<(), Errno> {
        let mut state = self.0.borrow_mut();
        if !state.spend() {
            return Err(Errno::CANCELED);
        }
        state.vifs.remove(&vif).map(|_| ()).ok_or(Errno::NOENT)
    }

    fn way_out(&mut self, switch: u32) -> Result<ChannelWayOut, Errno> {
        let state = self.0.borrow();
        state.switches.get(&switch).ok_or(Errno::NOENT)?;
        let uplink = state.vifs.iter().find(|(_, r)| r.switch == switch && r.flags & CONNECT_UPLINK != 0);
        let way = ChannelWayOut { switch, out_packets: 3, in_bytes: 4, ..ChannelWayOut::default() };
        Ok(uplink.map_or(way, |(vif, r)| ChannelWayOut { kind: WAY_OUT_INTERFACE, vif: *vif, domain: r.guest, ..way }))
    }

    fn next_twin(&mut self, number: u32) -> Result<TwinStats, Errno> {
        let twin = |domain| TwinStats { twin: 4, domain, packets: 9, ticks: 10, ..TwinStats::default() };
        self.0.borrow().twin_of.filter(|_| number <= 4).map(|domain| twin(domain.into())).ok_or(Errno::NOENT)
    }

    fn status(&mut self, vif: u32) -> Result<ChannelStatus, Errno> {
        let mut state = self.0.borrow_mut();
        if !state.spend() {
            return Err(Errno::CANCELED);
        }
        state.vifs.get(&vif).map(|request| describe(vif, request)).ok_or(Errno::NOENT)
    }

    fn next(&mut self, place: u32) -> Result<ChannelStatus, Errno> {
        let mut state = self.0.borrow_mut();
        if !state.spend() {
            return Err(Errno::CANCELED);
        }
        state.vifs.range(place..).next().map(|(vif, request)| describe(*vif, request)).ok_or(Errno::NOENT)
    }
}

impl World {
    /// A domain has a twin, and nobody else.
    pub fn has_twin(&self, domain: u16) {
        self.0.borrow_mut().twin_of = Some(domain);
    }

    /// The hypervisor has no memory for a switch, or for what waits at one; or has it.
    pub fn lacks(&self, switch: bool, hold: bool) {
        self.0.borrow_mut().lacks = [switch, hold];
    }

    /// How many switches there are.
    pub fn nr_switches(&self) -> usize {
        self.0.borrow().switches.len()
    }

    /// Of a service without devices.
    pub const NR_WATCHES: usize = 3;

    /// The back end's domain is there, and nobody else.
    pub fn new() -> Self {
        let world = Self::default();
        world.set(&format!("/local/domain/{DOMAIN}/vm"), "/vm/1");
        world
    }

    pub fn set(&self, path: &str, value: &str) {
        self.0.borrow_mut().nodes.set(path, value);
    }

    pub fn get(&self, path: &str) -> Option<String> {
        self.0.borrow().nodes.get(path).map(String::from)
    }

    pub fn remove(&self, path: &str) {
        self.0.borrow_mut().nodes.remove(path);
    }

    /// A key of the back end's.
    pub fn back(&self, device: Device, key: &str) -> String {
        format!("{}/{key}", back_of(device))
    }

    pub fn front_key(&self, device: Device, key: &str) -> String {
        format!("{}/{key}", places::front(device))
    }

    /// States of back end and front end.
    pub fn state(&self, device: Device) -> (u32, u32) {
        let number = |path: String| self.get(&path).and_then(|v| v.parse().ok()).unwrap_or(state::UNKNOWN);
        (number(self.back(device, "state")), number(self.front_key(device, "state")))
    }

    // The toolstack.

    /// The device is made, unless it is there still.
    pub fn create(&self, device: Device, mac: &str, rate: Option<&str>) {
        if self.is_listed(device) {
            return;
        }
        self.0.borrow_mut().listed.insert(device, None);
        self.set(&self.front_key(device, "state"), "1");
        for (key, value) in [("mac", Some(mac)), ("rate", rate), ("online", Some("1")), ("state", Some("1"))] {
            if let Some(value) = value {
                self.set(&self.back(device, key), value);
            }
        }
        self.set(&self.back(device, "frontend"), &places::front(device));
    }

    /// The device is taken away; the toolstack now waits.
    pub fn detach(&self, device: Device) {
        if self.0.borrow().listed.get(&device) != Some(&None) {
            return;
        }
        self.0.borrow_mut().listed.insert(device, Some(false));
        self.set(&self.back(device, "online"), "0");
        if self.state(device).0 != state::CLOSED {
            self.set(&self.back(device, "state"), "5");
        }
    }

    /// The device's guest is destroyed.
    pub fn destroy(&self, device: Device) {
        self.remove(&places::front(device));
        self.close_ports(device);
        self.detach(device);
    }

    /// What the toolstack does when it has waited: first for the state, then for the directory to go.
    pub fn finish(&self, device: Device) {
        let wait = self.0.borrow().listed.get(&device).copied().flatten();
        let is_gone = self.get(&self.back(device, "state")).is_none();
        match wait {
            Some(false) => {
                assert!(!is_gone, "the toolstack finds nothing to see");
                if self.state(device).0 == state::CLOSED {
                    self.0.borrow_mut().listed.insert(device, Some(true));
                }
            }
            Some(true) if is_gone => {
                self.remove(&places::front(device));
                self.close_ports(device);
                self.0.borrow_mut().listed.remove(&device);
            }
            _ => {}
        }
    }

    /// Time passes, in which the toolstack sees what there is to see.
    pub fn wait(&self) {
        let devices: Vec<Device> = self.0.borrow().listed.keys().copied().collect();
        devices.into_iter().for_each(|device| self.finish(device));
        self.0.borrow_mut().time += UNTIL_SEEN;
    }

    fn is_listed(&self, device: Device) -> bool {
        self.0.borrow().listed.contains_key(&device)
    }

    // The guest.

    /// Its front end's next step, as Linux's.
    pub fn front(&self, device: Device) {
        match self.state(device) {
            (state::INIT_WAIT, state::INITIALISING) => {
                let port = {
                    let mut state = self.0.borrow_mut();
                    state.count += 1;
                    let port = state.count;
                    state.ports.insert(device, port);
                    port.to_string()
                };
                let set = |key: &str, value: &str| self.set(&self.front_key(device, key), value);
                let offered = self.get(&self.back(device, "multi-queue-max-queues"));
                let places: Vec<String> = match offered.and_then(|count| count.parse().ok()) {
                    None | Some(1) => vec![String::new()],
                    Some(count) => {
                        set("multi-queue-num-queues", &u32::to_string(&count));
                        (0..count).map(|n| format!("queue-{n}/")).collect()
                    }
                };
                set("request-rx-copy", "1");
                for place in places {
                    for (key, value) in [("tx-ring-ref", "8"), ("rx-ring-ref", "9"), ("event-channel", &port)] {
                        set(&format!("{place}{key}"), value);
                    }
                }
                self.set(&self.front_key(device, "state"), "4");
            }
            (state::CLOSING, state::CONNECTED) => self.set(&self.front_key(device, "state"), "6"),
            _ => {}
        }
    }

    pub fn reload(&self, device: Device) {
        if self.get(&self.front_key(device, "state")).is_some() {
            for state in ["5", "6"] {
                self.set(&self.front_key(device, "state"), state);
            }
            self.close_ports(device);
            self.set(&self.front_key(device, "state"), "1");
        }
    }

    pub fn lie(&self, device: Device, state: u32) {
        if self.get(&places::front(device)).is_some() {
            self.set(&self.front_key(device, "state"), &state.to_string());
        }
    }

    /// The hypervisor lets its interface go.
    pub fn close_ports(&self, device: Device) {
        let mut state = self.0.borrow_mut();
        state.ports.remove(&device);
        state.vifs.retain(|_, r| (r.guest, r.device) != (device.guest, device.number));
    }

    /// The guest is rolled back: it has the port again that it names.
    pub fn open_ports(&self, device: Device) {
        let port = self.get(&self.front_key(device, "event-channel")).and_then(|port| port.parse().ok());
        self.0.borrow_mut().ports.extend(port.map(|port| (device, port)));
    }

    /// The directory goes when the daemon has just looked at it.
    pub fn vanish_before_change(&self, device: Device) {
        self.0.borrow_mut().vanishes = Some(back_of(device));
    }

    // What there is to see.

    /// The toolstack has it, and wants it.
    pub fn is_there(&self, device: Device) -> bool {
        self.0.borrow().listed.get(&device) == Some(&None)
    }

    /// The name of its interface.
    pub fn vif(&self, device: Device) -> Option<u32> {
        let state = self.0.borrow();
        let mut vifs = state.vifs.iter();
        vifs.find(|(_, r)| (r.guest, r.device) == (device.guest, device.number)).map(|(vif, _)| *vif)
    }

    pub fn request(&self, device: Device) -> Option<ChannelConnect> {
        let state = self.0.borrow();
        state.vifs.values().find(|r| (r.guest, r.device) == (device.guest, device.number)).copied()
    }

    /// Both ends say so, and the hypervisor has the ports that the front end has now.
    pub fn is_connected(&self, device: Device) -> bool {
        let port = self.0.borrow().ports.get(&device).copied();
        self.state(device) == (state::CONNECTED, state::CONNECTED)
            && port.is_some()
            && self.request(device).map(|r| r.queues[0].tx_port) == port
    }

    /// Guests whose interfaces are plugged in.
    pub fn plugged(&self) -> Vec<u16> {
        self.0.borrow().vifs.values().map(|r| r.guest).collect()
    }

    /// Nodes of devices.
    pub fn rest(&self) -> Vec<String> {
        self.0.borrow().nodes.paths().filter(|path| path.contains("vif/")).map(String::from).collect()
    }

    pub fn nr_watches(&self) -> usize {
        self.0.borrow().nodes.watched().count()
    }

    /// What holds at any moment.
    pub fn check(&self) {
        let state = self.0.borrow();
        for request in state.vifs.values() {
            let device = Device { guest: request.guest, number: request.device };
            assert_eq!(state.ports.get(&device), Some(&request.queues[0].tx_port), "an interface without a port");
            assert_eq!(state.holds.get(&request.switch), Some(&HOLD_MS), "packets do not wait at its switch");
        }
        let orphan = |path: &&str| {
            let Some(device) = path.strip_suffix("/state") else { return false };
            device.contains("/backend/vif/") && state.nodes.get(&format!("{device}/frontend")).is_none()
        };
        assert_eq!(state.nodes.paths().find(orphan), None, "written below a directory that was removed");
    }

    /// Time passes.
    pub fn pass(&self, time: Duration) {
        self.0.borrow_mut().time += time;
    }

    /// Everybody goes on until nothing happens any more.
    pub fn settle(&self, daemon: &mut Daemon) {
        for _ in 0..20 {
            daemon.run();
            let devices: Vec<Device> = self.0.borrow().listed.keys().copied().collect();
            devices.into_iter().for_each(|device| self.front(device));
            self.wait();
        }
        assert!(!self.0.borrow().nodes.has_events());
    }
}

/// The daemon, with its connection.
pub struct Daemon {
    world: World,
    service: Service,
    began: Instant,
    driver_domain: Option<&'static str>,
    /// What it last said of its domain, if that was anything.
    pub fate: Fate,
}

impl Daemon {
    pub fn start(world: &World, driver_domain: Option<&'static str>) -> Self {
        {
            let mut state = world.0.borrow_mut();
            state.left = None;
            state.nodes.connect_again();
        }
        let (mut store, mut switches) = (world.clone(), world.clone());
        let service =
            Service::start("net", DOMAIN, driver_domain.map(String::from), HOLD_MS, &mut store, &mut switches).unwrap();
        Self { world: world.clone(), service, began: Instant::now(), driver_domain, fate: Fate::Lives }
    }

    /// The same, and the hypervisor makes sums and segments.
    pub fn without_offload(self) -> Self {
        Self { service: self.service.with_offload(false), ..self }
    }

    /// The same, and these are names of what is left of other services' driver domains.
    pub fn with_remains(self, remains: &[&str]) -> Self {
        let remains = remains.iter().map(ToString::to_string).collect();
        Self { service: self.service.with_remains(remains), ..self }
    }

    fn try_run(&mut self) -> Result<()> {
        let (mut store, mut switches) = (self.world.clone(), self.world.clone());
        let now = self.began + self.world.0.borrow().time;
        let mut events = Vec::new();
        loop {
            let fate = self.service.handle(&events, now, &mut store, &mut switches)?;
            self.fate = if fate == Fate::Lives { self.fate } else { fate };
            match store.next_event(None)? {
                Some(event) => events = vec![event],
                None => break,
            }
        }
        Ok(())
    }

    /// The driver domain's place changes hands, or does not any more.
    pub fn set_changing(&mut self, is_changing: bool) {
        self.service.set_changing(is_changing);
    }

    /// Lines of its log.
    pub fn said(&self) -> &[String] {
        &self.service.lines.said
    }

    /// If nothing happens it has something to do only after so long.
    pub fn rests_for(&self) -> Option<Duration> {
        let now = self.began + self.world.0.borrow().time;
        self.service.due().map(|due| due.saturating_duration_since(now))
    }

    /// Does all that is to be done.
    pub fn run(&mut self) -> Fate {
        self.try_run().unwrap();
        self.fate
    }

    /// Goes on for so many operations, is killed, and another is started.
    pub fn killed(mut self, after: usize) -> Self {
        self.world.0.borrow_mut().left = Some(after);
        let _ = self.try_run();
        Self::start(&self.world.clone(), self.driver_domain)
    }
}
