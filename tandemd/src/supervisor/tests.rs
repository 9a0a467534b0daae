//! The machine in a world of its own: a driver domain that fails in every way, a toolstack that takes its time, others that use the
//! same toolstack, and a daemon that may be killed at any moment.

use super::health::{Beat, Queue};
use super::look::{Act, Domain, Errand, Look, Way};
use super::machine::Machine;
use super::record::{Mode, Record};
use super::settings::Settings;
use control::{Image, Order};
use proptest::prelude::*;
use std::time::Duration;
use xen_abi::sched as reason;

const TICK: Duration = Duration::from_millis(100);
/// How long the toolstack takes, and how long a domain until it is the way out.
const CREATE: Duration = Duration::from_millis(900);
const DESTROY: Duration = Duration::from_millis(400);
/// So long of that a domain has lost its name and its devices, and memory is left.
const CLEAR: Duration = Duration::from_millis(200);
const ATTACH: Duration = Duration::from_millis(300);
/// So long one has spun that is wedged.
const WEDGED: Duration = Duration::from_millis(500);
const BOOT: Duration = Duration::from_secs(3);

/// Looks at a driver domain of disks, of whose devices its driver has taken hold.
fn disks_look(seconds: u64, way: Way) -> Look {
    let beat = Beat { vcpu: 0, upcalls: 1, ..Beat::default() };
    let domain = Some(Domain { id: 5, beats: vec![beat], ..Domain::default() });
    let way = Some(way);
    Look {
        now: Duration::from_secs(seconds),
        domain,
        has_all: true,
        has_devices: true,
        is_served: true,
        way,
        ..Look::default()
    }
}

fn disks_machine() -> Machine {
    let mut machine = Machine::new(settings(), &super::words::DISK, Record::default());
    for _ in 0..4 {
        assert_eq!(machine.next(&disks_look(1, Way { is_idle: true, ..Way::default() })), None);
    }
    assert_eq!(machine.state(), "up");
    machine
}

#[test]
fn a_disks_back_end_that_writes_nonsense_is_replaced() {
    let mut machine = disks_machine();
    let act = machine.next(&disks_look(2, Way { has_lied: true, ..Way::default() }));
    assert_eq!((act, machine.record.counts.get("bad-ring")), (Some(Act::Quarantine(5)), Some(&1)));
    assert!(machine.said.iter().any(|line| line.contains("ring")), "{:?}", machine.said);
}

#[test]
fn a_disks_back_end_that_never_answers_is_replaced() {
    let mut machine = disks_machine();
    let stuck = Way { queue: Queue { is_waiting: true, taken: 1 }, ..Way::default() };
    assert_eq!(machine.next(&disks_look(10, stuck)), None);
    assert_eq!(machine.next(&disks_look(19, stuck)), None);
    assert_eq!(machine.next(&disks_look(20, stuck)), Some(Act::Quarantine(5)));
}

#[test]
fn a_disks_recovery_is_complete_with_its_first_answer_or_when_nobody_asks() {
    for is_idle in [true, false] {
        let mut machine = disks_machine();
        machine.said.clear();
        let gone = Look { domain: None, way: None, ..disks_look(2, Way::default()) };
        assert_eq!(machine.next(&gone), Some(Act::Create));
        let created = Look { way: None, errand: Errand::Done(Ok(())), ..disks_look(3, Way::default()) };
        assert_eq!(machine.next(&created), None);
        let way = Way { queue: Queue { is_waiting: true, taken: 1 }, ..Way::default() };
        assert_eq!(machine.next(&disks_look(4, Way { is_idle, ..way })), None);
        assert_eq!(machine.next(&disks_look(5, Way { came: u64::from(!is_idle), is_idle, ..way })), None);
        let line = machine.said.iter().find(|line| line.starts_with("recovered, ")).expect("a time line");
        assert!(line.contains("back end 2000 ms") && line.contains("first answer 3000 ms") != is_idle, "{line}");
        assert_eq!(machine.record.outage, if is_idle { 2000 } else { 3000 });
    }
}

#[test]
fn one_that_waits_takes_the_place_of_a_disks_driver_domain() {
    let settings = Settings { standby: 1, ..settings() };
    let mut machine = Machine::new(settings, &super::words::DISK, Record::default());
    let beat = Beat { vcpu: 0, upcalls: 1, ..Beat::default() };
    let standby = Some(Domain { id: 6, beats: vec![beat], ..Domain::default() });
    let idle = Way { is_idle: true, ..Way::default() };
    let up = |seconds| Look { standby: standby.clone(), ..disks_look(seconds, idle) };
    for _ in 0..4 {
        assert_eq!(machine.next(&up(1)), None);
    }
    let panicked = Domain { id: 5, end: Some((reason::SHUTDOWN_CRASH, false)), ..Domain::default() };
    let dead = Look { domain: Some(panicked), way: None, ..up(2) };
    assert_eq!(machine.next(&dead), Some(Act::Quarantine(5)));
    assert_eq!(machine.next(&dead), Some(Act::Take(5)));
    let gone = Look { domain: None, has_all: false, way: None, remains: vec![5], ..up(3) };
    assert_eq!(machine.next(&gone), Some(Act::Promote(6)));
    let named = Look { domain: standby.clone(), standby: None, ..gone };
    assert_eq!(machine.next(&named), Some(Act::HandOver(6)));
    let has_all = Look { has_all: true, ..named };
    assert_eq!(machine.next(&has_all), None);
    // What is left of the old one waits until the guest has its disk.
    assert_eq!(machine.next(&Look { now: Duration::from_secs(4), ..has_all.clone() }), None);
    let served = Look { now: Duration::from_secs(5), way: Some(Way { came: 1, ..idle }), ..has_all };
    let acts: Vec<_> = (0..3).filter_map(|_| machine.next(&served)).collect();
    assert_eq!((acts, machine.record.counts["recovered"]), (vec![Act::ClearAway(5)], 1));
}

fn settings() -> Settings {
    toml::from_str("config = \"/dd.cfg\"\ncrashes = 3\nwithin-s = 60\nback-off-ms = 500\nready-s = 20").unwrap()
}

/// What the driver domain does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Its,
    Spins,
    Boots,
    Hangs,
}

