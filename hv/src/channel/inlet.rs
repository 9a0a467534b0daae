//! What a network card receives: from its buffers into guests' rings.

use super::access::{Bytes, Held};
use super::vif::{at_port, Rx, Sides};
use super::{switch, traffic, uplink};
use crate::twin::net::{Card, Piece, Received};
use ::channel::card::arrival::Arrival;
use ::channel::packet::{Fragment, View};
use ::channel::switch::{Forward, PortId, Table};
use ::channel::vif::rx::Progress;

/// A frame came from the wire. A guest without room loses it.
pub fn received(card: Card, frame: &Received<'_>) {
    let Some(link) = uplink::with(card, |uplink| uplink.link()).flatten() else { return };
    let Some(table) = switch::table(link) else { return };
    let held = |p: &Piece| Fragment { frame: Held::by_card(p.frame), offset: p.offset, len: p.len };
    let mut arrival = Arrival::default();
    let view = arrival.open(frame.pieces.iter().map(held), &Bytes, frame.is_verified);
    let forward = view.as_ref().map(|view| table.forward(uplink::port(card), view.header));
    let is_passed = match (view, forward) {
        (Some(view), Some(Forward::To(port))) => {
            give(&view, port, link, &table);
            true
        }
        (Some(view), Some(Forward::Flood)) => {
            table.others(uplink::port(card)).for_each(|port| give(&view, port.id, link, &table));
            true
        }
        _ => false,
    };
    let bytes = frame.pieces.iter().map(|piece| u64::from(piece.len)).sum();
    uplink::with(card, |uplink| uplink.count_received(bytes, is_passed));
}

/// A frame goes to a port, if there is room now.
fn give(view: &View<'_, Held>, port: PortId, switch: u32, table: &Table) {
    let Some(Sides { rx, .. }) = at_port(port) else { return };
    let mut side = rx.lock();
    // The table may be an old one, and the place another's by now.
    let is_its = |rx: &&mut Rx| rx.line.switch == switch && rx.joined <= table.generation();
    let Some(rx) = side.as_deref_mut().filter(is_its) else { return };
    let Some(guest) = rx.line.guest() else { return };
    // Whatever waits: those are others' packets, and who keeps many of them waiting must not keep the network away.
    let is_done = traffic::deliver(rx, &guest, view, &mut Progress::default());
    rx.queue.stats.dropped += u64::from(!is_done);
}
