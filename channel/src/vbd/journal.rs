//! Requests that were taken and are not yet answered.
//!
//! There are as many places as the guest's ring has slots. Requests are passed on in *runs* ([`super::run`]), since a
//! slot of the back end's ring takes eleven segments and a request may have more, and since several requests for
//! neighbouring sectors, of one direction, go together in one.
//!
//! Which requests may be passed on is decided here ([`Journal::next_run`]), and in which order by [`super::sweep`].
//! Requests that nobody has answered have no order among them, except that nothing passes a barrier, and a flush waits
//! for the writes before it. So whatever a back end had done of what it did not answer, all of it may be done once more
//! by the next: reads and writes give the same again (their bytes are kept), and who waits for an answer before he asks
//! for more finds nothing done after that answer. A flush is done when all that was answered before it was asked for is
//! done, by whichever back end.
//!
//! An error of a run that several requests share may be due to any of them. Each is passed on once more then, in runs
//! of its own, so only who is at fault is answered with it.

use super::lost::Watch;
use super::order::Order;
use super::pool::PageNr;
use super::request::{Kind, Request, Segment, MAX_SEGMENTS};
use super::run::{Ended, Name, Run, Runs};
use super::sweep::Sweep;
use alloc::boxed::Box;
use xen_abi::io::blkif::{BLKIF_RSP_EOPNOTSUPP, BLKIF_RSP_ERROR, BLKIF_RSP_OKAY};

/// Sectors that are discarded at one time: 1 GiB. A back end may discard while it does nothing else, and is to show in
/// between that it goes on.
pub const DISCARD_SECTORS: u64 = 1 << 21;

/// Requests at one time.
pub const PLACES: usize = xen_abi::io::blkif::BLKIF_RING_SIZE as usize;
const _: () = assert!(PLACES == u32::BITS as usize);

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry {
    /// As it was taken.
    pub request: Request,
    /// For each of its segments the page that its bytes go through.
    pub pages: [PageNr; MAX_SEGMENTS],
    /// The worst that the back end has answered: 0, or a negative `BLKIF_RSP_*`.
    pub status: i16,
    /// When it was taken, in ns.
    pub taken_at: u64,
    /// Segments that are passed on, and the sector that the next one begins at.
    nr_sent: u8,
    next_sector: u64,
    /// Runs of its segments that are not answered.
    nr_waiting: u8,
    /// It shares runs with nobody.
    is_alone: bool,
    /// It has looked lost before: whoever does not answer it is not to blame.
    is_excused: bool,
    /// A run that it shared was answered with an error.
    has_failed_in_company: bool,
    /// Its answer is doubted until then, if it is.
    doubted_until: u64,
}

impl Entry {
    /// The pages of its segments.
    pub fn pages(&self) -> &[PageNr] {
        self.pages.get(..self.request.segments().len()).unwrap_or_default()
    }

    /// It is answered with an error, and not because the medium cannot do such a thing.
    pub fn has_failed(&self) -> bool {
        let is_optional = matches!(self.request.kind, Kind::Flush | Kind::Barrier | Kind::Discard);
        self.status != BLKIF_RSP_OKAY && !(is_optional && self.status == BLKIF_RSP_EOPNOTSUPP)
    }

    /// It is passed on from the beginning.
    fn begin_again(&mut self) {
        self.next_sector = self.request.sector;
        (self.nr_sent, self.nr_waiting, self.status, self.has_failed_in_company) = (0, 0, BLKIF_RSP_OKAY, false);
    }

    /// At most `nr` more of its segments are passed on, by `put`. How many.
    #[inline]
    fn send(&mut self, nr: u8, put: &mut impl FnMut(Segment, PageNr)) -> u8 {
        let sent = nr.min(self.nr_segments() - self.nr_sent);
        let these = usize::from(self.nr_sent)..usize::from(self.nr_sent + sent);
        let mut sectors = 0;
        if let (Some(segments), Some(pages)) = (self.request.segments().get(these.clone()), self.pages.get(these)) {
            for (segment, page) in segments.iter().zip(pages) {
                put(*segment, *page);
                sectors += u64::from(segment.sectors());
            }
        }
        // The whole is on the medium.
        self.next_sector += sectors;
        self.nr_sent += sent;
        self.nr_waiting += 1;
        sent
    }

