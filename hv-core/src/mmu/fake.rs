//! A machine of a few frames for tests: memory, a log of all writes, a TLB clock, preemption on demand.

#![allow(clippy::cast_possible_truncation, reason = "test machinery with small numbers")]

use super::snapshot::Keep;
use super::{IoAccess, MmuEnv, PtMem, Slot};
use crate::allowance::{MOVED, STEP};
use crate::frame::{Frame, FrameType, Gone, Knowers};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::vec::Vec;
use x86::{Mfn, Pte};
use xen_abi::layout::DomId;

/// What the hypervisor's entries in an L4 table look like here.
pub const HYPERVISOR_ENTRY: Pte = Pte(0x00ab_c000_0000_0063);
/// The first frames are I/O memory.
pub const IO_FRAMES: u64 = 2;
/// This I/O frame may only be read.
pub const READ_ONLY_IO: Mfn = Mfn::new(1);
/// May choose cache attributes and map I/O memory.
pub const DOM0: DomId = DomId(0);
/// An ordinary guest.
pub const DOM1: DomId = DomId(1);
/// Another.
pub const DOM2: DomId = DomId(2);

/// The fake machine.
pub struct Machine {
    /// The frame table: I/O frames first, then free RAM.
    pub frames: Vec<Frame>,
    memory: Vec<AtomicU64>,
    /// Every write, in order.
    pub writes: Mutex<Vec<(Slot, Pte)>>,
    /// Log writes?
    pub log: AtomicBool,
    /// Every frame that became free, with its last owner.
    pub freed: Mutex<Vec<(Mfn, DomId)>>,
    clock: AtomicU32,
    /// What others do between somebody's look at the clock and what he makes of it, the next time that anybody looks.
    pub behind_clock: Mutex<Option<fn(&Self)>>,
    last_flush: [AtomicU32; 3],
    flushes: [AtomicU32; 3],
    /// Steps that are left; negative: any number.
    pub fuel: AtomicI64,
    /// Steps that were done, whether they were left or not.
    pub nr_steps: AtomicU32,
    /// Work that is not yet worth a step.
    work: AtomicU32,
    /// Frames that devices may write, and whose.
    pub dma: Mutex<BTreeSet<(u16, Mfn)>>,
    /// Frames that IOMMUs may still remember as theirs.
    pub dma_remembered: Mutex<BTreeSet<Mfn>>,
    /// Frames that have to be read again, as they have become another thing.
    pub changed: Mutex<BTreeSet<Mfn>>,
    /// The M2P.
    pub m2p: Vec<AtomicU64>,
    /// Frames for copies, which nobody owns.
    pub spare: Mutex<Vec<Mfn>>,
    /// Bytes for which there is room at once, for records.
    pub room: AtomicUsize,
    /// Bytes that were asked for, and for which there was room.
    pub asked: AtomicUsize,
    /// Frames that are kept for snapshots.
    pub away: Mutex<BTreeSet<Mfn>>,
    /// Every frame that was and came back, with its owner.
    pub returned: Mutex<Vec<(Mfn, DomId)>>,
    /// I/O frames that nobody may map any more.
    pub withdrawn: Mutex<BTreeSet<Mfn>>,
    /// Questions who may map an I/O frame.
    pub nr_io_questions: AtomicU32,
}

impl Machine {
    /// A machine of `n` frames.
    pub fn new(n: u64) -> Self {
        let frames = (0..n).map(|i| if i < IO_FRAMES { Frame::io() } else { Frame::free() }).collect();
        let zeroes = |n: u64| (0..n).map(|_| AtomicU64::new(0)).collect();
        Self {
            frames,
            memory: zeroes(n * 512),
            writes: Mutex::default(),
            log: AtomicBool::new(true),
            freed: Mutex::default(),
            clock: AtomicU32::new(1),
            behind_clock: Mutex::default(),
            last_flush: [const { AtomicU32::new(1) }; 3],
            flushes: [const { AtomicU32::new(0) }; 3],
            fuel: AtomicI64::new(-1),
            nr_steps: AtomicU32::new(0),
            work: AtomicU32::new(0),
            dma: Mutex::default(),
            dma_remembered: Mutex::default(),
            changed: Mutex::default(),
            m2p: zeroes(n),
            spare: Mutex::default(),
            room: AtomicUsize::new(usize::MAX),
            asked: AtomicUsize::new(0),
            away: Mutex::default(),
            returned: Mutex::default(),
            withdrawn: Mutex::default(),
            nr_io_questions: AtomicU32::new(0),
        }
    }

