//! A xenstored that serves one domain's ring when it is asked for anything, and a hypervisor that notes the page of the ring.

use super::stand_in::Words;
use super::*;
use crate::fake_store::{Asked, Nodes, Shared};
use crate::hypercall::foreign::WORDS;
use anyhow::bail;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use xen_abi::channel_op::{ChannelSnapshot, SNAPSHOT_COMPRESS, SNAPSHOT_FRAMES};

const DOMAIN: u16 = 7;
const OWN: &str = "/local/domain/7";
const FAR: &str = "/local/domain/2/backend/vif/7/0";
const OWN_REQUEST: u32 = 5;
const RING: usize = 1024;
const REQ_CONS: usize = 512;
const REQ_PROD: usize = 513;
const RSP_CONS: usize = 514;
const RSP_PROD: usize = 515;

struct State {
    nodes: Nodes,
    /// Those of the domain.
    watches: Vec<(String, String)>,
    ring: Rc<Words>,
    console: Rc<Words>,
    /// What xenstored has of a request that is not whole, and what it could not write yet.
    half: Vec<u8>,
    queued: VecDeque<u8>,
    is_paused: bool,
    /// So often it is stopped when it has said the head of a request of its own and not the rest; it has now; answers that it got.
    halves: u32,
    has_said_half: bool,
    nr_answered: u32,
    /// It does not look at its ring.
    is_stuck: bool,
    has_shut_down: bool,
    snapshot: Option<Vec<u32>>,
    why_not: u32,
    /// Who is not xenstored tells it of this at that request of who stands in for it.
    lies: Option<(u32, &'static str)>,
    /// What was told of once more.
    repeated: Vec<String>,
    /// So many snapshots are taken while it is told something.
    told_meanwhile: u32,
    rolled_back: u32,
    /// After so many operations nothing works any more.
    budget: u32,
}

type World = Shared<State>;

fn page() -> Rc<Words> {
    Rc::new(std::array::from_fn::<_, WORDS, _>(|_| AtomicU32::new(0)))
}

fn get(page: &Words, word: usize) -> u32 {
    page[word].load(Ordering::SeqCst)
}

impl State {
    fn set(&mut self, path: &str, value: &str) {
        self.nodes.set(path, value);
        self.fire(path);
    }

    fn fire(&mut self, changed: &str) {
        let absolute = |path: &str| if path.starts_with('/') { path.into() } else { format!("{OWN}/{path}") };
        let of = |(path, _): &&(String, String)| {
            let path = absolute(path);
            changed == path || changed.starts_with(&format!("{path}/"))
        };
        let fired: Vec<(String, String)> = self.watches.iter().filter(of).cloned().collect();
        for (path, token) in fired {
            let seen = if path.starts_with('/') { changed } else { &changed[OWN.len() + 1..] };
            self.say(15, 0, format!("{seen}\0{token}\0").as_bytes());
        }
    }

    fn say(&mut self, kind: u32, request: u32, body: &[u8]) {
        let head = [kind, request, 0, u32::try_from(body.len()).unwrap()];
        self.queued.extend(head.iter().flat_map(|word| word.to_le_bytes()).chain(body.iter().copied()));
    }

    /// The domain says this.
    fn ask(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let at = get(&self.ring, REQ_PROD) as usize % RING;
            let shift = at % 4 * 8;
            let others = get(&self.ring, at / 4) & !(0xff << shift);
            self.ring[at / 4].store(others | u32::from(*byte) << shift, Ordering::SeqCst);
            self.ring[REQ_PROD].fetch_add(1, Ordering::SeqCst);
        }
        self.serve();
    }

