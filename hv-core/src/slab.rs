//! Small objects of one size in whole pages: a page is taken when no other has room, and given back with its last
//! object.
//!
//! Each page begins with a [`Header`]; the objects follow, of which the free ones hold nothing but where the next one
//! is. Pages with room are a list; full ones are in none, and a page is found again by the address of its objects. So
//! both operations touch the page and its neighbours in the list, and there is no table of pages that could want to
//! grow. Memory is reached through [`Pages`]: this file needs no privilege.

/// Size of a page.
const PAGE: u16 = 4096;
/// Room for the header; objects start behind it.
pub const HEADER: u16 = 64;
/// No object: where a header would be.
const NONE: u16 = 0;
/// No page.
const NO_PAGE: u64 = u64::MAX;

/// What a page knows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// Neighbours in the list of pages with room, while it is in it.
    next: u64,
    prev: u64,
    /// Offset of the first free object that was in use before.
    free: u16,
    /// From here on none was ever in use.
    fresh: u16,
    /// Objects in use.
    used: u16,
}

const _: () = assert!(core::mem::size_of::<Header>() <= HEADER as usize);

/// Pages, by number.
pub trait Pages {
    /// Takes a page, with any contents.
    fn take(&mut self) -> Option<u64>;
    /// Gives it back.
    fn give_back(&mut self, page: u64);
    /// The header of a page that was taken.
    fn header(&self, page: u64) -> Header;
    /// Stores it.
    fn set_header(&mut self, page: u64, header: Header);
    /// The number in the free object at `offset` of a page.
    fn link(&self, page: u64, offset: u16) -> u16;
    /// Stores it.
    fn set_link(&mut self, page: u64, offset: u16, link: u16);
}

/// All objects of one size.
#[derive(Debug)]
pub struct Class {
    size: u16,
    /// Objects that fit into a page.
    capacity: u16,
    /// First page with room.
    partial: u64,
    nr_pages: u64,
    /// Objects in use.
    nr_objects: u64,
}

impl Class {
    /// No objects yet, of `size` bytes, at least 2. They are aligned to whatever divides both `size` and [`HEADER`].
    pub const fn new(size: u16) -> Self {
        assert!(size >= 2 && size <= PAGE - HEADER);
        Self { size, capacity: (PAGE - HEADER) / size, partial: NO_PAGE, nr_pages: 0, nr_objects: 0 }
    }

    /// Pages in use.
    pub const fn nr_pages(&self) -> u64 {
        self.nr_pages
    }

    /// Objects in use: many fewer than the pages have room for are fragmentation, and more than before are a leak.
    pub const fn nr_objects(&self) -> u64 {
        self.nr_objects
    }

    /// Objects that the pages in use have room for.
    pub const fn room(&self) -> u64 {
        self.nr_pages * self.capacity as u64
    }

    /// Takes an object: its page and its offset there. `None`: there is no page.
    #[inline]
    pub fn alloc(&mut self, pages: &mut impl Pages) -> Option<(u64, u16)> {
        if self.partial == NO_PAGE {
            self.grow(pages)?;
        }
        let page = self.partial;
        let mut header = pages.header(page);
        let offset = if header.free == NONE {
            let fresh = header.fresh;
            header.fresh += self.size;
            fresh
        } else {
            let free = header.free;
            header.free = pages.link(page, free);
            free
        };
        header.used += 1;
        self.nr_objects += 1;
        pages.set_header(page, header);
        if header.used == self.capacity {
            self.unlink(pages, header);
        }
        Some((page, offset))
    }

    /// Gives back the object at `offset` of `page`, which [`Self::alloc`] gave.
    #[inline]
    pub fn free(&mut self, pages: &mut impl Pages, page: u64, offset: u16) {
        let mut header = pages.header(page);
        debug_assert!(header.used > 0 && offset >= HEADER && (offset - HEADER).is_multiple_of(self.size));
        let was_full = header.used == self.capacity;
        header.used -= 1;
        self.nr_objects -= 1;
        if header.used == 0 {
            if !was_full {
                self.unlink(pages, header);
            }
            self.nr_pages -= 1;
            pages.give_back(page);
            return;
        }
        pages.set_link(page, offset, header.free);
        header.free = offset;
        pages.set_header(page, header);
        if was_full {
            self.link(pages, page, header);
        }
    }

    #[cold]
    fn grow(&mut self, pages: &mut impl Pages) -> Option<()> {
        let page = pages.take()?;
        self.nr_pages += 1;
        self.link(pages, page, Header { next: NO_PAGE, prev: NO_PAGE, free: NONE, fresh: HEADER, used: 0 });
        Some(())
    }

    /// Puts a page, whose header is `header`, at the front of the list.
    fn link(&mut self, pages: &mut impl Pages, page: u64, header: Header) {
        let next = self.partial;
        pages.set_header(page, Header { next, prev: NO_PAGE, ..header });
        if next != NO_PAGE {
            pages.set_header(next, Header { prev: page, ..pages.header(next) });
        }
        self.partial = page;
    }

    /// Takes the page whose header is `header` out of the list.
    fn unlink(&mut self, pages: &mut impl Pages, header: Header) {
        let Header { next, prev, .. } = header;
        if next != NO_PAGE {
            pages.set_header(next, Header { prev, ..pages.header(next) });
        }
        if prev == NO_PAGE {
            self.partial = next;
        } else {
            pages.set_header(prev, Header { next, ..pages.header(prev) });
        }
    }
}

#[cfg(test)]
#[path = "slab_tests.rs"]
mod tests;
