//! A random guest against the memory management, and a naive model that recounts everything after each step.
//!
//! [`run`] reads operations from bytes: two domains (one of which may map the other's frames and I/O memory) change
//! entries, pin, load roots, take descriptor tables, give pages up, are preempted, resume or do something else instead.
//! After each operation:
//! * every count is recomputed from what is held (pins, roots, deferred tables, ...) by walking the tables, and
//!   compared;
//! * the worst TLB that the CPUs of either domain could have is kept, with all translations that were possible since
//!   their last flush, stale paging-structure entries included: no table and no descriptor page may be writable through
//!   it, and no page may be used as a table through it that is none of that level any more.
//!
//! At the end both domains die, preempted here and there, and every frame must be free.

#![allow(clippy::cast_possible_truncation, reason = "test machinery with small numbers")]

use super::fake::{Machine, DOM0, DOM1, IO_FRAMES};
use super::tables::is_hypervisor_slot;
use super::{Audit, Deferred, GdtFrames, MmuEnv, MmuError, Owners, PtMem, Relinquish, RootRef, Slot, Table};
use crate::frame::{FrameType, Gone, UsageState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::vec::Vec;
use x86::{Level, Mfn, Pte, PteFlags, VirtAddr};
use xen_abi::layout::DomId;

/// Frames of the machine.
const FRAMES: u64 = 52;
/// Each domain's frames: two L4 tables, two L3, three L2, four L1 by inclination, and data.
const PER_DOMAIN: u64 = 20;
const FIRST: [u64; 2] = [IO_FRAMES, IO_FRAMES + PER_DOMAIN];
const INDICES: [usize; 8] = [0, 1, 2, 255, 256, 271, 300, 511];
const LEVELS: [Level; 4] = [Level::L1, Level::L2, Level::L3, Level::L4];

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
    fn or_zero(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }
}

/// A translation cache that forgets nothing until it is flushed.
#[derive(Default)]
struct WorstTlb {
    flushes: u32,
    /// Pages reachable; `true`: writable.
    pages: BTreeMap<u64, bool>,
    /// Tables that a walk may go through, with their level.
    tables: BTreeSet<(Level, u64)>,
}

impl WorstTlb {
    /// Everything that is reachable through what is cached, and stays so, as long as nobody flushes.
    fn fill(&mut self, machine: &Machine) {
        let mut todo: Vec<_> = self.tables.iter().copied().collect();
        while let Some((level, mfn)) = todo.pop() {
            for entry in present_entries(machine, level, mfn, 512) {
                let target = entry.mfn().raw();
                match level.below() {
                    None => *self.pages.entry(target).or_default() |= entry.is_writable(),
                    Some(below) => {
                        if target < FRAMES && self.tables.insert((below, target)) {
                            todo.push((below, target));
                        }
                    }
                }
            }
        }
    }
}

fn present_entries(m: &Machine, level: Level, mfn: u64, upto: usize) -> impl Iterator<Item = Pte> + '_ {
    (0..upto)
        .filter(move |&index| !is_hypervisor_slot(level, index))
        .map(move |index| m.read(Slot::new(Mfn::new(mfn), index)))
        .filter(|entry| entry.is_present())
}

/// The roots that domain `d` holds, as tables.
fn roots_of(roots: &[(usize, RootRef)], d: usize) -> impl Iterator<Item = (Level, u64)> + '_ {
    roots.iter().filter(move |root| root.0 == d).map(|(_, root)| (Level::L4, root.mfn().raw()))
}

/// What the recount finds for one frame.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
struct Counted {
    refs: u32,
    ty: Option<FrameType>,
    type_refs: u32,
}

/// The domains, as the shell would know them.
struct World {
    machine: Machine,
    locks: [Deferred; 2],
    roots: Vec<(usize, RootRef)>,
    gdts: Vec<GdtFrames>,
    /// Kept references to pages: `true` for writable ones.
    held: Vec<(Mfn, bool)>,
    pins: BTreeSet<u64>,
    allocated: BTreeSet<u64>,
    /// What the CPUs of each domain may know. No CPU runs both.
    tlbs: [WorstTlb; 2],
}

const fn dom(d: usize) -> DomId {
    if d == 0 {
        DOM0
    } else {
        DOM1
    }
}

/// Executes the operations in `data` and checks everything after each.
///
/// # Panics
/// If the memory management did something wrong.
pub fn run(data: &[u8]) {
    let mut world = World::new();
    world.check();
    let mut bytes = Bytes(data);
    while let Some(op) = bytes.next() {
        let flushes = world.machine.flushes();
        let before = [0, 1].map(|d| world.reachable(d));
        world.step(op, &mut bytes);
        for (d, before) in before.into_iter().enumerate() {
            if world.machine.flushes()[d] != flushes[d] {
                // Whatever was there before the operation may have been cached again after the flush.
                world.tlbs[d] = before;
            }
        }
        world.check();
    }
    world.end(&mut bytes);
}

