//! Which port a frame goes to, by its addresses.
//!
//! Ports are guests' interfaces, the uplink (the network card), and the own network stack of the domain that drives it.
//! Every port but the uplink has an address that does not change while it is there, so nothing is learnt: the table is
//! built anew when a port comes or goes, and is otherwise only read, but for its way out ([`Table::lead`]). Whoever
//! owns it publishes a new one in the place of the old; a CPU uses one table for a batch of packets, and an old one is
//! freed when every CPU was seen between batches, as domains are. So looking up takes no lock and allocates nothing.
//!
//! What a bridge of Linux would do with the same frames is what is done here, with two differences. Frames to addresses
//! that nobody has go to the uplink only, not to all. A guest's interface sends with its own address only, unless it is
//! told otherwise; nobody but who is told otherwise sends with another port's.

mod hold;
mod way;

use crate::flow;

pub use hold::Hold;
use way::Way;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

/// An Ethernet address.
pub type Mac = [u8; 6];

/// A port: a small number that its owner chooses. Names a place, so what was looked up in an old table is checked again
/// by whoever has the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u16);

impl From<PortId> for u32 {
    fn from(port: PortId) -> Self {
        port.0.into()
    }
}

/// What a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A guest's interface.
    Guest {
        /// It may send with any source address: it is a bridge or router itself.
        any_source: bool,
    },
    /// The network card.
    Uplink,
    /// The network stack of the domain that drives the card.
    Driver {
        /// It also gets frames from the uplink that are for nobody here.
        is_promiscuous: bool,
    },
}

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its number, which is also that of its first queue.
    pub id: PortId,
    /// How many queues it has: one at least. The others' numbers follow the first one's.
    pub nr_queues: u8,
    /// Its kind.
    pub kind: Kind,
    /// Its address; the uplink's is not looked at.
    pub mac: Mac,
}

/// Why a frame goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// Shorter than an Ethernet header.
    Short,
    /// The source is a group, or not one that the sender may use.
    Source,
    /// From the uplink, with the source of a port: the network has sent it back.
    Looped,
    /// To the sender itself.
    Hairpin,
    /// To one of the addresses that bridges do not forward (01:80:c2:00:00:00 to 0f).
    Reserved,
    /// To nobody.
    Nobody,
    /// From a port that is not in the table.
    NoPort,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// To one port, by the queue of this number.
    To(PortId),
    /// To all of [`Table::others`].
    Flood,
    /// Nowhere.
    Drop(Drop),
}

/// What becomes of a frame that has waited for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// It goes there.
    Goes,
    /// It waits on: the port is gone, or drained, or the way out no more. Who has seen to that looks after what waits
    /// for it.
    Stays,
    /// It goes to this port now: the way out is another, or its sender has changed it.
    Elsewhere(PortId),
    /// It goes nowhere any more.
    Not,
}

/// Where frames with the same addresses go.
#[derive(Clone, Copy, Debug)]
struct Route {
    /// Of a port with several queues it is the first one.
    forward: Forward,
    nr_queues: u8,
}

impl Route {
    fn to(port: &Port) -> Self {
        Self { forward: Forward::To(port.id), nr_queues: port.nr_queues }
    }

    /// All but [`Self::to`] a port.
    fn of(forward: Forward) -> Self {
        Self { forward, nr_queues: 1 }
    }

    /// Where the one with this header goes.
    #[inline]
    fn of_frame(self, header: &[u8]) -> Forward {
        match self.forward {
            Forward::To(first) if self.nr_queues > 1 => {
                Forward::To(PortId(first.0.saturating_add(flow::queue_of(header, self.nr_queues))))
            }
            forward => forward,
        }
    }
}

/// Where a port's last frame went, for the next one: most go where the one before went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recent {
    /// Both addresses.
    addresses: [u8; 12],
    route: Option<Route>,
}

