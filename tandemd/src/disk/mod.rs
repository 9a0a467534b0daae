//! A service of disks: plays the back end's part for guests, and the front end's for the driver domain's stock back
//! end.
//!
//! It remembers nothing that matters: which slot of the service's domain a disk has is in xenstore, in the front end's
//! directory there. A driver domain may come and go at any moment; it is looked at again and again while a disk is
//! without a back end.

mod ahead;
mod device;
mod grants;
mod medium;
mod places;
mod sharing;
mod steps;
mod target;
#[cfg(test)]
mod tests;
mod told;
mod troubles;
mod whose;

use crate::config::Weights;
use crate::device::Device;
use crate::device::{state, Back};
use crate::hypercall::{disks_of, Disks, SLOTS};
use crate::often::{Lines, Looks};
use crate::service::{is_asked_to_end, name_of, Fate};
use crate::store::{Event, Store};
use crate::supervisor::{is_in_pci_backs, pci_backs, taken_by, waits_for};
use anyhow::{Context, Result};
use device::{Seen, Step};
use grants::Leftovers;
use places::{device_in, front, Far};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use xen_abi::channel_op::ChannelDiskStatus;
use xen_abi::channel_op::{DISK_GIVEN_UP, DISK_NO_BACK};

/// Steps for a disk after one look at most: a driver domain's back end that comes takes the most.
const MAX_STEPS: usize = 12;
/// So often is looked at a disk that waits for its back end, or is under way; and at all.
const UNTIL_TRIED: Duration = Duration::from_millis(200);
const UNTIL_NEXT: Duration = Duration::from_secs(2);
/// So long after a disk has its back end, or after there is news of the domain that waits, one step is done of what is
/// made ahead there.
const UNTIL_PREPARED: Duration = Duration::from_millis(200);
/// Who runs scripts in a driver domain is reminded so often.
const UNTIL_REMINDED: Duration = Duration::from_secs(3);
/// So long is waited until it is looked again whether a driver domain's place is taken.
const A_MOMENT: Duration = Duration::from_millis(5);
/// So long a disk that the toolstack takes away shows that it is closed.
const UNTIL_SEEN: Duration = Duration::from_millis(500);
/// So long its back end has to end what is under way when its front end has left it. What has not ended then is
/// answered with errors.
const UNTIL_DRAINED: Duration = Duration::from_secs(2);
/// So long whoever runs scripts in the driver domain (`xl devd`) has to take away a back end that has closed for good.
/// If nobody does it is taken away here.
const UNTIL_UNPLUGGED: Duration = Duration::from_secs(10);

/// A service.
pub struct DiskService {
    name: String,
    /// Its domain, which guests grant to.
    domain: u16,
    /// Name of the domain that has the media.
    driver_domain: Option<String>,
    /// Those that are followed.
    devices: BTreeSet<Device>,
    /// Of those, which have no back end or are under way.
    unsettled: BTreeSet<Device>,
    /// What the hypervisor has, as of the beginning of this look and of what was done since.
    connected: BTreeMap<Device, ChannelDiskStatus>,
    /// Of each, the state of the back end that is followed.
    fars: BTreeMap<Device, String>,
    /// Those whose back ends have shown their states, perhaps once more, since what they say of their media was
    /// compared with what guests were told.
    may_have_grown: BTreeSet<Device>,
    /// Of each, that of the back end in the domain that waits, which is followed too.
    ahead: BTreeMap<Device, String>,
    /// The driver domain that was there, which is followed.
    driver: Option<u16>,
    /// The domain that waits, which is followed too.
    expected: Option<u16>,
    /// There may be another one since it was looked for.
    may_have_come: bool,
    /// Its domain is asked to shut down.
    is_asked: bool,
    /// Those that go, and since when they show that they are closed.
    closed: BTreeMap<Device, Instant>,
    /// Those that are let go when nothing is under way any more, and since when.
    draining: BTreeMap<Device, Instant>,
    /// Those whose back ends have closed for good, and since when.
    unplugged: BTreeMap<Device, Instant>,
    /// Of each, back ends that have written into its ring what cannot be, as far as that was said.
    bad_rings: BTreeMap<Device, u32>,
    /// Of each, why its back end's medium cannot be, as was said.
    bad_media: BTreeMap<Device, &'static str>,
    /// Of each, what went wrong with it last and was said.
    troubles: BTreeMap<Device, String>,
    /// Those whose back ends wait for their media, and since when; `None`: that was said.
    without_medium: BTreeMap<Device, Option<Instant>>,
    /// Places for its disks' back ends.
    nr_slots: u32,
    /// Those that may grant to domains that have none there any more.
    leftovers: Leftovers,
    /// What was done for each, and said of it.
    looks: Looks,
    lines: Lines,
    /// Shares of guests, by name.
    weights: Weights,
    /// Its driver domain is parked.
    is_parked: bool,
    /// Its driver domain's place changes hands just now. What happens meanwhile is looked at when that is over.
    is_changing: bool,
    /// What was put off is looked at then.
    put_off: Option<Instant>,
    next_look: Instant,
    next_try: Instant,
    /// Whose back end waits for its medium is not reminded of it before.
    next_reminder: BTreeMap<Device, Instant>,
}