    /// xenstored looks at the ring.
    fn serve(&mut self) {
        let ring = Rc::clone(&self.ring);
        while get(&ring, REQ_CONS) != get(&ring, REQ_PROD) {
            let at = get(&ring, REQ_CONS) as usize % RING;
            self.half.push(ring[at / 4].load(Ordering::SeqCst).to_le_bytes()[at % 4]);
            ring[REQ_CONS].fetch_add(1, Ordering::SeqCst);
        }
        loop {
            let word = |n: usize| self.half.get(n * 4..n * 4 + 4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
            let (Some(kind), Some(request), Some(length)) = (word(0), word(1), word(3)) else { break };
            let whole = 16 + length as usize;
            if self.half.len() < whole {
                break;
            }
            let body: Vec<u8> = self.half.drain(..whole).skip(16).collect();
            let parts: Vec<String> =
                body.split(|byte| *byte == 0).map(|part| String::from_utf8(part.to_vec()).unwrap()).collect();
            match kind {
                2 => {
                    self.nr_answered += u32::from(request == OWN_REQUEST);
                    self.lies = self.lies.and_then(|(left, path)| match left.checked_sub(1) {
                        Some(left) => Some((left, path)),
                        None => {
                            self.say(15, 0, format!("{path}\0A1\0").as_bytes());
                            None
                        }
                    });
                    self.say(2, request, b"dd");
                }
                4 if self.watches.contains(&(parts[0].clone(), parts[1].clone())) => self.say(16, request, b"EEXIST\0"),
                4 => {
                    self.watches.push((parts[0].clone(), parts[1].clone()));
                    self.say(4, request, b"OK\0");
                    self.say(15, 0, format!("{}\0{}\0", parts[0], parts[1]).as_bytes());
                }
                21 => {
                    self.watches.clear();
                    self.say(21, request, b"OK\0");
                }
                _ => self.say(16, request, b"ENOSYS\0"),
            }
        }
        while (get(&ring, RSP_PROD).wrapping_sub(get(&ring, RSP_CONS)) as usize) < RING {
            let Some(byte) = self.queued.pop_front() else { break };
            let at = RING + get(&ring, RSP_PROD) as usize % RING;
            let shift = at % 4 * 8;
            let others = get(&ring, at / 4) & !(0xff << shift);
            ring[at / 4].store(others | u32::from(byte) << shift, Ordering::SeqCst);
            ring[RSP_PROD].fetch_add(1, Ordering::SeqCst);
        }
    }

    fn spend(&mut self) -> Result<()> {
        let Some(left) = self.budget.checked_sub(1) else { bail!("killed") };
        self.budget = left;
        Ok(())
    }
}

impl World {
    /// A domain that waits: it has booted, and watches some things.
    fn new() -> Self {
        let state = State {
            nodes: Nodes::default(),
            watches: Vec::new(),
            ring: page(),
            console: page(),
            half: Vec::new(),
            queued: VecDeque::new(),
            is_paused: false,
            halves: 0,
            has_said_half: false,
            nr_answered: 0,
            is_stuck: false,
            has_shut_down: false,
            snapshot: None,
            why_not: 0,
            lies: None,
            repeated: Vec::new(),
            told_meanwhile: 0,
            rolled_back: 0,
            budget: u32::MAX,
        };
        let world = Self::of(state);
        let nodes = [
            ("name", "dd-standby"),
            ("vm", "/vm/7"),
            ("store/ring-ref", "1"),
            ("console/ring-ref", "2"),
            ("control/shutdown", ""),
            ("memory/target", "262144"),
            ("cpu/0/availability", "online"),
            ("device/vif/0/state", "1"),
            ("device/vif/0/backend", FAR),
            ("data", ""),
        ];
        let mut state = world.0.borrow_mut();
        nodes.iter().for_each(|(path, value)| state.set(&format!("{OWN}/{path}"), value));
        state.set("/vm/7/name", "dd-standby");
        state.set(&format!("{FAR}/state"), "2");
        state.watches = watches();
        // It did not begin at the beginning of its ring.
        for word in [REQ_CONS, REQ_PROD, RSP_CONS, RSP_PROD] {
            state.ring[word].store(u32::MAX - 500, Ordering::SeqCst);
        }
        drop(state);
        world
    }

