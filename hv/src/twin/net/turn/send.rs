//! What a turn sends: what waits, as far as the queue goes, and what has become of it.

use super::{Stop, Turn, BUSY_NS};
use crate::arch::tsc;
use crate::cpu::requests;
use crate::twin::net::lane::Job;
use crate::twin::net::link::hooks;
use crate::twin::net::queue::Outgoing;
use core::sync::atomic::Ordering;
use twin_runtime::linux::pool::{Pool, Search};
use twin_runtime::linux::queue::Begun;
use twin_runtime::linux::skb::{Packet, GSO_TCP_V4, GSO_TCP_V6};
use twin_runtime::memory::Fault;
use twin_runtime::Reason;

/// Packets that are sent at once, before it is looked whether something came.
const SEND_AT_ONCE: usize = 64;
/// Until a stopped queue is looked at again although nobody woke it, in ns: its own driver may have, on the domain's
/// side.
const STOPPED_NS: u64 = 1_000_000;
/// From one look at what the domain has freed itself to the next, in ns.
const RECLAIM_NS: u64 = 50_000_000;
/// A packet that has waited for so long for a stopped queue is lost.
const MOST_NS: u64 = 2_000_000_000;
/// What a transmit routine returns is below this if it has taken the packet, and negative if it has lost it.
const NOT_TAKEN: i32 = 0x10;

/// Sends what waits, as far as it goes.
pub(super) fn send_all(turn: &mut Turn<'_>, now: u64) -> Result<(), Stop> {
    if !turn.progress.may_send || turn.progress.send_at_ns > now {
        return Ok(());
    }
    turn.left_to_send = SEND_AT_ONCE;
    while let Some(left) = turn.left_to_send.checked_sub(1) {
        turn.left_to_send = left;
        if !turn.lane.queue.lock().next_to(&mut turn.progress.packet) {
            turn.progress.may_send = false;
            break;
        }
        let may = may_send(turn, now);
        if !matches!(may, Ok(true)) {
            // It is its sender's to be answered for, also if this is the end of the card.
            put_back(turn);
            may?;
            expire(turn, now);
            break;
        }
        send(turn)?;
        if turn.progress.send_at_ns > now {
            break;
        }
    }
    unlock(turn)
}

/// Takes the transmit lock, if it is not held. `false`: somebody has it, or the queue is stopped.
fn may_send(turn: &mut Turn<'_>, now: u64) -> Result<bool, Stop> {
    let (support, queue) = (&turn.loaded.common.support, turn.own.queue);
    if turn.progress.has_lock {
        let is_open = support.is_open(&turn.session.domain, queue);
        let is_open = turn.check(is_open)?;
        if !is_open {
            turn.progress.send_at_ns = now.saturating_add(STOPPED_NS);
        }
        return Ok(is_open);
    }
    let begun = support.begin_transmit(&mut turn.session.domain, queue);
    let wait_ns = match turn.check(begun)? {
        Begun::Open => {
            turn.progress.has_lock = true;
            return Ok(true);
        }
        Begun::Stopped => STOPPED_NS,
        Begun::Busy => BUSY_NS,
    };
    turn.progress.send_at_ns = now.saturating_add(wait_ns);
    Ok(false)
}

/// Gives the transmit lock back, if it is held.
pub(super) fn unlock(turn: &mut Turn<'_>) -> Result<(), Stop> {
    if !core::mem::take(&mut turn.progress.has_lock) {
        return Ok(());
    }
    let ended = turn.loaded.common.support.end_transmit(&mut turn.session.domain, turn.own.queue, true);
    turn.check(ended)
}

