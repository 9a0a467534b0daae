//! What goes wrong with disks: it is said, once.

use super::{Device, DiskService};
use anyhow::Result;
use std::time::{Duration, Instant};

/// So long a driver domain's script may take until its back end has the medium: Linux finds some only when it has tried
/// long enough.
pub(super) const UNTIL_TOLD: Duration = Duration::from_secs(30);

impl DiskService {
    /// What goes wrong with one disk is no reason to serve others no longer: it is said, once, and tried again. (A
    /// store that does not answer is noticed at the next question.) Whether it is settled.
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

    /// Says once of a disk whose back end in that driver domain has waited long for its medium, of which it was
    /// reminded all the time, that it has; `None`: it does not wait for that. Who gives it the medium says there why
    /// not; here nothing tells.
    pub(super) fn tell_without_medium(&mut self, device: Device, waits_in: Option<u16>, now: Instant) {
        let Some(driver) = waits_in else {
            self.without_medium.remove(&device);
            return;
        };
        let since = self.without_medium.entry(device).or_insert(Some(now));
        if since.is_some_and(|since| since + UNTIL_TOLD <= now) {
            *since = None;
            self.warn(
                device,
                &format!(
                    "its back end in domain {driver} has had no medium for {} s: there is none, its script has failed, `xl devd` does not run there, or \
                     it has more disks than xenstore's quotas for it (docs/channels.md, \"Limits of disks\")",
                    UNTIL_TOLD.as_secs()
                ),
            );
        }
    }
}
