//! The devices of the driver domain: who has them, and where its section says which it is to have, which those are, and
//! when they are others.

use super::super::choice::{Choice, Given, Want};
use super::super::driver::{self, Own};
use super::super::given::{self, Now};
use super::super::settings::{Claim, Settings};
use super::super::{named, passthrough, pci};
use super::Shell;
use crate::config::Config;
use crate::service::name_of;
use crate::store::Store;
use anyhow::Result;
use control::told::tamed;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

/// A device that is not in the machine for so long is gone for good.
const GONE: Duration = Duration::from_secs(10);

/// What one asks for, and what it has been given.
pub struct Chooser {
    config: Config,
    service: String,
    driver: String,
    own: Own,
    choice: Choice,
    /// Since when one of those is not in the machine.
    gone: Option<Duration>,
}

impl Chooser {
    /// With what it gets now, which is written into its configuration. `None`: a configuration of the operator's says
    /// what it has.
    pub fn open(
        config: &Config,
        service: &str,
        driver: &str,
        settings: &Settings,
        store: &mut impl Store,
    ) -> Result<Option<Self>> {
        let Some(own) = Own::of(settings)? else { return Ok(None) };
        let (config, service, driver) = (config.clone(), service.to_string(), driver.to_string());
        // What was known before is not said again.
        let choice = Choice::of(&own.wants, given::known(&service, &driver));
        let mut chooser = Self { config, service, driver, own, choice, gone: None };
        let domain = named(&chooser.driver, store)?;
        chooser.choose(domain, false, store)?;
        chooser.write()?;
        Ok(Some(chooser))
    }

    /// The devices that it has been given.
    pub fn claims(&self) -> Vec<Claim> {
        self.choice.found.iter().flatten().map(|name| driver::claim_of(name)).collect()
    }

    /// Those, and by what rule.
    pub fn given(&self) -> Vec<Given> {
        self.choice.given(&self.own.wants)
    }

    /// Whether it has been given this one, and nobody has named it by its address.
    fn has_chosen(&self, device: &str) -> bool {
        let both = self.own.wants.iter().zip(&self.choice.found);
        let mut chosen =
            both.filter(|(want, _)| !matches!(want, Want::At(_))).filter_map(|(_, found)| found.as_deref());
        chosen.any(|name| name == device)
    }

    /// What is not in the machine, or not free.
    fn missing(&self) -> Vec<String> {
        missing(&self.own.wants, &self.choice, pci::is_there)
    }

    /// Looks which devices it gets, while `domain` has the place.
    fn choose(&mut self, domain: Option<u16>, may_change: bool, store: &mut impl Store) -> Result<()> {
        let has = domain.map_or(Ok(Vec::new()), |domain| pci::devices_of(domain, store))?;
        let mut taken = BTreeSet::new();
        for other in pci::domains(store)?.into_iter().filter(|other| Some(*other) != domain) {
            taken.extend(pci::devices_of(other, store)?);
        }
        let now = Now { service: &self.service, has, taken, may_change };
        let choice = given::give(&self.config, &now);
        for line in changes(&self.own.wants, &self.choice, &choice) {
            eprintln!("{}: {}: {line}", self.service, self.driver);
        }
        self.choice = choice;
        Ok(())
    }

    fn write(&self) -> Result<()> {
        let nets = self.config.nets_of(&self.driver);
        let cpus = driver::cpus_of_machine();
        let text = self.own.text(&self.service, &self.driver, &nets, &self.claims(), cpus);
        driver::write(&driver::path_of(&self.driver), &text)
    }
}

