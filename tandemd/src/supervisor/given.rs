//! Which devices services have been given: one place for all of them, so that none is given twice.

use super::assign::domain_0_works_with;
use super::choice::{self, choose, Asker, Choice, Given, Others, Want};
use super::driver::Own;
use super::{pci, place};
use crate::config::Config;
use crate::service::name_of;
use crate::store::Store;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// By services. Those that are not there yet have what their records say.
static GIVEN: Mutex<BTreeMap<String, Vec<Given>>> = Mutex::new(BTreeMap::new());

/// A driver domain that asks for devices now.
#[derive(Clone, Debug, Default)]
pub struct Now<'a> {
    pub service: &'a str,
    /// Devices that it has.
    pub has: Vec<String>,
    /// Devices that others have, which may be none of ours.
    pub taken: BTreeSet<String>,
    /// One of its devices that is not there is gone for good.
    pub may_change: bool,
}

/// What this service's driver domain gets.
pub fn give(config: &Config, now: &Now) -> Choice {
    let mut all = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = |service: &str, driver: &str| match all.get(service) {
        Some(given) => given.clone(),
        None => recorded(service, driver),
    };
    let (askers, claimed) = askers_of(config, now, given);
    let root = Path::new("/");
    let in_use = |device: &str| domain_0_works_with(root, device);
    let others = Others { claimed: &claimed, taken: &now.taken, in_use: &in_use };
    let choice = choose(&askers, &choice::functions(root), &others).remove(now.service).unwrap_or_default();
    let wants = wants_of(config, now.service);
    all.insert(now.service.into(), choice.given(&wants));
    choice
}

/// What this service's driver domain had been given before it asks.
pub fn known(service: &str, driver: &str) -> Vec<Given> {
    let all = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    all.get(service).cloned().unwrap_or_else(|| recorded(service, driver))
}

/// Domains that have devices, by their names, and which.
pub type Held = Vec<(String, Vec<String>)>;

/// Who has what now.
pub fn held(store: &mut impl Store) -> Result<Held> {
    let mut held = Vec::new();
    for domain in pci::domains(store)? {
        held.push((store.read(&name_of(domain))?.unwrap_or_default(), pci::devices_of(domain, store)?));
    }
    Ok(held)
}

/// What all services would get if all began now, and their driver domains had again what they have.
pub fn foresee(config: &Config, root: &Path, held: &Held) -> BTreeMap<String, Choice> {
    let (mut askers, claimed) = askers_of(config, &Now::default(), recorded);
    for asker in &mut askers {
        let driver = config.service.get(&asker.service).and_then(|service| service.driver_domain.as_ref());
        asker.has = held.iter().filter(|(name, _)| Some(name) == driver).flat_map(|(_, has)| has.clone()).collect();
    }
    let taken: BTreeSet<String> = held.iter().flat_map(|(_, has)| has.clone()).collect();
    let in_use = |device: &str| domain_0_works_with(root, device);
    let others = Others { claimed: &claimed, taken: &taken, in_use: &in_use };
    choose(&askers, &choice::functions(root), &others)
}

/// What a service's record says. One that cannot be read keeps its service parked.
fn recorded(service: &str, driver: &str) -> Vec<Given> {
    place(service).read("").map(|record| record.of(driver).given).unwrap_or_default()
}

/// What a service's section asks for; nothing, if a configuration of the toolstack's says what its driver domain is.
pub fn wants_of(config: &Config, service: &str) -> Vec<Want> {
    let settings = config.service.get(service).and_then(|service| service.looked_after());
    settings.and_then(|(_, settings)| Own::of(settings).ok()?).map(|own| own.wants).unwrap_or_default()
}

