//! The place of a driver domain changes hands: one loses name, devices and interface, and another one gets them.

use super::super::passthrough::{self, Party};
use super::super::settings::Answers;
use super::super::{ours, pci, standby};
use super::{others, rid, taken_by, waits_for, Shell};
use crate::service::name_of;
use crate::store::{Change, Store};
use anyhow::{Context, Result};

impl Shell {
    /// One that waits gets to know the PCI back end, and those who serve guests get to know it.
    pub(super) fn introduce(&mut self, domain: u16) -> Result<()> {
        self.introduced.insert(domain, Self::now());
        // It is asked now, when nobody waits for it.
        for domain in self.domain.into_iter().chain([domain]) {
            self.vm_of(domain)?;
        }
        let done = passthrough::introduce(domain, &mut self.store)
            .and_then(|()| passthrough::announce(domain, &self.devices, &mut self.store));
        match done {
            Ok(is_announced) => self.announced = is_announced.then_some(domain),
            Err(error) => {
                eprintln!("{}: {}: it meets its PCI back end later: {error:#}", self.service, self.driver);
            }
        }
        let changes = others::tell(self.services(), waits_for, domain);
        self.store.change("/local", &changes).map(|_| ())
    }

    /// It loses all that another one needs to take its place, or it is said why not.
    pub(super) fn take(&mut self, domain: u16) -> Result<()> {
        if let Err(error) = self.try_take(domain) {
            eprintln!("{}: {}: xl is to take its devices: {error:#}", self.service, self.driver);
            // By that it is known as long as it has any.
            let changes = self.renamed(domain, &self.driver.clone())?;
            self.store.change(&name_of(domain), &changes)?;
        }
        self.sort_names()
    }

    fn try_take(&mut self, domain: u16) -> Result<()> {
        self.hypervisor.forget_twins(domain).context("its twins stay")?;
        let mut devices = match self.quarantined.take() {
            // It has not run since.
            Some((of, devices)) if of == domain => devices,
            _ => pci::devices_of(domain, &mut self.store)?,
        };
        // Where an earlier daemon was killed these may not be in xenstore any more.
        devices.extend(self.devices.iter().map(|device| device.name.clone()));
        devices.sort_unstable();
        devices.dedup();
        let mut changes = self.renamed(domain, &standby::remains_of(&self.driver))?;
        changes.push(Change::Write(ours::mark_of(domain), self.driver.clone()));
        let from = Party::new(domain, changes);
        let from = from.answered(self.pci_answers == Answers::Hypervisor);
        if self.keep_link {
            passthrough::keep_links(domain, &devices, &mut self.hypervisor);
        }
        passthrough::take(from, &devices, self.reset, &self.sysfs, &mut self.store, &mut self.hypervisor)?;
        // Nobody has to ask for that.
        self.ours.insert(domain);
        self.unplug(domain)
    }

    /// What a domain's other name changes.
    fn renamed(&mut self, domain: u16, to: &str) -> Result<Vec<Change>> {
        let name = |path: &str| Change::Write(format!("{path}/name"), to.into());
        let known = self.vm_of(domain)?;
        Ok([Some(name(&format!("/local/domain/{domain}"))), known.as_deref().map(name)].into_iter().flatten().collect())
    }

    /// Where else the toolstack has written a domain's name; it stays there.
    pub(super) fn vm_of(&mut self, domain: u16) -> Result<Option<String>> {
        if !self.vms.contains_key(&domain) {
            self.vms.extend(self.store.read(&format!("/local/domain/{domain}/vm"))?.map(|vm| (domain, vm)));
        }
        Ok(self.vms.get(&domain).cloned())
    }

    /// Takes all from it that it serves guests by. Who serves them knows by its name that it is not asked again.
    pub(super) fn unplug(&mut self, domain: u16) -> Result<()> {
        rid::of_disks(domain, &mut self.hypervisor)?;
        rid::of_interfaces(domain, &mut self.hypervisor)
    }

    /// Takes guests' disks from it: what it has not answered, or with an error that no guest was told yet, waits for
    /// the next one.
    pub(super) fn detach(&mut self, domain: u16) -> Result<()> {
        rid::of_disks(domain, &mut self.hypervisor)
    }

    /// It gets the driver domain's name: who serves its interface looks at that anew, since it is the way out now, and
    /// who serves disks looks for it at once. One that is ready for its devices gets them with it: each question to the
    /// store costs time in which guests wait.
    pub(super) fn promote(&mut self, domain: u16) -> Result<()> {
        self.toolstack.set_aside();
        // Where an earlier daemon was killed they may be there still.
        for remains in self.remains.clone() {
            self.unplug(remains)?;
            // It does not come to an end by being tried for ever.
            if let Err(why) = passthrough::until_gone(remains, &self.sysfs) {
                self.not_promoted = Some(format!("domain {remains}, which was it before: {why:#}"));
                return Ok(());
            }
        }
        let mut changes = self.renamed(domain, &self.driver.clone())?;
        changes.extend(others::tell(self.services(), taken_by, domain));
        // What goes wrong with them is said when that is tried once more.
        if self.give(Party::new(domain, changes.clone()).if_known()).is_err() {
            self.store.change(&name_of(domain), &changes)?;
        }
        self.sort_names()
    }

    /// A domain gets all devices.
    pub(super) fn give(&mut self, to: Party) -> Result<()> {
        let domain = to.domain();
        let to = to.announced(self.announced == Some(domain)).answered(self.pci_answers == Answers::Hypervisor);
        passthrough::hand_over(to, &self.devices, &self.sysfs, &mut self.store, &mut self.hypervisor)?;
        self.whole = Some(domain);
        Ok(())
    }
}
