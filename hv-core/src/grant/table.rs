//! The granter's half: shared entries and active entries.

use super::{DomId, FrameRefs, SharedFrame, Use};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use x86::PAGE_SIZE;
use xen_abi::grant::{
    GntStatus, ENTRIES_V1_PER_PAGE, GTF_ACCEPT_TRANSFER, GTF_PERMIT_ACCESS, GTF_READING, GTF_READONLY,
    GTF_TRANSFER_COMMITTED, GTF_TRANSFER_COMPLETED, GTF_TYPE_MASK, GTF_WRITING,
};

/// How often an entry that the guest keeps changing is tried again.
const TRIES: u32 = 5;

/// How often a grant is in use, by kind: 16 bits each for host reads, device reads, host writes, device writes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Uses(u64);

impl Uses {
    const MAX: u64 = 0xffff;

    fn shift(how: Use) -> u32 {
        16 * (u32::from(how.device) + 2 * u32::from(how.writable))
    }

    /// One more, unless there are too many.
    fn plus(self, how: Use) -> Option<Uses> {
        let shift = Uses::shift(how);
        (self.0 >> shift & Uses::MAX != Uses::MAX).then(|| Uses(self.0 + (1 << shift)))
    }

    /// One less, if there is one.
    fn minus(self, how: Use) -> Option<Uses> {
        let shift = Uses::shift(how);
        (self.0 >> shift & Uses::MAX != 0).then(|| Uses(self.0 - (1 << shift)))
    }

    fn is_written(self) -> bool {
        self.0 >> 32 != 0
    }

    fn is_used(self) -> bool {
        self.0 != 0
    }
}

/// A grant in use. All zero: it is not. As long as it is, there is one reference to the frame; for writing, if one of
/// the uses is.
#[derive(Clone, Copy, Default)]
struct Active {
    uses: Uses,
    /// The frame, as it was when the use began.
    frame: u64,
    /// Who uses it.
    user: DomId,
}

/// A domain's grants. `P` is a frame of shared entries.
pub struct GrantTable<P> {
    dom: DomId,
    /// Which of the domains that had or will have this number.
    incarnation: u32,
    max_frames: u32,
    shared: Vec<P>,
    /// As many as there are shared entries.
    active: Vec<Active>,
}

impl<P: SharedFrame> GrantTable<P> {
    /// An empty table of `dom`; `incarnation` is another one for each domain that gets this number.
    pub const fn new(dom: DomId, incarnation: u32, max_frames: u32) -> GrantTable<P> {
        GrantTable { dom, incarnation, max_frames, shared: Vec::new(), active: Vec::new() }
    }

    /// The granter.
    pub fn dom(&self) -> DomId {
        self.dom
    }

    /// Which of the domains of that number.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Limit of [`GrantTable::grow`], in frames.
    pub fn max_frames(&self) -> u32 {
        self.max_frames
    }

    /// Changes the limit. Frames above it stay.
    pub fn set_max_frames(&mut self, max_frames: u32) {
        self.max_frames = max_frames;
    }

    /// The frames of shared entries.
    pub fn frames(&self) -> &[P] {
        &self.shared
    }

    /// Makes the table at least `nr_frames` long; `room` is asked for each frame and what goes with it. `GeneralError`:
    /// more than the limit. `NoSpace`: out of memory; what was added stays.
    pub fn grow(
        &mut self,
        nr_frames: u32,
        room: impl Fn(usize, &mut dyn FnMut() -> bool) -> bool,
        mut allocate: impl FnMut() -> Option<P>,
    ) -> Result<(), GntStatus> {
        if nr_frames > self.max_frames {
            return Err(GntStatus::GeneralError);
        }
        while self.shared.len() < nr_frames as usize {
            let wanted = (self.shared.len() + 1) * ENTRIES_V1_PER_PAGE as usize;
            let capacity = self.active.capacity();
            // Twice as many, so that few are moved often; but not more than there can be, nor than there is room for.
            let most = self.max_frames as usize * ENTRIES_V1_PER_PAGE as usize;
            let doubled = capacity.saturating_mul(2).min(most).max(wanted);
            let targets = if wanted <= capacity { [capacity; 2] } else { [doubled, wanted] };
            let mut has_grown = false;
            for target in targets {
                let bytes = if wanted <= capacity { 0 } else { target * size_of::<Active>() };
                let mut add = || self.add(target, &mut allocate).is_some();
                has_grown = has_grown || room(PAGE_SIZE + bytes, &mut add);
            }
            if !has_grown {
                return Err(GntStatus::NoSpace);
            }
        }
        Ok(())
    }

