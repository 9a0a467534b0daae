//! Requests that were taken and are not yet answered.
//!
//! There are as many places as the guest's ring has slots. A request is passed on in *parts*, since a slot of the back end's ring takes
//! eleven segments and a request may have more. Each part has a [`Name`], which goes through hands that are not trusted: it is good
//! once, for the one back end that it was given to.
//!
//! The order in which parts may be passed on is decided here ([`Journal::next_part`]). Requests that nobody has answered have no order
//! among them, except that nothing passes a barrier, and a flush waits for the writes before it. So whatever a back end had done
//! of what it did not answer, all of it may be done once more by the next: reads and writes give the same again (their bytes are
//! kept), and who waits for an answer before he asks for more finds nothing done after that answer. A flush is done when all
//! that was answered before it was asked for is done, by whichever back end.

use super::request::{Kind, Segment};
use super::request::{Request, DIRECT_SEGMENTS, MAX_SEGMENTS};
use alloc::boxed::Box;
use xen_abi::io::blkif::{BLKIF_RSP_EOPNOTSUPP, BLKIF_RSP_ERROR, BLKIF_RSP_OKAY};

/// Requests at one time.
pub const PLACES: usize = xen_abi::io::blkif::BLKIF_RING_SIZE as usize;
const MAX_PARTS: usize = MAX_SEGMENTS.div_ceil(DIRECT_SEGMENTS);

/// Number of a page between guest and back end.
pub type PageNr = u16;

/// Names a part of a request to a back end: which back end (modulo 2^16), how many requests had the place before, the place, the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    life: u16,
    generation: u32,
    place: u8,
    part: u8,
}

impl Name {
    /// As the field of a ring.
    pub fn encode(self) -> u64 {
        u64::from(self.life) << 48
            | u64::from(self.generation) << 16
            | u64::from(self.place) << 8
            | u64::from(self.part)
    }

    /// Of such a field, which may name nothing.
    #[allow(clippy::cast_possible_truncation, reason = "its fields")]
    pub fn decode(id: u64) -> Name {
        Name { life: (id >> 48) as u16, generation: (id >> 16) as u32, place: (id >> 8) as u8, part: id as u8 }
    }
}

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// As it was taken.
    pub request: Request,
    /// For each of its segments the page that its bytes go through.
    pub pages: [PageNr; MAX_SEGMENTS],
    /// The worst that the back end has answered: 0, or a negative `BLKIF_RSP_*`.
    pub status: i16,
    generation: u32,
    /// Parts that are passed on.
    nr_sent: u8,
    /// Those of them that are not answered, a bit each.
    waiting: u8,
    /// Its answer is doubted until then, if it is.
    doubted_until: u64,
}

impl Entry {
    #[allow(clippy::cast_possible_truncation, reason = "at most MAX_PARTS")]
    fn nr_parts(&self) -> u8 {
        self.request.segments().len().div_ceil(DIRECT_SEGMENTS).max(1) as u8
    }

    fn is_sent(&self) -> bool {
        self.nr_sent == self.nr_parts()
    }

    /// It is answered with an error, and not because the medium cannot do such a thing.
    pub fn has_failed(&self) -> bool {
        let is_optional = matches!(self.request.kind, Kind::Flush | Kind::Barrier | Kind::Discard);
        self.status != BLKIF_RSP_OKAY && !(is_optional && self.status == BLKIF_RSP_EOPNOTSUPP)
    }

    fn is_done(&self) -> bool {
        self.is_sent() && self.waiting == 0
    }
}

/// A part of a request, to be passed on.
pub struct Part<'a> {
    /// How its answer names it.
    pub name: Name,
    /// The request.
    pub request: &'a Request,
    /// Its first sector.
    pub sector: u64,
    /// Its segments, and the pages that hold them.
    pub segments: &'a [Segment],
    /// See above.
    pub pages: &'a [PageNr],
}

/// What a back end's answer was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// That of a part of a request that has others.
    Part,
    /// The last one of the request in this place, which is to be completed.
    All(u8),
    /// One that nobody waits for.
    Nothing,
}

/// The journal of one disk.
pub struct Journal {
    places: Box<[Entry]>,
    /// Places in use, the oldest request's first.
    order: [u8; PLACES],
    nr: u8,
    /// Places not in use, a bit each.
    free: u32,
    /// Places whose answers are doubted, a bit each.
    doubted: u32,
    /// Back ends so far, modulo 2^16.
    life: u16,
}

const _: () = assert!(PLACES == 32 && MAX_PARTS <= 8);

impl Default for Journal {
    fn default() -> Self {
        let places = core::iter::repeat_n(Entry::default(), PLACES).collect();
        Journal { places, order: [0; PLACES], nr: 0, free: u32::MAX, doubted: 0, life: 0 }
    }
}

impl Journal {
    /// Requests that wait.
    pub fn len(&self) -> u8 {
        self.nr
    }

