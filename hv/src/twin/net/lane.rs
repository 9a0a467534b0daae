//! Lanes of a card, each a transmit queue with its share of interrupts and polls: what somebody wants of one, what is
//! under way in it, what waits to be sent by it.

use super::attached::Attached;
use super::queue::{Outgoing, Queue};
use super::receive::Passing;
use crate::arch::tsc;
use crate::sync::Mutex;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use hv_core::patience::{Interval, Patience};
use twin_abi::op::UPCALL_LIMIT_NS;
use twin_runtime::linux::irq::Unclaimed;
use x86::PAGE_SIZE;

/// What somebody wants of a lane: bits.
pub mod wanted {
    /// Packets wait to be sent.
    pub const SEND: u32 = 1 << 0;
    /// Interrupts came.
    pub const LINES: u32 = 1 << 1;
    /// Something else has changed.
    pub const LOOK: u32 = 1 << 2;
    /// Its transmit queue may go on.
    pub const WAKE: u32 = 1 << 3;
    /// Polls of its own were scheduled by another lane.
    pub const POLLS: u32 = 1 << 4;
}

/// Something that the twin does in a lane.
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

/// How often it is looked whether what an invocation waits for has come, in ns, and how many looks find nothing until
/// the twin is disabled: as many as [`UPCALL_LIMIT_NS`] has, and three more, for a machine that is busy.
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

/// What is under way in a lane.
#[derive(Default)]
pub struct Progress {
    /// Interrupts that came and are not handled: bits.
    pub lines: u32,
    /// Those that no handler has taken for its device's.
    pub unclaimed: Unclaimed,
    /// The last turn has left some that could not be handled: when it is looked at those again.
    pub ears: Option<Interval>,
    /// Polls that are the hypervisor's, and are to run: bits.
    pub polls: u32,
    /// The poll that runs, until the driver has given it up: a bit. It may be the domain's by then, whose driver goes
    /// on with it.
    pub polling: u32,
    /// Packets may wait.
    pub may_send: bool,
    /// Not before this time, in ns: the queue is stopped, or somebody else transmits.
    pub send_at_ns: u64,
    /// The domain's transmit lock is held.
    pub has_lock: bool,
    /// What the twin does, or did when it was aborted.
    pub job: Option<Job>,
    /// The packet that goes to the driver.
    pub packet: Option<Outgoing>,
    /// It waits.
    pub waits: Option<Waits>,
}

/// What of its card is a lane's.
#[derive(Clone, Copy)]
pub struct Own {
    /// Which of the card's lanes it is.
    pub number: usize,
    /// Its `netdev_queue`.
    pub queue: u64,
    /// Its interrupts: bits.
    pub lines: u32,
}

/// A lane with what is under way.
pub struct Drive {
    /// The card.
    pub attached: Arc<Attached>,
    /// What of it is the lane's.
    pub own: Own,
    /// What is under way.
    pub progress: Progress,
    /// What is on its way from it.
    pub passing: Passing,
}

impl Drive {
    /// Frames that one takes.
    pub const FRAMES: usize = size_of::<Self>().div_ceil(PAGE_SIZE) + Passing::FRAMES;

    /// Of this lane of a card, with nothing under way. `None` when out of memory.
    pub fn new(attached: &Arc<Attached>, number: usize) -> Option<Box<Self>> {
        let lanes = &attached.lanes;
        let own = Own { number, queue: lanes.queue(number), lines: lanes.lines(number) };
        let passing = Passing::new()?;
        Some(Box::new(Self { attached: attached.clone(), own, progress: Progress::default(), passing }))
    }
}

/// A place for a lane.
pub struct Lane {
    /// What somebody wants: [`wanted`].
    pub wanted: AtomicU32,
    /// When it is to be looked at though nobody wants anything, in ns.
    pub due_ns: AtomicU64,
    /// Polls of its own that another lane has scheduled: bits.
    pub polls: AtomicU32,
    /// The lane. Its runner has this.
    pub drive: Mutex<Option<Box<Drive>>>,
    /// What waits to be sent.
    pub queue: Mutex<Queue>,
}

impl Lane {
    /// None.
    pub const fn new() -> Self {
        Self {
            wanted: AtomicU32::new(0),
            due_ns: AtomicU64::new(u64::MAX),
            polls: AtomicU32::new(0),
            drive: Mutex::new(None),
            queue: Mutex::new(Queue::new()),
        }
    }

    /// Is something wanted of it, or has its time come?
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) != 0
            || (self.due_ns.load(Ordering::Relaxed) != u64::MAX && self.due_ns.load(Ordering::Relaxed) <= tsc::now_ns())
    }
}
