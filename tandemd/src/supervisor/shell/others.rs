//! A driver domain of several services: it is looked after for one of them, and serves guests of the others, too.

use super::{link_of, said_of_link, ways, Shell};
use crate::config::{Config, Kind};
use crate::device::Device;
use crate::hypercall::all_disks;
use crate::store::{Change, Store};
use crate::supervisor::answered::Heard;
use crate::supervisor::look::OtherWay;
use anyhow::{Context, Result};
use xen_abi::channel_op::ChannelDiskStatus;

/// A service whose driver domain it is, beside the one for which it is looked after.
#[derive(Debug, PartialEq, Eq)]
pub struct Other {
    /// Its name.
    pub name: String,
    kind: Kind,
    /// Its own domain, if that is there.
    pub domain: Option<u16>,
    /// Its switch, if it is one of interfaces, and as far as that is known.
    pub switch: Option<u32>,
}

/// Those of a driver domain that is looked after for `service`.
pub fn of(config: &Config, service: &str, driver: &str) -> Vec<Other> {
    let all = config.service.iter().filter(|(_, of)| of.driver_domain.as_deref() == Some(driver));
    let others = all.filter(|(name, _)| *name != service);
    others.map(|(name, of)| Other { name: name.clone(), kind: of.kind, domain: None, switch: None }).collect()
}

impl Shell {
    /// The names of all its services.
    pub(super) fn services(&self) -> impl Iterator<Item = &String> {
        self.other_services.iter().map(|other| &other.name).chain([&self.service])
    }

    /// Guests' disks of all its services.
    pub(super) fn disks(&mut self) -> Result<Vec<ChannelDiskStatus>> {
        let served = of_disks(self.kind, self.served, &self.other_services);
        if served.is_empty() {
            return Ok(Vec::new());
        }
        let mut all = all_disks(&mut self.hypervisor).context("the list of disks")?;
        all.retain(|disk| served.contains(&disk.backend));
        Ok(all)
    }

    /// The ways of its other services, as far as they are by this domain. `disks`: all of its services'.
    pub(super) fn other_ways(&mut self, domain: u16, disks: &[ChannelDiskStatus]) -> Result<Vec<OtherWay>> {
        let mut services = std::mem::take(&mut self.other_services);
        let ways = services.iter_mut().map(|other| match other.kind {
            Kind::Disk => Ok(to_disks(other, domain, disks, &self.heard)),
            Kind::Net => self.other_way_out(other, domain),
        });
        let ways = ways.collect();
        self.other_services = services;
        ways
    }

    fn other_way_out(&mut self, other: &mut Other, domain: u16) -> Result<OtherWay> {
        let found = self.way_out(&other.name, &mut other.switch)?.filter(|way| way.domain == domain);
        let may_be_none = match other.domain {
            Some(served) if found.is_none() => {
                link_at(served, domain, &mut self.store)?.is_some_and(|said| said == "down")
            }
            served => served.is_none(),
        };
        let way = found.as_ref().map(ways::through);
        Ok(OtherWay { service: other.name.clone(), kind: other.kind, way, may_be_none })
    }
}

/// What a driver domain says of the link of its interface at the service that has this domain, if it does. Only what
/// others cannot write is listed.
pub fn link_at(served: u16, domain: u16, store: &mut impl Store) -> Result<Option<String>> {
    let all = store.list(&format!("/local/domain/{served}/backend/vif/{domain}"))?;
    match all.iter().find_map(|number| number.parse().ok()) {
        Some(number) => said_of_link(Device { guest: domain, number }, store),
        None => store.read(&link_of(domain)),
    }
}

/// Each of its services is told who has taken the place, or waits to take it.
pub fn tell(
    services: impl IntoIterator<Item = impl AsRef<str>>,
    place: fn(&str) -> String,
    domain: u16,
) -> Vec<Change> {
    services.into_iter().map(|service| Change::Write(place(service.as_ref()), domain.to_string())).collect()
}

/// Domains of services of disks: of the one for which it is looked after, if it is one, and of others.
fn of_disks(kind: Kind, served: Option<u16>, others: &[Other]) -> Vec<u16> {
    let own = served.filter(|_| kind == Kind::Disk);
    let others = others.iter().filter(|other| other.kind == Kind::Disk).filter_map(|other| other.domain);
    own.into_iter().chain(others).collect()
}

/// The way to another service's disks.
fn to_disks(other: &Other, domain: u16, disks: &[ChannelDiskStatus], heard: &Heard) -> OtherWay {
    let own = disks.iter().filter(|disk| Some(disk.backend) == other.domain);
    let way = ways::to_disks(domain, own, heard);
    OtherWay { service: other.name.clone(), kind: other.kind, way, may_be_none: true }
}

