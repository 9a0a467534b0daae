//! The hypervisor's heap: size classes carved from frames.
//!
//! `dealloc` is told the size, so objects carry no header: small ones are powers of two from 16 bytes to half a page, each
//! class a list of free objects threaded through themselves; larger ones are whole frames. A page that became a class's
//! stays with it. Everything here is a handful of instructions, which is why no general allocator is used.

use crate::mem::{frames, phys_to_virt, virt_to_mfn};
use crate::sync::Mutex;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{null_mut, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use x86::{Mfn, PAGE_SHIFT, PAGE_SIZE};

const SMALLEST: usize = 16;
const LARGEST: usize = PAGE_SIZE / 2;
const CLASSES: usize = (LARGEST.ilog2() - SMALLEST.ilog2() + 1) as usize;

/// A free object: the first word points to the next.
struct Free(Option<NonNull<Free>>);

// SAFETY: the list's objects belong to the allocator, which only touches them under its lock.
unsafe impl Send for Free {}

struct Heap {
    classes: [Mutex<Free>; CLASSES],
    frames: AtomicU64,
}

#[global_allocator]
static HEAP: Heap = Heap { classes: [const { Mutex::new(Free(None)) }; CLASSES], frames: AtomicU64::new(0) };

/// Frames that the heap holds.
pub fn frames_used() -> u64 {
    HEAP.frames.load(Ordering::Relaxed)
}

/// Size and index of the class for `layout`, or `None` if it takes whole frames.
#[inline]
fn class_of(layout: &Layout) -> Option<(usize, usize)> {
    let size = layout.size().max(layout.align()).max(SMALLEST);
    if size > LARGEST {
        return None;
    }
    let size = size.next_power_of_two();
    Some((size, (size.ilog2() - SMALLEST.ilog2()) as usize))
}

/// Frames and order for an object that takes whole frames.
fn frames_of(layout: &Layout) -> (u64, u32) {
    let frames = layout.size().max(layout.align()).div_ceil(PAGE_SIZE) as u64;
    (frames, frames.next_power_of_two().ilog2())
}

// SAFETY: objects are disjoint parts of frames that the frame allocator gave out once; classes are powers of two, so
// objects are aligned to their size, which is at least the alignment asked for.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some((size, class)) = class_of(&layout) else { return self.alloc_frames(&layout) };
        let mut list = self.classes[class].lock();
        if list.0.is_none() {
            self.refill(&mut list, size);
        }
        let Some(object) = list.0 else { return null_mut() };
        // SAFETY: a free object's first word is its link.
        list.0 = unsafe { object.as_ref() }.0;
        object.as_ptr().cast()
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let Some((_, class)) = class_of(&layout) else { return self.free_frames(object, &layout) };
        let Some(object) = NonNull::new(object.cast::<Free>()) else { return };
        let mut list = self.classes[class].lock();
        // SAFETY: the caller gives the object back, so its first word is ours to use.
        unsafe { object.write(Free(list.0)) };
        list.0 = Some(object);
    }
}

impl Heap {
    /// Cuts a fresh frame into objects of `size` bytes.
    #[cold]
    fn refill(&self, list: &mut Free, size: usize) {
        let Some(mfn) = frames::alloc(0, frames::ANYWHERE) else { return };
        self.frames.fetch_add(1, Ordering::Relaxed);
        let page = phys_to_virt(mfn.addr());
        for offset in (0..PAGE_SIZE).step_by(size).rev() {
            // SAFETY: the frame is ours and the object lies inside it.
            let object = unsafe { page.add(offset).cast::<Free>() };
            // SAFETY: as above; objects are at least 16 bytes and aligned to that.
            unsafe { object.write(Free(list.0)) };
            list.0 = NonNull::new(object);
        }
    }

    #[cold]
    fn alloc_frames(&self, layout: &Layout) -> *mut u8 {
        let (count, order) = frames_of(layout);
        let Some(mfn) = frames::alloc(order, frames::ANYWHERE) else { return null_mut() };
        frames::free_parts(mfn.add(count), mfn.add(1 << order));
        self.frames.fetch_add(count, Ordering::Relaxed);
        phys_to_virt(mfn.addr())
    }

    #[cold]
    fn free_frames(&self, object: *mut u8, layout: &Layout) {
        let (count, _) = frames_of(layout);
        let first: Mfn = virt_to_mfn(object);
        frames::free_parts(first, first.add(count));
        self.frames.fetch_sub(count, Ordering::Relaxed);
    }
}

const _: () = assert!(LARGEST << 1 == 1 << PAGE_SHIFT && CLASSES == 8);
