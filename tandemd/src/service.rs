//! A service: looks at its devices when something happened, and does what `device` says is to be done.

use crate::device::{self, state, Back, Device, Seen, Step};
use crate::hypercall::Switches;
use crate::store::{Change, Event, Store};
use anyhow::{Context, Result};
use channel::vif::features::OFFER;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use xen_abi::channel_op::{ChannelConnect, CONNECT_UPLINK};

#[cfg(test)]
mod tests;

/// Steps for a device after one event at most: three are the longest way to rest.
const MAX_STEPS: usize = 8;
/// So long a device that the toolstack takes away shows that it is closed. The toolstack waits for that, and then for the directory
/// to go; it has no way to say that it has seen the first.
const UNTIL_SEEN: Duration = Duration::from_millis(500);
/// The token of what is not one device's.
const ALL: &str = "all";

/// A switch with the domain that its guests grant to.
pub struct Service {
    /// As guests' configurations name it.
    name: String,
    /// The domain of that name.
    domain: u16,
    /// Name of the domain whose interface is the way out.
    driver_domain: Option<String>,
    switch: Option<u32>,
    /// Those that have a directory, and the name of the interface if it is plugged in.
    devices: BTreeMap<Device, Option<u32>>,
    /// Those that go, and since when they show that they are closed.
    closed: BTreeMap<Device, Instant>,
}

/// What became of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Lives,
    /// Its domain is gone.
    Gone,
    /// Its domain is asked to shut down, and no guest needs it.
    MayEnd,
}