    #[allow(clippy::cast_possible_truncation, reason = "at most MAX_SEGMENTS")]
    fn nr_segments(&self) -> u8 {
        self.request.segments().len() as u8
    }

    /// Sectors of a discard that are not passed on; 0 of others.
    fn left_to_discard(&self) -> u64 {
        let request = &self.request;
        if request.kind != Kind::Discard {
            return 0;
        }
        (request.sector + request.discard_sectors).saturating_sub(self.next_sector)
    }

    fn is_sent(&self) -> bool {
        self.nr_sent == self.nr_segments()
    }

    /// A run of its kind that ends at `sector` goes on with it.
    fn follows(&self, kind: Kind, sector: u64) -> bool {
        self.may_share() && self.request.kind == kind && self.next_sector == sector && self.nr_sent == 0
    }

    fn may_share(&self) -> bool {
        !self.is_alone && matches!(self.request.kind, Kind::Read | Kind::Write)
    }
}

/// The journal of one disk.
pub struct Journal {
    places: Box<[Entry]>,
    /// Places in use, the oldest request's first.
    order: Order,
    nr: u8,
    /// Places not in use, a bit each.
    free: u32,
    /// Places whose requests are not passed on, or not all of them, a bit each.
    unsent: u32,
    /// Places of flushes and barriers, which may not go before or after all others, a bit each.
    ordered: u32,
    /// Places whose answers are doubted, a bit each.
    doubted: u32,
    sweep: Sweep,
    runs: Runs,
    watch: Watch,
    /// Sectors that are discarded at one time.
    pub discard_sectors: u64,
}

impl Default for Journal {
    fn default() -> Self {
        let places = core::iter::repeat_n(Entry::default(), PLACES).collect();
        Journal {
            places,
            order: Order::default(),
            nr: 0,
            free: u32::MAX,
            unsent: 0,
            ordered: 0,
            doubted: 0,
            sweep: Sweep::default(),
            runs: Runs::default(),
            watch: Watch::default(),
            discard_sectors: DISCARD_SECTORS,
        }
    }
}

impl Journal {
    /// Requests that wait.
    pub fn len(&self) -> u8 {
        self.nr
    }

    /// Where the next request is written to, with the pages that its bytes go through. `None`: no place is free, which
    /// cannot be if it was in the ring.
    #[inline]
    pub fn vacant(&mut self) -> Option<&mut Entry> {
        self.places.get_mut(self.free.trailing_zeros() as usize)
    }

    /// Keeps the request that was written there.
    pub fn add(&mut self) {
        #[allow(clippy::cast_possible_truncation, reason = "at most 32")]
        let at = self.free.trailing_zeros() as u8;
        let Some(entry) = self.places.get_mut(usize::from(at)) else { return };
        (entry.is_alone, entry.is_excused) = (false, false);
        entry.begin_again();
        self.order.push(at);
        self.nr += 1;
        self.free &= !(1 << at);
        self.unsent |= 1 << at;
        self.ordered |= u32::from(matches!(entry.request.kind, Kind::Flush | Kind::Barrier)) << at;
    }

    /// What waits in a place.
    pub fn get(&self, place: u8) -> Option<&Entry> {
        let is_used = u32::from(place) < u32::BITS && self.free >> place & 1 == 0;
        self.places.get(usize::from(place)).filter(|_| is_used)
    }

    /// Requests that have something to write.
    pub fn writes(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.order.iter().filter_map(|at| self.places.get(usize::from(at)));
        entries.filter(|entry| entry.request.is_write())
    }

    /// Forgets the request in a place.
    pub fn remove(&mut self, place: u8) {
        if self.get(place).is_none() {
            return;
        }
        self.order.remove(place);
        self.nr -= 1;
        self.free |= 1 << place;
        self.unsent &= !(1 << place);
        self.ordered &= !(1 << place);
        self.doubted &= !(1 << place);
    }

    /// The request that has waited for the longest.
    pub fn oldest(&self) -> Option<u8> {
        self.order.iter().next()
    }

