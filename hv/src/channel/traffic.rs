//! Packets on their way: out of transmit rings, through the switch, into receive rings.

use super::access::{Bytes, Held};
use super::vif::{at_port, Handle, Item, Rx, Sides, Tx};
use super::{held, late, switch, uplink};
use crate::arch::tsc;
use crate::domain::Domain;
use crate::sched::timers;
use ::channel::packet::{Size, View};
use ::channel::ring::RingError;
use ::channel::switch::{Drop, Forward, Onward, PortId, Recent, Table};
use ::channel::vif::journal::Token;
use ::channel::vif::rx::{Delivered, Progress};
use ::channel::vif::tx::{Left, Take};
use ::channel::vif::waiting::Sender;
use alloc::sync::Arc;
use xen_abi::io::netif::XEN_NETIF_TX_RING_SIZE;

/// What a portion of work may cost, in bytes that are copied.
const PORTION: u32 = 128 << 10;
/// What everything that is done for a packet costs, in bytes.
const EACH: u32 = 1 << 10;
/// How often it is looked whether a guest has posted pages meanwhile. One that posts and takes back gets no more.
const LOOKS: u32 = 3;
/// Slots of a sender that may wait for their receivers. The rest of its ring is for what goes elsewhere: one who takes
/// nothing keeps nobody from sending to others. All of it may wait for the way out: there a sender is held back, as by
/// a network card.
const MAY_WAIT: u32 = XEN_NETIF_TX_RING_SIZE / 2;
/// Packets that wait are looked at so often, in ns.
pub const TICK_NS: u64 = 1_000_000_000;

/// What is left of a portion.
pub struct Budget(u32);

impl Default for Budget {
    fn default() -> Self {
        Self(PORTION)
    }
}

impl Budget {
    /// Something was done for `bytes` bytes.
    #[inline]
    pub fn spend(&mut self, bytes: u32) {
        self.0 = self.0.saturating_sub(EACH.saturating_add(bytes));
    }

    /// A receiver got so many segments of a packet that is cut for it: each is work as for a packet of its own.
    #[inline]
    pub fn spend_segments(&mut self, segments: u32) {
        // Most packets are not cut.
        if segments > 0 {
            self.0 = self.0.saturating_sub(EACH.saturating_mul(segments));
        }
    }

    /// Nothing is left.
    #[inline]
    pub fn is_spent(&self) -> bool {
        self.0 == 0
    }
}

/// Why an interface is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Its guest has notified, or might have something.
    Usual,
    /// A vCPU of its guest goes to sleep, that may wait for answers.
    Asleep,
}

/// How a ring was left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// There is more.
    More,
    /// It will be looked at soon.
    Late,
    /// Nothing is to be done.
    Done,
}

/// Passes on what an interface's guest has sent. `true`: there is more.
pub fn transmit(handle: Handle, look: Look, budget: &mut Budget) -> bool {
    let mut side = handle.sides().tx.lock();
    let is_its = |tx: &&mut Tx| tx.line.handle == handle && tx.queue.fatal().is_none();
    let Some(tx) = side.as_deref_mut().filter(is_its) else { return false };
    let Some(guest) = tx.line.guest().filter(|guest| !guest.dma_faults.has_any()) else { return false };
    let Some(table) = switch::table(tx.line.switch) else { return false };
    let now = tsc::now_ns();
    let rest = take_all(tx, &guest, &table, now, budget);
    tx.ahead.finish();
    let may_wait = rest == Rest::Late && look == Look::Usual;
    if !may_wait || !tx.queue.answers_may_wait(now) {
        tx.push(&guest);
    }
    rest == Rest::More
}

#[inline]
fn take_all(tx: &mut Tx, guest: &Domain, table: &Table, now: u64, budget: &mut Budget) -> Rest {
    if !tx.held.is_empty() && !held::send(tx, guest, table, now, budget) {
        return Rest::More;
    }
    let mut recent = Recent::default();
    while !budget.is_spent() {
        // Its grants are not locked any more when the packet goes on.
        let taken = tx.queue.take(&mut tx.line.grants(guest).locked(), &Bytes, now, &mut tx.packet);
        match taken {
            Ok(Take::Packet(token)) => {
                let forward = recent.forward(table, PortId(tx.line.handle.place()), tx.packet.header());
                pass_on(tx, guest, (table, forward), token, now, budget);
            }
            Ok(Take::Nothing) => {
                let place = late::place_for(tx.line.handle.raw());
                match (tx.queue.leave(now, place.is_some()), place) {
                    (Ok(Left::Work), _) => budget.spend(0),
                    (Ok(Left::Late), Some(place)) => {
                        late::put_off(place, tx.line.handle.raw(), [tx.line.guest; 2], now);
                        return Rest::Late;
                    }
                    (Ok(_), _) => return Rest::Done,
                    (Err(_), _) => return ended(tx),
                }
            }
            Ok(Take::Refused) => budget.spend(0),
            Ok(Take::Multicast(change)) => {
                // Groups are not filtered, so its wish is met whatever it is.
                tx.queue.answer_multicast(change, true);
                budget.spend(0);
            }
            Ok(Take::NoCredit { until }) => {
                // What is held may have to be looked at before.
                held::look_at(tx, until);
                return Rest::Done;
            }
            Err(_) => return ended(tx),
        }
    }
    Rest::More
}

