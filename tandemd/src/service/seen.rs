//! A look at a device: what both ends show, what that is taken for, and what the hypervisor has of it.

use super::places::{self, name_of};
use super::{Service, UNTIL_SEEN};
use crate::device::{state, Back, Device, Seen};
use crate::hypercall::Switches;
use crate::store::Store;
use crate::supervisor::{candidate_of, remains_of, said_of_link, standby_of};
use anyhow::{Context, Result};
use rustix::io::Errno;
use std::time::Instant;
use xen_abi::channel_op::ChannelStatus;

impl Service {
    /// What is to be seen of a device now.
    pub(super) fn look(
        &mut self,
        device: Device,
        now: Instant,
        store: &mut impl Store,
        switches: &mut impl Switches,
    ) -> Result<Seen> {
        let back = self.at.back(device);
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
        let shown = number(store.read(&format!("{}/state", places::front(device)))?);
        let front = self.front_of(device, shown, store)?;
        if front == state::INITIALISING && is_up(shown) {
            // It is plugged in as soon as it has its place and a link. The store is asked before that.
            self.keys_of(device, store)?;
        }
        let is_same = |status: &ChannelStatus| {
            (status.guest, status.device, status.backend) == (device.guest, device.number, self.at.domain)
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

    /// What the state of a front end is taken for. That of a domain that waits to take the driver domain's place is
    /// plugged in when that has its name, and does not say that its link is down; that of one that has lost its place
    /// begins anew, whatever it says: if it is rolled back it is as far as it was, and closes when it sees a back end
    /// that has.
    fn front_of(&self, device: Device, shown: u32, store: &mut impl Store) -> Result<u32> {
        let Some(driver) = self.driver_domain.as_ref().filter(|_| shown != state::UNKNOWN) else { return Ok(shown) };
        let name = store.read(&name_of(device.guest))?;
        Ok(match name {
            Some(name) if name == remains_of(driver) => state::INITIALISING,
            // Of another service, whose guest here was paused for good: its successor may have the same address.
            Some(name) if self.remains.contains(&name) => state::INITIALISING,
            _ if !is_up(shown) => shown,
            Some(name) if [standby_of(driver), candidate_of(driver)].contains(&name) => state::INITIALISING,
            Some(name) if name == *driver => {
                let is_down = said_of_link(device, store)?.is_some_and(|link| link == "down");
                if is_down {
                    state::INITIALISING
                } else {
                    shown
                }
            }
            _ => shown,
        })
    }
}

/// Whether a front end has written its keys.
fn is_up(front: u32) -> bool {
    matches!(front, state::INITIALISED | state::CONNECTED)
}
