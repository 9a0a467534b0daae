//! All machine frames: the frame table, the machine-to-physical table, and the allocator of free frames.

use crate::mem::{layout, phys_to_virt};
use crate::sync::{Mutex, Once};
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::buddy::{Buddy, Links, Storage};
use hv_core::room;
use x86::{MachAddr, Mfn, PAGE_SIZE};

pub use hv_core::frame::Frame;

/// Frames that share one bit of the map of what exists: 2 MiB.
const FRAMES_PER_CHUNK: u64 = 512;

/// Limits and statistics, fixed at boot.
struct Limits {
    /// One past the last frame of RAM.
    end: u64,
    /// Frames of RAM.
    total: u64,
    /// Bit n: the frame table and M2P have entries for the 512 frames of chunk n.
    chunks: &'static [u64],
}

static LIMITS: Once<Limits> = Once::new();
/// `Limits::end`, where it is found quickest.
static END: AtomicU64 = AtomicU64::new(0);

/// Tags in a byte table, links in the free pages.
struct DirectStorage {
    tags: &'static mut [u8],
}

impl Storage for DirectStorage {
    #[inline]
    fn links(&self, frame: u64) -> Links {
        // SAFETY: the frame is free RAM, owned by the allocator and in the direct map.
        unsafe { phys_to_virt(MachAddr::new(frame << 12)).cast::<Links>().read() }
    }
    #[inline]
    fn set_links(&mut self, frame: u64, links: Links) {
        // SAFETY: as above.
        unsafe { phys_to_virt(MachAddr::new(frame << 12)).cast::<Links>().write(links) }
    }
    #[inline]
    fn tag(&self, frame: u64) -> u8 {
        self.tags.get(frame as usize).copied().unwrap_or(0)
    }
    #[inline]
    fn set_tag(&mut self, frame: u64, tag: u8) {
        self.tags[frame as usize] = tag;
    }
}

static FREE: Mutex<Option<Buddy<DirectStorage>>> = Mutex::new(None);

/// Starts with no free frame. `tags` is zero and has a byte for each frame below `end`; `chunks` as in `Limits`.
pub fn init(end: u64, total: u64, chunks: &'static [u64], tags: &'static mut [u8]) {
    LIMITS.call_once(|| Limits { end, total, chunks });
    END.store(end, Ordering::Relaxed);
    *FREE.lock() = Some(Buddy::new(DirectStorage { tags }));
}

fn limits() -> &'static Limits {
    LIMITS.get().expect("memory is set up before anything else")
}

/// One past the last frame of RAM.
#[inline]
pub fn end() -> Mfn {
    Mfn::new(limits().end)
}

/// Frames of RAM in the machine.
pub fn total() -> u64 {
    limits().total
}

/// Does the M2P have an entry for `mfn`, and the frame table one of its own? True for all RAM, and for what lies within
/// 2 MiB of it.
#[inline]
pub fn has_entry(mfn: Mfn) -> bool {
    let Some(limits) = LIMITS.get() else { return false };
    let chunk = mfn.raw() / FRAMES_PER_CHUNK;
    limits.chunks.get((chunk / 64) as usize).is_some_and(|word| word >> (chunk % 64) & 1 != 0)
}

/// Frames from 0 on that all have entries in the M2P.
pub fn with_entries_from_0() -> u64 {
    let chunks = limits().chunks;
    let whole = chunks.iter().take_while(|word| **word == u64::MAX).count() as u64;
    let rest = chunks.get(whole as usize).map_or(0, |word| u64::from(word.trailing_ones()));
    (whole * 64 + rest) * FRAMES_PER_CHUNK
}

/// What is known about a frame below [`end`]. Frames without an entry of their own share entries that say "I/O memory".
#[inline]
pub fn frame(mfn: Mfn) -> Option<&'static Frame> {
    // SAFETY: the frame table is mapped up to `END`, initialised at boot, never unmapped, and holds only atomics. The
    // shared entries are mapped read-only; but nothing is ever changed in an entry that says so.
    (mfn.raw() < END.load(Ordering::Relaxed))
        .then(|| unsafe { &*(layout::FRAME_TABLE as *const Frame).add(mfn.index()) })
}

