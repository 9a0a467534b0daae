//! The machine's looks and acts: xenstore, the hypervisor, the toolstack, PCI.

use super::health::{Beat, Queue};
use super::look::{Act, Domain, Errand, Look, Way};
use super::pci;
use crate::domain::RUN;
use crate::hypercall::{Hypervisor, Switches};
use crate::store::{Client, Event, Store};
use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use xen_abi::channel_op as op;
use xen_abi::domctl::{DOMINF_DYING, DOMINF_PAUSED, DOMINF_SHUTDOWN, DOMINF_SHUTDOWN_SHIFT, INVALID_MAX_VCPU_ID};

/// Places of xenstore's that tell when domains come and go.
const COMES: &str = "@introduceDomain";
const GOES: &str = "@releaseDomain";

/// What xl is told before the configuration. Without `-e` a process of its would stay to do what `on_crash` says, and would be in the way.
const CREATE: &[&str] = &["create", "-q", "-e"];
/// So often is looked whether the devices are there.
const DEVICES: Duration = Duration::from_secs(1);

/// Everything outside.
pub struct Shell {
    service: String,
    /// The driver domain's name, its configuration, and its devices.
    driver: String,
    config: PathBuf,
    devices: Vec<String>,
    store: Client,
    hypervisor: Hypervisor,
    toolstack: Toolstack,
    /// The domain of the driver domain's name, as of the last time that domains came or went.
    domain: Option<u16>,
    is_served: bool,
    /// The service's switch, if it is known.
    switch: Option<u32>,
    /// All devices are in the machine, as of so much time since its start.
    has_devices: (bool, Duration),
}

/// A process of the toolstack's.
enum Toolstack {
    Rests,
    /// Started by this daemon; what it says goes to that file.
    Ours(Child, PathBuf),
    /// Started by an earlier one.
    Inherited(u32),
}

impl Shell {
    /// Connects to everything.
    pub fn open(service: &str, driver: &str, config: &Path, devices: Vec<String>) -> Result<Self> {
        let mut shell = Self {
            service: service.into(),
            driver: driver.into(),
            config: config.into(),
            devices,
            store: Client::open()?,
            hypervisor: Hypervisor::open()?,
            toolstack: inherited(config)?.map_or(Toolstack::Rests, Toolstack::Inherited),
            domain: None,
            is_served: false,
            switch: None,
            has_devices: (false, Duration::ZERO),
        };
        for place in [COMES, GOES] {
            shell.store.watch(place, "domains")?;
        }
        shell.find()?;
        Ok(shell)
    }

    /// Time since the machine's start.
    pub fn now() -> Duration {
        Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
    }