/// The guest has written to its ring what cannot be: it is not looked at any more.
#[cold]
fn ended(tx: &mut Tx) -> Rest {
    if let Some(fatal) = tx.queue.fatal() {
        tx.line.warn_ended(&fatal);
    }
    Rest::Done
}

/// The packet in hand goes where it belongs. It is charged whatever becomes of it: its sender may fill its slot again
/// at once.
#[inline]
fn pass_on(
    tx: &mut Tx,
    guest: &Domain,
    (table, forward): (&Table, Forward),
    token: Token,
    now: u64,
    budget: &mut Budget,
) {
    let sender = tx.line.handle;
    let item = Item { sender, token, progress: Progress::default() };
    let is_below_half = tx.queue.unanswered() <= MAY_WAIT;
    let may_wait = is_below_half || table.uplink().is_some_and(|out| forward == Forward::To(out));
    let mut batch = Batch { table, switch: tx.line.switch, now, may_wait, budget };
    let is_done = match forward {
        Forward::To(port) => batch.pass(tx, port, item),
        Forward::Flood => {
            // Perhaps nobody hears it.
            batch.budget.spend(0);
            for port in table.others(PortId(sender.place())) {
                batch.may_wait = is_below_half || table.uplink() == Some(port.id);
                // Each receiver is one more reader; one that has it is none any more.
                if tx.queue.hold(token).is_ok() && batch.pass(tx, port.id, item) {
                    tx.complete(guest, token);
                }
            }
            // So is the outside, whose way may come later.
            if table.waits_until(now).is_some() && tx.queue.hold(token).is_ok() && !held::keep(tx, token, now) {
                tx.complete(guest, token);
            }
            true
        }
        Forward::Drop(Drop::Nobody) if table.waits_until(now).is_some() && held::keep(tx, token, now) => {
            batch.budget.spend(0);
            false
        }
        Forward::Drop(_) => {
            tx.refused += 1;
            batch.budget.spend(0);
            true
        }
    };
    if is_done {
        tx.complete(guest, token);
    }
}

/// What packets of one sender have in common.
pub struct Batch<'a> {
    /// Where addresses are.
    pub table: &'a Table,
    /// In which switch.
    pub switch: u32,
    /// Time in ns.
    pub now: u64,
    /// The sender has room in its ring for packets that are not answered.
    pub may_wait: bool,
    /// What is left of the portion.
    pub budget: &'a mut Budget,
}

impl Batch<'_> {
    /// The packet in the hand of `tx` goes to a port. `false`: it waits there. It is charged afterwards, since one that
    /// was begun goes as a whole; and here for all ways that it may go, also where it is lost.
    #[inline(always)]
    pub fn pass(&mut self, tx: &mut Tx, port: PortId, item: Item) -> bool {
        let is_done = match at_port(port) {
            Some(sides) => self.pass_to(tx, port, sides, item),
            None => uplink::pass(self, tx, port, item),
        };
        self.budget.spend(tx.packet.len());
        is_done
    }

    /// The same, to a guest.
    #[inline(never)]
    fn pass_to(&mut self, tx: &mut Tx, port: PortId, Sides { rx, .. }: &'static Sides, mut item: Item) -> bool {
        let packet = tx.packet.view();
        let mut side = rx.lock();
        // The table may be an old one, and the place another's by now.
        let is_its = |rx: &&mut Rx| rx.line.switch == self.switch && rx.joined <= self.table.generation();
        let rx = side.as_deref_mut().filter(is_its);
        let Some((rx, guest)) = rx.and_then(|rx| rx.line.guest().map(|guest| (rx, guest))) else {
            drop(side);
            return held::is_lost(tx, self.table, port, item.token, self.now);
        };
        rx.queue.keep_few_unread(rx.backlog.sends(tx.line.interface, self.now));
        let may_begin = rx.backlog.is_empty() && !self.budget.is_spent();
        let is_done = may_begin && deliver(rx, &guest, packet, &mut item.progress);
        self.budget.spend_segments(item.progress.segments);
        if is_done {
            return true;
        }
        // Of one that is cut there may be room for more.
        let is_full = may_begin && item.progress == Progress::default();
        let sender = Sender { nr: tx.line.interface, weight: tx.line.weight };
        self.wait(rx, sender, packet.size(), item, is_full)
    }

    /// A packet waits, if it may.
    #[cold]
    fn wait(&self, rx: &mut Rx, sender: Sender, size: Size, item: Item, is_full: bool) -> bool {
        let is_first = rx.backlog.is_empty();
        if !self.may_wait || rx.backlog.push(sender, item, size, self.now).is_err() {
            rx.queue.stats.dropped += 1;
            return true;
        }
        // Whoever comes behind others goes on with them. Without room the guest will notify; else it is only that this
        // portion is spent.
        let may_go_on = is_first && !is_full;
        timers::arm_channels(if may_go_on { self.now } else { self.now.saturating_add(TICK_NS) });
        false
    }
}

