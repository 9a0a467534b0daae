//! A guest's interface: its queues with their two sides each, and where they are found.
//!
//! An interface has as many places as it has queues, one after the other, so that a queue is all that most of this has
//! to do with: what guests send by two of them, or receive, has no lock in common. Its port in the switch is the place
//! of its first one.

use super::access::{GuestGrants, Held, RingPage};
use super::disk::DISK_EVENT;
use super::pci::PCI_EVENT;
use super::uplink::Ahead;
use crate::domain::event::Receiver;
use crate::domain::{self, Domain};
use crate::guest_warn;
use crate::sched::Cause;
use crate::sync::FairMutex;
use ::channel::offload::merge::Merger;
use ::channel::packet::Packet;
use ::channel::switch::PortId;
use ::channel::vif::journal::Token;
use ::channel::vif::rx::{Progress, RxQueue};
use ::channel::vif::tx::TxQueue;
use ::channel::vif::waiting::Waiting;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use xen_abi::io::netif::XEN_NETIF_RSP_OKAY;

/// Queues of interfaces at one time.
pub const MAX_VIFS: u16 = 1 << 10;

/// In the name of a port: it is one for transmit events.
pub const TX_EVENT: u32 = 1 << 10;
/// In the name of a port: it is one for receive events.
pub const RX_EVENT: u32 = 1 << 11;
/// The place in a name.
const PLACE: u32 = MAX_VIFS as u32 - 1;
/// Counts connections, in a name.
const GENERATION_SHIFT: u32 = 12;

/// Names a queue of an interface, and the first one the interface itself: its place, and a count of all connections so
/// far, modulo 2^18.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(u32);

impl Handle {
    /// The `count`-th connection, in `place`.
    pub fn new(place: u16, count: u32) -> Self {
        Self((count << GENERATION_SHIFT | u32::from(place) & PLACE) & !(DISK_EVENT | PCI_EVENT))
    }

    /// What a caller names. It may be none.
    pub fn of_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Of the name of a port.
    pub fn of_cookie(cookie: u32) -> Self {
        Self(cookie & !(TX_EVENT | RX_EVENT))
    }

    /// As a number.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// Its place, which is also its number in the switch.
    pub fn place(self) -> u16 {
        (self.0 & PLACE) as u16
    }

    /// The queue `number` of the interface whose first one this is: it has the place that is so many further.
    pub fn queue(self, number: u16) -> Self {
        Self(self.0 + u32::from(number))
    }

    /// Its sides, if it is still there: whoever locks one looks whether it is this one's.
    pub fn sides(self) -> &'static Sides {
        &VIFS[usize::from(self.place())]
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vif {}", self.place())
    }
}

/// A place for a queue of an interface. Its locks are fair: who sends all the time keeps nobody else away.
pub struct Sides {
    /// What the guest sends.
    pub tx: FairMutex<Option<Box<Tx>>>,
    /// What it receives.
    pub rx: FairMutex<Option<Box<Rx>>>,
}

/// All places.
pub static VIFS: [Sides; MAX_VIFS as usize] =
    [const { Sides { tx: FairMutex::new(None), rx: FairMutex::new(None) } }; MAX_VIFS as usize];

/// The sides at a port.
pub fn at_port(port: PortId) -> Option<&'static Sides> {
    VIFS.get(usize::from(port.0))
}

/// A queue's end of its guest's ports, and whose grants it uses.
#[derive(Clone, Copy)]
pub struct Line {
    /// Which queue.
    pub handle: Handle,
    /// Place of its interface's first queue. To those who wait for a way out all of them are one sender.
    pub interface: u16,
    /// Its guest.
    pub guest: u16,
    /// The domain that the guest grants to.
    pub backend: u16,
    /// The guest's port.
    pub port: u32,
    /// What the hypervisor calls the port.
    pub cookie: u32,
    /// The switch.
    pub switch: u32,
    /// Its weight among those who send by one way out.
    pub weight: u16,
}

impl Line {
    /// Its guest, who does not go while something of it is in use here.
    #[inline]
    pub fn guest(&self) -> Option<domain::DomainRef> {
        domain::find(self.guest)
    }

    /// The grants of `guest`, which is the guest.
    #[inline]
    pub fn grants<'a>(&self, guest: &'a Domain) -> GuestGrants<'a> {
        GuestGrants { guest, backend: self.backend }
    }

    /// Tells `guest`, which is the guest, of news.
    #[inline]
    pub fn notify(&self, guest: &Domain) {
        guest.events.lock().raise_hypervisor(&Receiver(guest, Cause::Sender), self.port, self.cookie);
    }

    /// A ring has ended.
    #[cold]
    pub fn warn_ended(&self, why: &dyn fmt::Debug) {
        guest_warn!("d{}: {} ends: {why:?}", self.guest, self.handle);
    }
}

/// The transmit side.
pub struct Tx {
    /// Where it leads.
    pub line: Line,
    /// The ring, and what is not yet answered.
    pub queue: TxQueue<RingPage, Held>,
    /// The packet in hand.
    pub packet: Packet<Held>,
    /// When it is to be looked at though nobody notifies, in ns.
    pub until: Option<u64>,
    /// Packets for outside that wait for a way out, in the order in which they came. Has room for a whole ring.
    pub held: Vec<Token>,
    /// Packets that the switch did not pass on.
    pub refused: u64,
    /// The card to which its packets go, and room there, while this side is held.
    pub ahead: Ahead,
}

impl Tx {
    /// A reader of a packet is done with it.
    #[inline(never)]
    pub fn complete(&mut self, guest: &Domain, token: Token) {
        self.complete_all(guest, [token]);
    }

    /// Readers of packets are done with them.
    #[inline(always)]
    pub fn complete_all(&mut self, guest: &Domain, tokens: impl IntoIterator<Item = Token>) {
        let mut grants = self.line.grants(guest).locked();
        for token in tokens {
            let is_known = self.queue.complete(&mut grants, token, XEN_NETIF_RSP_OKAY).is_ok();
            debug_assert!(is_known, "a packet that was answered already");
        }
    }

    /// Lets the guest see the answers.
    #[inline]
    pub fn push(&mut self, guest: &Domain) {
        if self.queue.push() {
            self.line.notify(guest);
        }
    }
}

/// The receive side.
pub struct Rx {
    /// Where it leads.
    pub line: Line,
    /// The first table of its switch that has it: in earlier ones its place is another's.
    pub joined: u64,
    /// The ring.
    pub queue: RxQueue<RingPage>,
    /// What waits for room in it.
    pub backlog: Waiting<Item>,
    /// For segments that are put together: who does that takes it meanwhile, and puts it back empty.
    pub merger: Option<Box<Merger<Held>>>,
}

/// A packet that waits for its receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Who has sent it.
    pub sender: Handle,
    /// Which of its packets.
    pub token: Token,
    /// How far it has come.
    pub progress: Progress,
}
