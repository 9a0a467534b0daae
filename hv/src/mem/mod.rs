//! Memory: the address map, the hypervisor's page tables, frames and the heap.

pub mod copy;
pub mod device_frames;
pub mod frames;
pub mod guest_ptr;
pub mod guest_tables;
pub mod heap;
pub mod layout;
pub mod paging;
pub mod vmap;

use crate::cpu;
use crate::sync::Once;
use crate::warn;
use alloc::vec::Vec;
use core::mem::size_of;
use core::ops::Range;
use hv_core::ranges::Ranges;
use paging::Tables;
use x86::{MachAddr, Mfn, Pte, PteFlags, PAGE_SIZE};

/// Memory below this is left to the firmware, legacy devices and the start-up code of other CPUs.
const LOW_MEMORY_END: u64 = 1 << 20;
/// What the boot page tables map.
const BOOT_MAPPED_END: u64 = 4 << 30;
const SIZE_2M: u64 = 2 << 20;
const CR4_PGE: u64 = 1 << 7;
const CPUID_1GIB_PAGES: u32 = 1 << 26;

static TABLES: Once<Tables> = Once::new();

extern "C" {
    static text_start: u8;
    static text_end: u8;
    static rodata_end: u8;
    static image_end: u8;
}

/// Address of a symbol of the linker script.
macro_rules! symbol_address {
    ($symbol:ident) => {
        &raw const $symbol as u64
    };
}

/// The addresses of the hypervisor's code.
pub fn text() -> Range<u64> {
    symbol_address!(text_start)..symbol_address!(text_end)
}

/// Where RAM at `addr` appears in the direct map. The address must be RAM to be accessed.
#[inline]
pub fn phys_to_virt(addr: MachAddr) -> *mut u8 {
    (layout::DIRECT_MAP + addr.raw()) as *mut u8
}

/// The frame that a pointer into the direct map points into.
#[inline]
pub fn virt_to_mfn<T>(pointer: *const T) -> Mfn {
    Mfn::containing(MachAddr::new(pointer as u64 - layout::DIRECT_MAP))
}

/// The machine address of something in the image (code or statics).
#[inline]
pub fn image_to_phys<T>(pointer: *const T) -> MachAddr {
    MachAddr::new(pointer as u64 - layout::IMAGE + layout::IMAGE_PHYS)
}

/// One past the last byte of the image in memory.
pub fn image_phys_end() -> u64 {
    symbol_address!(image_end) - layout::IMAGE + layout::IMAGE_PHYS
}

/// Frames of the image.
pub fn image_frames() -> core::ops::Range<u64> {
    layout::IMAGE_PHYS / 4096..image_phys_end().div_ceil(4096)
}

/// The hypervisor's own page tables.
pub fn tables() -> &'static Tables {
    TABLES.get().expect("memory is set up before anything else")
}

/// The L4 entry of hypervisor slot `slot` (256..272), which every L4 table carries. It never changes after boot.
#[inline]
pub fn l4_entry(slot: usize) -> Pte {
    tables().root_entry(slot)
}

/// The root that no guest owns: it has the hypervisor's slots and nothing else.
pub fn idle_root() -> Mfn {
    tables().root()
}

/// Builds the final address map and the frame allocator. `usable` is the RAM that may be used, and `modules` says where
/// in it the loader put modules: start and length in bytes. `screen` is the screen's memory, likewise. On return the
/// heap works, and the modules' frames are still reserved.
pub fn init(usable: &Ranges, modules: impl Iterator<Item = (u64, u64)>, screen: Option<(u64, u64)>) {
    let mut free = usable.clone();
    free.remove(0, LOW_MEMORY_END);
    free.remove(layout::IMAGE_PHYS, image_phys_end());
    for (start, bytes) in modules {
        free.remove(start & !0xfff, (start + bytes).next_multiple_of(4096));
    }

    let root = take_zeroed(&mut free, BOOT_MAPPED_END);
    let has_1gib_pages = cpu::cpuid(0x8000_0001, 0).edx & CPUID_1GIB_PAGES != 0;
    let tables = TABLES.call_once(|| Tables::new(root, has_1gib_pages));
    let mut low = || Some(take_zeroed(&mut free, BOOT_MAPPED_END));
    map_fixed(tables, usable, &mut low).expect("memory for page tables");

    if let Some((start, bytes)) = screen {
        let first = start & !0xfff;
        let pages = (start + bytes).next_multiple_of(4096) - first;
        tables.map(layout::SCREEN, first, pages, paging::DEVICE, &mut low).expect("memory for page tables");
    }

    // SAFETY: the new tables map the image where it is linked with the rights of its sections, and the stack as data;
    // all that was reached through the boot tables' direct map is RAM, which the new direct map has too.
    unsafe {
        cpu::write_cr4(cpu::read_cr4() | CR4_PGE);
        cpu::write_cr3(root.addr().raw());
        if let Some((start, _)) = screen {
            crate::cpu::screen::moved((layout::SCREEN + start % 4096) as *mut u8);
        }
    }

    map_frame_tables(tables, usable, &mut free);
    mark_io_frames(usable);
    if free.is_cut() {
        warn!("Memory is in too many pieces: the highest ones are not used");
    }
    for (start, end) in free.iter() {
        frames::free_range(Mfn::new(start >> 12), Mfn::new(end >> 12));
    }
    publish_m2p();
}