    /// The operations on it.
    pub fn mmu(&self) -> super::Mmu<'_, Self> {
        super::Mmu::new(self)
    }
    /// A frame that exists.
    pub fn at(&self, mfn: Mfn) -> &Frame {
        &self.frames[mfn.index()]
    }
    /// Gives the next `n` frames from `first` to `dom`.
    pub fn populate(&self, dom: DomId, first: u64, n: u64) {
        for mfn in first..first + n {
            self.frames[mfn as usize].assign(dom);
        }
    }
    /// Writes memory as a guest or a test does, unseen.
    pub fn poke(&self, slot: Slot, value: Pte) {
        self.cell(slot).store(value.0, Ordering::SeqCst);
    }
    fn cell(&self, slot: Slot) -> &AtomicU64 {
        &self.memory[slot.page().index() * 512 + slot.index()]
    }
    fn note(&self, slot: Slot, new: Pte) {
        if self.log.load(Ordering::Relaxed) {
            self.writes.lock().unwrap().push((slot, new));
        }
    }
    /// How often the CPUs of domain 0, 1 and 2, which have theirs each, have been flushed.
    pub fn flushes(&self) -> [u32; 3] {
        self.flushes.each_ref().map(|n| n.load(Ordering::SeqCst))
    }
    /// A complete TLB flush of a domain's CPUs.
    pub fn flush(&self, dom: DomId) {
        let dom = usize::from(dom.0);
        self.last_flush[dom].store(self.clock.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.flushes[dom].fetch_add(1, Ordering::SeqCst);
    }
}

impl PtMem for Machine {
    fn read(&self, slot: Slot) -> Pte {
        Pte(self.cell(slot).load(Ordering::SeqCst))
    }
    fn write(&self, slot: Slot, new: Pte) {
        self.note(slot, new);
        self.cell(slot).store(new.0, Ordering::SeqCst);
    }
    fn cmpxchg(&self, slot: Slot, old: Pte, new: Pte) -> Result<(), Pte> {
        self.cell(slot).compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst).map_err(Pte)?;
        self.note(slot, new);
        Ok(())
    }
}

impl Keep for Machine {
    fn alloc(&self) -> Option<Mfn> {
        self.spare.lock().unwrap().pop()
    }
    fn free(&self, copy: Mfn) {
        self.spare.lock().unwrap().push(copy);
    }
    fn has_room(&self, bytes: usize) -> bool {
        let has_room = bytes <= self.room.load(Ordering::SeqCst);
        self.asked.fetch_add(if has_room { bytes } else { 0 }, Ordering::SeqCst);
        has_room
    }
    fn pfn(&self, mfn: Mfn) -> u64 {
        self.m2p[mfn.index()].load(Ordering::SeqCst)
    }
    fn returned(&self, dom: DomId, mfn: Mfn) {
        assert!(self.away.lock().unwrap().remove(&mfn), "{mfn:?} was not away");
        self.returned.lock().unwrap().push((mfn, dom));
    }
    fn set_free(&self, mfn: Mfn) {
        assert!(self.away.lock().unwrap().remove(&mfn), "{mfn:?} was not away");
    }
}