    /// Waits until domains come or go, no longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<()> {
        let mut events: Vec<Event> = self.store.next_event(Some(limit))?.into_iter().collect();
        while let Some(event) = self.store.next_event(Some(Duration::ZERO))? {
            events.push(event);
        }
        if !events.is_empty() || self.domain.is_none() {
            self.find()?;
        }
        Ok(())
    }

    /// Which domains have the names of the driver domain and of the service.
    fn find(&mut self) -> Result<()> {
        (self.domain, self.is_served) = (None, false);
        self.switch = None;
        for id in self.store.list("/local/domain")? {
            let Some(name) = self.store.read(&format!("/local/domain/{id}/name"))? else { continue };
            if name == self.driver {
                self.domain = id.parse().ok();
            }
            self.is_served |= name == self.service;
        }
        Ok(())
    }

    /// A look at everything.
    pub fn look(&mut self) -> Result<Look> {
        let errand = self.errand();
        if !matches!(errand, Errand::None) {
            self.find()?;
        }
        if let (Errand::Runs, Some(domain)) = (&errand, self.domain) {
            pci::answer_for(domain, &mut self.store)?;
        }
        let domain = match self.domain {
            Some(domain) => self.look_at(domain)?,
            None => None,
        };
        let way = match &domain {
            Some(domain) => self.way_of(domain.id)?,
            None => None,
        };
        let now = Self::now();
        if !self.has_devices.0 || now >= self.has_devices.1 + DEVICES {
            self.has_devices = (self.devices.iter().all(|device| pci::is_there(device)), now);
        }
        Ok(Look { now, domain, way, has_devices: self.has_devices.0, is_served: self.is_served, errand })
    }

    fn look_at(&mut self, id: u16) -> Result<Option<Domain>> {
        let info = match self.hypervisor.domain(id) {
            Ok(info) => info,
            // The toolstack has not cleared its directory away yet.
            Err(Errno::SRCH) => return Ok(Some(Domain { id, is_dying: true, ..Domain::default() })),
            Err(error) => return Err(error).context("what a domain is"),
        };
        let mut beats = Vec::new();
        let (mut was_ended, mut ended_for) = (false, Duration::ZERO);
        let vcpus = if info.max_vcpu_id == INVALID_MAX_VCPU_ID { 0..=0 } else { 0..=info.max_vcpu_id };
        for vcpu in vcpus {
            let Ok(beat) = self.hypervisor.beat(id, vcpu) else { continue };
            was_ended |= beat.flags & op::BEAT_CRASHED != 0;
            ended_for = Duration::from_nanos(beat.ended_ns);
            let waits = op::BEAT_PENDING | op::BEAT_MASKED;
            beats.push(Beat {
                vcpu,
                upcalls: beat.upcalls,
                run: Duration::from_nanos(beat.run_ns),
                is_waiting: beat.flags & waits == waits,
            });
        }
        let code = info.flags >> DOMINF_SHUTDOWN_SHIFT & 0xff;
        Ok(Some(Domain {
            id,
            end: (info.flags & DOMINF_SHUTDOWN != 0).then_some((code, was_ended)),
            ended_for,
            is_dying: info.flags & DOMINF_DYING != 0,
            is_paused: info.flags & DOMINF_PAUSED != 0,
            beats,
        }))
    }

    /// The service's way out, if it is by this domain.
    fn way_of(&mut self, domain: u16) -> Result<Option<Way>> {
        if self.switch.is_none() {
            let path = format!("/tool/tandem/{}/switch", self.service);
            self.switch = self.store.read(&path)?.and_then(|name| name.parse().ok());
        }
        let way = match self.switch.map(|switch| self.hypervisor.way_out(switch)) {
            Some(Ok(way)) if way.kind != op::WAY_OUT_NONE && way.domain == domain => way,
            None | Some(Ok(_)) => return Ok(None),
            Some(Err(Errno::NOENT)) => {
                self.switch = None;
                return Ok(None);
            }
            Some(Err(error)) => return Err(error).context("a switch's way out"),
        };
        let is_card = way.kind == op::WAY_OUT_CARD;
        let mut is_stalled = || self.hypervisor.status(way.vif).is_ok_and(|vif| vif.state & op::STATE_STALLED != 0);
        let is_waiting = if is_card { way.waiting > 0 } else { is_stalled() };
        Ok(Some(Way { is_card, queue: Queue { is_waiting, taken: way.out_packets }, came: way.in_packets }))
    }

    /// Does it, or begins to.
    pub fn act(&mut self, act: Act) -> Result<()> {
        match act {
            Act::Quarantine(domain) => {
                // First, or its driver might let them again.
                match self.hypervisor.pause(domain) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(error).context("a domain cannot be paused"),
                }
                for device in pci::devices_of(domain, &mut self.store)? {
                    if let Err(error) = pci::keep_from_memory(&device) {
                        eprintln!("{}: {device}: {error:#}", self.service);
                    }
                }
                Ok(())
            }
            Act::Destroy(domain) => self.start(&["destroy", &domain.to_string()]),
            Act::Create => {
                let config = self.config.to_string_lossy().into_owned();
                self.start(&[CREATE, &[&config]].concat())
            }
        }
    }

    fn start(&mut self, arguments: &[&str]) -> Result<()> {
        let said = Path::new(RUN).join(format!("{}.xl", self.service));
        let file = File::create(&said).with_context(|| format!("cannot make {}", said.display()))?;
        let mut xl = Command::new("xl");
        xl.args(arguments).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        self.toolstack = Toolstack::Ours(xl.spawn().context("cannot start xl")?, said);
        Ok(())
    }

    fn errand(&mut self) -> Errand {
        let done = match &mut self.toolstack {
            Toolstack::Rests => return Errand::None,
            Toolstack::Inherited(process) if creates(*process, &self.config) => return Errand::Runs,
            Toolstack::Inherited(_) => Ok(()),
            Toolstack::Ours(child, said) => match child.try_wait() {
                Ok(None) => return Errand::Runs,
                Ok(Some(status)) if status.success() => Ok(()),
                Ok(Some(_)) => {
                    let said = std::fs::read_to_string(said).unwrap_or_default();
                    Err(said.trim().replace('\n', "; "))
                }
                Err(error) => Err(error.to_string()),
            },
        };
        self.toolstack = Toolstack::Rests;
        Errand::Done(done)
    }
}

/// A process that an earlier daemon has started to create the domain of this configuration.
fn inherited(config: &Path) -> Result<Option<u32>> {
    let all = std::fs::read_dir("/proc").context("no list of processes")?;
    let mut processes = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    Ok(processes.find(|process| creates(*process, config)))
}

/// Whether this process was started to create the domain of this configuration, and has not ended. One of the operator's has other
/// arguments, and may stay for as long as the domain does.
fn creates(process: u32, config: &Path) -> bool {
    let Ok(arguments) = std::fs::read(format!("/proc/{process}/cmdline")) else { return false };
    let mut arguments = arguments.split(|byte| *byte == 0);
    let is_xl = arguments.next().is_some_and(|program| program == b"xl" || program.ends_with(b"/xl"));
    let wanted = CREATE.iter().map(|word| word.as_bytes()).chain([config.as_os_str().as_bytes()]);
    is_xl && wanted.into_iter().all(|word| arguments.next() == Some(word))
}