/// Copies a packet to `guest`, whose receive side this is, and shows it. `false`: there is no room.
#[inline]
pub fn deliver(rx: &mut Rx, guest: &Domain, packet: View<'_, Held>, progress: &mut Progress) -> bool {
    let is_done = put(rx, guest, packet, progress);
    show(rx, guest);
    is_done
}

/// Lets `guest` see what was put into its ring.
#[inline]
pub fn show(rx: &mut Rx, guest: &Domain) {
    if rx.queue.push() {
        rx.line.notify(guest);
    }
}

/// Copies a packet to `guest`, whose receive side this is; [`show`] lets it see that. `false`: there is no room.
#[inline]
pub fn put(rx: &mut Rx, guest: &Domain, packet: View<'_, Held>, progress: &mut Progress) -> bool {
    if rx.queue.fatal().is_some() {
        rx.queue.stats.dropped += 1;
        return true;
    }
    let before = *progress;
    let delivered = rx.queue.deliver(&mut rx.line.grants(guest).locked(), &Bytes, packet, progress);
    match delivered {
        Ok(Delivered::Done) => true,
        not_done => put_again(rx, guest, packet, progress, (before, not_done)),
    }
}

/// The same, of a packet that was `delivered` so at the first attempt, `before` which it was so far. Once segments have
/// gone it is not looked again: so many go for what a packet may cost, and the rest is charged anew.
#[cold]
fn put_again(
    rx: &mut Rx,
    guest: &Domain,
    packet: View<'_, Held>,
    progress: &mut Progress,
    (before, mut delivered): (Progress, Result<Delivered, RingError>),
) -> bool {
    let mut looks = 0;
    loop {
        match delivered {
            Ok(Delivered::Done) => return true,
            Ok(Delivered::NoRoom { slots }) => match rx.queue.ask_for_event(slots) {
                Ok(true) if looks < LOOKS && *progress == before => looks += 1,
                Ok(_) => return false,
                Err(_) => return receiver_ended(rx),
            },
            Ok(Delivered::Part) => return false,
            Ok(Delivered::Unfit) => {
                rx.queue.stats.dropped += 1;
                return true;
            }
            Err(_) => return receiver_ended(rx),
        }
        delivered = rx.queue.deliver(&mut rx.line.grants(guest).locked(), &Bytes, packet, progress);
    }
}

/// The guest has written to its receive ring what cannot be: packets to it are lost.
#[cold]
fn receiver_ended(rx: &mut Rx) -> bool {
    rx.queue.stats.dropped += 1;
    if let Some(fatal) = rx.queue.fatal() {
        rx.line.warn_ended(&fatal);
    }
    true
}

/// What waits for an interface goes on, as far as there is room. `true`: there may be more.
pub fn refill(handle: Handle, budget: &mut Budget) -> bool {
    let now = tsc::now_ns();
    while !budget.is_spent() {
        let first = {
            let mut side = handle.sides().rx.lock();
            let Some(rx) = side.as_deref_mut().filter(|rx| rx.line.handle == handle) else { return false };
            let Some(item) = rx.backlog.first().copied() else {
                rx.backlog.has_room(now);
                return false;
            };
            item
        };
        if !retry(handle, first, now, budget) {
            return false;
        }
    }
    true
}

