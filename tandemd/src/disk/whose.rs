//! Whose affair it is when something has happened in xenstore: one disk's, or all disks'. Any guest may write about its
//! own as often as it likes.

use super::{device_in, Device, DiskService};
use crate::store::Event;

impl DiskService {
    /// Of these events some may say that a back end has shown its state: with that it tells of its medium, too.
    pub(super) fn note_states(&mut self, events: &[&Event]) {
        let has_shown = |state: &String| events.iter().any(|event| event.path == *state);
        self.may_have_grown.extend(self.fars.iter().filter(|(_, state)| has_shown(state)).map(|(device, _)| *device));
    }

    /// The disk that what has happened there is about; `None`: it may be about all.
    pub(super) fn device_of(&self, path: &str) -> Option<Device> {
        // Also what somebody makes below that.
        let below = |place: &str| path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some(rest) = path.strip_prefix(&self.of_domain("backend/vbd/")) {
            let mut parts = rest.splitn(3, '/');
            return device_in(&format!("{}/{}", parts.next()?, parts.next()?));
        }
        if let Some(device) = path.strip_prefix("/local/domain/").and_then(device_of_front) {
            return Some(device);
        }
        let mut followed = self.fars.iter().chain(&self.ahead);
        followed.find(|(_, state)| below(state)).map(|(device, _)| *device)
    }
}

/// Of what a front end has written, below the directory of all domains.
fn device_of_front(path: &str) -> Option<Device> {
    let (guest, rest) = path.split_once("/device/vbd/")?;
    device_in(&format!("{guest}/{}", rest.split('/').next()?))
}