#[derive(Clone, Debug)]
struct Instance {
    id: u16,
    age: Duration,
    does: Does,
    end: Option<(u32, bool)>,
    ended_at: Option<Duration>,
    is_paused: bool,
    beat: Beat,
    /// How long it has taken no event.
    spun: Duration,
    taken: u64,
    is_others: bool,
    has_devices: bool,
    /// The hypervisor can roll it back.
    is_noted: bool,
    /// What it was started with.
    image: Image,
}

impl Instance {
    fn seen(&self, now: Duration) -> Domain {
        let ended_for = self.ended_at.map_or(Duration::ZERO, |at| now - at);
        let is_paused = self.is_paused;
        Domain { id: self.id, end: self.end, ended_for, is_dying: false, is_paused, beats: vec![self.beat] }
    }

    fn get_devices(&mut self) {
        self.has_devices = true;
        if self.image == with(Some(Flaw::NotReady)) {
            self.does = Does::Hangs;
        }
    }

    fn pass(&mut self) {
        if self.end.is_some() || self.is_paused {
            return;
        }
        self.age += TICK;
        if self.does == Does::Boots && self.age >= BOOT {
            if !self.has_devices {
                // It waits for them.
                return;
            }
            self.does = Does::Its;
        }
        self.beat.run += TICK;
        match self.does {
            Does::Boots => {}
            Does::Spins => {
                self.spun += TICK;
                self.beat.wedged_for = (self.spun >= WEDGED).then_some(self.spun);
            }
            Does::Its | Does::Hangs => {
                self.beat.upcalls += 1;
                self.taken += u64::from(self.does == Does::Its);
            }
        }
    }
}

/// What can be wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    /// The toolstack does not take it.
    NotCreated,
    NeverBoots,
    Panics,
    /// It waits for devices, and does nothing with them.
    NotReady,
}

/// An image that is new, with this flaw.
fn with(flaw: Option<Flaw>) -> Image {
    Image { kernel: Some(format!("/boot/{flaw:?}")), ..Image::default() }
}

fn new() -> Image {
    with(None)
}

/// A process of the toolstack's, and when it is done.
#[derive(Clone, Copy, Debug)]
struct Process {
    act: Act,
    until: Duration,
    /// It has cleared away what was left of somebody who had neither name nor devices.
    is_released: bool,
}

/// How far what is done without the toolstack gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Native {
    Works,
    Fails,
    IsKilled,
}

struct World {
    now: Duration,
    settings: Settings,
    machine: Machine,
    /// What is on the disk.
    disk: Record,
    domain: Option<Instance>,
    /// The one that waits.
    standby: Option<Instance>,
    /// The one that is tried.
    candidate: Option<Instance>,
    /// What is left of others.
    remains: Vec<Instance>,
    /// What can be done without the toolstack: all, nothing, or the next thing half, and then the daemon is killed.
    native: Native,
    processes: Vec<Process>,
    /// Of those, what goes on beside others.
    aside: Vec<Process>,
    nr_domains: u16,
    has_devices: bool,
    /// The next instances never become ready.
    is_broken: bool,
    log: Vec<String>,
    acts: Vec<Act>,
}

impl World {
    fn new() -> Self {
        Self::with(settings())
    }

    fn with(settings: Settings) -> Self {
        Self {
            now: Duration::from_secs(100),
            machine: Machine::new(settings.clone(), &super::words::NET, Record::default()),
            settings,
            disk: Record::default(),
            domain: None,
            standby: None,
            candidate: None,
            remains: Vec::new(),
            native: Native::Works,
            processes: Vec::new(),
            aside: Vec::new(),
            nr_domains: 0,
            has_devices: true,
            is_broken: false,
            log: Vec::new(),
            acts: Vec::new(),
        }
    }

    /// One that is up.
    fn up() -> Self {
        let mut world = Self::new();
        world.run(Duration::from_secs(8));
        assert_eq!(world.machine.state(), "up", "{:?}", world.log);
        world
    }

    /// One that is up, and another one that waits.
    fn with_standby() -> Self {
        let mut world = Self::with(Settings { standby: 1, ..settings() });
        world.run(Duration::from_secs(20));
        assert_eq!(world.machine.state(), "up", "{:?}", world.log);
        assert!(world.log.iter().any(|line| line.contains("waits to take its place")), "{:?}", world.log);
        assert_eq!(world.machine.standby(), Some(true));
        world
    }

    /// One that is up, and can be rolled back.
    fn with_snapshot() -> Self {
        let mut world = Self::with(Settings { snapshot: true, ..settings() });
        world.run(Duration::from_secs(20));
        assert_eq!((world.machine.state(), world.machine.snapshot()), ("up", Some(true)), "{:?}", world.log);
        assert!(world.standby.is_none() && world.nr_domains == 1);
        world
    }

    fn add_domain(&mut self) {
        let image = self.machine.record.image_to_start().clone();
        self.domain = Some(self.instance(true, image));
    }

