//! Event channels of one domain: ports, bindings, and delivery in the 2-level and the FIFO layout.
//!
//! [`EventChannels`] is the hypervisor's own state; the words that the guest shares (pending, mask, event array,
//! control blocks) are reached only through atomics that the shell provides ([`Shared`], and the page type `P`). A
//! guest may change them at any moment; nothing read from them is used as an index or a loop bound here.
//!
//! Locks. The shell wraps each domain's `EventChannels` in one lock. What involves two domains:
//! - `send` needs one lock at a time: [`EventChannels::send`] names the peer, [`EventChannels::raise_from`] on the peer
//!   checks that it is still connected to the sender.
//! - `bind_interdomain` and `close` of a connected port need both: the shell looks up the other domain, takes the locks
//!   in the order of domain ids, and calls; what was learnt before the locks were taken is checked again
//!   ([`CloseError::NeedsPeer`] says which domain to lock).

mod bind;
mod close;
mod deliver;
mod fifo;
#[cfg(any(test, feature = "fuzzing"))]
pub mod oracle;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

use crate::room::Room;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicU8};
use fifo::Fifo;
use table::{Channel, PortTable};
use xen_abi::errno::Errno;
use xen_abi::event::{self, Port, NR_PORTS_2LEVEL, NR_PORTS_FIFO, NR_VIRQS};

pub use bind::Remote;
pub use close::{CloseError, Closed, Peer};
pub use deliver::{Poll, Sent};
pub use snapshot::Saved;

/// A domain's number.
pub type DomId = u16;

/// The words of a page that is shared with a guest.
pub type PageWords = [AtomicU32; 1024];

/// What event delivery needs of a domain. `vcpu` is always below the number given to [`EventChannels::set_vcpus`].
pub trait Shared {
    /// Word `word` (0..64) of the pending bits in the shared-info page.
    fn pending(&self, word: usize) -> &AtomicU64;
    /// Word `word` (0..64) of the mask bits in the shared-info page.
    fn mask(&self, word: usize) -> &AtomicU64;
    /// `evtchn_pending_sel` of a vCPU.
    fn pending_sel(&self, vcpu: u32) -> &AtomicU64;
    /// `evtchn_upcall_pending` of a vCPU.
    fn upcall_pending(&self, vcpu: u32) -> &AtomicU8;
    /// An upcall was marked for a vCPU: wake it if it sleeps, interrupt it if it runs.
    fn notify(&self, vcpu: u32);
    /// A port that a vCPU polls for has an event: end its poll.
    fn wake_poller(&self, vcpu: u32);
}

/// What a port is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Nothing: the port is free.
    Free,
    /// Waits for `remote` to bind to it.
    Unbound {
        /// Who may.
        remote: DomId,
    },
    /// The other end is a port of another domain, or of this one.
    Interdomain {
        /// The peer.
        dom: DomId,
        /// The peer's port.
        port: Port,
    },
    /// A physical interrupt.
    Pirq(u32),
    /// A virtual interrupt.
    Virq(u32),
    /// From this domain's vCPUs to one of them.
    Ipi,
    /// The other end is the hypervisor, on behalf of `dom`.
    Hypervisor {
        /// What the guest is told the peer is.
        dom: DomId,
        /// The hypervisor's own name for it.
        cookie: u32,
    },
}

/// A vCPU's part.
struct VcpuEvents<P> {
    /// Port by virtual interrupt, 0: none.
    virq: [Port; NR_VIRQS as usize],
    /// 0: does not poll; [`POLL_ANY`]: for several ports; else the port.
    poll: u32,
    fifo: fifo::VcpuQueues<P>,
}
const POLL_ANY: u32 = u32::MAX;

/// Which layout the shared words have.
enum Layout<P> {
    TwoLevel,
    Fifo(Fifo<P>),
}

/// See the module's documentation. `P` keeps a guest page referenced and gives its words.
pub struct EventChannels<P> {
    dom: DomId,
    /// Highest port that may be allocated, as the toolstack set it.
    max_port: Port,
    ports: PortTable,
    open: u32,
    /// No port opens any more: the domain is being destroyed.
    is_over: bool,
    /// vCPUs in a poll.
    pollers: u32,
    layout: Layout<P>,
    vcpus: Vec<VcpuEvents<P>>,
    /// Asked for more ports.
    room: Room,
}

