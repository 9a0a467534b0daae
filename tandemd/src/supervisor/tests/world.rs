//! A world for the machine: a driver domain, a toolstack that takes its time, others that use the same toolstack, and a
//! daemon that may be killed at any moment.

mod acts;
mod daemon;
mod instance;

pub use instance::*;

use super::super::files::MissingFiles;
use super::super::health::Beat;
use super::super::look::Act;
use super::super::machine::Machine;
use super::super::record::Record;
use super::super::settings::Settings;
use super::super::words::{self, Words};
use crate::config::Kind;
use crate::device::Device;
use control::Image;
use std::collections::BTreeMap;
use std::time::Duration;
use xen_abi::sched as reason;

pub const TICK: Duration = Duration::from_millis(100);
/// How long the toolstack takes, and how long a domain until it is the way out.
pub const CREATE: Duration = Duration::from_millis(900);
pub const DESTROY: Duration = Duration::from_millis(400);
/// So long of that a domain has lost its name and its devices, and memory is left.
pub const CLEAR: Duration = Duration::from_millis(200);
/// So long it may hang.
pub const HANGS: Duration = Duration::from_secs(180);
pub const ATTACH: Duration = Duration::from_millis(300);
/// So long one has spun that is wedged.
pub const WEDGED: Duration = Duration::from_millis(500);
/// So long one is rolled back.
pub const BACK: Duration = Duration::from_millis(1200);
/// So long one is noted.
pub const NOTE: Duration = Duration::from_millis(500);
pub const BOOT: Duration = Duration::from_secs(3);

pub fn settings() -> Settings {
    toml::from_str("config = \"/dd.cfg\"\ncrashes = 3\nwithin-s = 60\nback-off-ms = 500\nready-s = 20").unwrap()
}

/// A process of the toolstack's, and when it is done.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    pub act: Act,
    pub until: Duration,
    /// It has cleared away what was left of somebody who had neither name nor devices.
    pub is_released: bool,
}

/// How far what is done without the toolstack gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    Works,
    Fails,
    IsKilled,
}

/// Whose medium hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumOf {
    /// That of the service for which the driver domain is looked after.
    Own,
    /// That of the other one.
    Far,
}

pub struct World {
    pub now: Duration,
    /// Whether the driver domain is one of interfaces or of disks.
    pub words: &'static Words,
    pub settings: Settings,
    pub machine: Machine,
    /// What is on the disk.
    pub disk: Record,
    pub domain: Option<Instance>,
    /// The one that waits.
    pub standby: Option<Instance>,
    /// The one that is tried.
    pub candidate: Option<Instance>,
    /// What is left of others.
    pub remains: Vec<Instance>,
    /// So often these are destroyed, or what is left of them is cleared away, in vain.
    pub stubborn: BTreeMap<u16, u32>,
    /// Who was introduced to the PCI back end last is not done with that before.
    pub meets_until: Option<Duration>,
    /// How long that takes.
    pub meeting: Duration,
    /// What can be done without the toolstack: all, nothing, or the next thing half, and then the daemon is killed.
    pub native: Native,
    /// The PCI back end never lets the devices of the one before go, if there is one; and what was told of the last
    /// try.
    pub is_clung_to: bool,
    pub not_promoted: Option<String>,
    /// Who is rolled back is that by half, and stays paused.
    pub stays_paused: bool,
    pub processes: Vec<Process>,
    /// The one that makes one that waits or is tried.
    pub side: Option<Process>,
    /// What goes on beside others.
    pub aside: Vec<Process>,
    /// So many of those who are dismissed are so by a toolstack that hangs; and whose does now.
    pub hangs: u32,
    pub hung: Option<u16>,
    /// The one that is rolled back beside all else, and until when.
    pub going_back: Option<(u16, Duration)>,
    /// The same of one that is noted.
    pub noting: Option<(u16, Duration)>,
    pub nr_domains: u16,
    pub has_devices: bool,
    /// Its configuration names a device more, which no instance has had.
    pub lacks_another: bool,
    /// Files that are not there.
    pub missing: MissingFiles,
    /// The machine has memory for an instance more, and says so; the toolstack finds none as long as something is left
    /// of others.
    pub has_room: bool,
    pub is_full: bool,
    /// Somebody else has the toolstack's lock: who creates a domain waits for that, and has not begun.
    pub is_locked: bool,
    /// All domains are being ended; and nobody says whether they are.
    pub are_all_ended: bool,
    pub is_in_doubt: bool,
    /// The next instances never become ready.
    pub is_broken: bool,
    /// Whoever has the disks answers with errors.
    pub medium_is_bad: bool,
    /// Whoever has the disks of this kind of service answers nothing of what guests ask: its medium hangs.
    pub hangs_for: Option<MediumOf>,
    /// Guests' disks that it serves when it is the way; and those of them that one of the new image leaves.
    pub disks: Vec<Device>,
    pub lacks_disks: Vec<Device>,
    /// Another service whose way it is when it is the way, and of which kind that is; and one of the new image is not.
    pub far: Option<String>,
    pub far_kind: Kind,
    pub lacks_far: bool,
    pub log: Vec<String>,
    pub acts: Vec<Act>,
}