impl DiskService {
    /// Takes a service up.
    pub fn start(name: &str, domain: u16, driver_domain: Option<String>, store: &mut impl Store) -> Result<Self> {
        let (devices, fars, closed) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        let now = Instant::now();
        let (bad_rings, is_parked) = (BTreeMap::new(), false);
        let (next_look, next_reminder) = (now, BTreeMap::new());
        let service = Self {
            name: name.into(),
            domain,
            driver_domain,
            devices,
            unsettled: BTreeSet::new(),
            connected: BTreeMap::new(),
            fars,
            may_have_grown: BTreeSet::new(),
            ahead: BTreeMap::new(),
            driver: None,
            expected: None,
            may_have_come: true,
            is_asked: false,
            closed,
            draining: BTreeMap::new(),
            unplugged: BTreeMap::new(),
            bad_rings,
            bad_media: BTreeMap::new(),
            troubles: BTreeMap::new(),
            without_medium: BTreeMap::new(),
            nr_slots: SLOTS,
            leftovers: Leftovers::new(),
            looks: Looks::new(),
            lines: Lines::new(),
            weights: Weights::new(),
            is_parked,
            is_changing: false,
            put_off: None,
            next_look,
            next_try: now,
            next_reminder,
        };
        for path in [service.of_domain("backend/vbd"), service.of_domain("vm"), service.of_domain("control/shutdown")] {
            store.watch(&path, &service.token())?;
        }
        for path in ["@introduceDomain", "@releaseDomain", &taken_by(name), &waits_for(name)] {
            store.watch(path, &service.token())?;
        }
        // Back ends only read there.
        store.own(&service.slots_at());
        Ok(service)
    }

    /// Guests have these shares of what the driver domain does, from when their disks are connected.
    pub fn with_weights(self, weights: Weights) -> Self {
        Self { weights, ..self }
    }