    /// It becomes the driver domain, and does a lot before it dies.
    fn live(&self) {
        let mut state = self.0.borrow_mut();
        state.serve();
        let ring = Rc::clone(&state.ring);
        ring[RSP_CONS].store(get(&ring, RSP_PROD), Ordering::SeqCst);
        for (path, value) in [
            ("name", "dd"),
            ("device/vif/0/state", "4"),
            ("device/vif/0/tx-ring-ref", "8"),
            ("device/pci/0/state", "4"),
            ("device/pci/0/backend", "/local/domain/0/backend/pci/7/0"),
            ("data/link", "up"),
            ("backend/vbd/3/0/state", "4"),
            ("backend/vif/9/0/state", "2"),
            ("error/device/vif/0/error", "none"),
            ("memory/target", "250000"),
        ] {
            state.set(&format!("{OWN}/{path}"), value);
        }
        state.watches.push(("/local/domain/0/backend/pci/7/0/state".into(), "FFFF8".into()));
        state.watches.retain(|(path, _)| path != "cpu");
        // Events that it does not read; more than there is room for.
        (0..60).for_each(|n| state.set(&format!("{OWN}/control/shutdown"), &n.to_string()));
        state.set(&format!("{OWN}/name"), "dd-remains");
        state.set("/vm/7/name", "dd-remains");
        state.serve();
        // It dies while it reads.
        state.ring[RSP_CONS].fetch_add(16, Ordering::SeqCst);
        state.has_shut_down = true;
    }

    fn own(&self) -> BTreeMap<String, String> {
        let state = self.0.borrow();
        let is_its = |path: &str| PARTS.iter().any(|part| path.starts_with(&format!("{OWN}/{part}")));
        state.nodes.all().filter(|(path, _)| is_its(path)).map(|(path, value)| (path.into(), value.into())).collect()
    }

    /// What it finds in its ring when it runs.
    fn reads(&self) -> Vec<String> {
        let mut state = self.0.borrow_mut();
        let mut bytes = Vec::new();
        loop {
            state.serve();
            let (cons, prod) = (get(&state.ring, RSP_CONS), get(&state.ring, RSP_PROD));
            if cons == prod {
                break;
            }
            let at = RING + cons as usize % RING;
            bytes.push(get(&state.ring, at / 4).to_le_bytes()[at % 4]);
            state.ring[RSP_CONS].fetch_add(1, Ordering::SeqCst);
        }
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
            let message: Vec<u8> = bytes.drain(..16 + length).collect();
            assert_eq!(message[..4], [15, 0, 0, 0], "an answer that it has not asked for");
            found.push(String::from_utf8_lossy(&message[16..]).split('\0').next().unwrap().to_string());
        }
        found
    }

    fn note(&mut self, file: &Path) -> Result<ChannelSnapshot> {
        let (mut store, mut hypervisor) = (self.clone(), self.clone());
        super::note(DOMAIN, SNAPSHOT_COMPRESS, file, &mut store, &mut hypervisor)
    }

    fn roll_back(&mut self, file: &Path) -> Result<()> {
        let (mut store, mut hypervisor) = (self.clone(), self.clone());
        super::roll_back(DOMAIN, "dd", file, &mut store, &mut hypervisor)
    }
}

fn watches() -> Vec<(String, String)> {
    let far = format!("{FAR}/state");
    let all = [("backend", "A5"), ("control/shutdown", "A1"), ("cpu", "A2"), ("device", "A3"), ("memory/target", "A4")];
    all.into_iter().chain([(far.as_str(), "A6")]).map(|(path, token)| (path.into(), token.into())).collect()
}

impl crate::fake_store::World for State {
    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn asked(&mut self, what: Asked<'_>) -> Result<()> {
        self.spend()?;
        match what {
            Asked::Read(_) => self.serve(),
            Asked::List | Asked::Change => {}
            Asked::Watch => unreachable!("nothing is watched here"),
        }
        Ok(())
    }

    fn changed(&mut self, change: &Change) {
        match change {
            Change::Write(path, _) | Change::Make { path, .. } | Change::Remove(path) | Change::Clear(path) => {
                self.fire(path)
            }
            Change::Repeat(path) => {
                self.repeated.push(path.clone());
                if self.nodes.get(path).is_some() {
                    self.fire(path);
                }
            }
        }
    }

    fn resumed(&mut self, domain: u16) {
        assert_eq!((domain, self.has_shut_down), (DOMAIN, false));
    }
}

impl Rings for World {
    type Page = Rc<Words>;

    fn page(&self, domain: u16, frame: u64) -> Result<Rc<Words>, Errno> {
        assert_eq!(domain, DOMAIN);
        let state = self.0.borrow();
        Ok(Rc::clone(if frame == 1 { &state.ring } else { &state.console }))
    }
}

