//! The hypervisor's heap: small objects in pages of their size class ([`hv_core::slab`]), larger ones in frames of
//! their own.
//!
//! `dealloc` is told the size, so objects carry no header. A page goes back with its last object: what a domain made
//! necessary does not stay behind it. All of this is some dozens of instructions and nothing frequent allocates, which
//! is why no general allocator is used.

use crate::mem::{frames, phys_to_virt, virt_to_mfn};
use crate::sync::Mutex;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::slab::{Class, Header, Pages, HEADER};
use x86::{Mfn, PAGE_SIZE};

/// Sizes of the classes. All but two divide the room that a page has for objects.
const SIZES: [u16; 11] = [16, 32, 64, 128, 192, 256, 448, 576, 1008, 1344, 2016];

struct Heap {
    classes: [Mutex<Class>; SIZES.len()],
    frames: AtomicU64,
}

#[global_allocator]
static HEAP: Heap = Heap {
    classes: [
        class(0),
        class(1),
        class(2),
        class(3),
        class(4),
        class(5),
        class(6),
        class(7),
        class(8),
        class(9),
        class(10),
    ],
    frames: AtomicU64::new(0),
};

const fn class(index: usize) -> Mutex<Class> {
    Mutex::new(Class::new(SIZES[index]))
}

/// Frames that the heap holds.
pub fn frames_used() -> u64 {
    HEAP.frames.load(Ordering::Relaxed)
}

/// What the objects of one size take.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Size of an object, in bytes.
    pub size: u16,
    /// Pages in use.
    pub pages: u64,
    /// Objects in use.
    pub objects: u64,
    /// Objects that the pages have room for.
    pub room: u64,
}

/// Calls `f` with what each class takes.
pub fn for_each_class(mut f: impl FnMut(Use)) {
    SIZES.iter().zip(&HEAP.classes).for_each(|(size, class)| {
        let usage = {
            let class = class.lock();
            Use { size: *size, pages: class.nr_pages(), objects: class.nr_objects(), room: class.room() }
        };
        f(usage);
    });
}

/// Index of the class for `layout`, or `None` if it takes whole frames.
#[inline]
fn class_of(layout: &Layout) -> Option<usize> {
    let (size, align) = (layout.size(), layout.align());
    SIZES.iter().position(|class| {
        let class = usize::from(*class);
        size <= class && class % align == 0 && usize::from(HEADER) % align == 0
    })
}

/// Frames and order for an object that takes whole frames.
fn frames_of(layout: &Layout) -> (u64, u32) {
    let frames = layout.size().max(layout.align()).div_ceil(PAGE_SIZE) as u64;
    (frames, frames.next_power_of_two().ilog2())
}

/// The heap's pages, by frame number, in the direct map.
struct Direct;

impl Direct {
    fn at(page: u64, offset: u16) -> *mut u8 {
        phys_to_virt(Mfn::new(page).addr()).wrapping_add(offset.into())
    }
}

impl Pages for Direct {
    fn take(&mut self) -> Option<u64> {
        let mfn = frames::alloc(0, frames::ANYWHERE)?;
        HEAP.frames.fetch_add(1, Ordering::Relaxed);
        Some(mfn.raw())
    }
    fn give_back(&mut self, page: u64) {
        frames::free(Mfn::new(page), 0);
        HEAP.frames.fetch_sub(1, Ordering::Relaxed);
    }
    #[inline]
    fn header(&self, page: u64) -> Header {
        // SAFETY: a class asks only for headers of pages that it has taken and written one to; its lock is held.
        unsafe { Self::at(page, 0).cast::<Header>().read() }
    }
    #[inline]
    fn set_header(&mut self, page: u64, header: Header) {
        // SAFETY: the page is the class's, and no object lies where the header is.
        unsafe { Self::at(page, 0).cast::<Header>().write(header) }
    }
    #[inline]
    fn link(&self, page: u64, offset: u16) -> u16 {
        // SAFETY: a free object, so its first word is the class's; objects are aligned to 16 bytes.
        unsafe { Self::at(page, offset).cast::<u16>().read() }
    }
    #[inline]
    fn set_link(&mut self, page: u64, offset: u16, link: u16) {
        // SAFETY: as above.
        unsafe { Self::at(page, offset).cast::<u16>().write(link) }
    }
}

// SAFETY: objects are disjoint parts of pages, or runs of frames, that the frame allocator gave out once; `class_of`
// picks a class whose objects are as large and as aligned as asked for.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class_of(&layout) else { return self.alloc_frames(&layout) };
        let object = self.classes[class].lock().alloc(&mut Direct);
        object.map_or(null_mut(), |(page, offset)| Direct::at(page, offset))
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let Some(class) = class_of(&layout) else { return self.free_frames(object, &layout) };
        let page = virt_to_mfn(object).raw();
        let offset = (object as usize % PAGE_SIZE) as u16;
        self.classes[class].lock().free(&mut Direct, page, offset);
    }
}

impl Heap {
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
