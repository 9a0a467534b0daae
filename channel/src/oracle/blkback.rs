//! A medium, and back ends of driver domains that come and go: they do what they are asked in any order, and may die at
//! any step. Some lie, some lose what they have read.

use super::blkfront::{sector_of, NOTHING, SECTORS};
use super::memory::Memory;
use crate::grants::Frames;
use crate::ring::BackRing;
use hv_core::evtchn::oracle::TestPage;
use std::collections::BTreeMap;
use std::vec::Vec;
use xen_abi::io::blkif::*;

/// A medium with a cache that survives driver domains.
pub struct Medium {
    /// What is read.
    pub content: Vec<u32>,
    /// What would be left without the cache.
    pub durable: Vec<u32>,
    /// Sectors that can neither be read nor be written.
    pub bad: core::ops::Range<usize>,
}

impl Default for Medium {
    fn default() -> Self {
        Medium { content: std::vec![NOTHING; SECTORS], durable: std::vec![NOTHING; SECTORS], bad: 0..0 }
    }
}

/// A back end.
pub struct Blkback {
    ring: BackRing<TestPage, 28, 32>,
    page: TestPage,
    memory: Memory,
    /// Frames of its grants.
    grants: BTreeMap<u32, u32>,
    taken: Vec<[u32; 28]>,
    /// With their status.
    done: Vec<([u32; 28], i16)>,
    answered: Vec<[u32; 28]>,
    /// It was told of requests.
    pub is_awake: bool,
    /// Segments of a request at most.
    pub max_segments: u16,
    /// It does nothing of what it is asked, and says that it has: it has lied, or is asked for anything.
    pub is_liar: bool,
    /// Something of what it reads never comes, now and then.
    pub is_damaged: bool,
}

impl Blkback {
    /// One that is connected to a ring.
    pub fn new(memory: &Memory, page: TestPage, grants: BTreeMap<u32, u32>, max_segments: u16) -> Self {
        let ring = BackRing::attach(page.clone()).expect("a fresh ring");
        let (taken, done, answered) = (Vec::new(), Vec::new(), Vec::new());
        // A stock one looks at its ring when it is connected.
        let (memory, is_awake, is_liar, is_damaged) = (memory.clone(), true, false, false);
        Blkback { ring, page, memory, grants, taken, done, answered, is_awake, max_segments, is_liar, is_damaged }
    }

    /// Takes requests, if it was told.
    pub fn take(&mut self) {
        if !self.is_awake {
            return;
        }
        loop {
            for _ in 0..self.ring.available().expect("a ring that can be") {
                self.taken.push(self.ring.request(0));
                self.ring.consume(1);
            }
            if !self.ring.ask_for_event(1).expect("a ring that can be") {
                break;
            }
        }
        self.is_awake = false;
    }

    /// Has the medium do one of what it was asked. `false`: there is nothing.
    pub fn work(&mut self, medium: &mut Medium, which: u8) -> bool {
        if self.taken.is_empty() {
            return false;
        }
        let words = self.taken.swap_remove(usize::from(which) % self.taken.len());
        // Of one in four requests a segment.
        let lost = (self.is_damaged && which.is_multiple_of(4)).then_some(usize::from(which / 4));
        let status = if self.is_liar { self.pretend(&words) } else { self.perform(medium, &words, lost) };
        self.done.push((words, status));
        true
    }

    /// What is to be done, and with which segments.
    fn segments(&self, words: &[u32; 28]) -> (u8, Vec<[u32; 2]>) {
        let [operation, second, third, fourth] = words[0].to_le_bytes();
        if operation != BLKIF_OP_INDIRECT {
            let nr = if operation == BLKIF_OP_DISCARD { 0 } else { second };
            assert!(nr <= 11, "{nr} segments");
            return (operation, words[6..].chunks(2).take(nr.into()).map(|s| [s[0], s[1]]).collect());
        }
        let nr = u16::from_le_bytes([third, fourth]);
        assert!((12..=self.max_segments).contains(&nr), "{nr} segments in a list");
        assert!(matches!(second, BLKIF_OP_READ | BLKIF_OP_WRITE), "operation {second} with a list");
        let frame = *self.grants.get(&words[7]).expect("a grant of its own");
        let mut list = std::vec![0; usize::from(nr) * 8];
        self.memory.read(frame, 0, &mut list);
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        (second, list.chunks(8).map(|s| [word(&s[..4]), word(&s[4..])]).collect())
    }

    /// Writes anything where something is to be read, in a slot without a list, and as far as the slot is what it was.
    fn pretend(&self, words: &[u32; 28]) -> i16 {
        let [operation, nr, ..] = words[0].to_le_bytes();
        let segments = words[6..].chunks(2).take(if operation == BLKIF_OP_READ { nr.into() } else { 0 });
        for frame in segments.filter_map(|segment| self.grants.get(&segment[0])) {
            self.memory.write(*frame, 0, &[0xda; 4096]);
        }
        BLKIF_RSP_OKAY
    }