    /// Adds a frame, with a place for `target` active entries.
    fn add(&mut self, target: usize, allocate: impl FnOnce() -> Option<P>) -> Option<()> {
        self.active.try_reserve_exact(target - self.active.len()).ok()?;
        self.shared.try_reserve(1).ok()?;
        self.shared.push(allocate()?);
        self.active.resize(self.shared.len() * ENTRIES_V1_PER_PAGE as usize, Active::default());
        Some(())
    }

    /// Number of grants in use.
    pub fn nr_used(&self) -> usize {
        self.active.iter().filter(|a| a.uses.is_used()).count()
    }

    /// Calls `f` with every frame that somebody may be writing to.
    pub fn for_each_written(&self, f: impl FnMut(u64)) {
        self.active.iter().filter(|a| a.uses.is_written()).map(|a| a.frame).for_each(f);
    }

    /// Calls `f` for each grant in use: its number, who uses it, the frame, and how often by kind (host reads, device
    /// reads, host writes, device writes).
    pub fn for_each_used(&self, mut f: impl FnMut(u32, DomId, u64, [u16; 4])) {
        for (gref, active) in (0u32..).zip(&self.active).filter(|(_, a)| a.uses.is_used()) {
            let kinds = [0u32, 16, 32, 48].map(|shift| {
                let [low, high, ..] = (active.uses.0 >> shift).to_le_bytes();
                u16::from_le_bytes([low, high])
            });
            f(gref, active.user, active.frame, kinds);
        }
    }

    /// Calls `f` for each reference that grants in use hold: the frame, and whether it is for writing.
    pub fn for_each_reference(&self, mut f: impl FnMut(u64, bool)) {
        for active in self.active.iter().filter(|a| a.uses.is_used()) {
            f(active.frame, active.uses.is_written());
        }
    }

