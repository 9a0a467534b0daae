//! A world for the machine: a driver domain, a toolstack that takes its time, others that use the same toolstack, and a daemon that may be
//! killed at any moment.

use super::super::health::{Beat, Queue};
use super::super::look::{Act, Domain, Errand, Look, Way};
use super::super::machine::Machine;
use super::super::record::{Mode, Record};
use super::super::settings::Settings;
use super::super::words::{self, Words};
use control::{Image, Order};
use std::time::Duration;
use xen_abi::sched as reason;

pub const TICK: Duration = Duration::from_millis(100);
/// How long the toolstack takes, and how long a domain until it is the way out.
pub const CREATE: Duration = Duration::from_millis(900);
pub const DESTROY: Duration = Duration::from_millis(400);
/// So long of that a domain has lost its name and its devices, and memory is left.
pub const CLEAR: Duration = Duration::from_millis(200);
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

/// What the driver domain does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Does {
    Its,
    Spins,
    /// A device of its was stopped.
    Strays,
    /// It answers disks' requests with errors.
    Errs,
    Boots,
    Hangs,
    /// Its link is up, and nothing comes of that.
    Idles,
    /// It takes what is for the outside, and nothing comes from there.
    IsDeaf,
    /// The same, and it has not turned its devices on.
    IsBlind,
}

#[derive(Clone, Debug)]
pub struct Instance {
    pub id: u16,
    pub age: Duration,
    pub does: Does,
    pub end: Option<(u32, bool)>,
    pub ended_at: Option<Duration>,
    pub is_paused: bool,
    pub beat: Beat,
    /// How long it has taken no event.
    pub spun: Duration,
    pub taken: u64,
    pub came: u64,
    pub is_others: bool,
    pub has_devices: bool,
    /// Others have taken them.
    pub is_bereft: bool,
    /// The hypervisor can roll it back.
    pub is_noted: bool,
    /// What it was started with.
    pub image: Image,
}

impl Instance {
    pub fn seen(&self, now: Duration) -> Domain {
        let ended_for = self.ended_at.map_or(Duration::ZERO, |at| now - at);
        let (is_paused, is_bereft) = (self.is_paused, self.is_bereft);
        Domain { id: self.id, end: self.end, ended_for, is_dying: false, is_paused, is_bereft, beats: vec![self.beat] }
    }

    pub fn get_devices(&mut self) {
        self.has_devices = true;
        match self.image.clone() {
            image if image == with(Some(Flaw::NotReady)) => self.does = Does::Hangs,
            image if image == with(Some(Flaw::NotConnected)) => self.does = Does::Idles,
            _ => {}
        }
    }

    /// What it does when it has booted and has its devices.
    fn comes_to(&self) -> Does {
        match () {
            () if self.image == with(Some(Flaw::NotReceiving)) => Does::IsDeaf,
            () if self.image == with(Some(Flaw::NotProbed)) => Does::IsBlind,
            () => Does::Its,
        }
    }

    /// It is reached by guests.
    fn is_way(&self) -> bool {
        let ways = [Does::Its, Does::Spins, Does::Strays, Does::Errs, Does::IsDeaf, Does::IsBlind];
        ways.contains(&self.does) && self.end.is_none()
    }

    pub fn pass(&mut self) {
        if self.end.is_some() || self.is_paused {
            return;
        }
        self.age += TICK;
        if self.does == Does::Boots && self.age >= BOOT {
            if !self.has_devices {
                // It waits for them.
                return;
            }
            self.does = self.comes_to();
        }
        self.beat.run += TICK;
        match self.does {
            Does::Boots => {}
            Does::Spins => {
                self.spun += TICK;
                self.beat.wedged_for = (self.spun >= WEDGED).then_some(self.spun);
            }
            Does::Its | Does::Hangs | Does::Idles | Does::Strays | Does::Errs | Does::IsDeaf | Does::IsBlind => {
                self.beat.upcalls += 1;
                self.taken += u64::from(matches!(self.does, Does::Its | Does::Errs | Does::IsDeaf | Does::IsBlind));
                self.came += u64::from(matches!(self.does, Does::Its | Does::Errs));
                let strayed = self.beat.dma_fault_for.unwrap_or_default() + TICK;
                self.beat.dma_fault_for = (self.does == Does::Strays).then_some(strayed);
            }
        }
    }
}

