//! Packets as a network card takes them: whole, or cut into segments; and with their checksums, if it does not sum.

use crate::grants::Frames;
use crate::offload::checksum::completed;
use crate::offload::headers::{ends_in_tags, is_tagged, TAG};
use crate::offload::segment::Cutter;
use crate::packet::{Checksum, Gso, View, HEADER_BYTES};
use crate::vif::features::Accepts;
use crate::vif::rx::Progress;

/// Bytes of a page.
const PAGE: u16 = 4096;

/// Bytes of the shortest packet that is on a wire. What is shorter drivers lengthen, and not all of their cards leave
/// that out of a sum.
const LEAST: u32 = 60;

/// What a card takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Takes {
    /// Bytes of the longest frame, from its Ethernet header on; of one with a VLAN tag without that.
    pub max_frame: u32,
    /// Checksums that it completes, and what it cuts.
    pub accepts: Accepts,
}

impl Takes {
    /// Is there nothing in this frame, or more than the card takes? A tag comes on top of what a card takes, as bridges
    /// and drivers of Linux have it; a second one does not. What ends within its tags nobody needs, and a driver that
    /// looks for what is behind them finds nothing.
    #[inline(always)]
    fn is_unfit<F: Copy>(&self, view: &View<'_, F>) -> bool {
        let is_long = view.len() > self.max_frame;
        let is_tagged = is_tagged(view.header);
        let is_long = is_long && (view.len() - self.max_frame > TAG || !is_tagged);
        view.is_empty() || is_long || is_tagged && ends_in_tags(view.header)
    }
}

/// A card that has room for a frame now and then.
pub trait Card<F> {
    /// Room for a frame. Dropped, it is given back.
    type Room;

    /// Room for a frame, if there is any now.
    fn reserve(&mut self, frame: &View<'_, F>) -> Option<Self::Room>;
    /// Sends a frame of the length for which the room is. Its checksum may be blank if the card completes it, and it
    /// may be one for many if the card cuts it.
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

/// Does a card take a packet as its sender has it: neither cut nor summed here? Short ones ([`LEAST`]) are soon summed.
#[inline(always)]
pub fn is_plain<F: Copy>(takes: &Takes, view: &View<'_, F>) -> bool {
    let is_blank = matches!(view.checksum, Checksum::Blank { .. });
    view.gso.is_none() && (!is_blank || view.len() >= LEAST && takes.accepts.checksum(view))
}

/// Gives a packet to a card that takes it as it is.
#[inline(always)]
pub fn send_plain<F: Copy, C: Card<F>>(card: &mut C, takes: &Takes, view: &View<'_, F>) -> Sent {
    if takes.is_unfit(view) {
        return Sent::Unfit;
    }
    let Some(room) = card.reserve(view) else { return Sent::NoRoom };
    card.send(room, view);
    Sent::Done
}

/// Gives any packet to a card. Is it to be cut, then `progress` says where to go on after [`Sent::NoRoom`]; otherwise
/// nothing was done then.
#[inline]
pub fn send<F: Copy, C: Card<F>>(
    card: &mut C,
    takes: &Takes,
    view: &View<'_, F>,
    frames: &impl Frames<F>,
    progress: &mut Progress,
) -> Sent {
    match view.gso {
        None => send_one(card, takes, view, frames),
        Some(gso) => send_many(card, takes, view, gso, frames, progress),
    }
}

/// Gives a packet that is one for many to a card: as it is, or cut.
#[inline(never)]
fn send_many<F: Copy, C: Card<F>>(
    card: &mut C,
    takes: &Takes,
    view: &View<'_, F>,
    gso: Gso,
    frames: &impl Frames<F>,
    progress: &mut Progress,
) -> Sent {
    let Some(cutter) = Cutter::new(*view) else { return Sent::Unfit };
    if takes.accepts.gso(gso.kind) && progress.segments == 0 && cutter.is_plain(takes.max_frame) {
        let Some(room) = card.reserve(view) else { return Sent::NoRoom };
        card.send(room, view);
        return Sent::Done;
    }
    let mut buffer = [0; HEADER_BYTES];
    while progress.segments < cutter.nr_segments() {
        match send_one(card, takes, &cutter.segment(progress.segments, &mut buffer), frames) {
            Sent::Done => progress.segments += 1,
            other => return other,
        }
    }
    Sent::Done
}

/// Copies what is behind a frame's header into `pages`, each of which is filled before the next.
pub fn spread<F: Copy>(frame: &View<'_, F>, frames: &impl Frames<F>, pages: &[F]) {
    let mut pages = pages.iter();
    let (mut page, mut at) = (pages.next(), 0);
    for mut piece in frame.pieces() {
        while let Some(to) = page.filter(|_| piece.len > 0) {
            let len = piece.len.min(PAGE - at);
            frames.copy(piece.frame, piece.offset, *to, at, len);
            (piece.offset, piece.len, at) = (piece.offset + len, piece.len - len, at + len);
            if at == PAGE {
                (page, at) = (pages.next(), 0);
            }
        }
    }
}

/// The same of one that is not to be cut, or a segment.
#[inline(never)]
fn send_one<F: Copy, C: Card<F>>(card: &mut C, takes: &Takes, view: &View<'_, F>, frames: &impl Frames<F>) -> Sent {
    if is_plain(takes, view) {
        return send_plain(card, takes, view);
    }
    if takes.is_unfit(view) {
        return Sent::Unfit;
    }
    // First, because a sum that nobody needs is dear.
    let Some(room) = card.reserve(view) else { return Sent::NoRoom };
    let mut buffer = [0; HEADER_BYTES];
    let Some(frame) = completed(view, frames, &mut buffer) else { return Sent::Unfit };
    card.send(room, &frame);
    Sent::Done
}

#[cfg(test)]
mod tests;
