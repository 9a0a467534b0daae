//! A guest that uses a disk, and knows what must come out.
//!
//! Each write fills its sectors with a stamp of its own. A sector has one request under way at a time, unless there is
//! a barrier between the two: so what a read must give is known when it is asked for.

use super::blkback::touches;
use super::front_ring::FrontRing;
use super::memory::{Guest, Memory};
use crate::grants::Frames;
use crate::vbd::MAX_SEGMENTS;
use std::collections::BTreeMap;
use std::vec::Vec;
use xen_abi::io::blkif::*;

/// Sectors of the medium.
pub const SECTORS: usize = 256;
/// What a sector holds that was discarded, and each at first.
pub const NOTHING: u32 = 0;
/// What a sector holds that was to be written together with one that is bad: this or what was there before.
pub const UNKNOWN: u32 = u32::MAX;

/// Sectors of a page that a request uses: first and last.
pub type Piece = (u8, u8);

#[derive(Clone)]
struct Under {
    operation: u8,
    sector: usize,
    /// Grant and frame of each page, and which sectors.
    pages: Vec<(u32, u32, Piece)>,
    /// Of the list of an indirect request.
    list: Option<u32>,
    /// Of a read: what must come. Of a flush: what must last.
    expected: Vec<u32>,
    stamp: u32,
    status: i16,
    /// Its last page is not granted.
    is_spoilt: bool,
}

#[derive(Clone, Default)]
struct Sector {
    /// Newest content that was asked for.
    newest: u32,
    /// The stamp of the request that wants that, and of the newest that was answered. (A discard has one, too.)
    newest_by: u32,
    settled_by: u32,
    /// Barriers before the last request that wrote, or read, while it is under way.
    written: Option<u32>,
    read: Option<u32>,
    nr_under: u32,
}

/// The guest.
pub struct Blkfront {
    /// Its ring.
    pub ring: FrontRing<28, 32>,
    memory: Memory,
    /// Its grants.
    pub guest: Guest,
    under: BTreeMap<u64, Under>,
    sectors: Vec<Sector>,
    nr_barriers: u32,
    stamp: u32,
    /// A back end has lied: content says nothing any more.
    pub is_lied_to: bool,
    /// Where the last request ends.
    pub end: usize,
    /// Sectors whose requests are to be answered with errors.
    pub bad: core::ops::Range<usize>,
    /// Requests that were answered.
    pub nr_answered: u64,
}

impl Blkfront {
    /// A guest that has no request under way.
    pub fn new(memory: &Memory, guest: Guest, at: u32) -> Self {
        Blkfront {
            ring: FrontRing::new(at),
            memory: memory.clone(),
            guest,
            under: BTreeMap::new(),
            sectors: std::vec![Sector::default(); SECTORS],
            nr_barriers: 0,
            stamp: 0,
            is_lied_to: false,
            end: 0,
            bad: 0..0,
            nr_answered: 0,
        }
    }

    /// Requests under way.
    pub fn nr_under(&self) -> usize {
        self.under.len()
    }

    /// What a sector must hold when nothing is under way.
    pub fn newest(&self, sector: usize) -> u32 {
        self.sectors[sector].newest
    }