/// The machine-to-physical entry of `mfn`, if it has one. Guests read it; only the hypervisor writes it.
#[inline]
pub fn m2p(mfn: Mfn) -> Option<&'static AtomicU64> {
    // SAFETY: as for `frame`.
    has_entry(mfn).then(|| unsafe { &*(layout::M2P as *const AtomicU64).add(mfn.index()) })
}

/// Any address will do.
pub const ANYWHERE: u32 = 64;

/// Takes 2^`order` frames, aligned to their size, below 2^`address_bits` bytes. Their contents are leftovers.
#[inline]
pub fn alloc(order: u32, address_bits: u32) -> Option<Mfn> {
    FREE.lock().as_mut()?.alloc(order, address_bits).map(Mfn::new)
}

/// Takes one frame and zeroes it.
pub fn alloc_zeroed() -> Option<Mfn> {
    let mfn = alloc(0, ANYWHERE)?;
    // SAFETY: it was just taken, and nobody knows it.
    unsafe { scrub(mfn) };
    Some(mfn)
}

/// Frames that the memory of domains never takes: the hypervisor's own objects find room even when domains have all
/// the rest.
pub const RESERVE: u64 = 640;
/// What must be free for a request that makes objects: more than all of them, and a block larger than each.
const HEADROOM: u64 = 128;
/// Order of that block.
const HEADROOM_ORDER: u32 = 3;

/// As [`alloc`], for the memory of a domain: leaves the reserve alone.
pub fn alloc_for_domain(order: u32, address_bits: u32) -> Option<Mfn> {
    let mut free = FREE.lock();
    let buddy = free.as_mut()?;
    if buddy.free_frames() < RESERVE + (1 << order) {
        return None;
    }
    buddy.alloc(order, address_bits).map(Mfn::new)
}

/// Would `count` frames leave the reserve alone?
pub fn has_beside_reserve(count: u64) -> bool {
    free_count() >= RESERVE + count
}

/// Is there memory for objects whose allocation cannot report that there is none? Whoever makes some on request of a
/// domain asks before. They are small, and few for a request; domains' own memory does not use up the reserve.
pub fn has_headroom() -> bool {
    FREE.lock().as_ref().is_some_and(|free| {
        free.free_frames() >= HEADROOM && free.largest_order().is_some_and(|order| order >= HEADROOM_ORDER)
    })
}

/// Frames that are set aside for domains that are being built.
static CLAIMED: AtomicU64 = AtomicU64::new(0);

/// So many are from now on. For who keeps account of them, under its lock.
pub fn set_claimed(frames: u64) {
    CLAIMED.store(frames, Ordering::Relaxed);
}

/// May tables that a guest makes longer as it likes (its grants, what it has mapped) take so many bytes more, which
/// `take` takes at once? They can be as large as the reserve and more, and shall leave what is claimed, and something
/// to [`has_headroom`]'s askers: see [`hv_core::room`]. Its lock is taken after all but the heap's and the allocator's.
pub fn grow_tables(bytes: usize, take: &mut dyn FnMut() -> bool) -> bool {
    static GROWING: Mutex<()> = Mutex::new(());
    let _turn = GROWING.lock();
    // The heap takes a block and gives the rest of it back.
    let frames = bytes.next_power_of_two().div_ceil(PAGE_SIZE) as u64;
    room::is_there(frames, free_count(), CLAIMED.load(Ordering::Relaxed), 2 * HEADROOM) && take()
}

/// Frames that are page tables of the hypervisor's or the IOMMU's and came from the allocator.
static TABLES: AtomicU64 = AtomicU64::new(0);

/// Takes a zeroed frame as a page table for the hypervisor or the IOMMU.
pub fn alloc_table() -> Option<Mfn> {
    let mfn = alloc_zeroed()?;
    TABLES.fetch_add(1, Ordering::Relaxed);
    Some(mfn)
}

/// As [`alloc_table`], for what is made as often, or as large, as a domain likes: leaves the reserve alone.
pub fn alloc_table_for_domain() -> Option<Mfn> {
    let mfn = alloc_for_domain(0, ANYWHERE)?;
    // SAFETY: it was just taken, and nobody knows it.
    unsafe { scrub(mfn) };
    TABLES.fetch_add(1, Ordering::Relaxed);
    Some(mfn)
}