    fn instance(&mut self, has_devices: bool, image: Image) -> Instance {
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
            is_others: false,
            has_devices,
            is_noted: false,
            image,
        }
    }

    fn look(&mut self) -> Look {
        let now = self.now;
        let is_over = |process: &Process| process.until <= now;
        for over in self.aside.iter().filter(|process| is_over(process)) {
            self.remains.retain(|d| over.act != Act::ClearAway(d.id));
        }
        self.aside.retain(|process| !is_over(process));
        self.release();
        let domain = self.domain.as_ref().map(|d| d.seen(self.now));
        let is_way = |d: &&Instance| matches!(d.does, Does::Its | Does::Spins) && d.end.is_none();
        let way = self.domain.as_ref().filter(is_way).map(|d| Way {
            is_card: false,
            queue: Queue { is_waiting: false, taken: d.taken },
            came: d.taken,
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
        Look {
            now: self.now,
            domain,
            has_all,
            is_probed: has_all && way.is_some(),
            has_link: has_all && way.is_some(),
            standby: self.standby.as_ref().map(|d| d.seen(self.now)),
            candidate: self.candidate.as_ref().map(|d| d.seen(self.now)),
            remains: self.remains.iter().map(|d| d.id).filter(|id| !self.is_cleared(*id)).collect(),
            snapshots: self.all().filter(|d| d.is_noted).map(|d| d.id).collect(),
            is_clearing: !self.aside.is_empty(),
            way,
            has_devices: self.has_devices,
            is_served: true,
            errand,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Instance> {
        self.domain.iter().chain(&self.standby).chain(&self.candidate).chain(&self.remains)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Instance> {
        self.domain.iter_mut().chain(&mut self.standby).chain(&mut self.candidate).chain(&mut self.remains)
    }

    fn is_cleared(&self, id: u16) -> bool {
        self.aside.iter().any(|process| process.act == Act::ClearAway(id))
    }

    /// Who is destroyed loses its name and its devices before its memory.
    fn release(&mut self) {
        let Some(process) = self.processes.first_mut() else { return };
        if let (Act::Destroy(id), true) = (process.act, self.now + CLEAR >= process.until) {
            process.is_released |= self.domain.take_if(|d| d.id == id).is_some();
        }
    }

    /// What the toolstack does in the end.
    fn complete(&mut self, process: Process) -> Result<(), String> {
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

    fn take(&mut self, act: Act) {
        self.acts.push(act);
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
                let ours = self.domain.as_mut().filter(|d| d.id == id).expect("who gets devices has the name");
                if self.native == Native::Works && self.has_devices {
                    ours.get_devices();
                }
            }
            Act::Note(id) => {
                let native = self.native;
                let there = self.all_mut().find(|d| d.id == id).expect("who is noted is there");
                assert!(!there.has_devices, "the hypervisor does not know how to give its devices back");
                there.is_noted = native == Native::Works;
                there.is_paused = native == Native::IsKilled;
            }
            Act::RollBack(id) => {
                assert!(self.domain.is_none(), "somebody has the place");
                let image = self.machine.record.image_to_start().clone();
                let at = self.remains.iter().position(|d| d.id == id);
                let back = at.map(|at| self.remains.remove(at)).or_else(|| self.standby.take_if(|d| d.id == id));
                let mut back = back.expect("who is rolled back has neither name nor devices");
                assert!(back.is_noted && !back.has_devices && back.image == image, "{back:?}");
                if self.native == Native::Fails {
                    back.is_noted = false;
                    return self.remains.push(back);
                }
                (back.end, back.ended_at, back.does, back.age) = (None, None, Does::Boots, BOOT);
                (back.spun, back.beat.wedged_for) = (Duration::ZERO, None);
                back.is_paused = self.native == Native::IsKilled;
                self.standby = Some(back);
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

    /// The daemon does what is to be done now. It may be killed before it does the act of that number.
    fn step(&mut self, killed_before: Option<usize>) {
        let mut look = self.look();
        let mut count = 0;
        while let Some(act) = self.machine.next(&look) {
            self.disk = self.machine.record.clone();
            if killed_before == Some(count) {
                return self.kill();
            }
            self.take(act);
            if self.native == Native::IsKilled
                && matches!(act, Act::Take(_) | Act::HandOver(_) | Act::Note(_) | Act::RollBack(_))
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

    fn kill(&mut self) {
        // What clears away goes on without it, and the next one does not know.
        for process in std::mem::take(&mut self.aside) {
            self.remains.retain(|d| process.act != Act::ClearAway(d.id));
        }
        self.machine = Machine::new(self.settings.clone(), &super::words::NET, self.disk.clone());
    }

    fn pass(&mut self) {
        self.now += TICK;
        self.domain.iter_mut().chain(&mut self.standby).chain(&mut self.candidate).for_each(Instance::pass);
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.pass();
            self.step(None);
        }
    }

    fn end(&mut self, code: u32, by_hypervisor: bool) {
        if let Some(d) = self.domain.as_mut().filter(|d| d.end.is_none()) {
            (d.end, d.ended_at) = (Some((code, by_hypervisor)), Some(self.now));
        }
    }

    fn ask(&mut self, order: Order) -> Result<(), String> {
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
    fn upgrade(&mut self, flaw: Option<Flaw>) -> Result<(), String> {
        let look = self.look();
        self.machine.upgrade(with(flaw), false, &look)?;
        self.disk = self.machine.record.clone();
        Ok(())
    }

    fn count(&self, what: &str) -> u64 {
        self.machine.record.counts.get(what).copied().unwrap_or(0)
    }

    fn is_well(&self) -> bool {
        let is_whole = |d: &Instance| d.end.is_none() && !d.is_paused && d.does == Does::Its;
        self.machine.state() == "up" && self.domain.as_ref().is_some_and(is_whole)
    }
}

#[test]
fn it_is_started_and_started_again_however_it_ends() {
    type End = fn(&mut World);
    let ends: [(&str, End); 7] = [
        ("panicked", |w| w.end(reason::SHUTDOWN_CRASH, false)),
        ("crashed", |w| w.end(reason::SHUTDOWN_CRASH, true)),
        ("watchdog", |w| w.end(reason::SHUTDOWN_WATCHDOG, false)),
        ("rebooted", |w| w.end(reason::SHUTDOWN_REBOOT, false)),
        ("destroyed", |w| w.domain = None),
        ("wedged", |w| w.domain.as_mut().unwrap().does = Does::Spins),
        ("restart", |w| w.ask(Order::Restart).unwrap()),
    ];
    for (name, end) in ends {
        let mut world = World::up();
        let before = world.domain.as_ref().unwrap().id;
        end(&mut world);
        world.run(Duration::from_secs(10));
        assert!(world.is_well(), "{name}: {} {:?}", world.machine.state(), world.log);
        assert_ne!(world.domain.as_ref().unwrap().id, before);
        assert_eq!((world.count(name), world.count("recovered")), (1, 2), "{name}: {:?}", world.machine.record);
        let line = world.machine.record.last.last().unwrap();
        assert!(line.starts_with(name) && line.contains("first packet in"), "{line}");
    }
}

#[test]
fn it_is_told_how_long_nobody_had_noticed() {
    for (cause, least, most) in [("panicked", 100, 100), ("wedged", 500, 600)] {
        let mut world = World::up();
        match cause {
            "wedged" => world.domain.as_mut().unwrap().does = Does::Spins,
            _ => world.end(reason::SHUTDOWN_CRASH, false),
        }
        world.run(Duration::from_secs(10));
        let line = world.machine.record.last.last().unwrap();
        let noticed = line.strip_prefix(&format!("{cause}: noticed ")).and_then(|rest| rest.split(' ').next());
        let noticed: u64 = noticed.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
        assert!((least..=most).contains(&noticed), "{line}");
        assert!(world.machine.record.outage > noticed, "{line}");
    }
}

#[test]
fn it_stops_before_anything_is_taken_from_it() {
    let mut world = World::up();
    world.acts.clear();
    world.domain.as_mut().unwrap().does = Does::Spins;
    world.run(Duration::from_secs(10));
    assert_eq!(world.acts, [Act::Quarantine(1), Act::Destroy(1), Act::Create]);
}

#[test]
fn one_that_is_replaced_for_no_fault_of_its_own_sends_what_it_has() {
    let mut world = World::up();
    world.acts.clear();
    let began = world.now;
    world.ask(Order::Restart).unwrap();
    assert_eq!(world.acts, [Act::Drain(1)]);
    // Killed while it does so: it goes all the same.
    world.kill();
    while world.acts.len() < 2 {
        world.run(TICK);
    }
    assert!(world.acts[1] == Act::Quarantine(1) && world.now >= began + TICK);
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
    world.acts.clear();
    world.domain.as_mut().unwrap().is_paused = true;
    world.end(reason::SHUTDOWN_CRASH, false);
    world.ask(Order::Restart).unwrap();
    assert_eq!(world.acts, [Act::Quarantine(2)], "one that has ended sends nothing");
}

#[test]
fn who_is_busy_or_gets_no_time_is_left_alone() {
    let mut world = World::up();
    world.acts.clear();
    world.run(Duration::from_secs(300));
    world.domain.as_mut().unwrap().is_paused = true;
    world.run(Duration::from_secs(300));
    assert_eq!(world.acts, []);
}

#[test]
fn one_that_the_operator_shuts_down_rests_until_somebody_starts_it() {
    let mut world = World::up();
    world.end(reason::SHUTDOWN_POWEROFF, false);
    world.run(Duration::from_secs(100));
    assert_eq!((world.machine.state(), world.domain.is_none()), ("off", true));
    world.kill();
    world.run(Duration::from_secs(10));
    assert_eq!(world.machine.state(), "off", "the next daemon knows");
    world.add_domain();
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
    world.domain = None;
    world.run(Duration::from_secs(10));
    assert!(world.is_well(), "it is looked after again");
}

#[test]
fn one_that_always_fails_is_parked_after_longer_and_longer_waits() {
    let mut world = World::up();
    world.is_broken = true;
    world.end(reason::SHUTDOWN_CRASH, false);
    let mut starts = Vec::new();
    for _ in 0..1000 {
        world.run(TICK);
        if world.acts.last() == Some(&Act::Create) {
            starts.push(world.now);
            world.acts.clear();
        }
        if world.domain.as_ref().is_some_and(|d| d.age > Duration::from_secs(1)) {
            world.end(reason::SHUTDOWN_CRASH, true);
        }
    }
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true), "{:?}", world.log);
    assert!(world.log.iter().any(|line| line.contains("failed 4 times within 60 s")), "{:?}", world.log);
    let waits: Vec<Duration> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.len() == 2 && waits[1] >= waits[0] + Duration::from_millis(400), "{waits:?}");
    world.is_broken = false;
    assert!(world.ask(Order::Unpark).is_ok());
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
    assert!(world.ask(Order::Unpark).unwrap_err().contains("up"));
}

#[test]
fn one_that_does_not_become_ready_has_failed() {
    let mut world = World::new();
    world.is_broken = true;
    world.run(Duration::from_secs(22));
    assert_eq!(world.count("not-ready"), 1);
    world.is_broken = false;
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
}

#[test]
fn without_restart_it_is_parked_and_cleared_away() {
    let mut world = World::with(Settings { restart: false, ..settings() });
    world.run(Duration::from_secs(8));
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(30));
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true));
}

#[test]
fn parked_by_the_operator_it_is_gone_and_stays_so() {
    let mut world = World::up();
    world.ask(Order::Park).unwrap();
    world.run(Duration::from_secs(60));
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true));
    world.kill();
    world.run(Duration::from_secs(60));
    assert_eq!(world.machine.state(), "parked");
    world.ask(Order::Unpark).unwrap();
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
}