    /// Asks for what `operation` is called, on as many sectors as `pieces` have. A bad one has a page that is not
    /// granted. `false`: it cannot now.
    pub fn ask(&mut self, operation: u8, sector: usize, pieces: &[Piece], is_bad: bool) -> bool {
        let nr: usize = pieces.iter().map(|(first, last)| usize::from(last + 1 - first)).sum();
        let is_write = operation != BLKIF_OP_READ;
        let is_barrier = operation == BLKIF_OP_WRITE_BARRIER;
        let Some(id) = (0..32).find(|id| !self.under.contains_key(id)) else { return false };
        if self.ring.free() == 0 || sector + nr > SECTORS || pieces.len() > MAX_SEGMENTS {
            return false;
        }
        let now = self.nr_barriers;
        let is_before = |at: Option<u32>| at.is_none_or(|at| at < now);
        // What a barrier itself writes is behind all before it.
        let may = |s: &Sector| is_barrier || is_before(s.written) && (!is_write || is_before(s.read));
        if !self.sectors[sector..sector + nr].iter().all(may) {
            return false;
        }
        self.stamp += 1;
        let mut pages = Vec::new();
        let mut stamps = 0;
        for piece in pieces {
            let Some((gref, frame)) = self.guest.grant(!is_write) else {
                pages.iter().for_each(|(gref, ..): &(u32, u32, Piece)| _ = self.guest.end_access(*gref));
                return false;
            };
            for at in piece.0..=piece.1 {
                stamps += 1;
                let content = if is_write { self.stamp } else { !self.stamp };
                self.memory.write(frame, u16::from(at) * 512, &content.to_le_bytes().repeat(128));
            }
            pages.push((gref, frame, *piece));
        }
        assert_eq!(stamps, nr);
        let is_indirect = pieces.len() > 11;
        let list = if is_indirect {
            let Some((gref, frame)) = self.guest.grant(false) else {
                pages.iter().for_each(|(gref, ..)| _ = self.guest.end_access(*gref));
                return false;
            };
            let mut bytes = Vec::new();
            for (gref, _, (first, last)) in &pages {
                bytes.extend(gref.to_le_bytes());
                bytes.extend([*first, *last, 0xaa, 0xaa]);
            }
            self.memory.write(frame, 0, &bytes);
            Some(gref)
        } else {
            None
        };
        let bad = is_bad && !pages.is_empty();
        if bad {
            self.guest.spoil(pages[pages.len() - 1].0);
        }
        let mut words = [0xdead_beef; 28];
        words[2] = id as u32;
        words[3] = 0;
        words[4] = sector as u32;
        words[5] = 0;
        if let Some(gref) = list {
            words[0] = u32::from(BLKIF_OP_INDIRECT) | u32::from(operation) << 8 | (pieces.len() as u32) << 16;
            words[7] = gref;
        } else {
            words[0] = u32::from(operation) | (pieces.len() as u32) << 8;
            for (n, (gref, _, (first, last))) in pages.iter().enumerate() {
                words[6 + 2 * n] = *gref;
                words[7 + 2 * n] = u32::from(*first) | u32::from(*last) << 8 | 0xaaaa_0000;
            }
        }
        self.ring.put(words);
        let stamp = self.stamp;
        let status = if bad || touches(&self.bad, sector, nr) { BLKIF_RSP_ERROR } else { BLKIF_RSP_OKAY };
        self.note(id, operation, sector, nr, status, pages, list, stamp);
        if let Some(under) = self.under.get_mut(&id) {
            under.is_spoilt = bad;
        }
        true
    }

    /// Asks that sectors be discarded. `false`: it cannot now.
    pub fn discard(&mut self, sector: usize, nr: usize) -> bool {
        let Some(id) = (0..32).find(|id| !self.under.contains_key(id)) else { return false };
        let now = self.nr_barriers;
        let is_before = |at: Option<u32>| at.is_none_or(|at| at < now);
        if self.ring.free() == 0
            || sector + nr > SECTORS
            || !self.sectors[sector..sector + nr].iter().all(|s| is_before(s.written) && is_before(s.read))
        {
            return false;
        }
        let mut words = [0xdead_beef; 28];
        words[0] = u32::from(BLKIF_OP_DISCARD);
        words[2..8].copy_from_slice(&[id as u32, 0, sector as u32, 0, nr as u32, 0]);
        self.ring.put(words);
        self.stamp += 1;
        self.note(id, BLKIF_OP_DISCARD, sector, nr, BLKIF_RSP_OKAY, Vec::new(), None, self.stamp);
        true
    }

