//! The memory of a domain as it once was, and the way back to it.
//!
//! A [`Memory`] has a record of each frame that the domain owned: a [copy](Copies) of its contents unless those were
//! zeroes, its entry in the M2P, whether it was a page table or held descriptors, whether it was pinned. The copies are
//! the hypervisor's own frames, which nobody else can name. Frames that are lent to the domain are not part of its
//! memory: whoever lent them keeps them. A frame that is noted says so ([`CountWord::NOTED`]): if the domain gives it
//! up, or exchanges it, it is nobody's and waits for the way back.
//!
//! Going back has two halves. [`Mmu::check_memory`] decides, and changes nothing: all frames must still be the domain's
//! or nobody's, and none of those that were tables may be held for writing by anybody else. Who holds a frame is not
//! recorded anywhere; but what the domain's own tables hold of it can be counted, and what remains is others'. Then,
//! once its vCPUs have let go of their roots:
//! * [`Mmu::take_down`] undoes pins and what preempted operations have left, so that nothing is a table any more, and
//!   takes from the domain the frames that came to it since;
//! * [`Mmu::take_again`] gives it back what it has given up;
//! * [`Mmu::copy_back`] writes each frame, while it holds it for writing as anybody else would have to;
//! * [`Mmu::pin_again`] pins what was pinned. All that was a table is validated as if the guest had asked for it:
//!   nothing is believed because it was true once. The shell takes the roots again, and [`Mmu::check_types`] looks
//!   whether all is as it was.
//!
//! Others may take hold of a frame between the decision and the end. Then a step fails, and the domain must not run
//! again; nothing else has come of it.

mod copies;
mod desk;
mod packs;
mod pages;

use self::copies::Kept;
pub use self::copies::{Copies, Form};
use self::pages::Pages;
use super::tables::ENTRIES;
use super::withdrawal::IO_ENTRY;
use super::work::Work;
use super::{Deferred, Mmu, MmuEnv, MmuError, Slot};
use crate::allowance::{MOVED, PAGE, STEP};
use crate::frame::{CountWord, Frame, FrameType, UsageState};
use crate::snapshot::{Refusal, Stop};
use x86::Mfn;
use xen_abi::layout::DomId;

/// Where copies are kept.
pub trait Keep {
    /// A frame for a copy, which nobody else can name.
    fn alloc(&self) -> Option<Mfn>;
    /// Gives one back.
    fn free(&self, copy: Mfn);
    /// Is there memory for so many bytes of records, without what the hypervisor keeps for itself?
    fn has_room(&self, bytes: usize) -> bool;
    /// The entry of a frame in the M2P.
    fn pfn(&self, mfn: Mfn) -> u64;
    /// A frame that was away is in the account of `dom` again.
    fn returned(&self, dom: DomId, mfn: Mfn);
    /// A frame that was away belongs to the allocator; TLBs may still know it.
    fn set_free(&self, mfn: Mfn);
}

/// What a tree takes for one more of its elements at most, in bytes.
const NODE: usize = 4096;

/// What a frame was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    mfn: Mfn,
    pfn: u64,
    copy: Kept,
    /// [`FrameType::None`]: ordinary memory.
    ty: FrameType,
    is_pinned: bool,
    /// There was the same copy already.
    is_found: bool,
}

impl Record {
    /// Must it be of a type that others can keep it from?
    const fn is_special(&self) -> bool {
        !matches!(self.ty, FrameType::None)
    }
}

/// How many copies a memory has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames of which there are copies, since they were not zero.
    pub copies: u64,
    /// Of these, those of which there was a copy already when they were noted: another frame held the same, of this
    /// domain or of another one that is noted.
    pub found: u64,
    /// Of the others, those that are packed.
    pub packed: u64,
    /// Bytes that these take.
    pub packed_bytes: u64,
}

impl Counts {
    /// Of one record.
    fn of(record: &Record) -> Self {
        let packed = record.copy.packed().filter(|_| !record.is_found);
        Self {
            copies: u64::from(!record.copy.is_none()),
            found: u64::from(record.is_found),
            packed: u64::from(packed.is_some()),
            packed_bytes: packed.unwrap_or(0),
        }
    }

