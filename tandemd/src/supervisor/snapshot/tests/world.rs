//! The domain whose ring that is, and a hypervisor that notes the page of the ring.

use super::xenstored::*;
use super::*;
use crate::fake_store::{Nodes, Shared};
use crate::hypercall::foreign::WORDS;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;

pub type World = Shared<State>;

fn page() -> Rc<Words> {
    Rc::new(std::array::from_fn::<_, WORDS, _>(|_| AtomicU32::new(0)))
}

impl World {
    /// A domain that waits: it has booted, and watches some things.
    pub fn new() -> Self {
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
            is_late: 0,
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
            ("store/port", "4"),
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
    pub fn live(&self) {
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

    pub fn own(&self) -> BTreeMap<String, String> {
        let state = self.0.borrow();
        let is_its = |path: &str| PARTS.iter().any(|part| path.starts_with(&format!("{OWN}/{part}")));
        state.nodes.all().filter(|(path, _)| is_its(path)).map(|(path, value)| (path.into(), value.into())).collect()
    }

    /// What it finds in its ring when it runs.
    pub fn reads(&self) -> Vec<String> {
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

    pub fn note(&mut self, file: &Path) -> Result<ChannelSnapshot> {
        let (mut store, mut hypervisor) = (self.clone(), self.clone());
        super::note(DOMAIN, SNAPSHOT_COMPRESS, &[NET], file, &mut store, &mut hypervisor)
    }

    pub fn roll_back(&mut self, file: &Path) -> Result<()> {
        let (mut store, mut hypervisor) = (self.clone(), self.clone());
        super::roll_back(DOMAIN, "dd", file, &mut store, &mut hypervisor)
    }
}

pub fn watches() -> Vec<(String, String)> {
    let far = format!("{FAR}/state");
    let all = [("backend", "A5"), ("control/shutdown", "A1"), ("cpu", "A2"), ("device", "A3"), ("memory/target", "A4")];
    all.into_iter().chain([(far.as_str(), "A6")]).map(|(path, token)| (path.into(), token.into())).collect()
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

    fn notify(&mut self, domain: u16, port: u32) -> Result<(), Errno> {
        assert_eq!((domain, port), (DOMAIN, 4));
        let mut state = self.0.borrow_mut();
        state.spend().map_err(|_| Errno::IO)?;
        assert!(state.is_paused, "it calls by itself");
        match state.is_late.checked_sub(1) {
            Some(left) => state.is_late = left,
            None => state.serve(),
        }
        Ok(())
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
