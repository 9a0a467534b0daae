//! The frame table: one [`Frame`] of 16 bytes for each machine page, atomics only.
//!
//! A frame has an owner, a reference count, a type and a type count. `count` holds owner and references in one word, so
//! "this domain owns it and it stays" is one compare-and-exchange. `usage` holds type, state and type count in one word,
//! so a type change is one, too. Rules:
//!
//! * Every type reference comes with a general reference, which is taken before and dropped after it. So a frame with a
//!   type count is never freed, and a freed frame has type count zero.
//! * The domain's allocation is one general reference ([`CountWord::ALLOCATED`]). When the last reference goes the frame
//!   belongs to nobody; the one who dropped it reports that to the environment.
//! * While the type count is zero the usage word remembers the last type and the TLB clock at which its last reference
//!   went: whoever gives the frame another type (or another owner) flushes TLBs that may be older than this stamp.
//!
//! This module knows nothing about page tables: [`crate::mmu`] does.

mod count;
mod usage;

pub use count::{CountWord, LastRef, StealError};
pub use usage::{FrameType, Usage, UsageState};

use core::sync::atomic::{AtomicU64, Ordering};
use x86::Mfn;
use xen_abi::layout::DomId;

/// What the hypervisor knows of one machine page.
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Frame {
    count: AtomicU64,
    usage: AtomicU64,
}

const _: () = assert!(core::mem::size_of::<Frame>() == 16);

impl Frame {
    /// A page of RAM that nobody owns.
    pub const fn free() -> Self {
        Self { count: AtomicU64::new(CountWord::FREE.raw()), usage: AtomicU64::new(Usage::UNUSED.raw()) }
    }

    /// A frame that is no RAM, or RAM that is handled as I/O memory (the low megabyte). It never has references.
    pub const fn io() -> Self {
        Self { count: AtomicU64::new(CountWord::unowned(DomId::IO).raw()), usage: AtomicU64::new(Usage::UNUSED.raw()) }
    }

    /// A page that the hypervisor uses for itself and gives to nobody.
    pub const fn hypervisor() -> Self {
        Self { count: AtomicU64::new(CountWord::unowned(DomId::XEN).raw()), usage: AtomicU64::new(Usage::UNUSED.raw()) }
    }

    /// A snapshot of owner and references.
    #[inline]
    pub fn count(&self) -> CountWord {
        CountWord::from_raw(self.count.load(Ordering::Acquire))
    }

    /// A snapshot of type and type count.
    #[inline]
    pub fn usage(&self) -> Usage {
        Usage::from_raw(self.usage.load(Ordering::Acquire))
    }

    /// The owner; [`DomId::INVALID`] for a free frame. Only stable while the caller holds a reference.
    #[inline]
    pub fn owner(&self) -> DomId {
        self.count().owner()
    }

    /// Is it I/O memory, which has no references? Never changes.
    #[inline]
    pub fn is_io(&self) -> bool {
        self.owner() == DomId::IO
    }

    /// Replaces the usage word if it still is `old`.
    #[inline]
    pub(crate) fn change_usage(&self, old: Usage, new: Usage) -> bool {
        self.usage.compare_exchange(old.raw(), new.raw(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Replaces the usage word of a frame whose type state only the caller may change (it made it `Busy`).
    #[inline]
    pub(crate) fn set_usage(&self, new: Usage) {
        self.usage.store(new.raw(), Ordering::Release);
    }
}

/// All frames, indexed by machine frame number.
#[derive(Clone, Copy, Debug)]
pub struct FrameTable<'a> {
    frames: &'a [Frame],
}

impl<'a> FrameTable<'a> {
    /// A table over `frames`; frame number 0 is the first.
    pub const fn new(frames: &'a [Frame]) -> Self {
        Self { frames }
    }

    /// The frame `mfn`, unless it lies beyond all RAM.
    #[inline]
    pub fn get(&self, mfn: Mfn) -> Option<&'a Frame> {
        self.frames.get(mfn.index())
    }

    /// The frame `mfn` if it is RAM.
    #[inline]
    pub fn ram(&self, mfn: Mfn) -> Option<&'a Frame> {
        self.get(mfn).filter(|f| !f.is_io())
    }

    /// Number of frames in the table, I/O frames between the RAM included.
    pub const fn len(&self) -> usize {
        self.frames.len()
    }

    /// Is the table empty?
    pub const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}