#[test]
fn one_that_was_just_created_when_the_operator_parks_it_goes_too() {
    // An earlier daemon has asked for it; this one has not looked at what became of that.
    let mut world = World::new();
    world.run(TICK * 9);
    world.pass();
    world.kill();
    world.run(TICK);
    assert!(world.domain.is_some() && world.ask(Order::Park).is_ok());
    world.run(Duration::from_secs(10));
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true));
}

#[test]
fn one_that_others_start_and_that_fails_at_once_was_wanted() {
    let mut world = World::up();
    world.end(reason::SHUTDOWN_POWEROFF, false);
    world.run(Duration::from_secs(10));
    assert_eq!(world.machine.state(), "off");
    world.add_domain();
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(10));
    assert!(world.is_well(), "{} {:?}", world.machine.state(), world.domain);
}

#[test]
fn the_next_daemon_stops_it_before_anything_is_taken_from_it() {
    let mut world = World::up();
    world.acts.clear();
    world.domain.as_mut().unwrap().does = Does::Spins;
    while world.machine.record.going.is_none() {
        world.pass();
        // Killed when it is written down that it has to go, and nothing was done to it.
        world.step(Some(0));
    }
    assert_eq!(world.acts, []);
    world.run(Duration::from_secs(10));
    assert_eq!(world.acts, [Act::Quarantine(1), Act::Destroy(1), Act::Create]);
    assert!(world.is_well());
}

#[test]
fn without_restart_an_order_is_one_still() {
    let mut world = World::with(Settings { restart: false, ..settings() });
    world.run(Duration::from_secs(8));
    world.ask(Order::Restart).unwrap();
    world.run(Duration::from_secs(10));
    assert!(world.is_well(), "{}", world.machine.state());
    assert_eq!(world.domain.as_ref().unwrap().id, 2);
}

