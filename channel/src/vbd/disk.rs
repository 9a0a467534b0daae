//! A disk: the guest's ring, the journal, and the back end of the moment.

use super::copy::{copy_in, copy_out, frame_of, read_list, write_list};
use super::ends::{Burst, End, Quiet};
use super::front::FrontRing;
use super::journal::{Entry, Journal};
use super::mark::Mark;
use super::pool::{PageNr, Pool};
use super::request::{halves, Answer, Kind, Offers, Segment, Slot, DIRECT_SEGMENTS, MAX_SEGMENTS, WORDS};
use super::run::{Name, Run};
use super::shares::{Belief, Turns};
use super::stats::Stats;
use crate::grants::{Frames, Grants};
use crate::page::SharedPage;
use crate::ring::{BackRing, RingError};
use alloc::boxed::Box;
use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use xen_abi::io::blkif::*;

/// What is done for a request beside copying, in bytes that could be copied meanwhile.
const EACH: u32 = 1 << 10;
/// So long after it was not known whether to believe a back end that is asked again, in ns.
const WORD_NS: u64 = 50_000;
/// So long after an error of its back end's a guest is told of it, in ns, if that back end is still there. One that is
/// about to die answers with errors before: its device was taken away, or does not work as it should.
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

/// What [`Disk::serve`] leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Served {
    /// There is more to do, for which there was no time.
    pub more: bool,
    /// Among it are answers of the back end's.
    pub has_answers: bool,
    /// The guest wants an event.
    pub tell_guest: bool,
    /// The back end wants an event.
    pub tell_back: bool,
    /// Then there is something to do, in ns, whether or not somebody notifies.
    pub look_at: Option<u64>,
    /// Guest or back end notify only of one of their next: it is to be looked at within
    /// [`LATE_NS`](crate::pace::LATE_NS).
    pub is_late: bool,
}

/// How a disk was left alone.
#[derive(PartialEq, Eq)]
enum Left {
    /// It was not: there is something to do.
    Work,
    /// As in [`Served::is_late`].
    Late,
    /// Whoever does something notifies.
    Asleep,
}

/// Pages that cannot be used: too few, too many, or, while something waits to be done, not as many as hold it, or some
/// of those in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPages;

/// A back end, and the pages that it may use.
struct Link<P, F> {
    ring: FrontRing<P, WORDS, BLKIF_RING_SIZE>,
    pages: Box<[Page<F>]>,
    /// Since when it is there, in ns.
    since: u64,
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
    /// What is in a page until a read has brought something.
    mark: Mark,
    /// What it has done.
    pub stats: Stats,
    dead: Option<RingError>,
    /// The last back end has said of a read that it is done, which has brought nothing.
    was_empty: bool,
    /// There is no back end, and nobody waits for one.
    has_given_up: bool,
    /// The guest, and the back end.
    guest_end: End,
    back_end: End,
    burst: Burst,
    quiet: Quiet,
    /// What counted for so much is answered, and nobody was told yet.
    ended: u32,
}

