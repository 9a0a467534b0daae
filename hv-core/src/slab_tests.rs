//! Objects against a model that knows which bytes are in use.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

/// Pages that remember what is in them, of which there are only `left` more.
struct Fake {
    left: usize,
    next: u64,
    /// The header, and the numbers in objects.
    taken: BTreeMap<u64, (Option<Header>, BTreeMap<u16, u16>)>,
}

impl Fake {
    fn new(left: usize) -> Self {
        Self { left, next: 7, taken: BTreeMap::new() }
    }
    fn page(&self, page: u64) -> &(Option<Header>, BTreeMap<u16, u16>) {
        self.taken.get(&page).expect("the page is not the class's")
    }
}

impl Pages for Fake {
    fn take(&mut self) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        self.next += 3;
        self.taken.insert(self.next, (None, BTreeMap::new()));
        Some(self.next)
    }
    fn give_back(&mut self, page: u64) {
        self.left += 1;
        assert!(self.taken.remove(&page).is_some(), "page {page} was given back before");
    }
    fn header(&self, page: u64) -> Header {
        self.page(page).0.expect("the header was not written yet")
    }
    fn set_header(&mut self, page: u64, header: Header) {
        self.page(page);
        self.taken.entry(page).and_modify(|p| p.0 = Some(header));
    }
    fn link(&self, page: u64, offset: u16) -> u16 {
        self.page(page).1[&offset]
    }
    fn set_link(&mut self, page: u64, offset: u16, link: u16) {
        assert!(offset >= HEADER);
        self.page(page);
        self.taken.entry(page).and_modify(|p| {
            p.1.insert(offset, link);
        });
    }
}

/// The list holds exactly the pages with room, forwards and backwards.
fn check(class: &Class, pages: &Fake, used: &BTreeSet<(u64, u16)>) {
    let mut counts: BTreeMap<u64, u16> = BTreeMap::new();
    used.iter().for_each(|(page, _)| *counts.entry(*page).or_default() += 1);
    assert!(pages.taken.keys().eq(counts.keys()), "a page without an object, or an object without a page");
    assert_eq!(class.nr_pages(), counts.len() as u64);
    assert_eq!(class.nr_objects(), used.len() as u64);
    assert_eq!(class.room(), class.nr_pages() * u64::from(class.capacity));
    let mut listed = BTreeSet::new();
    let (mut at, mut prev) = (class.partial, NO_PAGE);
    while at != NO_PAGE {
        assert!(listed.insert(at));
        assert_eq!(pages.header(at).prev, prev);
        (prev, at) = (at, pages.header(at).next);
    }
    for (page, count) in counts {
        assert_eq!(pages.header(page).used, count);
        assert_eq!(listed.contains(&page), count < class.capacity);
    }
}

/// Does what `steps` say: an even number allocates, an odd one frees one of what is there.
fn run(size: u16, nr_pages: usize, steps: &[u16]) {
    let mut pages = Fake::new(nr_pages);
    let mut class = Class::new(size);
    let mut used = BTreeSet::new();
    for step in steps {
        if step % 2 == 0 || used.is_empty() {
            match class.alloc(&mut pages) {
                Some((page, offset)) => {
                    assert!(offset >= HEADER && offset + size <= PAGE && (offset - HEADER).is_multiple_of(size));
                    assert!(used.insert((page, offset)), "given twice");
                }
                None => assert_eq!(used.len(), nr_pages * usize::from(class.capacity), "refused though there is room"),
            }
        } else {
            let object = *used.iter().nth(usize::from(step / 2) % used.len()).expect("not empty");
            used.remove(&object);
            class.free(&mut pages, object.0, object.1);
        }
        check(&class, &pages, &used);
    }
    for (page, offset) in core::mem::take(&mut used) {
        class.free(&mut pages, page, offset);
    }
    check(&class, &pages, &used);
    assert_eq!(pages.left, nr_pages);
}

proptest! {
    #[test]
    fn pages_hold_objects_as_long_as_there_are_any(
        size in prop::sample::select(std::vec![16u16, 448, 1344, 2016, 4032]),
        nr_pages in 0usize..6,
        steps in prop::collection::vec(any::<u16>(), 0..300),
    ) {
        run(size, nr_pages, &steps);
    }
}

#[test]
fn a_page_comes_and_goes_with_its_only_object() {
    let (mut pages, mut class) = (Fake::new(1), Class::new(64));
    for _ in 0..1000 {
        let (page, offset) = class.alloc(&mut pages).expect("there is a page");
        assert_eq!(class.nr_pages(), 1);
        class.free(&mut pages, page, offset);
        assert_eq!((class.nr_pages(), pages.left), (0, 1));
    }
}

#[test]
fn what_lives_longer_keeps_only_its_own_page() {
    let (mut pages, mut class) = (Fake::new(100), Class::new(1344));
    let old = class.alloc(&mut pages).expect("there is a page");
    let young: Vec<_> = (0..90).map(|_| class.alloc(&mut pages).expect("there is a page")).collect();
    assert_eq!(class.nr_pages(), 31);
    young.into_iter().for_each(|(page, offset)| class.free(&mut pages, page, offset));
    assert!(pages.taken.keys().eq([&old.0]));
    // Its page has room again, and that is used first.
    assert_eq!(class.alloc(&mut pages).expect("there is room").0, old.0);
}
