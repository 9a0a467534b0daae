//! A disk's back end in the driver domain that waits to take the place. It is made before it is needed, in a slot of
//! its own, so that it lacks nothing but the medium when that domain is the driver domain: its ring is there, and
//! granted. What is left of a driver domain that has lost the place goes here, too. A guest that waits for its disk
//! comes first, so one step is done at a look that nothing but time has asked for; there is one a moment after whatever
//! may be the occasion.

use super::{medium, state, Device, DiskService, Disks, Far, Step, DISK_NO_BACK};
use crate::service::name_of;
use crate::store::Store;
use crate::supervisor::{standby_of, waits_for};
use anyhow::Result;

impl DiskService {
    /// The domain that waits, as its supervisor says.
    fn waiting(&self, store: &mut impl Store) -> Result<Option<u16>> {
        let Some(driver) = &self.driver_domain else { return Ok(None) };
        let said = store.read(&waits_for(&self.name))?.and_then(|domain| domain.parse().ok());
        let Some(domain) = said else { return Ok(None) };
        let is_named = store.read(&name_of(domain))?.is_some_and(|name| name == standby_of(driver));
        Ok(is_named.then_some(domain))
    }

    /// Where a disk's things are, in the driver domain of now if they are there; else where those are that it does not
    /// need any more.
    pub(super) fn far(&self, device: Device, driver: Option<u16>, store: &mut impl Store) -> Result<Option<Far>> {
        let places = self.places_of(device, store)?;
        if let Some(place) = places.iter().find(|place| Some(place.driver) == driver) {
            return Ok(Some(Far { is_current: true, ..place.clone() }));
        }
        let online = format!("{}/online", self.back(device));
        let is_wanted = self.connected.contains_key(&device) || store.read(&online)?.as_deref() == Some("1");
        let waiting = if is_wanted { self.waiting(store)? } else { None };
        Ok(places.into_iter().find(|place| Some(place.driver) != waiting))
    }

    /// The store tells of the one that waits, of its name, say: then it need not be asked for that when it has the
    /// place.
    fn expect(&mut self, waiting: Option<u16>, store: &mut impl Store) -> Result<()> {
        if self.expected == waiting {
            return Ok(());
        }
        if let Some(old) = self.expected.take() {
            self.follow_domain(old, store, false)?;
        }
        if let Some(new) = waiting {
            self.follow_domain(new, store, true)?;
        }
        self.expected = waiting;
        Ok(())
    }

    /// The same of the state of a disk's back end there.
    pub(super) fn follow_ahead(
        &mut self,
        device: Device,
        wanted: Option<String>,
        store: &mut impl Store,
    ) -> Result<()> {
        if self.ahead.get(&device) == wanted.as_ref() {
            return Ok(());
        }
        if let Some(old) = self.ahead.remove(&device) {
            store.unwatch(&old, &self.token())?;
        }
        if let Some(new) = wanted {
            store.watch(&new, &self.token())?;
            self.ahead.insert(device, new);
        }
        Ok(())
    }

    /// One for each of its slots.
    fn places_of(&self, device: Device, store: &mut impl Store) -> Result<Vec<Far>> {
        let mut places = Vec::new();
        for (slot, _) in self.slots(store)?.into_iter().filter(|(_, of)| *of == device) {
            let id = store.read(&format!("{}/{slot}/backend-id", self.slots_at()))?;
            let driver = id.and_then(|id| id.parse().ok()).unwrap_or(DISK_NO_BACK);
            places.push(Far { is_current: false, ..self.at(slot, driver) });
        }
        Ok(places)
    }

    /// Whether there is one more than those need that have none.
    fn has_slot_to_spare(&self, store: &mut impl Store) -> Result<bool> {
        let slots = self.slots(store)?;
        let lacks = |device: &&Device| slots.iter().all(|(_, of)| of != *device);
        Ok(slots.len() + self.devices.iter().filter(lacks).count() < self.nr_slots as usize)
    }

    /// The slot of a back end that is made ahead, which goes: a guest that waits for a disk needs it more than one that
    /// may have to wait a little longer when its driver domain dies. `driver` is whom it is for.
    pub(super) fn take_ahead(
        &mut self,
        driver: u16,
        store: &mut impl Store,
        disks: &mut impl Disks,
    ) -> Result<Option<u32>> {
        let Some(waiting) = self.waiting(store)?.filter(|waiting| *waiting != driver) else { return Ok(None) };
        for (slot, device) in self.slots(store)? {
            let id = store.read(&format!("{}/{slot}/backend-id", self.slots_at()))?;
            if id.is_some_and(|id| id == waiting.to_string()) {
                self.take(Step::ForgetFar, device, Some(self.at(slot, waiting)), None, store, disks)?;
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Whether a path tells of the domain that waits, or of a back end there.
    pub(super) fn is_ahead(&self, path: &str) -> bool {
        path == waits_for(&self.name)
            || self.expected.is_some_and(|domain| path == name_of(domain))
            || self.ahead.values().any(|state| state == path)
    }

    /// Does for a disk that has its back end what is next to do for the one that may come. `true`: a back end was begun
    /// or granted its ring.
    pub(super) fn prepare(&mut self, device: Device, store: &mut impl Store, disks: &mut impl Disks) -> Result<bool> {
        let is_served = self.back_of(device).is_some();
        let Some(driver) = self.driver(store)?.filter(|_| is_served) else { return Ok(false) };
        let waiting = self.waiting(store)?;
        self.expect(waiting, store)?;
        let followed = self.places_of(device, store)?.into_iter().find(|place| Some(place.driver) == waiting);
        self.follow_ahead(device, followed.map(|place| format!("{}/state", place.far)), store)?;
        let (mut is_begun, mut has_news) = (false, false);
        for place in self.places_of(device, store)? {
            if place.driver == driver {
                continue;
            }
            let mut state_of = |end: &str| -> Result<u32> {
                let said = store.read(&format!("{end}/state"))?;
                Ok(said.and_then(|state| state.parse().ok()).unwrap_or(state::UNKNOWN))
            };
            let step = match (state_of(&place.near)?, state_of(&place.far)?) {
                _ if Some(place.driver) != waiting => Step::ForgetFar,
                (state::INITIALISING, state::INITIALISING) => {
                    is_begun = true;
                    continue;
                }
                (state::INITIALISED, state::INIT_WAIT) => {
                    // It is asked for these when it is attached, and then they are known.
                    for key in ["ring-ref", "event-channel"] {
                        store.read(&format!("{}/{key}", place.near))?;
                    }
                    for key in medium::SIZE {
                        store.read(&format!("{}/{key}", self.back(device)))?;
                    }
                    is_begun = true;
                    continue;
                }
                (state::INITIALISING, state::INIT_WAIT) => Step::Grant,
                _ => Step::ForgetFar,
            };
            let is_granted = step == Step::Grant;
            is_begun |= is_granted;
            has_news |= self.take(step, device, Some(place), None, store, disks)? && is_granted;
        }
        if let Some(waiting) = waiting.filter(|_| !is_begun) {
            if self.has_slot_to_spare(store)? {
                has_news |= self.take(Step::Introduce, device, None, Some(waiting), store, disks)?;
            }
        }
        Ok(has_news)
    }
}