    /// Something happened, perhaps to this service; or the time has come that [`Self::due`] said.
    pub fn handle(
        &mut self,
        events: &[Event],
        now: Instant,
        store: &mut impl Store,
        disks: &mut impl Disks,
    ) -> Result<Fate> {
        self.lines.pass(now);
        let (is_time, had_none) = (self.next_look <= now, self.unsettled.is_empty());
        let is_due = !self.unsettled.is_empty() && self.next_try <= now;
        let token = self.token();
        let own: Vec<&Event> = events.iter().filter(|event| event.token == token).collect();
        let was_put_off = self.put_off.is_some();
        if !is_time && !is_due && !was_put_off && own.is_empty() {
            return Ok(self.fate());
        }
        self.note_states(&own);
        if self.is_changing {
            self.put_off = Some(now + A_MOMENT);
            return Ok(self.fate());
        }
        self.put_off = None;
        let (name, driver) = (self.driver.map(name_of), self.driver);
        // What is one disk's costs others nothing: who writes there may be any guest.
        let mut named = BTreeSet::new();
        let mut may_prepare = own.iter().any(|event| self.is_ahead(&event.path));
        let (mut is_full, mut may_have_come) = (is_time || was_put_off, is_time || is_due || was_put_off);
        let mut may_have_lost = false;
        for event in own {
            if let Some(device) = self.device_of(&event.path) {
                named.insert(device);
            } else if is_in_pci_backs(&event.path) {
                may_have_lost = true;
            } else {
                is_full = true;
                may_have_come |= Some(&event.path) != name.as_ref();
            }
        }
        self.may_have_come = may_have_come;
        self.connected = self.list(disks)?;
        self.tell_bad_rings();
        if may_have_lost {
            // All its disks go with a device. Those that wait for something else are looked at often anyway.
            let lost = self.connected.iter().filter(|(_, disk)| disk.back == DISK_NO_BACK).map(|(device, _)| *device);
            named.extend(lost.filter(|device| !self.unsettled.contains(device)));
        }
        if is_full {
            named.extend(self.listed(store)?);
            named.extend(&self.devices);
            named.extend(self.connected.keys());
            self.closed.retain(|device, _| named.contains(device));
            self.draining.retain(|device, _| named.contains(device));
            self.unplugged.retain(|device, _| named.contains(device));
            self.troubles.retain(|device, _| named.contains(device));
            self.bad_media.retain(|device, _| named.contains(device));
            self.without_medium.retain(|device, _| named.contains(device));
            self.next_reminder.retain(|device, _| named.contains(device));
            self.unsettled.retain(|device| named.contains(device));
            self.may_have_grown.retain(|device| named.contains(device));
            self.next_look = now + UNTIL_NEXT;
        } else if is_due {
            named.extend(&self.unsettled);
        }
        for device in named {
            if self.looks.wait(device, now).is_some() {
                self.unsettled.insert(device);
                continue;
            }
            let back = self.back_of(device);
            let mut is_settled = self.settle(device, now, store, disks);
            may_prepare |= self.back_of(device).is_some_and(|now| Some(now) != back);
            if is_time && is_settled.is_ok() {
                match self.prepare(device, store, disks) {
                    Ok(has_begun) => may_prepare |= has_begun,
                    Err(error) => is_settled = Err(error),
                }
            }
            if self.bear(device, is_settled) {
                self.unsettled.remove(&device);
            } else {
                self.unsettled.insert(device);
            }
        }
        if is_time {
            self.revoke_left(store, disks)?;
        }
        if is_full || is_due || had_none {
            self.next_try = now + UNTIL_TRIED;
        }
        if !is_full && self.driver != driver {
            // Another one came or went meanwhile, which is everybody's affair.
            self.next_look = now;
        }
        if may_prepare {
            self.next_look = self.next_look.min(now + UNTIL_PREPARED);
        }
        if store.read(&self.of_domain("vm"))?.is_none() {
            return Ok(Fate::Gone);
        }
        self.is_asked = is_asked_to_end(self.domain, store)?;
        Ok(self.fate())
    }

    /// What becomes of it, unless its domain is gone.
    fn fate(&self) -> Fate {
        if self.is_asked && self.devices.is_empty() {
            Fate::MayEnd
        } else {
            Fate::Lives
        }
    }

    /// When there is something to look at, though nothing may happen.
    pub fn due(&self) -> Option<Instant> {
        let tries = Some(self.next_try).filter(|_| !self.unsettled.is_empty());
        let next = tries.map_or(self.next_look, |tries| tries.min(self.next_look));
        let looks = self.put_off.or((!self.devices.is_empty() || self.leftovers.are_there()).then_some(next));
        looks.into_iter().chain(self.lines.due()).min()
    }

    /// Name of the domain that has the media.
    pub fn driver_domain(&self) -> Option<&str> {
        self.driver_domain.as_deref()
    }

    /// Whether its driver domain is parked; what waits is answered accordingly at the next look.
    pub fn set_parked(&mut self, is_parked: bool) {
        if self.is_parked != is_parked {
            (self.is_parked, self.next_look) = (is_parked, Instant::now());
        }
    }

    /// Whether its driver domain's place changes hands.
    pub fn set_changing(&mut self, is_changing: bool) {
        self.is_changing = is_changing;
    }

    /// The domid of its domain.
    pub fn domain(&self) -> u16 {
        self.domain
    }

    /// As guests name it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a disk's back end was reminded of its medium a moment ago, or has just come.
    fn is_reminded(&self, device: Device, now: Instant) -> bool {
        self.next_reminder.get(&device).is_some_and(|next| *next > now)
    }

