//! Memory for domain 0: the contiguous chunk that its kernel starts in, and whatever is free for the rest.

use super::Failure;
use crate::boot::Module;
use crate::domain::Domain;
use crate::mem::frames::{self, ANYWHERE};
use crate::mem::phys_to_virt;
use core::sync::atomic::Ordering;
use kernel_image::builder::{load_segments, move_segments, Extent, FrameMap, Memory};
use kernel_image::{Image, Kernel, Layout, Payload, Request};
use x86::{Mfn, PAGE_SHIFT, PAGE_SIZE};

/// The largest extent taken at once: 1 GiB.
const MAX_ORDER: u32 = 18;
/// A kernel's initial mapping exceeds its unpacked file by about this: what lies below the kernel, tables, padding.
const USUAL_EXCESS: usize = 24 << 20;

/// Frames that are being filled, through the direct map.
pub struct DirectMap;

impl Memory for DirectMap {
    fn bytes(&mut self, first: Mfn, len: usize) -> &mut [u8] {
        // SAFETY: the builder names frames of the domain only, which does not run yet: they are RAM in the direct map,
        // and nothing else refers to their contents while the result borrows `self`.
        unsafe { core::slice::from_raw_parts_mut(phys_to_virt(first.addr()), len) }
    }
}

/// A kernel whose segments are in place.
pub struct LoadedKernel {
    /// What it is.
    pub kernel: Kernel,
    /// Where everything goes.
    pub layout: Layout,
    /// First frame of the chunk of `layout.chunk_order`.
    pub chunk: Mfn,
}

impl LoadedKernel {
    /// Unpacks and loads the kernel of the boot module `image`.
    pub fn load(image: &[u8], request: &Request<'_>) -> Result<Self, Failure> {
        match Image::parse(image)? {
            Image::Elf(file) => Self::copy(file, request),
            Image::Packed(payload) => Self::unpack(&payload, request),
        }
    }

    /// Loads the kernel from its ELF file elsewhere in memory.
    fn copy(file: &[u8], request: &Request<'_>) -> Result<Self, Failure> {
        let (kernel, layout) = plan(file, request)?;
        let chunk = alloc_chunk(layout.chunk_order)?;
        load_segments(&kernel, file, DirectMap.bytes(chunk, PAGE_SIZE << layout.chunk_order))?;
        Ok(Self { kernel, layout, chunk })
    }

    /// Unpacks the kernel into the top of the chunk that it will most likely need, and moves its segments into place.
    fn unpack(payload: &Payload<'_>, request: &Request<'_>) -> Result<Self, Failure> {
        let order = order_of(payload.unpacked_len + USUAL_EXCESS);
        let chunk = alloc_chunk(order)?;
        let len = PAGE_SIZE << order;
        let mut direct_map = DirectMap;
        let memory = direct_map.bytes(chunk, len);
        let file = len - payload.unpacked_len.next_multiple_of(PAGE_SIZE);
        let file = file..file + payload.unpacked_len;
        payload.unpack(&mut memory[file.clone()])?;
        let (kernel, layout) = plan(&memory[file.clone()], request)?;
        if layout.chunk_order == order && move_segments(&kernel, file.clone(), memory)? {
            return Ok(Self { kernel, layout, chunk });
        }
        let loaded = Self::copy(&memory[file], request);
        frames::free(chunk, order);
        loaded
    }
}

/// Checks the kernel and plans the domain.
fn plan(file: &[u8], request: &Request<'_>) -> Result<(Kernel, Layout), Failure> {
    let kernel = Kernel::parse(file)?;
    kernel.check_dom0()?;
    let layout = Layout::plan(&kernel, request)?;
    Ok((kernel, layout))
}

fn alloc_chunk(order: u32) -> Result<Mfn, Failure> {
    frames::alloc(order, ANYWHERE).ok_or(Failure::NoChunk { order })
}

/// The smallest order of pages that holds `bytes`.
fn order_of(bytes: usize) -> u32 {
    bytes.div_ceil(PAGE_SIZE).next_power_of_two().trailing_zeros()
}

/// Finds all frames of the domain: its part of the chunk (the rest is given back), the initrd's own (if it has it by
/// frame number), and others.
pub fn collect(layout: &Layout, chunk: Mfn, initrd: Option<&Module>) -> Result<FrameMap, Failure> {
    let mut map = FrameMap::default();
    map.push(Extent { mfn: chunk, nr: layout.chunk_pages });
    frames::free_range(chunk.add(layout.chunk_pages), chunk.add(1 << layout.chunk_order));
    let nr_initrd = layout.initrd_pfns.end - layout.initrd_pfns.start;
    if let Some(initrd) = initrd.filter(|_| nr_initrd != 0) {
        let moved = move_up(initrd, &mut map);
        map.push(Extent { mfn: initrd.frames().0.add(moved), nr: nr_initrd - moved });
    }
    let mut order = MAX_ORDER;
    while map.nr_pages() < layout.nr_pages {
        let left = layout.nr_pages - map.nr_pages();
        order = order.min(left.ilog2());
        match frames::alloc(order, ANYWHERE) {
            Some(mfn) => map.push(Extent { mfn, nr: 1 << order }),
            None => order = order.checked_sub(1).ok_or(Failure::OutOfMemory("its memory (see dom0_mem=)"))?,
        }
    }
    Ok(map)
}

/// Address bits of low memory. Some devices reach no other; and DMA to another domain's frame costs Linux least if the
/// frame has a low number.
const LOW_BITS: u32 = 28;
/// So many frames of it should be free: 96 MiB. Linux takes 64 MiB for its bounce buffers (swiotlb) from where memory
/// begins.
const LOW_FREE: u64 = 96 << (20 - PAGE_SHIFT);
/// What is moved at one time: 2 MiB.
const PIECE_ORDER: u32 = 9;

/// Loaders put modules where memory begins. Moves the beginning of an initrd from there to where there is more, until
/// enough of low memory is free, and enters the new frames in `map`. How many there are.
fn move_up(initrd: &Module, map: &mut FrameMap) -> u64 {
    let nr = 1 << PIECE_ORDER;
    let first = initrd.frames().0;
    let is_low = |mfn: Mfn| mfn.raw() + nr <= 1 << (LOW_BITS - PAGE_SHIFT);
    let mut moved = 0;
    for piece in initrd.bytes().chunks_exact(PAGE_SIZE << PIECE_ORDER) {
        let old = first.add(moved);
        if !is_low(old) || frames::free_count_below(LOW_BITS) >= LOW_FREE {
            break;
        }
        let Some(new) = frames::alloc(PIECE_ORDER, ANYWHERE) else { break };
        if is_low(new) {
            frames::free(new, PIECE_ORDER);
            break;
        }
        DirectMap.bytes(new, piece.len()).copy_from_slice(piece);
        map.push(Extent { mfn: new, nr });
        frames::free_range(old, old.add(nr));
        moved += nr;
    }
    moved
}

/// Makes an extent the domain's, as its frames from `first_pfn` on.
pub fn assign(domain: &Domain, first_pfn: u64, extent: Extent) -> Result<(), Failure> {
    if !domain.mm.assign(extent.mfn, extent.nr) {
        return Err(Failure::OutOfMemory("its account"));
    }
    for n in 0..extent.nr {
        if let Some(entry) = frames::m2p(extent.mfn.add(n)) {
            entry.store(first_pfn + n, Ordering::Relaxed);
        }
    }
    Ok(())
}