#[test]
fn it_waits_for_a_device_that_is_gone() {
    let mut world = World::up();
    world.has_devices = false;
    world.run(Duration::from_secs(100));
    assert_eq!((world.count("device-gone"), world.domain.is_none()), (1, true));
    assert_eq!(world.log.iter().filter(|line| line.contains("waits for its device")).count(), 1);
    world.has_devices = true;
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
}

#[test]
fn one_that_was_left_half_built_is_replaced() {
    let mut world = World::with(Settings { ready_s: 1000, ..settings() });
    world.add_domain();
    world.domain.as_mut().unwrap().is_paused = true;
    world.run(Duration::from_secs(45));
    assert!(world.is_well(), "{:?}", world.log);
}

#[test]
fn the_one_that_waits_takes_the_place_and_another_one_waits() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.acts.clear();
    let began = world.now;
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.is_well() {
        world.run(TICK);
    }
    // Nobody has booted.
    assert!(world.now - began < BOOT, "{:?}", world.log);
    let old = waits - 1;
    let at_once = [Act::Quarantine(old), Act::Take(old), Act::Promote(waits), Act::HandOver(waits)];
    assert_eq!(world.acts[..4], at_once);
    assert_eq!(world.domain.as_ref().unwrap().id, waits);
    world.run(Duration::from_secs(20));
    assert_eq!(world.acts[4..], [Act::ClearAway(old), Act::CreateStandby]);
    assert!(world.standby.as_ref().is_some_and(|d| d.id == waits + 1));
    let line = world.machine.record.last.last().unwrap();
    assert!(
        line.contains("released 100 ms, start 100 ms, handed over 100 ms") && line.contains("first packet in"),
        "{line}"
    );
    assert!(line.contains(", link "), "{line}");
}

#[test]
fn what_cannot_be_done_without_the_toolstack_the_toolstack_does() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.acts.clear();
    world.native = Native::Fails;
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.is_well() {
        world.run(TICK);
    }
    let old = waits - 1;
    let in_turn = [
        Act::Quarantine(old),
        Act::Take(old),
        Act::Destroy(old),
        Act::Promote(waits),
        Act::HandOver(waits),
        Act::Attach(waits),
    ];
    assert_eq!(world.acts[..6], in_turn);
}

#[test]
fn who_is_killed_half_way_is_followed_by_one_that_finds_the_rest_to_do() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.end(reason::SHUTDOWN_CRASH, false);
    world.native = Native::IsKilled;
    while world.native == Native::IsKilled {
        world.run(TICK);
    }
    // Its devices were taken, and it has the name.
    assert!(world.domain.as_ref().is_some_and(|d| d.id == waits - 1 && !d.has_devices));
    world.run(TICK * 3);
    assert!(world.domain.as_ref().is_some_and(|d| d.id == waits && d.has_devices), "{:?}", world.acts);
    world.run(Duration::from_secs(20));
    assert!(world.is_well() && world.remains.is_empty());
}

#[test]
fn the_one_that_waits_takes_the_place_when_the_old_one_has_no_devices_and_before_its_memory_is_back() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.acts.clear();
    world.native = Native::Fails;
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.acts.last() != Some(&Act::Destroy(waits - 1)) {
        world.run(TICK);
    }
    world.run(DESTROY - CLEAR - TICK);
    assert_eq!((world.acts.len(), world.domain.is_some()), (3, true), "the old one has the devices still");
    world.run(TICK);
    assert_eq!(world.acts[3..], [Act::Promote(waits), Act::HandOver(waits), Act::Attach(waits)]);
    assert_eq!(world.aside.len(), 1, "its memory is not back");
    world.run(Duration::from_secs(10));
    let line = world.machine.record.last.last().unwrap();
    assert!(world.is_well() && line.contains(" released 300 ms, start 300 ms, handed over "), "{line}");
}

#[test]
fn one_is_made_only_when_the_old_ones_memory_is_back() {
    let mut world = World::up();
    world.acts.clear();
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.acts.last() != Some(&Act::Create) {
        world.run(TICK);
    }
    let line = world.machine.record.under_way.clone().unwrap();
    let at = |step| line.steps.iter().find(|(said, _)| said == step).map(|(_, at)| *at);
    assert_eq!((at("released"), at("destroyed"), at("start")), (Some(300), Some(500), Some(500)), "{line:?}");
    world.run(Duration::from_secs(10));
    assert!(world.is_well());
}

#[test]
fn one_that_waits_and_ends_while_the_old_one_goes_does_not_get_the_place() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.acts.clear();
    world.native = Native::Fails;
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.acts.last() != Some(&Act::Destroy(waits - 1)) {
        world.run(TICK);
    }
    world.standby.as_mut().unwrap().end = Some((reason::SHUTDOWN_CRASH, true));
    world.run(Duration::from_secs(20));
    assert!(world.is_well() && !world.acts.contains(&Act::Promote(waits)), "{:?}", world.acts);
}

#[test]
fn parked_while_the_old_one_goes_nobody_takes_the_place() {
    let mut world = World::with_standby();
    world.native = Native::Fails;
    world.acts.clear();
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.acts.len() < 2 {
        world.run(TICK);
    }
    world.ask(Order::Park).unwrap();
    world.run(Duration::from_secs(20));
    assert!(world.acts.iter().all(|act| !matches!(act, Act::Promote(_) | Act::Create)), "{:?}", world.acts);
    assert_eq!((world.machine.state(), world.domain.is_none()), ("parked", true));
}

#[test]
fn one_that_is_parked_or_off_has_none_that_waits() {
    for order in [Some(Order::Park), None] {
        let mut world = World::with_standby();
        match order {
            Some(order) => world.ask(order).unwrap(),
            None => world.end(reason::SHUTDOWN_POWEROFF, false),
        }
        world.run(Duration::from_secs(20));
        assert_eq!((world.domain.is_none(), world.standby.is_none()), (true, true), "{order:?}");
        world.ask(Order::Unpark).unwrap();
        world.run(Duration::from_secs(30));
        assert!(world.is_well() && world.standby.is_some());
    }
}

