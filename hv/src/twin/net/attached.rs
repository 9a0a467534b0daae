//! A card as its domain has given it to its twin. It does not change.

use super::link::Card;
use crate::domain;
use crate::domain::event::Receiver;
use crate::sched::{self, Cause};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use twin_runtime::gate::Function;
use twin_runtime::linux::lanes::Lanes;
use xen_abi::event::Port;

/// An interrupt of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The domain's port.
    pub port: Port,
    /// What it is bound to.
    pub pirq: u32,
}

/// A poll.
#[derive(Clone, Copy)]
pub struct Poll {
    /// Its `napi_struct`.
    pub napi: u64,
    /// Most packets that it may take at once.
    pub weight: u32,
    /// What it calls.
    pub poll: Function,
}

/// The handler of an interrupt.
#[derive(Clone, Copy)]
pub struct Handler {
    /// It.
    pub handler: Function,
    /// Its first argument.
    pub number: u32,
    /// Its second one.
    pub argument: u64,
}

/// See the module.
pub struct Attached {
    /// Its name.
    pub card: Card,
    /// The driver domain.
    pub owner: u16,
    /// Its `net_device`.
    pub device: u64,
    /// Its transmit routine.
    pub start_xmit: Function,
    /// Its lanes: its `netdev_queue`s, and what is dealt to them.
    pub lanes: Lanes,
    /// When it is looked at again what the domain has freed itself, in ns.
    pub reclaim_at_ns: AtomicU64,
    /// Its polls.
    pub napis: Vec<Poll>,
    /// Its interrupts.
    pub irqs: Vec<(Handler, Line)>,
    /// The domain's port, which is raised when there is something for the domain.
    pub port: u32,
}

impl Attached {
    /// Its domain can answer: it is not paused, as the toolstack does to one that it destroys, and it is not others
    /// that keep it from all CPUs.
    pub fn may_answer(&self) -> bool {
        domain::find(self.owner).is_some_and(|d| !d.is_paused() && !sched::is_kept_waiting(&d))
    }

    /// Number of the poll of this `napi_struct`, if it is the card's.
    pub fn poll_of(&self, napi: u64) -> Option<usize> {
        self.napis.iter().position(|own| own.napi == napi)
    }

    /// A poll.
    pub fn napi(&self, number: usize) -> Option<Poll> {
        self.napis.get(number).copied()
    }

    /// An interrupt.
    pub fn irq(&self, number: usize) -> Option<(Handler, Line)> {
        self.irqs.get(number).copied()
    }

    /// What the hypervisor calls the port: no name of device channels', which have bits above those of a place.
    #[allow(clippy::cast_possible_truncation, reason = "a small number")]
    pub fn cookie(&self) -> u32 {
        self.card.place() as u32
    }

    /// Tells the domain that there is something for it.
    pub fn notify(&self) {
        if let Some(d) = domain::find(self.owner) {
            d.events.lock().raise_hypervisor(&Receiver(&d, Cause::Sender), self.port, self.cookie());
        }
    }
}
