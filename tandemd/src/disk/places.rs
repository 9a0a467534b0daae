//! Where things of a disk's are in xenstore: between its guest and here, and between here and a driver domain.

use super::{Device, DiskService};
use crate::store::Store;
use anyhow::Result;
use std::collections::BTreeSet;

/// Where things of a disk's are between here and a driver domain.
#[derive(Clone)]
pub(super) struct Far {
    pub(super) slot: u32,
    /// The driver domain.
    pub(super) driver: u16,
    pub(super) near: String,
    pub(super) far: String,
    /// They are of that driver domain; else only what is left of an earlier one.
    pub(super) is_current: bool,
}

impl DiskService {
    /// The slots that are in use, and by which disk.
    pub(super) fn slots(&self, store: &mut impl Store) -> Result<Vec<(u32, Device)>> {
        let path = self.slots_at();
        let mut found = Vec::new();
        for slot in store.list(&path)? {
            let serves = store.read(&format!("{path}/{slot}/serves"))?;
            let device = serves.and_then(|serves| device_in(&serves));
            found.extend(slot.parse().ok().zip(device));
        }
        Ok(found)
    }

    pub(super) fn slots_at(&self) -> String {
        self.of_domain("device/vbd")
    }

    pub(super) fn at(&self, slot: u32, driver: u16) -> Far {
        let far = format!("/local/domain/{driver}/backend/vbd/{}/{slot}", self.domain);
        Far { slot, driver, near: format!("{}/{slot}", self.slots_at()), far, is_current: true }
    }

    /// The disks that have a directory, or a slot.
    pub(super) fn listed(&self, store: &mut impl Store) -> Result<BTreeSet<Device>> {
        let path = self.of_domain("backend/vbd");
        let mut found: BTreeSet<Device> = self.slots(store)?.into_iter().map(|(_, device)| device).collect();
        for guest in store.list(&path)? {
            for number in store.list(&format!("{path}/{guest}"))? {
                found.extend(device_in(&format!("{guest}/{number}")));
            }
        }
        Ok(found)
    }

    pub(super) fn of_domain(&self, below: &str) -> String {
        format!("/local/domain/{}/{below}", self.domain)
    }

    pub(super) fn back(&self, device: Device) -> String {
        self.of_domain(&format!("backend/vbd/{}/{}", device.guest, device.number))
    }

    pub(super) fn error(&self, device: Device) -> String {
        self.of_domain(&format!("error/backend/vbd/{}/{}", device.guest, device.number))
    }
}

pub(super) fn front(device: Device) -> String {
    format!("/local/domain/{}/device/vbd/{}", device.guest, device.number)
}

/// Of `GUEST/NUMBER`.
pub(super) fn device_in(name: &str) -> Option<Device> {
    let (guest, number) = name.split_once('/')?;
    Some(Device { guest: guest.parse().ok()?, number: number.parse().ok()? })
}
