//! What is plugged in: interfaces come and go, whoever wants them to.

use super::access::RingPage;
use super::cards::{card_of, unlink, Attached};
use super::switch::{self, New, Switches};
use super::uplink::{self, Ahead};
use super::vif::{Handle, Line, Rx, Tx, MAX_VIFS, RX_EVENT, TX_EVENT, VIFS};
use super::{held, timed, traffic};
use crate::arch::tsc;
use crate::cpu::requests;
use crate::domain::{self, Domain};
use crate::mem::frames;
use crate::sched::timers;
use crate::sync::Mutex;
use ::channel::packet::Packet;
use ::channel::switch::{is_group, Kind, Port, PortId};
use ::channel::vif::credit::Credit;
use ::channel::vif::features::Accepts;
use ::channel::vif::rx::RxQueue;
use ::channel::vif::tx::TxQueue;
use ::channel::vif::waiting::Waiting;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec::Vec;
use hv_core::evtchn::Binding;
use hv_core::map;
use xen_abi::channel_op::{self as op, ChannelConnect, ChannelQueue};
use xen_abi::errno::Errno;
use xen_abi::io::netif::XEN_NETIF_TX_RING_SIZE;

/// So long what is for outside waits where the way out has lost its device: until who looks after it knows. A toolstack
/// takes a second or two for that.
const LOST_DEVICE_NS: u64 = 5_000_000_000;

/// What is plugged in where.
pub(super) struct Config {
    pub(super) switches: Switches,
    /// By place.
    pub(super) vifs: BTreeMap<u16, Plugged>,
    /// Network cards, by place.
    pub(super) cards: BTreeMap<usize, Attached>,
    /// Connections so far.
    count: u64,
}

/// An interface as it was asked for.
pub(super) struct Plugged {
    pub(super) handle: Handle,
    pub(super) request: ChannelConnect,
    /// Which of all connections so far it is.
    number: u64,
}

/// All of it.
pub(super) static CONFIG: Mutex<Config> =
    Mutex::new(Config { switches: Switches::new(), vifs: BTreeMap::new(), cards: BTreeMap::new(), count: 0 });

/// Makes a switch; its name. ENOSPC, ENOMEM.
pub fn create_switch() -> Result<u32, Errno> {
    if !frames::has_headroom() {
        return Err(Errno::ENOMEM);
    }
    CONFIG.lock().switches.create()
}

/// What is for outside waits for so long (ns) for a way out of a switch that has gone. ENOENT. ENOMEM: those that wait
/// do as before.
pub fn hold(switch: u32, longest: u64) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    config.switches.hold(switch, longest)?;
    config.publish(switch)?;
    held::go_on(switch, tsc::now_ns());
    Ok(())
}

/// What is for outside waits for so long (ns) though the switch has a way out, unless it gets another one. ENOENT,
/// ENODEV. ENOMEM: nothing has changed.
pub fn drain(switch: u32, longest: u64) -> Result<(), Errno> {
    CONFIG.lock().drain(switch, longest)
}

/// What is for outside waits for a while where `d`, which is about to lose its device, is the way out: it would be lost
/// there. It may run on, as under `xl destroy`, which takes devices away first.
pub fn lose_only_device(d: &Domain) {
    let mut config = CONFIG.lock();
    let mut next = Some(0);
    while let Some(from) = next {
        let way_out = config.vifs.range(from..).find(|(_, p)| p.request.guest == d.id && p.is_uplink());
        next = way_out.and_then(|(place, _)| place.checked_add(1));
        let is_drained = |switch: &u32| switch::table(*switch).is_some_and(|table| table.after_drain().is_some());
        // Who drains one has said for how long.
        if let Some(switch) = way_out.map(|(_, p)| p.request.switch).filter(|switch| !is_drained(switch)) {
            // Without memory packets are lost there.
            let _ = config.drain(switch, LOST_DEVICE_NS);
        }
    }
}

