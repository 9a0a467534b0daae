//! A generator of operations and a naive model, for the fuzz target `grant` and the property tests.
//!
//! Input bytes choose grants, scribbles over shared entries, maps, unmaps and copies' pins between three domains. The
//! model is the list of live mappings; after each step the references that frames have are what that list says, in-use
//! flags are set where (unscribbled) entries are used, and at the end nothing is left.
#![allow(clippy::cast_possible_truncation, reason = "test machinery with small numbers")]

use super::*;
use crate::evtchn::oracle::TestPage;
use crate::room::boundless;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::Ordering::SeqCst;
use std::collections::BTreeMap;
use xen_abi::grant::{GTF_PERMIT_ACCESS, GTF_READING, GTF_READONLY, GTF_WRITING};

impl SharedFrame for TestPage {
    fn mfn(&self) -> u64 {
        7
    }
}

/// Frames with counted references. Frame f belongs to domain f / 100; frames from 1000 on to nobody, and every frame
/// that ends in 9 cannot be made writable (it is a page table).
#[derive(Default)]
pub struct Frames {
    /// References that are not for writing, and those that are, by frame.
    pub counts: RefCell<BTreeMap<u64, (u32, u32)>>,
}

impl FrameRefs for Frames {
    fn take(&self, owner: DomId, frame: u64, writable: bool) -> bool {
        let ok = frame / 100 == u64::from(owner) && frame < 1000 && !(writable && frame % 10 == 9);
        if ok {
            let mut counts = self.counts.borrow_mut();
            let c = counts.entry(frame).or_default();
            if writable {
                c.1 += 1;
            } else {
                c.0 += 1;
            }
        }
        ok
    }

    fn make_writable(&self, owner: DomId, frame: u64) -> bool {
        let ok = self.take(owner, frame, true);
        if ok {
            self.give_back(frame, false);
        }
        ok
    }

    fn make_readable(&self, frame: u64) {
        self.counts.borrow_mut().entry(frame).or_default().0 += 1;
        self.give_back(frame, true);
    }

    fn give_back(&self, frame: u64, writable: bool) {
        let mut counts = self.counts.borrow_mut();
        let c = counts.get_mut(&frame).expect("a frame that was taken");
        let n = if writable { &mut c.1 } else { &mut c.0 };
        *n = n.checked_sub(1).expect("given back once too often");
        if *c == (0, 0) {
            counts.remove(&frame);
        }
    }
}

const DOMS: usize = 3;
const ENTRIES: u32 = 24;

struct World {
    frames: Frames,
    tables: Vec<GrantTable<TestPage>>,
    tracks: Vec<Maptrack>,
    /// Live handles: mapper, handle, what it stands for.
    live: Vec<(usize, u32, Mapping)>,
    /// Uses by copies: granter, entry, user, how.
    pins: Vec<(usize, u32, DomId, Use, u64)>,
}

/// Writes a shared entry as a guest does.
pub fn grant(table: &GrantTable<TestPage>, gref: u32, flags: u16, user: DomId, frame: u32) {
    let words = table.frames()[0].as_ref();
    words[gref as usize * 2 + 1].store(frame, SeqCst);
    words[gref as usize * 2].store(u32::from(flags) | u32::from(user) << 16, SeqCst);
}

/// Runs one input. Panics if the tables disagree with the model.
pub fn run(data: &[u8]) {
    let mut w = World {
        frames: Frames::default(),
        tables: (0..DOMS as DomId).map(|d| GrantTable::new(d, 0, 1)).collect(),
        tracks: (0..DOMS).map(|_| Maptrack::new(1)).collect(),
        live: Vec::new(),
        pins: Vec::new(),
    };
    for t in &mut w.tables {
        t.grow(1, boundless, || Some(TestPage::filled(0))).unwrap();
    }
    for op in data.chunks_exact(5) {
        w.step(op[0], op[1] as usize % DOMS, op[2] as usize % DOMS, u32::from(op[3]) % (ENTRIES + 1), op[4]);
        w.check();
    }
    while let Some((mapper, handle, _)) = w.live.first().copied() {
        w.unmap(mapper, handle, true, true);
    }
    for (g, gref, _, how, _) in core::mem::take(&mut w.pins) {
        w.tables[g].unpin(&w.frames, gref, how);
    }
    w.check();
    assert!(w.frames.counts.borrow().is_empty(), "references left: {:?}", w.frames.counts.borrow());
    assert!(w.tables.iter().all(|t| t.nr_used() == 0));
    assert!(w.tracks.iter().all(|t| t.next_used(0).is_none()));
}

impl World {
    fn step(&mut self, op: u8, a: usize, b: usize, gref: u32, x: u8) {
        match op % 9 {
            0 | 1 if gref < ENTRIES => {
                // A grant, now and then of a frame that is not its to give.
                let frame = if x % 16 == 15 { u32::from(x) } else { a as u32 * 100 + u32::from(x % 10) };
                let read_only = if x & 0x40 != 0 { GTF_READONLY } else { 0 };
                grant(&self.tables[a], gref, GTF_PERMIT_ACCESS | read_only, b as DomId, frame);
            }
            2 if gref < ENTRIES => {
                let words = self.tables[a].frames()[0].as_ref();
                words[gref as usize * 2 + usize::from(x & 1)].store(u32::from(x) * 0x0101_0101, SeqCst);
            }
            3 | 4 => self.map(a, b, if x == 255 { 600 } else { gref }, x),
            5 => {
                let handle = u32::from(x) % 16;
                self.unmap(b, handle, x & 0x10 != 0, x & 0x20 != 0);
            }
            6 => {
                let how = Use { device: false, writable: x & 1 != 0 };
                let expected = self.may_use(a, gref, b as DomId, how.writable);
                let got = self.tables[a].pin(&self.frames, b as DomId, gref, how);
                assert_eq!(got.is_ok(), expected.is_some(), "{got:?}");
                if let (Ok(frame), Some(f)) = (got, expected) {
                    assert_eq!(frame, f);
                    self.pins.push((a, gref, b as DomId, how, frame));
                }
            }
            7 => {
                let writable = x & 1 != 0;
                let expected = self.may_use(a, gref, b as DomId, writable);
                let mut used = None;
                let got = self.tables[a].use_once(&self.frames, b as DomId, gref, writable, |frame| {
                    let (others, writers) = self.frames.counts.borrow()[&frame];
                    assert!(writers > 0 || !writable && others > 0, "it is held, for writing if need be");
                    used = Some(frame);
                });
                assert_eq!(got.is_ok(), expected.is_some(), "{got:?}");
                assert_eq!(used, expected);
            }
            _ => {
                if let Some((g, gref, _, how, _)) = self.pins.pop() {
                    self.tables[g].unpin(&self.frames, gref, how);
                }
            }
        }
    }

