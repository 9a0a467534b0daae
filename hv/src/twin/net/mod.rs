//! Network cards that a twin drives: what is queued goes out by the driver's own transmit routine, what its polls find
//! comes in.
//!
//! A domain gives its twin a card with `TWINOP_ATTACH` ([`card`]). Whoever has packets for it (device channels) has
//! [`Rooms`], copies each packet into one of them, and sends it ([`slot`], [`queue`]); what happens to the packet, and
//! what comes from the wire, it hears by its [`Hooks`]. It lies beside, so the hooks are installed.
//!
//! A card has a *lane* for each of its transmit queues, to which its interrupts and polls are dealt, too ([`lane`],
//! [`twin_runtime::linux::lanes`]). A lane has one *runner* at a time, whichever CPU finds something to do in it on its
//! way out of the hypervisor or while it idles ([`drive`], [`turn`]): handlers of interrupts ([`lines`]), polls, what
//! waits to be sent. Who comes second leaves a note of what he wants, and the first looks again. An invocation that
//! waits for a function of the domain holds its lane up until the domain has fetched and done that ([`upcall`]); other
//! lanes go on, in other instances.
//!
//! Lock order: whether cards run or are still ([`hold_still`]), a twin's place, its card ([`place`]), runners of lanes
//! (all of a card's in their order, or one), an instance's slot, then a lane's queue or a card's lines, which are
//! leaves. Who makes a card's lanes has a turn ([`card`]) before their queues. A runner does not wait for its card.
//! Hooks are called with all but the leaves held. Who calls [`Rooms`] may hold any lock of device channels': those are
//! short, and run no twin. They are rows 20, 30 and 110 of `docs/architecture.md`, hooks take rows 40 to 80.

mod attached;
mod card;
mod drive;
mod lane;
mod lines;
mod link;
mod place;
mod queue;
mod receive;
mod slot;
mod turn;
mod upcall;

pub use card::{attach, detach, forget, forget_domain};
pub use drive::{hold_still, install as install_work};
pub use link::{install, About, Card, CardQueue, Checksum, Hooks, Piece, Received, Said, Segments, Takes, MAX_CARDS};
pub use place::is_attached;
pub use receive::OnCard;
pub use slot::{Need, Room, Rooms};
pub use upcall::{next, resume};

pub use twin_runtime::linux::inbox::Kept;
pub use twin_runtime::linux::skb::Many;
