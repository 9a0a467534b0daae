//! The word with type, type count and validation state.

use super::Frame;
use core::sync::atomic::Ordering;
use x86::Level;
use xen_abi::layout::DomId;

/// What a frame is used as. Types exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameType {
    /// Nothing yet.
    None = 0,
    /// L1 page table.
    L1 = 1,
    /// L2 page table.
    L2 = 2,
    /// L3 page table.
    L3 = 3,
    /// L4 page table.
    L4 = 4,
    /// Holds segment descriptors.
    SegDesc = 5,
    /// Lent by the hypervisor, read-only.
    Shared = 6,
    /// Mapped writable, or written by the hypervisor or a device on a guest's behalf.
    Writable = 7,
}

impl FrameType {
    const ALL: [Self; 8] =
        [Self::None, Self::L1, Self::L2, Self::L3, Self::L4, Self::SegDesc, Self::Shared, Self::Writable];

    /// The level, if it is a page table.
    pub const fn level(self) -> Option<Level> {
        match self {
            Self::L1 => Some(Level::L1),
            Self::L2 => Some(Level::L2),
            Self::L3 => Some(Level::L3),
            Self::L4 => Some(Level::L4),
            _ => None,
        }
    }
}

impl From<Level> for FrameType {
    #[inline]
    fn from(level: Level) -> Self {
        match level {
            Level::L1 => Self::L1,
            Level::L2 => Self::L2,
            Level::L3 => Self::L3,
            Level::L4 => Self::L4,
        }
    }
}

/// How far the type is established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum UsageState {
    /// Type count zero: the type is the last one, and the low word the time stamp of its end.
    Idle = 0,
    /// Validated; the type count is one or more.
    Valid = 1,
    /// Being validated or taken apart on some CPU; the type count is one.
    Busy = 2,
    /// Preempted on the way up or down: the entries below the resume index hold their references. The type count is
    /// one.
    Partial = 3,
}

impl UsageState {
    const ALL: [Self; 4] = [Self::Idle, Self::Valid, Self::Busy, Self::Partial];
}

/// The CPUs that may have translations of a frame by which a guest could write to it, or walk through it as a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowers {
    /// Those that run this domain, its owner: only its own page tables led to the frame.
    CpusOf(DomId),
    /// Any: another domain had it mapped as well.
    Everyone,
}

/// Turn or resume index (bits 39-63), type (36-38), pinned (35), foreign (34), state (32-33), type count or time stamp
/// (0-31).
///
/// The turn counts the references that were taken since the type was established. Who drops the last one reads the
/// word, then the clock, and puts the time into the word if that is as it was: no reference was taken meanwhile. The
/// count alone does not say so, for one may have come and gone, and by it a CPU may know the frame that flushed later
/// than the time that was read.
///
/// The turn wraps, at the top of the word so that this touches nothing else: for a word to be as it was, 33 million
/// references would have to come and go while one is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Usage(u64);

/// Only in state `Valid`: how many references were taken.
const TURN_SHIFT: u32 = 39;
/// Only in state `Partial`, in the same place.
const RESUME_SHIFT: u32 = TURN_SHIFT;
const RESUME_MASK: u64 = 0x3ff;
const TYPE_SHIFT: u32 = 36;
const TYPE_MASK: u64 = 7 << TYPE_SHIFT;
const PINNED: u64 = 1 << 35;
/// A page table of another domain than the owner has mapped it writable, since it is [`FrameType::Writable`].
const FOREIGN: u64 = 1 << 34;
const STATE_SHIFT: u32 = 32;
/// Type and state, shifted down by [`STATE_SHIFT`].
const KIND_MASK: u64 = TYPE_MASK >> STATE_SHIFT | 3;
const LOW_MASK: u64 = 0xffff_ffff;
/// More type references than this are refused.
const COUNT_MAX: u32 = 0x7fff_ffff;

#[allow(clippy::cast_possible_truncation, reason = "the fields are masked")]
impl Usage {
    /// A frame that never had a type since it got its owner: no TLB knows it.
    pub const UNUSED: Self = Self(0);

