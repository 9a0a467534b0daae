//! A service: looks at its devices when something happened, and does what `device` says is to be done.

use crate::config::Weights;
use crate::device::{self, state, Device, Step};
use crate::hypercall::Switches;
use crate::often::{Lines, Looks};
use crate::store::{Change, Event, Store};
use crate::supervisor::{link_of, link_of_one, remains_of};
use anyhow::{Context, Result};
use channel::vif::features::OFFER;
use places::{Places, ALL};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

mod places;
pub use places::{is_asked_to_end, name_of};
mod plug;
mod seen;
#[cfg(test)]
mod tests;

/// Steps for a device after one event at most: three are the longest way to rest.
const MAX_STEPS: usize = 8;
/// So long a device that the toolstack takes away shows that it is closed. The toolstack waits for that, and then for
/// the directory to go; it has no way to say that it has seen the first.
const UNTIL_SEEN: Duration = Duration::from_millis(500);
/// So long is waited until it is looked again whether a driver domain's place is taken.
const A_MOMENT: Duration = Duration::from_millis(5);
/// What is left of a driver domain that has lost its place is looked at so much later: whoever waits for the next one
/// comes first.
const LATER: Duration = Duration::from_millis(200);

/// A switch with the domain that its guests grant to.
pub struct Service {
    /// Its name and its domain, and where their things are.
    at: Places,
    /// Name of the domain whose interface is the way out.
    driver_domain: Option<String>,
    /// How long packets wait for a way out that has gone.
    hold_ms: u32,
    /// Sums and segments are left to the driver domain.
    offload: bool,
    /// Shares of guests, by name.
    weights: Weights,
    /// Names of those that have lost the place of some driver domain.
    remains: BTreeSet<String>,
    switch: Option<u32>,
    /// Packets wait there when there is no way out.
    is_held: bool,
    /// Those that have a directory, and the name of the interface if it is plugged in.
    devices: BTreeMap<Device, Option<u32>>,
    /// Those that go, and since when they show that they are closed.
    closed: BTreeMap<Device, Instant>,
    /// When it was looked last which of them do so for long enough.
    looked: Option<Instant>,
    /// The driver domain's place changes hands just now. What happens meanwhile is looked at when that is over.
    is_changing: bool,
    /// Those that are looked at later, and when.
    put_off: BTreeMap<Device, Instant>,
    /// Its domain is asked to shut down.
    is_asked: bool,
    /// What was done for each, and said of it.
    looks: Looks,
    lines: Lines,
}

/// What became of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on.
    Lives,
    /// Its domain is gone.
    Gone,
    /// Its domain is asked to shut down, and no guest needs it. It is said each time, until it is gone.
    MayEnd,
}

