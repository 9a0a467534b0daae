//! A disk: the guest's ring, the journal, and the back end of the moment.

use super::front::FrontRing;
use super::journal::Journal;
use super::pool::{PageNr, Pool};
use super::request::{decode, Answer, Kind, Offers, Request, Segment, Slot, DIRECT_SEGMENTS, MAX_SEGMENTS, WORDS};
use super::run::{Name, Run};
use super::shares::Turns;
use crate::grants::{Frames, Grants};
use crate::page::SharedPage;
use crate::ring::{BackRing, RingError};
use alloc::boxed::Box;
use alloc::vec::Vec;
use xen_abi::io::blkif::*;

/// What is done for a request beside copying, in bytes that could be copied meanwhile.
const EACH: u32 = 1 << 10;
/// So long after an error of its back end's a guest is told of it, in ns, if that back end is still there. One that is about to die answers
/// with errors before: its device was taken away, or does not work as it should.
pub const DOUBT_NS: u64 = 5_000_000_000;
/// Segments that a slot has room for.
#[allow(clippy::cast_possible_truncation, reason = "eleven")]
const DIRECT: u8 = DIRECT_SEGMENTS as u8;
/// Pages that a disk has at least: those of the longest request.
pub const MIN_PAGES: usize = MAX_SEGMENTS;
/// And at most: those of a ring full of the longest requests.
pub const MAX_PAGES: usize = MAX_SEGMENTS * BLKIF_RING_SIZE as usize;

/// A page that bytes go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page<F> {
    /// Its grant to the back end.
    pub gref: u32,
    /// The frame.
    pub frame: F,
}

/// What a disk has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reads that were answered without an error.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes and barriers.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Sectors that were read.
    pub read_sectors: u64,
    /// Sectors that were written.
    pub written_sectors: u64,
    /// Requests that were answered with an error, whoever's it was.
    pub errors: u64,
    /// What back ends were asked for: requests of the guest's that are neighbours go together, long ones go in several.
    pub passed_on: u64,
    /// Requests that went together with one before them.
    pub merged: u64,
    /// Requests that were passed on once more, to another back end.
    pub repeated: u64,
    /// Answers of back ends that nobody had waited for.
    pub bad_answers: u64,
    /// Back ends that have written into their ring what cannot be.
    pub bad_rings: u64,
}

/// What [`Disk::serve`] leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Served {
    /// There is more to do, for which there was no time.
    pub more: bool,
    /// The guest wants an event.
    pub tell_guest: bool,
    /// The back end wants an event.
    pub tell_back: bool,
    /// Then there is something to do, in ns, whether or not somebody notifies.
    pub look_at: Option<u64>,
}

/// Pages that cannot be used: too few, too many, or, while something waits to be done, not as many as hold it, or some of those in another
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPages;

/// A back end, and the pages that it may use.
struct Link<P, F> {
    ring: FrontRing<P, WORDS, BLKIF_RING_SIZE>,
    pages: Box<[Page<F>]>,
    /// Segments of a run at most.
    max_segments: u8,
    /// Those of the run that is passed on.
    list: [[u32; 2]; MAX_SEGMENTS],
}

/// A disk. `P`: pages of rings, `F`: frames of the guest's, and those that bytes go through.
pub struct Disk<P, F> {
    ring: BackRing<P, WORDS, BLKIF_RING_SIZE>,
    offers: Offers,
    journal: Journal,
    link: Option<Link<P, F>>,
    /// The frames of the pages, since the first back end.
    frames: Vec<F>,
    pool: Pool,
    /// What it has done.
    pub stats: Stats,
    dead: Option<RingError>,
    /// There is no back end, and nobody waits for one.
    has_given_up: bool,
    /// What counted for so much is answered, and nobody was told yet.
    ended: u32,
}

impl<P: SharedPage, F: Copy + Default + Ord> Disk<P, F> {
    /// Takes up the guest's ring in `page`. Nothing is taken out of it as long as there is no back end.
    pub fn connect(page: P, offers: Offers) -> Result<Self, RingError> {
        Ok(Disk {
            ring: BackRing::attach(page)?,
            offers,
            journal: Journal::default(),
            link: None,
            frames: Vec::new(),
            pool: Pool::default(),
            stats: Stats::default(),
            dead: None,
            has_given_up: false,
            ended: 0,
        })
    }