    /// Does for a disk what is to be done now. `false`: it is without a back end.
    fn settle(&mut self, device: Device, now: Instant, store: &mut impl Store, disks: &mut impl Disks) -> Result<bool> {
        for n in 0..MAX_STEPS {
            let driver = self.driver(store)?;
            let far = self.far(device, driver, store)?;
            if self.follow_far(device, far.as_ref(), store)? {
                self.next_reminder.insert(device, now + UNTIL_REMINDED);
            }
            let seen = self.look(device, far.as_ref(), driver, now, store)?;
            let is_there = seen.back.is_some() || seen.is_connected || far.is_some();
            if is_there != self.devices.contains(&device) {
                self.follow(device, store, is_there)?;
            }
            let Some(step) = device::next(&seen) else {
                let is_wanted = seen.is_connected || seen.back.is_some_and(|back| back.online);
                if seen.is_draining {
                    return Ok(false);
                }
                return Ok(if is_wanted { seen.is_attached || !seen.has_driver } else { far.is_none() });
            };
            if step == Step::Remind {
                if self.is_reminded(device, now) {
                    return Ok(false);
                }
                self.next_reminder.insert(device, now + UNTIL_REMINDED);
            }
            if step == Step::Introduce {
                // Also one that was rolled back, whose place is the one that was followed.
                self.next_reminder.insert(device, now + UNTIL_REMINDED);
            }
            if n == 0 {
                self.looks.count(device, now);
            }
            if !self.take(step, device, far, driver, store, disks)? {
                return Ok(false);
            }
        }
        Ok(false)
    }

    fn look(
        &mut self,
        device: Device,
        far: Option<&Far>,
        driver: Option<u16>,
        now: Instant,
        store: &mut impl Store,
    ) -> Result<Seen> {
        let path = self.back(device);
        let mut state_of = |path: &str| -> Result<u32> {
            Ok(store.read(&format!("{path}/state"))?.and_then(|v| v.parse().ok()).unwrap_or(state::UNKNOWN))
        };
        let front = state_of(&front(device))?;
        let place = far;
        let (near, far) = match far {
            Some(far) if far.is_current => (state_of(&far.near)?, state_of(&far.far)?),
            Some(_) => (state::CLOSED, state::UNKNOWN),
            None => (state::UNKNOWN, state::UNKNOWN),
        };
        let waits_in =
            place.map(|place| place.driver).filter(|_| (near, far) == (state::INITIALISED, state::INIT_WAIT));
        self.tell_without_medium(device, waits_in, now);
        let shown = state_of(&path)?;
        let back = match store.read(&format!("{path}/frontend"))? {
            None => {
                self.closed.remove(&device);
                None
            }
            Some(_) => {
                let online = store.read(&format!("{path}/online"))?.as_deref() == Some("1");
                let is_seen_closed = if !online && shown == state::CLOSED {
                    *self.closed.entry(device).or_insert(now) + UNTIL_SEEN <= now
                } else {
                    self.closed.remove(&device);
                    false
                };
                Some(Back { state: shown, online, is_seen_closed })
            }
        };
        let connected = self.connected.get(&device).copied();
        let is_attached = connected.is_some_and(|disk| disk.back != DISK_NO_BACK);
        let has_given_up = connected.is_some_and(|disk| disk.state & DISK_GIVEN_UP != 0);
        let is_under_way = is_attached && connected.is_some_and(|disk| disk.waiting > 0);
        let is_draining = if is_under_way && (back.is_none() || device::has_left(front)) {
            now < *self.draining.entry(device).or_insert(now) + UNTIL_DRAINED
        } else {
            self.draining.remove(&device);
            false
        };
        let is_dismissed = match place {
            Some(place) if near == state::CLOSED && far != state::UNKNOWN => {
                store.read(&format!("{}/online", place.far))?.as_deref() == Some("0")
            }
            _ => false,
        };
        let is_unplugging = if is_dismissed && far == state::CLOSED {
            now < *self.unplugged.entry(device).or_insert(now) + UNTIL_UNPLUGGED
        } else {
            self.unplugged.remove(&device);
            false
        };
        let has_driver = driver.is_some();
        let has_medium = match place {
            // Nobody asks for a reminder that is not due.
            Some(_) if self.is_reminded(device, now) => true,
            Some(place) if (near, far) == (state::INITIALISED, state::INIT_WAIT) => {
                store.read(&format!("{}/physical-device", place.far))?.is_some()
            }
            _ => false,
        };
        let served_by = connected.map(|disk| disk.back).filter(|_| (near, far) == (state::CONNECTED, state::CONNECTED));
        let has_grown = match place.filter(|place| Some(place.driver) == served_by) {
            Some(place) => self.grown(device, place, store)?.is_some(),
            None => false,
        };
        let (is_connected, is_parked) = (connected.is_some(), self.is_parked);
        Ok(Seen {
            back,
            front,
            is_connected,
            is_attached,
            is_draining,
            has_given_up,
            has_driver,
            is_parked,
            near,
            far,
            is_dismissed,
            is_unplugging,
            has_medium,
            has_grown,
        })
    }

