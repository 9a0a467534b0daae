//! What a disk's two ends are told: the driver domain's back end, of the medium that it is to serve; and the guest, of
//! what that can do.

use super::medium::{self, Medium};
use super::target::{is_file, names_its_medium};
use super::{front, state, Device, DiskService, Disks, Far};
use crate::service::name_of;
use crate::store::{Change, Store};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use xen_abi::channel_op::{ChannelDiskConnect, ChannelDiskStatus, DISK_DISCARD, DISK_FLUSH, DISK_NO_BACK, DISK_WRITE};

/// What the toolstack has said of the medium, and the driver domain's back end and its script want to know.
const MEDIUM: &[&str] = &[
    "params",
    "script",
    "removable",
    "bootable",
    "dev",
    "type",
    "mode",
    "device-type",
    "discard-enable",
    "specification",
];

/// A file is a medium by a loop device.
const OF_A_FILE: &str = "its medium is a file: what the guest has written and not flushed may be lost when the driver domain dies, and no guest is told of \
                         that (docs/driver-domains.md, \"Disks\")";

impl DiskService {
    /// Makes the directories of a back end in the driver domain and of its front end here, in a slot that is the
    /// disk's.
    pub(super) fn introduce(
        &mut self,
        device: Device,
        far: Option<Far>,
        driver: u16,
        store: &mut impl Store,
        disks: &mut impl Disks,
    ) -> Result<bool> {
        self.check_sharing(device, store)?;
        let slot = match far {
            Some(far) => {
                // It may be what is left of another driver domain.
                self.leftovers.add(far.slot);
                far.slot
            }
            None => {
                let used: BTreeSet<u32> = self.slots(store)?.into_iter().map(|(slot, _)| slot).collect();
                match (0..self.nr_slots).find(|slot| !used.contains(slot)) {
                    Some(slot) => slot,
                    None => {
                        let lent = self.take_ahead(driver, store, disks)?;
                        lent.with_context(|| {
                            format!("there is no room for its back end: the service has {}", self.nr_slots)
                        })?
                    }
                }
            }
        };
        let far = self.at(slot, driver);
        let mut changes = vec![Change::Remove(far.near.clone()), Change::Remove(far.far.clone())];
        changes.push(Change::Make { path: far.near.clone(), owner: self.domain, reader: driver });
        changes.push(Change::Make { path: far.far.clone(), owner: driver, reader: self.domain });
        let mut write =
            |path: &str, key: &str, value: &str| changes.push(Change::Write(format!("{path}/{key}"), value.into()));
        write(&far.near, "serves", &format!("{}/{}", device.guest, device.number));
        write(&far.near, "backend", &far.far);
        write(&far.near, "backend-id", &driver.to_string());
        write(&far.near, "virtual-device", &slot.to_string());
        write(&far.near, "device-type", "disk");
        write(&far.near, "state", "1");
        for key in MEDIUM {
            if let Some(value) = store.read(&format!("{}/{key}", self.back(device)))? {
                write(&far.far, key, &value);
            }
        }
        write(&far.far, "frontend", &far.near);
        write(&far.far, "frontend-id", &self.domain.to_string());
        write(&far.far, "online", "1");
        write(&far.far, "state", "1");
        self.say(device, &format!("domain {driver} is to be its back end"));
        store.change(&format!("{}/frontend", self.back(device)), &changes)
    }

    /// What the back end says of its medium. `None`: that cannot be, or is not what the guest was told when it was
    /// connected: its disk is another one, and what the guest writes would be lost there, with what lies there. That is
    /// said once, and the back end begins again. One that has grown may be the same: the guest is told.
    pub(super) fn medium(&mut self, device: Device, far: &Far, store: &mut impl Store) -> Result<Option<Medium>> {
        let medium = if self.connected.contains_key(&device) {
            // Only domain 0 writes what guests are told. The rest is not asked for: a guest waits.
            let told = Self::said(&self.back(device), medium::SIZE, store)?;
            let medium = Self::said(&far.far, medium::SIZE, store)?;
            match medium.map(|medium| (told.ok().and_then(|told| medium.growth_since(&told)), medium)) {
                Ok((Some(0), medium)) => Ok(medium),
                Ok((Some(_), medium)) if self.names_its_medium(device, store)? => {
                    self.tell_growth(device, &medium, store)?;
                    Ok(medium)
                }
                Ok((Some(_), _)) => Err(medium::LARGER),
                Ok((None, _)) => Err(medium::OTHER_SIZE),
                Err(why) => Err(why),
            }
        } else {
            Self::said(&far.far, medium::ALL, store)?
        };
        let why = match medium {
            Ok(medium) => {
                self.bad_media.remove(&device);
                self.may_have_grown.remove(&device);
                return Ok(Some(medium));
            }
            Err(why) => why,
        };
        if self.bad_media.insert(device, why) != Some(why) {
            self.say(device, &format!("not connected: of its medium domain {} says {why}", far.driver));
        }
        let connected = Change::Write(format!("{}/state", far.near), state::CONNECTED.to_string());
        store.change(&format!("{}/backend", far.near), &[connected])?;
        Ok(None)
    }