    /// The page of the guest's ring.
    pub fn page(&self) -> &P {
        self.ring.page()
    }

    /// The page of the back end's ring, if there is a back end.
    pub fn back_page(&self) -> Option<&P> {
        self.link.as_ref().map(|link| link.ring.page())
    }

    /// The pages that bytes go through, if there is a back end.
    pub fn pages(&self) -> &[Page<F>] {
        self.link.as_ref().map_or(&[], |link| &link.pages)
    }

    /// What ended it, if the guest has written into its ring what cannot be. What was taken before is still done.
    pub fn fatal(&self) -> Option<RingError> {
        self.dead
    }

    /// Pages that nothing goes through now.
    pub fn nr_free_pages(&self) -> usize {
        self.pool.nr_free()
    }

    /// Requests that were taken and are not answered.
    pub fn waiting(&self) -> u8 {
        self.journal.len()
    }

    /// A back end is there, which may map `page` and `pages`; nobody else uses them any more. A request may have `max_segments` segments, or
    /// 11 if that is less. What the one before has not answered is done by this one. As long as something waits, there must be as many frames as the one before had, which the caller still holds: the same
    /// ones, or others, into which is copied what is to be written.
    pub fn attach(
        &mut self,
        page: P,
        pages: Box<[Page<F>]>,
        max_segments: u16,
        frames: &impl Frames<F>,
    ) -> Result<(), BadPages> {
        if !(MIN_PAGES..=MAX_PAGES).contains(&pages.len()) {
            return Err(BadPages);
        }
        let same = |(old, new): (&F, &Page<F>)| *old == new.frame;
        let waits = self.journal.len() > 0;
        if waits && self.frames.len() != pages.len() {
            return Err(BadPages);
        }
        if !waits || !self.frames.iter().zip(&pages).all(same) {
            let mut held = Vec::new();
            held.try_reserve_exact(pages.len()).map_err(|_| BadPages)?;
            held.extend(pages.iter().map(|page| page.frame));
            if waits && have_common(&self.frames, &held)? {
                return Err(BadPages);
            }
            if !waits {
                self.pool = Pool::new(pages.len()).map_err(|_| BadPages)?;
            }
            // They may have been another disk's, of which this back end is to know nothing.
            held.iter().for_each(|frame| frames.write(*frame, 0, &[0; 4096]));
            for nr in self.journal.written_pages() {
                frames.copy(frame_of(&self.frames, nr), 0, frame_of(&held, nr), 0, 4096);
            }
            self.frames = held;
        }
        self.detach();
        self.pool.begin_again();
        self.has_given_up = false;
        #[allow(clippy::cast_possible_truncation, reason = "at most MAX_SEGMENTS")]
        let max_segments = usize::from(max_segments).clamp(DIRECT_SEGMENTS, MAX_SEGMENTS) as u8;
        let list = [[0; 2]; MAX_SEGMENTS];
        self.link = Some(Link { ring: FrontRing::new(page), pages, max_segments, list });
        Ok(())
    }

    /// The back end is gone, with what it has not answered; its ring and pages are not touched any more. `false`: there was none.
    pub fn detach(&mut self) -> bool {
        let nr_repeated = self.journal.begin_again(|page| self.pool.give(page));
        self.stats.repeated += u64::from(nr_repeated);
        self.link.take().is_some()
    }

    /// What waits, and what comes, is answered with errors as long as there is no back end. If not, it waits. What was before.
    pub fn give_up(&mut self, is_wanted: bool) -> bool {
        core::mem::replace(&mut self.has_given_up, is_wanted && self.link.is_none())
    }