impl Recent {
    /// [`Table::forward`], for frames of one port and by one table.
    #[inline]
    pub fn forward(&mut self, table: &Table, from: PortId, header: &[u8]) -> Forward {
        let addresses = header.first_chunk::<14>().and_then(|header| header.first_chunk::<12>());
        if let (Some(addresses), Some(route)) = (addresses, self.route) {
            if *addresses == self.addresses {
                return route.of_frame(header);
            }
        }
        let route = table.route(from, header);
        if let Some(addresses) = addresses {
            *self = Self { addresses: *addresses, route: Some(route) };
        }
        route.of_frame(header)
    }
}

/// The same for frames that go to several ports in turns; also from one batch of packets to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Recents {
    recents: [Recent; RECENTS],
    /// All of them: number of the table, and the port that the frames come from.
    of: Option<(u64, PortId)>,
}

/// Receivers whose addresses differ in their last bits.
const RECENTS: usize = 8;

impl Recents {
    /// For frames from a port, by `table`. Where others went is forgotten.
    #[inline]
    pub fn of<'a>(&'a mut self, table: &'a Table, from: PortId) -> Routes<'a> {
        let of = Some((table.generation, from));
        if self.of != of {
            *self = Self { of, ..Self::default() };
        }
        Routes { recents: &mut self.recents, table, from }
    }
}

/// Where frames of one port go by one table.
pub struct Routes<'a> {
    recents: &'a mut [Recent; RECENTS],
    table: &'a Table,
    from: PortId,
}

impl Routes<'_> {
    /// [`Table::forward`].
    #[inline]
    pub fn forward(&mut self, header: &[u8]) -> Forward {
        // The last byte of the receiver's address.
        let last = header.get(5).copied().unwrap_or(0);
        self.recents[usize::from(last) % RECENTS].forward(self.table, self.from, header)
    }
}

/// Not enough memory for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

const NONE: u16 = u16::MAX;

/// The ports at one time.
#[derive(Debug)]
pub struct Table {
    generation: u64,
    ports: Box<[Port]>,
    /// Index in `ports`, by number of the port, or of another queue of its.
    by_id: Box<[u16]>,
    /// Index in `ports`, by hash of the address; as many places as a power of two, at least half of them empty.
    by_mac: Box<[u16]>,
    way: Way,
    /// The driver's port, if it is promiscuous.
    rest: Option<PortId>,
    /// Without a way out: until when, in ns, packets wait for one.
    waits_until: u64,
    /// The way out is drained: until when, in ns, and the table that counts from then on.
    drained: Option<(u64, Arc<Table>)>,
}

impl Table {
    /// A table of `ports`, fewer than 65535. Have two the same number or address, the later one counts: while a guest
    /// moves from this host to itself, both of it are there. `generation`: no two tables have the same.
    pub fn build(generation: u64, ports: &[Port]) -> Result<Table, NoMemory> {
        let ports = boxed(ports.iter().copied().take(usize::from(NONE)), ports.len())?;
        let nr_ids = ports.iter().map(|p| p.places().end).max().unwrap_or(0);
        let nr_places = (ports.len() * 2).next_power_of_two();
        let mut table = Table {
            generation,
            by_id: boxed(core::iter::repeat_n(NONE, nr_ids), nr_ids)?,
            by_mac: boxed(core::iter::repeat_n(NONE, nr_places), nr_places)?,
            way: Way::by(None),
            rest: None,
            waits_until: 0,
            drained: None,
            ports,
        };
        for (at, port) in (0..NONE).zip(table.ports.iter()) {
            table.by_id[port.places()].fill(at);
        }
        for at in 0..table.ports.len() {
            table.insert(at);
        }
        Ok(table)
    }

    /// The same, in which packets for outside wait until then (ns) if there is no way out.
    pub fn waiting(self, until: Option<u64>) -> Table {
        Table { waits_until: until.unwrap_or(0), ..self }
    }