    fn perform(&self, medium: &mut Medium, words: &[u32; 28], lost: Option<usize>) -> i16 {
        assert_eq!(words[5], 0);
        let (operation, segments) = self.segments(words);
        let mut sector = words[4] as usize;
        match operation {
            BLKIF_OP_DISCARD => {
                medium.content[sector..sector + words[6] as usize].fill(NOTHING);
                return BLKIF_RSP_OKAY;
            }
            BLKIF_OP_FLUSH_DISKCACHE | BLKIF_OP_WRITE_BARRIER => medium.durable.clone_from(&medium.content),
            BLKIF_OP_READ | BLKIF_OP_WRITE => assert!(!segments.is_empty()),
            _ => panic!("operation {operation}"),
        }
        let sectors = segments.iter().map(|s| usize::from(s[1].to_le_bytes()[1] - s[1].to_le_bytes()[0] + 1));
        if touches(&medium.bad, sector, sectors.sum()) {
            return BLKIF_RSP_ERROR;
        }
        let lost = lost.map(|which| which % segments.len().max(1));
        for (n, segment) in segments.into_iter().enumerate() {
            let frame = *self.grants.get(&segment[0]).expect("a grant of its own");
            let [first, last, ..] = segment[1].to_le_bytes();
            for at in first..=last {
                if operation == BLKIF_OP_READ && lost == Some(n) {
                    // Its device was told to write elsewhere.
                } else if operation == BLKIF_OP_READ {
                    let bytes = medium.content[sector].to_le_bytes().repeat(128);
                    self.memory.write(frame, u16::from(at) * 512, &bytes);
                } else {
                    medium.content[sector] = sector_of(&self.memory, frame, at);
                }
                sector += 1;
            }
        }
        BLKIF_RSP_OKAY
    }

    /// Answers one of what is done. `None`: there is nothing; `true`: an event is wanted.
    pub fn answer(&mut self, which: u8) -> Option<bool> {
        if self.done.is_empty() {
            return None;
        }
        let (words, status) = self.done.swap_remove(usize::from(which) % self.done.len());
        Some(self.respond(words, words[2], words[3], status))
    }

    /// Answers all that it was asked and has not answered with errors, whether it is done or not.
    pub fn fail(&mut self) {
        let done = core::mem::take(&mut self.done).into_iter().map(|(words, _)| words);
        for words in core::mem::take(&mut self.taken).into_iter().chain(done) {
            self.respond(words, words[2], words[3], BLKIF_RSP_ERROR);
        }
    }

    fn respond(&mut self, words: [u32; 28], low: u32, high: u32, status: i16) -> bool {
        let status = u32::from(u16::from_ne_bytes(status.to_ne_bytes()));
        if !self.ring.respond([low, high, words[0] & 0xff | status << 16]) {
            return false;
        }
        self.answered.push(words);
        self.ring.push()
    }

    /// Says what is not so: answers what it has not done, or has answered, or was never asked, or writes an index that
    /// cannot be. `true`: an event is wanted.
    pub fn lie(&mut self, [how, a, b]: [u8; 3]) -> bool {
        self.is_liar = true;
        let some = |list: &[[u32; 28]]| list.get(usize::from(a) % list.len().max(1)).copied().unwrap_or([a.into(); 28]);
        match how % 6 {
            0 => {
                let words = some(&self.taken);
                self.respond(words, words[2], words[3], BLKIF_RSP_OKAY)
            }
            1 => {
                let words = some(&self.answered);
                self.respond(words, words[2], words[3], i16::from(b) - 100)
            }
            2 => {
                let words = some(&self.taken);
                self.respond(words, words[2] ^ 1 << (b % 32), words[3], BLKIF_RSP_OKAY)
            }
            3 => {
                let words =
                    self.done.get(usize::from(a) % self.done.len().max(1)).map_or([a.into(); 28], |(words, _)| *words);
                self.respond(words, words[2], words[3] ^ 1 << (b % 32), BLKIF_RSP_EOPNOTSUPP)
            }
            4 => {
                // Anywhere in the page, but for what the hypervisor has told it.
                let at = (usize::from(a) << 3 | usize::from(b)) % 1024;
                self.page.0[at.max(1)].store(u32::from(a) << 9 | u32::from(b), core::sync::atomic::Ordering::SeqCst);
                true
            }
            _ => {
                self.page.0[2].fetch_add(b.into(), core::sync::atomic::Ordering::SeqCst);
                true
            }
        }
    }
}

/// Whether some of `nr` sectors from `sector` on are bad.
pub fn touches(bad: &core::ops::Range<usize>, sector: usize, nr: usize) -> bool {
    sector < bad.end && bad.start < sector + nr
}
