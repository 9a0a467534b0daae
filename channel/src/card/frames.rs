//! Packets as a network card takes them: whole, or cut into segments; and with their checksums, if it does not sum.

use crate::grants::Frames;
use crate::offload::checksum::completed;
use crate::offload::segment::Cutter;
use crate::packet::{View, HEADER_BYTES};
use crate::vif::features::Accepts;
use crate::vif::rx::Progress;

/// What a card takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Bytes of the longest frame, from its Ethernet header on.
    pub max_frame: u32,
    /// Checksums that it completes, and what it cuts.
    pub accepts: Accepts,
}

/// A card that has room for a frame now and then.
pub trait Card<F> {
    /// Room for a frame. Dropped, it is given back.
    type Room;

    /// Room for so many bytes, if there is any now.
    fn reserve(&mut self, bytes: u32) -> Option<Self::Room>;
    /// Sends a frame, whose checksum may be blank if the card completes it. It fits into the room.
    fn send(&mut self, room: Self::Room, frame: &View<'_, F>);
}

/// What [`send`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The card has the packet.
    Done,
    /// The card has no room for it, or for its next segment.
    NoRoom,
    /// The card cannot take such a packet.
    Unfit,
}

/// Gives a packet to a card. Is it to be cut, then `progress` says where to go on after [`Sent::NoRoom`]; otherwise nothing was done then.
pub fn send<F: Copy, C: Card<F>>(
    card: &mut C,
    takes: &Takes,
    view: &View<'_, F>,
    frames: &impl Frames<F>,
    progress: &mut Progress,
) -> Sent {
    if view.gso.is_none_or(|gso| takes.accepts.gso(gso.kind)) {
        return send_one(card, takes, view, frames);
    }
    let Some(cutter) = Cutter::new(*view) else { return Sent::Unfit };
    let mut buffer = [0; HEADER_BYTES];
    while progress.segments < cutter.nr_segments() {
        match send_one(card, takes, &cutter.segment(progress.segments, &mut buffer), frames) {
            Sent::Done => progress.segments += 1,
            other => return other,
        }
    }
    Sent::Done
}

fn send_one<F: Copy, C: Card<F>>(card: &mut C, takes: &Takes, view: &View<'_, F>, frames: &impl Frames<F>) -> Sent {
    if view.is_empty() || view.len() > takes.max_frame {
        return Sent::Unfit;
    }
    // First, because a sum that nobody needs is dear.
    let Some(room) = card.reserve(view.len()) else { return Sent::NoRoom };
    if takes.accepts.checksum(view) {
        card.send(room, view);
        return Sent::Done;
    }
    let mut buffer = [0; HEADER_BYTES];
    let Some(frame) = completed(view, frames, &mut buffer) else { return Sent::Unfit };
    card.send(room, &frame);
    Sent::Done
}

#[cfg(test)]
mod tests;
