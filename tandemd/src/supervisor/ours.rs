//! Which domains were made here: those that wait for a driver domain's place, and what is left of those that had it.
//!
//! Names do not say so, since anybody may give a domain any name, and who is not needed is destroyed. One that waits
//! has a UUID of ours from its creation on, whoever is killed meanwhile; what is left of one that somebody else may
//! have made is marked when it gets its name. Its directory in xenstore goes with it, and domain 0 alone writes there.

use super::{candidate_of, remains_of, standby_of};
use crate::domain::hash;
use crate::service::name_of;
use crate::store::Store;
use anyhow::Result;
use std::time::{SystemTime, UNIX_EPOCH};

/// A UUID for one that is to wait for this driver domain's place: another one each time.
pub fn uuid(driver: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    format!("{}{:012x}", beginning(driver), now & 0xffff_ffff_ffff)
}

/// With what all of these begin. Those of services' own domains are told from them by the third group.
fn beginning(driver: &str) -> String {
    format!("74616e64-656d-8001-{:04x}-", 0x8000 | (hash(driver) >> 48 & 0x3fff))
}

/// Where a domain is marked as one that had the place of the driver domain whose name is there.
pub fn mark_of(domain: u16) -> String {
    format!("/local/domain/{domain}/tandem")
}

/// Whether a domain was made, or marked, for this driver domain. `vm`: where else the toolstack has written its name,
/// if that is known.
pub fn is_ours(domain: u16, vm: Option<&str>, driver: &str, store: &mut impl Store) -> Result<bool> {
    let is_made = vm.is_some_and(|vm| vm.starts_with(&format!("/vm/{}", beginning(driver))));
    Ok(is_made || store.read(&mark_of(domain))?.as_deref() == Some(driver))
}

/// One that is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// It.
    pub domain: u16,
    /// What it is called.
    pub name: String,
    /// It has the place itself, and is let alone; only what was noted of it is of no use.
    pub has_the_place: bool,
}

/// Domains that were made here for driver domains that nobody looks after, of those that are there.
pub fn orphans(is_looked_after: impl Fn(&str) -> bool, store: &mut impl Store) -> Result<Vec<Orphan>> {
    let mut found = Vec::new();
    for domain in store.list("/local/domain")?.iter().filter_map(|domain| domain.parse().ok()) {
        let Some(name) = store.read(&name_of(domain))? else { continue };
        let vm = store.read(&format!("/local/domain/{domain}/vm"))?;
        let of = [standby_of, candidate_of, remains_of].map(|call| call(""));
        let drivers = of.iter().filter_map(|suffix| name.strip_suffix(suffix)).map(|driver| (driver, false));
        for (driver, has_the_place) in drivers.chain([(name.as_str(), true)]) {
            if !is_looked_after(driver) && is_ours(domain, vm.as_deref(), driver, store)? {
                found.push(Orphan { domain, name: name.clone(), has_the_place });
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::{named, none_runs};
    use super::*;
    use crate::fake_store::Nodes;

    /// Domains with these names and UUIDs, and what driver domain's mark some have.
    fn nodes(domains: &[(u16, &str, &str)], marks: &[(u16, &str)]) -> Nodes {
        let mut nodes = Nodes::default();
        for (domain, name, uuid) in domains {
            nodes.set(&name_of(*domain), name);
            nodes.set(&format!("/local/domain/{domain}/vm"), &format!("/vm/{uuid}"));
        }
        marks.iter().for_each(|(domain, driver)| nodes.set(&mark_of(*domain), driver));
        nodes
    }

    const OTHERS: &str = "0d6f7a52-9c0e-4d5b-8a51-1f0d6b1f3c55";

    #[test]
    fn whose_a_domain_is_its_name_does_not_say() {
        let own = uuid("dd");
        assert_eq!(own.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        let mut store = nodes(&[], &[(9, "dd")]);
        let mut is_ours = |domain, uuid: &str, driver| {
            super::is_ours(domain, Some(&format!("/vm/{uuid}")), driver, &mut store).unwrap()
        };
        assert!(is_ours(7, &own, "dd") && !is_ours(7, &own, "dd2"));
        assert!(!is_ours(8, OTHERS, "dd"), "an operator's, or another service's");
        assert!(is_ours(9, OTHERS, "dd") && !is_ours(9, OTHERS, "dd2"), "it had the place");
        assert!(!super::is_ours(8, None, "dd", &mut store).unwrap());
    }

    #[test]
    fn who_has_one_parked_that_is_not_looked_after_is_told_that_it_runs() {
        let mut store = nodes(&[(2, "dd2", OTHERS), (3, "dd", OTHERS)], &[]);
        let mut parked = |driver: &str| named(driver, &mut store).and_then(|there| none_runs(driver, there));
        assert!(parked("gone").is_ok());
        let said = parked("dd").unwrap_err().to_string();
        assert!(said.contains("domain 3 runs on") && said.contains("`xl destroy dd`"), "{said}");
    }

    #[test]
    fn who_was_made_for_a_driver_domain_that_nobody_looks_after_is_of_no_use() {
        let domains = [
            (0, "Domain-0", OTHERS),
            (1, "net", OTHERS),
            (2, "dd", &uuid("dd")),
            (3, "dd-standby", &uuid("dd")),
            (4, "dd-remains", OTHERS),
            (5, "dd-upgrade", OTHERS),
            (6, "other-standby", &uuid("other")),
            (7, "dd-remains", OTHERS),
        ];
        let mut store = nodes(&domains, &[(4, "dd")]);
        let mut found = |after: &str| -> Vec<(u16, bool)> {
            let found = orphans(|driver| driver == after, &mut store).unwrap();
            found.into_iter().map(|orphan| (orphan.domain, orphan.has_the_place)).collect()
        };
        assert_eq!(found("other"), [(2, true), (3, false), (4, false)]);
        assert_eq!(found("dd"), [(6, false)]);
    }
}