    /// What one end says of its medium.
    fn said(place: &str, keys: &[&'static str], store: &mut impl Store) -> Result<Result<Medium, &'static str>> {
        Medium::read(keys, |key| store.read(&format!("{place}/{key}")))
    }

    /// Whether a medium of another size, where the disk's is looked for, can be none but that one.
    fn names_its_medium(&self, device: Device, store: &mut impl Store) -> Result<bool> {
        let target = store.read(&format!("{}/params", self.back(device)))?;
        Ok(target.is_some_and(|target| names_its_medium(&target)))
    }

    /// What the back end that serves says of its medium, if that is larger than the guest was told. Whatever leads to
    /// it, it is the one that the guest has. The store does not tell of sizes by itself, and each question costs time:
    /// so it is asked when the back end has shown its state, as stock ones do then.
    pub(super) fn grown(&mut self, device: Device, far: &Far, store: &mut impl Store) -> Result<Option<Medium>> {
        if !self.may_have_grown.contains(&device) {
            return Ok(None);
        }
        let told = Self::said(&self.back(device), medium::SIZE, store)?;
        let medium = Self::said(&far.far, medium::SIZE, store)?;
        let both = medium.ok().zip(told.ok());
        let grown = both.filter(|(medium, told)| medium.growth_since(told).is_some_and(|sectors| sectors > 0));
        if grown.is_none() {
            self.may_have_grown.remove(&device);
        }
        Ok(grown.map(|(medium, _)| medium))
    }

    /// The guest is told what size its medium has by now, as a stock back end does that: with its state once more, for
    /// which stock front ends look at the size again.
    pub(super) fn tell_growth(&mut self, device: Device, medium: &Medium, store: &mut impl Store) -> Result<()> {
        let path = self.back(device);
        let sectors = Change::Write(format!("{path}/{}", medium::SECTORS), medium.sectors().to_string());
        store.change(&format!("{path}/frontend"), &[sectors, Change::Repeat(format!("{path}/state"))])?;
        self.say(device, &format!("its medium has grown, to {} sectors of 512 bytes", medium.sectors()));
        Ok(())
    }

    /// The guest's directory says what the medium is, and the hypervisor takes up the guest's ring. In this order: to
    /// one whose ring is taken up only the state is shown, by whoever comes next if this daemon is killed in between.
    pub(super) fn connect(
        &mut self,
        device: Device,
        far: &Far,
        store: &mut impl Store,
        disks: &mut impl Disks,
    ) -> Result<bool> {
        let path = self.back(device);
        let Some(medium) = self.medium(device, far, store)? else { return Ok(false) };
        let told = |(key, value): (&str, u64)| Change::Write(format!("{path}/{key}"), value.to_string());
        let mut changes: Vec<Change> = medium.told().map(told).collect();
        changes.push(Change::Write(format!("{path}/feature-barrier"), "0".into()));
        changes.push(Change::Write(format!("{path}/feature-persistent"), "0".into()));
        let is_writable = store.read(&format!("{path}/mode"))?.is_some_and(|mode| mode.starts_with('w'));
        let flags = [(is_writable, DISK_WRITE), (medium.flushes(), DISK_FLUSH), (medium.discards(), DISK_DISCARD)];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
        let front = front(device);
        let mut key = |key: &str| store.read(&format!("{front}/{key}"));
        let (ring, port) = (key("ring-ref")?, key("event-channel")?);
        let (protocol, order) = (key("protocol")?, key("ring-page-order")?);
        let guest = store.read(&name_of(device.guest))?;
        let weight = guest.and_then(|guest| self.weights.get(&guest)).copied().unwrap_or(0);
        let number = |value: &Option<String>| value.as_ref().and_then(|value| value.parse().ok());
        let request = match (number(&ring), number(&port)) {
            (Some(ring), Some(port))
                if protocol.as_deref().is_none_or(|name| name == "x86_64-abi")
                    && order.as_deref().is_none_or(|order| order == "0") =>
            {
                Ok(ChannelDiskConnect {
                    guest: device.guest,
                    backend: self.domain,
                    device: device.number,
                    ring,
                    port,
                    flags,
                    weight,
                    ..ChannelDiskConnect::default()
                })
            }
            _ => Err("22 the front end wants a ring that is not offered".to_string()),
        };
        if !store.change(&format!("{path}/frontend"), &changes)? {
            return Ok(false);
        }
        let answer = request.and_then(|request| {
            disks.connect_disk(&request).map_err(|error| format!("{} {error}", error.raw_os_error()))
        });
        match answer {
            Ok(disk) => {
                let (guest, number) = (device.guest, device.number);
                let status = ChannelDiskStatus {
                    disk,
                    guest,
                    backend: self.domain,
                    device: number,
                    flags,
                    back: DISK_NO_BACK,
                    ..ChannelDiskStatus::default()
                };
                self.connected.insert(device, status);
                let told = if weight == 0 { String::new() } else { format!(", weight {weight}") };
                self.say(device, &format!("connected{told}"));
                if store.read(&format!("{path}/params"))?.is_some_and(|target| is_file(&target)) {
                    self.say(device, OF_A_FILE);
                }
            }
            Err(why) => {
                self.say(device, &format!("not connected: {why}"));
                let error = Change::Write(format!("{}/error", self.error(device)), why);
                let closing = Change::Write(format!("{path}/state"), state::CLOSING.to_string());
                store.change(&format!("{path}/frontend"), &[error, closing])?;
            }
        }
        Ok(true)
    }
}