/// Gives back what [`alloc_table`] gave, or [`alloc_table_for_domain`].
pub fn free_table(mfn: Mfn) {
    TABLES.fetch_sub(1, Ordering::Relaxed);
    free(mfn, 0);
}

/// How many they gave.
pub fn table_count() -> u64 {
    TABLES.load(Ordering::Relaxed)
}

/// Zeroes a frame.
///
/// # Safety
/// 1. It is RAM in the direct map, and no object of the hypervisor's is in it: the caller took it from the allocator,
///    or holds a reference to it as a guest's writable page.
#[inline]
pub unsafe fn scrub(mfn: Mfn) {
    // SAFETY: (1).
    unsafe { phys_to_virt(mfn.addr()).write_bytes(0, PAGE_SIZE) }
}

/// Gives back 2^`order` frames that [`alloc`] gave, or an aligned part of them. Scrubbing is the caller's choice.
#[inline]
pub fn free(mfn: Mfn, order: u32) {
    if let Some(buddy) = FREE.lock().as_mut() {
        buddy.free(mfn.raw(), order);
    }
}

/// Gives the allocator the RAM of `start..end`, which it did not have yet, whatever its alignment.
pub fn free_range(start: Mfn, end: Mfn) {
    init_entries(start, end, true);
    if let Some(buddy) = FREE.lock().as_mut() {
        buddy.free_range(start.raw(), end.raw());
    }
}

/// Sets the entries of the frames of `start..end`, all of which must have one, to nobody's RAM or to I/O.
pub fn init_entries(start: Mfn, end: Mfn, is_ram: bool) {
    if start >= end {
        return;
    }
    debug_assert!(has_entry(start) && has_entry(Mfn::new(end.raw() - 1)));
    let count = end.index() - start.index();
    // SAFETY: entries of existing frames are mapped, zeroed at boot, never unmapped, and hold only atomics. One slice
    // rather than a look-up for each: at boot this runs over all memory.
    let entries =
        unsafe { core::slice::from_raw_parts((layout::FRAME_TABLE as *const Frame).add(start.index()), count) };
    for entry in entries {
        entry.init(is_ram);
    }
}

/// Gives back the frames of `start..end`, which [`alloc`] gave, whatever their alignment.
pub fn free_parts(start: Mfn, end: Mfn) {
    if let Some(buddy) = FREE.lock().as_mut() {
        buddy.free_range(start.raw(), end.raw());
    }
}

/// Calls `f` for each free block: its first frame and order.
pub fn for_each_free(f: impl FnMut(u64, u32)) {
    if let Some(buddy) = FREE.lock().as_ref() {
        buddy.for_each_block(limits().end, f);
    }
}

/// Free frames that the allocator has.
pub fn free_count() -> u64 {
    FREE.lock().as_ref().map_or(0, Buddy::free_frames)
}

/// Free frames below 2^`address_bits` bytes.
pub fn free_count_below(address_bits: u32) -> u64 {
    FREE.lock().as_ref().map_or(0, |buddy| buddy.free_frames_below(address_bits))
}

/// The largest order that can be allocated now.
pub fn largest_order() -> Option<u32> {
    FREE.lock().as_ref().and_then(Buddy::largest_order)
}

/// Sets the bit of every chunk that `start..end` (frames) touches.
pub fn mark_chunks(chunks: &mut [u64], start: u64, end: u64) {
    for chunk in start / FRAMES_PER_CHUNK..end.div_ceil(FRAMES_PER_CHUNK) {
        if let Some(word) = chunks.get_mut((chunk / 64) as usize) {
            *word |= 1 << (chunk % 64);
        }
    }
}

/// Words that `mark_chunks` needs for frames below `end`.
pub fn chunk_words(end: u64) -> usize {
    Mfn::new(end.div_ceil(FRAMES_PER_CHUNK * 64)).index()
}

/// Rounds `start..end` (frames) out to chunks.
pub fn to_chunks(start: u64, end: u64) -> (u64, u64) {
    (start / FRAMES_PER_CHUNK * FRAMES_PER_CHUNK, end.next_multiple_of(FRAMES_PER_CHUNK))
}
