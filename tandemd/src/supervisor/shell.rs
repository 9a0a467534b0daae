//! The machine's looks and acts: xenstore, the hypervisor, the toolstack, PCI.

use super::answered::{Answered, Heard};
use super::assign::{Assigner, By};
use super::departing::Departing;
use super::files::Looker;
use super::look::{Act, Domain, Errand, Look};
use super::passthrough::{self, Sysfs};
use super::pulse::Pulse;
use super::settings::{Answers, Claim, Reset, Settings};
use super::toolstack::{Toolstack, ATTACH, CREATE};
use super::{candidate_of, ours, pci, standby, Record, BUSY};
use crate::config::{Config, Kind};
use crate::device::Device;
use crate::hypercall::{is_missed, Hypervisor, News};
use crate::store::{Client, Kept, Store};
use anyhow::{Context, Result};
use control::Image;
use rustix::io::Errno;
use rustix::time::{clock_gettime, ClockId};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;
use xen_abi::channel_op::{self as op, ChannelDiskStatus};
use xen_abi::sched as reason;

mod behind;
mod beside;
pub mod choosing;
mod hands;
mod inside;
pub mod missing;
mod names;
mod others;
mod rid;
mod ways;

use behind::Behind;
use beside::{Beside, Does};
use choosing::Chooser;
use missing::Missing;
use names::NAMES;
use others::Other;

/// Places of xenstore's that tell when domains come and go.
const COMES: &str = "@introduceDomain";
const GOES: &str = "@releaseDomain";

/// Pages that are needed beside a domain's own, whatever it is: what the toolstack's processes in domain 0 take is not
/// among them.
const PAGES_BESIDE: u64 = 4096;
/// So long a domain is given to answer the PCI back end: a few messages.
const ANSWERS: Duration = Duration::from_secs(5);
/// So long its kernel may ask for functions: some 300 questions, each of which waits twice for a processor.
const ASKS: Duration = Duration::from_secs(60);
/// A domain that runs and has lost its devices answers the PCI back end by itself for so long.
const ANSWERS_ITSELF: Duration = Duration::from_millis(100);
/// So long it is looked at often, since somebody may be destroying it.
const GOES_SOON: Duration = Duration::from_secs(15);
/// So often is looked whether the devices are there.
const DEVICES: Duration = Duration::from_secs(1);