impl Snapshots for World {
    fn take(&mut self, _: u16, flags: u16) -> Result<ChannelSnapshot, Trouble> {
        assert_eq!(flags, SNAPSHOT_COMPRESS, "what was asked for");
        let mut state = self.0.borrow_mut();
        let told = ChannelSnapshot { why: state.why_not, copies: 9, ..ChannelSnapshot::default() };
        if state.spend().is_err() || state.why_not != 0 {
            return Err(Trouble { errno: Errno::BUSY, told });
        }
        assert!(state.is_paused && state.snapshot.is_none() && !state.has_shut_down);
        state.snapshot = Some(state.ring.iter().map(|word| word.load(Ordering::SeqCst)).collect());
        if state.told_meanwhile > 0 {
            state.told_meanwhile -= 1;
            let path = format!("{OWN}/memory/target");
            state.set(&path, "262144");
            state.serve();
        }
        Ok(told)
    }

    fn roll_back(&mut self, _: u16) -> Result<ChannelSnapshot, Trouble> {
        let mut state = self.0.borrow_mut();
        let told = ChannelSnapshot { why: state.why_not, what: 5, ..ChannelSnapshot::default() };
        if state.spend().is_err() || state.why_not != 0 {
            return Err(Trouble { errno: Errno::BUSY, told });
        }
        assert!(state.is_paused && state.half.is_empty() && state.queued.is_empty() && state.watches.is_empty());
        let then = state.snapshot.clone().expect("it was noted");
        state.ring.iter().zip(then).for_each(|(word, then)| word.store(then, Ordering::SeqCst));
        state.has_shut_down = false;
        state.rolled_back += 1;
        Ok(told)
    }

    fn forget(&mut self, _: u16) -> Result<(), Errno> {
        let mut state = self.0.borrow_mut();
        state.spend().map_err(|_| Errno::IO)?;
        state.snapshot.take().map(|_| ()).ok_or(Errno::NOENT)
    }

    fn hold(&mut self, _: u16) -> Result<(), Errno> {
        let mut state = self.0.borrow_mut();
        state.spend().map_err(|_| Errno::IO)?;
        if !state.is_paused && !state.is_stuck && !state.has_shut_down {
            // It has run until now.
            while {
                state.serve();
                state.ring[RSP_CONS].swap(get(&state.ring, RSP_PROD), Ordering::SeqCst) != get(&state.ring, RSP_PROD)
            } {}
            if let Some(left) = state.halves.checked_sub(1) {
                (state.halves, state.has_said_half) = (left, true);
                let head: Vec<u8> = [READ, OWN_REQUEST, 0, 5].iter().flat_map(|word| word.to_le_bytes()).collect();
                state.ask(&head);
            }
        }
        state.is_paused = true;
        Ok(())
    }

    fn is_waiting(&mut self, _: u16) -> Result<bool, Errno> {
        let mut state = self.0.borrow_mut();
        state.spend().map_err(|_| Errno::IO)?;
        Ok(!state.has_said_half)
    }

    fn let_run(&mut self, _: u16) -> Result<(), Errno> {
        let mut state = self.0.borrow_mut();
        state.spend().map_err(|_| Errno::IO)?;
        state.is_paused = false;
        if std::mem::take(&mut state.has_said_half) {
            state.ask(b"name\0");
        }
        Ok(())
    }
}

fn file(name: &str) -> PathBuf {
    path(&std::env::temp_dir(), &format!("tandemd-{name}-{}", std::process::id()), DOMAIN)
}

fn sorted(mut watches: Vec<(String, String)>) -> Vec<(String, String)> {
    watches.sort();
    watches
}