#[test]
fn one_that_waits_and_ends_is_replaced_but_not_at_once() {
    let mut world = World::with_standby();
    let waits = world.standby.as_ref().unwrap().id;
    world.standby.as_mut().unwrap().end = Some((reason::SHUTDOWN_CRASH, true));
    world.run(Duration::from_secs(50));
    assert!(world.is_well() && world.standby.is_none());
    world.run(Duration::from_secs(30));
    assert!(world.standby.as_ref().is_some_and(|d| d.id != waits));
}

#[test]
fn what_cannot_be_handed_over_is_started_anew() {
    let mut world = World::with_standby();
    world.native = Native::Fails;
    world.end(reason::SHUTDOWN_CRASH, false);
    while world.machine.record.promoted.is_none() {
        world.run(TICK);
    }
    world.end(reason::SHUTDOWN_CRASH, true);
    world.run(Duration::from_secs(30));
    assert!(world.is_well(), "{:?}", world.log);
}

#[test]
fn one_with_a_snapshot_boots_is_noted_and_gets_the_devices() {
    let world = World::with_snapshot();
    assert_eq!(world.acts, [Act::CreateStandby, Act::Note(1), Act::Promote(1), Act::HandOver(1)]);
    let line = world.machine.record.last.last().unwrap();
    let steps = ["started: start ", ", created ", ", noted ", ", handed over ", ", first packet in "];
    assert!(steps.iter().all(|step| line.contains(step)), "{line}");
}

#[test]
fn one_with_a_snapshot_that_fails_is_rolled_back_and_takes_its_own_place() {
    let mut world = World::with_snapshot();
    for n in 1..4 {
        world.acts.clear();
        let began = world.now;
        match n {
            2 => world.domain.as_mut().unwrap().does = Does::Spins,
            3 => world.ask(Order::Restart).unwrap(),
            _ => world.end(reason::SHUTDOWN_CRASH, false),
        }
        world.run(TICK * 2);
        while !world.is_well() {
            world.run(TICK);
        }
        assert!(world.now - began < BOOT, "nobody has booted");
        let acts: Vec<Act> = world.acts.iter().copied().filter(|act| !matches!(act, Act::Drain(_))).collect();
        let all = [Act::Quarantine(1), Act::Take(1), Act::RollBack(1), Act::Promote(1), Act::HandOver(1)];
        assert_eq!((acts, world.nr_domains), (all.to_vec(), 1));
        world.run(Duration::from_secs(20));
        let line = world.machine.record.last.last().unwrap();
        assert!(
            line.contains(", start ") && line.contains(", rolled back ") && line.contains("first packet"),
            "{line}"
        );
        assert!(world.is_well() && world.remains.is_empty());
        assert_eq!((world.count("rolled-back"), world.machine.snapshot()), (n, Some(true)));
    }
}

#[test]
fn what_cannot_be_rolled_back_is_cleared_away_and_another_one_boots() {
    type Obstacle = fn(&mut World);
    let obstacles: [Obstacle; 3] =
        [|w| w.native = Native::Fails, |w| w.domain.as_mut().unwrap().is_noted = false, |w| w.domain = None];
    for obstacle in obstacles {
        let mut world = World::with_snapshot();
        obstacle(&mut world);
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(5));
        world.native = Native::Works;
        world.run(Duration::from_secs(25));
        assert!(world.is_well() && world.remains.is_empty(), "{:?} {:?}", world.acts, world.log);
        assert_eq!((world.domain.as_ref().unwrap().id, world.machine.snapshot()), (2, Some(true)), "{:?}", world.acts);
    }
}

#[test]
fn one_that_cannot_be_noted_runs_all_the_same() {
    let mut world = World::with(Settings { snapshot: true, ..settings() });
    world.native = Native::Fails;
    world.run(Duration::from_secs(20));
    assert!(world.is_well());
    assert_eq!((world.nr_domains, world.machine.snapshot()), (1, Some(false)));
}

#[test]
fn what_was_rolled_back_and_is_of_no_use_is_not_rolled_back_again() {
    let mut world = World::with_snapshot();
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.acts.contains(&Act::RollBack(1)) {
        world.run(TICK);
    }
    world.end(reason::SHUTDOWN_CRASH, false);
    world.run(Duration::from_secs(30));
    assert!(world.is_well() && world.domain.as_ref().unwrap().id == 2, "{:?}", world.acts);
    assert_eq!(world.count("rolled-back"), 1);
}

#[test]
fn what_waits_for_its_back_off_to_be_rolled_back_is_not_cleared_away() {
    let mut world = World::with(Settings { snapshot: true, back_off_ms: 4000, ..settings() });
    world.run(Duration::from_secs(20));
    for _ in 0..2 {
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(10));
    }
    assert!(world.is_well() && world.nr_domains == 1 && !world.acts.contains(&Act::ClearAway(1)), "{:?}", world.acts);
}

#[test]
fn who_notes_or_rolls_back_and_is_killed_is_followed_by_one_that_does_it_again() {
    let mut world = World::with(Settings { snapshot: true, ..settings() });
    world.native = Native::IsKilled;
    while world.native == Native::IsKilled {
        world.run(TICK);
    }
    assert!(world.standby.as_ref().is_some_and(|d| d.is_paused));
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.machine.snapshot() == Some(true), "{:?}", world.acts);
    world.end(reason::SHUTDOWN_CRASH, false);
    while !world.acts.contains(&Act::Take(1)) {
        world.run(TICK);
    }
    world.kill();
    world.run(Duration::from_secs(10));
    assert!(world.is_well() && world.nr_domains == 1, "{:?}", world.acts);
}

#[test]
fn a_domain_that_does_not_boot_to_be_noted_has_failed() {
    let mut world = World::with(Settings { snapshot: true, ..settings() });
    world.upgrade(None).unwrap_err();
    world.machine.record.image = with(Some(Flaw::NeverBoots));
    world.run(Duration::from_secs(22));
    assert_eq!(world.count("not-ready"), 1, "{:?}", world.acts);
    world.machine.record.image = with(Some(Flaw::Panics));
    world.run(Duration::from_secs(25));
    assert!(world.count("not-started") >= 1, "{:?} {:?}", world.machine.record.counts, world.acts);
    world.run(Duration::from_secs(60));
    assert_eq!((world.machine.state(), world.standby.is_none()), ("parked", true), "{:?}", world.log);
    world.machine.record.image = Image::default();
    world.ask(Order::Unpark).unwrap();
    world.run(Duration::from_secs(90));
    assert!(world.is_well(), "{} {:?}", world.machine.state(), world.log);
}

