//! A driver domain of several services is looked after for one of them. What it does for the others is looked at here.
//!
//! Each has its own health: one whose disks nobody answers is not well because packets come. It is up, and of use, when it is that for the service for
//! which it is looked after.

use super::super::cause::Cause;
use super::super::health::settings_of;
use super::super::look::Look;
use super::Machine;

impl Machine {
    /// What is wrong with the way of another service.
    pub(super) fn wrong_with_others(&mut self, look: &Look) -> Option<Cause> {
        look.others.iter().find_map(|other| {
            let way = other.way?;
            let settings = settings_of(&self.settings, self.words, other.kind);
            let health = self.health.of_other(&other.service);
            // What its vCPUs do was looked at already.
            let illness = health.look(&settings, look.now, &[], way.queue, way.came);
            let cause = self.what_is_wrong(illness, &way).map(Box::new)?;
            Some(Cause::OfOther { service: other.service.clone(), kind: other.kind, cause })
        })
    }
}