    fn add(&mut self, other: Self) {
        self.copies += other.copies;
        self.found += other.found;
        self.packed += other.packed;
        self.packed_bytes += other.packed_bytes;
    }

    fn take(&mut self, other: Self) {
        self.copies -= other.copies;
        self.found -= other.found;
        self.packed -= other.packed;
        self.packed_bytes -= other.packed_bytes;
    }
}

/// A domain's memory as it was. Must be emptied by [`Memory::release`] before it is dropped.
#[derive(Debug)]
pub struct Memory {
    form: Form,
    records: Pages<Record>,
    /// Frames below this number have been looked at.
    next: usize,
    counts: Counts,
}

impl Memory {
    /// Nothing yet. `form`: how copies are kept that are not there already.
    pub const fn new(form: Form) -> Self {
        let counts = Counts { copies: 0, found: 0, packed: 0, packed_bytes: 0 };
        Self { form, records: Pages::new(), next: 0, counts }
    }

    /// Frames that the domain owned, as far as they have been looked at.
    pub fn nr_frames(&self) -> u64 {
        self.records.len() as u64
    }

    /// Its copies.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Gives up to `parts` pages of records back, with their copies and the frames that are away. `true`: nothing is
    /// left.
    pub fn release(&mut self, copies: &mut Copies, keep: &(impl Keep + MmuEnv), parts: usize) -> bool {
        for _ in 0..parts {
            let Some(part) = self.records.pop_part() else { break };
            for record in &part {
                self.counts.take(Counts::of(record));
                copies.give_up(record.copy, keep);
                if keep.frame(record.mfn).is_some_and(Frame::forget) {
                    keep.set_free(record.mfn);
                }
            }
        }
        self.records.is_empty()
    }

    /// How many of the noted frames are away. Takes a look at each.
    pub fn nr_away(&self, env: &impl MmuEnv) -> u64 {
        let all = self.records.iter().filter_map(|record| env.frame(record.mfn));
        all.filter(|frame| frame.count() == CountWord::AWAY).count() as u64
    }
}

/// A frame that must be special again and that somebody may write to now, and how often it is held so and not
/// explained.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    mfn: Mfn,
    holds: u32,
}

/// A decision under way.
#[derive(Debug, Default)]
pub struct Check {
    /// Frames below this number have been compared.
    next: usize,
    /// With the records below this place.
    place: usize,
    /// The entries of the tables among the frames below this number have been counted.
    counted: usize,
    /// In the order of their numbers.
    suspects: Pages<Suspect>,
}

impl Check {
    /// At the beginning.
    pub const fn new() -> Self {
        Self { next: 0, place: 0, counted: 0, suspects: Pages::new() }
    }

    /// A use for writing of a frame is the domain's own, and will have ended before its memory goes back.
    pub fn explain(&mut self, mfn: Mfn) {
        if let Some(suspect) = self.suspects.find_mut(mfn, |suspect| suspect.mfn) {
            suspect.holds = suspect.holds.saturating_sub(1);
        }
    }

    /// All that is the domain's own has been explained: may it go back?
    pub fn finish(&self) -> Result<(), Refusal> {
        match self.suspects.iter().find(|suspect| suspect.holds != 0) {
            Some(suspect) => Err(Refusal::Held(suspect.mfn.raw())),
            None => Ok(()),
        }
    }
}

/// A page that is copied, and sought among the copies.
const KEPT: u32 = 3 * PAGE;
/// One that is packed besides, or unpacked to be compared: at the worst 100 000 instructions, since a guest chooses
/// what it holds.
const PACKED: u32 = 8 * STEP;
/// One that is unpacked: at the worst 41 000.
const UNPACKED: u32 = 4 * STEP;
/// An entry that is sought among the suspects, of which there may be as many as the domain has frames: some hundred.
const SOUGHT: u32 = STEP / 128;