impl<P: SharedPage, F: Copy + Default + Ord> Disk<P, F> {
    /// Takes up the guest's ring in `page`. Nothing is taken out of it as long as there is no back end. `secret`: a
    /// number that no guest can guess.
    pub fn connect(page: P, offers: Offers, secret: u64) -> Result<Self, RingError> {
        Ok(Disk {
            ring: BackRing::attach(page)?,
            offers,
            journal: Journal::default(),
            link: None,
            frames: Vec::new(),
            pool: Pool::default(),
            mark: Mark::new(secret),
            stats: Stats::default(),
            dead: None,
            was_empty: false,
            has_given_up: false,
            guest_end: End::default(),
            back_end: End::default(),
            burst: Burst::default(),
            quiet: Quiet::default(),
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
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn nr_free_pages(&self) -> usize {
        self.pool.nr_free()
    }

    /// Requests that were taken and are not answered.
    pub fn waiting(&self) -> u8 {
        self.journal.len()
    }

    /// For how long a request has looked lost, at a look now and at those before (`lost.rs`), in ns; 0 if none does.
    pub fn overdue_for(&mut self, now: u64) -> u64 {
        self.journal.overdue_for(now)
    }

    /// Discards are passed on in parts of so many sectors.
    #[cfg(any(test, feature = "fuzzing"))]
    pub fn cut_discards(&mut self, sectors: u64) {
        self.journal.discard_sectors = sectors;
    }

    /// For how long the oldest request has waited whose answer is not there, since this back end is there, in ns; 0 if
    /// there is none. It need not have been passed on.
    pub fn oldest_for(&self, now: u64) -> u64 {
        let since = self.journal.oldest_unanswered().zip(self.link.as_ref());
        since.map_or(0, |(taken_at, link)| now.saturating_sub(taken_at.max(link.since)))
    }

    /// A back end is there, which may map `page` and `pages`; nobody else uses them any more. A request may have
    /// `max_segments` segments, or 11 if that is less. What the one before has not answered is done by this one. As
    /// long as something waits, there must be as many frames as the one before had, which the caller still holds: the
    /// same ones, or others. What is to be written is read from the guest's pages once more: a back end that is gone,
    /// or its device, may have written over the copy. The copy is used of what the guest does not grant any more.
    /// `now`: in ns.
    pub fn attach<G: Grants<Frame = F>>(
        &mut self,
        page: P,
        pages: Box<[Page<F>]>,
        max_segments: u16,
        grants: &mut G,
        frames: &impl Frames<F>,
        now: u64,
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
            for nr in self.journal.writes().flat_map(Entry::pages) {
                frames.copy(frame_of(&self.frames, *nr), 0, frame_of(&held, *nr), 0, 4096);
            }
            self.frames = held;
        }
        for entry in self.journal.writes() {
            for (segment, nr) in entry.request.segments().iter().zip(entry.pages()) {
                let _ = copy_in(segment, frame_of(&self.frames, *nr), grants, frames);
            }
        }
        self.detach();
        self.pool.begin_again();
        (self.has_given_up, self.was_empty) = (false, false);
        self.back_end = End::default();
        #[allow(clippy::cast_possible_truncation, reason = "at most MAX_SEGMENTS")]
        let max_segments = usize::from(max_segments).clamp(DIRECT_SEGMENTS, MAX_SEGMENTS) as u8;
        let list = [[0; 2]; MAX_SEGMENTS];
        self.link = Some(Link { ring: FrontRing::new(page), pages, since: now, max_segments, list });
        Ok(())
    }

    /// The back end is gone, with what it has not answered; its ring and pages are not touched any more. `false`: there
    /// was none.
    pub fn detach(&mut self) -> bool {
        let nr_repeated = self.journal.begin_again(|page| self.pool.give(page));
        self.stats.repeated += u64::from(nr_repeated);
        self.link.take().is_some()
    }

    /// What waits, and what comes, is answered with errors as long as there is no back end. If not, it waits. What was
    /// before.
    pub fn give_up(&mut self, is_wanted: bool) -> bool {
        core::mem::replace(&mut self.has_given_up, is_wanted && self.link.is_none())
    }

    /// Whether it was a read that brought nothing that ended the last back end.
    pub fn was_empty(&self) -> bool {
        self.was_empty
    }

    /// Whether the back end has answered something with an error, of which the guest is not told yet.
    pub fn has_doubts(&self) -> bool {
        self.journal.first_doubted().is_some()
    }

    /// Whether it has.
    pub fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    /// Does what there is to do: takes the back end's answers and answers the guest, takes requests and passes them on,
    /// until nothing is left or `budget` (bytes that are copied, and something for each request) is spent. `turns`:
    /// among the disks that share the back end's domain. `now`: in ns. `may_be_late`: it can be looked at soon though
    /// nobody notifies.
    pub fn serve<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        turns: &mut impl Turns,
        now: &impl Fn() -> u64,
        budget: &mut u32,
        may_be_late: &impl Fn() -> bool,
    ) -> Served {
        let mut served = Served::default();
        let had_link = self.link.is_some();
        let mut again_at = None;
        loop {
            let is_known = self.collect(grants, frames, turns, now, budget);
            if self.ended > 0 {
                turns.ended(core::mem::take(&mut self.ended));
            }
            self.believe(grants, frames, now, budget);
            if self.has_given_up {
                self.answer_all(grants, frames, budget);
            }
            let lacks_pages = !self.take_all(grants, frames, now, budget);
            served.tell_back |= self.go_on(turns, frames);
            if !is_known {
                again_at = Some(now().saturating_add(WORD_NS));
                break;
            }
            if *budget == 0 {
                served.more = self.link.is_some() || self.has_given_up;
                let answers = self.link.as_ref().map(|link| link.ring.available());
                served.has_answers = matches!(answers, Some(Ok(1..)));
                break;
            }
            let left = self.ask_for_events(lacks_pages, now, may_be_late);
            served.is_late = left == Left::Late;
            if left != Left::Work {
                break;
            }
            spend(budget, 0);
        }
        if had_link && self.link.is_none() {
            turns.abandoned();
        }
        served.tell_guest = self.ring.push();
        let doubted = self.journal.first_doubted().map(|(_, until)| until);
        served.look_at = doubted.into_iter().chain(again_at).min();
        served
    }

    /// Passes on what may be passed on now, since it is this disk's turn. `true`: the back end wants an event.
    pub fn go_on(&mut self, turns: &mut impl Turns, frames: &impl Frames<F>) -> bool {
        self.pass_on(turns, frames);
        self.link.as_mut().is_some_and(|link| link.ring.push())
    }

    /// Answers of the back end's. `false`: it is not known yet whether the next ones are to be believed.
    fn collect<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        turns: &impl Turns,
        now: &impl Fn() -> u64,
        budget: &mut u32,
    ) -> bool {
        let mut believed = 0;
        while *budget > 0 {
            let Some(link) = self.link.as_mut() else { return true };
            let Ok(available) = link.ring.available() else {
                self.lose_link();
                return true;
            };
            if available == 0 {
                return true;
            }
            if believed == 0 {
                // After they were seen: what makes them doubtful has come before them.
                match turns.belief() {
                    Belief::Yes => believed = available,
                    Belief::NotYet => return false,
                    Belief::No => {
                        self.detach();
                        return true;
                    }
                }
            }
            believed -= 1;
            let answer = Answer::decode(link.ring.take());
            spend(budget, 0);
            match self.journal.answered(Name::decode(answer.id), answer.status.min(BLKIF_RSP_OKAY)) {
                Some((ended, mut done)) => {
                    self.ended += ended.cost;
                    self.stats.answered += 1;
                    ended.list.into_iter().for_each(|page| self.pool.give(page));
                    while done != 0 {
                        #[allow(clippy::cast_possible_truncation, reason = "at most 31")]
                        let place = done.trailing_zeros() as u8;
                        done &= done - 1;
                        if !self.all_answered(place, grants, frames, now, budget) {
                            return true;
                        }
                    }
                }
                None => self.stats.bad_answers += 1,
            }
        }
        true
    }