/// Everything outside.
pub struct Shell {
    service: String,
    kind: Kind,
    /// The driver domain's name, its configuration, and its devices.
    driver: String,
    config: PathBuf,
    devices: Vec<Claim>,
    /// Who chooses those, where its section does not name them all.
    chooser: Option<Chooser>,
    store: Kept<Client>,
    /// Domains whose names are followed.
    named: BTreeSet<u16>,
    /// Where else names of domains are, as far as that was asked.
    vms: BTreeMap<u16, String>,
    /// Those of them that were made here, or had the place, as far as that was asked; and others that are called so.
    ours: BTreeSet<u16>,
    others: BTreeSet<u16>,
    hypervisor: Hypervisor,
    /// The hypervisor tells when the driver domain ends or is wedged, which it is after so many ms.
    news: News,
    wedged_ms: u32,
    /// Instances are noted, and rolled back.
    has_snapshots: bool,
    /// What is noted is compressed.
    compresses: bool,
    /// The links of its interfaces are kept.
    keep_link: bool,
    pci_answers: Answers,
    /// Who resets the devices.
    reset: Reset,
    /// That one fails when a device of its is stopped.
    dma_faults: bool,
    /// Of which domain the hypervisor tells, and whether of its devices.
    watched: Option<(u16, u16)>,
    /// Who waits, and the hypervisor knows what to tell of it when it is of use.
    expected: Option<u16>,
    /// The one that was seen to be of use.
    used: Option<u16>,
    toolstack: Toolstack,
    /// The one that runs without the devices that somebody has taken from it, since then.
    bereft: Option<(u16, Duration)>,
    /// The domain of the driver domain's name, as of the last time that domains came or went.
    domain: Option<u16>,
    /// The devices that it has, those too that are not in the machine any more.
    held: Option<(u16, Vec<String>)>,
    /// Looks for files that the next one would need.
    files: Looker,
    /// The one that was seen to have all devices.
    whole: Option<u16>,
    /// The one whose devices were seen to be turned on.
    probed: Option<u16>,
    /// The one that has said that its link is up.
    linked: Option<u16>,
    /// The one that has panicked, and whether its console says that it was out of memory.
    died: Option<(u16, bool)>,
    /// Whether it is asked how much memory it has; what it has said, and when.
    asks_for_memory: bool,
    available: Option<(u16, Option<u64>, Duration)>,
    /// Its twind is asked, and about this interface of its own: the hypervisor's name of it, and its number.
    pulse: Option<Pulse>,
    vif: (u32, u32),
    /// The one that waits to take its place.
    standby: Option<u16>,
    /// The one of another image that is tried.
    candidate: Option<u16>,
    /// Those that know the PCI back end without having a device, and perhaps have gone; since when.
    introduced: BTreeMap<u16, Duration>,
    /// The one to which all devices are announced.
    announced: Option<u16>,
    /// Why the one that was to take the place last could not, until that is told.
    not_promoted: Option<String>,
    /// The one that was quarantined last, and the devices that it had then.
    quarantined: Option<(u16, Vec<String>)>,
    /// What is left of earlier ones.
    remains: Vec<u16>,
    sysfs: Sysfs,
    /// The service's own domain.
    served: Option<u16>,
    /// Services of interfaces whose driver domain this is, and their own domains.
    net_services: BTreeSet<String>,
    nets: Vec<u16>,
    /// Its other services, whose driver domain it is, too.
    other_services: Vec<Other>,
    /// Other services whose guest it is.
    behind: Vec<Behind>,
    /// The service's switch, if it is known.
    switch: Option<u32>,
    /// How many requests for the service's disks it has answered.
    answered: Answered,
    /// Which disks of all its services it has answered something for.
    heard: Heard,
    /// Devices that were missed, as was said.
    missing: Missing,
    /// So many pages the instance may have that was seen last; 0: none was.
    max_pages: u64,
    /// All devices are in the machine, as of so much time since its start.
    has_devices: (bool, Duration),
    /// Takes them from domain 0, or waits for who does.
    assigner: Assigner,
    /// Who asks whether all domains are being ended.
    departing: Departing,
    beside: Option<Beside>,
}

impl Shell {
    /// Connects to everything. `going`: the instance that an earlier daemon found had to go.
    pub fn open(config: &Config, service: &str, driver: &str, settings: &Settings, going: Option<u16>) -> Result<Self> {
        let kind = config.service.get(service).map(|service| service.kind).unwrap_or_default();
        let net_services = config.nets_of(driver);
        let other_services = others::of(config, service, driver);
        let behind = behind::of(config, service, driver, &settings.back_ends()?);
        let mut store = Kept::new(Client::open()?, Hypervisor::census()?)?;
        let claims = settings.claims(driver)?;
        let chooser = Chooser::open(config, service, driver, settings, &mut store)?;
        let (config, devices) = (settings.config_of(driver), chooser.as_ref().map_or(claims, Chooser::claims));
        let toolstack = Toolstack::open(service, &config, &devices, going)?;
        let mut shell = Self {
            service: service.into(),
            kind,
            driver: driver.into(),
            config,
            devices,
            chooser,
            store,
            named: BTreeSet::new(),
            vms: BTreeMap::new(),
            ours: BTreeSet::new(),
            others: BTreeSet::new(),
            hypervisor: Hypervisor::open()?,
            news: News::open()?,
            wedged_ms: u32::try_from(settings.wedged_ms).unwrap_or(u32::MAX),
            dma_faults: settings.dma_faults,
            has_snapshots: settings.snapshot,
            compresses: settings.compress,
            keep_link: settings.keep_link,
            pci_answers: settings.pci_answers,
            reset: settings.reset,
            watched: None,
            expected: None,
            used: None,
            toolstack,
            bereft: None,
            domain: None,
            held: None,
            files: Looker::default(),
            whole: None,
            probed: None,
            linked: None,
            died: None,
            asks_for_memory: settings.least_free_kib > 0,
            available: None,
            pulse: Self::pulse(service, settings)?,
            vif: (0, 0),
            standby: None,
            candidate: None,
            introduced: BTreeMap::new(),
            announced: None,
            not_promoted: None,
            quarantined: None,
            remains: Vec::new(),
            sysfs: Sysfs::default(),
            served: None,
            net_services,
            nets: Vec::new(),
            other_services,
            behind,
            switch: None,
            answered: Answered::default(),
            heard: Heard::default(),
            missing: Missing::default(),
            max_pages: 0,
            has_devices: (false, Duration::ZERO),
            assigner: Assigner::new(service, if settings.assigns() { By::Tandemd } else { By::Operator }),
            departing: Departing::new(),
            beside: None,
        };
        for place in [COMES, GOES] {
            shell.store.watch(place, "domains")?;
        }
        if shell.reset != Reset::BackEnd {
            shell.devices.iter().try_for_each(|device| shell.sysfs.let_reset(&device.name))?;
            for device in &shell.devices {
                if let Err(error) = shell.sysfs.let_take_up(&device.name) {
                    eprintln!("{}: the PCI back end does not take it up: {error:#}", device.name);
                }
            }
        }
        // An earlier daemon may have introduced some that have gone since.
        let introduced = passthrough::introduced(&mut shell.store)?;
        shell.introduced = introduced.into_iter().map(|domain| (domain, Duration::ZERO)).collect();
        shell.find()?;
        shell.bring_notes();
        if !settings.snapshot {
            shell.forget_snapshots();
        }
        Ok(shell)
    }

