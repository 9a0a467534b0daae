//! A guest, its disk, and driver domains that die: the fuzz target `disk` and the property tests run it.
//!
//! Input bytes choose what happens next: requests of all kinds, the hypervisor's work in small portions, what the back
//! end of the moment takes, does and answers, in any order; deaths between any two of these, with and without a time in
//! which there is none, and with and without errors for all that was asked just before, each of which leaves other
//! bytes in all its pages than were there, and is followed by one that has the same pages or others; and, in some runs,
//! sectors of the medium that are bad, lies of the back end's, or a guest that writes anything anywhere. It must hold
//! that
//!
//! - each request is answered once, after the last use of its grants, with what it asked for in the answer, and with an
//!   error if, and only if, a page or a sector of its own is bad;
//! - what is read is what was written last; what was answered before a flush was asked for lasts once that is answered;
//!   nothing passes a barrier;
//! - everybody who sleeps is woken;
//! - at the end nothing is in use, and all that was asked for is done; or, in some runs, it is answered when the disk
//!   is let go.

use super::blkback::{Blkback, Medium};
use super::blkfront::{Blkfront, SECTORS, UNKNOWN};
use super::memory::{Guest, Memory};
use crate::grants::Frames as _;
use crate::pace::LATE_NS;
use crate::vbd::disk::{Disk, Page, DOUBT_NS};
use crate::vbd::shares::Alone;
use crate::vbd::Offers;
use core::sync::atomic::Ordering::SeqCst;
use hv_core::evtchn::oracle::TestPage;
use std::collections::BTreeMap;
use std::vec::Vec;
use xen_abi::io::blkif::*;

/// Frames of the guest.
const FRAMES: u32 = 200;
/// Pages between guest and back end: fewer than all requests could use. There are two sets of them.
const PAGES: u32 = 72;
const SETS: u32 = 2;
const FIRST_GREF: u32 = 1000;
const SECRET: u64 = 0x5ec2_e700_0000_0001;
const OFFERS: Offers = Offers { write: true, flush: true, barrier: true, discard: true };

/// What may be spent on a disk that is let go: a portion of the hypervisor's.
const PORTION: u32 = 128 << 10;

/// What a run has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Requests that the guest got answers to.
    pub answered: u64,
    /// Requests that were passed on together with others.
    pub merged: u64,
    /// Reads that brought nothing, or not all.
    pub empty_reads: u64,
    /// Requests that waited when their disk got other pages.
    pub moved: u64,
}

/// Does what `ops` say: four bytes an operation, after one that says who lies.
pub fn run(ops: &[u8]) -> Done {
    let Some((mode, ops)) = ops.split_first() else { return Done::default() };
    let mut world = World::new(*mode);
    for op in ops.chunks_exact(4) {
        world.step([op[0], op[1], op[2], op[3]]);
    }
    world.end()
}

struct World {
    memory: Memory,
    front: Blkfront,
    disk: Disk<TestPage, u32>,
    back: Option<Blkback>,
    medium: Medium,
    /// The hypervisor was told of something.
    is_awake: bool,
    /// It is looked at soon though nobody notifies, if it asks for that; and it has.
    may_be_late: bool,
    is_late: bool,
    back_lies: bool,
    /// But for every third.
    backs_are_damaged: bool,
    guest_lies: bool,
    /// In the end the disk is let go with what waits.
    is_let_go: bool,
    nr_backs: u32,
    nr_moved: u64,
    /// The time, in ns.
    now: u64,
}

impl World {
    fn new(mode: u8) -> World {
        let memory = Memory::new((1 + FRAMES + SETS * PAGES) as usize);
        let guest = Guest::new(1..1 + FRAMES);
        let mut front = Blkfront::new(&memory, guest, 0u32.wrapping_sub(u32::from(mode)));
        let mut disk = Disk::connect(front.ring.page.clone(), OFFERS, SECRET).expect("a fresh ring");
        // A third of them are longer.
        disk.cut_discards(8);
        let (back_lies, guest_lies, backs_are_damaged) = (mode % 4 == 1, mode % 8 == 2, mode % 8 == 6);
        let mut medium = Medium::default();
        if mode % 4 == 3 {
            medium.bad = 100..103;
            front.bad = 100..103;
        }
        World {
            memory,
            front,
            disk,
            back: None,
            medium,
            is_awake: true,
            may_be_late: mode & 0x40 != 0,
            is_late: false,
            back_lies,
            backs_are_damaged,
            guest_lies,
            is_let_go: mode & 0x30 == 0x30,
            nr_backs: 0,
            nr_moved: 0,
            now: 0,
        }
    }

