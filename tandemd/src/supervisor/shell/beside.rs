//! What takes long and is done beside all else, so that a failure meanwhile is noticed at once: one that waits is
//! noted, or rolled back.

use super::super::{snapshot, Record, RECORDS};
use super::{rid, Shell};
use crate::domain::RUN;
use crate::hypercall::{Hypervisor, Snapshots};
use crate::store::Client;
use anyhow::{Context, Result};
use rustix::io::Errno;
use std::path::Path;
use std::thread::JoinHandle;
use xen_abi::channel_op as op;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    IsNoted,
    GoesBack,
}

impl Does {
    /// What is said if it cannot be.
    fn in_vain(self) -> &'static str {
        match self {
            Self::IsNoted => "cannot be rolled back when it fails",
            Self::GoesBack => "is not rolled back",
        }
    }
}

/// Something that is done beside. The thread says what came of it.
#[derive(Debug)]
pub struct Beside {
    domain: u16,
    does: Does,
    thread: JoinHandle<()>,
}

impl Beside {
    /// Whether it has been done.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }
}

impl Shell {
    /// The domain with which this is done just now.
    pub(super) fn is_beside(&self, does: Does) -> Option<u16> {
        self.beside.as_ref().filter(|beside| beside.does == does).map(|beside| beside.domain)
    }

    /// Begins to note one that waits.
    pub(super) fn note(&mut self, domain: u16, record: &Record) -> Result<()> {
        self.end_beside()?;
        let notes = Path::new(RUN);
        let kept: Vec<u16> = record.snapshots.iter().copied().chain([domain]).collect();
        if let Err(error) = snapshot::keep_only(notes, &self.service, &kept) {
            eprintln!("{}: what was noted of others stays in {RUN}: {error:#}", self.service);
        }
        let file = snapshot::path(notes, &self.service, domain);
        let flags = if self.compresses { op::SNAPSHOT_COMPRESS } else { 0 };
        let nets = self.nets.clone();
        self.begin(domain, Does::IsNoted, move |store, hypervisor| {
            let taken = snapshot::note(domain, flags, &nets, &file, store, hypervisor)?;
            Ok(Some(format!("domain {domain} can be rolled back; {}", snapshot::takes(&taken))))
        })
    }

    /// An earlier daemon may have kept what it noted on domain 0's disk.
    pub(super) fn bring_notes(&self) {
        if let Err(error) = snapshot::bring(Path::new(RECORDS), Path::new(RUN), &self.service) {
            eprintln!("{}: what was noted stays in {RECORDS}: {error:#}", self.service);
        }
    }

    /// An earlier daemon may have noted instances, and this one is to note none.
    pub(super) fn forget_snapshots(&mut self) {
        for domain in [self.domain, self.standby, self.candidate].into_iter().flatten() {
            match self.hypervisor.forget(domain) {
                Ok(()) => eprintln!("{}: domain {domain} is not rolled back when it fails", self.service),
                Err(Errno::NOENT | Errno::SRCH) => {}
                Err(error) => eprintln!("{}: domain {domain}: what was noted of it stays: {error}", self.service),
            }
        }
        if let Err(error) = snapshot::keep_only(Path::new(RUN), &self.service, &[]) {
            eprintln!("{}: what was noted stays in {RUN}: {error:#}", self.service);
        }
    }

    /// Begins to make of what is left of it one that waits again.
    pub(super) fn roll_back(&mut self, domain: u16) -> Result<()> {
        self.end_beside()?;
        // It is not what it was when that was seen, and has answered nothing.
        for seen in [&mut self.whole, &mut self.probed, &mut self.linked, &mut self.used] {
            seen.take_if(|seen| *seen == domain);
        }
        self.watched.take_if(|(watched, _)| *watched == domain);
        self.answered.forget(domain);
        self.unplug(domain)?;
        rid::offer_anew(domain, &self.nets, &mut self.store)?;
        let file = snapshot::path(Path::new(RUN), &self.service, domain);
        let driver = self.driver.clone();
        self.begin(domain, Does::GoesBack, move |store, hypervisor| {
            snapshot::roll_back(domain, &driver, &file, store, hypervisor).map(|()| None)
        })
    }

    /// Begins that, which may have something to say at its end.
    fn begin(
        &mut self,
        domain: u16,
        does: Does,
        work: impl FnOnce(&mut Client, &mut Hypervisor) -> Result<Option<String>> + Send + 'static,
    ) -> Result<()> {
        let who = format!("{}: {}", self.service, self.driver);
        // It has connections of its own: the hypervisor and the store answer both in turn.
        let works = move || Client::open().and_then(|mut store| work(&mut store, &mut Hypervisor::open()?));
        let says = move || match works() {
            Ok(None) => {}
            Ok(Some(line)) => eprintln!("{who}: {line}"),
            Err(error) => eprintln!("{who}: domain {domain} {}: {error:#}", does.in_vain()),
        };
        let thread = std::thread::Builder::new().name(format!("{does:?}")).spawn(says).context("no thread")?;
        self.beside = Some(Beside { domain, does, thread });
        Ok(())
    }

    /// Waits until that is over, and sees what has become of it.
    pub(super) fn end_beside(&mut self) -> Result<()> {
        let Some(Beside { domain, thread, .. }) = self.beside.take() else { return Ok(()) };
        if thread.join().is_err() {
            eprintln!("{}: {}: what was done with domain {domain} has failed", self.service, self.driver);
        }
        self.find()
    }
}

impl Drop for Shell {
    /// The next one begins with nobody at work.
    fn drop(&mut self) {
        if let Some(Beside { thread, .. }) = self.beside.take() {
            let _ = thread.join();
        }
    }
}