/// What one asks for that is not there, as it is said.
pub fn missing(wants: &[Want], choice: &Choice, is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let mut missing = Vec::new();
    for (n, want) in wants.iter().enumerate() {
        match choice.found.get(n).and_then(Option::as_ref) {
            Some(name) if is_there(name) => {}
            Some(name) if matches!(want, Want::At(_)) => missing.push(name.clone()),
            Some(name) => missing.push(format!("{name} (`{want}`)")),
            None => missing.push(format!("a device for `{want}`")),
        }
    }
    if let (Some(last), false) = (missing.last_mut(), choice.left_out.is_empty()) {
        let others: BTreeSet<String> = choice.left_out.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        last.push_str(&format!(" ({})", others.into_iter().collect::<Vec<_>>().join("; ")));
    }
    missing
}

/// The devices of a domain that has `has` and had `before`: what has left the machine is still its, what somebody has
/// taken from it is not.
fn held(before: Vec<String>, has: Vec<String>, is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let gone: Vec<String> = before.into_iter().filter(|name| !has.contains(name) && !is_there(name)).collect();
    has.into_iter().chain(gone).collect()
}

/// What is said of a choice that is not the one before.
fn changes(wants: &[Want], before: &Choice, now: &Choice) -> Vec<String> {
    let of = |choice: &Choice, n: usize| choice.found.get(n).cloned().flatten();
    let each = wants.iter().enumerate().filter(|(_, want)| !matches!(want, Want::At(_)));
    let both = |old: &str, new: &str| before.identities.get(old).zip(now.identities.get(new));
    let is_proven = |old: &str, new: &str| both(old, new).is_some_and(|(old, new)| old.is_proven(new));
    let is_refuted = |old: &str, new: &str| both(old, new).is_some_and(|(old, new)| old.is_refuted(new));
    each.filter_map(|(n, want)| match (of(before, n), of(now, n)) {
        (Some(old), Some(new)) if old == new && is_refuted(&old, &new) => {
            Some(format!("another card is at {old}, where its `{want}` was; it gets that"))
        }
        (Some(old), Some(new)) if old != new && is_proven(&old, &new) => {
            Some(format!("the card that was {old}, its `{want}`, is {new} now"))
        }
        (Some(old), Some(new)) if old != new => Some(format!("{old}, its `{want}`, is gone; it gets {new}")),
        (None, Some(new)) => Some(format!("{new} is its `{want}`")),
        (Some(old), None) => Some(format!("{old}, its `{want}`, is another service's now, or another card is there")),
        _ => None,
    })
    .collect()
}

impl Shell {
    /// The devices that it has been given, where its section says which it is to have.
    pub fn given(&self) -> Vec<Given> {
        self.chooser.as_ref().map(Chooser::given).unwrap_or_default()
    }

    /// What of its devices is missed now. `is_idle`: nobody has its place, and nobody is about to take it; then one
    /// that is gone for good is replaced by another one of its kind.
    pub(super) fn miss(&mut self, now: Duration, is_idle: bool) -> Result<Vec<String>> {
        let Some(chooser) = &mut self.chooser else {
            let missing = self.devices.iter().map(|device| &device.name).filter(|name| !pci::is_there(name));
            return Ok(missing.cloned().collect());
        };
        let is_gone = |found: &Option<String>| found.as_ref().is_some_and(|name| !pci::is_there(name));
        let is_open = chooser.choice.found.iter().any(Option::is_none);
        if !chooser.choice.found.iter().any(is_gone) {
            chooser.gone = None;
        } else if chooser.gone.is_none() {
            chooser.gone = Some(now);
        }
        let may_change = is_idle && chooser.gone.is_some_and(|since| now >= since + GONE);
        if is_open || may_change {
            chooser.choose(self.domain, may_change, &mut self.store)?;
            let claims = chooser.claims();
            if claims != self.devices {
                chooser.write()?;
                chooser.gone = None;
                self.toolstack.set_devices(&claims);
                self.devices = claims;
                // What was seen was of other devices.
                (self.whole, self.probed, self.announced) = (None, None, None);
            }
        }
        Ok(chooser.missing())
    }