/// A frame: mostly one that is inclined to be a table of `level` (0: data), else any number.
fn frame_near(d: usize, level: u8, choice: u8) -> Mfn {
    let (first, count) = [(11, 9), (7, 4), (4, 3), (2, 2), (0, 2)][usize::from(level)];
    let n = u64::from(choice >> 2);
    Mfn::new(match choice & 3 {
        0 => n % (FRAMES + 4),
        1 => FIRST[1 - d] + first + n % count,
        _ => FIRST[d] + first + n % count,
    })
}

impl World {
    fn new() -> Self {
        let machine = Machine::new(FRAMES);
        machine.log.store(false, Ordering::Relaxed);
        let mut allocated = BTreeSet::new();
        for (d, first) in FIRST.into_iter().enumerate() {
            machine.populate(dom(d), first, PER_DOMAIN);
            allocated.extend(first..first + PER_DOMAIN);
            // L4 -> L3 -> two L2 -> L1 tables -> data.
            let frame = |n: u64| first + n;
            let entry = |n: u64, flags: u64| Pte(frame(n) << 12 | flags);
            machine.poke(Slot::new(Mfn::new(frame(0)), 0), entry(2, 7));
            machine.poke(Slot::new(Mfn::new(frame(2)), 0), entry(4, 7));
            machine.poke(Slot::new(Mfn::new(frame(2)), 1), entry(5, 7));
            machine.poke(Slot::new(Mfn::new(frame(4)), 0), entry(7, 7));
            machine.poke(Slot::new(Mfn::new(frame(4)), 1), entry(8, 7));
            machine.poke(Slot::new(Mfn::new(frame(5)), 0), entry(9, 7));
            for n in 0..3 {
                machine.poke(Slot::new(Mfn::new(frame(7 + n)), 0), entry(12 + n, 7));
                machine.poke(Slot::new(Mfn::new(frame(7 + n)), 1), entry(12 + n, 5));
                machine.poke(Slot::new(Mfn::new(frame(7 + n)), 2), entry(n, 5));
            }
        }
        Self {
            machine,
            locks: [Deferred::new(), Deferred::new()],
            roots: Vec::new(),
            gdts: Vec::new(),
            held: Vec::new(),
            pins: BTreeSet::new(),
            allocated,
            tlbs: Default::default(),
        }
    }

    fn step(&mut self, op: u8, bytes: &mut Bytes<'_>) {
        let d = usize::from(op >> 7);
        let fuel = bytes.or_zero();
        let set_fuel = |m: &Machine| {
            m.fuel.store(if fuel & 3 == 0 { i64::from(fuel >> 2 & 3) } else { -1 }, Ordering::SeqCst);
        };
        // A preempted operation is repeated, or something else happens instead.
        let tries = 1 + u32::from(fuel >> 4 & 7);
        let (a, b) = (bytes.or_zero(), bytes.or_zero());
        for _ in 0..tries {
            set_fuel(&self.machine);
            let mut again = Bytes(bytes.0);
            let result = self.operation(op & 0x7f, d, a, b, &mut again);
            if result != Err(MmuError::Preempted) {
                break;
            }
        }
        let mut skip = Bytes(bytes.0);
        skip.next();
        skip.next();
        bytes.0 = skip.0;
        self.machine.fuel.store(-1, Ordering::SeqCst);
    }