    fn step(&mut self, [what, a, b, c]: [u8; 4]) {
        match what % 16 {
            0..=3 => self.ask(what, [a, b, c]),
            4 if self.guest_lies => self.write_anything([a, b, c]),
            4..=6 => self.serve(u32::from(a) << 6),
            7 => self.front_takes(),
            8 if self.back_lies => self.lie([a, b, c]),
            8 | 9 => self.back.iter_mut().for_each(Blkback::take),
            10 | 11 => {
                let medium = &mut self.medium;
                self.back.iter_mut().for_each(|back| (0..=b % 4).for_each(|n| _ = back.work(medium, a ^ n)));
            }
            12 | 13 => {
                let mut answer = |n| self.back.as_mut().and_then(|back| back.answer(a ^ n)).unwrap_or(false);
                self.is_awake |= (0..=b % 4).fold(false, |told, n| told | answer(n));
            }
            14 if a < 16 => {
                if b & 1 != 0 && !self.back_lies && !self.guest_lies {
                    self.back_fails();
                }
                self.back_dies();
            }
            14 if a > 200 => self.believe(),
            14 if a > 150 => self.time_goes_by(u64::from(b) << 10),
            14 if a > 100 => self.look_after(),
            15 if self.back.is_none() => self.back_comes(),
            _ => {}
        }
    }

    fn ask(&mut self, what: u8, [a, b, c]: [u8; 3]) {
        let sector = if c % 3 == 0 { self.front.end } else { usize::from(a) % SECTORS };
        // As many pages as fit in a request, mostly few; each whole or in part.
        let nr = match b >> 6 {
            0 => 1,
            1 => 1 + usize::from(b & 3),
            2 => 1 + usize::from(b) % 11,
            _ => 12 + usize::from(b) % 21,
        };
        let mut pieces: Vec<(u8, u8)> =
            (0..nr).map(|n| if n % 3 == 2 { (c % 5, c % 5 + 3) } else { (c & 7, 7) }).collect();
        let is_bad = c == 77;
        let is_asked = match what % 16 {
            0 => self.front.ask(BLKIF_OP_READ, sector, &pieces, is_bad),
            1 | 2 => self.front.ask(BLKIF_OP_WRITE, sector, &pieces, is_bad),
            _ if c < 80 => self.front.ask(BLKIF_OP_FLUSH_DISKCACHE, 0, &[], false),
            _ if c < 140 => {
                pieces.truncate(usize::from(b % 3));
                self.front.ask(BLKIF_OP_WRITE_BARRIER, sector, &pieces, false)
            }
            _ => self.front.discard(sector, nr),
        };
        if is_asked && self.front.ring.push() {
            self.is_awake = true;
        }
    }

    fn serve(&mut self, budget: u32) {
        if !self.is_awake {
            return;
        }
        let (now, grants) = (self.now, &mut self.front.guest);
        let served =
            self.disk.serve(grants, &self.memory, &mut Alone, &|| now, &mut budget.max(1), &|| self.may_be_late);
        self.is_awake = served.more;
        self.is_late = served.is_late;
        assert!(!self.is_late || self.may_be_late, "nobody looks");
        if let Some(back) = &mut self.back {
            back.is_awake |= served.tell_back;
        }
        assert_eq!(self.front.guest.nr_uses(), 0, "a grant is in use between two calls");
        if self.disk.back_page().is_none() && self.backs_are_damaged {
            // Whoever looks after it has another take its place.
            self.back = None;
        }
        // An event that brings no news is punished by front ends.
        if served.tell_guest && !self.guest_lies {
            assert!(self.front.take(&self.medium.durable), "an event without news");
        }
    }

    /// So much time goes by that errors are believed.
    fn believe(&mut self) {
        self.now += DOUBT_NS;
        self.is_awake = true;
    }

    /// As the time goes by in a busy machine.
    fn time_goes_by(&mut self, ns: u64) {
        self.now += ns;
    }

    /// It is looked at though nobody has notified, if it was to be.
    fn look_after(&mut self) {
        if self.is_late {
            self.now += LATE_NS;
            self.is_awake = true;
        }
    }

    fn front_takes(&mut self) {
        if !self.guest_lies {
            self.front.take(&self.medium.durable);
        }
    }

    fn lie(&mut self, lie: [u8; 3]) {
        if let Some(back) = &mut self.back {
            self.front.is_lied_to = true;
            self.is_awake |= back.lie(lie);
        }
    }

    /// A guest that is not to be trusted writes into its ring, and takes grants back.
    fn write_anything(&mut self, [a, b, c]: [u8; 3]) {
        let page = &self.front.ring.page;
        match a % 4 {
            0 => page.0[usize::from(b) << 2 | usize::from(c & 3)].store(u32::from_le_bytes([a, b, c, 0]), SeqCst),
            1 => _ = page.0[0].fetch_add(u32::from(b % 40), SeqCst),
            2 => page.0[16 + usize::from(b) % 32 * 28].store((u32::from(c) % 9) | (u32::from(a) << 6), SeqCst),
            _ => self.front.guest.spoil(b.into()),
        }
        self.is_awake = true;
    }

    /// Its device is taken away from it before it dies.
    fn back_fails(&mut self) {
        if let Some(back) = &mut self.back {
            back.take();
            back.fail();
            self.is_awake = true;
            self.serve(1 << 20);
        }
    }

    /// Whatever it, or its device, does last it does to pages that it was given.
    fn back_dies(&mut self) {
        self.back = None;
        self.disk.detach();
        let first = first_frame(self.nr_backs);
        (first..first + PAGES).for_each(|frame| self.memory.write(frame, 0, &[0xbd; 4096]));
    }

