//! Where things are in xenstore.

use crate::device::Device;
use crate::store::{Change, Store};
use anyhow::Result;

/// The token of what is not one device's.
pub const ALL: &str = "all";

/// A service's name and domain, and the paths that are made of them.
pub struct Places {
    /// As guests' configurations name it.
    pub service: String,
    /// The domain of that name.
    pub domain: u16,
}

impl Places {
    /// A watch's, from which the service and what is meant can be told.
    pub fn token(&self, what: &str) -> String {
        format!("{}:{what}", self.service)
    }

    /// Something of the domain's.
    pub fn domain(&self, below: &str) -> String {
        format!("/local/domain/{}/{below}", self.domain)
    }

    /// The back end's directories.
    pub fn devices(&self) -> String {
        self.domain("backend/vif")
    }

    /// The back end's directory of a device.
    pub fn back(&self, device: Device) -> String {
        format!("{}/{}/{}", self.devices(), device.guest, device.number)
    }

    /// Where Linux's xenbus would write of an error.
    pub fn error(&self, device: Device) -> String {
        self.domain(&format!("error/backend/vif/{}/{}", device.guest, device.number))
    }

    /// The name of the switch.
    pub fn switch(&self) -> String {
        format!("/tool/tandem/{}/switch", self.service)
    }

    /// For messages.
    pub fn describe(&self, device: Device) -> String {
        format!("{}: vif {} of domain {}", self.service, device.number, device.guest)
    }
}

/// Whether a service's domain is asked to shut down. Whoever asks waits until a kernel has acknowledged that, and
/// `xl shutdown --all` gives up if it does not, and asks nobody behind it. There is no kernel, and the domain may go
/// only when all guests have: so it is acknowledged, and noted.
pub fn is_asked_to_end(domain: u16, store: &mut impl Store) -> Result<bool> {
    let of = |key: &str| format!("/local/domain/{domain}/{key}");
    let (asked, noted) = (of("control/shutdown"), of("control/tandem-shutdown"));
    if store.read(&asked)?.is_some_and(|how| !how.is_empty()) {
        let changes = [Change::Write(noted.clone(), "1".into()), Change::Write(asked, String::new())];
        store.change(&of("vm"), &changes)?;
    }
    Ok(store.read(&noted)?.is_some())
}

/// `/GUEST/NUMBER`, and whatever follows.
pub fn device_in(path: &str) -> Option<Device> {
    let mut parts = path.strip_prefix('/')?.split('/');
    Some(Device { guest: parts.next()?.parse().ok()?, number: parts.next()?.parse().ok()? })
}

/// Where a domain's name is.
pub fn name_of(domain: u16) -> String {
    format!("/local/domain/{domain}/name")
}

/// The front end's directory. The toolstack puts it there, whoever the back end is.
pub fn front(device: Device) -> String {
    format!("/local/domain/{}/device/vif/{}", device.guest, device.number)
}
