//! Promotion and demotion of page tables.
//!
//! States of a table page: `Idle` -> `Busy` -> `Valid` and back, under the owner's MMU lock; `Partial` between the
//! executions of a preempted operation. A partial table has exactly one type reference, and that belongs either to the
//! table above it (which counts the entry as done) or to the domain's [`Deferred`]. Nobody else can take a reference on
//! it.
//!
//! The recursion is at most four deep: a table refers only to tables of the next lower level (linear tables, which
//! refer to their own level, are refused).

use super::env::{GROUP, IO_ENTRIES_IN_STEP};
use super::{Mmu, MmuEnv, MmuError, Slot};
use crate::frame::{Frame, FrameType, Usage, UsageState};
use core::marker::PhantomData;
use x86::{Level, Mfn, Pte, PteFlags};
use xen_abi::layout::{DomId, HYPERVISOR_END_SLOT, HYPERVISOR_FIRST_SLOT};

const PRESENT: u64 = PteFlags::P.bits();
/// Entries of a page table.
pub(super) const ENTRIES: usize = 512;
/// Flags that L2-L4 entries may have. No superpages for guests: PSE never passes.
pub(super) const ALLOWED: u64 = PteFlags::P
    .union(PteFlags::RW)
    .union(PteFlags::US)
    .union(PteFlags::A)
    .union(PteFlags::D)
    .union(PteFlags::AVL)
    .union(PteFlags::from_bits_retain(0x7ff << 52))
    .union(PteFlags::NX)
    .bits();

/// Promotions that may be under way at the same time, in different vCPUs of a domain.
const PROMOTIONS: usize = 4;

/// What a domain's MMU lock guards besides the page tables themselves: those that a preempted operation left half done.
/// A reference to it is the proof that the lock is held: it is made once, inside the lock.
#[derive(Debug, Default)]
#[must_use = "half-done page tables hold references"]
pub struct Deferred {
    /// On their way up; the re-executed operations go on with them.
    promoting: [Option<Mfn>; PROMOTIONS],
    /// On its way down; must be finished before anything else.
    dropping: Option<Mfn>,
}

impl Deferred {
    /// Nothing deferred.
    pub const fn new() -> Self {
        Self { promoting: [None; PROMOTIONS], dropping: None }
    }
    /// Is nothing deferred?
    pub fn is_empty(&self) -> bool {
        self.tables().next().is_none()
    }
    /// Is nothing left to take down?
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.dropping.is_none()
    }
    /// The proof that the lock is held, for those who need no more than that.
    #[inline(always)]
    pub const fn locked(&self) -> Locked<'_> {
        Locked(PhantomData)
    }
    pub(super) fn tables(&self) -> impl Iterator<Item = Mfn> + '_ {
        self.promoting.iter().flatten().copied().chain(self.dropping)
    }
}

/// The MMU lock of the domain whose page tables are read or changed is held as long as this lives. It takes no room.
///
/// It cannot outlive the lock's guard:
/// ```compile_fail,E0505
/// # use hv_core::mmu::Deferred;
/// let mmu_lock = std::sync::Mutex::new(Deferred::new());
/// let guard = mmu_lock.lock().unwrap();
/// let locked = guard.locked();
/// drop(guard);
/// let _still = locked;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Locked<'a>(PhantomData<&'a Deferred>);

/// A promotion did not succeed. If `held`, the table is `Partial` and its references are the caller's.
pub(super) struct Stopped {
    why: MmuError,
    held: bool,
}

impl Stopped {
    const fn clean(why: MmuError) -> Self {
        Self { why, held: false }
    }
    const fn held(why: MmuError) -> Self {
        Self { why, held: true }
    }
}

/// Is entry `index` of an L4 table the hypervisor's?
#[inline]
pub(super) const fn is_hypervisor_slot(level: Level, index: usize) -> bool {
    matches!(level, Level::L4) && index >= HYPERVISOR_FIRST_SLOT && index < HYPERVISOR_END_SLOT
}

