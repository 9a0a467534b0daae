//! The word with owner and general references.

use super::{Frame, Usage};
use core::sync::atomic::Ordering;
use xen_abi::layout::{DomId, DOMID_XEN};

/// Owner (bits 48-63, stored so that zero means the hypervisor), flags (bits 32-34) and number of references (bits
/// 0-31). So a frame table that starts as zeroes is safe: nobody can refer to any frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CountWord(u64);

const OWNER_SHIFT: u32 = 48;
const REFS_MASK: u64 = 0xffff_ffff;
/// More references than this are refused; far above what a machine's page tables can hold of one frame in practice.
const REFS_MAX: u64 = 0x7fff_ffff;

#[inline]
const fn owner_bits(dom: DomId) -> u64 {
    (dom.0 ^ DOMID_XEN) as u64
}

impl CountWord {
    /// The owner has not given the frame up: one of the references is the allocation's.
    pub const ALLOCATED: u64 = 1 << 32;
    /// The page belongs to the hypervisor's heap and is lent to the owner (shared info, grant table): it is not part of
    /// the owner's memory and cannot be given up, exchanged or transferred by it. After the loan and the last reference
    /// it is still not free: the hypervisor may be using it.
    pub const HEAP: u64 = 1 << 33;
    /// A snapshot of the owner's notes the frame, and wants it back on the way to it. Without references it leaves its
    /// owner, and then is not free, but [`Self::AWAY`]. Only those who make snapshots set and clear this.
    pub const NOTED: u64 = 1 << 34;
    /// Nobody's.
    pub const FREE: Self = Self::unowned(DomId::INVALID);
    /// Nobody's, but a snapshot's of its last owner.
    pub const AWAY: Self = Self(Self::FREE.0 | Self::NOTED);

    pub(super) const fn unowned(by: DomId) -> Self {
        Self(owner_bits(by) << OWNER_SHIFT)
    }
    pub(super) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }
    pub(super) const fn raw(self) -> u64 {
        self.0
    }
    /// What it becomes with its last reference: free; or, if it was lent or a snapshot notes it, nobody's to refer to.
    #[inline]
    const fn without_references(self) -> Self {
        if self.is_heap() || self.is_noted() {
            Self(self.0 & !(REFS_MASK | Self::ALLOCATED))
        } else {
            Self::FREE
        }
    }
    /// Whose page it is.
    #[allow(clippy::cast_possible_truncation, reason = "the top 16 bits")]
    pub const fn owner(self) -> DomId {
        DomId((self.0 >> OWNER_SHIFT) as u16 ^ DOMID_XEN)
    }
    /// Number of references, the allocation's included.
    #[allow(clippy::cast_possible_truncation, reason = "masked")]
    pub const fn refs(self) -> u32 {
        (self.0 & REFS_MASK) as u32
    }
    /// Has the owner not given it up?
    pub const fn is_allocated(self) -> bool {
        self.0 & Self::ALLOCATED != 0
    }
    /// Is it lent by the hypervisor?
    pub const fn is_heap(self) -> bool {
        self.0 & Self::HEAP != 0
    }
    /// Does a snapshot note it?
    pub const fn is_noted(self) -> bool {
        self.0 & Self::NOTED != 0
    }
    /// Is it memory of `dom`, which has not given it up?
    pub fn is_part_of(self, dom: DomId) -> bool {
        self.owner() == dom && self.refs() != 0 && self.is_allocated() && !self.is_heap()
    }
    /// Is it memory of `dom`, or was, and somebody refers to it?
    pub fn is_held_of(self, dom: DomId) -> bool {
        self.owner() == dom && self.refs() != 0 && !self.is_heap()
    }
    /// Is it, noted, just leaving `dom`? It is away in a moment.
    pub fn is_leaving(self, dom: DomId) -> bool {
        self.owner() == dom && self.refs() == 0 && self.is_noted()
    }
}

impl core::fmt::Debug for CountWord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?} refs {}", self.owner(), self.refs())?;
        if self.is_allocated() {
            f.write_str(" allocated")?;
        }
        if self.is_heap() {
            f.write_str(" heap")?;
        }
        if self.is_noted() {
            f.write_str(" noted")?;
        }
        Ok(())
    }
}

/// What became of a frame that nobody refers to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a frame that became free must go back to the allocator"]
pub enum Gone {
    /// It is free.
    Free,
    /// It is a snapshot's ([`CountWord::AWAY`]): nobody has it until its owner goes back, or the snapshot is dropped.
    Away,
}