/// All who ask, and what others claim by their own configurations.
fn askers_of(
    config: &Config,
    now: &Now,
    given: impl Fn(&str, &str) -> Vec<Given>,
) -> (Vec<Asker>, BTreeMap<String, String>) {
    let (mut askers, mut claimed) = (Vec::new(), BTreeMap::new());
    for (name, service) in &config.service {
        let Some((driver, settings)) = service.looked_after() else { continue };
        let wants = wants_of(config, name);
        if wants.is_empty() {
            let claims = settings.claims(driver).unwrap_or_default();
            claimed.extend(claims.into_iter().map(|claim| (claim.name, name.clone())));
            continue;
        }
        let is_now = name == now.service;
        askers.push(Asker {
            given: given(name, driver),
            has: if is_now { now.has.clone() } else { Vec::new() },
            may_change: is_now && now.may_change,
            service: name.clone(),
            wants,
        });
    }
    (askers, claimed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_store::Nodes;
    use std::path::PathBuf;

    /// A machine with three cards, a kernel for driver domains, and their configuration.
    struct Machine(PathBuf);

    impl Machine {
        fn new(of: &str) -> Self {
            let machine = Self(std::env::temp_dir().join(format!("tandemd-given-{of}-{}", std::process::id())));
            machine.write("vmlinuz", "a kernel");
            machine.write("proc/self/mountinfo", "22 1 0:2 / / rw - rootfs rootfs rw\n");
            for (name, class) in
                [("0000:00:03.0", "0x020000"), ("0000:00:04.0", "0x020000"), ("0000:00:05.0", "0x010802")]
            {
                for (file, text) in [("class", class), ("vendor", "0x8086"), ("device", "0x10d3")] {
                    machine.write(&format!("sys/bus/pci/devices/{name}/{file}"), text);
                }
            }
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        /// Its interface of this device, which is up or not.
        fn has_interface(&self, name: &str, device: &str, flags: &str) {
            self.write(&format!("sys/devices/pci0000:00/{device}/net/{name}/flags"), flags);
            let link = self.0.join("sys/class/net").join(name);
            std::fs::create_dir_all(link.parent().unwrap()).unwrap();
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(format!("../../devices/pci0000:00/{device}/net/{name}"), link).unwrap();
        }

        /// Sections of services whose names begin with `given-`: nobody has records of those.
        fn config(&self, services: &[(&str, &str)]) -> Config {
            let kernel = self.0.join("vmlinuz");
            let section = |(name, device): &(&str, &str)| {
                format!("[service.given-{name}]\ndriver-domain = \"dd-{name}\"\n[service.given-{name}.supervise]\ndevice = {device}\nkernel = \"{}\"\n", kernel.display())
            };
            Config::parse(&services.iter().map(section).collect::<String>()).unwrap()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn it_is_foreseen_what_each_would_get_and_what_is_missing() {
        let machine = Machine::new("foreseen");
        let config =
            machine.config(&[("a", "\"network\""), ("b", "[\"network\", \"0000:00:05.0\"]"), ("c", "\"network\"")]);
        assert!(config.troubles().is_empty(), "{:?}", config.troubles());
        assert_eq!(
            config.resolved(&machine.0, &Held::new()),
            "given-a: `network` is 0000:00:03.0\ngiven-b: `network` is 0000:00:04.0\n"
        );
        let missing = config.missing(&machine.0, &Held::new(), |_| true);
        let [said] = missing.as_slice() else { panic!("{missing:?}") };
        assert!(
            said.starts_with("[service.given-c.supervise]: a device for `network` (0000:00:03.0: it is `given-a`'s; "),
            "{said}"
        );
        assert!(said.contains("asks for that (`device`)"), "{said}");
        // A disk's controller that has gone.
        let missing = config.missing(&machine.0, &Held::new(), |name| name != "0000:00:05.0");
        assert!(missing[0].starts_with("[service.given-b.supervise]: 0000:00:05.0: not in the machine"), "{missing:?}");
    }

    #[test]
    fn an_interface_that_domain_0_uses_is_given_to_nobody_who_has_not_named_it() {
        let machine = Machine::new("interface");
        let config = machine.config(&[("a", "\"network\""), ("b", "\"00:04.0\"")]);
        machine.has_interface("eth0", "0000:00:03.0", "0x1002\n");
        assert_eq!(config.resolved(&machine.0, &Held::new()), "given-a: `network` is 0000:00:03.0\n");
        for name in ["0000:00:03.0", "0000:00:04.0"] {
            machine.has_interface("eth0", name, "0x1003\n");
            let said = domain_0_works_with(&machine.0, name).unwrap();
            assert!(said.contains("its interface eth0 is up; `ip link set eth0 down`"), "{said}");
        }
        machine.has_interface("eth0", "0000:00:03.0", "0x1003\n");
        assert_eq!(config.resolved(&machine.0, &Held::new()), "");
        let missing = config.missing(&machine.0, &Held::new(), |_| true);
        assert!(missing.len() == 1 && missing[0].contains("0000:00:03.0: domain 0 works with it"), "{missing:?}");
    }

    #[test]
    fn what_another_domain_has_is_not_foreseen_for_anybody() {
        let machine = Machine::new("held");
        let config = machine.config(&[("a", "\"network\""), ("b", "\"network\"")]);
        let mut store = Nodes::default();
        for (domain, name, device) in [("7", "u1", "0000:00:03.0"), ("8", "dd-b", "0000:00:04.0")] {
            store.set(&format!("/local/domain/{domain}/name"), name);
            store.set(&format!("/local/domain/0/backend/pci/{domain}/0/num_devs"), "1");
            store.set(&format!("/local/domain/0/backend/pci/{domain}/0/dev-0"), device);
        }
        let held = held(&mut store).unwrap();
        assert_eq!(config.resolved(&machine.0, &held), "given-b: `network` is 0000:00:04.0\n");
        let missing = config.missing(&machine.0, &held, |_| true);
        assert!(missing.len() == 1 && missing[0].contains("0000:00:03.0: another domain has it"), "{missing:?}");
    }

    #[test]
    fn a_device_that_two_services_claim_is_refused_in_words() {
        let machine = Machine::new("twice");
        let troubles = machine.config(&[("a", "\"00:03.0\""), ("b", "[\"nvme\", \"0000:00:03.0\"]")]).troubles();
        assert_eq!(troubles.keys().collect::<Vec<_>>(), ["given-a", "given-b"]);
        assert!(troubles["given-a"].contains("0000:00:03.0 is claimed twice"), "{troubles:?}");
    }

    #[test]
    fn sections_that_cannot_be_are_refused_with_their_names() {
        let section = |lines: &str| {
            let text = format!("[service.net]\ndriver-domain = \"dd\"\n[service.net.supervise]\n{lines}");
            format!("{:#}", Config::parse(&text).unwrap_err())
        };
        assert!(section("device = \"sata\"\nkernel = \"/k\"").contains("`sata` is no device"));
        let both = section("device = \"nvme\"\nconfig = \"/dd.cfg\"");
        assert!(both.starts_with("[service.net.supervise]: `config` and `device`"), "{both}");
        assert!(section("memory-mib = 1\ndevice = \"nvme\"\nkernel = \"/k\"").contains("say 48 to"));
        assert!(section("").contains("neither `config`"));
    }
}