impl Service {
    /// Takes a service up, whoever did its last step: what is plugged in says the hypervisor, what is shown says
    /// xenstore.
    pub fn start(
        name: &str,
        domain: u16,
        driver_domain: Option<String>,
        hold_ms: u32,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<Self> {
        let mut service = Self {
            at: Places { service: name.into(), domain },
            driver_domain,
            hold_ms,
            offload: true,
            weights: Weights::new(),
            remains: BTreeSet::new(),
            switch: None,
            is_held: false,
            devices: BTreeMap::new(),
            closed: BTreeMap::new(),
            looked: None,
            is_changing: false,
            put_off: BTreeMap::new(),
            is_asked: false,
            looks: Looks::new(),
            lines: Lines::new(),
        };
        service.switch = store.read(&service.at.switch())?.and_then(|name| name.parse().ok());
        if let Some(switch) = service.switch {
            // It may have been told something else before. One that is not there any more is made anew, and one that
            // has no memory is told again.
            match switches.hold(switch, hold_ms) {
                Ok(()) => service.is_held = true,
                Err(Errno::NOENT) => {}
                Err(error) => eprintln!("{name}: packets cannot wait for a way out: {error}"),
            }
        }
        for (device, vif) in service.plugged(switches)? {
            service.devices.insert(device, Some(vif));
            service.follow(device, store, true)?;
        }
        for path in [service.at.devices(), service.at.domain("vm"), service.at.domain("control/shutdown")] {
            store.watch(&path, &service.at.token(ALL))?;
        }
        Ok(service)
    }

    /// Guests have these shares of the way out, from when their interfaces are connected.
    pub fn with_weights(self, weights: Weights) -> Self {
        Self { weights, ..self }
    }

    /// Who has one of these names has lost the place of some service's driver domain: its interface is not plugged in
    /// again.
    pub fn with_remains(self, remains: BTreeSet<String>) -> Self {
        Self { remains, ..self }
    }

    /// Sums and segments of packets are left to the driver domain as it offers, or the hypervisor makes them, from when
    /// its interface is connected.
    pub fn with_offload(self, offload: bool) -> Self {
        Self { offload, ..self }
    }

    /// Something happened, perhaps to this service; or the time has come that [`Self::due`] said.
    pub fn handle(
        &mut self,
        events: &[Event],
        now: Instant,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<Fate> {
        self.lines.pass(now);
        let is_seen = self.yet_to_be_seen().filter(|(_, at)| *at <= now).map(|(device, _)| device);
        let is_due = self.put_off.iter().filter(|(_, at)| **at <= now && !self.is_changing).map(|(device, _)| *device);
        let due: BTreeSet<Device> = is_seen.chain(is_due).collect();
        self.looked = Some(now);
        self.put_off.retain(|device, _| !due.contains(device));
        if self.is_changing {
            self.put_off.values_mut().for_each(|at| *at = (*at).max(now + A_MOMENT));
        }
        let mut changed = BTreeSet::new();
        let mut is_any_own = !due.is_empty();
        for event in events {
            let Some(what) = event.token.strip_prefix(&self.at.token("")) else { continue };
            is_any_own = true;
            let of = if what == ALL { event.path.strip_prefix(&self.at.devices()) } else { Some(what) };
            match of.map(places::device_in) {
                Some(Some(device)) => {
                    changed.insert(device);
                }
                // All of a guest's, or of all guests.
                Some(None) => changed.extend(self.listed(store)?.into_iter().chain(self.devices.keys().copied())),
                None => {}
            }
        }
        for device in changed.difference(&due).copied().collect::<Vec<Device>>() {
            if let Some(later) = self.patience_with(device, now, store)? {
                self.put_off.entry(device).or_insert(now + later);
                changed.remove(&device);
            }
        }
        changed.extend(due);
        for device in changed {
            self.settle(device, now, store, switches).with_context(|| self.at.describe(device))?;
        }
        if is_any_own {
            if store.read(&self.at.domain("vm"))?.is_none() {
                return Ok(Fate::Gone);
            }
            self.is_asked = is_asked_to_end(self.at.domain, store)?;
        }
        Ok(if self.is_asked && self.devices.is_empty() { Fate::MayEnd } else { Fate::Lives })
    }

    /// When there is something to do, though nothing may happen.
    pub fn due(&self) -> Option<Instant> {
        let seen = self.yet_to_be_seen().map(|(_, at)| at);
        seen.chain(self.put_off.values().copied()).chain(self.lines.due()).min()
    }

    /// Those that show that they are closed, and when that has been seen. One that shows it still when that has come
    /// was looked at then: its front end says that it is up, and whatever it says next is an event.
    fn yet_to_be_seen(&self) -> impl Iterator<Item = (Device, Instant)> + '_ {
        let all = self.closed.iter().map(|(device, since)| (*device, *since + UNTIL_SEEN));
        all.filter(|(_, at)| self.looked.is_none_or(|looked| *at > looked))
    }

    /// Name of the domain whose interface is the way out.
    pub fn driver_domain(&self) -> Option<&str> {
        self.driver_domain.as_deref()
    }

    /// Whether the driver domain's place changes hands.
    pub fn set_changing(&mut self, is_changing: bool) {
        self.is_changing = is_changing;
    }

    /// For how long a change of this device's may wait, if it may.
    fn patience_with(&self, device: Device, now: Instant, store: &mut impl Store) -> Result<Option<Duration>> {
        if let Some(wait) = self.looks.wait(device, now) {
            return Ok(Some(wait));
        }
        let Some(driver) = &self.driver_domain else { return Ok(None) };
        if self.is_changing {
            return Ok(Some(A_MOMENT));
        }
        let name = store.read(&name_of(device.guest))?;
        Ok(name.filter(|name| *name == remains_of(driver)).map(|_| LATER))
    }

    /// The domid of its domain.
    pub fn domain(&self) -> u16 {
        self.at.domain
    }

    /// As guests name it.
    pub fn name(&self) -> &str {
        &self.at.service
    }

    /// Does for a device what is to be done now.
    fn settle(
        &mut self,
        device: Device,
        now: Instant,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<()> {
        for n in 0..MAX_STEPS {
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
            if n == 0 {
                self.looks.count(device, now);
            }
            self.take(step, device, store, switches)?;
        }
        Ok(())
    }

    fn take(&mut self, step: Step, device: Device, store: &mut impl Store, switches: &mut impl Switches) -> Result<()> {
        let path = self.at.back(device);
        let write = |key: &str, value: &str| Change::Write(format!("{path}/{key}"), value.into());
        let show = |state: u32| write("state", &state.to_string());
        let guard = format!("{path}/frontend");
        match step {
            Step::Offer => {
                let mut changes: Vec<Change> = OFFER.iter().map(|(key, value)| write(key, value)).collect();
                changes.push(write(device::MAX_QUEUES, &self.queues_for(device, store)?.to_string()));
                changes.extend([write("hotplug-status", "connected"), show(state::INIT_WAIT)]);
                changes.push(Change::Remove(self.at.error(device)));
                store.change(&guard, &changes)?;
            }
            Step::Show(state) => {
                store.change(&guard, &[show(state)])?;
            }
            Step::Plug => match self.plug(device, store, switches)? {
                Ok(()) => {}
                Err(why) => {
                    self.say(device, &format!(": not connected: {why}"));
                    let error = Change::Write(format!("{}/error", self.at.error(device)), why);
                    store.change(&guard, &[error, show(state::CLOSING)])?;
                }
            },
            Step::Unplug => {
                if let Some(vif) = self.devices.get_mut(&device).and_then(Option::take) {
                    match switches.disconnect(vif) {
                        Ok(()) | Err(Errno::NOENT) => self.say(device, ": disconnected"),
                        Err(error) => return Err(error).context("an interface cannot be let go"),
                    }
                }
            }
            Step::Forget => {
                store.change(&guard, &[Change::Remove(path.clone()), Change::Remove(self.at.error(device))])?;
            }
        }
        Ok(())
    }

    /// The devices that have a directory.
    fn listed(&self, store: &mut impl Store) -> Result<Vec<Device>> {
        let path = self.at.devices();
        let mut found = Vec::new();
        for guest in store.list(&path)? {
            for number in store.list(&format!("{path}/{guest}"))? {
                found.extend(places::device_in(&format!("/{guest}/{number}")));
            }
        }
        Ok(found)
    }

    /// A line for the operator.
    fn say(&mut self, device: Device, what: &str) {
        let line = format!("{}{what}", self.at.describe(device));
        self.lines.say(device, &line);
    }

    /// Begins or ends to watch the front end.
    fn follow(&self, device: Device, store: &mut impl Store, is_wanted: bool) -> Result<()> {
        let token = self.at.token(&format!("/{}/{}", device.guest, device.number));
        let mut paths = vec![places::front(device)];
        // Each guest may be the driver domain one day.
        if self.driver_domain.is_some() {
            paths.extend([link_of(device.guest), link_of_one(device), name_of(device.guest)]);
        }
        for path in paths {
            if is_wanted {
                store.watch(&path, &token)?;
            } else {
                store.unwatch(&path, &token)?;
            }
        }
        Ok(())
    }
}