    /// Whether it has.
    pub fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    /// Does what there is to do: takes the back end's answers and answers the guest, takes requests and passes them on, until nothing
    /// is left or `budget` (bytes that are copied, and something for each request) is spent. `turns`: among the disks that share the back end's domain. `now`: in ns.
    pub fn serve<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        turns: &mut impl Turns,
        now: &impl Fn() -> u64,
        budget: &mut u32,
    ) -> Served {
        let mut served = Served::default();
        let had_link = self.link.is_some();
        loop {
            self.collect(grants, frames, now, budget);
            if self.ended > 0 {
                turns.ended(core::mem::take(&mut self.ended));
            }
            self.believe(grants, frames, now, budget);
            if self.has_given_up {
                self.answer_all(grants, frames, budget);
            }
            self.take_all(grants, frames, budget);
            served.tell_back |= self.go_on(turns, frames);
            if *budget == 0 {
                served.more = self.link.is_some() || self.has_given_up;
                break;
            }
            if !self.ask_for_events() {
                break;
            }
            spend(budget, 0);
        }
        if had_link && self.link.is_none() {
            turns.abandoned();
        }
        served.tell_guest = self.ring.push();
        served.look_at = self.journal.first_doubted().map(|(_, until)| until);
        served
    }

    /// Passes on what may be passed on now, since it is this disk's turn. `true`: the back end wants an event.
    pub fn go_on(&mut self, turns: &mut impl Turns, frames: &impl Frames<F>) -> bool {
        self.pass_on(turns, frames);
        self.link.as_mut().is_some_and(|link| link.ring.push())
    }

    /// Answers of the back end's.
    fn collect<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        now: &impl Fn() -> u64,
        budget: &mut u32,
    ) {
        while *budget > 0 {
            let Some(link) = self.link.as_mut() else { return };
            match link.ring.available() {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => return self.lose_link(),
            }
            let answer = Answer::decode(link.ring.take());
            spend(budget, 0);
            match self.journal.answered(Name::decode(answer.id), answer.status.min(BLKIF_RSP_OKAY)) {
                Some((ended, mut done)) => {
                    self.ended += ended.cost;
                    ended.list.into_iter().for_each(|page| self.pool.give(page));
                    while done != 0 {
                        #[allow(clippy::cast_possible_truncation, reason = "at most 31")]
                        let place = done.trailing_zeros() as u8;
                        done &= done - 1;
                        self.all_answered(place, grants, frames, now, budget);
                    }
                }
                None => self.stats.bad_answers += 1,
            }
        }
    }

    /// The back end has answered all of a request.
    fn all_answered<G: Grants<Frame = F>>(
        &mut self,
        place: u8,
        grants: &mut G,
        frames: &impl Frames<F>,
        now: &impl Fn() -> u64,
        budget: &mut u32,
    ) {
        if !self.journal.get(place).is_some_and(|entry| entry.has_failed()) {
            self.complete(place, grants, frames, budget);
        } else if !self.journal.try_alone(place) {
            self.journal.doubt(place, now().saturating_add(DOUBT_NS));
        }
    }

    /// Errors that the back end has outlived are its medium's: the guest is told.
    fn believe<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        now: &impl Fn() -> u64,
        budget: &mut u32,
    ) {
        while let Some((place, _)) = self.journal.first_doubted().filter(|(_, until)| *budget > 0 && *until <= now()) {
            spend(budget, 0);
            self.complete(place, grants, frames, budget);
        }
    }

    /// All that waits is answered with errors.
    fn answer_all<G: Grants<Frame = F>>(&mut self, grants: &mut G, frames: &impl Frames<F>, budget: &mut u32) {
        while let Some(place) = self.journal.oldest() {
            self.journal.fail(place);
            self.complete(place, grants, frames, budget);
        }
    }

    /// All that there was to do for a request is done: the guest is answered.
    fn complete<G: Grants<Frame = F>>(&mut self, place: u8, grants: &mut G, frames: &impl Frames<F>, budget: &mut u32) {
        let Some(entry) = self.journal.get(place) else { return };
        let request = &entry.request;
        let status = match (request.kind, entry.status) {
            (Kind::Read, BLKIF_RSP_OKAY) => {
                spend(budget, request.bytes());
                let held = request.segments().iter().zip(entry.pages.iter().map(|nr| frame_of(&self.frames, *nr)));
                copy_out(held, grants, frames)
            }
            (_, BLKIF_RSP_OKAY) => BLKIF_RSP_OKAY,
            _ if entry.has_failed() => BLKIF_RSP_ERROR,
            _ => BLKIF_RSP_EOPNOTSUPP,
        };
        self.stats.count(request, status);
        let answer = Answer { id: request.id, operation: request.kind.operation(), status };
        // As many as were reserved: there is room.
        entry.pages[..request.segments().len()].iter().for_each(|page| self.pool.give(*page));
        self.journal.remove(place);
        self.answer(answer);
    }

    /// Requests of the guest's.
    fn take_all<G: Grants<Frame = F>>(&mut self, grants: &mut G, frames: &impl Frames<F>, budget: &mut u32) {
        while *budget > 0 && (self.link.is_some() || self.has_given_up) && self.dead.is_none() {
            match self.ring.available() {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => {
                    self.dead = Some(error);
                    return;
                }
            }
            if !self.take(grants, frames, budget) {
                return;
            }
        }
    }

    /// The next request. `false`: it has to wait for pages.
    fn take<G: Grants<Frame = F>>(&mut self, grants: &mut G, frames: &impl Frames<F>, budget: &mut u32) -> bool {
        spend(budget, 0);
        let mut slot = decode(&self.ring.request(0), self.offers);
        if self.has_given_up {
            return self.refuse(slot.refused());
        }
        if let Slot::Indirect(indirect) = slot {
            slot = read_list(indirect, grants, frames);
        }
        let request = match &slot {
            Slot::Whole(request) => request,
            Slot::Indirect(indirect) => return self.refuse(indirect.refused()),
            Slot::Refused(answer) => return self.refuse(*answer),
        };
        let nr = request.segments().len();
        let mut pages = [0; MAX_SEGMENTS];
        if !self.pool.take(&mut pages[..nr]) {
            return false;
        }
        let refused = request.refused();
        if request.is_write() {
            spend(budget, request.bytes());
            let held = request.segments().iter().zip(pages.iter().map(|nr| frame_of(&self.frames, *nr)));
            if !copy_in(held, grants, frames) {
                pages[..nr].iter().for_each(|page| self.pool.give(*page));
                return self.refuse(refused);
            }
        }
        if !self.journal.add(request, &pages[..nr]) {
            debug_assert!(false, "more requests than the ring has slots");
            pages[..nr].iter().for_each(|page| self.pool.give(*page));
            return self.refuse(refused);
        }
        self.ring.consume(1);
        true
    }

    /// A request that is answered at once. (`true`, for [`Disk::take`]: the next may be taken.)
    fn refuse(&mut self, answer: Answer) -> bool {
        self.stats.errors += 1;
        self.ring.consume(1);
        self.answer(answer);
        true
    }

    fn answer(&mut self, answer: Answer) {
        let is_room = self.ring.respond(answer.encode());
        debug_assert!(is_room, "more answers than requests");
    }

    /// What the back end may have now, it gets, as far as its ring goes and the others that share its domain let it.
    fn pass_on(&mut self, turns: &mut impl Turns, frames: &impl Frames<F>) {
        let Some(link) = self.link.as_mut() else { return };
        let is_counted = turns.is_counted();
        while self.journal.has_unsent() && link.ring.free() > 0 && (!is_counted || turns.may_begin()) {
            // Without a page for their list there may be no more of them than a slot has room for.
            let max_segments = if self.pool.nr_free() > 0 { link.max_segments } else { DIRECT };
            let Some(run) = next_run(&mut self.journal, is_counted, max_segments, link) else { return };
            let list = &link.list[..usize::from(run.nr_segments)];
            let words = if list.len() <= DIRECT_SEGMENTS {
                run.direct(list, self.journal.get(run.first).map(|entry| &entry.request))
            } else if let Some(page) = self.pool.take_last() {
                self.journal.list_in(run.name, page);
                write_list(list, frame_of(&self.frames, page), frames);
                run.indirect(gref_of(&link.pages, page))
            } else {
                debug_assert!(false, "a list has a page");
                return;
            };
            let is_room = link.ring.put(words);
            debug_assert!(is_room, "it was looked for");
            if is_counted {
                turns.began(run.cost);
            }
            self.stats.passed_on += 1;
            self.stats.merged += u64::from(run.nr_requests) - 1;
        }
    }

    /// Before it is left alone. `true`: there is something to do instead.
    fn ask_for_events(&mut self) -> bool {
        let has_answers = match &self.link {
            Some(link) => link.ring.ask_for_event(),
            None if self.has_given_up => Ok(false),
            None => return false,
        };
        match has_answers {
            Ok(true) => return true,
            Ok(false) => {}
            Err(_) => {
                self.lose_link();
                return false;
            }
        }
        // Who has to wait for pages is looked at when there are answers.
        if self.dead.is_some() || matches!(self.ring.available(), Ok(1..)) {
            return false;
        }
        match self.ring.ask_for_event(1) {
            Ok(has_requests) => has_requests,
            Err(error) => {
                self.dead = Some(error);
                false
            }
        }
    }

    fn lose_link(&mut self) {
        self.stats.bad_rings += 1;
        self.detach();
    }
}