#[cfg(test)]
mod tests {
    use super::super::{taken_by, waits_for};
    use super::*;
    use crate::fake_store::Nodes;
    use xen_abi::channel_op as op;

    fn config() -> Config {
        toml::from_str(
            "[service.net]\ndriver-domain='dd'\n[service.disk]\nkind='disk'\ndriver-domain='dd'\n[service.far]\ndriver-domain='dd'\n\
             [service.slow]\nkind='disk'\ndriver-domain='dd'\n[service.lab]\ndriver-domain='other'\n[service.alone]",
        )
        .unwrap()
    }

    #[test]
    fn disks_of_all_services_of_a_driver_domain_are_looked_at_whichever_it_is_looked_after_for() {
        let mut others = of(&config(), "net", "dd");
        assert_eq!(others.iter().map(|other| other.name.as_str()).collect::<Vec<_>>(), ["disk", "far", "slow"]);
        assert!(of_disks(Kind::Net, Some(2), &others).is_empty(), "none is there");
        others.iter_mut().zip(3..).for_each(|(other, id)| other.domain = Some(id));
        assert_eq!(of_disks(Kind::Net, Some(2), &others), [3, 5]);
        let mut others = of(&config(), "slow", "dd");
        others.iter_mut().zip(3..).for_each(|(other, id)| other.domain = Some(id));
        assert_eq!(of_disks(Kind::Disk, Some(9), &others), [9, 3]);
        assert_eq!(of_disks(Kind::Disk, None, &others), [3]);
    }

    #[test]
    fn of_each_service_the_way_to_its_own_disks_is_seen() {
        let mut others = of(&config(), "net", "dd");
        others.iter_mut().zip(3..).for_each(|(other, id)| other.domain = Some(id));
        let disk = |backend, back, state, waiting| {
            let overdue_ns = 1000 * u64::from(waiting);
            ChannelDiskStatus { backend, back, state, waiting, overdue_ns, answered: 5, ..ChannelDiskStatus::default() }
        };
        let disks = [disk(3, 7, 0, 4), disk(3, 8, op::DISK_BACK_EMPTY, 9), disk(5, 7, op::DISK_BACK_ENDED, 0)];
        let mut heard = Heard::default();
        heard.look(&disks);
        let way = |number: usize, back| to_disks(&others[number], back, &disks, &heard).way;
        let waits = way(0, 7).unwrap();
        assert_eq!((waits.queue.is_waiting, waits.queue.taken, waits.is_idle), (true, 6, false));
        assert_eq!((waits.queue.overdue_for.as_nanos(), waits.has_lied, waits.has_lost), (4000, false, false));
        assert!(way(2, 7).is_some_and(|way| way.has_lied && way.is_idle && !way.has_lost));
        assert_eq!((way(2, 8), way(0, 9)), (None, None), "it serves none of these");
        // What the one before has not answered either: the hypervisor does not call it overdue.
        let excused = [ChannelDiskStatus { overdue_ns: 0, ..disks[0] }];
        let way = to_disks(&others[0], 7, &excused, &heard).way.unwrap();
        assert_eq!((way.queue.is_waiting, way.is_idle, way.has_answered), (false, false, false));
        let answered = [ChannelDiskStatus { answered: 6, ..disks[0] }];
        heard.look(&answered);
        assert!(to_disks(&others[0], 7, &answered, &heard).way.unwrap().has_answered);
    }

    #[test]
    fn a_link_that_is_down_is_that_of_one_interface_or_of_all() {
        let mut store = Nodes::default();
        store.set("/local/domain/3/backend/vif/7/0/state", "4");
        store.set("/local/domain/4/backend/vif/7/1/state", "4");
        let said = |store: &mut Nodes| [3, 4, 5].map(|served| link_at(served, 7, store).unwrap());
        assert_eq!(said(&mut store), [None, None, None]);
        store.set("/local/domain/7/data/link", "up");
        assert_eq!(said(&mut store), [Some("up".into()), Some("up".into()), Some("up".into())]);
        store.set("/local/domain/7/data/link-1", "down");
        assert_eq!(said(&mut store), [Some("up".into()), Some("down".into()), Some("up".into())]);
        store.remove("/local/domain/7/data/link");
        assert_eq!(said(&mut store), [None, Some("down".into()), None]);
    }

    #[test]
    fn each_service_is_told_who_waits_and_who_has_the_place() {
        let told = tell(["disk", "net"], waits_for, 7);
        let write = |path: &str| Change::Write(path.into(), "7".into());
        assert_eq!(told, [write("/tool/tandem/disk/waits"), write("/tool/tandem/net/waits")]);
        assert_eq!(tell(["slow"], taken_by, 7), [write("/tool/tandem/slow/taken-by")]);
    }
}