#[test]
fn what_has_died_becomes_what_it_was_as_often_as_it_has_to() {
    let (mut world, file) = (World::new(), file("back"));
    assert_eq!(world.note(&file).unwrap().copies, 9);
    let own = world.own();
    assert!(!world.0.borrow().is_paused);
    // It may have missed something, so it hears of all that it watches.
    let told = world.reads();
    for path in ["backend", "control/shutdown", "cpu/0/availability", "device/vif/0/state", "memory/target"] {
        assert!(told.iter().any(|of| of == path), "{path} of {told:?}");
    }
    for n in 1..4 {
        world.live();
        world.roll_back(&file).unwrap();
        let state = world.0.borrow();
        assert_eq!((sorted(state.watches.clone()), state.rolled_back), (sorted(watches()), n));
        assert!(!state.is_paused && !state.has_shut_down);
        let name = |path: &str| state.nodes.get(path);
        assert_eq!([name("/local/domain/7/name"), name("/vm/7/name")], [Some("dd-standby"); 2]);
        assert_eq!(name("/local/domain/7/memory/target"), Some("250000"), "that is the tools'");
        // Who has a back end there makes another one, which it hears of.
        assert!(state.nodes.get("/local/domain/7/backend").is_some());
        assert!(!state.nodes.paths().any(|path| path.starts_with("/local/domain/7/backend/")));
        drop(state);
        assert_eq!(world.own(), own);
        // It looks at what others may have changed; its devices are as it knows them.
        let told = world.reads();
        assert!(
            told.iter().any(|of| of == "memory/target") && told.iter().all(|of| !of.starts_with("device/")),
            "{told:?}"
        );
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn wherever_it_is_killed_the_next_one_makes_the_same_of_it() {
    let file = file("killed");
    let mut nr_killed = 0;
    for budget in 0..1000 {
        let mut world = World::new();
        world.0.borrow_mut().budget = budget;
        let is_noted = world.note(&file).is_ok();
        world.0.borrow_mut().budget = u32::MAX;
        nr_killed += u32::from(!is_noted);
        if !is_noted {
            world.note(&file).unwrap();
        }
        world.reads();
        let own = world.own();
        world.live();
        world.0.borrow_mut().budget = budget;
        let is_back = world.roll_back(&file).is_ok();
        world.0.borrow_mut().budget = u32::MAX;
        if !is_back {
            world.roll_back(&file).unwrap();
        }
        assert_eq!((sorted(world.0.borrow().watches.clone()), world.own()), (sorted(watches()), own), "{budget}");
        assert!(!world.0.borrow().is_paused);
        world.reads();
        if is_noted && is_back {
            assert!(nr_killed > 30);
            return std::fs::remove_file(file).unwrap();
        }
    }
    panic!("it never ends");
}

#[test]
fn what_is_noted_while_xenstore_writes_is_noted_again() {
    let (mut world, file) = (World::new(), file("meanwhile"));
    world.0.borrow_mut().told_meanwhile = 2;
    world.note(&file).unwrap();
    assert!(world.reads().iter().any(|of| of == "memory/target"));
    world.live();
    world.roll_back(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    world.0.borrow_mut().told_meanwhile = TRIES;
    let file = super::path(&std::env::temp_dir(), "tandemd-always", DOMAIN);
    assert!(format!("{:#}", world.note(&file).unwrap_err()).contains("meanwhile"));
    assert!(world.0.borrow().snapshot.is_none() && !world.0.borrow().is_paused);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn one_that_is_stopped_within_a_request_says_the_rest_first() {
    let (mut world, file) = (World::new(), file("within"));
    world.0.borrow_mut().halves = 3;
    world.note(&file).unwrap();
    let state = world.0.borrow();
    assert_eq!((state.nr_answered, state.half.len(), state.halves), (3, 0, 0));
    drop(state);
    assert!(!world.reads().is_empty());
    world.live();
    world.roll_back(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    // It is left alone if that never ends.
    world.0.borrow_mut().halves = TRIES;
    let error = format!("{:#}", world.note(&file).unwrap_err());
    assert!(error.contains("always has something to do"), "{error}");
    let state = world.0.borrow();
    assert_eq!((state.nr_answered, state.half.len(), state.is_paused), (3 + TRIES, 0, false));
}

#[test]
fn what_it_calls_another_end_is_one_or_is_not_touched() {
    let mut world = World::new();
    for (n, far) in ["/local/domain/2/name", "@releaseDomain", "/local/domain/2/backend/vif/8/0", ""].iter().enumerate()
    {
        world.0.borrow_mut().set(&format!("{OWN}/device/vif/{n}/backend"), far);
    }
    world.0.borrow_mut().set(&format!("{OWN}/device/vif/9/backend"), FAR);
    let all = watchable(DOMAIN, &mut world).unwrap();
    let outside: Vec<&String> = all.iter().filter(|path| !path.starts_with(OWN)).collect();
    assert_eq!(outside, [FAR, &format!("{FAR}/state")]);
}

#[test]
fn what_others_write_into_its_ring_reaches_nobody_elses_nodes() {
    for (is_its, path) in [
        (false, "/local/domain/5/x"),
        (false, "/local/domain/70/x"),
        (false, "/local/domain/2/backend/vif/8/0/state"),
        (false, "console/ring-ref"),
        (false, "/local/domain/7/store/ring-ref"),
        (false, "/tool"),
        (true, "data/x"),
        (true, "/local/domain/2/backend/vif/7/0/state"),
    ] {
        // When it is to be idle, and when it is to hear of all.
        for at in 0..2 {
            let (mut world, file) = (World::new(), file("lies"));
            world.0.borrow_mut().lies = Some((at, path));
            world.note(&file).unwrap();
            assert!(world.0.borrow().lies.is_none());
            let absolute = super::absolute(DOMAIN, path);
            assert_eq!(world.0.borrow().repeated.contains(&absolute), is_its, "{path} at {at}");
            let noted: Noted = toml::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
            assert!(is_its || !noted.seen.iter().any(|seen| seen == path), "{path} at {at}");
            world.live();
            world.0.borrow_mut().repeated.clear();
            world.roll_back(&file).unwrap();
            assert!(is_its || !world.0.borrow().repeated.contains(&absolute), "{path} at {at}");
            std::fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn one_that_is_busy_is_not_noted_and_runs_on() {
    let (mut world, file) = (World::new(), file("busy"));
    // It has asked, and has not read the answer.
    world.0.borrow_mut().say(2, 4, b"dd");
    world.0.borrow_mut().is_stuck = true;
    let error = format!("{:#}", world.note(&file).unwrap_err());
    assert!(error.contains("something under way in xenstore"), "{error}");
    let state = world.0.borrow();
    assert!(!state.is_paused && state.snapshot.is_none());
}

#[test]
fn one_that_is_somebodys_back_end_is_not_noted() {
    let (mut world, file) = (World::new(), file("back-end"));
    world.0.borrow_mut().set(&format!("{OWN}/backend/vbd/3/0/state"), "2");
    let error = format!("{:#}", world.note(&file).unwrap_err());
    assert!(error.contains("somebody's back end"), "{error}");
    assert!(world.0.borrow().snapshot.is_none() && !world.0.borrow().is_paused);
}

#[test]
fn one_that_has_died_in_the_middle_of_a_request_is_not_rolled_back() {
    let (mut world, file) = (World::new(), file("half"));
    world.note(&file).unwrap();
    world.live();
    // The head says that more follows than the next requests have.
    let head: Vec<u8> = [11_u32, 9, 0, 900].iter().flat_map(|word| word.to_le_bytes()).collect();
    world.0.borrow_mut().half = head;
    let error = format!("{:#}", world.roll_back(&file).unwrap_err());
    assert!(error.contains("does not answer in its name"), "{error}");
    assert_eq!(world.0.borrow().rolled_back, 0);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn what_the_hypervisor_refuses_is_said() {
    let (mut world, file) = (World::new(), file("refused"));
    world.note(&file).unwrap();
    world.live();
    world.0.borrow_mut().why_not = SNAPSHOT_FRAMES;
    let error = format!("{:#}", world.roll_back(&file).unwrap_err());
    assert_eq!(error, "its frame 0x5 is another's now");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn what_it_takes_is_said() {
    let mut taken = ChannelSnapshot { copies: 150 * 256, found: 50 * 256, ..ChannelSnapshot::default() };
    assert_eq!(takes(&taken), "that takes 100 MiB, beside 50 MiB that are the same as what was noted before");
    (taken.packed, taken.packed_bytes) = (80 * 256, 30 << 20);
    assert_eq!(
        takes(&taken),
        "that takes 50 MiB, beside 50 MiB that are the same as what was noted before; 80 MiB of it are packed into 30 MiB"
    );
}
