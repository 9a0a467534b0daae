//! Key `n`: how far the rings of guests' network interfaces are.

use super::say;
use crate::arch::tsc;
use crate::channel::{queue_from, Queue, Receives, Sends};
use channel::ring::Indices;
use core::fmt::{self, Display, Formatter};

pub(super) fn print() {
    let mut from = 0;
    while let Some(Queue { place, guest, port, sends, receives }) = queue_from(from) {
        from = place + 1;
        say!("vif {place}: d{guest} port {port}");
        if let Some(Sends { ring, packets, held, until, has_ended }) = sends {
            say!(
                "  sends: {}{}; {packets} packets not answered, {held} of them held; {}",
                Ring(ring),
                Ended(has_ended),
                Due(until)
            );
        }
        if let Some(Receives { ring, waiting, has_ended }) = receives {
            say!("  receives: {}{}; {waiting} packets wait", Ring(ring), Ended(has_ended));
        }
    }
}

struct Ring(Indices);

impl Display for Ring {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Indices { req_prod, req_cons, rsp_prod, pushed, req_event, rsp_event } = self.0;
        write!(f, "requests {req_prod} made, {req_cons} taken, event at {req_event}; ")?;
        write!(f, "responses {rsp_prod} written, {pushed} shown, event at {rsp_event}")
    }
}

struct Ended(bool);

impl Display for Ended {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { ", ended" } else { "" })
    }
}

/// When it is looked at though nobody notifies.
struct Due(Option<u64>);

impl Display for Due {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(at) = self.0 else { return f.write_str("looked at when its guest notifies") };
        let now = tsc::now_ns();
        match at.checked_sub(now) {
            Some(left) => write!(f, "looked at in {left} ns"),
            None => write!(f, "to be looked at since {} ns", now - at),
        }
    }
}