    /// Whether no other domain has a device of its, and the PCI back end has all that xl does not take itself.
    pub(super) fn are_assigned(&mut self, now: Duration) -> Result<bool> {
        let held = self.held_by_others()?;
        let chooser = self.chooser.as_ref();
        let is_named = |device: &str| chooser.is_none_or(|chooser| !chooser.has_chosen(device));
        Ok(self.assigner.are_free(&held) && self.assigner.assign(&self.devices, is_named, now))
    }

    /// Its devices that domains have which are none of its own, and words for those.
    fn held_by_others(&mut self) -> Result<Vec<(String, String)>> {
        let own = [self.domain, self.standby, self.candidate].into_iter().flatten();
        let own: BTreeSet<u16> = own.chain(self.remains.iter().copied()).chain(self.ours.iter().copied()).collect();
        let mut held = Vec::new();
        for device in &self.devices {
            let holder = passthrough::holder(&device.name, &mut self.store)?;
            let Some(domain) = holder.filter(|domain| !own.contains(domain) && self.hypervisor.has(*domain)) else {
                continue;
            };
            let name =
                self.store.read(&name_of(domain))?.map_or(String::new(), |name| format!(" (`{}`)", tamed(&name)));
            held.push((device.name.clone(), format!("domain {domain}{name}")));
        }
        Ok(held)
    }

    /// Whether all of them were turned on; who has done that once is not asked again.
    pub(super) fn is_probed(&mut self, domain: u16) -> bool {
        if self.probed != Some(domain) {
            self.probed = self.are_probed().then_some(domain);
        }
        self.probed == Some(domain)
    }

    /// Whether all devices may reach memory.
    pub(super) fn are_probed(&self) -> bool {
        self.devices.iter().all(|device| pci::reaches_memory(&device.name))
    }

    /// Notes which devices `domain` has. What its configuration says may be of the next one.
    pub(super) fn note_held(&mut self, domain: Option<u16>) -> Result<()> {
        let Some(domain) = domain else {
            self.held = None;
            return Ok(());
        };
        let has = pci::devices_of(domain, &mut self.store)?;
        let before = self.held.take().filter(|(id, _)| *id == domain);
        self.held = Some((domain, held(before.map(|(_, held)| held).unwrap_or_default(), has, pci::is_there)));
        Ok(())
    }

    /// Whether one that `domain` has is not in the machine any more; or, if it has none yet, one of its configuration.
    pub(super) fn has_lost(&self, domain: Option<u16>) -> bool {
        match &self.held {
            Some((id, held)) if Some(*id) == domain && !held.is_empty() => held.iter().any(|name| !pci::is_there(name)),
            _ => !self.has_devices.0,
        }
    }

    /// Whether it has devices, if it is to have any, and has turned on those that it has.
    pub(super) fn drives_its_own(&mut self, domain: u16) -> Result<bool> {
        let has = pci::devices_of(domain, &mut self.store)?;
        Ok((self.devices.is_empty() || !has.is_empty()) && has.iter().all(|name| pci::reaches_memory(name)))
    }

    /// Whether it has all devices; who had them once is not asked again.
    pub(super) fn has_all(&mut self, domain: u16) -> Result<bool> {
        if self.whole != Some(domain) {
            self.whole = self.lacks(domain)?.is_none().then_some(domain);
        }
        Ok(self.whole == Some(domain))
    }

    /// The first device of the configuration that a domain has not.
    pub(super) fn lacks(&mut self, domain: u16) -> Result<Option<Claim>> {
        let has = pci::devices_of(domain, &mut self.store)?;
        Ok(self.devices.iter().find(|device| !has.contains(&device.name)).cloned())
    }

    /// Who names its devices.
    pub(super) fn named_by(&self) -> String {
        by(&self.service, self.chooser.is_none().then_some(self.config.as_path()))
    }
}