#[test]
fn a_new_image_is_noted_and_the_old_instance_comes_back_if_it_is_refused() {
    for flaw in [None, Some(Flaw::NotReady)] {
        let mut world = World::with_snapshot();
        world.upgrade(flaw).unwrap();
        while world.machine.record.upgrades == 0 {
            world.run(TICK);
        }
        world.run(Duration::from_secs(20));
        assert!(world.is_well() && world.remains.is_empty() && world.candidate.is_none(), "{:?}", world.acts);
        let id = if flaw.is_none() { 2 } else { 1 };
        assert_eq!(world.domain.as_ref().unwrap().id, id, "{:?} {:?}", world.acts, world.machine.record.refused);
        assert_eq!((world.nr_domains, world.machine.snapshot()), (2, Some(true)));
        world.end(reason::SHUTDOWN_CRASH, false);
        world.run(Duration::from_secs(20));
        assert!(world.is_well() && world.domain.as_ref().unwrap().id == id && world.nr_domains == 2);
    }
}

#[test]
fn one_of_a_new_image_takes_the_place_when_it_has_booted() {
    for standby in [0, 1] {
        let mut world = World::with(Settings { standby, ..settings() });
        world.run(Duration::from_secs(20));
        let old = world.domain.as_ref().unwrap().id;
        world.acts.clear();
        world.upgrade(None).unwrap();
        assert!(world.upgrade(None).unwrap_err().contains("under way"));
        while world.machine.record.upgrades == 0 {
            world.run(TICK);
        }
        let is_of_standby = |act: &Act| matches!(act, Act::Dismiss(_) | Act::CreateStandby | Act::ClearAway(_));
        let acts: Vec<Act> = world.acts.iter().copied().filter(|act| !is_of_standby(act)).collect();
        let new_one = world.domain.as_ref().unwrap().id;
        let replaced =
            [Act::Drain(old), Act::Quarantine(old), Act::Take(old), Act::Promote(new_one), Act::HandOver(new_one)];
        assert_eq!(acts, [&[Act::CreateCandidate], &replaced[..]].concat(), "{:?}", world.log);
        let line = world.machine.record.last.last().unwrap();
        assert!(line.starts_with("upgrade: ") && line.contains("handed over"), "{line}");
        assert!(world.machine.record.outage < 3000, "it had booted before: {line}");
        assert_eq!((world.machine.record.refused.as_str(), &world.machine.record.image), ("", &new()));
        world.run(Duration::from_secs(20));
        assert!(world.is_well() && world.machine.record.failures.is_empty());
        assert_eq!(world.standby.as_ref().map(|d| d.image.clone()), (standby == 1).then(new));
        // What fails later comes back of the new image, by the next daemon too.
        world.kill();
        world.domain = None;
        world.run(Duration::from_secs(20));
        assert!(world.is_well() && world.domain.as_ref().unwrap().image == new());
        let look = world.look();
        world.machine.upgrade(Image::default(), true, &look).unwrap();
        let upgrade = world.machine.record.upgrade.as_ref().unwrap();
        assert_eq!(upgrade.to, Image::default(), "as configured is without what was said before");
    }
}

#[test]
fn an_image_that_is_of_no_use_is_refused_and_the_old_one_stays_or_comes_back() {
    for (flaw, words, is_disturbed) in [
        (Flaw::NotCreated, "no kernel", false),
        (Flaw::NeverBoots, "not booted within 20 s", false),
        (Flaw::Panics, "ended while it booted", false),
        (Flaw::NotReady, "of the new one: its interface was not there", true),
    ] {
        for standby in [0, 1] {
            let mut world = World::with(Settings { standby, ..settings() });
            world.run(Duration::from_secs(20));
            let old = world.domain.as_ref().unwrap().id;
            world.upgrade(Some(flaw)).unwrap();
            world.run(Duration::from_secs(100));
            let record = &world.machine.record;
            assert_eq!((record.upgrades, &record.image), (1, &Image::default()), "{flaw:?} {:?}", world.log);
            assert!(record.refused.contains(words), "{flaw:?}: {}", record.refused);
            assert!(world.log.iter().any(|line| line.contains("the upgrade is refused: ")));
            assert!(record.failures.is_empty(), "it is not held against the old image");
            assert!(world.is_well() && world.candidate.is_none());
            let domain = world.domain.as_ref().unwrap();
            assert_eq!((domain.id != old, &domain.image), (is_disturbed, &Image::default()), "{flaw:?}");
            assert_eq!(world.standby.is_some(), standby == 1, "{flaw:?}");
        }
    }
}

#[test]
fn what_happens_to_the_old_one_or_is_ordered_meanwhile_calls_an_upgrade_off() {
    type Meanwhile = fn(&mut World);
    let all: [(Meanwhile, &str); 3] = [
        (|w| w.end(reason::SHUTDOWN_CRASH, false), "of the old one, meanwhile"),
        (|w| w.ask(Order::Restart).unwrap(), "something else"),
        (|w| w.ask(Order::Park).unwrap(), "something else"),
    ];
    for (meanwhile, words) in all {
        let mut world = World::up();
        world.upgrade(None).unwrap();
        world.run(Duration::from_secs(2));
        assert!(world.candidate.is_some() && world.machine.upgrading().is_some());
        meanwhile(&mut world);
        world.run(Duration::from_secs(30));
        let record = &world.machine.record;
        assert!(record.refused.contains(words), "{}", record.refused);
        assert_eq!((world.candidate.is_none(), &record.image), (true, &Image::default()));
        assert!(world.is_well() || record.mode == Mode::Parked);
        if record.mode == Mode::Parked {
            assert!(world.upgrade(None).unwrap_err().contains("it is parked"));
        }
    }
}

