//! One line: who is told when it fires, who has not answered yet, and how often it fires.

use super::{DomId, Port, Wire, MAX_SHARERS};
use xen_abi::errno::Errno;

/// Length of the storm guard's window.
const WINDOW_NS: u64 = 100_000_000;
/// More than this in a window is a storm: half a million interrupts a second.
const STORM: u32 = 50_000;

/// One domain to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Whom.
    pub dom: DomId,
    /// The domain's number for the line.
    pub pirq: u32,
    /// Its event port.
    pub port: Port,
}

/// Who is to be told that a line fired.
#[derive(Clone, Copy, Debug)]
pub struct Deliveries {
    list: [Option<Delivery>; MAX_SHARERS],
    /// The storm guard holds the line until this time.
    pub held_until_ns: Option<u64>,
}

impl Deliveries {
    pub(super) const fn none() -> Deliveries {
        Deliveries { list: [None; MAX_SHARERS], held_until_ns: None }
    }

    /// The domains.
    pub fn iter(&self) -> impl Iterator<Item = Delivery> + '_ {
        self.list.iter().flatten().copied()
    }
}

pub(super) struct Line<M> {
    /// `None`: a wire, or an unused message.
    pub msi: Option<M>,
    /// How a wire signals, once it has been said or used.
    pub wire: Option<Wire>,
    guests: [Option<Delivery>; MAX_SHARERS],
    /// Bit n: guest n has been told and has not answered.
    in_flight: u8,
    shareable: bool,
    window_start: u64,
    fired: u32,
    held: bool,
}

impl<M> Line<M> {
    pub fn new() -> Line<M> {
        Line {
            msi: None,
            wire: None,
            guests: [None; MAX_SHARERS],
            in_flight: 0,
            shareable: false,
            window_start: 0,
            fired: 0,
            held: false,
        }
    }

    pub fn is_level(&self) -> bool {
        self.msi.is_none() && self.wire.is_some_and(|w| w.level)
    }

    /// Is nobody to be told?
    pub fn is_idle(&self) -> bool {
        self.guests.iter().all(Option::is_none)
    }

    pub fn nr_guests(&self) -> usize {
        self.guests.iter().flatten().count()
    }

    /// May one more be told?
    pub fn admit(&self, share: bool) -> Result<(), Errno> {
        let n = self.nr_guests();
        if n == 0 || (share && self.shareable && n < MAX_SHARERS) {
            Ok(())
        } else {
            Err(Errno::EBUSY)
        }
    }

    pub fn add(&mut self, guest: Delivery, share: bool) {
        if self.is_idle() {
            self.shareable = share;
            self.in_flight = 0;
        }
        if let Some(slot) = self.guests.iter_mut().find(|g| g.is_none()) {
            *slot = Some(guest);
        }
    }

    /// Takes a guest out. `true`: it was the last that the line was masked for.
    pub fn remove(&mut self, dom: DomId, pirq: u32) -> bool {
        let done = self.finish(dom, pirq);
        for g in &mut self.guests {
            if g.is_some_and(|g| g.dom == dom && g.pirq == pirq) {
                *g = None;
            }
        }
        done
    }

    /// Everybody is told; level-triggered, everybody is waited for.
    #[inline]
    pub fn start(&mut self) -> Deliveries {
        if self.is_level() {
            for (n, g) in self.guests.iter().enumerate() {
                self.in_flight |= u8::from(g.is_some()) << n;
            }
        }
        let held_until_ns = self.held.then(|| self.window_start.saturating_add(WINDOW_NS));
        Deliveries { list: self.guests, held_until_ns }
    }

    /// A guest has answered. `true`: it was the last, and the line may be unmasked.
    #[inline]
    pub fn finish(&mut self, dom: DomId, pirq: u32) -> bool {
        let before = self.in_flight;
        for (n, g) in self.guests.iter().enumerate() {
            if g.is_some_and(|g| g.dom == dom && g.pirq == pirq) {
                self.in_flight &= !(1 << n);
            }
        }
        before != 0 && self.in_flight == 0 && !self.held
    }

    /// Has everybody answered?
    pub fn is_finished(&self) -> bool {
        self.in_flight == 0 && !self.is_idle()
    }

    /// Counts an interrupt. `true`: there were too many in this window.
    #[inline]
    pub fn count(&mut self, now: u64) -> bool {
        if now.wrapping_sub(self.window_start) >= WINDOW_NS {
            self.window_start = now;
            self.fired = 0;
        }
        self.fired = self.fired.saturating_add(1);
        self.fired > STORM
    }

    /// Holds the line for the rest of the window. `true` if it was not held.
    pub fn hold(&mut self) -> bool {
        !core::mem::replace(&mut self.held, true)
    }

    pub fn is_held(&self) -> bool {
        self.held
    }

    pub fn hold_is_over(&self, now: u64) -> bool {
        self.held && now >= self.window_start.saturating_add(WINDOW_NS)
    }

    /// `true` if it was held.
    pub fn end_hold(&mut self) -> bool {
        core::mem::replace(&mut self.held, false)
    }
}
