//! The places of cards, each its twin's: the card, its lanes, which interrupts came.

use super::attached::{Attached, Line};
use super::lane::{wanted, Lane};
use super::link::{CardQueue, MAX_CARDS};
use crate::cpu::percpu::{pending, this_cpu};
use crate::sync::Mutex;
use crate::twin::instance::MAX_TWINS;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use twin_abi::op;
use twin_runtime::linux::lanes::MAX_LANES;

/// Most interrupts of a card.
const MAX_LINES: usize = op::MAX_QUEUES as usize;
const _: () = assert!(MAX_LINES == MAX_LANES);

/// The interrupts of the card in one place.
pub struct Lines {
    owner: u16,
    lines: [Line; MAX_LINES],
    /// In which lane each is.
    lanes: [u8; MAX_LINES],
    count: usize,
}

impl Lines {
    /// None.
    pub const fn new() -> Self {
        Self { owner: 0, lines: [Line { port: 0, pirq: 0 }; MAX_LINES], lanes: [0; MAX_LINES], count: 0 }
    }

    /// From now on those of a card come here.
    pub fn open(&mut self, card: &Attached) {
        (self.owner, self.count) = (card.owner, card.irqs.len().min(MAX_LINES));
        for (n, (_, line)) in card.irqs.iter().enumerate().take(MAX_LINES) {
            #[allow(clippy::cast_possible_truncation, reason = "less than MAX_LANES")]
            (self.lanes[n] = card.lanes.of_line(n) as u8);
            self.lines[n] = *line;
        }
    }

    /// None comes here any more.
    pub fn close(&mut self) {
        self.count = 0;
    }

    /// The lane of an interrupt.
    pub fn lane(&self, number: usize) -> usize {
        self.lanes.get(number).copied().unwrap_or(0).into()
    }

    /// The number of a card's interrupt, if it is that of a domain's event channel.
    pub fn find(&self, owner: u16, line: Line) -> Option<usize> {
        let lines = self.lines.get(..self.count).filter(|_| self.owner == owner)?;
        lines.iter().position(|own| *own == line)
    }
}

/// A place for a card.
pub struct Place {
    /// The card. Who gives it or takes it away has this.
    pub card: Mutex<Option<Arc<Attached>>>,
    /// Its lanes: so many of them.
    pub lanes: [Lane; MAX_LANES],
    /// How many.
    pub nr_lanes: AtomicUsize,
    /// Somebody has found no room for a packet, and has not heard that there is some.
    pub is_starved: AtomicBool,
    /// Its interrupts.
    pub lines: Mutex<Lines>,
    /// Those that came and that nobody has handled: bits. Set by who has `lines`.
    pub taken: AtomicU32,
    /// Nobody begins to run a lane before this time, in ns: somebody waits until none is run.
    pub held_until_ns: AtomicU64,
}

impl Place {
    /// The card's lanes.
    #[inline]
    pub fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().take(self.nr_lanes.load(Ordering::Relaxed))
    }

    /// Those interrupts of `own` that came since this was asked last.
    #[inline]
    pub fn take_lines(&self, own: u32) -> u32 {
        if self.taken.load(Ordering::SeqCst) & own == 0 {
            return 0;
        }
        self.taken.fetch_and(!own, Ordering::SeqCst) & own
    }
}

/// All places.
pub static PLACES: [Place; MAX_TWINS] = [const {
    Place {
        card: Mutex::new(None),
        lanes: [const { Lane::new() }; MAX_LANES],
        nr_lanes: AtomicUsize::new(0),
        is_starved: AtomicBool::new(false),
        lines: Mutex::new(Lines::new()),
        taken: AtomicU32::new(0),
        held_until_ns: AtomicU64::new(0),
    }
}; MAX_TWINS];

/// How many places have a card.
pub static NR_ATTACHED: AtomicU32 = AtomicU32::new(0);
/// The places with a card, or with one that comes.
pub static HAS_CARD: AtomicU32 = AtomicU32::new(0);
const _: () = assert!(MAX_TWINS == MAX_CARDS && MAX_CARDS == u32::BITS as usize);

/// The places with a card, or with one that comes.
pub fn with_card() -> impl Iterator<Item = (usize, &'static Place)> {
    let mut places = HAS_CARD.load(Ordering::SeqCst);
    core::iter::from_fn(move || {
        let number = places.trailing_zeros() as usize;
        places &= places.wrapping_sub(1);
        PLACES.get(number).map(|place| (number, place))
    })
}

/// The number of a lane among those of all places.
pub fn number_of(place: usize, lane: usize) -> usize {
    place * MAX_LANES + lane
}

/// The lane with this transmit queue, or with one that has its place now.
pub fn lane(of: CardQueue) -> &'static Lane {
    &PLACES[of.place()].lanes[of.number()]
}

/// Something is wanted of a lane of the card in `place`. Whoever runs it looks again; else this CPU does, on its way
/// out.
pub fn want(place: usize, lane: usize, what: u32) {
    PLACES[place].lanes[lane].wanted.fetch_or(what, Ordering::SeqCst);
    this_cpu().raise(pending::CARDS);
}

/// A lane of the card in `place` is looked at, if that is not due anyway.
pub fn look_soon(place: usize, lane: usize) {
    if PLACES[place].lanes[lane].due_ns.load(Ordering::Relaxed) == u64::MAX {
        want(place, lane, wanted::LOOK);
    }
}

/// Has the twin in `place` a card, or is it given one? Then its functions are not called on behalf of its domain.
pub fn is_attached(place: usize) -> bool {
    HAS_CARD.load(Ordering::SeqCst) >> place & 1 != 0
}
