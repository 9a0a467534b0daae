//! Device channels: the hypervisor's own end of guests' network interfaces, and the switch between them; and that of
//! their disks ([`disk`]).
//!
//! The control domain's daemon plugs an interface in ([`connect`]): from then on the hypervisor holds both rings by the
//! guest's grants and its ports as the other end. When the guest notifies, what it has sent is passed on in the
//! notifying vCPU's time ([`traffic`]), in portions between which the CPU does other work; one that sends a lot
//! notifies only now and then ([`late`]). Nothing is mapped, no other domain runs. What is decided about
//! a packet is decided in the crate `channel`; here are locks, time, grants and events. What is promised is
//! `docs/channels.md`.
//!
//! Each interface has two locks, one for each direction, in places that are there for ever:
//!
//! - its *transmit* side: ring, journal, the packet in hand. Held while a packet of it is read, so that its grants stay
//!   in use.
//! - its *receive* side: ring and backlog. Taken while a transmit side is held, one at a time.
//!
//! What is for outside while a switch has no way out, because its driver domain is being replaced, waits at its sender
//! ([`held`]).
//!
//! A network card that a twin drives ([`uplink`]) has one, with what waits for it. What domains ask of their PCI
//! devices' back end is answered in [`pci`].
//!
//! Lock order: what is plugged in ([`connect`]), a transmit side, a receive side or a card, a switch's table; then the
//! locks of domains (grants, events): rows 40, 60, 70, 80, 180 and 190 of `docs/architecture.md`.

mod access;
mod cards;
mod connect;
pub mod disk;
mod held;
mod inlet;
mod late;
mod look;
pub mod pci;
mod recount;
mod status;
mod switch;
mod timed;
mod traffic;
mod tray;
mod uplink;
mod vif;

pub use connect::{connect, create_switch, destroy_switch, disconnect, drain, hold, lose_only_device};
pub use look::{queue_from, Queue, Receives, Sends};
pub use recount::tell;
pub use status::{next, status, way_out};
pub use timed::hold_still;
pub use vif::Handle;

use crate::domain::Domain;
use crate::sched::run;
use crate::twin::net;
use traffic::{Budget, Look};
use xen_abi::errno::Errno;

/// Device channels get their time, and hear of network cards.
pub fn install() {
    run::install_channel_work(timed::work, look_after);
    net::install(net::Hooks {
        attached: cards::attached,
        detached: cards::detached,
        received: inlet::received,
        received_in_pieces: inlet::received_in_pieces,
        lost: inlet::lost,
        transmitted: uplink::transmitted,
        unsent: uplink::unsent,
    });
}

/// Looks at what this CPU looks after: all, or what a domain has at one end, a vCPU of which goes to sleep.
fn look_after(of: Option<u16>) {
    let Some(_works) = timed::try_work() else { return late::put_off_all() };
    let why = if of.is_some() { Look::Asleep } else { Look::Usual };
    late::work(of, |name| {
        if name & disk::DISK_EVENT != 0 {
            disk::serve(name)
        } else {
            traffic::transmit(Handle::of_raw(name), why, &mut Budget::default())
        }
    });
}

/// The port of this name is gone: so is what it was for.
pub fn lost_port(cookie: u32) {
    if cookie & disk::DISK_EVENT != 0 {
        disk::lost_port(cookie);
    } else if cookie & pci::PCI_EVENT == 0 {
        connect::lost_port(cookie);
    }
}

/// Lets everything go that `d`, which is dying, has or is the back end of. ERESTART: to be called again.
pub fn forget_domain(d: &Domain) -> Result<(), Errno> {
    pci::forget(d);
    connect::forget_domain(d)?;
    disk::forget_domain(d)
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// What it asks for is done.
    All,
    /// There is more to do.
    InPart,
    /// Events by this port are not diverted here any more, and this one is for whom it is connected with.
    NotHere,
}

/// Does what an event of an interface, a disk or a PCI front end asks for, whose port has this name.
pub fn serve(cookie: u32) -> Served {
    let has_more = if cookie & disk::DISK_EVENT != 0 {
        disk::serve(cookie)
    } else if cookie & pci::PCI_EVENT == 0 {
        serve_interface(cookie)
    } else if pci::serve(cookie) {
        false
    } else {
        return Served::NotHere;
    };
    if has_more {
        Served::InPart
    } else {
        Served::All
    }
}

fn serve_interface(cookie: u32) -> bool {
    let handle = Handle::of_cookie(cookie);
    let mut budget = Budget::default();
    let mut more = false;
    if cookie & vif::RX_EVENT != 0 {
        more |= traffic::refill(handle, &mut budget);
    }
    if cookie & vif::TX_EVENT != 0 {
        more |= traffic::transmit(handle, Look::Usual, &mut budget);
    }
    more
}