/// The sixteen L3 tables, the direct map and the image.
fn map_fixed(tables: &Tables, usable: &Ranges, alloc: &mut impl FnMut() -> Option<Mfn>) -> Option<()> {
    for slot in layout::HYPERVISOR_FIRST_SLOT..layout::HYPERVISOR_END_SLOT {
        // Addresses of these slots are canonical with all upper bits set.
        let _ = tables.walk(0xffff_0000_0000_0000 | (slot as u64) << 39, 3, alloc)?;
    }
    let image = |va: u64| va - layout::IMAGE + layout::IMAGE_PHYS;
    let (text, rodata, data) = (symbol_address!(text_start), symbol_address!(text_end), symbol_address!(rodata_end));
    let end = symbol_address!(image_end);
    tables.map(text, image(text), rodata - text, paging::EXECUTE, alloc)?;
    tables.map(rodata, image(rodata), data - rodata, paging::READ_ONLY, alloc)?;
    tables.map(data, image(data), end - data, paging::READ_WRITE, alloc)?;

    // The direct map may not make the hypervisor's code and constants writable.
    let mut writable = usable.clone();
    writable.remove(image(text), image(data));
    for (start, end) in writable.iter() {
        tables.map(layout::DIRECT_MAP + start, start, end - start, paging::READ_WRITE, alloc)?;
    }
    tables.map(layout::DIRECT_MAP + image(text), image(text), data - text, paging::READ_ONLY, alloc)
}

/// The frame table and the M2P for all RAM, the allocator's tags, and the map of what exists.
fn map_frame_tables(tables: &Tables, usable: &Ranges, free: &mut Ranges) {
    let end = usable.end() >> 12;
    let mut chunked = Ranges::new();
    for (start, end) in usable.iter() {
        let (start, end) = frames::to_chunks(start >> 12, end >> 12);
        chunked.add(start, end);
    }
    for (start, end) in chunked.iter() {
        let entry = size_of::<frames::Frame>() as u64;
        back(layout::FRAME_TABLE + start * entry, (end - start) * entry, free, |va, pa, bytes, free| {
            let mut alloc = || Some(take_zeroed(free, u64::MAX));
            tables.map(va, pa, bytes, paging::READ_WRITE, &mut alloc).expect("memory for the frame table");
            // SAFETY: it was mapped just now, for nothing else; whole pages.
            unsafe { fill(va, bytes, 0) };
        });
    }
    map_m2p(tables, &chunked, free);
    map_holes(tables, &chunked, free);
    let words = frames::chunk_words(end);
    // SAFETY: (1) of an integer they are.
    let chunks = unsafe { boot_slice::<u64>(free, words) };
    for (start, end) in chunked.iter() {
        frames::mark_chunks(chunks, start, end);
    }
    // SAFETY: as above.
    let tags = unsafe { boot_slice::<u8>(free, Mfn::new(end).index()) };
    frames::init(end, usable.bytes() >> 12, chunks, tags);
}

/// The M2P in pieces of 2 MiB, whole ones wherever there is any RAM: the tools map it by such pieces.
fn map_m2p(tables: &Tables, chunked: &Ranges, free: &mut Ranges) {
    let mut pieces = Ranges::new();
    for (start, end) in chunked.iter() {
        pieces.add(start * 8 / SIZE_2M * SIZE_2M, (end * 8).next_multiple_of(SIZE_2M));
    }
    for (start, end) in pieces.iter() {
        for offset in (start..end).step_by(SIZE_2M as usize) {
            let pa = free.take(SIZE_2M, SIZE_2M, u64::MAX).expect("memory for the M2P");
            let va = layout::M2P + offset;
            let mut alloc = || Some(take_zeroed(free, u64::MAX));
            tables.map(va, pa, SIZE_2M, paging::READ_WRITE, &mut alloc).expect("memory for the M2P");
            let guest_va = va - layout::M2P + layout::M2P_READ_ONLY;
            tables
                .map(guest_va, pa, SIZE_2M, paging::READ_ONLY | PteFlags::US, &mut alloc)
                .expect("memory for the M2P");
            // SAFETY: as above.
            unsafe { fill(va, SIZE_2M, xen_abi::layout::INVALID_M2P_ENTRY) };
        }
    }
}

/// The first frame of each 2 MiB of the M2P; holes repeat the one before them.
pub fn m2p_extents() -> Vec<Mfn> {
    let end = (frames::end().raw() * 8).next_multiple_of(SIZE_2M);
    let mut extents = Vec::new();
    for offset in (0..end).step_by(SIZE_2M as usize) {
        let found = tables().translate(layout::M2P + offset).map(Mfn::containing);
        extents.extend(found.or_else(|| extents.last().copied()));
    }
    extents
}