    /// Time since the machine's start.
    pub fn now() -> Duration {
        Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
    }

    /// Waits until domains come or go, or the hypervisor has news, no longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<()> {
        let is_going = self.bereft.is_some_and(|(_, since)| Self::now().saturating_sub(since) < GOES_SOON);
        let limit = if is_going || self.beside.is_some() { limit.min(BUSY) } else { limit };
        self.store.wait(self.news.as_fd(), limit)?;
        if self.news.take() {
            // Of the domain that is known. What xenstore says is not lost.
            return Ok(());
        }
        let events = self.store.next_events(Some(Duration::ZERO))?;
        if events.iter().any(|event| event.token != NAMES) || self.domain.is_none() {
            self.find()?;
        } else if !events.is_empty() {
            self.sort_names()?;
        }
        Ok(())
    }

    /// A look at everything. `waits_for_all`: also at whether all domains are being ended. `image`: what the next
    /// instance is made of, beside its configuration.
    pub fn look(&mut self, waits_for_all: bool, image: &Image) -> Result<Look> {
        let hypervisor = &mut self.hypervisor;
        let errand = self.toolstack.errand(&mut self.store, |domain| hypervisor.has(domain))?;
        if self.beside.as_ref().is_some_and(Beside::is_over) {
            self.end_beside()?;
        }
        let (side, dismissing) = (self.toolstack.side(), self.toolstack.dismissing());
        if !matches!((&errand, &side), (Errand::None, Errand::None)) || !dismissing.is_empty() {
            self.find()?;
        }
        if let (Errand::Runs, Some(domain)) = (&errand, self.toolstack.destroys()) {
            pci::answer_for(domain, &mut self.store)?;
        }
        let mut domain = match self.domain {
            Some(domain) => self.look_at(domain)?,
            None => None,
        };
        self.hear_last_words(domain.as_mut())?;
        self.answer_for(domain.as_ref())?;
        let standby = match self.standby {
            Some(standby) => self.look_at(standby)?,
            None => None,
        };
        let candidate = match self.candidate {
            Some(candidate) => self.look_at(candidate)?,
            None => None,
        };
        let has_all = match &domain {
            Some(domain) => self.has_all(domain.id)?,
            None => false,
        };
        let all = if domain.is_some() { self.disks()? } else { Vec::new() };
        self.heard.look(&all);
        let way = match (&domain, self.kind) {
            (Some(domain), Kind::Net) => self.way_of(domain.id)?,
            (Some(domain), Kind::Disk) => self.way_to_disks(domain, &all)?,
            (None, _) => None,
        };
        let others = match &domain {
            Some(domain) => self.other_ways(domain.id, &all)?,
            None => Vec::new(),
        };
        let is_its = |disk: &&ChannelDiskStatus| domain.as_ref().is_some_and(|domain| domain.id == disk.back);
        let disks = all.iter().filter(is_its).map(device_of).collect();
        let disks_without = all.iter().filter(|disk| is_missed(disk)).map(device_of).collect();
        if let (Some(domain), Some(_)) = (&domain, &way) {
            self.used = Some(domain.id);
        }
        if let Some(domain) = &domain {
            self.watch(domain.id);
        }
        if let Some(standby) = &standby {
            self.expect(standby.id);
        }
        let is_meeting = match &domain {
            Some(domain) if !has_all => self.is_meeting(domain.id)?,
            _ => false,
        };
        let is_probed = match &domain {
            // Who has none does not begin with that.
            Some(domain) if has_all && !self.devices.is_empty() => self.is_probed(domain.id),
            _ => false,
        };
        let has_link = match &domain {
            Some(domain) => self.kind == Kind::Net && has_all && self.has_link(domain.id)?,
            None => false,
        };
        let available_kib = match &domain {
            Some(domain) if way.is_some() => self.available_kib(domain.id)?,
            _ => None,
        };
        let twind = self.hear_twind(domain.as_ref(), way.as_ref());
        let now = Self::now();
        if !self.has_devices.0 || now >= self.has_devices.1 + DEVICES {
            let is_idle = domain.is_none() && matches!(errand, Errand::None) && self.beside.is_none();
            let missing = self.miss(now, is_idle)?;
            self.has_devices = (missing.is_empty(), now);
            self.note_held(domain.as_ref().map(|d| d.id))?;
            let by = self.named_by();
            if let Some(said) = self.missing.look(missing, &by) {
                eprintln!("{}: {}: {said}", self.service, self.driver);
            }
        }
        let missing = self.files.look(&self.config, image, now);
        // While there is one, or one is at work, they may be with nobody for a moment.
        let is_settled = domain.is_some() || !matches!(errand, Errand::None) || self.beside.is_some();
        let has_lost = self.has_lost(domain.as_ref().map(|d| d.id));
        let has_devices = self.has_devices.0 && (is_settled || self.are_assigned(now)?);
        let is_served = self.served.is_some() && self.behind.iter().all(|service| service.domain.is_some());
        let is_cut_off = domain.is_some() && self.is_cut_off()?;
        let was_shut_down = domain.as_ref().filter(|d| matches!(d.end, Some((reason::SHUTDOWN_POWEROFF, _))));
        let asked = was_shut_down.map(|d| d.id);
        let are_all_ended = (asked.is_some() || waits_for_all).then(|| self.departing.are_all_ended(asked, now));
        let remains: Vec<u16> = self.remains.iter().copied().filter(|domain| !self.toolstack.clears(*domain)).collect();
        let clearing = self.toolstack.clearing(|domain| self.hypervisor.has(domain));
        let known = [&domain, &standby, &candidate].into_iter().flatten().filter(|d| !d.is_dying).map(|d| d.id);
        let known: Vec<u16> = known.chain(remains.iter().copied()).collect();
        let snapshots = self.snapshots(known);
        let has_room = self.has_room(domain.as_ref());
        Ok(Look {
            now,
            domain,
            has_all,
            is_meeting,
            is_probed,
            has_link,
            available_kib,
            twind,
            standby,
            candidate,
            remains,
            going_back: self.is_beside(Does::GoesBack),
            noting: self.is_beside(Does::IsNoted),
            snapshots,
            has_room,
            clearing,
            way,
            others,
            disks,
            disks_without,
            has_devices,
            has_lost,
            missing,
            is_served,
            is_cut_off,
            are_all_ended,
            errand,
            side,
            dismissing,
            not_promoted: self.not_promoted.take(),
        })
    }

    /// What the toolstack waits for that others have, for people.
    pub fn waits_for(&self) -> Option<String> {
        self.toolstack.waits_for()
    }

    /// Whether the machine has memory for another instance. Nobody asks while one is up.
    fn has_room(&mut self, domain: Option<&Domain>) -> bool {
        if let Some(domain) = domain {
            if domain.max_pages > 0 {
                self.max_pages = domain.max_pages;
            }
            if domain.end.is_none() && !domain.is_paused {
                return false;
            }
        }
        let beside = self.max_pages / 32 + PAGES_BESIDE;
        self.max_pages > 0 && self.hypervisor.free_pages().is_ok_and(|free| free >= self.max_pages + beside)
    }

    /// Who takes the devices of a domain that runs, as `xl destroy` does, waits ten seconds for its driver to let go of
    /// them. It may not do so, for they have been reset, and are its no more.
    fn answer_for(&mut self, domain: Option<&Domain>) -> Result<()> {
        let Some(domain) = domain.filter(|d| d.is_bereft && !d.is_paused && d.end.is_none()) else {
            self.bereft = None;
            return Ok(());
        };
        let since = match self.bereft {
            Some((id, since)) if id == domain.id => since,
            _ => Self::now(),
        };
        self.bereft = Some((domain.id, since));
        match Self::now().saturating_sub(since) >= ANSWERS_ITSELF {
            true => pci::answer_for(domain.id, &mut self.store),
            false => Ok(()),
        }
    }

    /// The hypervisor tells of this domain. If it cannot it is gone, which the next look shows. What its devices do
    /// counts from when it is of use on: before, one may still do what its last driver told it. That it is of use is to
    /// be known by now; of one that serves disks the hypervisor knows.
    fn watch(&mut self, domain: u16) {
        let flags = match (self.dma_faults, self.used == Some(domain)) {
            (false, _) => 0,
            (true, false) => op::WATCH_DMA_FAULTS_IN_USE,
            (true, true) => op::WATCH_DMA_FAULTS,
        };
        let wanted = (domain, flags);
        if self.watched != Some(wanted) && self.hypervisor.watch(domain, self.wedged_ms, wanted.1).is_ok() {
            self.watched = Some(wanted);
        }
    }

    /// One that waits may serve guests' disks before it is seen that it is of use.
    fn expect(&mut self, domain: u16) {
        if self.dma_faults
            && self.expected != Some(domain)
            && self.hypervisor.watch(domain, 0, op::WATCH_DMA_FAULTS_IN_USE).is_ok()
        {
            self.expected = Some(domain);
            self.watched = self.watched.filter(|(watched, _)| *watched != domain);
        }
    }

    /// Does it, or begins to. What is created is of the image that the record says.
    pub fn act(&mut self, act: Act, record: &Record) -> Result<()> {
        match act {
            Act::Drain(_) => {
                self.drain();
                Ok(())
            }
            Act::Quarantine(domain) => {
                // Nobody would take what comes from now on.
                self.drain();
                // First, or its driver might let them again.
                match self.hypervisor.pause(domain) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(error).context("a domain cannot be paused"),
                }
                // Whoever destroys it may take longer than errors are doubted.
                self.detach(domain)?;
                let devices = pci::devices_of(domain, &mut self.store)?;
                for device in &devices {
                    if let Err(error) = pci::keep_from_memory(device) {
                        eprintln!("{}: {device}: {error:#}", self.service);
                    }
                }
                self.quarantined = Some((domain, devices));
                Ok(())
            }
            Act::Take(domain) => self.take(domain),
            Act::ClearAway(domain) => {
                self.toolstack.clear_away(domain);
                Ok(())
            }
            Act::Destroy(domain) => {
                self.toolstack.destroy(domain);
                Ok(())
            }
            Act::Introduce(domain) => self.introduce(domain),
            Act::Dismiss(domain) => {
                // The toolstack knows of devices only.
                passthrough::forget(domain, &mut self.store)?;
                self.toolstack.dismiss(domain);
                Ok(())
            }
            Act::Create => {
                self.create(record.image_to_start(), &[]);
                Ok(())
            }
            Act::CreateStandby => {
                self.create(&record.image, &without_devices(&standby::name_of(&self.driver), &self.driver));
                Ok(())
            }
            Act::CreateCandidate => {
                if let Some(upgrade) = &record.upgrade {
                    self.create(&upgrade.to, &without_devices(&candidate_of(&self.driver), &self.driver));
                }
                Ok(())
            }
            Act::Note(domain) => self.note(domain, record),
            Act::RollBack(domain) => {
                if self.is_beside(Does::GoesBack) != Some(domain) {
                    self.roll_back(domain)?;
                }
                self.end_beside()
            }
            Act::RollBackBeside(domain) => self.roll_back(domain),
            Act::Promote(domain) => self.promote(domain),
            Act::LoadTwin(_) => {
                self.pulse.iter().for_each(Pulse::load);
                Ok(())
            }
            Act::HandOver(domain) => {
                if let Err(error) = self.give(domain.into()) {
                    eprintln!("{}: {}: xl is to hand it its devices: {error:#}", self.service, self.driver);
                }
                Ok(())
            }
            Act::Attach(domain) => {
                if let Some(device) = self.lacks(domain)? {
                    self.toolstack.start(&[ATTACH, &domain.to_string(), &device.said]);
                }
                Ok(())
            }
        }
    }

    /// What is for outside waits for the next way out. It is no reason to stop if it cannot.
    fn drain(&mut self) {
        for switch in self.switch.into_iter().chain(self.other_services.iter().filter_map(|other| other.switch)) {
            match self.hypervisor.drain(switch, op::DRAIN_MAX_MS) {
                // It is gone already.
                Ok(()) | Err(Errno::NODEV | Errno::NOENT) => {}
                Err(error) => eprintln!("{}: packets for outside do not wait: {error}", self.service),
            }
        }
    }

    /// The toolstack creates one of this image. These lines come last, and so count; with none it is the driver domain
    /// itself.
    fn create(&mut self, image: &Image, lines: &[String]) {
        let has_place = lines.is_empty();
        let (config, image) = (self.config.to_string_lossy().into_owned(), image.lines());
        let lines = image.iter().chain(lines).map(String::as_str);
        let arguments: Vec<&str> = CREATE.iter().copied().chain([config.as_str()]).chain(lines).collect();
        match self.domain {
            _ if has_place => self.toolstack.start(&arguments),
            // One without devices may be created beside the one that has them.
            Some(_) => self.toolstack.create_beside(&self.config, &arguments),
            None => self.toolstack.start_beside(&arguments),
        }
    }

    /// Which of these the hypervisor can roll back, if that is wanted.
    fn snapshots(&mut self, of: impl IntoIterator<Item = u16>) -> Vec<u16> {
        if !self.has_snapshots {
            return Vec::new();
        }
        let is_of_use = |state| [op::SNAPSHOT_READY, op::SNAPSHOT_ROLLING_BACK].contains(&state);
        of.into_iter().filter(|id| self.hypervisor.snapshot(*id).is_ok_and(|told| is_of_use(told.state))).collect()
    }
}