    /// Keeps a request whose bytes go through `pages`. `false`: no place is free, which cannot be if it was in the ring.
    #[must_use = "a request that is not kept is to be answered"]
    pub fn add(&mut self, request: &Request, pages: &[PageNr]) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "at most 32")]
        let at = self.free.trailing_zeros() as u8;
        let (Some(entry), Some(last)) =
            (self.places.get_mut(usize::from(at)), self.order.get_mut(usize::from(self.nr)))
        else {
            return false;
        };
        let generation = entry.generation.wrapping_add(1);
        *entry = Entry { request: *request, generation, ..Entry::default() };
        for (place, page) in entry.pages.iter_mut().zip(pages) {
            *place = *page;
        }
        *last = at;
        self.nr += 1;
        self.free &= !(1 << at);
        true
    }

    /// What waits in a place.
    pub fn get(&self, place: u8) -> Option<&Entry> {
        let is_used = u32::from(place) < u32::BITS && self.free >> place & 1 == 0;
        self.places.get(usize::from(place)).filter(|_| is_used)
    }

    /// The pages that hold what is to be written.
    pub fn written_pages(&self) -> impl Iterator<Item = PageNr> + '_ {
        let entries = self.order[..usize::from(self.nr)].iter().filter_map(|at| self.places.get(usize::from(*at)));
        let writes = entries.filter(|entry| entry.request.is_write());
        writes.flat_map(|entry| entry.pages.iter().copied().take(entry.request.segments().len()))
    }

    /// Forgets the request in a place.
    pub fn remove(&mut self, place: u8) {
        let order = &mut self.order[..usize::from(self.nr)];
        let Some(at) = order.iter().position(|p| *p == place) else { return };
        order.copy_within(at + 1.., at);
        self.nr -= 1;
        self.free |= 1 << place;
        self.doubted &= !(1 << place);
    }

    /// The request that has waited for the longest.
    pub fn oldest(&self) -> Option<u8> {
        self.order[..usize::from(self.nr)].first().copied()
    }

    /// Nobody does the request in a place any more.
    pub fn fail(&mut self, place: u8) {
        if let Some(entry) = self.places.get_mut(usize::from(place)) {
            entry.status = BLKIF_RSP_ERROR;
        }
    }

    /// All of the request in a place is answered, and the guest is told no earlier than `until`: perhaps another back end does better.
    pub fn doubt(&mut self, place: u8, until: u64) {
        if let Some(entry) = self.places.get_mut(usize::from(place)) {
            entry.doubted_until = until;
            self.doubted |= 1 << place;
        }
    }

    /// Of the answers that are doubted the first that is to be believed, and when.
    pub fn first_doubted(&self) -> Option<(u8, u64)> {
        if self.doubted == 0 {
            return None;
        }
        let doubted = self.order[..usize::from(self.nr)].iter().filter(|place| self.doubted >> **place & 1 == 1);
        let until = |place: &u8| self.places.get(usize::from(*place)).map(|entry| (*place, entry.doubted_until));
        doubted.filter_map(until).min_by_key(|(_, until)| *until)
    }

    /// A back end is gone, or another is there: all is to be passed on from the beginning, under new names. How many requests had been
    /// passed on, all or in part.
    pub fn begin_again(&mut self) -> u32 {
        self.life = self.life.wrapping_add(1);
        let mut nr = 0;
        for at in &self.order[..usize::from(self.nr)] {
            let Some(entry) = self.places.get_mut(usize::from(*at)) else { continue };
            nr += u32::from(entry.nr_sent > 0);
            (entry.nr_sent, entry.waiting, entry.status) = (0, 0, 0);
        }
        self.doubted = 0;
        nr
    }

    /// The next part that may be passed on now. [`Journal::sent`] is to follow, if it was.
    pub fn next_part(&self) -> Option<Part<'_>> {
        let (mut is_first, mut has_writes) = (true, false);
        for &place in &self.order[..usize::from(self.nr)] {
            let entry = self.places.get(usize::from(place))?;
            let may_go = match entry.request.kind {
                Kind::Barrier => is_first,
                Kind::Flush => !has_writes,
                Kind::Read | Kind::Write | Kind::Discard => true,
            };
            if may_go && !entry.is_sent() {
                return Some(self.part(place, entry));
            }
            if entry.request.kind == Kind::Barrier {
                return None;
            }
            is_first = false;
            has_writes |= entry.request.is_write();
        }
        None
    }

    fn part<'a>(&self, place: u8, entry: &'a Entry) -> Part<'a> {
        let all = entry.request.segments();
        let from = usize::from(entry.nr_sent) * DIRECT_SEGMENTS;
        let to = all.len().min(from + DIRECT_SEGMENTS);
        let before: u64 = all[..from].iter().map(|s| u64::from(s.sectors())).sum();
        Part {
            name: Name { life: self.life, generation: entry.generation, place, part: entry.nr_sent },
            request: &entry.request,
            // The whole is on the medium.
            sector: entry.request.sector + before,
            segments: &all[from..to],
            pages: &entry.pages[from..to],
        }
    }

    /// The part of this name, the last that [`Journal::next_part`] gave, is passed on.
    pub fn sent(&mut self, name: Name) {
        if let Some(entry) = self.places.get_mut(usize::from(name.place)) {
            debug_assert!(entry.nr_sent == name.part && entry.generation == name.generation);
            entry.nr_sent += 1;
            entry.waiting |= 1 << name.part;
        }
    }

    /// The back end has answered `name` with `status`: 0, or a negative number, the worst of which is kept.
    pub fn answered(&mut self, name: Name, status: i16) -> Answered {
        let is_its = name.life == self.life && self.get(name.place).is_some_and(|e| e.generation == name.generation);
        let bit = 1u8.checked_shl(name.part.into()).unwrap_or(0);
        let entry = self.places.get_mut(usize::from(name.place)).filter(|e| is_its && e.waiting & bit != 0);
        let Some(entry) = entry else { return Answered::Nothing };
        entry.waiting &= !bit;
        entry.status = entry.status.min(status);
        if entry.is_done() {
            Answered::All(name.place)
        } else {
            Answered::Part
        }
    }
}