    fn operation(&mut self, op: u8, d: usize, a: u8, b: u8, more: &mut Bytes<'_>) -> Result<(), MmuError> {
        let (c, e) = (more.or_zero(), more.or_zero());
        let mmu = self.machine.mmu();
        let owner = dom(d);
        let lock = &mut self.locks[d];
        match op % 16 {
            0..=4 => {
                let level = 1 + (a & 3);
                let table = frame_near(d, level, b);
                let target = frame_near(d, level - 1, c);
                let slot = Slot::new(table, INDICES[usize::from(a >> 2 & 7)]);
                let flags = u64::from(e & 7) | u64::from(e >> 3 & 3) << 5 | rare_flags(e, a);
                let who = Owners { table: owner, frame: if d == 0 && a & 0x40 != 0 { DOM1 } else { owner } };
                let command = if a & 0x20 != 0 { 2 } else { 0 };
                mmu.mmu_update(slot.addr() | command, target.raw() << 12 | flags, who, lock)
            }
            5 => {
                let level = LEVELS[usize::from(a & 3)];
                let mfn = frame_near(d, 1 + (a & 3), b);
                mmu.pin(owner, mfn, level, lock).map(|()| assert!(self.pins.insert(mfn.raw())))
            }
            6 => {
                let mfn = frame_near(d, 1 + (a & 3), b);
                mmu.unpin(owner, mfn, lock).map(|()| assert!(self.pins.remove(&mfn.raw())))
            }
            7 => {
                let mfn = frame_near(d, 4, b);
                mmu.acquire_root(owner, mfn, lock).map(|root| self.roots.push((d, root)))
            }
            8 => {
                if self.roots.is_empty() {
                    return Ok(());
                }
                let (d, root) = self.roots.swap_remove(usize::from(a) % self.roots.len());
                if mmu.drain(&mut self.locks[d]).is_err() {
                    self.roots.push((d, root));
                    return Err(MmuError::Preempted);
                }
                mmu.release_root(root, &mut self.locks[d])
            }
            9 => {
                if a & 1 == 0 {
                    let frames = [frame_near(d, 0, b), frame_near(d, 0, c)];
                    mmu.take_gdt(owner, &frames[..usize::from(a >> 1 & 1) + 1]).map(|gdt| self.gdts.push(gdt))
                } else {
                    if let Some(mut gdt) = self.gdts.pop() {
                        mmu.drop_gdt(&mut gdt);
                    }
                    Ok(())
                }
            }
            10 => {
                let mfn = frame_near(d, a & 3, b);
                mmu.give_up(owner, mfn).map(|()| assert!(self.allocated.remove(&mfn.raw())))
            }
            11 => {
                let mfn = frame_near(d, a & 3, b);
                mmu.steal(owner, mfn)?;
                assert!(self.allocated.contains(&mfn.raw()));
                if a & 0x10 == 0 {
                    mmu.unsteal(owner, mfn);
                } else {
                    self.allocated.remove(&mfn.raw());
                    assert_eq!(mmu.let_go(mfn), Gone::Free);
                }
                Ok(())
            }
            12 => {
                // The allocator gives a free frame out, wherever it came from.
                let free = |n: &u64| self.machine.at(Mfn::new(*n)).owner() == DomId::INVALID;
                let Some(n) = (FIRST[0]..FRAMES).cycle().skip(usize::from(a)).take(64).find(free) else {
                    return Ok(());
                };
                mmu.flush_before_reuse(Mfn::new(n));
                mmu.clear_page(owner, Mfn::new(n)).unwrap_err();
                self.machine.clear_page(Mfn::new(n));
                assert!(!self.tlb_knows(n), "frame {n} given out while TLBs know it");
                let is_remembered = self.machine.dma_remembered.lock().unwrap().contains(&Mfn::new(n));
                assert!(!is_remembered, "frame {n} given out while devices reach it");
                self.machine.at(Mfn::new(n)).assign(owner);
                self.allocated.insert(n);
                Ok(())
            }
            13 => {
                let mfn = frame_near(d, a & 3, b);
                if a & 0x80 != 0 {
                    if let Some((mfn, writable)) = self.held.pop() {
                        if writable {
                            drop(mmu.writable_from_kept(mfn));
                        } else {
                            drop(mmu.page_from_kept(mfn));
                        }
                    }
                } else if a & 4 == 0 {
                    self.held.push((mmu.get_page(mfn, owner)?.keep(), false));
                } else {
                    self.held.push((mmu.get_writable(mfn, owner)?.keep(), true));
                }
                Ok(())
            }
            14 => {
                // The CPU marks an entry accessed or dirty; or the guest writes through a writable-page-table fault.
                let table = frame_near(d, 1, b);
                let Some(frame) = self.machine.frame(table).filter(|f| !f.is_io()) else { return Ok(()) };
                if !frame.usage().is_valid_as(FrameType::L1) || frame.owner() != owner {
                    return Ok(());
                }
                let slot = Slot::new(table, INDICES[usize::from(a >> 2 & 7)]);
                let old = self.machine.read(slot);
                if a & 1 == 0 {
                    if old.is_present() {
                        self.machine.poke(slot, old.with(PteFlags::A | PteFlags::D));
                    }
                    return Ok(());
                }
                let target = frame_near(d, 0, c);
                let new = Pte(target.raw() << 12 | u64::from(e & 7));
                let seen = if a & 2 == 0 { old } else { Pte(old.0 ^ 0x20) };
                mmu.ptwr_commit(slot, seen, new, owner, lock.locked())
            }
            _ => {
                let Some((d, root)) = self.roots.last() else { return Ok(()) };
                let va = [0, 0x1000, 0x20_0000, 0x4000_0000, 0x80_0000_0000, 0xffff_8000_0000_0000];
                let va = VirtAddr::new(va[usize::from(a) % va.len()]).unwrap();
                let new = Pte(frame_near(*d, 0, c).raw() << 12 | u64::from(e & 7));
                mmu.update_va_mapping(root.mfn(), va, new, Owners::both(dom(*d)), self.locks[*d].locked())
            }
        }
    }