/// Tries once more to deliver `item`, which waits for `handle`. `false`: there is no room for any of it.
fn retry(handle: Handle, mut item: Item, now: u64, budget: &mut Budget) -> bool {
    let mut sender = item.sender.sides().tx.lock();
    let mut side = handle.sides().rx.lock();
    let Some(rx) = side.as_deref_mut().filter(|rx| rx.line.handle == handle) else { return false };
    budget.spend(0);
    if rx.backlog.first() != Some(&mut item) {
        // Somebody else was quicker.
        return true;
    }
    let Some(tx) = sender.as_deref_mut().filter(|tx| tx.line.handle == item.sender) else {
        // Its sender is gone, and the packet with it.
        rx.backlog.pop(now);
        return true;
    };
    let (Some(from), Some(to)) = (tx.line.guest(), rx.line.guest()) else { return false };
    let before = item.progress;
    let mut again = Again::of(tx);
    let is_done = match again.onward(tx, PortId(handle.place()), item.token) {
        Onward::Goes => {
            let is_done = deliver(rx, &to, tx.packet.view(), &mut item.progress);
            budget.spend(tx.packet.len());
            budget.spend_segments(item.progress.segments - before.segments);
            is_done
        }
        Onward::Stays => false,
        // A card is the way out now instead of this interface.
        Onward::Elsewhere(port) if again.is_way_out(port) => {
            rx.backlog.pop(now);
            drop(side);
            again.pass(tx, &from, port, item, now, budget);
            return true;
        }
        Onward::Elsewhere(_) | Onward::Not => true,
    };
    if !is_done {
        if let Some(first) = rx.backlog.first() {
            *first = item;
        }
        // Some of its segments have gone: it is tried again, in this portion or the next one.
        return item.progress != before;
    }
    rx.backlog.pop(now);
    drop(side);
    tx.complete(&from, item.token);
    tx.push(&from);
    true
}

/// Makes a packet of `tx` that waits for `receiver` anew, and decides on it by `table`: its sender may have changed it
/// meanwhile, so that it does not go there any more. It is passed on by the same table: another one may have ports that
/// this one does not know, and that refuse what comes by it.
pub fn onward(tx: &mut Tx, (table, recent): (&Table, &mut Recent), receiver: PortId, token: Token) -> Onward {
    if !tx.queue.rebuild(token, &Bytes, &mut tx.packet) {
        return Onward::Not;
    }
    let from = PortId(tx.line.handle.place());
    table.onward(receiver, recent.forward(table, from, tx.packet.header()))
}

/// By what packets of one sender that have waited are decided on again, as long as its transmit side is held.
pub struct Again {
    table: Option<Arc<Table>>,
    recent: Recent,
}

impl Again {
    /// By its switch as it is now.
    pub fn of(tx: &Tx) -> Self {
        Self { table: switch::table(tx.line.switch), recent: Recent::default() }
    }

    /// [`onward`] by this table.
    pub fn onward(&mut self, tx: &mut Tx, receiver: PortId, token: Token) -> Onward {
        self.table.as_ref().map_or(Onward::Not, |table| onward(tx, (table, &mut self.recent), receiver, token))
    }

    /// Is a port the way out?
    fn is_way_out(&self, port: PortId) -> bool {
        self.table.as_ref().is_some_and(|table| table.uplink() == Some(port))
    }

    /// The packet in the hand of `tx`, whose guest is `guest`, has waited for another port than the one that it goes to
    /// now: it goes there, or waits there. No lock but that of `tx` may be held.
    #[cold]
    fn pass(&self, tx: &mut Tx, guest: &Domain, port: PortId, item: Item, now: u64, budget: &mut Budget) {
        let item = Item { progress: Progress::default(), ..item };
        let is_done = self.table.as_ref().is_none_or(|table| {
            let may_wait = tx.queue.unanswered() <= MAY_WAIT || table.uplink() == Some(port);
            Batch { table, switch: tx.line.switch, now, may_wait, budget }.pass(tx, port, item)
        });
        tx.ahead.finish();
        if is_done {
            tx.complete(guest, item.token);
        }
        tx.push(guest);
    }
}

/// A packet will not reach its receiver, or has: its sender is answered.
pub fn done(item: Item) {
    answer(item.sender, [item.token]);
}

/// Readers of packets of one sender are done with them. If nobody else reads them they are answered.
pub fn answer(sender: Handle, tokens: impl IntoIterator<Item = Token>) {
    let mut side = sender.sides().tx.lock();
    let Some(tx) = side.as_deref_mut().filter(|tx| tx.line.handle == sender) else { return };
    if let Some(guest) = tx.line.guest() {
        tx.complete_all(&guest, tokens);
        tx.push(&guest);
    }
}
