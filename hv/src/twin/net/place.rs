//! The places of cards, each its twin's: what is under way, what waits to be sent, which interrupts came.

use super::attached::{Attached, Line};
use super::link::{Card, MAX_CARDS};
use super::queue::{Outgoing, Queue};
use super::receive::Passing;
use crate::cpu::percpu::{pending, this_cpu};
use crate::sync::Mutex;
use crate::twin::instance::MAX_TWINS;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use hv_core::patience::Patience;
use twin_abi::op::{self, UPCALL_LIMIT_NS};

/// Most interrupts of a card.
pub const MAX_LINES: usize = op::MAX_QUEUES as usize;
/// What somebody wants of a card: bits.
pub mod wanted {
    /// Packets wait to be sent.
    pub const SEND: u32 = 1 << 0;
    /// Interrupts came.
    pub const LINES: u32 = 1 << 1;
    /// Something else has changed.
    pub const LOOK: u32 = 1 << 2;
}

/// Something that the twin does for its card.
#[derive(Clone, Copy)]
pub enum Job {
    /// The handler of an interrupt.
    Line(usize),
    /// A poll.
    Poll(usize),
    /// The packet [`Progress::packet`] goes to the driver.
    Send,
}

/// What an invocation waits for.
#[derive(Clone, Copy)]
pub enum Awaits {
    /// For the lock at this address, which is tried again from here.
    Lock(u64),
    /// For the domain's function at this address to return.
    Function(u64),
}

/// How often it is looked whether what an invocation waits for has come, in ns, and how many looks find nothing until the twin is disabled:
/// as many as [`UPCALL_LIMIT_NS`] has, and three more, for a machine that is busy.
const LOOK_NS: u64 = 100_000_000;
const LOOKS: u32 = 3 + (UPCALL_LIMIT_NS / LOOK_NS) as u32;

/// An invocation that waits.
pub struct Waits {
    /// In this instance.
    pub instance: usize,
    /// For this.
    pub awaits: Awaits,
    /// How many more looks may find nothing.
    pub patience: Patience,
}

impl Waits {
    /// From `now` (ns) on an invocation waits, in this instance.
    pub fn new(instance: usize, awaits: Awaits, now: u64) -> Self {
        Self { instance, awaits, patience: Patience::new(now, LOOK_NS, LOOKS) }
    }

    /// The lock that it waits for, if that is it.
    pub fn lock(&self) -> Option<u64> {
        match self.awaits {
            Awaits::Lock(lock) => Some(lock),
            Awaits::Function(_) => None,
        }
    }
}

/// What is under way for a card.
#[derive(Default)]
pub struct Progress {
    /// Interrupts that came and are not handled: bits.
    pub lines: u32,
    /// Polls that are the hypervisor's, and are to run: bits.
    pub polls: u32,
    /// Packets may wait.
    pub may_send: bool,
    /// Not before this time, in ns: the queue is stopped, or somebody else transmits.
    pub send_at_ns: u64,
    /// When it is looked at again what the domain has freed itself, in ns.
    pub reclaim_at_ns: u64,
    /// The domain's transmit lock is held.
    pub has_lock: bool,
    /// What the twin does, or did when it was aborted.
    pub job: Option<Job>,
    /// The packet that goes to the driver.
    pub packet: Option<Outgoing>,
    /// It waits.
    pub waits: Option<Waits>,
}

/// The interrupts of the card in one place.
pub struct Lines {
    owner: u16,
    lines: [Line; MAX_LINES],
    count: usize,
    /// Those that came and that nobody has handled.
    pub taken: u32,
}

impl Lines {
    /// None.
    pub const fn new() -> Self {
        Self { owner: 0, lines: [Line { port: 0, pirq: 0 }; MAX_LINES], count: 0, taken: 0 }
    }

    /// From now on those of a card of domain `owner` come here.
    pub fn open(&mut self, owner: u16, lines: impl Iterator<Item = Line>) {
        (self.owner, self.count, self.taken) = (owner, 0, 0);
        for (to, line) in self.lines.iter_mut().zip(lines) {
            *to = line;
            self.count += 1;
        }
    }

    /// None comes here any more; those that nobody has handled.
    pub fn close(&mut self) -> u32 {
        self.count = 0;
        self.take()
    }

    /// Those that came since this was asked last.
    pub fn take(&mut self) -> u32 {
        core::mem::take(&mut self.taken)
    }

    /// The number of a card's interrupt, if it is that of a domain's event channel.
    pub fn find(&self, owner: u16, line: Line) -> Option<usize> {
        let lines = self.lines.get(..self.count).filter(|_| self.owner == owner)?;
        lines.iter().position(|own| *own == line)
    }
}

/// A card with what is under way.
pub struct Drive {
    /// The card.
    pub attached: Attached,
    /// What is under way.
    pub progress: Progress,
    /// What is on its way from it.
    pub passing: Passing,
}

/// A place for a card.
pub struct Place {
    /// What somebody wants: [`wanted`].
    pub wanted: AtomicU32,
    /// When it is to be looked at though nobody wants anything, in ns.
    pub due_ns: AtomicU64,
    /// The card. Its runner has this.
    pub drive: Mutex<Option<Box<Drive>>>,
    /// What waits to be sent.
    pub queue: Mutex<Queue>,
    /// Its interrupts.
    pub lines: Mutex<Lines>,
}

/// All places.
pub static PLACES: [Place; MAX_TWINS] = [const {
    Place {
        wanted: AtomicU32::new(0),
        due_ns: AtomicU64::new(u64::MAX),
        drive: Mutex::new(None),
        queue: Mutex::new(Queue::new()),
        lines: Mutex::new(Lines::new()),
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

/// What waits to be sent by `card`, or by the card that has its place now.
pub fn queue(card: Card) -> &'static Mutex<Queue> {
    &PLACES[card.place()].queue
}

/// Something is wanted of the card in `place`. Whoever runs it looks again; else this CPU does, on its way out.
pub fn want(place: usize, what: u32) {
    PLACES[place].wanted.fetch_or(what, Ordering::SeqCst);
    this_cpu().raise(pending::CARDS);
}

/// The card in `place` is looked at, if that is not due anyway.
pub fn look_soon(place: usize) {
    if PLACES[place].due_ns.load(Ordering::Relaxed) == u64::MAX {
        want(place, wanted::LOOK);
    }
}

/// Has the twin in `place` a card, or is it given one? Then its functions are not called on behalf of its domain.
pub fn is_attached(place: usize) -> bool {
    HAS_CARD.load(Ordering::SeqCst) >> place & 1 != 0
}