/// Forgets a switch. ENOENT; EBUSY while something is plugged into it.
pub fn destroy_switch(switch: u32) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    config.switches.check(switch)?;
    if config.vifs.values().any(|p| p.request.switch == switch) {
        return Err(Errno::EBUSY);
    }
    config.switches.destroy(switch)
}

impl Config {
    fn drain(&mut self, switch: u32, longest: u64) -> Result<(), Errno> {
        let before = self.switches.drain(switch, self.way_out(switch).map(|p| p.handle), longest)?;
        if let Err(error) = self.publish(switch) {
            self.switches.drain_as_before(switch, before);
            return Err(error);
        }
        let now = tsc::now_ns();
        if switch::table(switch).is_some_and(|table| table.after_drain().is_some()) {
            self.take_back(switch, now);
        }
        held::go_on(switch, now);
        Ok(())
    }

    /// The interface that is the way out of a switch, or whose card is.
    pub(super) fn way_out(&self, switch: u32) -> Option<&Plugged> {
        self.vifs.values().find(|p| p.request.switch == switch && p.is_uplink())
    }

    /// The switch gets the ports that it has now; the number of its table. ENOMEM: it keeps the old ones.
    fn publish(&mut self, switch: u32) -> Result<u64, Errno> {
        let new = self.build(switch)?;
        Ok(self.put(switch, new))
    }

    /// A table of the ports that a switch has now. ENOMEM.
    pub(super) fn build(&mut self, switch: u32) -> Result<New, Errno> {
        let all = || self.vifs.iter().filter(|(_, p)| p.request.switch == switch);
        let mut plugged = Vec::new();
        plugged.try_reserve_exact(all().count()).map_err(|_| Errno::ENOMEM)?;
        plugged.extend(all().map(|(place, p)| (p.number, *place)));
        // Of two with one address the later one counts, whichever place it has got.
        let plugged = BinaryHeap::from(plugged).into_sorted_vec();
        let card = card_of(self, switch);
        let mut ports = Vec::new();
        ports.try_reserve_exact(plugged.len() + 1).map_err(|_| Errno::ENOMEM)?;
        ports.extend(plugged.iter().filter_map(|(_, place)| self.vifs.get(place)).map(|p| Port {
            id: PortId(p.handle.place()),
            nr_queues: p.nr_queues(),
            kind: p.kind(card.is_some()),
            mac: p.request.mac,
        }));
        ports.extend(card.map(|card| Port { id: uplink::port(card), nr_queues: 1, kind: Kind::Uplink, mac: [0; 6] }));
        let way = self.way_out(switch).map(|p| p.handle);
        self.switches.build(switch, way, &ports)
    }

    /// It is the switch's from now on; its number.
    pub(super) fn put(&mut self, switch: u32, new: New) -> u64 {
        let generation = self.switches.publish(switch, new);
        if let Some(card) = card_of(self, switch) {
            uplink::link(card, switch, generation);
        }
        generation
    }

    /// Between two ways out of a switch: nothing goes by the old one any more, and what is for outside waits, with what
    /// is taken back from there in its place. If it went by the new one already it would overtake that. Until there is
    /// another table, or [`Self::publish_loss`]. No lock of an interface's may be held.
    pub(super) fn close_way_out(&self, switch: u32) {
        self.switches.close(switch);
        held::settle();
    }

    /// [`Self::publish`], of a switch that has lost a port. Without memory that is an empty place of the old table, and
    /// the way out changes there: who was sent to an empty place for ever would try for ever.
    pub(super) fn publish_loss(&mut self, switch: u32) {
        if self.publish(switch).is_err() {
            let interface = || self.way_out(switch).filter(|p| p.kind(false) == Kind::Uplink);
            let card = card_of(self, switch).map(uplink::port);
            let way = card.or_else(|| interface().map(|p| PortId(p.handle.place())));
            self.switches.lead(switch, way);
        }
    }

    /// What waits for the way out of a switch, which is drained, waits for the next one. No lock of an interface's may
    /// be held.
    fn take_back(&self, switch: u32, now: u64) {
        if let Some(card) = card_of(self, switch) {
            return uplink::take_back(card);
        }
        if let Some(out) = self.way_out(switch) {
            held::put_all(out.handle, now);
        }
    }

