//! A card's interrupts: which come here instead of to the domain.
//!
//! One is taken if the domain would have been interrupted at once: it has neither masked the event channel nor shut its vCPU's ear, and
//! nothing of it is pending. So it never comes here while the domain's own handler runs or is kept out.

use super::card::{want, wanted, MAX_LINES, NR_ATTACHED, PLACES};
use crate::domain::event::Receiver;
use crate::domain::Domain;
use crate::irq;
use crate::sched::Cause;
use core::sync::atomic::Ordering;
use xen_abi::event::Port;

/// An interrupt of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The domain's port.
    pub port: Port,
    /// What it is bound to.
    pub pirq: u32,
}

/// The interrupts of the card in one place.
pub struct Lines {
    owner: u16,
    lines: [Line; MAX_LINES],
    count: usize,
    /// Those that came and that nobody has handled.
    taken: u32,
}

impl Lines {
    /// None.
    pub const fn new() -> Self {
        Self { owner: 0, lines: [Line { port: 0, pirq: 0 }; MAX_LINES], count: 0, taken: 0 }
    }

    /// From now on those of a card of domain `owner` come here.
    pub fn open(&mut self, owner: u16, lines: impl Iterator<Item = Line>) {
        (self.owner, self.count, self.taken) = (owner, 0, 0);
        for (to, line) in self.lines.iter_mut().zip(lines) {
            *to = line;
            self.count += 1;
        }
    }

    /// None comes here any more; those that nobody has handled.
    pub fn close(&mut self) -> u32 {
        self.count = 0;
        self.take()
    }

    /// Those that came since this was asked last.
    pub fn take(&mut self) -> u32 {
        core::mem::take(&mut self.taken)
    }

    fn find(&self, owner: u16, line: Line) -> Option<usize> {
        let lines = self.lines.get(..self.count).filter(|_| self.owner == owner)?;
        lines.iter().position(|own| *own == line)
    }
}

/// An interrupt for `d` came. `true`: it is handled here.
pub fn came(d: &Domain, port: Port, pirq: u32) -> bool {
    if NR_ATTACHED.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let line = Line { port, pirq };
    let find = |(place, own): (usize, &super::card::Place)| own.lines.lock().find(d.id, line).map(|n| (place, n));
    let Some((place, number)) = PLACES.iter().enumerate().find_map(find) else { return false };
    let told = d.events.lock().would_tell(d, port, pirq);
    if told.and_then(|vcpu| d.vcpu(vcpu)).is_none_or(|v| v.events_masked()) {
        return false;
    }
    {
        let mut lines = PLACES[place].lines.lock();
        if lines.find(d.id, line) != Some(number) {
            return false;
        }
        lines.taken |= 1 << number;
    }
    want(place, wanted::LINES);
    true
}

/// The handler of an interrupt has run: the line may fire again.
pub fn handled(owner: u16, line: Line) {
    let _ = irq::guest::lock().eoi(owner, line.pirq);
}

/// The domain handles an interrupt that was taken.
pub fn hand_over(d: &Domain, line: Line) {
    let told = d.events.lock().raise_pirq(&Receiver(d, Cause::Sender), line.port, line.pirq);
    if told.is_none() {
        handled(d.id, line);
    }
}
