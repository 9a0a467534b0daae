//! What the memory management needs from the machine.

use crate::frame::{Frame, Gone, Knowers};
use x86::{Mfn, Pte, PAGE_SHIFT};
use xen_abi::layout::DomId;

/// Machine address of one 8-byte entry of a page: a page-table entry, a descriptor, or plain data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u64);

impl Slot {
    /// Entry `index` (taken modulo 512) of `page`.
    #[inline]
    pub const fn new(page: Mfn, index: usize) -> Self {
        Self(page.addr().raw() | ((index as u64) & 511) << 3)
    }
    /// The slot at machine address `addr`, whose three low bits are ignored.
    #[inline]
    pub const fn at(addr: u64) -> Self {
        Self(addr & !7)
    }
    /// Its machine address.
    #[inline]
    pub const fn addr(self) -> u64 {
        self.0
    }
    /// The page it is in.
    #[inline]
    pub const fn page(self) -> Mfn {
        Mfn::new(self.0 >> PAGE_SHIFT)
    }
    /// Its index in the page.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "masked to nine bits")]
    pub const fn index(self) -> usize {
        (self.0 >> 3) as usize & 511
    }
}

impl core::fmt::Debug for Slot {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}[{}]", self.page(), self.index())
    }
}

/// Entries that [`PtMem::any_bits`] looks at together.
pub const GROUP: usize = 8;

/// Access to frames of RAM. The callers only pass slots of frames of RAM.
pub trait PtMem {
    /// Reads an entry, as one 8-byte load.
    fn read(&self, slot: Slot) -> Pte;
    /// All bits of the [`GROUP`] entries from `first` on, which is a multiple of that. Tables are mostly empty, and are
    /// looked through often.
    #[inline]
    fn any_bits(&self, first: Slot) -> u64 {
        (0..GROUP).fold(0, |bits, n| bits | self.read(Slot::at(first.addr() + 8 * n as u64)).0)
    }
    /// Writes an entry, as one 8-byte store.
    fn write(&self, slot: Slot, new: Pte);
    /// Replaces the entry if it is `old`; else says what it is. One locked instruction.
    fn cmpxchg(&self, slot: Slot, old: Pte, new: Pte) -> Result<(), Pte>;
}

/// As many questions whether a domain may map I/O memory ([`MmuEnv::io_access`]) are worth a step: each looks through
/// lists under locks.
pub const IO_ENTRIES_IN_STEP: u32 = 64;

/// May a domain map a frame of I/O memory? The less it may, the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoAccess {
    /// Not at all.
    Denied,
    /// Only readable: the hypervisor watches writes to it.
    ReadOnly,
    /// As it likes.
    Allowed,
}

/// The machine and the domains as the memory management sees them.
pub trait MmuEnv: PtMem {
    /// What is known about `mfn`, unless it is a frame that is no RAM and has no entry.
    fn frame(&self, mfn: Mfn) -> Option<&Frame>;
    /// One past the last frame that has an entry.
    fn frames_end(&self) -> Mfn;
    /// A step is done ([`crate::allowance::STEP`]): a table validated or taken down, or [`IO_ENTRIES_IN_STEP`]
    /// questions for I/O memory.
    fn step(&self);
    /// There are none left, so the operation stops here and is re-executed.
    fn is_out_of_steps(&self) -> bool;
    /// The lower half of a counter that every complete TLB flush (of any CPU) increments *before* it begins.
    fn tlb_clock(&self) -> u32;
    /// Returns when every CPU among `knowers` has completely flushed its TLB and paging-structure caches since the
    /// clock read `stamp`: a CPU whose last flush had a clock value above `stamp` needs none. The clock is above
    /// `stamp` before any of them flushes: what they come to know of a frame afterwards ends with a later stamp.
    fn flush_since(&self, stamp: u32, knowers: Knowers);
    /// May `dom` map the I/O frame `mfn`? Denies frames that the CPU cannot address.
    fn io_access(&self, dom: DomId, mfn: Mfn) -> IoAccess;
    /// May `dom` choose the cache attributes of its mappings (it has a device or I/O memory)?
    fn cache_control(&self, dom: DomId) -> bool;
    /// Writes the hypervisor's entries into slots 256-271 of an L4 table.
    fn fill_hypervisor_slots(&self, l4: Mfn);
    /// The frame has become a page table, is none any more, or was pinned or unpinned just now. Who copies its domain
    /// while that runs has to read it again, for the copy of a table is another than that of plain memory.
    fn use_changed(&self, mfn: Mfn);
    /// Sets an entry of the machine-to-physical table.
    fn m2p_set(&self, mfn: Mfn, pfn: u64);
    /// The last reference to a frame is gone, and it leaves the account of `owner`. If it was lent (`heap`), its loan
    /// is over and nobody refers to it; it is the hypervisor's until [`super::Mmu::take_back`]. Else
    /// [`Self::frame_gone`] follows.
    fn frame_left(&self, mfn: Mfn, owner: DomId, heap: bool);
    /// It belongs to the allocator; or to a snapshot, until [`super::snapshot::Keep::returned`] or
    /// [`super::snapshot::Keep::set_free`]. That is [`crate::allowance::MOVED`] of work, which the environment counts:
    /// whoever lets a frame go, it comes by here, and a table that is taken down may let 512 go.
    fn frame_gone(&self, mfn: Mfn, gone: Gone);
    /// Devices of `dom` may read and write its frame `mfn` from now on: it became writable.
    fn dma_allow(&self, dom: DomId, mfn: Mfn);
    /// They may not any more when this returns: the frame is about to become a page table or to hold descriptors.
    fn dma_forbid(&self, dom: DomId, mfn: Mfn);
    /// The frame, which was writable, leaves `dom`: devices cannot reach it any more when it gets another use.
    fn dma_release(&self, dom: DomId, mfn: Mfn);
    /// Returns when no device reaches a frame that was [`MmuEnv::dma_release`]d before.
    fn dma_flush(&self);
    /// Fills a page, to which the caller holds a reference as a writable one, with zeroes.
    fn clear_page(&self, mfn: Mfn);
    /// Copies a page. The caller holds references to both, to `to` as a writable one.
    fn copy_page(&self, to: Mfn, from: Mfn);
    /// Copies bytes out of a page, from `offset` on. All of them are in it.
    fn read_bytes(&self, page: Mfn, offset: usize, to: &mut [u8]);
    /// Copies bytes into a page, from `offset` on. All of them are in it.
    fn write_bytes(&self, page: Mfn, offset: usize, from: &[u8]);
}