    const fn make(ty: FrameType, state: UsageState, low: u32) -> Self {
        Self((ty as u64) << TYPE_SHIFT | (state as u64) << STATE_SHIFT | low as u64)
    }
    pub(crate) const fn idle(last: FrameType, stamp: u32) -> Self {
        Self::make(last, UsageState::Idle, stamp)
    }
    pub(crate) const fn valid(ty: FrameType, count: u32) -> Self {
        Self::make(ty, UsageState::Valid, count)
    }
    #[inline]
    const fn is(self, ty: FrameType, state: UsageState) -> bool {
        self.0 >> STATE_SHIFT & KIND_MASK == (ty as u64) << (TYPE_SHIFT - STATE_SHIFT) | state as u64
    }
    /// The type's last reference went at `stamp`.
    #[inline]
    pub(crate) const fn ended(self, stamp: u32) -> Self {
        Self(self.0 & (TYPE_MASK | FOREIGN) | stamp as u64)
    }
    /// From `Idle`, the first reference of the type that it had last.
    #[inline]
    pub(crate) const fn again(self) -> Self {
        Self(self.0 & (TYPE_MASK | FOREIGN) | Self::valid(FrameType::None, 1).0)
    }
    pub(crate) const fn busy(ty: FrameType) -> Self {
        Self::make(ty, UsageState::Busy, 1)
    }
    pub(crate) const fn partial(ty: FrameType, resume: usize) -> Self {
        Self(Self::make(ty, UsageState::Partial, 1).0 | ((resume as u64) & RESUME_MASK) << RESUME_SHIFT)
    }
    pub(super) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
    pub(super) const fn raw(self) -> u64 {
        self.0
    }

    /// The type; in state `Idle` the last one.
    #[inline]
    pub const fn ty(self) -> FrameType {
        FrameType::ALL[(self.0 >> TYPE_SHIFT) as usize & 7]
    }
    /// How far the type is established.
    #[inline]
    pub const fn state(self) -> UsageState {
        UsageState::ALL[(self.0 >> STATE_SHIFT) as usize & 3]
    }
    /// Number of type references.
    #[inline]
    pub const fn count(self) -> u32 {
        if matches!(self.state(), UsageState::Idle) {
            0
        } else {
            self.low()
        }
    }
    /// TLB clock at the end of the last type; only in state `Idle`.
    #[inline]
    pub const fn stamp(self) -> u32 {
        self.low()
    }
    #[inline]
    const fn low(self) -> u32 {
        (self.0 & LOW_MASK) as u32
    }
    /// Entries below this index hold references; only in state `Partial`.
    pub const fn resume(self) -> usize {
        (self.0 >> RESUME_SHIFT & RESUME_MASK) as usize
    }
    /// Does the guest want it to stay a page table while unreferenced?
    #[inline]
    pub const fn is_pinned(self) -> bool {
        self.0 & PINNED != 0
    }
    /// Is it in full use as `ty`?
    #[inline]
    pub const fn is_valid_as(self, ty: FrameType) -> bool {
        self.is(ty, UsageState::Valid)
    }
    /// Was its last use that as `ty`, and is it over?
    #[inline]
    pub(crate) const fn is_idle_as(self, ty: FrameType) -> bool {
        self.is(ty, UsageState::Idle)
    }
    /// Must TLBs be flushed before it may be used as `ty`? Only in state `Idle`.
    #[inline]
    pub(crate) fn needs_flush_for(self, ty: FrameType) -> bool {
        let last = self.ty();
        last != ty && last != FrameType::None
    }
    /// Which CPUs may have translations that let a guest write to a frame of `owner`'s or walk through it? Only in
    /// state `Idle`.
    #[inline]
    pub(crate) const fn knowers(self, owner: DomId) -> Knowers {
        if self.0 & FOREIGN != 0 {
            Knowers::Everyone
        } else {
            Knowers::CpusOf(owner)
        }
    }
    /// One more reference, unless there are too many. With one fewer again it is not the word that it was.
    #[inline]
    pub(crate) const fn plus_one(self) -> Option<Self> {
        if self.low() >= COUNT_MAX {
            None
        } else {
            Some(Self(self.0.wrapping_add(1 << TURN_SHIFT | 1)))
        }
    }
    /// One reference fewer; there must be two or more.
    #[inline]
    pub(crate) const fn minus_one(self) -> Self {
        Self(self.0 - 1)
    }
    pub(crate) const fn pinned(self) -> Self {
        Self(self.0 | PINNED)
    }
    pub(crate) const fn unpinned(self) -> Self {
        Self(self.0 & !PINNED)
    }
}

