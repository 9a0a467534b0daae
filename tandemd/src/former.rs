//! Domains of services that the configuration does not have any more: it may have lost one, or have another name for
//! it.
//!
//! One that nobody uses goes. The front ends of guests that use one keep its domid as long as they live, so it stays
//! until they have gone, and somebody has to acknowledge for it that it is to shut down: `xl shutdown --all` asks
//! nobody behind one that does not.

use crate::domain;
use crate::service::{is_asked_to_end, name_of, Fate};
use crate::store::{Event, Store};
use anyhow::Result;
use std::collections::BTreeSet;

/// Kinds of devices that a service may have for guests, as xenstore calls them.
const KINDS: [&str; 2] = ["vif", "vbd"];

/// One of them.
pub struct Former {
    name: String,
    domain: u16,
    /// Who uses it, as was said.
    users: Option<BTreeSet<String>>,
}

/// Names and domids of those that are there. `is_there`: what the hypervisor says of a domain. `services`: what the
/// configuration has.
pub fn find<'a>(
    services: impl Iterator<Item = &'a str>,
    store: &mut impl Store,
    mut is_there: impl FnMut(u16) -> bool,
) -> Result<Vec<(String, u16)>> {
    let configured: BTreeSet<String> = services.map(domain::uuid).collect();
    let mut found = Vec::new();
    for domain in store.list("/local/domain")?.iter().filter_map(|domain| domain.parse().ok()) {
        let vm = store.read(&format!("/local/domain/{domain}/vm"))?;
        let uuid = vm.as_deref().and_then(|vm| vm.strip_prefix("/vm/")).unwrap_or_default();
        if uuid.starts_with(domain::OF_SERVICES) && !configured.contains(uuid) && is_there(domain) {
            let name = store.read(&name_of(domain))?.unwrap_or_else(|| domain.to_string());
            found.push((name, domain));
        }
    }
    Ok(found)
}

impl Former {
    /// Takes it up.
    pub fn start(name: &str, domain: u16, store: &mut impl Store) -> Result<Self> {
        let former = Self { name: name.into(), domain, users: None };
        let of_backends = KINDS.map(|kind| former.at(&format!("backend/{kind}")));
        for path in of_backends.into_iter().chain([former.at("vm"), former.at("control/shutdown")]) {
            store.watch(&path, &former.token())?;
        }
        // What a guest has had stays when it is gone.
        store.watch("@releaseDomain", &former.token())?;
        Ok(former)
    }

    /// As guests name it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The domid of its domain.
    pub fn domain(&self) -> u16 {
        self.domain
    }

    /// Something happened, perhaps to it. It may end as soon as nobody uses it.
    pub fn handle(&mut self, events: &[Event], store: &mut impl Store) -> Result<Fate> {
        if self.users.is_none() || events.iter().any(|event| event.token == self.token()) {
            if store.read(&self.at("vm"))?.is_none() {
                return Ok(Fate::Gone);
            }
            is_asked_to_end(self.domain, store)?;
            let users = self.find_users(store)?;
            if !users.is_empty() && self.users.as_ref() != Some(&users) {
                let names: Vec<&str> = users.iter().map(String::as_str).collect();
                eprintln!(
                    "{}: there is no such service any more; its domain {} stays as long as these use it: {}",
                    self.name,
                    self.domain,
                    names.join(", ")
                );
            }
            self.users = Some(users);
        }
        Ok(if self.users.as_ref().is_some_and(BTreeSet::is_empty) { Fate::MayEnd } else { Fate::Lives })
    }

    /// Names of domains that have devices of it, and are there.
    fn find_users(&self, store: &mut impl Store) -> Result<BTreeSet<String>> {
        let mut users = BTreeSet::new();
        for kind in KINDS {
            let path = self.at(&format!("backend/{kind}"));
            for guest in store.list(&path)?.iter().filter_map(|guest| guest.parse().ok()) {
                let name = store.read(&name_of(guest))?;
                if let Some(name) =
                    name.filter(|_| !store.list(&format!("{path}/{guest}")).unwrap_or_default().is_empty())
                {
                    users.insert(name);
                }
            }
        }
        Ok(users)
    }

