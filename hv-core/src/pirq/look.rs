//! What a line looks like, for who has to find out why no interrupt comes.

use super::line::Line;
use super::tell::places;
use super::*;

/// A line that somebody is told of, at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Which.
    pub irq: Irq,
    /// It is a device's message and no wire.
    pub is_message: bool,
    /// Level-triggered.
    pub is_level: bool,
    /// How often it has fired since it was first bound, modulo 2^32.
    pub fired: u32,
    /// It is masked until this time (ns), whoever answers.
    pub held_until: Option<u64>,
    /// A sharer has left, and its device may go on asking: it fires less often if it does.
    pub is_abandoned: bool,
    guests: [Option<Delivery>; MAX_SHARERS],
    in_flight: u8,
    late: u8,
    alone: u8,
}

/// How it stands with one domain that is told of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharer {
    /// Whom.
    pub to: Delivery,
    /// It was told, and its EOI is waited for: a level-triggered line is masked until then.
    pub is_waited_for: bool,
    /// It has not answered in time, and is not waited for.
    pub is_late: bool,
    /// It was found to serve the line, and is told alone the next times.
    pub is_alone: bool,
}

impl Look {
    /// Those who are told.
    pub fn sharers(&self) -> impl Iterator<Item = Sharer> + '_ {
        places(u8::MAX).filter_map(|n| {
            let is = |bits: u8| bits >> n & 1 != 0;
            let (is_waited_for, is_late, is_alone) = (is(self.in_flight), is(self.late), is(self.alone));
            Some(Sharer { to: self.guests[n]?, is_waited_for, is_late, is_alone })
        })
    }
}

impl<M> Line<M> {
    fn look(&self, irq: Irq) -> Look {
        Look {
            irq,
            is_message: self.msi.is_some(),
            is_level: self.is_level(),
            fired: self.total,
            held_until: self.held_until,
            is_abandoned: self.is_abandoned,
            guests: self.guests,
            in_flight: self.in_flight,
            late: self.late,
            alone: self.alone,
        }
    }
}

impl<C: IrqChip, P: AsRef<PageWords>> Interrupts<C, P> {
    /// The first line from `from` on that somebody is told of.
    pub fn look(&self, from: Irq) -> Option<Look> {
        let lines = (0u32..).zip(&self.lines).skip(from as usize);
        { lines }.find(|(_, line)| !line.is_idle()).map(|(irq, line)| line.look(irq))
    }
}