    fn tlb_knows(&self, n: u64) -> bool {
        // Checked before the new owner gets it: what a flush in this very operation dropped counts as dropped.
        self.tlbs.iter().zip(self.machine.flushes()).any(|(tlb, flushes)| {
            flushes == tlb.flushes && (tlb.pages.contains_key(&n) || tlb.tables.iter().any(|t| t.1 == n))
        })
    }

    /// A TLB that knows what the roots that domain `d` holds lead to now.
    fn reachable(&self, d: usize) -> WorstTlb {
        let mut tlb = WorstTlb { flushes: self.machine.flushes()[d], ..WorstTlb::default() };
        tlb.tables.extend(roots_of(&self.roots, d));
        tlb.fill(&self.machine);
        tlb
    }

    fn check(&mut self) {
        for (d, tlb) in self.tlbs.iter_mut().enumerate() {
            tlb.flushes = self.machine.flushes()[d];
            tlb.tables.extend(roots_of(&self.roots, d));
            tlb.fill(&self.machine);
        }
        let counted = self.recount();
        for n in IO_FRAMES..FRAMES {
            let frame = self.machine.at(Mfn::new(n));
            let usage = frame.usage();
            let ty = (usage.state() != UsageState::Idle).then(|| usage.ty());
            let real = Counted { refs: frame.count().refs(), ty, type_refs: usage.count() };
            assert_eq!(real, counted[n as usize], "frame {n}: {frame:?}");
            assert_ne!(usage.state(), UsageState::Busy, "frame {n}");
            assert_eq!(frame.owner() == DomId::INVALID, real.refs == 0, "frame {n}");
            assert_eq!(usage.is_pinned(), self.pins.contains(&n), "frame {n}");
            let guarded = usage.ty().level().is_some() || usage.ty() == FrameType::SegDesc;
            if ty.is_some() && guarded {
                let is_writable = self.tlbs.iter().any(|tlb| tlb.pages.get(&n) == Some(&true));
                assert!(!is_writable, "frame {n} is {ty:?} and still writable somewhere");
            }
            let dma = self.machine.dma.lock().unwrap();
            let whose: Vec<u16> = dma.iter().filter(|(_, mfn)| mfn.raw() == n).map(|(dom, _)| *dom).collect();
            let expected = (real.refs != 0 && usage.ty() == FrameType::Writable).then_some(frame.owner().0);
            assert_eq!(whose, Vec::from_iter(expected), "frame {n}: {frame:?}: whose devices may write it");
            for &(level, _) in self.tlbs.iter().flat_map(|tlb| &tlb.tables).filter(|t| t.1 == n) {
                let wrong = ty.is_some_and(|ty| ty != FrameType::from(level));
                assert!(!wrong, "frame {n} is {ty:?} and still walked as a table of {level:?}");
            }
        }
        for n in 0..IO_FRAMES {
            assert_eq!(self.machine.at(Mfn::new(n)).count().refs(), 0);
        }
        self.audit();
    }

    /// The hypervisor's own recount finds nothing either.
    fn audit(&self) {
        let mut found = Table::new(FRAMES as usize).expect("memory");
        let mut audit = Audit::new(self.machine.mmu(), &mut found);
        self.locks.iter().for_each(|lock| audit.deferred(lock));
        self.roots.iter().for_each(|(_, root)| audit.root(root.mfn()));
        self.gdts.iter().flat_map(GdtFrames::frames).filter(|mfn| mfn.raw() != 0).for_each(|mfn| audit.segdesc(*mfn));
        for &(mfn, writable) in &self.held {
            if writable {
                audit.writable(mfn);
            } else {
                audit.page(mfn);
            }
        }
        audit.finish(|mfn, frame, found, agrees| assert!(agrees, "frame {mfn:?}: {frame:?}, {found:?}"));
    }