    #[allow(clippy::too_many_arguments, reason = "what there is to know of a request")]
    fn note(
        &mut self,
        id: u64,
        operation: u8,
        sector: usize,
        nr: usize,
        status: i16,
        pages: Vec<(u32, u32, Piece)>,
        list: Option<u32>,
        stamp: u32,
    ) {
        let is_barrier = operation == BLKIF_OP_WRITE_BARRIER;
        if is_barrier && status == BLKIF_RSP_OKAY {
            self.nr_barriers += 1;
        }
        let now = self.nr_barriers;
        self.end = sector + nr;
        let range = sector..sector + nr;
        let expected = match operation {
            BLKIF_OP_READ => self.sectors[range.clone()].iter().map(|s| s.newest).collect(),
            BLKIF_OP_FLUSH_DISKCACHE | BLKIF_OP_WRITE_BARRIER => self.sectors.iter().map(|s| s.settled_by).collect(),
            _ => Vec::new(),
        };
        for s in &mut self.sectors[range] {
            s.nr_under += 1;
            if operation == BLKIF_OP_READ {
                s.read = Some(now);
            } else {
                s.written = Some(now);
                if status == BLKIF_RSP_OKAY {
                    s.newest = if operation == BLKIF_OP_DISCARD { NOTHING } else { stamp };
                    s.newest_by = stamp;
                } else if touches(&self.bad, sector, nr) {
                    // A part of it may be done.
                    (s.newest, s.newest_by) = (UNKNOWN, stamp);
                }
            }
        }
        self.under.insert(id, Under { operation, sector, pages, list, expected, stamp, status, is_spoilt: false });
        self.under
            .get_mut(&id)
            .expect("just put there")
            .expected
            .extend((operation == BLKIF_OP_DISCARD).then_some(nr as u32));
    }

    /// Takes answers. `durable` is what would be left of the medium without its cache.
    pub fn take(&mut self, durable: &[u32]) -> bool {
        let mut any = false;
        loop {
            while let Some((_, words)) = self.ring.take() {
                any = true;
                self.answered(words, durable);
            }
            if !self.ring.ask_for_event() {
                return any;
            }
        }
    }

    fn answered(&mut self, words: [u32; 28], durable: &[u32]) {
        let id = u64::from(words[1]) << 32 | u64::from(words[0]);
        let under = self.under.remove(&id).expect("an answer to what was not asked for, or a second one");
        self.nr_answered += 1;
        let [operation, _, s0, s1] = words[2].to_le_bytes();
        let status = i16::from_le_bytes([s0, s1]);
        assert_eq!(operation, under.operation, "an answer to something else");
        if self.is_lied_to {
            assert!(status <= 0);
        } else {
            assert_eq!(status, under.status, "operation {operation} at {}", under.sector);
        }
        let nr: usize = if under.operation == BLKIF_OP_DISCARD {
            under.expected[0] as usize
        } else {
            under.pages.iter().map(|(_, _, (first, last))| usize::from(last + 1 - first)).sum()
        };
        if !self.is_lied_to && under.status == BLKIF_RSP_OKAY {
            self.check(&under, durable);
        }
        for s in &mut self.sectors[under.sector..under.sector + nr] {
            s.nr_under -= 1;
            if s.nr_under == 0 {
                (s.written, s.read) = (None, None);
            }
            if under.operation != BLKIF_OP_READ && status == BLKIF_RSP_OKAY {
                s.settled_by = under.stamp;
            }
        }
        for gref in under.pages.iter().map(|(gref, ..)| *gref).chain(under.list) {
            if under.is_spoilt && Some(&gref) == under.pages.last().map(|(gref, ..)| gref) {
                self.guest.spoil(gref);
            }
            assert!(self.guest.end_access(gref).is_some(), "a grant is in use after the answer");
        }
    }

    fn check(&self, under: &Under, durable: &[u32]) {
        match under.operation {
            BLKIF_OP_READ => {
                let mut expected = under.expected.iter();
                for (_, frame, (first, last)) in &under.pages {
                    for at in *first..=*last {
                        let found = sector_of(&self.memory, *frame, at);
                        let expected = *expected.next().expect("as many");
                        assert!(expected == UNKNOWN || found == expected, "read at {}", under.sector);
                    }
                }
            }
            BLKIF_OP_FLUSH_DISKCACHE | BLKIF_OP_WRITE_BARRIER => {
                for (at, s) in self.sectors.iter().enumerate() {
                    // One that is written meanwhile may hold either.
                    let is_same = s.newest_by == under.expected[at] && s.written.is_none();
                    assert!(!is_same || durable[at] == s.newest, "sector {at} does not last");
                }
            }
            _ => {}
        }
    }
}

/// What fills a sector of a page.
pub fn sector_of(memory: &Memory, frame: u32, at: u8) -> u32 {
    let mut bytes = [0; 512];
    memory.read(frame, u16::from(at) * 512, &mut bytes);
    let stamp = [bytes[0], bytes[1], bytes[2], bytes[3]];
    assert!(bytes.chunks(4).all(|word| word == stamp), "a sector in pieces");
    u32::from_le_bytes(stamp)
}