    /// All uses of an entry: user, frame, writable.
    fn uses(&self, granter: usize, gref: u32) -> Vec<(DomId, u64, bool)> {
        let maps = self.live.iter().filter(|(_, _, m)| usize::from(m.granter) == granter && m.gref == gref);
        let maps = maps.flat_map(|(mapper, _, m)| {
            let one = (*mapper as DomId, m.frame, m.writable);
            [m.host.then_some(one), m.device.then_some(one)].into_iter().flatten()
        });
        let pins = self.pins.iter().filter(|p| p.0 == granter && p.1 == gref).map(|p| (p.2, p.4, p.3.writable));
        maps.chain(pins).collect()
    }

    /// The frame, if `user` may start a use of an entry.
    fn may_use(&self, granter: usize, gref: u32, user: DomId, writable: bool) -> Option<u64> {
        let words = self.tables[granter].frames()[0].as_ref();
        let head = words.get(gref as usize * 2)?.load(SeqCst);
        let uses = self.uses(granter, gref);
        if uses.iter().any(|u| u.0 != user) {
            return None;
        }
        let frame = uses.first().map_or_else(|| words[gref as usize * 2 + 1].load(SeqCst).into(), |u| u.1);
        let first_write = writable && !uses.iter().any(|u| u.2);
        if uses.is_empty() || first_write {
            let permits = head & 3 == u32::from(GTF_PERMIT_ACCESS) && head >> 16 == u32::from(user);
            let writes = !writable || head & u32::from(GTF_READONLY) == 0;
            let owned = frame / 100 == granter as u64 && !(writable && frame % 10 == 9);
            if !permits || !writes || !owned {
                return None;
            }
        }
        Some(frame)
    }

    fn map(&mut self, a: usize, b: usize, gref: u32, x: u8) {
        let flags = MapFlags {
            host: x & 1 != 0,
            device: x & 2 != 0 || x & 1 == 0,
            writable: x & 4 != 0,
            application: false,
            contains_pte: false,
            available: 0,
        };
        let expected = if gref == 600 { None } else { self.may_use(a, gref, b as DomId, flags.writable) };
        let got = map(&mut self.tracks[b], &mut self.tables[a], &self.frames, b as DomId, gref, flags);
        let Ok((handle, frame)) = got else {
            assert!(expected.is_none() || got == Err(GntStatus::NoDeviceSpace), "{got:?}");
            return;
        };
        assert_eq!(Some(frame), expected);
        assert!(self.live.iter().all(|l| (l.0, l.1) != (b, handle)), "a handle that is in use");
        if x & 0x18 == 0x18 {
            // The page-table entry could not be written.
            map_undo(&mut self.tracks[b], &mut self.tables[a], &self.frames, handle);
        } else {
            let mapping = self.tracks[b].get(handle).unwrap();
            self.live.push((b, handle, mapping));
        }
    }

    fn unmap(&mut self, mapper: usize, handle: u32, host: bool, device: bool) {
        let at = self.live.iter().position(|l| (l.0, l.1) == (mapper, handle));
        let Some(retired) = self.tracks[mapper].retire(handle, host, device) else {
            let nothing = at.is_none_or(|at| {
                let m = self.live[at].2;
                !(host && m.host || device && m.device)
            });
            assert!(nothing, "a mapping was not unmapped");
            return;
        };
        let at = at.expect("a handle that stands for something");
        assert!(self.tracks[mapper].retire(handle, host, device).is_none(), "unmapped twice");
        let granter = usize::from(retired.mapping.granter);
        unmap_finish(&mut self.tracks[mapper], &mut self.tables[granter], &self.frames, retired);
        self.live[at].2.host &= !host;
        self.live[at].2.device &= !device;
        if !self.live[at].2.host && !self.live[at].2.device {
            self.live.swap_remove(at);
        }
    }

    fn check(&self) {
        let mut expected: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        for g in 0..DOMS {
            for gref in 0..ENTRIES {
                let uses = self.uses(g, gref);
                let Some(first) = uses.first() else { continue };
                let c = expected.entry(first.1).or_default();
                if uses.iter().any(|u| u.2) {
                    c.1 += 1;
                } else {
                    c.0 += 1;
                }
                assert!(uses.iter().all(|u| (u.0, u.1) == (first.0, first.1)), "two users or frames of one grant");
            }
        }
        assert_eq!(*self.frames.counts.borrow(), expected);
    }
}

/// The in-use flags of an entry.
pub fn in_use_flags(table: &GrantTable<TestPage>, gref: u32) -> u16 {
    let head = table.frames()[0].as_ref()[gref as usize * 2].load(SeqCst);
    head as u16 & (GTF_READING | GTF_WRITING)
}