impl World {
    pub fn new() -> Self {
        Self::with(settings())
    }

    pub fn with(settings: Settings) -> Self {
        Self::of(&words::NET, settings)
    }

    pub fn of(words: &'static Words, settings: Settings) -> Self {
        Self {
            now: Duration::from_secs(100),
            words,
            machine: Machine::new(settings.clone(), words, Record::default()),
            settings,
            disk: Record::default(),
            domain: None,
            standby: None,
            candidate: None,
            remains: Vec::new(),
            stubborn: BTreeMap::new(),
            meets_until: None,
            meeting: TICK,
            native: Native::Works,
            is_clung_to: false,
            not_promoted: None,
            stays_paused: false,
            processes: Vec::new(),
            side: None,
            aside: Vec::new(),
            hangs: 0,
            hung: None,
            going_back: None,
            noting: None,
            nr_domains: 0,
            has_devices: true,
            lacks_another: false,
            missing: MissingFiles::default(),
            has_room: false,
            is_full: false,
            is_locked: false,
            are_all_ended: false,
            is_in_doubt: false,
            is_broken: false,
            medium_is_bad: false,
            hangs_for: None,
            disks: Vec::new(),
            lacks_disks: Vec::new(),
            far: None,
            far_kind: Kind::Net,
            lacks_far: false,
            log: Vec::new(),
            acts: Vec::new(),
        }
    }

    /// One that is up.
    pub fn up() -> Self {
        let mut world = Self::new();
        world.run(Duration::from_secs(8));
        assert_eq!(world.machine.state(), "up", "{:?}", world.log);
        world
    }

    /// One that is up, and another one that waits.
    pub fn with_standby() -> Self {
        let mut world = Self::with(Settings { standby: 1, ..settings() });
        world.run(Duration::from_secs(20));
        assert_eq!(world.machine.state(), "up", "{:?}", world.log);
        assert!(world.log.iter().any(|line| line.contains("waits to take its place")), "{:?}", world.log);
        assert_eq!(world.machine.standby(), Some(true));
        world
    }

    /// One that is up, and can be rolled back.
    pub fn with_snapshot() -> Self {
        Self::with_snapshot_of(&words::NET)
    }

    pub fn with_snapshot_of(words: &'static Words) -> Self {
        let mut world = Self::of(words, Settings { snapshot: true, ..settings() });
        world.run(Duration::from_secs(20));
        assert_eq!((world.machine.state(), world.machine.snapshot()), ("up", Some(true)), "{:?}", world.log);
        assert!(world.standby.is_none() && world.nr_domains == 1);
        world
    }