    /// The interface of that name. ENOENT.
    pub(super) fn find(&self, handle: Handle) -> Result<&Plugged, Errno> {
        self.vifs.get(&handle.place()).filter(|p| p.handle == handle).ok_or(Errno::ENOENT)
    }

    /// The name of the interface of which this is a queue.
    fn interface_of(&self, queue: Handle) -> Option<Handle> {
        let (_, plugged) = self.vifs.range(..=queue.place()).next_back()?;
        plugged.queues().any(|own| own == queue).then_some(plugged.handle)
    }

    /// The first of so many places in a row that are empty. ENOSPC.
    fn room_for(&self, nr_queues: u8) -> Result<u16, Errno> {
        let mut from = 0;
        for (place, plugged) in &self.vifs {
            if place - from >= u16::from(nr_queues) {
                break;
            }
            from = place + u16::from(plugged.nr_queues());
        }
        if MAX_VIFS - from < u16::from(nr_queues) {
            return Err(Errno::ENOSPC);
        }
        Ok(from)
    }
}

impl Plugged {
    /// How many queues it has.
    pub(super) fn nr_queues(&self) -> u8 {
        #[allow(clippy::cast_possible_truncation, reason = "few, as was seen when it was connected")]
        {
            self.request.nr_queues as u8
        }
    }

    /// Their names, the first of which is its own.
    pub(super) fn queues(&self) -> impl Iterator<Item = Handle> {
        let first = self.handle;
        (0..u16::from(self.nr_queues())).map(move |number| first.queue(number))
    }

    /// It is its switch's way out, unless there is a card.
    pub(super) fn is_uplink(&self) -> bool {
        self.request.flags & op::CONNECT_UPLINK != 0
    }

    /// Sums and segments are left to its card.
    pub fn leaves_sums(&self) -> bool {
        self.request.flags & op::CONNECT_NO_OFFLOAD == 0
    }

    /// What it is to its switch, which has a card or not.
    fn kind(&self, has_card: bool) -> Kind {
        // Nobody would take what is put into the ring of a domain that dies.
        let is_dying = || domain::find(self.request.guest).is_none_or(|guest| guest.is_dying());
        match self.is_uplink() {
            true if has_card || is_dying() => Kind::Driver { is_promiscuous: false },
            true => Kind::Uplink,
            false => Kind::Guest { any_source: self.request.flags & op::CONNECT_ANY_SOURCE != 0 },
        }
    }
}