/// The last reference of a frame went. The frame is free now, unless it was lent: then it is the hypervisor's alone; or
/// noted: then
/// [`Frame::let_go`] is to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a frame that became free must go back to the allocator"]
pub struct LastRef {
    /// The last owner.
    pub owner: DomId,
    /// Was it lent by the hypervisor?
    pub heap: bool,
    /// Did a snapshot note it?
    pub noted: bool,
}

impl LastRef {
    const fn of(was: CountWord) -> Self {
        Self { owner: was.owner(), heap: was.is_heap(), noted: was.is_noted() }
    }
}

/// Why a frame cannot be taken from its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StealError {
    /// It is not the domain's, is lent by the hypervisor, or was given up already.
    NotOwned,
    /// It is mapped, pinned or otherwise referred to.
    InUse,
}

impl Frame {
    /// Takes a reference if `dom` owns the frame.
    #[inline]
    pub(crate) fn get(&self, dom: DomId) -> bool {
        let mut word = self.count.load(Ordering::Relaxed);
        loop {
            let refs = word & REFS_MASK;
            if word >> OWNER_SHIFT != owner_bits(dom) || refs == 0 || refs >= REFS_MAX {
                return false;
            }
            match self.count.compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Drops a reference that the caller holds. The caller must report a [`LastRef`] to the environment.
    #[inline]
    pub(crate) fn put(&self) -> Option<LastRef> {
        self.drop_ref(0)
    }

    #[inline]
    fn drop_ref(&self, flags_gone: u64) -> Option<LastRef> {
        let mut word = self.count.load(Ordering::Relaxed);
        loop {
            let refs = word & REFS_MASK;
            debug_assert!(refs > 0, "reference dropped that nobody held");
            if refs == 0 {
                return None;
            }
            let new = if refs == 1 { CountWord(word).without_references().raw() } else { (word - 1) & !flags_gone };
            match self.count.compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return (refs == 1).then(|| LastRef::of(CountWord(word))),
                Err(now) => word = now,
            }
        }
    }

    /// Gives a free frame to `dom`, with the allocation's reference. The caller got the frame from the allocator, so
    /// nobody else changes it, and has flushed the TLBs that may know it (see `Mmu::flush_before_reuse`).
    pub fn assign(&self, dom: DomId) {
        debug_assert_eq!(self.count(), CountWord::FREE, "assigning a frame in use");
        self.usage.store(Usage::UNUSED.raw(), Ordering::Relaxed);
        let word = CountWord::unowned(dom).raw() | CountWord::ALLOCATED | 1;
        self.count.store(word, Ordering::Release);
    }

    /// Lends a page of the hypervisor's to `dom`, which may map it: writable, or only readable. It can never become a
    /// page table: it keeps a type reference until [`Frame::end_loan`].
    pub fn lend(&self, dom: DomId, writable: bool) {
        debug_assert_eq!(self.count(), CountWord::FREE, "lending a frame in use");
        let ty = if writable { super::FrameType::Writable } else { super::FrameType::Shared };
        self.usage.store(Usage::valid(ty, 1).raw(), Ordering::Relaxed);
        let word = CountWord::unowned(dom).raw() | CountWord::ALLOCATED | CountWord::HEAP | 1;
        self.count.store(word, Ordering::Release);
    }

    /// The hypervisor does not use a page any more that it had lent: it is free. `false` while the loan lasts or
    /// somebody refers to the page.
    pub(crate) fn take_back(&self) -> bool {
        let word = self.count.load(Ordering::Relaxed);
        let now = CountWord(word);
        let is_alone = now.is_heap() && !now.is_allocated() && now.refs() == 0;
        // Nobody can take a reference, so nobody else changes it.
        is_alone && {
            self.count.compare_exchange(word, CountWord::FREE.raw(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }
    }

    /// Makes a page of the hypervisor's readable for those who may name its frames ([`DomId::XEN`]), for ever.
    pub fn publish(&self) {
        debug_assert_eq!(self.count().refs(), 0, "publishing a frame in use");
        self.usage.store(Usage::valid(super::FrameType::Shared, 1).raw(), Ordering::Relaxed);
        let word = CountWord::unowned(DomId::XEN).raw() | CountWord::ALLOCATED | CountWord::HEAP | 1;
        self.count.store(word, Ordering::Release);
    }

    /// Ends the allocation: drops its reference, once. `Err` if the frame is not `dom`'s or was given up before.
    pub(crate) fn drop_allocation(&self, dom: DomId, heap: bool) -> Result<Option<LastRef>, StealError> {
        let mut word = self.count.load(Ordering::Relaxed);
        loop {
            let now = CountWord(word);
            if now.owner() != dom || !now.is_allocated() || now.is_heap() != heap || now.refs() == 0 {
                return Err(StealError::NotOwned);
            }
            let last = now.refs() == 1;
            let new = if last { now.without_references().raw() } else { (word - 1) & !CountWord::ALLOCATED };
            match self.count.compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(last.then(|| LastRef::of(now))),
                Err(seen) => word = seen,
            }
        }
    }

    /// Takes the frame from `dom` if nothing but the allocation refers to it. It has no references afterwards (and
    /// keeps its time stamp): no mapping, no type. It is the caller's until [`Frame::let_go`] or [`Frame::unsteal`].
    pub(crate) fn steal(&self, dom: DomId) -> Result<(), StealError> {
        let word = self.count.load(Ordering::Relaxed);
        let now = CountWord(word);
        if now.owner() != dom || !now.is_allocated() || now.is_heap() {
            return Err(StealError::NotOwned);
        }
        if now.refs() != 1 {
            return Err(StealError::InUse);
        }
        // Whose it was stays in the word: a snapshot that is dropped meanwhile must not take it for one of those that
        // are away.
        let new = CountWord::unowned(dom).raw() | word & CountWord::NOTED;
        self.count
            .compare_exchange(word, new, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|_| StealError::InUse)
    }

    /// Gives a stolen frame back; its last type and time stamp stay.
    pub(crate) fn unsteal(&self, dom: DomId) {
        debug_assert_eq!(self.count().refs(), 0, "giving back a frame that was not stolen");
        self.change_count(|now| {
            Some(CountWord(now.0 & CountWord::NOTED | CountWord::unowned(dom).0 | CountWord::ALLOCATED | 1))
        });
    }

    /// A frame that was stolen, or noted when its last reference went, is nobody's from now on.
    pub(crate) fn let_go(&self) -> Gone {
        debug_assert_eq!(self.count().refs(), 0, "this frame is in use");
        match self.change_count(|now| Some(if now.is_noted() { CountWord::AWAY } else { CountWord::FREE })) {
            Some(was) if was.is_noted() => Gone::Away,
            _ => Gone::Free,
        }
    }

    /// A snapshot notes the frame. `false`: it is no part of the memory of `dom`.
    pub(crate) fn note(&self, dom: DomId) -> bool {
        self.change_count(|now| now.is_part_of(dom).then_some(CountWord(now.0 | CountWord::NOTED))).is_some()
    }

    /// The snapshot is dropped. `true`: the frame was away, and is free now; the caller has it.
    pub(crate) fn forget(&self) -> bool {
        let was = self.change_count(|now| {
            Some(if now == CountWord::AWAY { CountWord::FREE } else { CountWord(now.0 & !CountWord::NOTED) })
        });
        was == Some(CountWord::AWAY)
    }

    /// Makes a noted frame that is away part of the memory of `dom` again. `false`: it is not away. The caller has
    /// flushed TLBs that may know it; nobody else brings such frames back.
    pub(crate) fn bring_back(&self, dom: DomId) -> bool {
        if self.count() != CountWord::AWAY {
            return false;
        }
        // Devices cannot reach it, whatever its last type was.
        self.usage.store(Usage::UNUSED.raw(), Ordering::Relaxed);
        let back = CountWord::unowned(dom).0 | CountWord::NOTED | CountWord::ALLOCATED | 1;
        self.change_count(|now| (now == CountWord::AWAY).then_some(CountWord(back))).is_some()
    }

    /// Makes a noted frame that somebody refers to part of the memory of `dom` again, if it is not. `false`: it is
    /// another's, or nobody refers to it any more.
    pub(crate) fn hold_again(&self, dom: DomId) -> bool {
        let hold = |now: CountWord| {
            if now.is_part_of(dom) {
                Some(now)
            } else {
                (now.is_held_of(dom) && u64::from(now.refs()) < REFS_MAX)
                    .then_some(CountWord((now.0 | CountWord::ALLOCATED) + 1))
            }
        };
        self.change_count(hold).is_some()
    }

    /// Replaces the word as `f` says, which may be asked several times. What it was; `None`: nothing, for `f` does not
    /// want it.
    fn change_count(&self, f: impl Fn(CountWord) -> Option<CountWord>) -> Option<CountWord> {
        let change = |word| f(CountWord(word)).map(CountWord::raw);
        self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).ok().map(CountWord)
    }
}