    /// When the request was taken that has waited for the longest and whose answer is not there, in ns.
    pub fn oldest_unanswered(&self) -> Option<u64> {
        let mut unanswered = self.order.iter().filter(|place| self.doubted >> *place & 1 == 0);
        unanswered.next().and_then(|place| self.places.get(usize::from(place))).map(|entry| entry.taken_at)
    }

    /// For how long a request has looked lost at time `now`, in ns; 0: none does.
    pub fn overdue_for(&mut self, now: u64) -> u64 {
        let is_excused = |place: &u8| self.places.get(usize::from(*place)).is_some_and(|entry| entry.is_excused);
        let excused = self.order.iter().filter(is_excused).fold(0, |all, place| all | 1 << place);
        self.watch.look(&self.runs, excused, now)
    }

    /// Nobody does the request in a place any more.
    pub fn fail(&mut self, place: u8) {
        if let Some(entry) = self.places.get_mut(usize::from(place)) {
            entry.status = BLKIF_RSP_ERROR;
        }
    }

    /// All of the request in a place is answered, and the guest is told no earlier than `until`: perhaps another back
    /// end does better.
    pub fn doubt(&mut self, place: u8, until: u64) {
        if let Some(entry) = self.places.get_mut(usize::from(place)) {
            entry.doubted_until = until;
            self.doubted |= 1 << place;
        }
    }

    /// Of the answers that are doubted the first that is to be believed, and when.
    #[inline]
    pub fn first_doubted(&self) -> Option<(u8, u64)> {
        if self.doubted == 0 {
            return None;
        }
        self.first_of_doubted()
    }

    #[cold]
    fn first_of_doubted(&self) -> Option<(u8, u64)> {
        let doubted = self.order.iter().filter(|place| self.doubted >> *place & 1 == 1);
        let until = |place: u8| self.places.get(usize::from(place)).map(|entry| (place, entry.doubted_until));
        doubted.filter_map(until).min_by_key(|(_, until)| *until)
    }

    /// A back end is gone, or another is there: all is to be passed on from the beginning, under new names. How many
    /// requests had been passed on, all or in part. The pages of lists are given back.
    pub fn begin_again(&mut self, give: impl FnMut(PageNr)) -> u32 {
        let slow = self.watch.end(&self.runs);
        self.runs.begin_again(give);
        self.sweep.clear();
        let mut nr = 0;
        for at in self.order.iter() {
            let Some(entry) = self.places.get_mut(usize::from(at)) else { continue };
            let is_begun = entry.next_sector != entry.request.sector;
            nr += u32::from(is_begun || self.unsent >> at & 1 == 0 || entry.is_alone);
            entry.begin_again();
            entry.is_alone = false;
            entry.is_excused |= slow >> at & 1 == 1;
        }
        (self.unsent, self.doubted) = (!self.free, 0);
        nr
    }

    /// The request in a place, all of whose runs are answered, is passed on once more if its error may be another
    /// one's. `false`: it is not.
    pub fn try_alone(&mut self, place: u8) -> bool {
        let Some(entry) = self.places.get_mut(usize::from(place)) else { return false };
        if !entry.has_failed_in_company {
            return false;
        }
        entry.begin_again();
        entry.is_alone = true;
        self.unsent |= 1 << place;
        true
    }

