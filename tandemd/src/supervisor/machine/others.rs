//! A driver domain of several services is looked after for one of them. What it does for the others is looked at here.
//!
//! Each has its own health: one whose disks nobody answers is not well because packets come. It is up, and of use, when
//! it is that for the service for which it is looked after.

use super::super::cause::Cause;
use super::super::health::{settings_of, Health};
use super::super::look::{Look, OtherWay};
use super::{Machine, QUIET};
use crate::config::Kind;
use std::time::Duration;

impl Machine {
    /// What is wrong with the way of another service.
    pub(super) fn wrong_with_others(&mut self, look: &Look) -> Option<Cause> {
        look.others.iter().find_map(|other| {
            let health = self.health.of_other(&other.service);
            let cause = match &other.way {
                None if other.may_be_none => {
                    *health = Health::default();
                    None
                }
                None => {
                    let since = health.lost_since(look.now, false)?;
                    let is_late = look.now.saturating_sub(since) >= Duration::from_secs(self.settings.ready_s);
                    is_late.then_some(Cause::WayLost { since })
                }
                Some(way) => {
                    health.lost_since(look.now, true);
                    let settings = settings_of(&self.settings, self.words, other.kind);
                    // What its vCPUs do was looked at already.
                    let illness = health.look(&settings, look.now, &[], way.queue, way.came);
                    self.what_is_wrong(illness, way, other.kind, &other.service)
                }
            };
            Some(Cause::OfOther { service: other.service.clone(), kind: other.kind, cause: Box::new(cause?) })
        })
    }

    /// Something of what the old one served that one of a new image does not: one that finds only some of the devices
    /// would keep the guests of others waiting for good.
    pub(super) fn what_it_leaves(&self, look: &Look) -> Option<Cause> {
        let upgrade = self.taking()?;
        let disk = look.disks_without.iter().find(|disk| upgrade.disks.contains(disk));
        if let Some(which) = disk.copied() {
            return Some(Cause::LeavesDisk { which, within: QUIET });
        }
        let is_left = |other: &&OtherWay| other.way.is_none() && upgrade.ways.contains(&other.service);
        let service = look.others.iter().find(is_left)?.service.clone();
        Some(Cause::LeavesWay { service, within: QUIET })
    }

    /// Other services whose way out it is.
    pub(super) fn is_way_out_of(look: &Look) -> impl Iterator<Item = &String> {
        let has_way = |other: &&OtherWay| other.kind == Kind::Net && other.way.is_some();
        look.others.iter().filter(has_way).map(|other| &other.service)
    }
}
