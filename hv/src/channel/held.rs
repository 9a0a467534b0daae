//! Packets for outside that wait while their switch has no way out, or one that is drained.
//!
//! They stay in their sender's ring, unanswered, so that it is held back as by a network card that is busy, and none is
//! lost. When there is a way out again they go there, in their order and before what came later; when none comes in
//! time they are lost, as without a wait.

use super::traffic::{self, Batch, Budget};
use super::vif::{Handle, Item, Tx, VIFS};
use super::{switch, timed};
use crate::arch::tsc;
use crate::cpu::requests;
use crate::domain::Domain;
use crate::sched::timers;
use ::channel::switch::{Onward, PortId, Recent, Table};
use ::channel::vif::journal::Token;
use ::channel::vif::rx::Progress;

/// A packet of `tx` for outside waits for the next way out, or goes by the one that there is by now (`now`, in ns). It
/// has a reader of its own until then. `false`: there is to be none, or no room for it, or it has come from outside
/// itself, or it waits already.
#[cold]
pub fn keep(tx: &mut Tx, token: Token, now: u64) -> bool {
    // Whoever makes another table looks at all senders afterwards.
    let Some(table) = switch::table(tx.line.switch) else { return false };
    let is_from_there = table.way_out() == Some(PortId(tx.line.handle.place()));
    let at = if table.uplink().is_some() { Some(now) } else { table.waits_until(now) };
    let Some(at) = at.filter(|_| !is_from_there && tx.held.len() < tx.held.capacity()) else { return false };
    if tx.held.contains(&token) {
        // A card had it in pieces.
        return false;
    }
    // It may have been sent before what waits already.
    let place = tx.queue.place_in(&tx.held, token);
    tx.held.insert(place, token);
    look_at(tx, at);
    true
}

/// A sender is looked at then (ns), or earlier.
pub fn look_at(tx: &mut Tx, at: u64) {
    tx.until = Some(tx.until.map_or(at, |until| until.min(at)));
    timers::arm_channels(at);
}

/// What waits at `tx`, whose guest is `guest`, goes out if there is a way, and is lost if none has come in time.
/// `false`: the portion is spent before all has gone.
#[cold]
pub fn send(tx: &mut Tx, guest: &Domain, table: &Table, now: u64, budget: &mut Budget) -> bool {
    let way = table.uplink();
    if let (None, Some(until)) = (way, table.waits_until(now)) {
        look_at(tx, until);
        return true;
    }
    let mut recent = Recent::default();
    while !tx.held.is_empty() && !budget.is_spent() {
        let token = tx.held.remove(0);
        budget.spend(0);
        let item = Item { sender: tx.line.handle, token, progress: Progress::default() };
        let is_done = match way {
            Some(way) => match traffic::onward(tx, (table, &mut recent), way, token) {
                onward @ (Onward::Goes | Onward::Elsewhere(_)) => {
                    let port = if let Onward::Elsewhere(port) = onward { port } else { way };
                    Batch { table, switch: tx.line.switch, now, may_wait: true, budget }.pass(tx, port, item)
                }
                Onward::Stays => !keep(tx, token, now),
                Onward::Not => true,
            },
            None => {
                tx.refused += 1;
                true
            }
        };
        if is_done {
            tx.complete(guest, token);
        } else if tx.held.first() == Some(&token) {
            // The way has gone meanwhile.
            return true;
        }
    }
    tx.held.is_empty()
}

/// The receiver of a packet, at `port`, has gone since its sender read `table`. What was for outside waits for the next
/// way out, if there is to be one. `true`: it is lost.
#[cold]
pub fn is_lost(tx: &mut Tx, table: &Table, port: PortId, token: Token, now: u64) -> bool {
    table.way_out() != Some(port) || !keep(tx, token, now)
}

/// What has waited for a way out that has gone waits for the next, if there is to be one. No lock of an interface's may
/// be held.
pub fn put(item: Item) {
    {
        let mut side = item.sender.sides().tx.lock();
        let Some(tx) = side.as_deref_mut().filter(|tx| tx.line.handle == item.sender) else { return };
        if keep(tx, item.token, tsc::now_ns()) {
            return;
        }
    }
    traffic::done(item);
}

/// What waits for an interface that was the way out waits for the next. No lock of an interface's may be held.
pub fn put_all(receiver: Handle, now: u64) {
    let first = || receiver.sides().rx.lock().as_deref_mut()?.backlog.pop(now);
    while let Some(item) = first() {
        put(item);
        requests::answer();
    }
}

/// Who sends by what its switch was before has ceased when this returns. No lock of an interface's may be held.
pub fn settle() {
    for sides in VIFS.iter().take(timed::places()) {
        drop(sides.tx.lock());
        requests::answer();
    }
}

/// What waits at the interfaces of a switch is looked at, since it has a way out again, or the wait is another. No lock
/// of an interface's may be held.
pub fn go_on(switch: u32, now: u64) {
    for sides in VIFS.iter().take(timed::places()) {
        if let Some(tx) = sides.tx.lock().as_deref_mut().filter(|tx| tx.line.switch == switch && !tx.held.is_empty()) {
            look_at(tx, now);
        }
    }
}