impl Stats {
    fn count(&mut self, request: &Request, status: i16) {
        let sectors = u64::from(request.bytes() / SECTOR_BYTES);
        match request.kind {
            _ if status != BLKIF_RSP_OKAY => self.errors += 1,
            Kind::Read => {
                self.reads += 1;
                self.read_sectors += sectors;
            }
            Kind::Write => {
                self.writes += 1;
                self.written_sectors += sectors;
            }
            Kind::Flush | Kind::Barrier => {
                self.flushes += 1;
                self.written_sectors += sectors;
            }
            Kind::Discard => self.discards += 1,
        }
    }
}

fn spend(budget: &mut u32, bytes: u32) {
    *budget = budget.saturating_sub(EACH.saturating_add(bytes));
}

/// Whether two lists have a frame in common. Errors: no memory.
fn have_common<F: Copy + Ord>(some: &[F], others: &[F]) -> Result<bool, BadPages> {
    let mut sorted = Vec::new();
    sorted.try_reserve_exact(some.len()).map_err(|_| BadPages)?;
    sorted.extend_from_slice(some);
    sorted.sort_unstable();
    Ok(others.iter().any(|frame| sorted.binary_search(frame).is_ok()))
}

/// The frame of a page; none that can be used, if there is no such page.
fn frame_of<F: Copy + Default>(frames: &[F], nr: PageNr) -> F {
    frames.get(usize::from(nr)).copied().unwrap_or_default()
}

