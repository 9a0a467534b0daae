//! What goes wrong with disks: it is said, once.

use super::{log, Device, DiskService};
use anyhow::Result;

impl DiskService {
    /// What goes wrong with one disk is no reason to serve others no longer: it is said, once, and tried again. (A store that does not answer is
    /// noticed at the next question.) Whether it is settled.
    pub(super) fn bear(&mut self, device: Device, is_settled: Result<bool>) -> bool {
        let why = match is_settled {
            Ok(is_settled) => {
                self.troubles.remove(&device);
                return is_settled;
            }
            Err(error) => format!("{error:#}"),
        };
        if self.troubles.get(&device) != Some(&why) {
            log(&format!("{}: {why}", self.describe(device)));
            self.troubles.insert(device, why);
        }
        false
    }

    /// Says once of each back end that has written into its ring what cannot be that it has.
    pub(super) fn tell_bad_rings(&mut self) {
        let connected = &self.connected;
        self.bad_rings.retain(|device, _| connected.contains_key(device));
        for (device, disk) in connected {
            let told = self.bad_rings.insert(*device, disk.bad_rings).unwrap_or(0);
            if disk.bad_rings > told {
                log(&format!(
                    "{}: its back end has written into its ring what cannot be, and is used no longer",
                    self.describe(*device)
                ));
            }
        }
    }
}