    /// Until when, in ns, what is for outside waits for a way out, if it does at `now`.
    pub fn waits_until(&self, now: u64) -> Option<u64> {
        let until = self.way.closed_until().unwrap_or(self.waits_until);
        (self.uplink().is_none() && until > now).then_some(until)
    }

    /// The same while its way out is drained: what is for outside waits until then (ns), though what comes from there
    /// goes its way. `whole` is this table, and counts from then on.
    pub fn drained(self, until: u64, whole: Arc<Table>) -> Table {
        Table { waits_until: until, drained: Some((until, whole)), ..self }
    }

    /// While the way out is drained: until when, in ns, and the table that counts from then on.
    #[inline]
    pub fn after_drain(&self) -> Option<(u64, &Arc<Table>)> {
        self.drained.as_ref().map(|(until, whole)| (*until, whole))
    }

    /// The way out, also one that is drained, or has gone since the table was made.
    pub fn way_out(&self) -> Option<PortId> {
        self.way.port()
    }

    /// For who has no other table: from now on `way` is the way out; without one, or if it is no port of this table,
    /// there is none, and what is for outside waits until then (ns).
    pub fn lead(&self, way: Option<PortId>, until: u64) {
        match way.filter(|way| self.port(*way).is_some()) {
            Some(way) => self.way.lead(way),
            None => self.way.close(until),
        }
        if let Some((_, whole)) = &self.drained {
            whole.lead(way, until);
        }
    }

    fn insert(&mut self, at: usize) {
        let port = self.ports[at];
        #[allow(clippy::cast_possible_truncation, reason = "fewer than NONE ports")]
        let index = at as u16;
        if self.by_id[usize::from(port.id.0)] != index {
            return;
        }
        match port.kind {
            Kind::Uplink => self.way = Way::by(Some(port.id)),
            Kind::Driver { is_promiscuous: true } => self.rest = Some(port.id),
            _ => {}
        }
        if port.kind != Kind::Uplink {
            let place = self.place(number(port.mac));
            self.by_mac[place] = index;
        }
    }

