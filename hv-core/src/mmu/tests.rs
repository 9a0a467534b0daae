//! One test for each rule; `model` checks them all together over random sequences.

use super::fake::{Machine, DOM0, DOM1, DOM2, HYPERVISOR_ENTRY, READ_ONLY_IO};
use super::*;
use crate::frame::{FrameType, UsageState};
use x86::{Level, Mfn, Pte, VirtAddr};

mod concurrent;
mod entries;
mod lifetime;
mod mirror;
mod promotion;
mod withdrawal;

const P: u64 = 1;
const RW: u64 = 2;
const US: u64 = 4;
const A: u64 = 0x20;
const D: u64 = 0x40;
const PSE: u64 = 0x80;
const G: u64 = 0x100;
const KERNEL: u64 = 1 << 52;
const NX: u64 = 1 << 63;

/// An entry for frame `n`.
fn pte(n: u64, flags: u64) -> Pte {
    Pte(n << 12 | flags)
}
fn mfn(n: u64) -> Mfn {
    Mfn::new(n)
}
fn slot(n: u64, index: usize) -> Slot {
    Slot::new(mfn(n), index)
}

/// Domain 1 has frames 10 to 39. 10 is an L4 table (entry 0 -> 11), 11 an L3 (0 -> 12), 12 an L2 (0 -> 13), 13 an L1
/// that maps 20 read-write at 0 and 21 read-only at 1. Domain 2 has 40 to 49, domain 0 has 50 to 59.
const L4: u64 = 10;
const L3: u64 = 11;
const L2: u64 = 12;
const L1: u64 = 13;

fn machine() -> (Machine, Deferred) {
    let machine = Machine::new(64);
    machine.populate(DOM1, 10, 30);
    machine.populate(DOM2, 40, 10);
    machine.populate(DOM0, 50, 10);
    machine.poke(slot(L4, 0), pte(L3, P | RW | US));
    machine.poke(slot(L3, 0), pte(L2, P | RW | US));
    machine.poke(slot(L2, 0), pte(L1, P | RW | US));
    machine.poke(slot(L1, 0), pte(20, P | RW | US));
    machine.poke(slot(L1, 1), pte(21, P | US));
    (machine, Deferred::new())
}

/// The same, with the L4 table pinned and the log of writes empty.
fn pinned() -> (Machine, Deferred) {
    let (m, mut lock) = machine();
    m.mmu().pin(DOM1, mfn(L4), Level::L4, &mut lock).unwrap();
    m.writes.lock().unwrap().clear();
    (m, lock)
}

/// Type references and general references of a frame.
fn counts(m: &Machine, n: u64) -> (FrameType, u32, u32) {
    let frame = m.at(mfn(n));
    let usage = frame.usage();
    let ty = if usage.state() == UsageState::Idle { FrameType::None } else { usage.ty() };
    (ty, usage.count(), frame.count().refs())
}

/// A normal `mmu_update` by domain 1 of its own table.
fn update(m: &Machine, lock: &mut Deferred, at: Slot, value: Pte) -> Result<(), MmuError> {
    m.mmu().mmu_update(at.addr(), value.0, Owners::both(DOM1), lock)
}