/// What can be wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flaw {
    /// The toolstack does not take it.
    NotCreated,
    NeverBoots,
    Panics,
    /// It waits for devices, and does nothing with them.
    NotReady,
    /// It drives them, and its interface is connected to nothing.
    NotConnected,
    /// It is the way, and nothing comes by it.
    NotReceiving,
    /// The same, as no driver takes its devices.
    NotProbed,
}

/// An image that is new, with this flaw.
pub fn with(flaw: Option<Flaw>) -> Image {
    Image { kernel: Some(format!("/boot/{flaw:?}")), ..Image::default() }
}

pub fn new() -> Image {
    with(None)
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
    /// Who was introduced to the PCI back end last is not done with that before.
    pub meets_until: Option<Duration>,
    /// How long that takes.
    pub meeting: Duration,
    /// What can be done without the toolstack: all, nothing, or the next thing half, and then the daemon is killed.
    pub native: Native,
    pub processes: Vec<Process>,
    /// Of those, what goes on beside others.
    pub aside: Vec<Process>,
    /// The one that is rolled back beside all else, and until when.
    pub going_back: Option<(u16, Duration)>,
    /// The same of one that is noted.
    pub noting: Option<(u16, Duration)>,
    pub nr_domains: u16,
    pub has_devices: bool,
    /// All domains are being ended.
    pub are_all_ended: bool,
    /// The next instances never become ready.
    pub is_broken: bool,
    /// Whoever has the disks answers with errors.
    pub medium_is_bad: bool,
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
            meets_until: None,
            meeting: TICK,
            native: Native::Works,
            processes: Vec::new(),
            aside: Vec::new(),
            going_back: None,
            noting: None,
            nr_domains: 0,
            has_devices: true,
            are_all_ended: false,
            is_broken: false,
            medium_is_bad: false,
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

    pub fn look(&mut self) -> Look {
        let now = self.now;
        let is_over = |process: &Process| process.until <= now;
        for over in self.aside.iter().filter(|process| is_over(process)) {
            self.remains.retain(|d| over.act != Act::ClearAway(d.id));
        }
        self.aside.retain(|process| !is_over(process));
        if let Some((id, _)) = self.going_back.take_if(|(_, until)| *until <= now) {
            self.roll_back(id);
        }
        if let Some((id, _)) = self.noting.take_if(|(_, until)| *until <= now) {
            self.is_noted(id, Native::Works);
        }
        self.release();
        let domain = self.domain.as_ref().map(|d| d.seen(self.now));
        let way = self.domain.as_ref().filter(|d| d.is_way()).map(|d| Way {
            is_card: false,
            // Guests go on to send while it is paused.
            queue: Queue { is_waiting: d.is_paused, taken: d.taken, ..Queue::default() },
            came: d.came,
            has_failed: self.words == &words::DISK && (d.does == Does::Errs || self.medium_is_bad),
            ..Way::default()
        });
        // Those of earlier daemons are found, too.
        let errand = match self.processes.first().copied() {
            Some(process) if process.until > self.now && process.is_released => Errand::ClearsAway,
            Some(process) if process.until > self.now => Errand::Runs,
            Some(process) => {
                self.processes.remove(0);
                Errand::Done(self.complete(process))
            }
            None => Errand::None,
        };
        let is_done = matches!(errand, Errand::Done(_));
        let domain = if is_done { self.domain.as_ref().map(|d| d.seen(self.now)) } else { domain };
        let has_all = self.domain.as_ref().is_some_and(|d| d.has_devices);
        let does = self.domain.as_ref().map(|d| d.does);
        let is_driven = way.is_some() && does != Some(Does::IsBlind) || does == Some(Does::Idles);
        Look {
            now: self.now,
            domain,
            has_all,
            is_meeting: self.meets_until.is_some_and(|until| now < until),
            is_probed: has_all && is_driven,
            has_link: has_all && is_driven,
            standby: self.standby.as_ref().map(|d| d.seen(self.now)),
            candidate: self.candidate.as_ref().map(|d| d.seen(self.now)),
            remains: self.remains.iter().map(|d| d.id).filter(|id| !self.is_cleared(*id)).collect(),
            going_back: self.going_back.map(|(id, _)| id),
            noting: self.noting.map(|(id, _)| id),
            snapshots: self.all().filter(|d| d.is_noted).map(|d| d.id).collect(),
            is_clearing: !self.aside.is_empty(),
            way,
            disks: Vec::new(),
            disks_without: Vec::new(),
            has_devices: self.has_devices,
            is_served: true,
            are_all_ended: self.asks_for_all().then_some(self.are_all_ended),
            errand,
        }
    }

    /// As the shell does.
    fn asks_for_all(&self) -> bool {
        let was_shut_down = |d: &Instance| matches!(d.end, Some((reason::SHUTDOWN_POWEROFF, _)));
        self.domain.as_ref().is_some_and(was_shut_down) || self.machine.waits_for_all()
    }

    pub fn all(&self) -> impl Iterator<Item = &Instance> {
        self.domain.iter().chain(&self.standby).chain(&self.candidate).chain(&self.remains)
    }

    pub fn all_mut(&mut self) -> impl Iterator<Item = &mut Instance> {
        self.domain.iter_mut().chain(&mut self.standby).chain(&mut self.candidate).chain(&mut self.remains)
    }

    pub fn is_cleared(&self, id: u16) -> bool {
        self.aside.iter().any(|process| process.act == Act::ClearAway(id))
    }

    /// Who is destroyed loses its name and its devices before its memory.
    pub fn release(&mut self) {
        let Some(process) = self.processes.first_mut() else { return };
        if let (Act::Destroy(id), true) = (process.act, self.now + CLEAR >= process.until) {
            process.is_released |= self.domain.take_if(|d| d.id == id).is_some();
        }
    }

    /// What the toolstack does in the end.
    pub fn complete(&mut self, process: Process) -> Result<(), String> {
        match process.act {
            Act::Create if self.domain.is_some() => Err("the name is taken".into()),
            Act::Create if !self.has_devices => Err("no device".into()),
            Act::Create => {
                self.add_domain();
                Ok(())
            }
            Act::Destroy(_) if process.is_released => Ok(()),
            Act::CreateStandby if self.standby.is_some() => Err("the name is taken".into()),
            Act::CreateStandby => {
                let image = self.machine.record.image.clone();
                self.standby = Some(self.instance(false, image));
                Ok(())
            }
            Act::CreateCandidate if self.candidate.is_some() => Err("the name is taken".into()),
            Act::CreateCandidate => match self.machine.record.upgrade.as_ref().map(|upgrade| upgrade.to.clone()) {
                Some(image) if image != with(Some(Flaw::NotCreated)) => {
                    self.candidate = Some(self.instance(false, image));
                    Ok(())
                }
                _ => Err("no kernel".into()),
            },
            Act::Dismiss(id) => {
                let gone = self.standby.take_if(|d| d.id == id).or_else(|| self.candidate.take_if(|d| d.id == id));
                gone.map(|_| ()).ok_or("no such domain".into())
            }
            Act::Attach(_) if !self.has_devices => Err("no device".into()),
            Act::Attach(id) => match self.domain.as_mut().filter(|d| d.id == id) {
                Some(d) if !d.has_devices => {
                    d.get_devices();
                    Ok(())
                }
                _ => Err("no such domain, or it has them".into()),
            },
            _ => Err("no such domain".into()),
        }
    }

    pub fn take(&mut self, act: Act) {
        self.acts.push(act);
        let is_named = |id: u16| match act {
            Act::Create | Act::CreateStandby | Act::CreateCandidate | Act::RollBack(_) => false,
            Act::Drain(of) | Act::Quarantine(of) | Act::Take(of) | Act::ClearAway(of) | Act::Destroy(of) => of == id,
            Act::Introduce(of) | Act::Dismiss(of) | Act::Note(of) | Act::RollBackBeside(of) => of == id,
            Act::Promote(of) | Act::HandOver(of) | Act::Attach(of) => of == id,
        };
        let is_at_work = self.going_back.into_iter().chain(self.noting).any(|(id, _)| is_named(id));
        assert!(!is_at_work, "it is being noted or rolled back: {act:?}");
        let start = |world: &mut Self, lasts| {
            let until = world.now + lasts;
            assert!(world.processes.is_empty(), "two processes of the toolstack at once");
            world.processes.push(Process { act, until, is_released: false });
        };
        match act {
            Act::Drain(id) => {
                let ours = self.domain.as_ref().filter(|d| d.id == id).expect("who is drained is there");
                assert!(!ours.is_paused && ours.end.is_none(), "it sends nothing any more");
            }
            Act::Quarantine(id) => {
                let ours = self.domain.as_mut().filter(|d| d.id == id).expect("who is quarantined is there");
                ours.is_paused = true;
            }
            Act::Destroy(id) => {
                let there = self.domain.as_ref().filter(|d| d.id == id);
                assert!(
                    there.is_none_or(|d| d.is_paused),
                    "what the toolstack takes from it is seen by a domain that runs"
                );
                start(self, DESTROY);
            }
            Act::Take(id) => {
                let ours = self.domain.as_mut().filter(|d| d.id == id).expect("whose devices are taken is there");
                assert!(ours.is_paused, "its driver may be at work still");
                assert!(self.processes.is_empty(), "the toolstack is at work on them");
                if self.native != Native::Fails {
                    ours.has_devices = false;
                }
                if self.native == Native::Works {
                    self.remains.extend(self.domain.take());
                }
            }
            Act::ClearAway(id) => {
                assert!(self.remains.iter().any(|d| d.id == id && !d.has_devices), "it has devices still, or is gone");
                assert!(!self.is_cleared(id), "it is cleared away already");
                self.aside.push(Process { act, until: self.now + DESTROY, is_released: true });
            }
            Act::HandOver(id) => {
                assert!(self.remains.iter().all(|d| !d.has_devices), "somebody has them still");
                assert!(self.meets_until.is_none_or(|until| self.now >= until), "it would not find them");
                let ours = self.domain.as_mut().filter(|d| d.id == id).expect("who gets devices has the name");
                if self.native == Native::Works && self.has_devices {
                    ours.get_devices();
                }
            }
            Act::Introduce(id) => {
                let waits = self.standby.as_ref().filter(|d| d.id == id).expect("who is introduced waits");
                assert!(!waits.has_devices);
                let is_tried = waits.is_noted || self.machine.record.snapshots.contains(&id);
                assert!(is_tried || !self.settings.snapshot, "what it has of others' cannot be noted");
                self.meets_until = Some(self.now + self.meeting);
            }
            Act::Note(id) => {
                assert_ne!(self.machine.standby(), Some(true), "a failure may come as soon as that is told");
                assert!(self.going_back.is_none() && self.noting.is_none(), "one after the other");
                match self.native {
                    Native::Works => {
                        self.all_mut().find(|d| d.id == id).expect("who is noted is there").is_paused = true;
                        self.noting = Some((id, self.now + NOTE));
                    }
                    native => self.is_noted(id, native),
                }
            }
            Act::RollBack(id) => {
                assert!(self.domain.is_none(), "somebody has the place");
                // One that is on its way is waited for.
                if self.going_back.take().is_none() {
                    self.assert_noted(id);
                }
                self.roll_back(id);
            }
            Act::RollBackBeside(id) => {
                assert!(self.settings.standby > 0 && self.going_back.is_none(), "it is waited for");
                assert!(self.noting.is_none(), "one after the other");
                self.assert_noted(id);
                self.going_back = Some((id, self.now + BACK));
                if self.native != Native::Works {
                    self.going_back = None;
                    self.roll_back(id);
                }
            }
            Act::CreateStandby => {
                assert_eq!(self.machine.record.mode, Mode::Run, "one that should rest gets another one");
                let is_first = self.domain.is_none();
                assert!(!is_first || self.remains.is_empty() && self.aside.is_empty(), "others have its memory");
                start(self, CREATE);
            }
            Act::CreateCandidate => {
                assert!(self.standby.is_none(), "the one that waits has the memory still");
                start(self, CREATE);
            }
            Act::Dismiss(_) => start(self, DESTROY),
            Act::Promote(id) => {
                assert!(self.domain.is_none(), "there is one of the name already");
                assert!(self.processes.iter().all(|p| p.is_released), "who goes has the devices still");
                self.aside.append(&mut self.processes);
                // It may have gone a moment ago.
                let waits = self.standby.take_if(|d| d.id == id);
                self.domain = waits.or_else(|| self.candidate.take_if(|d| d.id == id));
            }
            Act::Attach(id) => {
                assert_eq!(self.domain.as_ref().map(|d| d.id), Some(id));
                start(self, ATTACH);
            }
            Act::Create => {
                assert_eq!(self.machine.record.mode, Mode::Run, "one that should rest is started");
                assert!(self.domain.is_none(), "there is one already");
                assert!(self.remains.is_empty() && self.aside.is_empty(), "others have the memory that it needs");
                start(self, CREATE);
            }
        }
    }

    fn assert_noted(&mut self, id: u16) {
        let is_noted = self.all_mut().any(|d| d.id == id && d.is_noted);
        assert!(is_noted, "domain {id} cannot be rolled back");
    }

    /// What is left of it becomes one that waits.
    fn roll_back(&mut self, id: u16) {
        assert!(self.standby.as_ref().is_none_or(|d| d.id == id), "somebody else has the name");
        let image = self.machine.record.image_to_start().clone();
        let at = self.remains.iter().position(|d| d.id == id);
        let back = at.map(|at| self.remains.remove(at)).or_else(|| self.standby.take_if(|d| d.id == id));
        let mut back = back.expect("who is rolled back has neither name nor devices");
        assert!(!back.has_devices && back.image == image, "{back:?}");
        // What was noted of it may have been lost meanwhile.
        if self.native == Native::Fails || !back.is_noted {
            back.is_noted = false;
            return self.remains.push(back);
        }
        (back.end, back.ended_at, back.does, back.age) = (None, None, Does::Boots, BOOT);
        (back.spun, back.beat.wedged_for, back.beat.dma_fault_for) = (Duration::ZERO, None, None);
        back.is_paused = self.native == Native::IsKilled;
        self.standby = Some(back);
    }

    /// It was tried to note it. Somebody else may have destroyed it meanwhile.
    fn is_noted(&mut self, id: u16, native: Native) {
        let Some(there) = self.all_mut().find(|d| d.id == id) else { return };
        assert!(!there.has_devices, "the hypervisor does not know how to give its devices back");
        there.is_noted = native == Native::Works;
        there.is_paused = native == Native::IsKilled;
    }

    /// The daemon does what is to be done now. It may be killed before it does the act of that number.
    pub fn step(&mut self, killed_before: Option<usize>) {
        let mut look = self.look();
        let mut count = 0;
        while let Some(act) = self.machine.next(&look) {
            self.disk = self.machine.record.clone();
            if killed_before == Some(count) {
                return self.kill();
            }
            self.take(act);
            if self.native == Native::IsKilled
                && matches!(
                    act,
                    Act::Take(_) | Act::HandOver(_) | Act::Note(_) | Act::RollBack(_) | Act::RollBackBeside(_)
                )
            {
                self.native = Native::Works;
                return self.kill();
            }
            count += 1;
            look = self.look();
        }
        self.disk = self.machine.record.clone();
        self.log.append(&mut self.machine.said);
    }

    pub fn kill(&mut self) {
        // What clears away goes on without it, and the next one does not know.
        for process in std::mem::take(&mut self.aside) {
            self.remains.retain(|d| process.act != Act::ClearAway(d.id));
        }
        if let Some((id, until)) = self.going_back.take() {
            // It may have got half way.
            if until < self.now + BACK / 2 {
                let native = std::mem::replace(&mut self.native, Native::IsKilled);
                self.roll_back(id);
                self.native = native;
            }
        }
        if let Some((id, _)) = self.noting.take() {
            // It stays paused.
            self.is_noted(id, Native::IsKilled);
        }
        self.machine = Machine::new(self.settings.clone(), self.words, self.disk.clone());
    }

    /// The machine goes down, as it does in order or by a reset, and starts again: nobody is there, and the daemon has what is on the disk.
    pub fn machine_starts_anew(&mut self) {
        (self.domain, self.standby, self.candidate) = (None, None, None);
        self.remains.clear();
        self.processes.clear();
        self.aside.clear();
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

    /// The operator has told the toolstack to destroy it: it has lost its devices and still runs, and a moment later it is paused.
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

    pub fn ask(&mut self, order: Order) -> Result<(), String> {
        let look = self.look();
        if let Some(act) = self.machine.command(order, &look)? {
            self.take(act);
        }
        self.disk = self.machine.record.clone();
        if let (Order::Park, Some(d)) = (order, &mut self.domain) {
            // Whoever has started it: it is to go.
            d.is_others = false;
        }
        Ok(())
    }

    /// It is to be of the new image, which has a flaw or not.
    pub fn upgrade(&mut self, flaw: Option<Flaw>) -> Result<(), String> {
        let look = self.look();
        self.machine.upgrade(with(flaw), false, &look)?;
        self.disk = self.machine.record.clone();
        Ok(())
    }

    pub fn count(&self, what: &str) -> u64 {
        self.machine.record.counts.get(what).copied().unwrap_or(0)
    }

    pub fn is_well(&self) -> bool {
        let is_whole = |d: &Instance| d.end.is_none() && !d.is_paused && d.does == Does::Its;
        self.machine.state() == "up" && self.domain.as_ref().is_some_and(is_whole)
    }
}