    fn back_comes(&mut self) {
        // Another domain has other grants, to the same pages or to others.
        let before = first_frame(self.nr_backs);
        self.nr_backs += 1;
        let (first, frame) = (FIRST_GREF * self.nr_backs, first_frame(self.nr_backs));
        if frame != before {
            self.nr_moved += u64::from(self.disk.waiting());
        }
        let pages: Vec<_> = (0..PAGES).map(|n| Page { gref: first + n, frame: frame + n }).collect();
        let grants: BTreeMap<u32, u32> = pages.iter().map(|page| (page.gref, page.frame)).collect();
        let page = TestPage::filled(0x5a5a_5a5a);
        // Not all take lists, or long ones.
        let max_segments = [32, 0, 256, 16][self.nr_backs as usize % 4];
        let guest = &mut self.front.guest;
        let attached = self.disk.attach(page.clone(), pages.into(), max_segments, guest, &self.memory, self.now);
        attached.expect("the same pages, or none of these");
        let mut back = Blkback::new(&self.memory, page, grants, max_segments);
        back.is_liar = self.guest_lies;
        back.is_damaged = self.backs_are_damaged && !self.nr_backs.is_multiple_of(3);
        self.back = Some(back);
        self.is_awake = true;
    }

    /// A back end that lives and tells the truth: all is done. How many requests were answered.
    fn end(mut self) -> Done {
        self.back_dies();
        if self.is_let_go {
            return self.let_go();
        }
        if self.guest_lies {
            return self.done();
        }
        self.back_comes();
        self.back.iter_mut().for_each(|back| back.is_damaged = false);
        for round in 0u8.. {
            self.serve(1 << 16);
            let Some(back) = &mut self.back else { break };
            back.take();
            let mut has_worked = back.work(&mut self.medium, round);
            while back.work(&mut self.medium, round) {}
            while let Some(is_told) = back.answer(round) {
                self.is_awake |= is_told;
                has_worked = true;
            }
            self.front.take(&self.medium.durable);
            if !has_worked && !self.is_awake && self.is_late {
                self.look_after();
            } else if !has_worked && !self.is_awake {
                if self.disk.waiting() == 0 {
                    break;
                }
                // What still waits has an error.
                assert!(!self.medium.bad.is_empty() || self.back_lies, "requests that nobody answers");
                self.believe();
            }
        }
        assert_eq!(self.front.nr_under(), 0, "requests that nobody answers");
        assert_eq!(self.disk.waiting(), 0);
        assert_eq!(self.disk.nr_free_pages(), PAGES as usize, "pages are lost");
        assert_eq!(self.front.guest.nr_free(), FRAMES as usize, "frames are lost");
        if !self.front.is_lied_to {
            for at in 0..SECTORS {
                let newest = self.front.newest(at);
                assert!(newest == UNKNOWN || self.medium.content[at] == newest, "sector {at}");
            }
            assert_eq!(self.disk.stats.bad_answers, 0);
            assert_eq!(self.disk.stats.bad_rings, 0);
            assert!(self.backs_are_damaged || self.disk.stats.empty_reads == 0, "reads that brought something");
        }
        self.done()
    }

    /// Nothing is done any more, and yet all is answered.
    fn let_go(mut self) -> Done {
        self.front.is_lied_to = true;
        self.disk.give_up(true);
        self.is_awake = true;
        self.serve(PORTION);
        if !self.guest_lies {
            self.front_takes();
            assert_eq!(self.front.nr_under(), 0, "requests that nobody answers");
            assert_eq!(self.front.guest.nr_free(), FRAMES as usize, "frames are lost");
        }
        assert_eq!(self.disk.waiting(), 0);
        self.done()
    }

    fn done(&self) -> Done {
        let stats = &self.disk.stats;
        let (merged, empty_reads) = (stats.merged, stats.empty_reads);
        Done { answered: self.front.nr_answered, merged, empty_reads, moved: self.nr_moved }
    }
}

/// The first frame of the pages that a back end has, by its number. Every second one has those of the one before.
fn first_frame(nr_back: u32) -> u32 {
    1 + FRAMES + nr_back / 2 % SETS * PAGES
}

#[cfg(test)]
mod tests {
    use super::super::world::random;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_million_operations() {
        let mut all = Done::default();
        for seed in 1..=64u64 {
            let mut ops: Vec<u8> = random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)).take(1 + 4 * 16_000).collect();
            ops[0] = seed as u8;
            let done = run(&ops);
            all.answered += done.answered;
            all.merged += done.merged;
            all.empty_reads += done.empty_reads;
            all.moved += done.moved;
        }
        assert!(
            all.answered > 45_000 && all.merged > 5_000 && all.empty_reads > 100 && all.moved > 1_000,
            "only {all:?}"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn whatever_happens_all_is_done_once(ops in prop::collection::vec(any::<u8>(), 0..4 * 400)) {
            run(&ops);
        }
    }
}