    /// Something is not passed on. Perhaps it may not be now.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.unsent != 0
    }

    /// What may be passed on next: at most `max_segments` segments, of requests whose turn it is and which are
    /// neighbours. They are `put` somewhere, by sector, with the pages that hold them and with what is to be done, and
    /// they are passed on then. `is_counted`: it has a cost.
    pub fn next_run(
        &mut self,
        max_segments: u8,
        is_counted: bool,
        mut put: impl FnMut(Kind, Segment, PageNr),
    ) -> Option<Run> {
        let name = self.runs.next_name()?;
        // One that comes while others are under way, as most do.
        let is_single = self.ordered == 0 && self.unsent.is_power_of_two();
        #[allow(clippy::cast_possible_truncation, reason = "at most 31")]
        let first = if is_single {
            self.sweep.clear();
            self.unsent.trailing_zeros() as u8
        } else {
            if self.sweep.first().is_none() {
                self.begin_sweep();
            }
            self.sweep.first()?
        };
        let entry = self.places.get(usize::from(first))?;
        let (kind, sector) = (entry.request.kind, entry.next_sector);
        let mut run = Run { name, kind, sector, nr_segments: 0, nr_requests: 0, cost: 0, first };
        let (mut place, mut members) = (first, 0);
        loop {
            let entry = self.places.get_mut(usize::from(place))?;
            run.nr_segments +=
                entry.send(max_segments - run.nr_segments, &mut |segment, page| put(kind, segment, page));
            run.nr_requests += 1;
            members |= 1 << place;
            if !entry.is_sent() {
                if is_single {
                    // What is left of it goes before what comes meanwhile.
                    self.sweep.join(place, sector);
                }
                break;
            }
            let (end, may_share) = (entry.next_sector, entry.may_share());
            self.unsent &= !(1 << place);
            if is_single {
                break;
            }
            self.sweep.advance();
            let Some(next) = self.sweep.first().filter(|_| may_share && run.nr_segments < max_segments) else { break };
            if !self.places.get(usize::from(next)).is_some_and(|next| next.follows(run.kind, end)) {
                break;
            }
            place = next;
        }
        run.cost = if is_counted { 1 + u32::from(run.nr_segments) } else { 0 };
        self.runs.begin(name, members, run.cost);
        Some(run)
    }

    /// All that may be passed on now, and is not, makes a sweep.
    fn begin_sweep(&mut self) {
        if self.ordered == 0 {
            for place in
                self.order.from(self.order.first_of(self.unsent)).filter(|place| self.unsent >> *place & 1 == 1)
            {
                self.sweep.join(place, self.places.get(usize::from(place)).map_or(0, |entry| entry.request.sector));
            }
            return;
        }
        let (mut is_first, mut has_writes) = (true, false);
        for place in self.order.iter() {
            let Some(entry) = self.places.get(usize::from(place)) else { continue };
            let may_go = match entry.request.kind {
                Kind::Barrier => is_first,
                Kind::Flush => !has_writes,
                Kind::Read | Kind::Write | Kind::Discard => true,
            };
            if may_go && self.unsent >> place & 1 == 1 {
                self.sweep.join(place, entry.request.sector);
            }
            if entry.request.kind == Kind::Barrier {
                return;
            }
            is_first = false;
            has_writes |= entry.request.is_write();
        }
    }

    /// A run of the discard in a place is passed on: how many sectors it discards, and with which flag. The next one
    /// is, if there are more, when this one is answered.
    pub fn part_of_discard(&mut self, place: u8) -> (u64, u8) {
        let Some(entry) = self.places.get_mut(usize::from(place)) else { return (0, 0) };
        let part = entry.left_to_discard().min(self.discard_sectors);
        entry.next_sector += part;
        (part, entry.request.discard_flag)
    }

    /// The segments of a run that was passed on are listed in this page, until it is answered.
    pub fn list_in(&mut self, name: Name, page: PageNr) {
        self.runs.list_in(name, page);
    }

    /// The back end has answered `name` with `status`: 0, or a negative number, the worst of which is kept. The run,
    /// and the places of requests all of whose runs are answered with it, a bit each; `None`: nobody waits for that.
    pub fn answered(&mut self, name: Name, status: i16) -> Option<(Ended, u32)> {
        let ended = self.runs.end(name)?;
        let members = ended.members;
        let is_shared = !members.is_power_of_two();
        let mut done = 0;
        let mut rest = members;
        while rest != 0 {
            let place = rest.trailing_zeros();
            rest &= rest - 1;
            let Some(entry) = self.places.get_mut(place as usize) else { continue };
            entry.nr_waiting = entry.nr_waiting.saturating_sub(1);
            entry.status = entry.status.min(status);
            entry.has_failed_in_company |= is_shared && status != BLKIF_RSP_OKAY;
            if entry.status == BLKIF_RSP_OKAY && entry.left_to_discard() > 0 {
                // Its next part goes with what has come meanwhile, and not before it.
                self.unsent |= 1 << place;
            }
            if entry.nr_waiting == 0 {
                done |= 1 << place;
            }
        }
        Some((ended, done & !self.unsent))
    }
}
