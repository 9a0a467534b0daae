//! What both ways of running a twin are to its runtime: the driver domain's memory, the host, and the words of the
//! instance.

use crate::world::World;
use std::collections::VecDeque;
use twin_abi::layout::{ctx, STACK_SIZE};
use twin_runtime::gate::{Embedder, Upcall};
use twin_runtime::linux::pool::Pool;
use twin_runtime::linux::skb::Frame;
use twin_runtime::linux::{Foreign, Host, Routine};
use twin_runtime::memory::Fault;
use twin_runtime::stlb::Mapper;
use twin_runtime::{Memory, Reason};

/// The areas of a running instance.
pub trait Instance {
    /// Reads a word of the context page.
    fn word(&self, offset: u32) -> u64;
    /// Writes one.
    fn set_word(&mut self, offset: u32, value: u64);
    /// Lowest address of the stack.
    fn stack(&self) -> u64;
    /// Shows a domain page and the one after it to the twin.
    fn map_pair(&mut self, world: &World, page: u64) -> Result<u64, Fault>;
    /// Takes a pair away.
    fn unmap_pair(&mut self, mapped: u64);
    /// Writes an entry of the translation table.
    fn set_entry(&mut self, index: usize, tag: u64, mapped: u64);
}

/// An instance in its world.
pub struct Embedded<'a, I> {
    /// The driver domain.
    pub world: &'a mut World,
    /// The instance.
    pub instance: &'a mut I,
}

/// Answers that upcalls get, in turn; 0 when there is none left. The domain that would answer does not run here.
#[derive(Debug, Clone, Default)]
pub struct Answers(pub VecDeque<u64>);

impl Answers {
    /// The next answer.
    pub fn pop(&mut self) -> u64 {
        self.0.pop_front().unwrap_or(0)
    }
}

impl<I> Memory for Embedded<'_, I> {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.world.read(address, into)
    }
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.world.write(address, from)
    }
    fn exchange_u32(&self, address: u64, old: u32, new: u32) -> Result<u32, Fault> {
        self.world.exchange_u32(address, old, new)
    }
    fn exchange_u64(&self, address: u64, old: u64, new: u64) -> Result<u64, Fault> {
        self.world.exchange_u64(address, old, new)
    }
}

impl<I> Host for Embedded<'_, I> {
    fn with_pool<R>(&mut self, work: impl FnOnce(&mut Pool) -> R) -> R {
        self.world.with_pool(work)
    }
    fn machine_frame(&self, pfn: u64) -> Option<u64> {
        self.world.machine_frame(pfn)
    }
    fn schedule_poll(&mut self, napi: u64) {
        self.world.schedule_poll(napi);
    }
    fn receive(&mut self, frame: Frame<'_>) -> bool {
        self.world.receive(frame)
    }
    fn transmitted(&mut self, skb: u64, cookie: u64) {
        self.world.transmitted(skb, cookie);
    }
    fn free_in_domain(&mut self, what: Foreign) {
        self.world.free_in_domain(what);
    }
    fn queue_event(&mut self, queue: u64) {
        self.world.queue_event(queue);
    }
    fn lock_is_busy(&mut self, lock: u64, tries: u32) -> bool {
        self.world.lock_is_busy(lock, tries)
    }
    fn note(&mut self, routine: Routine, args: &[u64; 6]) {
        self.world.note(routine, args);
    }
}

impl<I: Instance> Mapper for Embedded<'_, I> {
    fn map_pair(&mut self, page: u64) -> Result<u64, Fault> {
        self.instance.map_pair(self.world, page)
    }
    fn unmap_pair(&mut self, mapped: u64) {
        self.instance.unmap_pair(mapped);
    }
    fn set_entry(&mut self, index: usize, tag: u64, mapped: u64) {
        self.instance.set_entry(index, tag, mapped);
    }
}

impl<I: Instance> Embedder for Embedded<'_, I> {
    fn budget(&self) -> i64 {
        self.instance.word(ctx::BUDGET) as i64
    }
    fn set_budget(&mut self, steps: i64) {
        self.instance.set_word(ctx::BUDGET, steps as u64);
    }
    fn miss_address(&self) -> u64 {
        self.instance.word(ctx::MISS_ADDRESS)
    }
    fn set_miss_result(&mut self, address: u64) {
        self.instance.set_word(ctx::MISS_RESULT, address);
    }
    fn upcall(
        &mut self,
        _import: u32,
        name: &str,
        _domain: u64,
        args: &[u64; 6],
        _stack: u64,
    ) -> Result<Upcall, Reason> {
        Ok(Upcall::Returned(self.world.upcall(name, args)))
    }
    fn is_twin_stack(&self, address: u64) -> bool {
        let stack = self.instance.stack();
        (stack..stack + STACK_SIZE).contains(&address)
    }
}