impl core::fmt::Debug for Usage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} {:?}", self.ty(), self.state())?;
        match self.state() {
            UsageState::Idle => write!(f, " since {}", self.stamp())?,
            UsageState::Partial => write!(f, " at {}", self.resume())?,
            _ => write!(f, " x{}", self.count())?,
        }
        if self.is_pinned() {
            f.write_str(" pinned")?;
        }
        if self.0 & FOREIGN != 0 {
            f.write_str(" foreign")?;
        }
        Ok(())
    }
}

impl Frame {
    /// Notes that another domain than the owner is about to map the frame writable. For a holder of a writable
    /// reference.
    #[cold]
    pub(crate) fn mark_foreign(&self) {
        self.usage.fetch_or(FOREIGN, Ordering::AcqRel);
    }

    /// Records `clock` as the end of the frame's last use. For a frame that was just freed and that nobody else knows.
    pub(crate) fn stamp_free(&self, clock: u32) {
        let last = self.usage();
        debug_assert_eq!(last.state(), UsageState::Idle, "freeing a frame that has a type");
        // A frame that was only ever mapped read-only has no last type, but TLBs may know it.
        let ty = if last.ty() == FrameType::None { FrameType::Shared } else { last.ty() };
        let foreign = last.raw() & FOREIGN;
        self.usage.store(Usage::idle(ty, clock).raw() | foreign, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What everybody asks of a word, the turn aside.
    fn says(word: Usage) -> (FrameType, UsageState, u32, bool, Knowers) {
        (word.ty(), word.state(), word.count(), word.is_pinned(), word.knowers(DomId(1)))
    }

    fn words() -> impl Iterator<Item = (FrameType, Usage)> {
        let flags = [0, PINNED, FOREIGN, PINNED | FOREIGN];
        FrameType::ALL.into_iter().flat_map(move |ty| flags.map(|flags| (ty, Usage(Usage::valid(ty, 1).0 | flags))))
    }

    #[test]
    fn a_reference_that_came_and_went_shows_in_the_word_and_nowhere_else() {
        const LAST: u64 = u64::MAX >> TURN_SHIFT;
        for (ty, first) in words() {
            for turn in [0, 1, LAST / 2, LAST - 1, LAST] {
                let before = Usage(first.0 | turn << TURN_SHIFT);
                let two = before.plus_one().unwrap();
                let after = two.minus_one();
                assert_eq!(
                    (says(two), says(after)),
                    ((ty, before.state(), 2, says(before).3, says(before).4), says(before))
                );
                assert_ne!(after, before, "turn {turn}");
                assert!(after.is_valid_as(ty) && two.is_valid_as(ty) && !after.is_idle_as(ty));
                let others = || FrameType::ALL.into_iter().filter(|other| *other != ty);
                assert!(others().all(|other| !after.is_valid_as(other)));
                let ended = after.ended(7);
                assert_eq!((says(ended), ended.stamp()), ((ty, UsageState::Idle, 0, false, says(before).4), 7));
                assert!(
                    ended.is_idle_as(ty) && !ended.is_valid_as(ty) && others().all(|other| !ended.is_idle_as(other))
                );
                assert_eq!(ended, first.ended(7), "what was in between is over");
                assert_eq!(ended.again(), first.unpinned(), "and begins anew");
                assert_eq!((after.pinned().unpinned(), after.unpinned().is_pinned()), (after.unpinned(), false));
            }
        }
        assert_eq!(Usage::UNUSED, Usage::idle(FrameType::None, 0), "a frame table of zeroes");
    }

    #[test]
    fn there_are_never_more_references_than_are_counted() {
        for (ty, first) in words() {
            let most = Usage(first.0 & !LOW_MASK | u64::from(COUNT_MAX));
            assert_eq!((most.plus_one(), most.count()), (None, COUNT_MAX));
            let last = most.minus_one().plus_one().unwrap();
            assert_eq!((last.ty(), last.state(), last.count()), (ty, UsageState::Valid, COUNT_MAX));
        }
    }

    #[test]
    fn a_table_that_is_left_half_done_says_where() {
        for ty in [FrameType::L1, FrameType::L2, FrameType::L3, FrameType::L4] {
            for resume in [0, 1, 511, 512] {
                let word = Usage::partial(ty, resume);
                assert_eq!((says(word), word.resume()), (says(Usage::partial(ty, 0)), resume));
                assert_eq!(says(word), (ty, UsageState::Partial, 1, false, Knowers::CpusOf(DomId(1))));
                assert!(!word.is_valid_as(ty) && !word.is_idle_as(ty) && !Usage::busy(ty).is_valid_as(ty));
            }
        }
    }
}