/// The tools may map the M2P.
pub fn publish_m2p() {
    let mut last = None;
    for first in m2p_extents() {
        if last.replace(first) != Some(first) {
            let pages = (0..SIZE_2M / PAGE_SIZE as u64).map(|n| first.add(n));
            pages.filter_map(frames::frame).for_each(frames::Frame::publish);
        }
    }
}

/// Frames that have an entry and are no RAM, and those of low memory, are handled as I/O memory. Frames that are
/// neither marked here nor given to the allocator are the hypervisor's own.
fn mark_io_frames(usable: &Ranges) {
    let mut ram = usable.clone();
    ram.remove(0, LOW_MEMORY_END);
    let mut io = Ranges::new();
    for (start, end) in usable.iter() {
        let (start, end) = frames::to_chunks(start >> 12, end >> 12);
        io.add(start << 12, end << 12);
    }
    for (start, end) in ram.iter() {
        io.remove(start, end);
    }
    for (start, end) in io.iter() {
        frames::init_entries(Mfn::new(start >> 12), Mfn::new(end >> 12), false);
    }
}

/// The parts of the frame table where there is no RAM: one page whose entries all say "I/O memory" serves for all of
/// them.
fn map_holes(tables: &Tables, chunked: &Ranges, free: &mut Ranges) {
    let mut holes = Ranges::new();
    holes.add(0, chunked.end());
    for (start, end) in chunked.iter() {
        holes.remove(start, end);
    }
    let shared = take_zeroed(free, u64::MAX);
    let entries = phys_to_virt(shared.addr()).cast::<frames::Frame>();
    for n in 0..PAGE_SIZE / size_of::<frames::Frame>() {
        // SAFETY: inside the page just taken; entries are 16 bytes, so aligned.
        unsafe { entries.add(n).write(frames::Frame::io()) };
    }
    let page = PAGE_SIZE as u64;
    for (start, end) in holes.iter() {
        let entry = size_of::<frames::Frame>() as u64;
        let mut va = layout::FRAME_TABLE + start * entry;
        while va < layout::FRAME_TABLE + end * entry {
            let mut alloc = || Some(take_zeroed(free, u64::MAX));
            tables
                .map(va, shared.addr().raw(), page, paging::READ_ONLY, &mut alloc)
                .expect("memory for the frame table");
            va += page;
        }
    }
}

/// Takes memory for `bytes` at `va` in pieces as large as alignment allows and hands each to `map`.
fn back(mut va: u64, bytes: u64, free: &mut Ranges, mut map: impl FnMut(u64, u64, u64, &mut Ranges)) {
    let end = va + bytes;
    while va < end {
        let to_large = va.next_multiple_of(SIZE_2M) - va;
        let piece = match (to_large, end - va) {
            (0, left) if left >= SIZE_2M => SIZE_2M,
            (0, left) => left,
            (head, left) => head.min(left),
        };
        let align = if piece == SIZE_2M { SIZE_2M } else { PAGE_SIZE as u64 };
        let pa = free.take(piece, align, u64::MAX).expect("memory for the frame table");
        map(va, pa, piece, free);
        va += piece;
    }
}

/// One page of zeroes for the hypervisor's own use, below `limit`.
fn take_zeroed(free: &mut Ranges, limit: u64) -> Mfn {
    let at = free.take(PAGE_SIZE as u64, PAGE_SIZE as u64, limit).expect("memory for page tables");
    let mfn = Mfn::containing(MachAddr::new(at));
    // SAFETY: it was just taken out of free memory, and is mapped there.
    unsafe { fill(phys_to_virt(mfn.addr()) as u64, PAGE_SIZE as u64, 0) };
    mfn
}

/// A zeroed array that lives for ever.
///
/// # Safety
/// 1. All bits zero are a value of a `T`.
unsafe fn boot_slice<T>(free: &mut Ranges, count: usize) -> &'static mut [T] {
    let bytes = (count * size_of::<T>()).next_multiple_of(PAGE_SIZE) as u64;
    let at = free.take(bytes, PAGE_SIZE as u64, u64::MAX).expect("memory for the frame allocator");
    let start = phys_to_virt(MachAddr::new(at));
    // SAFETY: the range was just taken out of free memory, is mapped, as long as `count` items and aligned to a page;
    // (1).
    unsafe {
        fill(start as u64, bytes, 0);
        core::slice::from_raw_parts_mut(start.cast(), count)
    }
}

/// Sets `bytes` (whole words) at `va` to copies of `word`.
///
/// # Safety
/// 1. They are mapped memory of ours that nothing refers to yet.
unsafe fn fill(va: u64, bytes: u64, word: u64) {
    // SAFETY: (1). One instruction a word is what counts here.
    unsafe {
        core::arch::asm!("rep stosq", inout("rdi") va => _, inout("rcx") bytes / 8 => _, in("rax") word,
            options(nostack, preserves_flags));
    }
}
