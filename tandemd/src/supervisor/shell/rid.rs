//! A driver domain that has failed is rid of all that it serves guests by, whichever service that is of: one may have
//! the cards of one and the disks of another. What stayed would keep the next one from its place: a switch has one way
//! out.

use crate::device::state;
use crate::hypercall::{all_disks, Disks, Switches};
use crate::look::vifs;
use crate::store::{Change, Store};
use anyhow::{Context, Result};
use rustix::io::Errno;

#[cfg(test)]
mod tests;

/// Its interfaces go out of their switches.
pub fn of_interfaces(domain: u16, switches: &mut impl Switches) -> Result<()> {
    for vif in vifs(switches)?.iter().filter(|vif| vif.guest == domain) {
        match switches.disconnect(vif.vif) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error).context("its interface cannot be taken out of the switch"),
        }
    }
    Ok(())
}

/// Guests' disks are taken from it.
pub fn of_disks(domain: u16, disks: &mut impl Disks) -> Result<()> {
    for disk in all_disks(disks).context("the list of disks")?.iter().filter(|disk| disk.back == domain) {
        match disks.give_up_disk(disk.disk, false) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error).context("a disk cannot be taken from it"),
        }
    }
    Ok(())
}

/// Back ends of its interfaces in these services' domains wait for front ends, as they did when it was noted. Where it
/// has closed them itself, as one that reboots does, it would close them again if it saw that before who serves them
/// has looked at it.
pub fn offer_anew(domain: u16, services: &[u16], store: &mut impl Store) -> Result<()> {
    for served in services {
        let back = format!("/local/domain/{served}/backend/vif/{domain}");
        for number in store.list(&back)? {
            let waits = Change::Write(format!("{back}/{number}/state"), state::INIT_WAIT.to_string());
            store.change(&format!("{back}/{number}/frontend"), &[waits])?;
        }
    }
    Ok(())
}
