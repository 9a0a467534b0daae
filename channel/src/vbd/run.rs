//! What a slot of the back end's ring takes: a *run* of segments that follow each other on the medium, of one request
//! or of several.
//!
//! Each run has a [`Name`], which goes through hands that are not trusted: it is good once, for the one back end that
//! it was given to.

use super::pool::PageNr;
use super::request::{halves, Kind};
use xen_abi::io::blkif::BLKIF_OP_INDIRECT;

/// Runs under way at one time: as many as the back end's ring has slots.
pub const RUNS: usize = xen_abi::io::blkif::BLKIF_RING_SIZE as usize;
const _: () = assert!(RUNS == u32::BITS as usize);

/// Names a run to a back end: which back end (modulo 2^16), which run of all (modulo 2^32), the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    life: u16,
    number: u32,
    place: u16,
}

impl Name {
    /// As the field of a ring.
    pub fn encode(self) -> u64 {
        u64::from(self.life) << 48 | u64::from(self.number) << 16 | u64::from(self.place)
    }

    /// Of such a field, which may name nothing.
    #[allow(clippy::cast_possible_truncation, reason = "its fields")]
    pub fn decode(id: u64) -> Name {
        Name { life: (id >> 48) as u16, number: (id >> 16) as u32, place: id as u16 }
    }
}

/// A run, to be passed on.
pub struct Run {
    /// How its answer names it.
    pub name: Name,
    /// What is to be done.
    pub kind: Kind,
    /// Its first sector.
    pub sector: u64,
    /// Its segments.
    pub nr_segments: u8,
    /// Requests that it has segments of.
    pub nr_requests: u8,
    /// What it costs, among those that share the back end's domain; 0 if that does not count.
    pub cost: u32,
    /// The place of the first request that it has segments of.
    pub first: u8,
}

/// Words of a slot before what differs between kinds.
pub const HEAD: usize = 6;

impl Run {
    /// The head of a slot that is followed by its segments; or by how many sectors are discarded, with this flag.
    #[inline]
    pub fn direct(&self, discard_flag: u8) -> [u32; HEAD] {
        let second = if self.kind == Kind::Discard { discard_flag } else { self.nr_segments };
        self.head(u32::from(self.kind.operation()) | u32::from(second) << 8)
    }

    /// The head of a slot that is followed by an unused word and the grant of the page in which they are listed.
    pub fn indirect(&self) -> [u32; HEAD] {
        let (kind, nr_segments) = (self.kind.operation(), self.nr_segments);
        self.head(u32::from(BLKIF_OP_INDIRECT) | u32::from(kind) << 8 | u32::from(nr_segments) << 16)
    }

    #[inline]
    fn head(&self, first: u32) -> [u32; HEAD] {
        let ([id, id_high], [sector, sector_high]) = (halves(self.name.encode()), halves(self.sector));
        [first, 0, id, id_high, sector, sector_high]
    }
}

#[derive(Clone, Copy, Default)]
struct UnderWay {
    number: u32,
    /// Places of the requests that it has segments of, a bit each.
    members: u32,
    /// What it costs.
    cost: u32,
    /// The page in which its segments are listed.
    list: Option<PageNr>,
}

/// A run that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Places of the requests that it had segments of, a bit each.
    pub members: u32,
    /// What it cost.
    pub cost: u32,
    /// The page in which its segments were listed, if there was one.
    pub list: Option<PageNr>,
}

/// The runs that a back end has not answered.
pub struct Runs {
    under_way: [UnderWay; RUNS],
    /// Places not in use, a bit each.
    free: u32,
    /// Back ends so far, modulo 2^16.
    life: u16,
    /// The number of the run that was passed on last.
    begun: u32,
    /// And of the one that was answered last.
    answered: u32,
}

impl Default for Runs {
    fn default() -> Self {
        Runs { under_way: [UnderWay::default(); RUNS], free: u32::MAX, life: 0, begun: 0, answered: 0 }
    }
}

impl Runs {
    /// Another back end: no name of before is good any more, and the pages of lists are given back.
    pub fn begin_again(&mut self, give: impl FnMut(PageNr)) {
        let is_used = |(place, run): (usize, &UnderWay)| run.list.filter(|_| self.free >> place & 1 == 0);
        self.under_way.iter().enumerate().filter_map(is_used).for_each(give);
        self.life = self.life.wrapping_add(1);
        self.free = u32::MAX;
        self.answered = self.begun;
    }

    /// A name for the next run. [`Runs::begin`] is to follow. `None`: as many as there may be are under way.
    #[inline]
    pub fn next_name(&self) -> Option<Name> {
        #[allow(clippy::cast_possible_truncation, reason = "at most 32")]
        let place = self.free.trailing_zeros() as u16;
        (self.free != 0).then(|| Name { life: self.life, number: self.begun.wrapping_add(1), place })
    }

    /// The run of the next name has segments of these requests.
    #[inline]
    pub fn begin(&mut self, name: Name, members: u32, cost: u32) {
        if let Some(run) = self.under_way.get_mut(usize::from(name.place)) {
            *run = UnderWay { number: name.number, members, cost, list: None };
            self.free &= !(1 << name.place);
            self.begun = name.number;
        }
    }

    /// The segments of a run that has begun are listed in this page.
    pub fn list_in(&mut self, name: Name, page: PageNr) {
        if let Some(run) = self.under_way.get_mut(usize::from(name.place)) {
            run.list = Some(page);
        }
    }

    /// A run is answered. `None`: nobody waits for it.
    #[inline]
    pub fn end(&mut self, name: Name) -> Option<Ended> {
        let run = self.under_way.get(usize::from(name.place))?;
        let is_its = name.life == self.life && name.number == run.number && self.free >> name.place & 1 == 0;
        if !is_its {
            return None;
        }
        self.free |= 1 << name.place;
        self.answered = name.number;
        Some(Ended { members: run.members, cost: run.cost, list: run.list })
    }

    /// The number of the run that was answered last, or of the last one before this back end.
    pub fn last_answered(&self) -> u32 {
        self.answered
    }

    /// The runs that are not answered: place, number, and the places of the requests that they have segments of, a bit
    /// each.
    pub fn waiting(&self) -> impl Iterator<Item = (usize, u32, u32)> + '_ {
        let is_used = |(place, _): &(usize, &UnderWay)| self.free >> place & 1 == 0;
        self.under_way.iter().enumerate().filter(is_used).map(|(place, run)| (place, run.number, run.members))
    }
}