/// Who names devices of a service's driver domain: a configuration, or the service's section.
pub fn by(service: &str, config: Option<&Path>) -> String {
    match config {
        Some(config) => format!("{} names that (`pci`)", config.display()),
        None => format!("[service.{service}.supervise] asks for that (`device`)"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::identity::Identity;
    use super::*;

    fn choice(found: &[&str]) -> Choice {
        let found = found.iter().map(|name| Some((*name).to_string()).filter(|name| !name.is_empty())).collect();
        Choice { found, ..Choice::default() }
    }

    fn wants() -> Vec<Want> {
        ["network", "0000:00:05.0", "nvme"].map(|said| Want::parse(said).unwrap()).to_vec()
    }

    #[test]
    fn what_was_taken_from_a_domain_is_not_its_and_what_is_gone_is() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let held = |before: &[&str], has: &[&str], gone: &[&str]| {
            held(names(before), names(has), |name| !gone.contains(&name))
        };
        assert_eq!(held(&[], &["a", "b"], &["b"]), ["a", "b"]);
        assert_eq!(held(&["a", "b"], &["a"], &[]), ["a"]);
        assert_eq!(held(&["a", "b"], &["a"], &["b"]), ["a", "b"]);
        assert!(held(&["a"], &[], &[]).is_empty());
    }

    #[test]
    fn what_becomes_of_a_choice_is_said_once() {
        let said = |before: &[&str], now: &[&str]| changes(&wants(), &choice(before), &choice(now));
        let all = ["0000:00:03.0", "0000:00:05.0", "0000:00:06.0"];
        assert_eq!(said(&[], &all), ["0000:00:03.0 is its `network`", "0000:00:06.0 is its `nvme`"]);
        assert!(said(&all, &all).is_empty());
        let other = ["0000:00:04.0", "0000:00:05.0", ""];
        assert_eq!(
            said(&all, &other),
            [
                "0000:00:03.0, its `network`, is gone; it gets 0000:00:04.0",
                "0000:00:06.0, its `nvme`, is another service's now, or another card is there"
            ]
        );
        // Buses are numbered anew; and a card is another one.
        let with = |found: &[&str], serial: &str| {
            let identity = Identity { serial: Some(serial.into()), ..Identity::default() };
            Choice { identities: [(found[0].to_string(), identity)].into(), ..choice(found) }
        };
        let said = |before: &Choice, now: &Choice| changes(&wants(), before, now).concat();
        let moved = ["0000:00:04.0", "0000:00:05.0", "0000:00:06.0"];
        assert_eq!(said(&with(&all, "a"), &with(&all, "a")), "");
        assert_eq!(
            said(&with(&all, "a"), &with(&moved, "a")),
            "the card that was 0000:00:03.0, its `network`, is 0000:00:04.0 now"
        );
        assert_eq!(
            said(&with(&all, "a"), &with(&all, "b")),
            "another card is at 0000:00:03.0, where its `network` was; it gets that"
        );
        let given = choice(&all).given(&wants());
        assert_eq!(Choice::of(&wants(), given), choice(&all));
        assert_eq!(Choice::of(&wants(), Vec::new()), choice(&["", "", ""]));
    }

    #[test]
    fn what_is_missing_is_named_with_what_is_left_out() {
        let all = choice(&["0000:00:03.0", "0000:00:05.0", ""]);
        let said = |choice: &Choice, there: bool| missing(&wants(), choice, |_| there);
        assert_eq!(said(&all, true), ["a device for `nvme`"]);
        assert_eq!(said(&all, false), ["0000:00:03.0 (`network`)", "0000:00:05.0", "a device for `nvme`"]);
        let why = |name: &str| (name.to_string(), "another domain has it".to_string());
        let left_out = vec![why("0000:00:07.0"), why("0000:00:06.0"), why("0000:00:07.0")];
        assert_eq!(
            said(&Choice { left_out, ..all }, true),
            ["a device for `nvme` (0000:00:06.0: another domain has it; 0000:00:07.0: another domain has it)"]
        );
    }
}