/// Whose it is.
fn device_of(disk: &ChannelDiskStatus) -> Device {
    Device { guest: disk.guest, number: disk.device }
}

/// Where a driver domain may say that its link is "down", and that it is "up".
pub fn link_of(domain: u16) -> String {
    format!("/local/domain/{domain}/data/link")
}

/// What a driver domain says of the link of one of its interfaces: of that one, by its number, or of all.
pub fn said_of_link(interface: Device, store: &mut impl Store) -> Result<Option<String>> {
    match store.read(&link_of_one(interface))? {
        None => store.read(&link_of(interface.guest)),
        said => Ok(said),
    }
}

/// Where it may say so of one.
pub fn link_of_one(interface: Device) -> String {
    format!("{}-{}", link_of(interface.guest), interface.number)
}

/// Where it is written which one has taken a driver domain's place last. It may have gone since.
pub fn taken_by(service: &str) -> String {
    format!("/tool/tandem/{service}/taken-by")
}

/// Where it is written which one waits to take it, and is ready. It may have gone since, or have the place.
pub fn waits_for(service: &str) -> String {
    format!("/tool/tandem/{service}/waits")
}

/// What a configuration says of one of this name that gets the devices of this driver domain later.
fn without_devices(name: &str, driver: &str) -> [String; 4] {
    let uuid = ours::uuid(driver);
    [format!("name=\"{name}\""), format!("uuid=\"{uuid}\""), "pci=[]".into(), "passthrough=\"enabled\"".into()]
}