/// Reads the list of an indirect request's segments.
fn read_list<G: Grants>(indirect: super::request::Indirect, grants: &mut G, frames: &impl Frames<G::Frame>) -> Slot {
    let mut list = [0; MAX_SEGMENTS * 8];
    let list = &mut list[..indirect.list_bytes()];
    if grants.use_once(indirect.gref, false, |frame| frames.read(frame, 0, list)).is_err() {
        return Slot::Refused(indirect.refused());
    }
    indirect.with_list(list)
}

/// Copies what is to be written out of the guest's pages. `false`: one of its grants does not hold.
fn copy_in<'a, G: Grants>(
    segments: impl Iterator<Item = (&'a Segment, G::Frame)>,
    grants: &mut G,
    frames: &impl Frames<G::Frame>,
) -> bool {
    for (segment, page) in segments {
        let copy = |frame| frames.copy(frame, segment.offset(), page, segment.offset(), segment.len());
        if grants.use_once(segment.gref, false, copy).is_err() {
            return false;
        }
    }
    true
}

/// Copies what was read into the guest's pages. The status: an error if one of its grants does not hold.
fn copy_out<'a, G: Grants>(
    segments: impl Iterator<Item = (&'a Segment, G::Frame)>,
    grants: &mut G,
    frames: &impl Frames<G::Frame>,
) -> i16 {
    for (segment, page) in segments {
        let copy = |frame| frames.copy(page, segment.offset(), frame, segment.offset(), segment.len());
        if grants.use_once(segment.gref, true, copy).is_err() {
            return BLKIF_RSP_ERROR;
        }
    }
    BLKIF_RSP_OKAY
}

/// The grant of a page. A page that is in the journal is there.
fn gref_of<F>(pages: &[Page<F>], nr: PageNr) -> u32 {
    pages.get(usize::from(nr)).map_or(u32::MAX, |page| page.gref)
}

/// What may be passed on next, with at most so many segments, which are the first of the link's list then.
#[inline]
fn next_run<P, F>(journal: &mut Journal, is_counted: bool, max_segments: u8, link: &mut Link<P, F>) -> Option<Run> {
    let mut places = link.list.iter_mut();
    journal.next_run(max_segments, is_counted, |segment, nr| {
        if let Some(place) = places.next() {
            *place = segment.encode(gref_of(&link.pages, nr));
        }
    })
}

/// Writes segments where an indirect request has them.
fn write_list<F>(list: &[[u32; 2]], page: F, frames: &impl Frames<F>) {
    let mut bytes = [0; MAX_SEGMENTS * 8];
    for (to, from) in bytes.chunks_exact_mut(4).zip(list.as_flattened()) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    frames.write(page, 0, &bytes[..list.len() * 8]);
}

#[cfg(test)]
mod tests;