impl<E: MmuEnv> Mmu<'_, E> {
    /// Finishes what an earlier, preempted operation left to take down. Every operation on tables above L1 begins so.
    #[inline]
    pub fn drain(&self, deferred: &mut Deferred) -> Result<(), MmuError> {
        match deferred.dropping {
            None => Ok(()),
            Some(mfn) => {
                self.release_table(mfn, deferred.locked())?;
                deferred.dropping = None;
                Ok(())
            }
        }
    }

    /// A list of requests ends with the error `why`: what it has cut off before is ordinary memory when the guest hears
    /// of it. `Preempted`, if that is not so yet: the request that was refused is to be made again, and refused again.
    #[cold]
    pub fn settle_after<W: From<MmuError>>(&self, why: W, deferred: &mut Deferred) -> W {
        match self.drain(deferred) {
            Ok(()) => why,
            Err(preempted) => preempted.into(),
        }
    }

    /// Gives up everything deferred; for a domain that goes away. Call it again while it says `Preempted`.
    pub fn abandon(&self, deferred: &mut Deferred) -> Result<(), MmuError> {
        self.drain(deferred)?;
        for index in 0..PROMOTIONS {
            deferred.dropping = deferred.promoting[index].take();
            self.drain(deferred)?;
        }
        Ok(())
    }

    /// Takes a general and a type reference on `mfn` as a table of `level` of `dom`, promoting it if it is not one yet.
    /// The caller has drained `deferred`.
    #[inline]
    pub(super) fn take_table(
        &self,
        mfn: Mfn,
        level: Level,
        dom: DomId,
        deferred: &mut Deferred,
    ) -> Result<(), MmuError> {
        let frame = self.ram(mfn)?;
        let ty = FrameType::from(level);
        if frame.usage().is_valid_as(ty) && self.take_valid_table(frame, mfn, ty, dom)? {
            return Ok(());
        }
        self.take_new_table(mfn, level, dom, deferred)
    }

    /// The same for a table that was validated at a look. `false`: it is not any more, for it was another domain's
    /// then, whose lock guarded it, and nothing has changed. Validating it is [`Self::take_new_table`]'s business,
    /// which remembers what is half done.
    #[inline]
    pub(super) fn take_valid_table(
        &self,
        frame: &Frame,
        mfn: Mfn,
        ty: FrameType,
        dom: DomId,
    ) -> Result<bool, MmuError> {
        if !frame.get(dom) {
            return Err(MmuError::NotOwned);
        }
        let result = loop {
            let usage = frame.usage();
            if !usage.is_valid_as(ty) {
                break Ok(false);
            }
            match usage.plus_one() {
                None => break Err(MmuError::Overflow),
                Some(new) if frame.change_usage(usage, new) => return Ok(true),
                Some(_) => {}
            }
        };
        self.put_frame(mfn, frame);
        result
    }

    fn take_new_table(&self, mfn: Mfn, level: Level, dom: DomId, deferred: &mut Deferred) -> Result<(), MmuError> {
        let begun = deferred.promoting.iter().position(|&p| p == Some(mfn));
        let (place, result) = if let Some(place) = begun {
            deferred.promoting[place] = None;
            (place, self.resume_table(mfn, level, dom, deferred.locked()))
        } else {
            let place = match deferred.promoting.iter().position(Option::is_none) {
                Some(free) => free,
                None => {
                    // No room to be preempted in: the oldest gives way, and its operation will start anew. So does this
                    // one: what it has looked at may have been part of the other's work.
                    deferred.dropping = deferred.promoting[0].take();
                    self.drain(deferred)?;
                    return Err(MmuError::Preempted);
                }
            };
            (place, self.acquire_table(mfn, level, dom, deferred.locked()))
        };
        result.map_err(|stopped| {
            if stopped.held {
                if stopped.why == MmuError::Preempted {
                    deferred.promoting[place] = Some(mfn);
                } else {
                    deferred.dropping = Some(mfn);
                }
            }
            stopped.why
        })
    }

    /// Drops a table reference; what cannot be finished now is deferred. The caller has drained `deferred`.
    #[inline]
    pub(super) fn drop_table(&self, mfn: Mfn, deferred: &mut Deferred) {
        debug_assert!(deferred.dropping.is_none(), "not drained");
        if self.release_table(mfn, deferred.locked()).is_err() {
            deferred.dropping = Some(mfn);
        }
    }

    #[inline]
    fn acquire_table(&self, mfn: Mfn, level: Level, dom: DomId, lock: Locked<'_>) -> Result<(), Stopped> {
        let frame = self.ram(mfn).map_err(Stopped::clean)?;
        if !frame.get(dom) {
            return Err(Stopped::clean(MmuError::NotOwned));
        }
        let ty = FrameType::from(level);
        let refused = loop {
            let usage = frame.usage();
            if usage.is_valid_as(ty) {
                match usage.plus_one() {
                    None => break MmuError::Overflow,
                    Some(new) if frame.change_usage(usage, new) => return Ok(()),
                    Some(_) => {}
                }
            } else if usage.state() == UsageState::Idle {
                if usage.needs_flush_for(ty) {
                    // Stale writable translations would let the guest write to the table: by what the page *was*. If
                    // it gets another use meanwhile, that leaves a later stamp and the exchange fails.
                    self.env.flush_since(usage.stamp(), usage.knowers(dom));
                }
                if frame.change_usage(usage, Usage::busy(ty)) {
                    if usage.ty() == FrameType::Writable {
                        self.env.dma_forbid(dom, mfn);
                    }
                    return self.promote(frame, mfn, level, dom, 0, lock);
                }
            } else if usage.ty() == ty {
                break MmuError::Contended;
            } else {
                break MmuError::WrongType;
            }
        };
        self.put_frame(mfn, frame);
        Err(Stopped::clean(refused))
    }

    /// Goes on with a partial table whose references the caller holds.
    fn resume_table(&self, mfn: Mfn, level: Level, dom: DomId, lock: Locked<'_>) -> Result<(), Stopped> {
        let frame = self.ram(mfn).map_err(Stopped::clean)?;
        let usage = frame.usage();
        let ours = frame.owner() == dom && usage.ty() == FrameType::from(level);
        if usage.state() != UsageState::Partial || !ours {
            return Err(Stopped::held(MmuError::WrongType));
        }
        frame.set_usage(Usage::busy(usage.ty()));
        self.promote(frame, mfn, level, dom, usage.resume(), lock)
    }

    /// Validates the entries from `from` on of a `Busy` table, whose references the caller holds.
    fn promote(
        &self,
        frame: &Frame,
        mfn: Mfn,
        level: Level,
        dom: DomId,
        from: usize,
        lock: Locked<'_>,
    ) -> Result<(), Stopped> {
        let ty = FrameType::from(level);
        self.env.step();
        let stopped = match level.below() {
            None => self.promote_entries_l1(mfn, dom, lock),
            Some(below) => self.promote_entries(mfn, level, below, dom, from, lock),
        };
        match stopped {
            Ok(()) => {
                if level == Level::L4 {
                    self.env.fill_hypervisor_slots(mfn);
                }
                frame.set_usage(Usage::valid(ty, 1));
                self.env.use_changed(mfn);
                Ok(())
            }
            Err((done, MmuError::Preempted)) => {
                frame.set_usage(Usage::partial(ty, done));
                Err(Stopped::held(MmuError::Preempted))
            }
            Err((done, why)) => match self.demote(frame, mfn, level, done, lock) {
                Ok(()) => Err(Stopped::clean(why)),
                Err(_) => Err(Stopped::held(why)),
            },
        }
    }

    /// `Err` says how many entries hold references, and why it stopped. It always goes on to the end; what is more than
    /// a step's work the next table is stopped for.
    fn promote_entries_l1(&self, mfn: Mfn, dom: DomId, _lock: Locked<'_>) -> Result<(), (usize, MmuError)> {
        let mut next = 0;
        let mut nr_io = 0;
        while let Some((index, entry)) = self.next_present(mfn, next) {
            next = index + 1;
            let adopted = self.adopt_l1e(entry, dom).map_err(|why| (index, why))?;
            if adopted != entry {
                self.env.write(Slot::new(mfn, index), adopted);
            }
            if Self::is_adopted_io(adopted) {
                nr_io += 1;
                if nr_io % IO_ENTRIES_IN_STEP == 0 {
                    self.env.step();
                }
            }
        }
        Ok(())
    }

    fn promote_entries(
        &self,
        mfn: Mfn,
        level: Level,
        below: Level,
        dom: DomId,
        from: usize,
        lock: Locked<'_>,
    ) -> Result<(), (usize, MmuError)> {
        let mut progressed = false;
        if let Some(last) = from.checked_sub(1) {
            let child = self.env.read(Slot::new(mfn, last));
            if child.is_present() && !is_hypervisor_slot(level, last) && self.is_partial(child.mfn()) {
                match self.resume_table(child.mfn(), below, dom, lock) {
                    Ok(()) => progressed = true,
                    Err(Stopped { why, held }) => return Err((if held { from } else { last }, why)),
                }
            }
        }
        let mut next = from;
        while let Some((index, entry)) = self.next_present(mfn, next) {
            next = index + 1;
            if is_hypervisor_slot(level, index) {
                continue;
            }
            if progressed && self.env.is_out_of_steps() {
                return Err((index, MmuError::Preempted));
            }
            let adopted = check_upper(entry).map_err(|why| (index, why))?;
            if adopted != entry {
                // Before the child is taken: if that is preempted, the entry is not looked at again.
                self.env.write(Slot::new(mfn, index), adopted);
            }
            if let Err(Stopped { why, held }) = self.acquire_table(entry.mfn(), below, dom, lock) {
                return Err((if held { index + 1 } else { index }, why));
            }
            progressed = true;
        }
        Ok(())
    }

    /// The first present entry from `index` on.
    #[inline]
    pub(super) fn next_present(&self, mfn: Mfn, mut index: usize) -> Option<(usize, Pte)> {
        while index < ENTRIES {
            if index.is_multiple_of(GROUP) && self.env.any_bits(Slot::new(mfn, index)) & PRESENT == 0 {
                index += GROUP;
                continue;
            }
            let entry = self.env.read(Slot::new(mfn, index));
            if entry.is_present() {
                return Some((index, entry));
            }
            index += 1;
        }
        None
    }

    /// The last present entry below `index`.
    #[inline]
    fn last_present(&self, mfn: Mfn, mut index: usize) -> Option<(usize, Pte)> {
        while index > 0 {
            if index.is_multiple_of(GROUP) && self.env.any_bits(Slot::new(mfn, index - GROUP)) & PRESENT == 0 {
                index -= GROUP;
                continue;
            }
            index -= 1;
            let entry = self.env.read(Slot::new(mfn, index));
            if entry.is_present() {
                return Some((index, entry));
            }
        }
        None
    }

    fn is_partial(&self, mfn: Mfn) -> bool {
        self.frame(mfn).is_some_and(|f| f.usage().state() == UsageState::Partial)
    }

    /// Drops a general and a type reference on a table; the last type reference takes it apart. On `Preempted` the
    /// table is partial and the references are still the caller's.
    #[inline]
    pub(super) fn release_table(&self, mfn: Mfn, lock: Locked<'_>) -> Result<(), MmuError> {
        let Some(frame) = self.frame(mfn) else { return Ok(()) };
        loop {
            let usage = frame.usage();
            let Some(level) = usage.ty().level() else {
                debug_assert!(false, "table reference dropped on {usage:?}");
                return Ok(());
            };
            if usage.count() > 1 {
                if frame.change_usage(usage, usage.minus_one()) {
                    self.put_frame(mfn, frame);
                    return Ok(());
                }
                continue;
            }
            let upto = match usage.state() {
                UsageState::Valid => ENTRIES,
                UsageState::Partial => usage.resume(),
                UsageState::Idle | UsageState::Busy => {
                    debug_assert!(false, "table reference dropped on {usage:?}");
                    return Ok(());
                }
            };
            if frame.change_usage(usage, Usage::busy(usage.ty())) {
                return self.demote(frame, mfn, level, upto, lock);
            }
        }
    }

    /// Drops the references of the entries below `upto` of a `Busy` table, then the table's own.
    fn demote(&self, frame: &Frame, mfn: Mfn, level: Level, upto: usize, lock: Locked<'_>) -> Result<(), MmuError> {
        let ty = FrameType::from(level);
        self.env.step();
        let mut progressed = false;
        let mut upto = upto;
        while let Some((index, entry)) = self.last_present(mfn, upto) {
            upto = index;
            if is_hypervisor_slot(level, index) {
                continue;
            }
            if level == Level::L1 {
                self.put_l1e(entry);
                continue;
            }
            if (progressed && self.env.is_out_of_steps()) || self.release_table(entry.mfn(), lock).is_err() {
                frame.set_usage(Usage::partial(ty, index + 1));
                return Err(MmuError::Preempted);
            }
            progressed = true;
        }
        frame.set_usage(Usage::idle(ty, self.env.tlb_clock()));
        self.env.use_changed(mfn);
        self.put_frame(mfn, frame);
        Ok(())
    }
}

/// Checks an L2-L4 entry; says what to write instead.
#[inline]
pub(super) fn check_upper(entry: Pte) -> Result<Pte, MmuError> {
    if entry.0 & !(ALLOWED | x86::pte::PTE_ADDR_MASK) != 0 {
        return Err(MmuError::BadFlags);
    }
    Ok(entry.with(PteFlags::US))
}