    /// Disks that the hypervisor has for this service.
    fn list(&self, disks: &mut impl Disks) -> Result<BTreeMap<Device, ChannelDiskStatus>> {
        let all = disks_of(disks, self.domain).context("the list of disks")?;
        Ok(all.into_iter().map(|disk| (Device { guest: disk.guest, number: disk.device }, disk)).collect())
    }

    /// The domid of the driver domain, if it is there. The toolstack writes its name before the store knows it:
    /// directories that it gets before that are not its own.
    fn driver(&mut self, store: &mut impl Store) -> Result<Option<u16>> {
        let Some(wanted) = self.driver_domain.clone() else { return Ok(None) };
        if let Some(domain) = self.driver {
            if store.read(&name_of(domain))?.as_ref() == Some(&wanted) {
                return Ok(Some(domain));
            }
            self.follow_domain(domain, store, false)?;
            self.driver = None;
        }
        if !std::mem::take(&mut self.may_have_come) {
            return Ok(None);
        }
        let Some(domain) = self.named(&wanted, store)? else { return Ok(None) };
        if self.expected == Some(domain) {
            // It has booted since.
            self.driver = self.expected.take();
        } else if store.is_introduced(domain)? {
            self.follow_domain(domain, store, true)?;
            self.driver = Some(domain);
        }
        Ok(self.driver)
    }

    /// The domain of a name. Most often it is the one that has taken the driver domain's place last.
    fn named(&self, wanted: &str, store: &mut impl Store) -> Result<Option<u16>> {
        let last = store.read(&taken_by(&self.name))?.and_then(|domain| domain.parse().ok());
        if let Some(domain) = last {
            if store.read(&name_of(domain))?.as_deref() == Some(wanted) {
                return Ok(Some(domain));
            }
        }
        for domain in store.list("/local/domain")? {
            let Ok(domain) = domain.parse() else { continue };
            if store.read(&name_of(domain))?.as_deref() == Some(wanted) {
                return Ok(Some(domain));
            }
        }
        Ok(None)
    }

    /// The driver domain whose back end a disk has.
    fn back_of(&self, device: Device) -> Option<u16> {
        self.connected.get(&device).map(|disk| disk.back).filter(|back| *back != DISK_NO_BACK)
    }

    /// Begins or ends to watch what tells of a domain: its name, and its devices, of which it may lose one.
    fn follow_domain(&self, domain: u16, store: &mut impl Store, is_wanted: bool) -> Result<()> {
        for path in [name_of(domain), pci_backs(domain)] {
            if is_wanted {
                store.watch(&path, &self.token())?;
            } else {
                store.unwatch(&path, &self.token())?;
            }
        }
        Ok(())
    }

    /// Begins or ends to watch the front end.
    fn follow(&mut self, device: Device, store: &mut impl Store, is_wanted: bool) -> Result<()> {
        let path = format!("{}/state", front(device));
        if is_wanted {
            self.devices.insert(device);
            store.watch(&path, &self.token())
        } else {
            self.devices.remove(&device);
            self.follow_ahead(device, None, store)?;
            store.unwatch(&path, &self.token())
        }
    }

    /// Watches the state of the back end that the disk has in the driver domain of now, and no other. `true`: there is
    /// a new one.
    fn follow_far(&mut self, device: Device, far: Option<&Far>, store: &mut impl Store) -> Result<bool> {
        let wanted = far.filter(|far| far.is_current).map(|far| format!("{}/state", far.far));
        if self.fars.get(&device) == wanted.as_ref() {
            return Ok(false);
        }
        if let Some(old) = self.fars.remove(&device) {
            store.unwatch(&old, &self.token())?;
        }
        let Some(path) = wanted else { return Ok(false) };
        if self.ahead.get(&device) == Some(&path) {
            self.ahead.remove(&device);
        } else {
            store.watch(&path, &self.token())?;
        }
        self.fars.insert(device, path);
        Ok(true)
    }

    fn token(&self) -> String {
        format!("{}:disks", self.name)
    }

    /// A line for the operator.
    fn say(&mut self, device: Device, what: &str) {
        self.lines.say(device, &line_of(&self.name, device, what));
    }

    /// One of what no guest brings about.
    fn warn(&mut self, device: Device, what: &str) {
        self.lines.warn(device, &line_of(&self.name, device, what));
    }
}

fn line_of(service: &str, device: Device, what: &str) -> String {
    format!("{service}: vbd {} of domain {}: {what}", device.number, device.guest)
}