impl<E: MmuEnv + Keep> Mmu<'_, E> {
    /// Notes all memory of `dom`, none of whose vCPUs runs meanwhile. `Preempted`: to be called again. After another
    /// failure `memory` has what was noted so far.
    pub fn keep_memory(
        &self,
        dom: DomId,
        memory: &mut Memory,
        copies: &mut Copies,
        lock: &mut Deferred,
    ) -> Result<(), Stop> {
        self.drain(lock).map_err(|_| Stop::Preempted)?;
        if !lock.is_empty() {
            return Err(Refusal::Unsettled.into());
        }
        let mut work = Work::new();
        while memory.next < self.env.frames_end().index() {
            let mfn = Mfn::new(memory.next as u64);
            let done = self.keep_frame(dom, mfn, memory, copies)?;
            memory.next += 1;
            work.add(done, self.env)?;
        }
        Ok(())
    }

    fn keep_frame(&self, dom: DomId, mfn: Mfn, memory: &mut Memory, copies: &mut Copies) -> Result<u32, Stop> {
        let Some(frame) = self.env.frame(mfn).filter(|frame| frame.count().is_part_of(dom)) else { return Ok(1) };
        let usage = frame.usage();
        let ty = match (usage.state(), usage.ty()) {
            (UsageState::Idle, _) | (UsageState::Valid, FrameType::Writable) => FrameType::None,
            (UsageState::Valid, ty) => ty,
            (UsageState::Busy | UsageState::Partial, _) => return Err(Refusal::Unsettled.into()),
        };
        let asked = if ty == FrameType::L1 { self.check_own(dom, mfn)? } else { 0 };
        let is_pinned = usage.is_pinned();
        let mut record = Record { mfn, pfn: self.env.pfn(mfn), copy: Kept::NONE, ty, is_pinned, is_found: false };
        let mut work = asked + PAGE;
        if !self.is_zero(mfn) {
            (record.copy, record.is_found) = copies.keep(mfn, memory.form, self.env).ok_or(Stop::NoMemory)?;
            work = asked + if memory.form == Form::Packed || record.copy.packed().is_some() { PACKED } else { KEPT };
        }
        let noted = memory.records.push(record, self.env);
        if noted.is_ok() && frame.note(dom) {
            memory.counts.add(Counts::of(&record));
            return Ok(work);
        }
        if noted.is_ok() {
            // Somebody gave it up for the domain just now.
            memory.records.pop();
        }
        copies.give_up(record.copy, self.env);
        noted.map(|()| work)
    }

    /// An L1 table that maps others' frames would not be validated again: that their owners let it is not known. Nor
    /// one that maps what the domain has given up, or I/O memory that it may not map any more. Returns the work that it
    /// was to ask for that.
    fn check_own(&self, dom: DomId, table: Mfn) -> Result<u32, Refusal> {
        let mut work = 0;
        for index in 0..ENTRIES {
            let entry = self.env.read(Slot::new(table, index));
            if !entry.is_present() {
                continue;
            }
            let is_own = match self.frame(entry.mfn()).map(Frame::count) {
                Some(count) => count.owner() == dom && count.is_allocated(),
                None => {
                    work += IO_ENTRY;
                    !self.is_denied_io(entry, dom)
                }
            };
            if !is_own {
                return Err(Refusal::Foreign(entry.mfn().raw()));
            }
        }
        Ok(work)
    }

    fn is_zero(&self, mfn: Mfn) -> bool {
        (0..ENTRIES).step_by(super::env::GROUP).all(|index| self.env.any_bits(Slot::new(mfn, index)) == 0)
    }

    /// Copies a frame again that was noted: it may have been written since, and must be what it is now.
    pub fn keep_again(&self, mfn: Mfn, memory: &mut Memory, copies: &mut Copies) -> Result<(), Stop> {
        let Some(record) = memory.records.find_mut(mfn, |record| record.mfn) else { return Ok(()) };
        let new = copies.keep_apart(mfn, self.env).ok_or(Stop::NoMemory)?;
        let old = core::mem::replace(record, Record { copy: new, is_found: false, ..*record });
        let new = Counts::of(record);
        memory.counts.take(Counts::of(&old));
        memory.counts.add(new);
        copies.give_up(old.copy, self.env);
        Ok(())
    }

    /// Could the memory of `dom` go back? Changes nothing. When this has come to its end, what else of the domain's own
    /// holds frames for writing is to be named to `check`, which then decides. `Preempted`: to be called again.
    pub fn check_memory(&self, dom: DomId, memory: &Memory, check: &mut Check, lock: &Deferred) -> Result<(), Stop> {
        let _held = lock.locked();
        let mut work = Work::new();
        while check.next < self.env.frames_end().index() {
            self.compare_frame(dom, Mfn::new(check.next as u64), memory, check)?;
            check.next += 1;
            work.add(1, self.env)?;
        }
        while !check.suspects.is_empty() && check.counted < self.env.frames_end().index() {
            let done = self.count_entries(dom, Mfn::new(check.counted as u64), check);
            check.counted += 1;
            work.add(done, self.env)?;
        }
        Ok(())
    }

    fn compare_frame(&self, dom: DomId, mfn: Mfn, memory: &Memory, check: &mut Check) -> Result<(), Stop> {
        // What came since goes again.
        let Some(record) = memory.records.get(check.place).filter(|record| record.mfn == mfn) else { return Ok(()) };
        let frame = self.ram(mfn).map_err(|_| Refusal::Frames(mfn.raw()))?;
        let count = frame.count();
        if count.is_leaving(dom) {
            return Err(Stop::Preempted);
        }
        if count != CountWord::AWAY && !count.is_held_of(dom) {
            return Err(Refusal::Frames(mfn.raw()).into());
        }
        let usage = frame.usage();
        if record.is_special() && usage.state() == UsageState::Valid && usage.ty() == FrameType::Writable {
            check.suspects.push(Suspect { mfn, holds: usage.count() }, self.env)?;
        }
        check.place += 1;
        Ok(())
    }

    /// Explains what the entries of an L1 table of `dom` hold, if it is one. Returns the work that it was.
    fn count_entries(&self, dom: DomId, table: Mfn, check: &mut Check) -> u32 {
        let is_table = |frame: &Frame| frame.count().is_held_of(dom) && frame.usage().is_valid_as(FrameType::L1);
        if !self.frame(table).is_some_and(is_table) {
            return 1;
        }
        let mut work = PAGE;
        for index in 0..ENTRIES {
            let entry = self.env.read(Slot::new(table, index));
            if entry.is_present() && entry.is_writable() {
                check.explain(entry.mfn());
                work += SOUGHT;
            }
        }
        work
    }

    /// Undoes all pins of `dom`, and what preempted operations have left, and takes from it the frames that are not
    /// noted. What others map of those is free when they let go. `next` begins at 0. `Preempted`: to be called again.
    pub fn take_down(&self, dom: DomId, next: &mut usize, lock: &mut Deferred) -> Result<(), Stop> {
        self.abandon(lock).map_err(|_| Stop::Preempted)?;
        let mut work = Work::new();
        while *next < self.env.frames_end().index() {
            let mfn = Mfn::new(*next as u64);
            *next += 1;
            if let Some(frame) = self.env.frame(mfn).filter(|frame| frame.count().is_held_of(dom)) {
                self.take_down_frame(dom, mfn, frame, lock);
                // As at the domain's end.
                if self.env.is_out_of_steps() {
                    return Err(Stop::Preempted);
                }
                self.drain(lock).map_err(|_| Stop::Preempted)?;
            }
            work.add(1, self.env)?;
        }
        Ok(())
    }

    fn take_down_frame(&self, dom: DomId, mfn: Mfn, frame: &Frame, lock: &mut Deferred) {
        // A table that is still pinned has a reference of its pin; so the frame stays until that is dropped.
        let pinned = self.clear_pin(mfn);
        if !frame.count().is_noted() {
            // It may have been given up before.
            let _ = self.give_up(dom, mfn);
        }
        if pinned {
            self.drop_table(mfn, lock);
        }
    }

    /// All noted frames are memory of `dom` again. `next` begins at 0. `Preempted`: to be called again; after a refusal
    /// the domain must not run again.
    pub fn take_again(&self, dom: DomId, memory: &Memory, next: &mut usize) -> Result<(), Stop> {
        let mut work = Work::new();
        while let Some(record) = memory.records.get(*next) {
            let frame = self.ram(record.mfn).map_err(|_| Refusal::Frames(record.mfn.raw()))?;
            let seen = frame.count();
            self.take_frame_again(dom, record.mfn, frame, seen)?;
            *next += 1;
            work.add(if seen == CountWord::AWAY { MOVED } else { 1 }, self.env)?;
        }
        Ok(())
    }

    /// A noted frame that was `seen` so is memory of `dom` again. `Preempted`: who refers to it has let it go since,
    /// and it is on its way, or away.
    fn take_frame_again(&self, dom: DomId, mfn: Mfn, frame: &Frame, seen: CountWord) -> Result<(), Stop> {
        if seen == CountWord::AWAY {
            self.flush_before_reuse(mfn);
            if frame.bring_back(dom) {
                self.env.returned(dom, mfn);
                return Ok(());
            }
        } else if frame.hold_again(dom) {
            return Ok(());
        }
        let now = frame.count();
        let is_on_its_way = now == CountWord::AWAY || now.is_leaving(dom);
        Err(if is_on_its_way { Stop::Preempted } else { Refusal::Frames(mfn.raw()).into() })
    }

    /// Writes what the frames of `dom` held. No vCPU has roots or descriptor tables any more, and no device of the
    /// domain accesses memory. `next` begins at 0. `Preempted`: to be called again; after a refusal the domain must not
    /// run again.
    pub fn copy_back(&self, dom: DomId, memory: &Memory, copies: &mut Copies, next: &mut usize) -> Result<(), Stop> {
        let mut work = Work::new();
        while let Some(record) = memory.records.get(*next) {
            let page = self.get_writable(record.mfn, dom).map_err(|_| Refusal::Held(record.mfn.raw()))?;
            if record.copy.is_none() {
                // To look whether it is clear already would take longer.
                self.env.clear_page(page.mfn());
            } else if !copies.write_back(record.copy, page.mfn(), self.env) {
                return Err(Refusal::Copy(record.mfn.raw()).into());
            }
            if self.env.pfn(page.mfn()) != record.pfn {
                self.env.m2p_set(page.mfn(), record.pfn);
            }
            *next += 1;
            drop(page);
            work.add(if record.copy.packed().is_some() { UNPACKED } else { PAGE }, self.env)?;
        }
        Ok(())
    }

    /// Pins the tables of `dom` that were pinned. `next` begins at 0. `Preempted`: to be called again; after a refusal
    /// the domain must not run again.
    pub fn pin_again(&self, dom: DomId, memory: &Memory, next: &mut usize, lock: &mut Deferred) -> Result<(), Stop> {
        let mut work = Work::new();
        while let Some(record) = memory.records.get(*next) {
            if let Some(level) = record.ty.level().filter(|_| record.is_pinned) {
                match self.pin(dom, record.mfn, level, lock) {
                    Ok(()) => {}
                    Err(MmuError::Preempted | MmuError::Contended) => return Err(Stop::Preempted),
                    Err(_) => return Err(Refusal::Held(record.mfn.raw()).into()),
                }
            }
            *next += 1;
            work.add(1, self.env)?;
        }
        self.drain(lock).map_err(|_| Stop::Preempted)
    }

    /// Is each frame memory of `dom`, and what it was, now that the vCPUs have their roots again? Pages with
    /// descriptors may be ordinary memory until they are used. `next` begins at 0. `Preempted`: to be called again;
    /// after a refusal the domain must not run again.
    pub fn check_types(&self, dom: DomId, memory: &Memory, next: &mut usize) -> Result<(), Stop> {
        let mut work = Work::new();
        while let Some(record) = memory.records.get(*next) {
            let frame = self.ram(record.mfn).map_err(|_| Refusal::Frames(record.mfn.raw()))?;
            // Somebody may have given it up for the domain since it was taken again.
            if !frame.count().is_part_of(dom) {
                return Err(Refusal::Frames(record.mfn.raw()).into());
            }
            let usage = frame.usage();
            let is_what_it_was = match record.ty {
                FrameType::None => usage.state() == UsageState::Idle || usage.is_valid_as(FrameType::Writable),
                FrameType::SegDesc => usage.state() == UsageState::Idle || usage.is_valid_as(FrameType::SegDesc),
                ty => usage.is_valid_as(ty) && usage.is_pinned() == record.is_pinned,
            };
            if !is_what_it_was {
                return Err(Refusal::Held(record.mfn.raw()).into());
            }
            *next += 1;
            work.add(1, self.env)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