    /// The back end has answered all of a request. `false`: it is no back end any more.
    fn all_answered<G: Grants<Frame = F>>(
        &mut self,
        place: u8,
        grants: &mut G,
        frames: &impl Frames<F>,
        now: &impl Fn() -> u64,
        budget: &mut u32,
    ) -> bool {
        let Some(entry) = self.journal.get(place) else { return true };
        if entry.has_failed() {
            if !self.journal.try_alone(place) {
                self.journal.doubt(place, now().saturating_add(DOUBT_NS));
            }
        } else if self.is_empty_read(entry, frames) {
            self.stats.empty_reads += 1;
            self.was_empty = true;
            self.detach();
            return false;
        } else {
            self.complete(place, grants, frames, budget);
        }
        true
    }

    /// Whether a request was answered that was to read, and brought nothing.
    #[inline]
    fn is_empty_read(&self, entry: &Entry, frames: &impl Frames<F>) -> bool {
        let is_there = |(segment, nr): (&_, &PageNr)| self.mark.is_there(segment, frame_of(&self.frames, *nr), frames);
        entry.request.kind == Kind::Read
            && entry.status == BLKIF_RSP_OKAY
            && entry.request.segments().iter().zip(&entry.pages).any(is_there)
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
        entry.pages().iter().for_each(|page| self.pool.give(*page));
        self.journal.remove(place);
        self.answer(answer);
    }

