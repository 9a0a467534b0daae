//! The pages in which lent buffers lie, with their machine addresses, for the stub of `dma_map_page_attrs`
//! ([`Inline::Page`]).
//!
//! A table whose every place has room for one page: two that meet there take turns, and who does not find a page asks
//! the domain's own list. The host holds a lent buffer's frame, so the address is right for as long as the buffer is
//! lent.
//!
//! [`Inline::Page`]: crate::stubs::Inline::Page

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Places.
const PLACES: usize = 2048;
/// An address of a `struct page` without these low bits tells its place: the structure has 64 bytes.
const PAGE_SHIFT: u32 = 6;

/// A place. Who changes it takes the page away first, and writes it last; the stub reads the page before the address
/// and after it. So what it answers is that page's, whatever other CPUs lend meanwhile.
#[derive(Debug)]
#[repr(C)]
struct Place {
    /// Address of the `struct page`; [`elsewhere`]: none.
    page: AtomicU64,
    /// Where its bytes are in the machine.
    machine: AtomicU64,
}

/// What is in a place that has no page: it is not found, since whoever looks for it, as the driver may look for
/// anything, looks into another place. `page`: any that has this place.
const fn elsewhere(page: u64) -> u64 {
    page ^ 1 << PAGE_SHIFT
}

/// See the module.
#[derive(Debug)]
pub struct Pages {
    places: Box<[Place]>,
}

impl Pages {
    /// What is left of the low half of a page's address, shifted right by [`Self::SHIFT`], is the offset of its place.
    #[allow(clippy::cast_possible_truncation, reason = "some thousands")]
    pub const MASK: u32 = ((PLACES - 1) << Self::PLACE_SHIFT) as u32;
    /// See [`Self::MASK`].
    pub const SHIFT: u32 = PAGE_SHIFT - Self::PLACE_SHIFT;
    const PLACE_SHIFT: u32 = size_of::<Place>().trailing_zeros();

    /// Of no pages.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new() -> Result<Self, TryReserveError> {
        let mut places = Vec::new();
        places.try_reserve_exact(PLACES)?;
        let empty = |page| Place { page: AtomicU64::new(elsewhere(page)), machine: AtomicU64::new(0) };
        places.extend((0..PLACES as u64).map(|n| empty(n << PAGE_SHIFT)));
        Ok(Self { places: places.into_boxed_slice() })
    }

    /// Where the table is, for as long as it lives.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.places.as_ptr() as u64
    }

    fn place(&self, page: u64) -> Option<&Place> {
        let offset = (page & 0xffff_ffff) as u32 >> Self::SHIFT & Self::MASK;
        self.places.get((offset >> Self::PLACE_SHIFT) as usize)
    }

    /// A buffer in this page is lent, and the page is at `machine`.
    pub fn put(&self, page: u64, machine: u64) {
        if let Some(place) = self.place(page) {
            place.page.store(elsewhere(page), Ordering::Release);
            place.machine.store(machine, Ordering::Release);
            place.page.store(page, Ordering::Release);
        }
    }

    /// A buffer in this page is lent no more.
    pub fn forget(&self, page: u64) {
        if let Some(place) = self.place(page).filter(|place| place.page.load(Ordering::Relaxed) == page) {
            // The address stays: the stub may have read the page already, and find it again if that is lent once more.
            place.page.store(elsewhere(page), Ordering::Release);
        }
    }

    /// What the stub answers for `size` bytes at `offset` of a page; `None`: it asks.
    #[must_use]
    pub fn find(&self, page: u64, offset: u64, size: u64) -> Option<u64> {
        let last = size.wrapping_sub(1).checked_add(offset)?;
        let place = self.place(page).filter(|place| place.page.load(Ordering::Acquire) == page)?;
        (last < PAGE).then(|| place.machine.load(Ordering::Acquire).wrapping_add(offset))
    }
}

#[cfg(test)]
impl Pages {
    /// The word of the table that the stub finds at an address.
    pub fn word(&self, address: u64) -> u64 {
        let at = usize::try_from(address - self.address()).expect("in the table");
        let place = &self.places[at / size_of::<Place>()];
        match at % size_of::<Place>() {
            0 => place.page.load(Ordering::Relaxed),
            8 => place.machine.load(Ordering::Relaxed),
            _ => panic!("in a word"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 0xffff_ea00_0040_0000;

    #[test]
    fn what_lies_in_a_lent_page_is_found() {
        let pages = Pages::new().unwrap();
        assert_eq!(pages.find(FIRST, 0, 1), None);
        pages.put(FIRST, 0x1234_5000);
        assert_eq!(pages.find(FIRST, 0, PAGE), Some(0x1234_5000));
        assert_eq!(pages.find(FIRST, 0x842, 60), Some(0x1234_5842));
        assert_eq!(pages.find(FIRST, PAGE - 1, 1), Some(0x1234_5fff));
        for (offset, size) in
            [(0, 0), (5, 0), (PAGE, 0), (0, PAGE + 1), (PAGE - 1, 2), (PAGE, 1), (u64::MAX, 1), (1, u64::MAX)]
        {
            assert_eq!(pages.find(FIRST, offset, size), None, "{offset:#x} {size:#x}");
        }
        assert_eq!(pages.find(FIRST + 64, 0, 1), None);
        pages.forget(FIRST);
        assert_eq!(pages.find(FIRST, 0, 1), None);
    }

    /// No page is taken for another that has its place.
    #[test]
    fn pages_that_meet_take_turns() {
        let pages = Pages::new().unwrap();
        let other = FIRST + ((PLACES as u64) << PAGE_SHIFT);
        pages.put(FIRST, 0x1000);
        pages.put(other, 0x2000);
        assert_eq!((pages.find(FIRST, 0, 1), pages.find(other, 0, 1)), (None, Some(0x2000)));
        pages.forget(FIRST);
        assert_eq!(pages.find(other, 0, 1), Some(0x2000));
        // No address of a page at all is none either.
        pages.forget(other);
        assert_eq!(pages.find(0, 0, 1), None);
    }
}
