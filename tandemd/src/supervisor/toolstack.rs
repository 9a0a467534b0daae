//! Processes of the toolstack's: one at a time does what the machine asks for the driver domain, and one creates what
//! waits or is tried. Beside them others destroy such ones, and clear away what is left of domains.
//!
//! None of them is waited for for ever: one whose domain is gone has done what it was started for, and one that takes
//! too long is ended. Who waits for xl's lock, which anybody may have for long, has not begun yet ([`lock`]).

pub mod children;
mod lock;
mod process;

use self::lock::Clock;
use self::process::Running;
pub use self::process::LONGEST;
use super::look::Errand;
use super::pci;
use super::settings::{self, Claim};
use crate::domain::RUN;
use crate::pulses;
use crate::store::Store;
use anyhow::{Context, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What xl is told before the configuration. Without `-e` a process of its would stay to do what `on_crash` says, and
/// would be in the way.
pub const CREATE: &[&str] = &["create", "-q", "-e"];
/// To hand over a device.
pub const ATTACH: &str = "pci-attach";

/// So often is looked whether one has ended that is waited for.
const AGAIN: Duration = Duration::from_millis(100);

/// The toolstack, as it is asked for a driver domain.
pub struct Toolstack {
    service: String,
    earlier: Earlier,
    process: Process,
    /// The one that creates a domain without devices, beside the driver domain.
    side: Process,
    /// Processes that destroy what is left of domains whose places others have, or those that wait for such a place.
    clearing: Vec<Clearing>,
    nr_cleared: u32,
    /// Who is destroyed, and answers nobody any more.
    destroyed: Option<u16>,
}

/// A process that is waited for, by who has nothing else to do, and is ended after `limit`. What it has said, if it was
/// in vain.
pub fn run_to_its_end(what: &str, arguments: &[&str], limit: Duration) -> Result<Result<(), String>> {
    let said = Path::new(RUN).join(format!("{what}.{}.alone.xl", arguments.first().unwrap_or(&"")));
    let mut process = Running::start(what, arguments, &said)?.within(limit);
    pulses::aside(|| loop {
        if let Some(result) = process.end() {
            process.forget_said();
            return Ok(result);
        }
        std::thread::sleep(AGAIN);
    })
}

/// A process that clears a domain away.
struct Clearing {
    domain: u16,
    /// It has not had the place yet.
    is_dismissed: bool,
    process: Running,
}

/// A process of the toolstack's.
enum Process {
    Rests,
    /// Started by this daemon.
    Ours(Running),
    /// Started by an earlier one, and found then.
    Inherited(u32, Clock),
    /// It could not be started, and why.
    InVain(String),
}

impl Toolstack {
    /// It may be at work for an earlier daemon, which may have begun to destroy the domain `going`.
    pub fn open(service: &str, config: &Path, devices: &[Claim], going: Option<u16>) -> Result<Self> {
        let earlier = Earlier { config: config.into(), devices: devices.into(), going };
        let found = |process: Option<u32>| {
            process.map_or(Process::Rests, |process| Process::Inherited(process, Clock::new(Instant::now())))
        };
        let process = found(earlier.find(Earlier::is_one)?);
        let side = found(earlier.find(Earlier::is_beside)?);
        let destroyed = going.filter(|_| matches!(process, Process::Inherited(..)));
        let (service, clearing) = (service.into(), Vec::new());
        Ok(Self { service, earlier, process, side, clearing, nr_cleared: 0, destroyed })
    }

    /// Begins to destroy a domain that answers nobody any more.
    pub fn destroy(&mut self, domain: u16) {
        self.start(&["destroy", &domain.to_string()]);
        self.destroyed = Some(domain).filter(|_| matches!(self.process, Process::Ours(_)));
    }

    /// These are the driver domain's devices from now on.
    pub fn set_devices(&mut self, devices: &[Claim]) {
        self.earlier.devices = devices.into();
    }

    /// Whom it destroys.
    pub fn destroys(&self) -> Option<u16> {
        self.destroyed
    }

    /// What the toolstack waits for that others have, for people.
    pub fn waits_for(&self) -> Option<String> {
        self.process.waits_for().or_else(|| self.side.waits_for())
    }

    /// Starts it with these arguments. One that cannot be started has ended in vain, as others do.
    pub fn start(&mut self, arguments: &[&str]) {
        let said = Path::new(RUN).join(format!("{}.xl", self.service));
        let started = Running::start(&self.service, arguments, &said);
        self.process = started.map_or_else(|error| Process::InVain(format!("{error:#}")), Process::Ours);
        self.destroyed = None;
    }

    /// Starts one with these arguments to create a domain beside the driver domain.
    pub fn start_beside(&mut self, arguments: &[&str]) {
        let said = Path::new(RUN).join(format!("{}.beside.xl", self.service));
        let started = Running::start(&self.service, arguments, &said);
        self.side = started.map_or_else(|error| Process::InVain(format!("{error:#}")), Process::Ours);
    }

    /// The same of this configuration beside one that is there, unless both would write to a disk. The configuration
    /// may say something else than when the daemon has read it.
    pub fn create_beside(&mut self, config: &Path, arguments: &[&str]) {
        match settings::may_run_beside(config) {
            Ok(()) => self.start_beside(arguments),
            Err(error) => self.side = Process::InVain(format!("{error:#}")),
        }
    }

    /// The process that destroys a domain goes on by itself; others may begin.
    pub fn set_aside(&mut self) {
        let Some(domain) = self.destroyed.take() else { return };
        if let Process::Ours(mut process) = std::mem::replace(&mut self.process, Process::Rests) {
            process.say_elsewhere(self.next_said());
            self.clearing.push(Clearing { domain, is_dismissed: false, process });
        }
    }

    /// Where the next one that clears away says something.
    fn next_said(&mut self) -> PathBuf {
        self.nr_cleared = self.nr_cleared.wrapping_add(1);
        Path::new(RUN).join(format!("{}.{}.xl", self.service, self.nr_cleared))
    }

    /// Begins to clear away what is left of a domain that has neither name nor devices. Others may begin, too.
    pub fn clear_away(&mut self, domain: u16) {
        self.destroy_beside(domain, false);
    }

    /// Begins to destroy one that waits, or was tried. Others may begin, too.
    pub fn dismiss(&mut self, domain: u16) {
        self.destroy_beside(domain, true);
    }

    fn destroy_beside(&mut self, domain: u16, is_dismissed: bool) {
        let said = self.next_said();
        match Running::start(&self.service, &["destroy", &domain.to_string()], &said) {
            Ok(process) => self.clearing.push(Clearing { domain, is_dismissed, process }),
            // It is tried again.
            Err(error) => eprintln!("{}: domain {domain} stays: {error:#}", self.service),
        }
    }

    /// Whether such a process is at work for this domain.
    pub fn clears(&self, domain: u16) -> bool {
        self.clearing.iter().any(|clearing| clearing.domain == domain)
    }

    /// The domains that are cleared away and of which there is something left, by what `is_left` says of each.
    pub fn clearing(&self, mut is_left: impl FnMut(u16) -> bool) -> Vec<u16> {
        let remains = self.clearing.iter().filter(|clearing| !clearing.is_dismissed);
        remains.map(|clearing| clearing.domain).filter(|domain| is_left(*domain)).collect()
    }

    /// Those who waited, or were tried, and are destroyed.
    pub fn dismissing(&self) -> Vec<u16> {
        self.clearing.iter().filter(|clearing| clearing.is_dismissed).map(|clearing| clearing.domain).collect()
    }

    /// Those of them that have ended.
    fn reap(&mut self) {
        let service = &self.service;
        self.clearing.retain_mut(|Clearing { process, domain, .. }| {
            let Some(result) = process.end() else { return true };
            if let Err(why) = result {
                eprintln!("{service}: xl destroy {domain}, beside: {why}");
            }
            process.forget_said();
            false
        });
    }

    /// Whether the domain that is destroyed has neither name nor devices any more: xl has let go of those first, and
    /// takes a device from its domain in the hypervisor before it says so in xenstore.
    fn is_released(&self, store: &mut impl Store) -> Result<bool> {
        let Some(domain) = self.destroyed else { return Ok(false) };
        let is_known = store.read(&format!("/local/domain/{domain}"))?.is_some();
        Ok(!is_known && pci::devices_of(domain, store)?.is_empty())
    }

    /// How it goes with what it was started for. `is_left`: whether there is something left of a domain.
    pub fn errand(&mut self, store: &mut impl Store, mut is_left: impl FnMut(u16) -> bool) -> Result<Errand> {
        self.reap();
        let done = match self.process.end(&self.earlier, &self.service) {
            None => return Ok(Errand::None),
            Some(Some(result)) => result,
            Some(None) if !matches!(self.process, Process::Ours(_)) || !self.is_released(store)? => {
                return Ok(Errand::Runs)
            }
            Some(None) if self.destroyed.is_some_and(&mut is_left) => return Ok(Errand::ClearsAway),
            Some(None) => {
                self.set_aside();
                Ok(())
            }
        };
        self.process = Process::Rests;
        Ok(Errand::Done(done))
    }

    /// How it goes with what is created beside.
    pub fn side(&mut self) -> Errand {
        match self.side.end(&self.earlier, &self.service) {
            None => Errand::None,
            Some(None) => Errand::Runs,
            Some(Some(result)) => {
                self.side = Process::Rests;
                Errand::Done(result)
            }
        }
    }
}

impl Process {
    /// `None`: there is none. Else how it has ended, if it has.
    fn end(&mut self, earlier: &Earlier, service: &str) -> Option<Option<Result<(), String>>> {
        Some(match self {
            Self::Rests => return None,
            Self::Inherited(process, clock) if earlier.has(*process) => {
                let past = clock.past(*process, |line| eprintln!("{service}: xl of an earlier tandemd's: {line}"));
                let why = || format!("process {process}, of an earlier tandemd's, does not end, and is not waited for");
                (past >= LONGEST).then(|| Err(why()))
            }
            Self::Inherited(..) => Some(Ok(())),
            Self::InVain(why) => Some(Err(std::mem::take(why))),
            Self::Ours(process) => process.end(),
        })
    }

    /// What it waits for that others have, for people.
    fn waits_for(&self) -> Option<String> {
        match self {
            Self::Ours(process) => process.waits_for_others(),
            Self::Inherited(_, clock) => clock.waits_for(),
            Self::Rests | Self::InVain(_) => None,
        }
    }
}

/// By what processes of an earlier daemon's are known: the driver domain's configuration, its devices, and the instance
/// that had to go.
struct Earlier {
    config: PathBuf,
    devices: Vec<Claim>,
    going: Option<u16>,
}

impl Earlier {
    /// A process that an earlier daemon has started and that is at work still, if it has such arguments.
    fn find(&self, is_meant: fn(&Self, &[u8]) -> bool) -> Result<Option<u32>> {
        let all = std::fs::read_dir("/proc").context("no list of processes")?;
        let mut processes = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(processes.find(|process| arguments_of(*process).is_some_and(|arguments| is_meant(self, &arguments))))
    }

    /// Whether this process has not ended, and is one of those.
    fn has(&self, process: u32) -> bool {
        arguments_of(process).is_some_and(|arguments| self.is_one(&arguments) || self.is_beside(&arguments))
    }

    /// What comes after `xl create` and this configuration, if these are such arguments.
    fn created<'a>(&'a self, arguments: &'a [u8]) -> Option<Vec<&'a [u8]>> {
        let arguments: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
        let (program, rest) = arguments.split_first()?;
        let words = CREATE.iter().map(|word| word.as_bytes());
        let create: Vec<&[u8]> = words.chain([self.config.as_os_str().as_bytes()]).collect();
        Some(rest.strip_prefix(&create[..])?.to_vec()).filter(|_| is_xl(program))
    }

    /// Whether they create one without devices and of another name beside.
    fn is_beside(&self, arguments: &[u8]) -> bool {
        self.created(arguments).is_some_and(|lines| lines.iter().any(|line| line.starts_with(b"name=")))
    }

    /// Whether a process of these arguments was started to create a domain of this configuration, to hand it one of its
    /// devices, or to destroy the instance that has to go. One of the operator's that creates it has other arguments,
    /// and may stay for as long as the domain does.
    fn is_one(&self, arguments: &[u8]) -> bool {
        let creates = self.created(arguments).is_some() && !self.is_beside(arguments);
        let arguments: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
        let Some((program, rest)) = arguments.split_first() else { return false };
        let attaches = matches!(rest, [what, _, device, ..]
            if *what == ATTACH.as_bytes() && self.devices.iter().any(|claim| claim.said.as_bytes() == *device));
        let destroys = matches!(rest, [b"destroy", domain, ..]
            if self.going.is_some_and(|going| going.to_string().as_bytes() == *domain));
        is_xl(program) && (creates || attaches || destroys)
    }
}

fn is_xl(program: &[u8]) -> bool {
    program == b"xl" || program.ends_with(b"/xl")
}

fn arguments_of(process: u32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{process}/cmdline")).ok()
}

#[cfg(test)]
mod tests;
