//! What interfaces are and have done.

use super::cards::card_of;
use super::connect::{Plugged, CONFIG};
use super::uplink::{self, Passed, Waits};
use super::vif::Handle;
use xen_abi::channel_op::{self as op, ChannelConnect, ChannelStatus, ChannelWayOut};
use xen_abi::errno::Errno;

/// What an interface is and has done. ENOENT.
pub fn status(handle: Handle) -> Result<ChannelStatus, Errno> {
    let config = CONFIG.lock();
    config.find(handle).map(describe)
}

/// The same of the first one from `place` on. ENOENT.
pub fn next(place: u32) -> Result<ChannelStatus, Errno> {
    let place = u16::try_from(place).map_err(|_| Errno::ENOENT)?;
    let config = CONFIG.lock();
    config.vifs.range(place..).next().map(|(_, plugged)| describe(plugged)).ok_or(Errno::ENOENT)
}

fn describe(plugged: &Plugged) -> ChannelStatus {
    let Plugged { handle, request, .. } = plugged;
    let &ChannelConnect { guest, backend, device, switch, flags, mac, nr_queues, .. } = request;
    let mut status = ChannelStatus {
        vif: handle.raw(),
        next: u32::from(handle.place()) + 1,
        guest,
        backend,
        device,
        switch,
        flags,
        mac,
        nr_queues,
        ..ChannelStatus::default()
    };
    plugged.queues().for_each(|queue| add_queue(&mut status, queue));
    status
}

/// What one of its queues has done is the interface's.
fn add_queue(status: &mut ChannelStatus, queue: Handle) {
    let sides = queue.sides();
    if let Some(tx) = sides.tx.lock().as_deref() {
        let stats = tx.queue.stats;
        status.state |= if tx.queue.fatal().is_some() { op::STATE_TX_ENDED } else { 0 };
        status.tx_waiting += tx.queue.journal().nr_packets();
        status.tx_packets += stats.packets;
        status.tx_bytes += stats.bytes;
        status.tx_errors += stats.errors;
        status.tx_dropped += stats.dropped;
        status.tx_refused += tx.refused;
    }
    if let Some(rx) = sides.rx.lock().as_deref() {
        let stats = rx.queue.stats;
        status.state |= if rx.queue.fatal().is_some() { op::STATE_RX_ENDED } else { 0 };
        status.state |= if rx.backlog.is_stalled() { op::STATE_STALLED } else { 0 };
        status.rx_packets += stats.packets;
        status.rx_bytes += stats.bytes;
        status.rx_errors += stats.errors;
        status.rx_dropped += stats.dropped;
    }
}

/// What a switch's way out is and has done. ENOENT: no such switch.
pub fn way_out(switch: u32) -> Result<ChannelWayOut, Errno> {
    let config = CONFIG.lock();
    config.switches.check(switch)?;
    let mut way = ChannelWayOut { switch, ..ChannelWayOut::default() };
    let Some(plugged) = config.way_out(switch) else { return Ok(way) };
    (way.kind, way.vif, way.domain) = (op::WAY_OUT_INTERFACE, plugged.handle.raw(), plugged.request.guest);
    let card = card_of(&config, switch).and_then(|card| uplink::with(card, |u| (u.waits(), u.sent, u.received)));
    let (waits, sent, received) = if let Some((waits, sent, received)) = card {
        way.kind = op::WAY_OUT_CARD;
        (waits, sent, received)
    } else {
        // Its directions are its domain's.
        let of = describe(plugged);
        let sent = Passed { packets: of.rx_packets, bytes: of.rx_bytes, dropped: of.rx_dropped + of.rx_errors };
        let received = Passed { packets: of.tx_packets, bytes: of.tx_bytes, dropped: of.tx_refused };
        (waits_for(plugged.handle), sent, received)
    };
    way.waiting = waits.packets;
    way.state = if waits.is_stalled { op::STATE_STALLED } else { 0 };
    (way.out_packets, way.out_bytes, way.out_dropped) = (sent.packets, sent.bytes, sent.dropped);
    (way.in_packets, way.in_bytes, way.in_dropped) = (received.packets, received.bytes, received.dropped);
    Ok(way)
}

/// What waits for an interface.
fn waits_for(handle: Handle) -> Waits {
    let rx = handle.sides().rx.lock();
    rx.as_deref().map_or(Waits::default(), |rx| {
        let packets = u16::try_from(rx.backlog.len()).unwrap_or(u16::MAX);
        Waits { packets, is_stalled: rx.backlog.is_stalled() }
    })
}