impl Service {
    /// Takes a service up, whoever did its last step: what is plugged in says the hypervisor, what is shown says xenstore.
    pub fn start(
        name: &str,
        domain: u16,
        driver_domain: Option<String>,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<Self> {
        let mut service = Self {
            name: name.into(),
            domain,
            driver_domain,
            switch: None,
            devices: BTreeMap::new(),
            closed: BTreeMap::new(),
        };
        service.switch = store.read(&service.switch_path())?.and_then(|name| name.parse().ok());
        for (device, vif) in service.plugged(switches)? {
            service.devices.insert(device, Some(vif));
            service.follow(device, store, true)?;
        }
        for path in [service.devices_path(), service.domain_path("vm"), service.domain_path("control/shutdown")] {
            store.watch(&path, &service.token(ALL))?;
        }
        Ok(service)
    }

    /// Something happened, perhaps to this service; or the time has come that [`Self::due`] said.
    pub fn handle(
        &mut self,
        events: &[Event],
        now: Instant,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<Fate> {
        let is_due = |since: &Instant| *since + UNTIL_SEEN <= now;
        let due = self.closed.iter().filter(|(_, since)| is_due(since)).map(|(device, _)| *device);
        let mut changed: BTreeSet<Device> = due.collect();
        let mut is_any_own = !changed.is_empty();
        for event in events {
            let Some(what) = event.token.strip_prefix(&self.token("")) else { continue };
            is_any_own = true;
            let of = if what == ALL { event.path.strip_prefix(&self.devices_path()) } else { Some(what) };
            match of.map(parse) {
                Some(Some(device)) => {
                    changed.insert(device);
                }
                // All of a guest's, or of all guests.
                Some(None) => changed.extend(self.listed(store)?.into_iter().chain(self.devices.keys().copied())),
                None => {}
            }
        }
        for device in changed {
            self.settle(device, now, store, switches).with_context(|| self.describe(device))?;
        }
        if !is_any_own {
            return Ok(Fate::Lives);
        }
        if store.read(&self.domain_path("vm"))?.is_none() {
            return Ok(Fate::Gone);
        }
        let is_asked = store.read(&self.domain_path("control/shutdown"))?.is_some_and(|how| !how.is_empty());
        Ok(if is_asked && self.devices.is_empty() { Fate::MayEnd } else { Fate::Lives })
    }

    /// When there is something to do, though nothing may happen.
    pub fn due(&self) -> Option<Instant> {
        self.closed.values().min().map(|since| *since + UNTIL_SEEN)
    }

    /// The domid of its domain.
    pub fn domain(&self) -> u16 {
        self.domain
    }

    /// As guests name it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Does for a device what is to be done now.
    fn settle(
        &mut self,
        device: Device,
        now: Instant,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<()> {
        for _ in 0..MAX_STEPS {
            let seen = self.look(device, now, store, switches)?;
            match (seen.back, self.devices.contains_key(&device)) {
                (Some(_), false) => {
                    self.devices.insert(device, None);
                    self.follow(device, store, true)?;
                }
                (None, true) if !seen.is_plugged => {
                    self.devices.remove(&device);
                    self.follow(device, store, false)?;
                }
                _ => {}
            }
            let Some(step) = device::next(&seen) else { return Ok(()) };
            self.take(step, device, store, switches)?;
        }
        Ok(())
    }

    fn look(
        &mut self,
        device: Device,
        now: Instant,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<Seen> {
        let back = self.back_path(device);
        let number = |value: Option<String>| value.and_then(|v| v.parse().ok()).unwrap_or(state::UNKNOWN);
        let back = match store.read(&format!("{back}/frontend"))? {
            None => None,
            Some(_) => Some(Back {
                state: number(store.read(&format!("{back}/state"))?),
                online: store.read(&format!("{back}/online"))?.as_deref() == Some("1"),
                is_seen_closed: false,
            }),
        };
        let goes = |back: &Back| !back.online && back.state == state::CLOSED;
        let back = if back.as_ref().is_some_and(goes) {
            let since = *self.closed.entry(device).or_insert(now);
            back.map(|back| Back { is_seen_closed: since + UNTIL_SEEN <= now, ..back })
        } else {
            self.closed.remove(&device);
            back
        };
        let front = number(store.read(&format!("{}/state", front_path(device)))?);
        let is_same = |status: &xen_abi::channel_op::ChannelStatus| {
            (status.guest, status.device, status.backend) == (device.guest, device.number, self.domain)
        };
        let plugged = self.devices.get(&device).copied().flatten();
        let is_plugged = match plugged.map(|vif| switches.status(vif)) {
            Some(Ok(status)) => is_same(&status),
            None | Some(Err(Errno::NOENT)) => false,
            Some(Err(error)) => return Err(error).context("what an interface is"),
        };
        if plugged.is_some() && !is_plugged {
            // Its guest has closed a port, or is gone.
            self.devices.insert(device, None);
        }
        Ok(Seen { back, front, is_plugged })
    }

    fn take(&mut self, step: Step, device: Device, store: &mut impl Store, switches: &mut impl Switches) -> Result<()> {
        let path = self.back_path(device);
        let write = |key: &str, value: &str| Change::Write(format!("{path}/{key}"), value.into());
        let show = |state: u32| write("state", &state.to_string());
        let guard = format!("{path}/frontend");
        match step {
            Step::Offer => {
                let mut changes: Vec<Change> = OFFER.iter().map(|(key, value)| write(key, value)).collect();
                changes.extend([write("hotplug-status", "connected"), show(state::INIT_WAIT)]);
                changes.push(Change::Remove(self.error_path(device)));
                store.change(&guard, &changes)?;
            }
            Step::Show(state) => {
                store.change(&guard, &[show(state)])?;
            }
            Step::Plug => match self.plug(device, store, switches)? {
                Ok(()) => {}
                Err(why) => {
                    log(&format!("{}: not connected: {why}", self.describe(device)));
                    let error = Change::Write(format!("{}/error", self.error_path(device)), why);
                    store.change(&guard, &[error, show(state::CLOSING)])?;
                }
            },
            Step::Unplug => {
                if let Some(vif) = self.devices.get_mut(&device).and_then(Option::take) {
                    match switches.disconnect(vif) {
                        Ok(()) | Err(Errno::NOENT) => log(&format!("{}: disconnected", self.describe(device))),
                        Err(error) => return Err(error).context("an interface cannot be let go"),
                    }
                }
            }
            Step::Forget => {
                store.change(&guard, &[Change::Remove(path.clone()), Change::Remove(self.error_path(device))])?;
            }
        }
        Ok(())
    }

    /// Plugs a device in; or says why not, in words for the operator.
    fn plug(
        &mut self,
        device: Device,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<Result<(), String>> {
        let front = read_keys(store, &front_path(device), device::FRONT_KEYS)?;
        let back = read_keys(store, &self.back_path(device), device::BACK_KEYS)?;
        let terms = match device::terms(|k| front.get(k).map(String::as_str), |k| back.get(k).map(String::as_str)) {
            Ok(terms) => terms,
            Err(why) => return Ok(Err(format!("{} {why}", Errno::INVAL.raw_os_error()))),
        };
        let guest_name = store.read(&format!("/local/domain/{}/name", device.guest))?;
        let is_way_out = self.driver_domain.is_some() && guest_name == self.driver_domain;
        let mut request = ChannelConnect {
            guest: device.guest,
            backend: self.domain,
            device: device.number,
            flags: terms.flags | if is_way_out { CONNECT_UPLINK } else { 0 },
            ..terms
        };
        request.switch = self.switch(store, switches)?;
        let mut answer = switches.connect(&request);
        if answer == Err(Errno::NOENT) {
            // The switch that xenstore names is none of this hypervisor's.
            self.switch = None;
            request.switch = self.switch(store, switches)?;
            answer = switches.connect(&request);
        }
        let error = match answer {
            Ok(vif) => {
                self.devices.insert(device, Some(vif));
                let rate = back.get("rate").map_or(String::new(), |rate| format!(", rate {rate}"));
                let way_out = if is_way_out { ", the way out" } else { "" };
                let address = back.get("mac").map_or("", String::as_str);
                let name = guest_name.map_or(String::new(), |name| format!(", {name}"));
                log(&format!("{}{name}: connected, {address}{rate}{way_out}", self.describe(device)));
                return Ok(Ok(()));
            }
            Err(error) => error,
        };
        Ok(Err(format!("{} {}", error.raw_os_error(), explain(error, is_way_out))))
    }

    /// The service's switch, which is made if there is none yet.
    fn switch(&mut self, store: &mut impl Store, switches: &mut impl Switches) -> Result<u32> {
        if let Some(switch) = self.switch {
            return Ok(switch);
        }
        let switch = switches.create().context("no switch can be made")?;
        let path = self.switch_path();
        store.change("/local", &[Change::Write(path, switch.to_string())])?;
        self.switch = Some(switch);
        Ok(switch)
    }

    /// This service's interfaces that are plugged in.
    fn plugged(&self, switches: &mut impl Switches) -> Result<Vec<(Device, u32)>> {
        let mut found = Vec::new();
        let mut place = 0;
        loop {
            match switches.next(place) {
                Ok(status) => {
                    place = status.next;
                    if status.backend == self.domain {
                        found.push((Device { guest: status.guest, number: status.device }, status.vif));
                    }
                }
                Err(Errno::NOENT) => return Ok(found),
                Err(error) => return Err(error).context("the list of interfaces"),
            }
        }
    }

    /// The devices that have a directory.
    fn listed(&self, store: &mut impl Store) -> Result<Vec<Device>> {
        let path = self.devices_path();
        let mut found = Vec::new();
        for guest in store.list(&path)? {
            for number in store.list(&format!("{path}/{guest}"))? {
                found.extend(parse(&format!("/{guest}/{number}")));
            }
        }
        Ok(found)
    }

    /// Begins or ends to watch the front end.
    fn follow(&self, device: Device, store: &mut impl Store, is_wanted: bool) -> Result<()> {
        let token = self.token(&format!("/{}/{}", device.guest, device.number));
        let path = format!("{}/state", front_path(device));
        if is_wanted {
            store.watch(&path, &token)
        } else {
            store.unwatch(&path, &token)
        }
    }

    fn token(&self, what: &str) -> String {
        format!("{}:{what}", self.name)
    }

    fn domain_path(&self, below: &str) -> String {
        format!("/local/domain/{}/{below}", self.domain)
    }

    fn devices_path(&self) -> String {
        devices_path_of(self.domain)
    }

    fn back_path(&self, device: Device) -> String {
        back_path_of(self.domain, device)
    }

    /// Where Linux's xenbus would write of an error.
    fn error_path(&self, device: Device) -> String {
        self.domain_path(&format!("error/backend/vif/{}/{}", device.guest, device.number))
    }

    fn switch_path(&self) -> String {
        format!("/tool/tandem/{}/switch", self.name)
    }

    fn describe(&self, device: Device) -> String {
        format!("{}: vif {} of domain {}", self.name, device.number, device.guest)
    }
}

/// `/GUEST/NUMBER`, and whatever follows.
fn parse(path: &str) -> Option<Device> {
    let mut parts = path.strip_prefix('/')?.split('/');
    Some(Device { guest: parts.next()?.parse().ok()?, number: parts.next()?.parse().ok()? })
}

fn devices_path_of(domain: u16) -> String {
    format!("/local/domain/{domain}/backend/vif")
}

fn back_path_of(domain: u16, device: Device) -> String {
    format!("{}/{}/{}", devices_path_of(domain), device.guest, device.number)
}

/// The front end's directory. The toolstack puts it there, whoever the back end is.
fn front_path(device: Device) -> String {
    format!("/local/domain/{}/device/vif/{}", device.guest, device.number)
}

fn read_keys<'k>(store: &mut impl Store, path: &str, keys: &[&'k str]) -> Result<BTreeMap<&'k str, String>> {
    let mut found = BTreeMap::new();
    for key in keys {
        if let Some(value) = store.read(&format!("{path}/{key}"))? {
            found.insert(*key, value);
        }
    }
    Ok(found)
}

/// What an error of the hypervisor's means here.
fn explain(error: Errno, is_way_out: bool) -> String {
    match error {
        Errno::INVAL => "a grant or port that the front end named does not hold, or a ring that cannot be".into(),
        Errno::SRCH => "the guest is gone".into(),
        Errno::BUSY if is_way_out => "the switch has a way out already".into(),
        Errno::BUSY => "a port that the front end named is connected already".into(),
        Errno::NOSPC => "there are as many interfaces as there can be".into(),
        Errno::NOMEM => "the hypervisor has no memory".into(),
        other => other.to_string(),
    }
}

/// A line for the operator.
fn log(line: &str) {
    #[cfg(not(test))]
    eprintln!("{line}");
    #[cfg(test)]
    let _ = line;
}