    fn at(&self, below: &str) -> String {
        format!("/local/domain/{}/{below}", self.domain)
    }

    /// Of its watches: a domid is no name of a service.
    fn token(&self) -> String {
        format!("{}:former", self.domain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_store::Nodes;

    /// Domains with these names and UUIDs.
    fn nodes(domains: &[(u16, &str, &str)]) -> Nodes {
        let mut nodes = Nodes::default();
        for (domain, name, uuid) in domains {
            nodes.set(&name_of(*domain), name);
            nodes.set(&format!("/local/domain/{domain}/vm"), &format!("/vm/{uuid}"));
        }
        nodes
    }

    /// What becomes of it, after all that has happened.
    fn fate(former: &mut Former, store: &mut Nodes) -> Fate {
        let mut events = Vec::new();
        while let Some(event) = store.next_event(None).unwrap() {
            events.push(event);
        }
        former.handle(&events, store).unwrap()
    }

    #[test]
    fn the_domain_of_a_service_that_is_no_more_is_found_by_its_uuid() {
        let others = "0d6f7a52-9c0e-4d5b-8a51-1f0d6b1f3c55";
        let domains = [
            (0, "Domain-0", others),
            (1, "net", &domain::uuid("net")),
            (2, "lan", &domain::uuid("lan")),
            (3, "old", &domain::uuid("disk")),
            (4, "gone", &domain::uuid("gone")),
            (5, "guest", others),
            (6, "dd-standby", &crate::supervisor::uuid_of_standby("dd")),
        ];
        let mut store = nodes(&domains);
        let mut found = |services: &[&str]| find(services.iter().copied(), &mut store, |domain| domain != 4).unwrap();
        assert_eq!(found(&["lan", "disk"]), [("net".to_string(), 1)]);
        assert_eq!(found(&["lan", "net"]), [("old".to_string(), 3)]);
    }

    #[test]
    fn the_domain_of_a_service_that_is_no_more_goes_when_nobody_uses_it_and_acknowledges_until_then() {
        let mut store = nodes(&[(1, "net", &domain::uuid("net")), (7, "u1", "x")]);
        store.set("/local/domain/1/backend/vif/7/0/frontend", "/local/domain/7/device/vif/0");
        // A guest that has gone has left this.
        store.set("/local/domain/1/backend/vbd/6/51712/frontend", "/local/domain/6/device/vbd/51712");
        let mut former = Former::start("net", 1, &mut store).unwrap();
        assert_eq!((former.name(), former.domain()), ("net", 1));
        assert_eq!(fate(&mut former, &mut store), Fate::Lives);
        assert_eq!(former.users, Some(BTreeSet::from(["u1".to_string()])));
        store.set("/local/domain/1/control/shutdown", "poweroff");
        assert_eq!(fate(&mut former, &mut store), Fate::Lives, "its guest may need it to go down");
        assert_eq!(&store["/local/domain/1/control/shutdown"], "");
        // The guest goes, and its device stays.
        store.remove("/local/domain/7");
        store.set("@releaseDomain", "");
        assert_eq!(fate(&mut former, &mut store), Fate::MayEnd);
        assert_eq!(former.handle(&[], &mut store).unwrap(), Fate::MayEnd, "it is said until it is gone");
        store.remove("/local/domain/1");
        assert_eq!(fate(&mut former, &mut store), Fate::Gone);
        // One that nobody uses has nothing to wait for.
        let mut store = nodes(&[(1, "net", &domain::uuid("net"))]);
        let mut former = Former::start("net", 1, &mut store).unwrap();
        assert_eq!(fate(&mut former, &mut store), Fate::MayEnd);
    }
}