    /// The place of an address, or the empty one where it would be.
    #[inline]
    fn place(&self, mac: u64) -> usize {
        let mask = self.by_mac.len() - 1;
        // Fibonacci hashing: guests' addresses differ in their last bytes.
        #[allow(clippy::cast_possible_truncation, reason = "masked")]
        let mut at = (mac.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & mask;
        for _ in 0..self.by_mac.len() {
            match self.ports.get(usize::from(self.by_mac[at])) {
                Some(port) if number(port.mac) != mac => at = (at + 1) & mask,
                _ => break,
            }
        }
        at
    }

    /// Tells tables apart.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The port of this number, or of which this is a queue.
    #[inline]
    pub fn port(&self, id: PortId) -> Option<&Port> {
        self.ports.get(usize::from(*self.by_id.get(usize::from(id.0))?))
    }

    /// The port with an address.
    #[inline]
    pub fn find(&self, mac: Mac) -> Option<&Port> {
        self.ports.get(usize::from(*self.by_mac.get(self.place(number(mac)))?))
    }

    /// The network card, if packets go there now.
    #[inline]
    pub fn uplink(&self) -> Option<PortId> {
        let is_open = self.drained.is_none() && self.way.closed_until().is_none();
        self.way.port().filter(|_| is_open)
    }

    /// All ports to which packets go but that of `from`: each by its first queue.
    pub fn others(&self, from: PortId) -> impl Iterator<Item = &Port> {
        let is_current = |p: &&Port| self.port(p.id).is_some_and(|q| core::ptr::eq(q, *p));
        let from = self.port(from).map_or(from, |port| port.id);
        let takes = move |p: &&Port| p.id != from && (p.kind != Kind::Uplink || self.uplink() == Some(p.id));
        self.ports.iter().filter(is_current).filter(takes)
    }

    /// Where a frame from port `from` goes. `header`: its first bytes.
    #[inline]
    pub fn forward(&self, from: PortId, header: &[u8]) -> Forward {
        self.route(from, header).of_frame(header)
    }

    #[inline]
    fn route(&self, from: PortId, header: &[u8]) -> Route {
        let drop = |why: Drop| Route::of(Forward::Drop(why));
        let Some(sender) = self.port(from) else { return drop(Drop::NoPort) };
        let Some((addresses, _)) = header.split_first_chunk::<14>() else { return drop(Drop::Short) };
        let [t0, t1, t2, t3, t4, t5, s0, s1, s2, s3, s4, s5, ..] = *addresses;
        let (to, source) = ([t0, t1, t2, t3, t4, t5], [s0, s1, s2, s3, s4, s5]);
        if is_group(source) {
            return drop(Drop::Source);
        }
        match sender.kind {
            Kind::Guest { any_source: false } if source != sender.mac => return drop(Drop::Source),
            Kind::Uplink if self.find(source).is_some() => return drop(Drop::Looped),
            Kind::Driver { .. } if self.find(source).is_some_and(|p| p.id != sender.id) => return drop(Drop::Source),
            _ => {}
        }
        if is_group(to) {
            return Route::of(if is_reserved(to) { self.reserved(sender) } else { Forward::Flood });
        }
        match self.find(to) {
            Some(port) if port.id == sender.id => drop(Drop::Hairpin),
            Some(port) => Route::to(port),
            None => Route::of(self.unknown(sender, source)),
        }
    }

    /// What becomes of a frame that has waited for port `to`, and that goes `forward` now.
    pub fn onward(&self, to: PortId, forward: Forward) -> Onward {
        if self.port(to).is_none() || (self.uplink().is_none() && self.way_out() == Some(to)) {
            return Onward::Stays;
        }
        match forward {
            Forward::To(port) if port == to => Onward::Goes,
            Forward::To(port) => Onward::Elsewhere(port),
            Forward::Flood => Onward::Goes,
            Forward::Drop(_) => Onward::Not,
        }
    }

    /// What is for nobody here: out, or in from outside to whoever wants everything. Neither has more than one queue.
    ///
    /// The driver's domain receives by its card, too, now and then, and passes on what is not its own. What strangers
    /// send each other and the network shows to all does not go back to where it came from: the network would look for
    /// them here.
    fn unknown(&self, sender: &Port, source: Mac) -> Forward {
        let to = match sender.kind {
            Kind::Uplink => self.rest,
            Kind::Driver { is_promiscuous: false } if source != sender.mac => None,
            _ => self.uplink(),
        };
        match to {
            Some(to) if to != sender.id => Forward::To(to),
            _ => Forward::Drop(Drop::Nobody),
        }
    }

    /// What is between a card and the switch that it is plugged into: only the card's own domain has to do with it.
    #[cold]
    fn reserved(&self, sender: &Port) -> Forward {
        let driver = || self.ports.iter().find(|p| matches!(p.kind, Kind::Driver { .. }));
        let to = match sender.kind {
            Kind::Uplink => driver().map(|p| p.id),
            Kind::Driver { .. } => self.uplink(),
            Kind::Guest { .. } => None,
        };
        to.filter(|to| *to != sender.id).map_or(Forward::Drop(Drop::Reserved), Forward::To)
    }
}

impl Port {
    /// The numbers of its queues.
    fn places(&self) -> Range<usize> {
        let first = usize::from(self.id.0);
        first..first + usize::from(self.nr_queues.max(1))
    }
}

/// Whether an address is that of a group, or of all.
#[inline]
pub fn is_group(mac: Mac) -> bool {
    mac[0] & 1 == 1
}

fn is_reserved(mac: Mac) -> bool {
    matches!(mac, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
}

#[inline]
fn number([a, b, c, d, e, f]: Mac) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

fn boxed<T>(items: impl Iterator<Item = T>, len: usize) -> Result<Box<[T]>, NoMemory> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).map_err(|_| NoMemory)?;
    all.extend(items);
    Ok(all.into_boxed_slice())
}

#[cfg(test)]
mod tests;
