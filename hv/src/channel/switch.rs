//! Switches: a table for each, replaced as a whole.

use super::vif::Handle;
use crate::arch::tsc;
use crate::sync::FairMutex;
use ::channel::switch::{Hold, Port, PortId, Table};
use alloc::sync::Arc;
use xen_abi::errno::Errno;

/// Switches at one time.
const MAX_SWITCHES: usize = 64;
/// Of a name: the place; the rest counts the switches so far.
const PLACE: u32 = MAX_SWITCHES as u32 - 1;

/// The tables that are in use.
static TABLES: [FairMutex<Option<Arc<Table>>>; MAX_SWITCHES] = [const { FairMutex::new(None) }; MAX_SWITCHES];

/// The table of a switch as it is now, for a batch of packets.
pub fn table(switch: u32) -> Option<Arc<Table>> {
    let table = TABLES[(switch & PLACE) as usize].lock().clone()?;
    match table.after_drain() {
        Some((until, whole)) if tsc::now_ns() >= until => Some(Arc::clone(whole)),
        _ => Some(table),
    }
}

/// A way out that is drained: a driver domain's interface, whether a card has its place or not.
#[derive(Clone, Copy)]
pub struct Drain {
    way: Handle,
    /// Until then, in ns.
    until: u64,
}

/// A table that a switch is to have, and what it has as long as its way out is drained.
pub struct New {
    table: Table,
    drained: Option<(Drain, Table)>,
}

/// The switches that there are.
pub struct Switches {
    names: [Option<u32>; MAX_SWITCHES],
    holds: [Hold; MAX_SWITCHES],
    drains: [Option<Drain>; MAX_SWITCHES],
    /// Switches so far.
    count: u32,
    /// Tables so far.
    generation: u64,
}

impl Switches {
    /// None.
    pub const fn new() -> Self {
        Self {
            names: [None; MAX_SWITCHES],
            holds: [Hold::new(); MAX_SWITCHES],
            drains: [None; MAX_SWITCHES],
            count: 0,
            generation: 0,
        }
    }

    /// Is there a switch of this name? ENOENT.
    pub fn check(&self, switch: u32) -> Result<(), Errno> {
        let has = self.names[(switch & PLACE) as usize] == Some(switch);
        has.then_some(()).ok_or(Errno::ENOENT)
    }

    /// A new one, without ports; its name. ENOSPC, ENOMEM.
    pub fn create(&mut self) -> Result<u32, Errno> {
        let place = self.names.iter().position(Option::is_none).ok_or(Errno::ENOSPC)?;
        self.count = self.count.wrapping_add(1);
        #[allow(clippy::cast_possible_truncation, reason = "a small number")]
        let name = self.count.wrapping_mul(MAX_SWITCHES as u32) | place as u32;
        self.holds[place] = Hold::new();
        let new = self.build(name, None, &[])?;
        self.publish(name, new);
        self.names[place] = Some(name);
        Ok(name)
    }

    /// Forgets one, which has no ports any more. ENOENT.
    pub fn destroy(&mut self, switch: u32) -> Result<(), Errno> {
        self.check(switch)?;
        let place = (switch & PLACE) as usize;
        (self.names[place], self.drains[place]) = (None, None);
        *TABLES[place].lock() = None;
        Ok(())
    }

    /// What is for outside waits for so long (ns) for a way out that has gone; to be published. ENOENT.
    pub fn hold(&mut self, switch: u32, longest: u64) -> Result<(), Errno> {
        self.check(switch)?;
        self.holds[(switch & PLACE) as usize].set(longest);
        Ok(())
    }

    /// The way out of a switch, which is this interface or its card, is drained for so long (ns), if it is not
    /// replaced; to be published. What was before. ENOENT, ENODEV.
    pub fn drain(&mut self, switch: u32, way: Option<Handle>, longest: u64) -> Result<Option<Drain>, Errno> {
        self.check(switch)?;
        let place = (switch & PLACE) as usize;
        let way = way.ok_or(Errno::ENODEV)?;
        let drain = Drain { way, until: tsc::now_ns().saturating_add(longest) };
        Ok(self.drains[place].replace(drain))
    }

    /// That could not be published.
    pub fn drain_as_before(&mut self, switch: u32, before: Option<Drain>) {
        self.drains[(switch & PLACE) as usize] = before;
    }

    /// A table for a switch that has `ports`, and of which `way` is the interface that is the way out, or whose card
    /// is. ENOMEM.
    pub fn build(&mut self, switch: u32, way: Option<Handle>, ports: &[Port]) -> Result<New, Errno> {
        let table = self.table_of(ports)?;
        let drain = self.drains[(switch & PLACE) as usize];
        let drained = match drain.filter(|drain| Some(drain.way) == way && tsc::now_ns() < drain.until) {
            Some(drain) => Some((drain, self.table_of(ports)?)),
            None => None,
        };
        Ok(New { table, drained })
    }

    /// From now on a switch has that one; the number of the first table that has its ports.
    pub fn publish(&mut self, switch: u32, New { table, drained }: New) -> u64 {
        let generation = table.generation();
        let place = (switch & PLACE) as usize;
        self.drains[place] = drained.as_ref().map(|(drain, _)| *drain);
        let had = TABLES[place].lock().as_ref().is_some_and(|old| old.way_out().is_some());
        let hold = &mut self.holds[place];
        hold.changed(had, table.uplink().is_some(), tsc::now_ns());
        let whole = Arc::new(table.waiting(hold.until()));
        let new = match drained {
            Some((drain, drained)) => Arc::new(drained.drained(drain.until, whole)),
            None => whole,
        };
        let old = TABLES[place].lock().replace(new);
        // Freed when the lock is free, or by the last who uses it.
        drop(old);
        generation
    }

    /// What is for outside waits until a switch has another table, or [`Self::lead`] says which way out it has.
    pub fn close(&self, switch: u32) {
        if let Some(table) = &*TABLES[(switch & PLACE) as usize].lock() {
            table.lead(None, u64::MAX);
        }
    }

    /// There is no memory for another table, and a switch has lost a port: its table stays, but for its way out, which
    /// is `way` from now on, or none.
    pub fn lead(&mut self, switch: u32, way: Option<PortId>) {
        let place = (switch & PLACE) as usize;
        let Some(table) = TABLES[place].lock().clone() else { return };
        let hold = &mut self.holds[place];
        hold.changed(table.way_out().is_some(), way.is_some(), tsc::now_ns());
        table.lead(way, hold.until().unwrap_or(0));
    }

    /// A table, which has a number of its own. ENOMEM.
    fn table_of(&mut self, ports: &[Port]) -> Result<Table, Errno> {
        self.generation += 1;
        Table::build(self.generation, ports).map_err(|_| Errno::ENOMEM)
    }
}