    /// Requests of the guest's. `false`: the next one has to wait for pages.
    fn take_all<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        now: &impl Fn() -> u64,
        budget: &mut u32,
    ) -> bool {
        if (self.link.is_none() && !self.has_given_up) || self.dead.is_some() || *budget == 0 {
            return true;
        }
        // What comes meanwhile is seen before the ring is left alone.
        let available = match self.ring.available() {
            Ok(0) => return true,
            Ok(available) => available,
            Err(error) => {
                self.dead = Some(error);
                return true;
            }
        };
        let taken_at = now();
        for _ in 0..available {
            if *budget == 0 {
                return true;
            }
            if !self.take(grants, frames, taken_at, budget) {
                return false;
            }
        }
        true
    }

    /// The next request. `false`: it has to wait for pages.
    fn take<G: Grants<Frame = F>>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<F>,
        taken_at: u64,
        budget: &mut u32,
    ) -> bool {
        spend(budget, 0);
        let Some(entry) = self.journal.vacant() else {
            debug_assert!(false, "more requests than the ring has slots");
            return false;
        };
        let is_whole = match entry.request.decode(self.ring.words(0), self.offers) {
            Slot::Refused(answer) => return self.refuse(answer),
            _ if self.has_given_up => false,
            Slot::Whole => true,
            Slot::Indirect(list) => read_list(list, &mut entry.request, grants, frames),
        };
        if !is_whole {
            let refused = entry.request.refused();
            return self.refuse(refused);
        }
        entry.taken_at = taken_at;
        let request = &entry.request;
        let Some(pages) = entry.pages.get_mut(..request.segments().len()) else { return false };
        if !self.pool.take(pages) {
            return false;
        }
        if request.is_write() {
            spend(budget, request.bytes());
            let mut held = request.segments().iter().zip(pages.iter().map(|nr| frame_of(&self.frames, *nr)));
            if !held.all(|(segment, page)| copy_in(segment, page, grants, frames)) {
                pages.iter().for_each(|page| self.pool.give(*page));
                let refused = request.refused();
                return self.refuse(refused);
            }
        }
        self.journal.add();
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
            let mark = |segment: &Segment, nr| self.mark.put(segment, frame_of(&self.frames, nr), frames);
            let Some(run) = next_run(&mut self.journal, is_counted, max_segments, link, mark) else { return };
            let list = &link.list[..usize::from(run.nr_segments)];
            let is_room = if run.kind == Kind::Discard {
                let (sectors, flag) = self.journal.part_of_discard(run.first);
                link.ring.put(run.direct(flag), &halves(sectors))
            } else if list.len() <= DIRECT_SEGMENTS {
                link.ring.put(run.direct(0), list.as_flattened())
            } else if let Some(page) = self.pool.take_one() {
                self.journal.list_in(run.name, page);
                write_list(list, frame_of(&self.frames, page), frames);
                link.ring.put(run.indirect(), &[0, gref_of(&link.pages, page)])
            } else {
                debug_assert!(false, "a list has a page");
                return;
            };
            debug_assert!(is_room, "it was looked for");
            if is_counted {
                turns.began(run.cost);
            }
            self.stats.passed_on += 1;
            self.stats.merged += u64::from(run.nr_requests) - 1;
        }
    }

    /// Before it is left alone. `lacks_pages`: the guest's next request has to wait for them.
    fn ask_for_events(&mut self, lacks_pages: bool, now: &impl Fn() -> u64, may_be_late: &impl Fn() -> bool) -> Left {
        if self.link.is_none() && !self.has_given_up {
            return Left::Asleep;
        }
        let rings = self.link.as_ref().map_or([0; 2], |link| [link.ring.rsp_cons(), link.ring.free()]);
        let rings = [rings[0], rings[1], self.ring.req_cons()];
        let mut after = |end: &End, at: u32, under_way, to_come| {
            let (ahead, pace) = end.ahead(at, under_way, now);
            let is_expected = to_come > ahead && (at != end.left_at || !self.quiet.is_long(rings, now()));
            let ahead = if is_expected { to_come } else { ahead };
            // Who is looked after by nobody else notifies of each.
            if ahead > 1 && !may_be_late() {
                (1, pace)
            } else {
                (ahead, pace)
            }
        };
        let mut is_late = false;
        if let Some(link) = &mut self.link {
            let at = link.ring.rsp_cons();
            let under_way = BLKIF_RING_SIZE - link.ring.free();
            // It most likely answers as many at one time as it has before, if it has so many to answer.
            let to_come = self.back_end.pace.usual().min(under_way / 2);
            let (ahead, pace) = after(&self.back_end, at, under_way, to_come);
            match link.ring.ask_for_event(ahead) {
                Ok(true) => return Left::Work,
                Ok(false) => {
                    self.back_end.left(at, pace);
                    is_late = ahead > 1;
                }
                Err(_) => {
                    self.lose_link();
                    return Left::Asleep;
                }
            }
        }
        // Who has to wait for pages is looked at when there are answers. Not so who has asked for something a moment
        // ago.
        if self.dead.is_none() && !lacks_pages {
            let under_way = if self.link.is_some() { self.journal.len().into() } else { 0 };
            let at = self.ring.req_cons();
            let mut burst = self.burst;
            let to_come = burst.taken(at.wrapping_sub(self.guest_end.left_at), under_way);
            let (ahead, pace) = after(&self.guest_end, at, under_way, to_come);
            match self.ring.ask_for_event(ahead) {
                Ok(true) => return Left::Work,
                Ok(false) => {
                    self.guest_end.left(at, pace);
                    self.burst = burst;
                    is_late |= ahead > 1;
                }
                Err(error) => self.dead = Some(error),
            }
        }
        if is_late {
            Left::Late
        } else {
            Left::Asleep
        }
    }

    fn lose_link(&mut self) {
        self.stats.bad_rings += 1;
        self.detach();
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
    let sorted = BinaryHeap::from(sorted).into_sorted_vec();
    Ok(others.iter().any(|frame| sorted.binary_search(frame).is_ok()))
}

/// The grant of a page. A page that is in the journal is there.
fn gref_of<F>(pages: &[Page<F>], nr: PageNr) -> u32 {
    pages.get(usize::from(nr)).map_or(u32::MAX, |page| page.gref)
}

/// What may be passed on next, with at most so many segments, which are the first of the link's list then. Those that
/// are to be read are marked.
#[inline]
fn next_run<P, F>(
    journal: &mut Journal,
    is_counted: bool,
    max_segments: u8,
    link: &mut Link<P, F>,
    mark: impl Fn(&Segment, PageNr),
) -> Option<Run> {
    let mut places = link.list.iter_mut();
    journal.next_run(max_segments, is_counted, |kind, segment, nr| {
        if let Some(place) = places.next() {
            *place = segment.encode(gref_of(&link.pages, nr));
        }
        if kind == Kind::Read {
            mark(&segment, nr);
        }
    })
}

#[cfg(test)]
mod tests;
