//! What goes wrong with disks: it is said, once.

use super::{Device, DiskService};
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
            self.say(device, &why);
            self.troubles.insert(device, why);
        }
        false
    }

    /// Says once of each back end that has written into its ring what cannot be that it has.
    pub(super) fn tell_bad_rings(&mut self) {
        let connected = &self.connected;
        self.bad_rings.retain(|device, _| connected.contains_key(device));
        let all: Vec<(Device, u32)> = connected.iter().map(|(device, disk)| (*device, disk.bad_rings)).collect();
        for (device, bad_rings) in all {
            let told = self.bad_rings.insert(device, bad_rings).unwrap_or(0);
            if bad_rings > told {
                self.warn(device, "its back end has written into its ring what cannot be, and is used no longer");
            }
        }
    }
}