    /// One that is up, and another one that waits; each can be rolled back.
    pub fn with_turns_of(words: &'static Words) -> Self {
        let mut world = Self::of(words, Settings { standby: 1, snapshot: true, ..settings() });
        world.run(Duration::from_secs(20));
        let machine = &world.machine;
        assert_eq!(
            (machine.state(), machine.snapshot(), machine.standby()),
            ("up", Some(true), Some(true)),
            "{:?}",
            world.log
        );
        assert_eq!(world.nr_domains, 2);
        world
    }

    pub fn add_domain(&mut self) {
        let image = self.machine.record.image_to_start().clone();
        self.domain = Some(self.instance(true, image));
    }

    pub fn instance(&mut self, has_devices: bool, image: Image) -> Instance {
        self.nr_domains += 1;
        let is_bad = |flaw| image == with(Some(flaw));
        let (does, end) = match () {
            () if self.is_broken || is_bad(Flaw::NotReady) && has_devices => (Does::Hangs, None),
            () if is_bad(Flaw::NeverBoots) => (Does::Spins, None),
            () if is_bad(Flaw::Panics) => (Does::Boots, Some((reason::SHUTDOWN_CRASH, false))),
            () => (Does::Boots, None),
        };
        Instance {
            id: self.nr_domains,
            age: Duration::ZERO,
            does,
            end,
            ended_at: end.map(|_| self.now),
            is_out_of_memory: false,
            available_kib: None,
            twind: None,
            is_paused: false,
            beat: Beat::default(),
            spun: Duration::ZERO,
            taken: 0,
            came: 0,
            is_others: false,
            has_devices,
            is_bereft: false,
            is_noted: false,
            image,
        }
    }

    pub fn all(&self) -> impl Iterator<Item = &Instance> {
        self.domain.iter().chain(&self.standby).chain(&self.candidate).chain(&self.remains)
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Instance> {
        self.domain.iter_mut().chain(&mut self.standby).chain(&mut self.candidate).chain(&mut self.remains)
    }

    /// The machine goes down, as it does in order or by a reset, and starts again: nobody is there, and the daemon has
    /// what is on the disk.
    pub fn machine_starts_anew(&mut self) {
        (self.domain, self.standby, self.candidate) = (None, None, None);
        self.remains.clear();
        self.processes.clear();
        self.aside.clear();
        (self.side, self.hung) = (None, None);
        (self.going_back, self.noting, self.meets_until) = (None, None, None);
        self.disk.begin_anew("another");
        self.kill();
    }

    pub fn pass(&mut self) {
        self.now += TICK;
        self.domain.iter_mut().chain(&mut self.standby).chain(&mut self.candidate).for_each(Instance::pass);
    }

    pub fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.pass();
            self.step(None);
        }
    }

    pub fn end(&mut self, code: u32, by_hypervisor: bool) {
        if let Some(d) = self.domain.as_mut().filter(|d| d.end.is_none()) {
            (d.end, d.ended_at) = (Some((code, by_hypervisor)), Some(self.now));
        }
    }

    /// The operator has told the toolstack to destroy it: it has lost its devices and still runs, and a moment later it
    /// is paused.
    pub fn begin_destroy(&mut self) -> u16 {
        let ours = self.domain.as_mut().expect("who is destroyed is there");
        (ours.has_devices, ours.is_bereft) = (false, true);
        let id = ours.id;
        self.run(3 * TICK);
        self.domain.as_mut().filter(|d| d.id == id).expect("it runs").is_paused = true;
        id
    }

    /// And a while after that it is gone.
    pub fn end_destroy(&mut self, id: u16) {
        self.domain.take_if(|d| d.id == id);
        self.remains.retain(|d| d.id != id);
    }

    pub fn count(&self, what: &str) -> u64 {
        self.machine.record.counts.get(what).copied().unwrap_or(0)
    }

    pub fn is_well(&self) -> bool {
        let is_whole = |d: &Instance| d.end.is_none() && !d.is_paused && d.does == Does::Its;
        self.machine.state() == "up" && self.domain.as_ref().is_some_and(is_whole)
    }
}