    /// The flags of each shared entry that say how it is in use.
    pub(super) fn flags_in_use(&self) -> impl Iterator<Item = u16> + '_ {
        self.active.iter().map(|active| {
            let reading = if active.uses.is_used() { GTF_READING } else { 0 };
            reading | if active.uses.is_written() { GTF_WRITING } else { 0 }
        })
    }

    /// Starts a use of a grant by `user` and marks the shared entry. Returns the frame. `BadGntref`: no such entry.
    /// `GeneralError`: not granted to `user` (for writing), or the frame is not the granter's to give.
    #[inline(always)]
    pub fn pin(&mut self, refs: &impl FrameRefs, user: DomId, gref: u32, how: Use) -> Result<u64, GntStatus> {
        let dom = self.dom;
        let (head, frame_word) = entry(&self.shared, gref).ok_or(GntStatus::BadGntref)?;
        let active = self.active.get_mut(gref as usize).ok_or(GntStatus::BadGntref)?;
        let (before, first) = (active.uses, !active.uses.is_used());
        if !first && active.user != user {
            return Err(GntStatus::GeneralError);
        }
        let after = before.plus(how).ok_or(GntStatus::GeneralError)?;
        let first_write = how.writable && !before.is_written();
        if first || first_write {
            mark(head, user, how.writable)?;
            let frame = if first { frame_word.load(Acquire).into() } else { active.frame };
            let is_taken = if first { refs.take(dom, frame, first_write) } else { refs.make_writable(dom, frame) };
            if !is_taken {
                unmark(head, first, first_write);
                return Err(GntStatus::GeneralError);
            }
            active.user = user;
            active.frame = frame;
        }
        active.uses = after;
        Ok(active.frame)
    }

    /// Ends a use that [`GrantTable::pin`] started.
    #[inline(always)]
    pub fn unpin(&mut self, refs: &impl FrameRefs, gref: u32, how: Use) {
        let Some(active) = self.active.get_mut(gref as usize) else { return };
        let Some(after) = active.uses.minus(how) else {
            debug_assert!(false, "unpin without pin");
            return;
        };
        active.uses = after;
        let last = !after.is_used();
        let last_write = how.writable && !after.is_written();
        if last || last_write {
            let frame = active.frame;
            // The reference first: the granter may have the frame be a page table as soon as it sees that the use has
            // ended.
            if last {
                refs.give_back(frame, last_write);
            } else {
                refs.make_readable(frame);
            }
            if let Some((head, _)) = entry(&self.shared, gref) {
                unmark(head, last, last_write);
            }
        }
    }

    /// Uses a grant once, for writing or only for reading: `f` gets the frame. As [`GrantTable::pin`], `f` and
    /// [`GrantTable::unpin`], for fewer instructions: nobody sees the use begin or end, but the granter, who has the
    /// flags of its entry.
    #[inline(always)]
    pub fn use_once(
        &mut self,
        refs: &impl FrameRefs,
        user: DomId,
        gref: u32,
        writable: bool,
        f: impl FnOnce(u64),
    ) -> Result<(), GntStatus> {
        let (head, frame_word) = entry(&self.shared, gref).ok_or(GntStatus::BadGntref)?;
        let active = self.active.get(gref as usize).ok_or(GntStatus::BadGntref)?;
        if active.uses.is_used() {
            return self.use_once_more(refs, user, gref, writable, f);
        }
        mark(head, user, writable)?;
        let frame = frame_word.load(Acquire).into();
        let is_taken = refs.take(self.dom, frame, writable);
        if is_taken {
            f(frame);
            // Before the granter sees that the use has ended.
            refs.give_back(frame, writable);
        }
        unmark(head, true, writable);
        if is_taken {
            Ok(())
        } else {
            Err(GntStatus::GeneralError)
        }
    }

    /// The same of a grant that is in use already.
    #[cold]
    #[inline(never)]
    fn use_once_more(
        &mut self,
        refs: &impl FrameRefs,
        user: DomId,
        gref: u32,
        writable: bool,
        f: impl FnOnce(u64),
    ) -> Result<(), GntStatus> {
        let how = Use::host(writable);
        f(self.pin(refs, user, gref, how)?);
        self.unpin(refs, gref, how);
        Ok(())
    }

    /// Commits to filling an entry that waits for a frame from `from`. `BadGntref`: it does not.
    pub fn accept_transfer(&mut self, from: DomId, gref: u32) -> Result<(), GntStatus> {
        let (head, _) = entry(&self.shared, gref).ok_or(GntStatus::BadGntref)?;
        let waiting = u32::from(GTF_ACCEPT_TRANSFER) | u32::from(from) << 16;
        let committed = waiting | u32::from(GTF_TRANSFER_COMMITTED);
        head.compare_exchange(waiting, committed, AcqRel, Acquire).map(|_| ()).map_err(|_| GntStatus::BadGntref)
    }

    /// The frame of a committed entry has arrived (`frame`), or will not (`None`).
    pub fn finish_transfer(&mut self, gref: u32, frame: Option<u32>) {
        let Some((head, frame_word)) = entry(&self.shared, gref) else { return };
        match frame {
            Some(frame) => {
                // The number first, then the flag that says it is there.
                frame_word.store(frame, Release);
                head.fetch_or(GTF_TRANSFER_COMPLETED.into(), AcqRel);
            }
            None => {
                head.fetch_and(!u32::from(GTF_TRANSFER_COMMITTED), AcqRel);
            }
        }
    }
}

/// The words of a shared entry: flags and user, and frame.
pub(super) fn entry<P: SharedFrame>(shared: &[P], gref: u32) -> Option<(&AtomicU32, &AtomicU32)> {
    let words = shared.get((gref / ENTRIES_V1_PER_PAGE) as usize)?.as_ref();
    let at = (gref % ENTRIES_V1_PER_PAGE) as usize * 2;
    Some((words.get(at)?, words.get(at + 1)?))
}

/// Sets the in-use flags of a shared entry, if it grants that to `user`.
#[inline]
fn mark(head: &AtomicU32, user: DomId, writable: bool) -> Result<(), GntStatus> {
    let mut seen = head.load(Acquire);
    for _ in 0..TRIES {
        let [f0, f1, d0, d1] = seen.to_le_bytes();
        let (flags, dom) = (u16::from_le_bytes([f0, f1]), u16::from_le_bytes([d0, d1]));
        let allowed = flags & GTF_TYPE_MASK == GTF_PERMIT_ACCESS && dom == user;
        if !allowed || (writable && flags & GTF_READONLY != 0) {
            return Err(GntStatus::GeneralError);
        }
        let in_use = GTF_READING | if writable { GTF_WRITING } else { 0 };
        match head.compare_exchange(seen, seen | u32::from(in_use), AcqRel, Acquire) {
            Ok(_) => return Ok(()),
            Err(now) => seen = now,
        }
    }
    Err(GntStatus::GeneralError)
}

fn unmark(head: &AtomicU32, reading: bool, writing: bool) {
    let mut flags = 0;
    if reading {
        flags |= GTF_READING;
    }
    if writing {
        flags |= GTF_WRITING;
    }
    head.fetch_and(!u32::from(flags), AcqRel);
}
