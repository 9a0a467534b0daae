//! What takes long and is done beside all else: one that waits is rolled back.

use super::super::{snapshot, Record, RECORDS};
use super::Shell;
use crate::hypercall::Hypervisor;
use crate::store::Client;
use anyhow::{anyhow, Context, Result};
use std::path::Path;
use xen_abi::channel_op as op;

impl Shell {
    /// Notes one that waits, or says why that cannot be.
    pub(super) fn note(&mut self, domain: u16, record: &Record) -> Result<()> {
        let records = Path::new(RECORDS);
        let kept: Vec<u16> = record.snapshots.iter().copied().chain([domain]).collect();
        snapshot::keep_only(records, &self.service, &kept)?;
        let file = snapshot::path(records, &self.service, domain);
        let flags = if self.compresses { op::SNAPSHOT_COMPRESS } else { 0 };
        match snapshot::note(domain, flags, &file, &mut self.store, &mut self.hypervisor) {
            Ok(taken) => {
                let takes = snapshot::takes(&taken);
                eprintln!("{}: {}: domain {domain} can be rolled back; {takes}", self.service, self.driver);
            }
            Err(error) => eprintln!(
                "{}: {}: domain {domain} cannot be rolled back when it fails: {error:#}",
                self.service, self.driver
            ),
        }
        Ok(())
    }

    /// Begins to make of what is left of it one that waits again.
    pub(super) fn roll_back(&mut self, domain: u16) -> Result<()> {
        self.end_going_back()?;
        // It is not what it was when that was seen, and has answered nothing.
        for seen in [&mut self.whole, &mut self.linked, &mut self.used] {
            seen.take_if(|seen| *seen == domain);
        }
        self.answered.forget(domain);
        self.unplug(domain)?;
        let file = snapshot::path(Path::new(RECORDS), &self.service, domain);
        let driver = self.driver.clone();
        // It has connections of its own: the hypervisor and the store answer both in turn.
        let way_back = move || {
            let (mut store, mut hypervisor) = (Client::open()?, Hypervisor::open()?);
            snapshot::roll_back(domain, &driver, &file, &mut store, &mut hypervisor)
        };
        let thread = std::thread::Builder::new().name("rolls back".into()).spawn(way_back).context("no thread")?;
        self.going_back = Some((domain, thread));
        Ok(())
    }

    /// Waits until the one that is being rolled back is one that waits again, or says why that cannot be.
    pub(super) fn end_going_back(&mut self) -> Result<()> {
        let Some((domain, thread)) = self.going_back.take() else { return Ok(()) };
        let done = thread.join().unwrap_or_else(|_| Err(anyhow!("that has failed")));
        if let Err(error) = done {
            eprintln!("{}: {}: domain {domain} is not rolled back: {error:#}", self.service, self.driver);
        }
        self.find()
    }
}

impl Drop for Shell {
    /// The next one begins with nobody at work.
    fn drop(&mut self) {
        if let Some((_, thread)) = self.going_back.take() {
            let _ = thread.join();
        }
    }
}