#[test]
fn one_of_disks_is_tried_goes_and_is_started_of_the_new_image() {
    let mut machine = disks_machine();
    let idle = |seconds| disks_look(seconds, Way { is_idle: true, ..Way::default() });
    let tried = |at_ms, run_ms| {
        let beat = Beat { upcalls: 1, run: Duration::from_millis(run_ms), ..Beat::default() };
        let candidate = Some(Domain { id: 6, beats: vec![beat], ..Domain::default() });
        Look { now: Duration::from_millis(at_ms), candidate, ..idle(0) }
    };
    machine.upgrade(new(), false, &idle(2)).unwrap();
    assert_eq!(machine.next(&idle(3)), Some(Act::CreateCandidate));
    assert_eq!(machine.next(&Look { errand: Errand::Done(Ok(())), ..tried(4000, 900) }), None);
    assert_eq!(machine.next(&tried(7000, 1000)), Some(Act::Dismiss(6)));
    assert_eq!(machine.record.image_to_start(), &new());
    assert_eq!(machine.next(&Look { errand: Errand::Done(Ok(())), ..idle(8) }), Some(Act::Quarantine(5)));
    assert_eq!(machine.next(&idle(8)), Some(Act::Destroy(5)));
    let gone = Look { domain: None, way: None, errand: Errand::Done(Ok(())), ..idle(9) };
    assert_eq!((machine.next(&gone), machine.record.image_to_start()), (Some(Act::Create), &new()));
    assert_eq!(machine.next(&Look { errand: Errand::Done(Ok(())), way: None, ..idle(10) }), None);
    assert_eq!(machine.next(&idle(11)), None);
    assert_eq!((machine.record.upgrades, &machine.record.image, machine.record.refused.as_str()), (1, &new(), ""));
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Ends(u32, bool),
    Destroyed,
    Spins,
    CreatedByOthers,
    StandbyEnds,
    StandbyDestroyed,
    Device(bool),
    CandidateEnds,
    CandidateDestroyed,
    Upgrade(Option<Flaw>),
    Native(Native),
    SnapshotsLost,
    Asked(Order),
    Passes(u64),
    Killed(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let code = prop_oneof![Just(0_u32), Just(1), Just(3), Just(4)];
    let order = prop_oneof![Just(Order::Restart), Just(Order::Park), Just(Order::Unpark)];
    let flaw = prop_oneof![Just(Flaw::NotCreated), Just(Flaw::NeverBoots), Just(Flaw::Panics), Just(Flaw::NotReady)];
    let event = prop_oneof![
        3 => (code, any::<bool>()).prop_map(|(code, by_hypervisor)| Event::Ends(code, by_hypervisor && code == 3)),
        2 => Just(Event::Destroyed),
        2 => Just(Event::Spins),
        1 => Just(Event::CreatedByOthers),
        1 => Just(Event::StandbyEnds),
        1 => Just(Event::StandbyDestroyed),
        1 => Just(Event::CandidateEnds),
        1 => Just(Event::CandidateDestroyed),
        3 => proptest::option::of(flaw).prop_map(Event::Upgrade),
        1 => any::<bool>().prop_map(Event::Device),
        2 => prop_oneof![Just(Native::Works), Just(Native::Fails), Just(Native::IsKilled)].prop_map(Event::Native),
        1 => Just(Event::SnapshotsLost),
        2 => order.prop_map(Event::Asked),
        8 => (0..60_u64).prop_map(Event::Passes),
        3 => (0..4_usize).prop_map(Event::Killed),
    ];
    proptest::collection::vec(event, 0..30)
}

proptest! {
    #[test]
    fn whatever_happens_and_whenever_the_daemon_is_killed_all_is_well_in_the_end(events in events(), way in 0..3_u8) {
        let (standby, snapshot) = (way % 2, way == 2);
        let mut world = World::with(Settings { standby, snapshot, ..settings() });
        for event in &events {
            match *event {
                Event::Ends(code, by_hypervisor) => world.end(code, by_hypervisor),
                Event::Destroyed => world.domain = None,
                Event::Spins => {
                    if let Some(d) = world.domain.as_mut().filter(|d| d.does == Does::Its) {
                        d.does = Does::Spins;
                    }
                }
                Event::CreatedByOthers if world.domain.is_none() => {
                    world.add_domain();
                    world.domain.as_mut().unwrap().is_others = true;
                }
                Event::CreatedByOthers => {}
                Event::StandbyEnds => {
                    if let Some(d) = &mut world.standby {
                        d.end = Some((reason::SHUTDOWN_CRASH, false));
                    }
                }
                Event::StandbyDestroyed => world.standby = None,
                Event::CandidateEnds => {
                    if let Some(d) = &mut world.candidate {
                        d.end = Some((reason::SHUTDOWN_CRASH, false));
                    }
                }
                Event::CandidateDestroyed => world.candidate = None,
                Event::Upgrade(flaw) => { let _ = world.upgrade(flaw); }
                Event::Device(is_there) => world.has_devices = is_there,
                Event::Native(native) => world.native = native,
                Event::SnapshotsLost => world.all_mut().for_each(|d| d.is_noted = false),
                Event::Asked(order) => { let _ = world.ask(order); }
                Event::Passes(ticks) => world.run(TICK * u32::try_from(ticks).unwrap()),
                Event::Killed(acts) => {
                    world.pass();
                    world.step(Some(acts));
                    world.kill();
                }
            }
        }
        world.has_devices = true;
        world.run(Duration::from_secs(300));
        match world.machine.record.mode {
            Mode::Run => prop_assert!(world.is_well(), "{} {:?} {:?}", world.machine.state(), world.domain, world.log),
            // One that somebody else has started while it was parked is let alone.
            Mode::Parked => prop_assert!(world.domain.as_ref().is_none_or(|d| d.is_others), "{:?}", world.domain),
            Mode::Off => prop_assert!(world.domain.is_none(), "{:?}", world.domain),
        }
        prop_assert_eq!((world.machine.record.going, world.machine.record.promoted), (None, None));
        prop_assert_eq!((world.machine.record.noting, world.machine.record.rolling), (None, None));
        prop_assert_eq!((&world.machine.record.upgrade, world.candidate.is_some()), (&None, false));
        let image = &world.machine.record.image;
        prop_assert!([Image::default(), new()].contains(image), "{:?} is of no use", image);
        prop_assert!(world.remains.is_empty(), "{:?}", world.remains);
        let is_wanted = standby == 1 && world.machine.record.mode == Mode::Run;
        prop_assert_eq!(world.standby.as_ref().is_some_and(|d| d.end.is_none()), is_wanted);
    }
}
