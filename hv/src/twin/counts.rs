//! What a twin has done, and how it ended, for whoever asks ([`TwinStats`]).

use crate::sync::Mutex;
use core::sync::atomic::{AtomicU64, Ordering};
use twin_abi::op::{reason, TwinStats};
use twin_runtime::linux::lanes::MAX_LANES;
use twin_runtime::{Abort, Reason};

/// A count that one CPU at a time adds to: no bus is locked for it. Others may read it meanwhile.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more. The caller is the only one who adds now.
    #[inline]
    pub fn add(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// So many there were.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a lane's runner has done.
#[derive(Default)]
pub struct LaneCounts {
    /// Interrupt handlers that he has called.
    pub handlers: Count,
    /// Polls of his.
    pub polls: Count,
    /// Packets that he has handed to the transmit routine.
    pub packets: Count,
    /// Locks of the domain's that he has waited for.
    pub lock_waits: Count,
}

/// What a twin has done.
#[derive(Default)]
pub struct Counts {
    /// Functions that were called for the domain.
    pub calls: AtomicU64,
    /// What was done in each lane of its card.
    pub lanes: [LaneCounts; MAX_LANES],
    /// Functions of the domain that were waited for.
    pub upcalls: AtomicU64,
    /// How often a CPU went into the mirror.
    pub turns: AtomicU64,
    /// Ticks of the time-stamp counter from there to the way out.
    pub ticks: AtomicU64,
    /// What disabled it.
    pub ending: Mutex<Option<Ending>>,
}

/// How an invocation was aborted, or why there is none any more, in the interface's numbers.
#[derive(Clone, Copy)]
pub struct Ending {
    /// [`reason`].
    pub reason: u32,
    /// What it speaks of.
    pub detail: u64,
    /// Offset in the twin's code, if there is a place.
    pub offset: u32,
    /// Address of the driver's instruction; 0 if there is no place.
    pub original: u64,
}

impl Ending {
    /// Without a place.
    pub fn nowhere(reason: u32, detail: u64) -> Self {
        Self { reason, detail, offset: 0, original: 0 }
    }
}

impl From<&Abort> for Ending {
    fn from(abort: &Abort) -> Self {
        Self { offset: abort.offset, original: abort.address, ..Self::from(&abort.reason) }
    }
}

impl From<&Reason> for Ending {
    fn from(why: &Reason) -> Self {
        let (reason, detail) = match *why {
            Reason::Memory(fault) => (reason::MEMORY, fault.address),
            Reason::Exception { vector: 14, address } => (reason::MEMORY, address),
            Reason::Exception { vector, .. } => (reason::EXCEPTION, vector.into()),
            Reason::Bug => (reason::BUG, 0),
            Reason::Budget => (reason::BUDGET, 0),
            Reason::TimeOut | Reason::Busy => (reason::TIME_OUT, 0),
            Reason::IndirectCall(address) => (reason::INDIRECT_CALL, address),
            Reason::Import(number) => (reason::IMPORT, number.into()),
            Reason::StackPointer(address) => (reason::STACK_POINTER, address),
            Reason::Lock(address) => (reason::LOCK, address),
            Reason::Structure { value, .. } => (reason::STRUCTURE, value),
            Reason::Stack(address) => (reason::STACK, address),
        };
        Self::nowhere(reason, detail)
    }
}

impl Counts {
    /// How often one of its functions was entered.
    pub fn invocations(&self) -> u64 {
        let entered = |lane: &LaneCounts| lane.handlers.get() + lane.polls.get() + lane.packets.get();
        self.calls.load(Ordering::Relaxed) + self.lanes.iter().map(entered).sum::<u64>()
    }

    fn sum(&self, of: impl Fn(&LaneCounts) -> &Count) -> u64 {
        self.lanes.iter().map(|lane| of(lane).get()).sum()
    }

    /// Fills them in.
    pub fn tell(&self, to: &mut TwinStats) {
        to.calls = self.calls.load(Ordering::Relaxed);
        (to.handlers, to.polls, to.packets) =
            (self.sum(|lane| &lane.handlers), self.sum(|lane| &lane.polls), self.sum(|lane| &lane.packets));
        (to.upcalls, to.lock_waits) = (self.upcalls.load(Ordering::Relaxed), self.sum(|lane| &lane.lock_waits));
        (to.turns, to.ticks) = (self.turns.load(Ordering::Relaxed), self.ticks.load(Ordering::Relaxed));
        if let Some(ending) = *self.ending.lock() {
            (to.reason, to.detail) = (ending.reason, ending.detail);
            (to.offset, to.original) = (ending.offset, ending.original);
        }
    }
}