impl<P: AsRef<PageWords>> EventChannels<P> {
    /// No ports, no vCPUs, 2-level layout. `room` is asked when more ports need memory.
    pub fn new(dom: DomId, max_port: Port, room: Room) -> EventChannels<P> {
        EventChannels {
            dom,
            max_port,
            ports: PortTable::new(),
            open: 0,
            is_over: false,
            pollers: 0,
            layout: Layout::TwoLevel,
            vcpus: Vec::new(),
            room,
        }
    }

    /// Sets the number of vCPUs. It can only grow.
    pub fn set_vcpus(&mut self, nr: u32) -> Result<(), Errno> {
        let nr = nr as usize;
        let more = nr.saturating_sub(self.vcpus.len());
        self.vcpus.try_reserve_exact(more).map_err(|_| Errno::ENOMEM)?;
        if more > 0 {
            self.vcpus.resize_with(nr, VcpuEvents::new);
        }
        Ok(())
    }

    /// Sets the highest port that may be allocated. Ports above it that are open stay open.
    pub fn set_max_port(&mut self, max_port: Port) {
        self.max_port = max_port;
    }

    /// The highest port that may be allocated.
    pub fn max_port(&self) -> Port {
        self.max_port
    }

    /// Is the FIFO layout in use?
    pub fn is_fifo(&self) -> bool {
        matches!(self.layout, Layout::Fifo(_))
    }

    /// Number of ports that are not free.
    pub fn nr_open(&self) -> u32 {
        self.open
    }

    /// What a port is connected to. `EINVAL`: there is no such port.
    pub fn binding(&self, port: Port) -> Result<Binding, Errno> {
        Ok(self.ports.get(port).ok_or(Errno::EINVAL)?.binding)
    }

    /// Fills the out fields of a status request. `EINVAL`: there is no such port.
    pub fn status(&self, port: Port) -> Result<event::EvtchnStatus, Errno> {
        let ch = self.ports.get(port).ok_or(Errno::EINVAL)?;
        let (status, u0, u1) = match ch.binding {
            Binding::Free => (event::EVTCHNSTAT_CLOSED, 0, 0),
            Binding::Unbound { remote } => (event::EVTCHNSTAT_UNBOUND, remote.into(), 0),
            Binding::Interdomain { dom, port } => (event::EVTCHNSTAT_INTERDOMAIN, dom.into(), port),
            Binding::Hypervisor { dom, .. } => (event::EVTCHNSTAT_INTERDOMAIN, dom.into(), 0),
            Binding::Pirq(pirq) => (event::EVTCHNSTAT_PIRQ, pirq, 0),
            Binding::Virq(virq) => (event::EVTCHNSTAT_VIRQ, virq, 0),
            Binding::Ipi => (event::EVTCHNSTAT_IPI, 0, 0),
        };
        let vcpu = if status == event::EVTCHNSTAT_CLOSED { 0 } else { ch.notify.into() };
        Ok(event::EvtchnStatus { dom: self.dom, port, status, vcpu, u0, u1, ..Default::default() })
    }

    /// One past the highest port that the layout in use and the toolstack's limit allow.
    fn limit(&self) -> Port {
        let layout = if self.is_fifo() { NR_PORTS_FIFO } else { NR_PORTS_2LEVEL };
        layout.min(self.max_port.saturating_add(1))
    }

    fn vcpu_exists(&self, vcpu: u32) -> Result<u16, Errno> {
        let nr = u16::try_from(vcpu).map_err(|_| Errno::ENOENT)?;
        self.vcpus.get(usize::from(nr)).map(|_| nr).ok_or(Errno::ENOENT)
    }

    fn is_pending(&self, mem: &impl Shared, port: Port, ch: &Channel) -> bool {
        match &self.layout {
            Layout::TwoLevel => deliver::two_level_is_pending(mem, port),
            Layout::Fifo(f) => f.is_pending(port, ch),
        }
    }
}

impl<P> VcpuEvents<P> {
    fn new() -> VcpuEvents<P> {
        VcpuEvents { virq: [0; NR_VIRQS as usize], poll: 0, fifo: fifo::VcpuQueues::new() }
    }
}

/// Is a virtual interrupt one per domain (bound on vCPU 0), not one per vCPU?
pub fn virq_is_global(virq: u32) -> bool {
    !matches!(virq, event::VIRQ_TIMER | event::VIRQ_DEBUG | event::VIRQ_XENOPROF | event::VIRQ_XENPMU)
}