/// Hands a packet to the driver; the transmit lock is held.
#[inline(always)]
fn send(turn: &mut Turn<'_>) -> Result<(), Stop> {
    let Some(Outgoing { skb, cookie, about, .. }) = &turn.progress.packet else { return Ok(()) };
    let (skb, cookie) = (*skb, *cookie);
    let device = turn.attached.device;
    #[allow(clippy::cast_possible_truncation, reason = "less than MAX_LANES")]
    let queue = turn.own.number as u16;
    let checksum = about.checksum.map(|sum| (sum.start, sum.offset));
    let segmentation = about.segments.map(|s| (s.size, s.count, if s.is_v6 { GSO_TCP_V6 } else { GSO_TCP_V4 }));
    let what = Packet { device, header: &[], fragments: &[], checksum, segmentation, queue, cookie };
    let bytes = (about.len, about.more);
    let prepared = turn.loaded.common.support.prepare_reserved(&mut turn.session.domain, skb, bytes, what);
    if !turn.check(prepared)? {
        turn.session.domain.sent(cookie);
        return Ok(());
    }
    turn.has_sent = true;
    turn.call((Job::Send, &turn.counts.packets), turn.attached.start_xmit, [skb, device])
}

/// The transmit routine has returned `value`.
#[inline(always)]
pub(super) fn sent(turn: &mut Turn<'_>, value: i32) -> Result<(), Stop> {
    if value >= NOT_TAKEN {
        refused(turn);
    }
    Ok(())
}

/// The driver has not taken the packet: it waits on.
#[cold]
fn refused(turn: &mut Turn<'_>) {
    let Some(Outgoing { skb, cookie, .. }) = turn.progress.packet else { return };
    if turn.loaded.common.with_pool(|pool| pool.take_over(skb, cookie)) {
        put_back(turn);
        turn.progress.send_at_ns = tsc::now_ns().saturating_add(STOPPED_NS);
    }
}

/// The packet in hand waits on.
#[cold]
fn put_back(turn: &mut Turn<'_>) {
    if let Some(packet) = turn.progress.packet.take() {
        turn.lane.queue.lock().put_back(packet);
    }
}

/// What has waited for too long is lost.
fn expire(turn: &mut Turn<'_>, now: u64) {
    loop {
        let Some(packet) = turn.lane.queue.lock().next_before(now.saturating_sub(MOST_NS)) else { break };
        turn.loaded.common.with_pool(|pool| pool.unreserve(packet.skb));
        turn.session.domain.sent(packet.cookie);
    }
}

/// Now and then takes back what the domain's own kernel has freed: packets that it found to be sent, too.
pub(super) fn reclaim(turn: &mut Turn<'_>, now: u64) -> Result<(), Stop> {
    let due = &turn.attached.reclaim_at_ns;
    let at = due.load(Ordering::Relaxed);
    let next = now.saturating_add(RECLAIM_NS);
    // Of several lanes one does it.
    if now < at || due.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return Ok(());
    }
    let common = &turn.loaded.common;
    let mut search = common.with_pool(Pool::search);
    while !search.is_over() {
        let found = reclaim_portion(turn, &mut search);
        turn.check(found.map_err(Reason::from))?;
        requests::answer();
        if tsc::now_ns() >= turn.session.domain.late_ns {
            // The next turn goes on.
            due.store(now, Ordering::Relaxed);
            break;
        }
    }
    Ok(())
}

/// Of some objects. The pool is not locked for longer.
fn reclaim_portion(turn: &mut Turn<'_>, search: &mut Search) -> Result<(), Fault> {
    let (common, domain) = (&turn.loaded.common, &mut turn.session.domain);
    let mut cookies = [0; 64];
    let mut count = 0;
    let keep = |cookie| match cookies.get_mut(count) {
        Some(to) => {
            (*to, count) = (cookie, count + 1);
            true
        }
        None => false,
    };
    let found = common.with_pool(|pool| pool.reclaim(domain, &common.support.offsets, search, keep));
    cookies[..count].iter().for_each(|cookie| domain.sent(*cookie));
    found.map(|_| ())
}

/// Who found no room hears if there is some. `true`: somebody waits for room.
pub(super) fn wake_senders(turn: &mut Turn<'_>) -> bool {
    let is_starved = &turn.place.is_starved;
    if !is_starved.load(Ordering::Relaxed) {
        return false;
    }
    if !turn.loaded.common.with_pool(|pool| pool.has_room()) {
        return true;
    }
    is_starved.store(false, Ordering::Relaxed);
    if let Some(hooks) = hooks() {
        (hooks.transmitted)(turn.attached.card, &[]);
    }
    is_starved.load(Ordering::Relaxed)
}
