//! Whether a guest may have a medium that another guest has.
//!
//! The driver domain's script looks whether a device that it gives out is another guest's. It tells guests apart by the
//! domains of their front ends, and those are the service's own, all the same one. So it is looked here, by what the
//! toolstack says: by the same rule, and where that script is the one that would look.

use super::{Device, DiskService};
use crate::store::Store;
use anyhow::{ensure, Result};
use std::collections::BTreeSet;

/// The toolstack's own script.
const SCRIPT: &str = "block";

/// What a guest is to have.
struct Wanted {
    target: String,
    writes: bool,
}

impl DiskService {
    /// Fails if another guest has the medium of a disk that is to get its first back end, and one of the two may write
    /// there. Those that are of one VM may have it both, as when it moves to where it is, and those of which that is
    /// not known: who goes may have lost its directory. Who has its disk keeps it.
    pub(super) fn check_sharing(&self, device: Device, store: &mut impl Store) -> Result<()> {
        if self.connected.contains_key(&device) {
            return Ok(());
        }
        let Some(own) = self.wanted(device, store)? else { return Ok(()) };
        let mut others: BTreeSet<Device> = self.slots(store)?.into_iter().map(|(_, other)| other).collect();
        others.extend(self.connected.keys());
        for other in others.into_iter().filter(|other| other.guest != device.guest) {
            let Some(its) = self.wanted(other, store)? else { continue };
            if its.target != own.target || !(its.writes || own.writes) {
                continue;
            }
            let mut vm_of = |guest: u16| store.read(&format!("/local/domain/{guest}/vm"));
            let both = vm_of(device.guest)?.zip(vm_of(other.guest)?);
            ensure!(
                both.is_none_or(|(own, its)| own == its),
                "it gets no medium: {} is that of vbd {} of domain {}, too, and one of the two may write",
                own.target,
                other.number,
                other.guest
            );
        }
        Ok(())
    }

    /// What the toolstack says of a disk; `None`: its target means something to another script only.
    fn wanted(&self, device: Device, store: &mut impl Store) -> Result<Option<Wanted>> {
        let back = self.back(device);
        let Some(target) = store.read(&format!("{back}/params"))? else { return Ok(None) };
        let script = store.read(&format!("{back}/script"))?;
        if script.is_some_and(|script| script.rsplit('/').next() != Some(SCRIPT)) {
            return Ok(None);
        }
        let writes = store.read(&format!("{back}/mode"))?.is_some_and(|mode| mode.starts_with('w'));
        Ok(Some(Wanted { target, writes }))
    }
}