/// Takes up the rings of a guest's interface. Errors: see [`op::CHANNELOP_VIF_CONNECT`].
pub fn connect(request: &ChannelConnect) -> Result<Handle, Errno> {
    let is_limited = request.rate_bytes != 0;
    let is_uplink = request.flags & op::CONNECT_UPLINK != 0;
    if request.flags & !op::CONNECT_FLAGS != 0
        || request.pad != 0
        || !(1..=op::VIF_MAX_QUEUES).contains(&request.nr_queues)
        || request.nr_queues > 1 && (is_uplink || is_limited)
        || is_group(request.mac)
        || is_limited != (request.rate_interval_us != 0)
        || request.flags & op::CONNECT_NO_OFFLOAD != 0 && !is_uplink
    {
        return Err(Errno::EINVAL);
    }
    if !frames::has_headroom() {
        return Err(Errno::ENOMEM);
    }
    let mut config = CONFIG.lock();
    config.switches.check(request.switch)?;
    let guest = domain::find(request.guest).ok_or(Errno::ESRCH)?;
    let backend = domain::find(request.backend).ok_or(Errno::ESRCH)?;
    // Under the lock: whoever destroys one of them looks for its interfaces later.
    if guest.is_dying() || backend.is_dying() {
        return Err(Errno::EINVAL);
    }
    let same = |p: &Plugged| p.request.guest == request.guest && p.request.device == request.device;
    let other_uplink = |p: &Plugged| is_uplink && p.is_uplink() && p.request.switch == request.switch;
    if config.vifs.values().any(|p| same(p) || other_uplink(p)) {
        return Err(Errno::EBUSY);
    }
    let number = config.count + 1;
    #[allow(clippy::cast_possible_truncation, reason = "a name has the last bits of it")]
    let plugged = Plugged { handle: Handle::new(0, number as u32), request: *request, number };
    let place = config.room_for(plugged.nr_queues())?;
    let handle = plugged.handle.queue(place);
    let plugged = Plugged { handle, ..plugged };
    let mut all = Vec::new();
    all.try_reserve_exact(plugged.nr_queues().into()).map_err(|_| Errno::ENOMEM)?;
    for (queue, rings) in plugged.queues().zip(&request.queues) {
        all.push(sides(&guest, request, (handle, queue), rings)?);
    }

    config.count = number;
    config.vifs.insert(place, plugged);
    let joined = match config.publish(request.switch) {
        Ok(generation) => generation,
        Err(errno) => {
            map::take(&mut config.vifs, &place);
            return Err(errno);
        }
    };
    let now = tsc::now_ns();
    let mut bound = Ok(());
    for (mut tx, mut rx) in all {
        let [tx_line, rx_line] = [tx.line, rx.line];
        // What the guest has sent before anybody heard of it.
        (rx.joined, tx.until) = (joined, Some(now));
        let place = tx_line.handle.place();
        timed::note_place(place);
        *VIFS[usize::from(place)].rx.lock() = Some(rx);
        *VIFS[usize::from(place)].tx.lock() = Some(tx);
        bound = bound.and_then(|()| bind(&guest, &tx_line)).and_then(|()| bind(&guest, &rx_line));
    }
    if let Err(errno) = bound {
        unplug(&mut config, handle);
        return Err(errno);
    }
    timers::arm_channels(now);
    held::go_on(request.switch, now);
    Ok(handle)
}

/// Both sides of a queue of the interface `first`, with its rings. EINVAL, ENOMEM.
fn sides(
    guest: &Domain,
    request: &ChannelConnect,
    (first, handle): (Handle, Handle),
    rings: &ChannelQueue,
) -> Result<(Box<Tx>, Box<Rx>), Errno> {
    let now = tsc::now_ns();
    let has = |flag| request.flags & flag != 0;
    let accepts = Accepts {
        sg: has(op::CONNECT_SG),
        gso_v4: has(op::CONNECT_GSO_TCPV4),
        gso_v6: has(op::CONNECT_GSO_TCPV6),
        csum_v4: has(op::CONNECT_CSUM_IPV4),
        csum_v6: has(op::CONNECT_CSUM_IPV6),
    };
    let page = |gref| RingPage::take(guest, request.backend, gref).map_err(|_| Errno::EINVAL);
    let line = |port, event: u32| {
        let both = if rings.tx_port == rings.rx_port { TX_EVENT | RX_EVENT } else { event };
        let &ChannelConnect { guest, backend, switch, .. } = request;
        let weight = if request.weight == 0 { op::WEIGHT } else { request.weight };
        let interface = first.place();
        Line { handle, interface, guest, backend, port, cookie: handle.raw() | both, switch, weight }
    };
    let credit = Credit::new(request.rate_bytes, request.rate_interval_us.into(), now);
    let tx = Tx {
        line: line(rings.tx_port, TX_EVENT),
        queue: TxQueue::attach(page(rings.tx_ring)?, credit).map_err(|_| Errno::EINVAL)?,
        packet: Packet::default(),
        until: None,
        held: Vec::with_capacity(XEN_NETIF_TX_RING_SIZE as usize),
        refused: 0,
        ahead: Ahead::default(),
    };
    let backlog = match has(op::CONNECT_UPLINK) {
        true => Waiting::for_way_out(MAX_VIFS, now).map_err(|_| Errno::ENOMEM)?,
        false => Waiting::for_guest(now),
    };
    let rx = Rx {
        line: line(rings.rx_port, RX_EVENT),
        joined: u64::MAX,
        queue: RxQueue::attach(page(rings.rx_ring)?, accepts).map_err(|_| Errno::EINVAL)?,
        backlog,
        merger: Some(Box::default()),
    };
    Ok((Box::new(tx), Box::new(rx)))
}

