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
    earlier: Earlier,
    process: Process,
    /// Processes that destroy what is left of domains whose places others have.
    clearing: Vec<Clearing>,
    nr_cleared: u32,
    /// Who is destroyed, and answers nobody any more.
    destroyed: Option<u16>,
}

/// A process that clears a domain away, if that is known to be one that is left of it; what it says goes to that file.
struct Clearing {
    domain: Option<u16>,
    child: Child,
    said: PathBuf,
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
    /// It may be at work for an earlier daemon, which may have begun to destroy the domain `going`.
    pub fn open(service: &str, config: &Path, devices: &[Claim], going: Option<u16>) -> Result<Self> {
        let earlier = Earlier { config: config.into(), devices: devices.into(), going };
        let process = earlier.find()?.map_or(Process::Rests, Process::Inherited);
        let destroyed = going.filter(|_| matches!(process, Process::Inherited(_)));
        Ok(Self { service: service.into(), earlier, process, clearing: Vec::new(), nr_cleared: 0, destroyed })
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
        self.process = Process::Ours(spawn(arguments, &said)?, said);
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
        self.clearing.push(Clearing { domain: None, child, said: other.clone() });
        self.destroyed = None;
        renamed.with_context(|| format!("cannot rename {}", said.display()))
    }

    /// Begins to clear away what is left of a domain that has neither name nor devices. Others may begin, too.
    pub fn clear_away(&mut self, domain: u16) -> Result<()> {
        self.nr_cleared = self.nr_cleared.wrapping_add(1);
        let said = Path::new(RUN).join(format!("{}.{}.xl", self.service, self.nr_cleared));
        let child = spawn(&["destroy", &domain.to_string()], &said)?;
        self.clearing.push(Clearing { domain: Some(domain), child, said });
        Ok(())
    }

    /// Whether such processes are at work: for this domain, or at all.
    pub fn clears(&self, domain: Option<u16>) -> bool {
        self.clearing.iter().any(|clearing| domain.is_none() || clearing.domain == domain)
    }

    /// Those of them that have ended.
    fn reap(&mut self) {
        let service = &self.service;
        self.clearing.retain_mut(|Clearing { child, said, .. }| {
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
            Process::Inherited(process) if self.earlier.has(*process) => return Ok(Errand::Runs),
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

/// Starts a process of the toolstack's, which writes into that file what it says.
fn spawn(arguments: &[&str], said: &Path) -> Result<Child> {
    let file = File::create(said).with_context(|| format!("cannot make {}", said.display()))?;
    let mut xl = Command::new("xl");
    xl.args(arguments).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    xl.spawn().context("cannot start xl")
}

/// What a process of the toolstack's has written into that file, in a line.
fn told(said: &Path) -> String {
    std::fs::read_to_string(said).unwrap_or_default().trim().replace('\n', "; ")
}

/// By what processes of an earlier daemon's are known: the driver domain's configuration, its devices, and the instance that had to go.
struct Earlier {
    config: PathBuf,
    devices: Vec<Claim>,
    going: Option<u16>,
}

impl Earlier {
    /// A process that an earlier daemon has started and that is at work still.
    fn find(&self) -> Result<Option<u32>> {
        let all = std::fs::read_dir("/proc").context("no list of processes")?;
        let mut processes = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(processes.find(|process| self.has(*process)))
    }

    /// Whether this process has not ended, and is one of those.
    fn has(&self, process: u32) -> bool {
        std::fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|arguments| self.is_one(&arguments))
    }

    /// Whether a process of these arguments was started to create a domain of this configuration, to hand it one of its devices, or to
    /// destroy the instance that has to go. One of the operator's that creates it has other arguments, and may stay for as long as the
    /// domain does.
    fn is_one(&self, arguments: &[u8]) -> bool {
        let arguments: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
        let Some((program, rest)) = arguments.split_first() else { return false };
        let is_xl = *program == b"xl" || program.ends_with(b"/xl");
        let create: Vec<&[u8]> =
            CREATE.iter().map(|word| word.as_bytes()).chain([self.config.as_os_str().as_bytes()]).collect();
        let attaches = matches!(rest, [what, _, device, ..]
            if *what == ATTACH.as_bytes() && self.devices.iter().any(|claim| claim.said.as_bytes() == *device));
        let destroys = matches!(rest, [b"destroy", domain, ..]
            if self.going.is_some_and(|going| going.to_string().as_bytes() == *domain));
        is_xl && (rest.starts_with(&create) || attaches || destroys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_daemons_processes_are_known_by_their_arguments() {
        let claim = Claim { name: "0000:00:03.0".into(), said: "00:03.0,permissive=1".into(), options: None };
        let earlier = Earlier { config: "/etc/xen/dd.cfg".into(), devices: vec![claim], going: Some(7) };
        for own in [
            "xl create -q -e /etc/xen/dd.cfg",
            "/usr/sbin/xl create -q -e /etc/xen/dd.cfg name=\"dd-standby\"",
            "xl pci-attach 8 00:03.0,permissive=1",
            "xl destroy 7",
        ] {
            assert!(earlier.is_one(own.replace(' ', "\0").as_bytes()), "{own}");
        }
        for other in ["xl create /etc/xen/dd.cfg", "xl destroy 8", "xl pci-attach 8 00:04.0", "vi xl destroy 7", ""] {
            assert!(!earlier.is_one(other.replace(' ', "\0").as_bytes()), "{other}");
        }
    }
}
