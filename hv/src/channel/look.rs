//! How far interfaces are, for who asks what one of them waits for.

use super::timed;
use super::vif::VIFS;
use ::channel::ring::Indices;

/// How far the transmit side of a queue is.
pub struct Sends {
    /// Its ring.
    pub ring: Indices,
    /// Packets that are not answered.
    pub packets: u16,
    /// Of these, those that wait for a way out.
    pub held: usize,
    /// When it is looked at though nobody notifies, in ns.
    pub until: Option<u64>,
    /// Its ring has ended.
    pub has_ended: bool,
}

/// How far its receive side is.
pub struct Receives {
    /// Its ring.
    pub ring: Indices,
    /// Packets that wait for it.
    pub waiting: usize,
    /// Its ring has ended.
    pub has_ended: bool,
}

/// A queue of an interface. A side may be gone when the other is looked at.
pub struct Queue {
    /// Its place.
    pub place: u16,
    /// Its guest.
    pub guest: u16,
    /// The guest's port.
    pub port: u32,
    /// What it sends.
    pub sends: Option<Sends>,
    /// What it receives.
    pub receives: Option<Receives>,
}

/// The first queue from `place` on. The locks are not held afterwards.
pub fn queue_from(place: u16) -> Option<Queue> {
    (place..).zip(VIFS.iter().take(timed::places()).skip(place.into())).find_map(|(place, sides)| {
        let (mut line, mut sends, mut receives) = (None, None, None);
        if let Some(tx) = sides.tx.lock().as_deref() {
            line = Some(tx.line);
            sends = Some(Sends {
                ring: tx.queue.indices(),
                packets: tx.queue.journal().nr_packets(),
                held: tx.held.len(),
                until: tx.until,
                has_ended: tx.queue.fatal().is_some(),
            });
        }
        if let Some(rx) = sides.rx.lock().as_deref() {
            line = line.or(Some(rx.line));
            receives = Some(Receives {
                ring: rx.queue.indices(),
                waiting: rx.backlog.len(),
                has_ended: rx.queue.fatal().is_some(),
            });
        }
        line.map(|line| Queue { place, guest: line.guest, port: line.port, sends, receives })
    })
}