/// Takes the other end of a port of `guest`. EBUSY: the hypervisor has it, for another interface. EINVAL: it does not
/// wait for the back end.
fn bind(guest: &Domain, line: &Line) -> Result<(), Errno> {
    let mut events = guest.events.lock();
    match events.binding(line.port)? {
        // One port for both directions.
        Binding::Hypervisor { cookie, .. } if cookie == line.cookie => Ok(()),
        Binding::Hypervisor { .. } => Err(Errno::EBUSY),
        _ => events.bind_hypervisor(line.port, line.backend, line.cookie),
    }
}

/// Takes an interface out of everything. Everything that was its own is back then; others' packets that waited for it
/// are answered.
fn unplug(config: &mut Config, handle: Handle) {
    let Some(plugged) = map::take(&mut config.vifs, &handle.place()) else { return };
    let request = plugged.request;
    config.publish_loss(request.switch);
    if plugged.is_uplink() {
        unlink(config, &plugged);
    }
    let guest = domain::find(request.guest);
    for queue in plugged.queues() {
        unplug_queue(queue, &plugged, guest.as_deref());
        requests::answer();
    }
}

/// The same of one of its queues.
fn unplug_queue(queue: Handle, plugged: &Plugged, guest: Option<&Domain>) {
    let sides = queue.sides();
    let rx = sides.rx.lock().take();
    let tx = sides.tx.lock().take();
    let lines = [tx.as_ref().map(|tx| tx.line), rx.as_ref().map(|rx| rx.line)];
    let Some(guest) = guest else { return };
    for line in lines.into_iter().flatten() {
        // One that the guest has closed is not there, or is something else by now.
        let _ = guest.events.lock().unbind_hypervisor(line.port, line.cookie);
    }
    if let Some(mut rx) = rx {
        while let Some(item) = rx.backlog.pop(0) {
            if plugged.is_uplink() {
                held::put(item);
            } else {
                traffic::done(item);
            }
        }
    }
    if let Some(tx) = tx {
        for sides in VIFS.iter().take(timed::places()) {
            if let Some(rx) = sides.rx.lock().as_deref_mut() {
                rx.backlog.forget(tx.line.interface, |item| item.sender == queue);
            }
        }
        uplink::forget(&tx.line);
        let mut grants = tx.line.grants(guest);
        tx.queue.close(&mut grants);
    }
}

/// Lets an interface go. ENOENT.
pub fn disconnect(handle: Handle) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    config.find(handle)?;
    unplug(&mut config, handle);
    Ok(())
}

/// The port of this name is gone: so is the interface, whose guest does not expect an answer any more.
pub fn lost_port(cookie: u32) {
    // Else it is a twin's card's, which lives without.
    if cookie & (TX_EVENT | RX_EVENT) != 0 {
        let queue = Handle::of_cookie(cookie);
        let mut config = CONFIG.lock();
        if let Some(handle) = config.interface_of(queue) {
            unplug(&mut config, handle);
        }
    }
}

/// Queues that are let go between two looks at what else there is to do. An interface goes with all of its own, which
/// are as many at most.
const FORGET_STEPS: u32 = op::VIF_MAX_QUEUES;

/// Lets all interfaces go that `d`, which is dying, has or is the back end of. ERESTART: to be called again.
pub fn forget_domain(d: &Domain) -> Result<(), Errno> {
    let mut config = CONFIG.lock();
    let mut steps = 0;
    while steps < FORGET_STEPS {
        let mut own = config.vifs.values().filter(|p| p.request.guest == d.id || p.request.backend == d.id);
        let Some((handle, nr_queues)) = own.next().map(|p| (p.handle, p.nr_queues())) else { return Ok(()) };
        unplug(&mut config, handle);
        steps += u32::from(nr_queues);
    }
    Err(Errno::ERESTART)
}