    /// All counts, from scratch.
    fn recount(&self) -> Vec<Counted> {
        let mut all = std::vec![Counted::default(); FRAMES as usize];
        for &n in &self.allocated {
            all[n as usize].refs += 1;
        }
        let tables = self.locks.iter().flat_map(Deferred::tables).chain(self.pins.iter().map(|&n| Mfn::new(n)));
        for mfn in tables {
            let level = self.machine.at(mfn).usage().ty().level().expect("pinned and deferred frames are tables");
            self.count_table(&mut all, mfn.raw(), level);
        }
        for (_, root) in &self.roots {
            self.count_table(&mut all, root.mfn().raw(), Level::L4);
        }
        for gdt in &self.gdts {
            for mfn in gdt.frames().iter().filter(|mfn| mfn.raw() != 0) {
                count(&mut all, mfn.raw(), Some(FrameType::SegDesc));
            }
        }
        for &(mfn, writable) in &self.held {
            count(&mut all, mfn.raw(), writable.then_some(FrameType::Writable));
        }
        all
    }

    fn count_table(&self, all: &mut [Counted], mfn: u64, level: Level) {
        count(all, mfn, Some(level.into()));
        if all[mfn as usize].type_refs > 1 {
            return;
        }
        let usage = self.machine.at(Mfn::new(mfn)).usage();
        let upto = if usage.state() == UsageState::Partial { usage.resume() } else { 512 };
        let entries: Vec<Pte> = present_entries(&self.machine, level, mfn, upto).collect();
        for entry in entries {
            let target = entry.mfn().raw();
            assert!(entry.contains(PteFlags::US), "{entry:?} in a table");
            match level.below() {
                Some(below) => {
                    assert!(!entry.contains(PteFlags::PSE_PAT), "a superpage");
                    self.count_table(all, target, below);
                }
                None if (IO_FRAMES..FRAMES).contains(&target) => {
                    assert!(!entry.contains(PteFlags::PCD) && !entry.contains(PteFlags::G), "{entry:?} of RAM");
                    count(all, target, entry.is_writable().then_some(FrameType::Writable));
                }
                None => {}
            }
        }
    }

    fn end(mut self, bytes: &mut Bytes<'_>) {
        for (d, root) in core::mem::take(&mut self.roots) {
            self.machine.mmu().release_root(root, &mut self.locks[d]).unwrap();
        }
        for mut gdt in core::mem::take(&mut self.gdts) {
            self.machine.mmu().drop_gdt(&mut gdt);
        }
        for (mfn, writable) in core::mem::take(&mut self.held) {
            if writable {
                drop(self.machine.mmu().writable_from_kept(mfn));
            } else {
                drop(self.machine.mmu().page_from_kept(mfn));
            }
        }
        self.check();
        for d in 0..2 {
            let mut progress = Relinquish::new();
            for round in 0.. {
                assert!(round < 1000, "a domain does not die");
                self.machine.fuel.store(i64::from(bytes.or_zero() & 3), Ordering::SeqCst);
                match self.machine.mmu().relinquish(dom(d), &mut progress, &mut self.locks[d]) {
                    Ok(()) => break,
                    Err(e) => assert_eq!(e, MmuError::Preempted),
                }
            }
            assert!(self.locks[d].is_empty());
        }
        for n in IO_FRAMES..FRAMES {
            let frame = self.machine.at(Mfn::new(n));
            assert_eq!(frame.owner(), DomId::INVALID, "frame {n} after the end: {frame:?}");
            assert_eq!(frame.usage().state(), UsageState::Idle, "frame {n} after the end: {frame:?}");
        }
    }
}

fn count(all: &mut [Counted], mfn: u64, ty: Option<FrameType>) {
    let counted = &mut all[mfn as usize];
    counted.refs += 1;
    if let Some(ty) = ty {
        assert!(counted.ty.is_none_or(|was| was == ty), "frame {mfn} is {:?} and {ty:?}", counted.ty);
        counted.ty = Some(ty);
        counted.type_refs += 1;
    }
}

/// Now and then a flag that is only allowed to some, or to nobody.
fn rare_flags(e: u8, a: u8) -> u64 {
    match (e >> 5, a >> 7) {
        (7, 0) => PteFlags::PSE_PAT.bits(),
        (7, 1) => PteFlags::PCD.bits(),
        (6, 0) => PteFlags::G.bits(),
        (6, 1) => PteFlags::NX.bits(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]
        #[test]
        fn random_guests(data in proptest::collection::vec(any::<u8>(), 0..600)) {
            super::run(&data);
        }
    }

    /// The oracle must notice what it is there for.
    #[test]
    #[should_panic(expected = "frame 14")]
    fn a_lost_reference_is_noticed() {
        let mut world = super::World::new();
        core::mem::forget(world.machine.mmu().get_page(x86::Mfn::new(14), super::DOM0).unwrap());
        world.check();
    }
}
