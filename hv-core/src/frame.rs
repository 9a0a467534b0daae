//! Frames: one [`Frame`] of 16 bytes for each machine page, atomics only. The shell keeps the table of them.
//!
//! A frame has an owner, a reference count, a type and a type count. `count` holds owner and references in one word, so
//! "this domain owns it and it stays" is one compare-and-exchange. `usage` holds type, state and type count in one
//! word, so a type change is one, too. Rules:
//!
//! * Every type reference comes with a general reference, which is taken before and dropped after it. So a frame with a
//!   type count is never freed, and a freed frame has type count zero.
//! * The domain's allocation is one general reference ([`CountWord::ALLOCATED`]). When the last reference goes the
//!   frame belongs to nobody; the one who dropped it reports that to the environment. If a snapshot of its owner's
//!   notes the frame ([`CountWord::NOTED`]) it is not free then, but away.
//! * While the type count is zero the usage word remembers the last type and the TLB clock at which its last reference
//!   went: whoever gives the frame another type (or another owner) flushes TLBs that may be older than this stamp. For
//!   another type those of the CPUs that run the owner will do, unless others could write to the frame ([`Knowers`]).
//!
//! This module knows nothing about page tables: [`crate::mmu`] does.

mod count;
mod usage;

pub use count::{CountWord, Gone, LastRef, StealError};
pub use usage::{FrameType, Knowers, Usage, UsageState};

use core::sync::atomic::{AtomicU64, Ordering};
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

    /// A page that the hypervisor uses for itself and gives to nobody. All bytes are zero.
    pub const fn hypervisor() -> Self {
        Self { count: AtomicU64::new(CountWord::unowned(DomId::XEN).raw()), usage: AtomicU64::new(Usage::UNUSED.raw()) }
    }

    /// Makes it [`Self::free`] or, if not `ram`, [`Self::io`]; at boot, before anyone refers to it.
    #[inline]
    pub fn init(&self, ram: bool) {
        let owner = if ram { DomId::INVALID } else { DomId::IO };
        self.count.store(CountWord::unowned(owner).raw(), Ordering::Relaxed);
        self.usage.store(Usage::UNUSED.raw(), Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroes_are_the_hypervisors() {
        let zeroes = Frame { count: AtomicU64::new(0), usage: AtomicU64::new(0) };
        assert_eq!((zeroes.owner(), zeroes.count().refs()), (DomId::XEN, 0));
        for dom in [0, 1, 0x7ff0, 0x7ff1, 0x7ff2, 0x7ff4] {
            assert!(!zeroes.get(DomId(dom)));
        }
    }

    #[test]
    fn free_and_io_frames_have_no_references() {
        for (frame, owner) in [(Frame::free(), DomId::INVALID), (Frame::io(), DomId::IO)] {
            assert_eq!(frame.owner(), owner);
            assert!(!frame.get(owner));
        }
    }
}
