//! A xenstored that serves one domain's ring when it is called by it, as oxenstored does; and the state of all that is
//! in this world.

use super::*;
use crate::fake_store::{Asked, Nodes};
use anyhow::bail;
use std::collections::VecDeque;

pub const OWN_REQUEST: u32 = 5;
pub const RING: usize = 1024;
pub const REQ_CONS: usize = 512;
pub const REQ_PROD: usize = 513;
pub const RSP_CONS: usize = 514;
pub const RSP_PROD: usize = 515;

pub struct State {
    pub nodes: Nodes,
    /// Those of the domain.
    pub watches: Vec<(String, String)>,
    pub ring: Rc<Words>,
    pub console: Rc<Words>,
    /// What xenstored has of a request that is not whole, and what it could not write yet.
    pub half: Vec<u8>,
    pub queued: VecDeque<u8>,
    pub is_paused: bool,
    /// So often it is stopped when it has said the head of a request of its own and not the rest; it has now; answers
    /// that it got.
    pub halves: u32,
    pub has_said_half: bool,
    pub nr_answered: u32,
    /// So often it is called before it looks at the ring.
    pub is_late: u32,
    /// It does not look at its ring.
    pub is_stuck: bool,
    pub has_shut_down: bool,
    pub snapshot: Option<Vec<u32>>,
    pub why_not: u32,
    /// Who is not xenstored tells it of this at that request of who stands in for it.
    pub lies: Option<(u32, &'static str)>,
    /// What was told of once more.
    pub repeated: Vec<String>,
    /// So many snapshots are taken while it is told something.
    pub told_meanwhile: u32,
    pub rolled_back: u32,
    /// After so many operations nothing works any more.
    pub budget: u32,
}

pub fn get(page: &Words, word: usize) -> u32 {
    page[word].load(Ordering::SeqCst)
}

impl State {
    pub fn set(&mut self, path: &str, value: &str) {
        self.nodes.set(path, value);
        self.fire(path);
    }

    pub fn fire(&mut self, changed: &str) {
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

    pub fn say(&mut self, kind: u32, request: u32, body: &[u8]) {
        let head = [kind, request, 0, u32::try_from(body.len()).unwrap()];
        self.queued.extend(head.iter().flat_map(|word| word.to_le_bytes()).chain(body.iter().copied()));
    }

    /// The domain says this.
    pub fn ask(&mut self, bytes: &[u8]) {
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
    pub fn serve(&mut self) {
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

    pub fn spend(&mut self) -> Result<()> {
        let Some(left) = self.budget.checked_sub(1) else { bail!("killed") };
        self.budget = left;
        Ok(())
    }
}

impl crate::fake_store::World for State {
    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn asked(&mut self, what: Asked<'_>) -> Result<()> {
        assert!(!matches!(what, Asked::Watch), "nothing is watched here");
        self.spend()
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
