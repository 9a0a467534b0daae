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
    /// Preempted on the way up or down: the entries below the resume index hold their references. The type count is one.
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

/// Type (bits 61-63), pinned (60), foreign (59), state (57-58), resume index (32-41), type count or time stamp (0-31).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Usage(u64);

const TYPE_SHIFT: u32 = 61;
const PINNED: u64 = 1 << 60;
/// A page table of another domain than the owner has mapped it writable, since it is [`FrameType::Writable`].
const FOREIGN: u64 = 1 << 59;
const STATE_SHIFT: u32 = 57;
const RESUME_SHIFT: u32 = 32;
const RESUME_MASK: u64 = 0x3ff;
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
    /// The type's last reference went at `stamp`.
    #[inline]
    pub(crate) const fn ended(self, stamp: u32) -> Self {
        Self(self.0 & (!0 << TYPE_SHIFT | FOREIGN) | stamp as u64)
    }
    /// From `Idle`, the first reference of the type that it had last.
    #[inline]
    pub(crate) const fn again(self) -> Self {
        Self(self.0 & (!0 << TYPE_SHIFT | FOREIGN) | Self::valid(FrameType::None, 1).0)
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
        FrameType::ALL[(self.0 >> TYPE_SHIFT) as usize]
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
        self.0 >> STATE_SHIFT & !((PINNED | FOREIGN) >> STATE_SHIFT)
            == (ty as u64) << (TYPE_SHIFT - STATE_SHIFT) | UsageState::Valid as u64
    }
    /// Was its last use that as `ty`, and is it over?
    #[inline]
    pub(crate) const fn is_idle_as(self, ty: FrameType) -> bool {
        self.0 >> STATE_SHIFT & !((PINNED | FOREIGN) >> STATE_SHIFT)
            == (ty as u64) << (TYPE_SHIFT - STATE_SHIFT) | UsageState::Idle as u64
    }
    /// Must TLBs be flushed before it may be used as `ty`? Only in state `Idle`.
    #[inline]
    pub(crate) fn needs_flush_for(self, ty: FrameType) -> bool {
        let last = self.ty();
        last != ty && last != FrameType::None
    }
    /// Which CPUs may have translations that let a guest write to a frame of `owner`'s or walk through it? Only in state `Idle`.
    #[inline]
    pub(crate) const fn knowers(self, owner: DomId) -> Knowers {
        if self.0 & FOREIGN != 0 {
            Knowers::Everyone
        } else {
            Knowers::CpusOf(owner)
        }
    }
    /// One more reference, unless there are too many.
    #[inline]
    pub(crate) const fn plus_one(self) -> Option<Self> {
        if self.low() >= COUNT_MAX {
            None
        } else {
            Some(Self(self.0 + 1))
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
    /// Notes that another domain than the owner is about to map the frame writable. For a holder of a writable reference.
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
