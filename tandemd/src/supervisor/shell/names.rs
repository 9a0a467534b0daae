//! Which domains have the names of the driver domain, of those beside it, and of services.

use super::Shell;
use crate::service::name_of;
use crate::store::Store;
use crate::supervisor::{candidate_of, ours, passthrough, standby};
use anyhow::Result;
use std::collections::BTreeSet;

/// The token of watches of names.
pub const NAMES: &str = "names";

impl Shell {
    /// Which domains there are, and which of them have the names of the driver domain and of the service.
    pub(super) fn find(&mut self) -> Result<()> {
        self.switch = None;
        self.other_services.iter_mut().for_each(|service| service.switch = None);
        let all: BTreeSet<u16> =
            self.store.list("/local/domain")?.iter().filter_map(|domain| domain.parse().ok()).collect();
        for domain in self.introduced.keys().filter(|id| !all.contains(id)).copied().collect::<Vec<u16>>() {
            passthrough::forget(domain, &mut self.store)?;
            self.introduced.remove(&domain);
        }
        self.follow_names(&all)?;
        self.sort_names()
    }

    /// Of the domains that are followed, which have these names.
    pub(super) fn sort_names(&mut self) -> Result<()> {
        (self.domain, self.standby, self.candidate, self.served) = (None, None, None, None);
        self.remains.clear();
        self.nets.clear();
        self.other_services.iter_mut().for_each(|service| service.domain = None);
        self.behind.iter_mut().for_each(|service| service.domain = None);
        let (standby, candidate) = (standby::name_of(&self.driver), candidate_of(&self.driver));
        let remains = standby::remains_of(&self.driver);
        for id in self.named.clone() {
            let Some(name) = self.store.read(&name_of(id))? else { continue };
            if name == self.driver {
                self.domain = Some(id);
            }
            if [&standby, &candidate, &remains].contains(&&name) && self.is_ours(id, &name)? {
                match () {
                    () if name == standby => self.standby = Some(id),
                    () if name == candidate => self.candidate = Some(id),
                    () => self.remains.push(id),
                }
            }
            if name == self.service {
                self.served = Some(id);
            }
            if self.net_services.contains(&name) {
                self.nets.push(id);
            }
            for service in self.other_services.iter_mut().filter(|service| service.name == name) {
                service.domain = Some(id);
            }
            for service in self.behind.iter_mut().filter(|service| service.name == name) {
                service.domain = Some(id);
            }
        }
        Ok(())
    }

    /// Whether a domain that is called so was made here, or had the place. Another one is let alone, whatever becomes
    /// of that; it is said once.
    fn is_ours(&mut self, id: u16, name: &str) -> Result<bool> {
        if self.ours.contains(&id) {
            return Ok(true);
        }
        let vm = self.vm_of(id)?;
        let is_ours = ours::is_ours(id, vm.as_deref(), &self.driver, &mut self.store)?;
        if is_ours {
            self.ours.insert(id);
        } else if self.others.insert(id) {
            let (service, driver) = (&self.service, &self.driver);
            eprintln!("{service}: {driver}: domain {id} is called {name}, and was not made by tandemd: it is let alone, and has a name that is needed");
        }
        Ok(is_ours)
    }

    /// The store tells when one of these domains gets another name, and of no others.
    fn follow_names(&mut self, domains: &BTreeSet<u16>) -> Result<()> {
        for gone in self.named.difference(domains) {
            self.store.unwatch(&name_of(*gone), NAMES)?;
        }
        for new in domains.difference(&self.named) {
            self.store.watch(&name_of(*new), NAMES)?;
        }
        self.vms.retain(|domain, _| domains.contains(domain));
        self.ours.retain(|domain| domains.contains(domain));
        self.others.retain(|domain| domains.contains(domain));
        self.named.clone_from(domains);
        Ok(())
    }
}
