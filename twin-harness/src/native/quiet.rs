//! Device registers as plain memory, for measuring: an access costs what it costs a driver whose device answers at
//! once, and not a fault. Between calls the registers are brought up to date from the model, and what was written is
//! taken to it.
//!
//! Which registers a function reads and writes is learned before, from the interpreter.

use crate::lab::{Ended, Executor};
use crate::ram::Ram;
use crate::world::{Deed, World, PAGE};
use std::collections::HashMap;
use std::rc::Rc;
use twin_runtime::linux::Support;

/// What stands in a register that is written until it is.
const UNWRITTEN: u64 = 0x5a3c_a5c3_5a3c_a5c3;

/// The shown pages, by physical address.
#[derive(Debug)]
pub struct Quiet {
    pages: Vec<u64>,
    shown: Ram,
}

impl Quiet {
    /// Pages for the device windows of a world.
    pub fn new(world: &World) -> Result<Rc<Self>, String> {
        let mut pages: Vec<u64> = world
            .masked
            .iter()
            .filter(|(_, pa, _)| *pa >= world.ram.len())
            .map(|(_, pa, _)| pa & !(PAGE - 1))
            .collect();
        pages.sort_unstable();
        pages.dedup();
        let shown = Ram::new(&vec![0; pages.len() * PAGE as usize]).map_err(|e| format!("memory: {e}"))?;
        Ok(Rc::new(Self { pages, shown }))
    }

    fn offset(&self, pa: u64) -> Option<u64> {
        let n = self.pages.binary_search(&(pa & !(PAGE - 1))).ok()?;
        Some(n as u64 * PAGE + pa % PAGE)
    }

    /// File and offset of the page of a physical address.
    pub fn file_place(&self, pa: u64) -> Option<(i32, u64)> {
        Some((self.shown.file(), self.offset(pa)? & !(PAGE - 1)))
    }
}

/// Registers by physical address and size.
#[derive(Debug, Clone, Default)]
struct Habits {
    reads: Vec<(u64, usize)>,
    writes: Vec<(u64, usize)>,
}

/// Which registers each function reads and writes.
#[derive(Debug, Clone, Default)]
pub struct Learned(HashMap<u64, Habits>);

/// Learns while it runs something else.
pub struct Learning<'a, E> {
    /// What runs.
    pub inner: E,
    /// What was learned.
    pub learned: &'a mut Learned,
}

impl<E: Executor> Executor for Learning<'_, E> {
    fn call(&mut self, world: &mut World, support: &Support, function: u64, args: &[u64; 6]) -> Result<u64, Ended> {
        *world.deeds.borrow_mut() = Some(Vec::new());
        let result = self.inner.call(world, support, function, args);
        let habits = self.learned.0.entry(function).or_default();
        for deed in world.deeds.borrow_mut().take().unwrap_or_default() {
            let (list, register) = match deed {
                Deed::ReadDevice(pa, size, _) => (&mut habits.reads, (pa, size)),
                Deed::WriteDevice(pa, size, _) => (&mut habits.writes, (pa, size)),
                _ => continue,
            };
            if !list.contains(&register) {
                list.push(register);
            }
        }
        result
    }

    fn instructions(&self) -> u64 {
        self.inner.instructions()
    }
}

/// Runs something on shown registers.
pub struct Shown<'a> {
    /// What runs.
    pub inner: &'a mut dyn Executor,
    /// The shown registers.
    pub quiet: Rc<Quiet>,
    /// What was learned, by the functions' addresses in the domain.
    pub learned: &'a Learned,
    /// Bits of a function's address that are missing in what was learned.
    pub high: u64,
}

impl Executor for Shown<'_> {
    fn call(&mut self, world: &mut World, support: &Support, function: u64, args: &[u64; 6]) -> Result<u64, Ended> {
        let none = Habits::default();
        let habits = self.learned.0.get(&(function | self.high)).unwrap_or(&none);
        let shown = &self.quiet.shown;
        for (pa, size) in &habits.writes {
            if let Some(at) = self.quiet.offset(*pa) {
                shown.write(at, &UNWRITTEN.to_le_bytes()[..*size]);
            }
        }
        let mut now = world.device.borrow().copy();
        for (pa, size) in &habits.reads {
            if let Some(at) = self.quiet.offset(*pa) {
                shown.write(at, &now.read(*pa, *size).to_le_bytes()[..*size]);
            }
        }
        let result = self.inner.call(world, support, function, args);
        let mut device = world.device.borrow_mut();
        for (pa, size) in &habits.reads {
            device.read(*pa, *size);
        }
        for (pa, size) in &habits.writes {
            let value = self.quiet.offset(*pa).and_then(|at| shown.int(at, *size)).unwrap_or(UNWRITTEN);
            let mask = if *size == 8 { u64::MAX } else { (1 << (8 * size)) - 1 };
            if value != UNWRITTEN & mask {
                device.write(*pa, *size, value, &world.ram);
            }
        }
        result
    }

    fn instructions(&self) -> u64 {
        self.inner.instructions()
    }
}