impl MmuEnv for Machine {
    fn frame(&self, mfn: Mfn) -> Option<&Frame> {
        self.frames.get(mfn.index())
    }
    fn frames_end(&self) -> Mfn {
        Mfn::new(self.frames.len() as u64)
    }
    fn step(&self) {
        self.nr_steps.fetch_add(1, Ordering::SeqCst);
        let _ = self.fuel.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |f| (f > 0).then(|| f - 1));
    }
    fn is_out_of_steps(&self) -> bool {
        self.fuel.load(Ordering::SeqCst) == 0
    }
    fn tlb_clock(&self) -> u32 {
        let now = self.clock.load(Ordering::SeqCst);
        let others = self.behind_clock.lock().unwrap().take();
        if let Some(others) = others {
            others(self);
        }
        now
    }
    fn flush_since(&self, stamp: u32, knowers: Knowers) {
        let is_meant = |dom: &DomId| knowers == Knowers::Everyone || knowers == Knowers::CpusOf(*dom);
        let is_due = |dom: &DomId| self.last_flush[usize::from(dom.0)].load(Ordering::SeqCst) <= stamp;
        // So that a stamp is never that of a use before the flush.
        self.clock.fetch_max(stamp + 1, Ordering::SeqCst);
        (0..3).map(DomId).filter(is_meant).filter(is_due).for_each(|dom| self.flush(dom));
    }
    fn io_access(&self, dom: DomId, mfn: Mfn) -> IoAccess {
        self.nr_io_questions.fetch_add(1, Ordering::SeqCst);
        if dom != DOM0 || mfn.raw() >= 1 << 36 || self.withdrawn.lock().unwrap().contains(&mfn) {
            IoAccess::Denied
        } else if mfn == READ_ONLY_IO {
            IoAccess::ReadOnly
        } else {
            IoAccess::Allowed
        }
    }
    fn cache_control(&self, dom: DomId) -> bool {
        dom == DOM0
    }
    fn fill_hypervisor_slots(&self, l4: Mfn) {
        for index in 256..272 {
            self.poke(Slot::new(l4, index), HYPERVISOR_ENTRY);
        }
    }
    fn use_changed(&self, mfn: Mfn) {
        self.changed.lock().unwrap().insert(mfn);
    }
    fn m2p_set(&self, mfn: Mfn, pfn: u64) {
        self.m2p[mfn.index()].store(pfn, Ordering::SeqCst);
    }
    fn frame_left(&self, mfn: Mfn, owner: DomId, heap: bool) {
        let count = self.at(mfn).count();
        assert_eq!(
            heap || count.is_noted(),
            count.owner() == owner,
            "{mfn:?} is free only if it was not lent or noted"
        );
        self.m2p_set(mfn, xen_abi::layout::INVALID_M2P_ENTRY);
        self.freed.lock().unwrap().push((mfn, owner));
    }
    fn frame_gone(&self, mfn: Mfn, gone: Gone) {
        let work = self.work.load(Ordering::SeqCst) + MOVED;
        self.work.store(work % STEP, Ordering::SeqCst);
        (0..work / STEP).for_each(|_| self.step());
        if gone == Gone::Away {
            assert!(self.away.lock().unwrap().insert(mfn), "{mfn:?} is away twice");
        }
    }
    fn dma_allow(&self, dom: DomId, mfn: Mfn) {
        let frame = self.at(mfn);
        let is_held = frame.usage().is_valid_as(FrameType::Writable) || frame.count().refs() == 0;
        assert!(is_held, "{mfn:?} is given to devices while it may become a page table: {frame:?}");
        assert!(self.dma.lock().unwrap().insert((dom.0, mfn)), "{mfn:?} was {dom:?}'s devices' already");
    }
    fn dma_forbid(&self, dom: DomId, mfn: Mfn) {
        assert!(self.dma.lock().unwrap().remove(&(dom.0, mfn)), "{mfn:?} was not {dom:?}'s devices'");
    }
    fn dma_release(&self, dom: DomId, mfn: Mfn) {
        self.dma_forbid(dom, mfn);
        self.dma_remembered.lock().unwrap().insert(mfn);
    }
    fn dma_flush(&self) {
        self.dma_remembered.lock().unwrap().clear();
    }
    fn clear_page(&self, mfn: Mfn) {
        (0..512).for_each(|i| self.poke(Slot::new(mfn, i), Pte::EMPTY));
    }
    fn copy_page(&self, to: Mfn, from: Mfn) {
        (0..512).for_each(|i| self.poke(Slot::new(to, i), self.read(Slot::new(from, i))));
    }
    fn read_bytes(&self, page: Mfn, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= x86::PAGE_SIZE);
        for (at, byte) in (offset..).zip(to) {
            *byte = self.read(Slot::new(page, at / 8)).0.to_le_bytes()[at % 8];
        }
    }
    fn write_bytes(&self, page: Mfn, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= x86::PAGE_SIZE);
        for (at, byte) in (offset..).zip(from) {
            let slot = Slot::new(page, at / 8);
            let mut word = self.read(slot).0.to_le_bytes();
            word[at % 8] = *byte;
            self.poke(slot, Pte(u64::from_le_bytes(word)));
        }
    }
}
