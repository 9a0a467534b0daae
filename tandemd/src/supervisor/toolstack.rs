//! Processes of the toolstack's: one at a time does what the machine asks for, and beside it others clear away what is left of domains.

use super::look::Errand;
use super::pci;
use super::settings::Claim;
use crate::domain::RUN;
use crate::store::Store;
use anyhow::{Context, Result};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What xl is told before the configuration. Without `-e` a process of its would stay to do what `on_crash` says, and would be in the way.
pub const CREATE: &[&str] = &["create", "-q", "-e"];
/// To hand over a device.
pub const ATTACH: &str = "pci-attach";

/// The toolstack, as it is asked for a driver domain.
pub struct Toolstack {
    service: String,
    /// The driver domain's configuration and devices, by which processes of an earlier daemon's are known.
    config: PathBuf,
    devices: Vec<Claim>,
    process: Process,
    /// Processes that destroy what is left of domains whose places others have.
    clearing: Vec<(Child, PathBuf)>,
    nr_cleared: u32,
    /// Who is destroyed, and answers nobody any more.
    destroyed: Option<u16>,
}

/// A process of the toolstack's.
enum Process {
    Rests,
    /// Started by this daemon; what it says goes to that file.
    Ours(Child, PathBuf),
    /// Started by an earlier one.
    Inherited(u32),
}

impl Toolstack {
    /// It may be at work for an earlier daemon.
    pub fn open(service: &str, config: &Path, devices: &[Claim]) -> Result<Self> {
        Ok(Self {
            service: service.into(),
            config: config.into(),
            devices: devices.into(),
            process: inherited(config, devices)?.map_or(Process::Rests, Process::Inherited),
            clearing: Vec::new(),
            nr_cleared: 0,
            destroyed: None,
        })
    }

    /// Begins to destroy a domain that answers nobody any more.
    pub fn destroy(&mut self, domain: u16) -> Result<()> {
        self.start(&["destroy", &domain.to_string()])?;
        self.destroyed = Some(domain);
        Ok(())
    }

    /// Whom it destroys.
    pub fn destroys(&self) -> Option<u16> {
        self.destroyed
    }

    /// Starts it with these arguments.
    pub fn start(&mut self, arguments: &[&str]) -> Result<()> {
        let said = Path::new(RUN).join(format!("{}.xl", self.service));
        let file = File::create(&said).with_context(|| format!("cannot make {}", said.display()))?;
        let mut xl = Command::new("xl");
        xl.args(arguments).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        self.process = Process::Ours(xl.spawn().context("cannot start xl")?, said);
        self.destroyed = None;
        Ok(())
    }

    /// The process that clears a domain away goes on by itself; others may begin.
    pub fn set_aside(&mut self) -> Result<()> {
        let Process::Ours(child, said) = std::mem::replace(&mut self.process, Process::Rests) else {
            return Ok(());
        };
        self.nr_cleared = self.nr_cleared.wrapping_add(1);
        let other = said.with_extension(format!("{}.xl", self.nr_cleared));
        let renamed = std::fs::rename(&said, &other);
        self.clearing.push((child, other));
        self.destroyed = None;
        renamed.with_context(|| format!("cannot rename {}", said.display()))
    }

    /// Those of them that have ended.
    fn reap(&mut self) {
        let service = &self.service;
        self.clearing.retain_mut(|(child, said)| {
            let trouble = match child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) if status.success() => None,
                Ok(Some(_)) => Some(told(said)),
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = trouble {
                eprintln!("{service}: xl destroy, of what was left: {why}");
            }
            let _ = std::fs::remove_file(said);
            false
        });
    }

    /// Whether the domain that is destroyed has neither name nor devices any more: xl has let go of those first, and takes a device from
    /// its domain in the hypervisor before it says so in xenstore.
    fn is_released(&self, store: &mut impl Store) -> Result<bool> {
        let Some(domain) = self.destroyed else { return Ok(false) };
        let is_known = store.read(&format!("/local/domain/{domain}"))?.is_some();
        Ok(!is_known && pci::devices_of(domain, store)?.is_empty())
    }

    /// How it goes with what it was started for.
    pub fn errand(&mut self, store: &mut impl Store) -> Result<Errand> {
        self.reap();
        let done = match &mut self.process {
            Process::Rests => return Ok(Errand::None),
            Process::Inherited(process) if is_earlier_ones(*process, &self.config, &self.devices) => {
                return Ok(Errand::Runs)
            }
            Process::Inherited(_) => Ok(()),
            Process::Ours(child, said) => match child.try_wait() {
                Ok(None) => return Ok(if self.is_released(store)? { Errand::ClearsAway } else { Errand::Runs }),
                Ok(Some(status)) if status.success() => Ok(()),
                Ok(Some(_)) => Err(told(said)),
                Err(error) => Err(error.to_string()),
            },
        };
        self.process = Process::Rests;
        Ok(Errand::Done(done))
    }
}

/// What a process of the toolstack's has written into that file, in a line.
fn told(said: &Path) -> String {
    std::fs::read_to_string(said).unwrap_or_default().trim().replace('\n', "; ")
}

/// A process that an earlier daemon has started and that is at work still.
fn inherited(config: &Path, devices: &[Claim]) -> Result<Option<u32>> {
    let all = std::fs::read_dir("/proc").context("no list of processes")?;
    let mut processes = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(processes.find(|process| is_earlier_ones(*process, config, devices)))
}

/// Whether this process was started to create a domain of this configuration, or to hand it one of its devices, and has not ended. One
/// of the operator's that creates it has other arguments, and may stay for as long as the domain does.
fn is_earlier_ones(process: u32, config: &Path, devices: &[Claim]) -> bool {
    let Ok(arguments) = std::fs::read(format!("/proc/{process}/cmdline")) else { return false };
    let arguments: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
    let Some((program, rest)) = arguments.split_first() else { return false };
    let is_xl = *program == b"xl" || program.ends_with(b"/xl");
    let create: Vec<&[u8]> = CREATE.iter().map(|word| word.as_bytes()).chain([config.as_os_str().as_bytes()]).collect();
    let attaches = matches!(rest, [what, _, device, ..]
        if *what == ATTACH.as_bytes() && devices.iter().any(|claim| claim.said.as_bytes() == *device));
    is_xl && (rest.starts_with(&create) || attaches)
}
