//! What was taken out of a list that CPUs look into without a lock, until none of them can still look at it.
//!
//! Each CPU counts when it begins to look and when it ceases to: its count is odd while it does (a *section*). What was
//! taken out goes in batches. First each CPU does a full barrier, so that sections that begin later cannot find any of
//! the batch; then the sections are noted that had begun by then, and when each of those is over the batch is free.
//!
//! Nobody waits for a section: it may last as long as a hypercall does, and who is in it may be waiting for who would
//! wait.

use alloc::vec::Vec;

/// Most CPUs.
const MAX_CPUS: usize = 64;

/// What was taken out, and may still be looked at.
#[derive(Debug)]
pub struct Graves<T> {
    /// Since the last batch.
    fresh: Vec<T>,
    batch: Vec<T>,
    /// CPUs in a section that may have found one of the batch, and what they had counted then.
    waiting: u64,
    then: [u32; MAX_CPUS],
}

/// When [`Graves::take`] is to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When something else was taken out.
    Never,
    /// Before anything else: there is another batch.
    AtOnce,
    /// After a while: somebody is in a section. Guests run meanwhile.
    Later,
}

impl<T> Graves<T> {
    /// Nothing was taken out.
    pub const fn new() -> Self {
        Self { fresh: Vec::new(), batch: Vec::new(), waiting: 0, then: [0; MAX_CPUS] }
    }

    /// Notes what was taken out just now. It comes back if there is no memory to note it: then it must stay for ever.
    pub fn add(&mut self, dead: T) -> Result<(), T> {
        if self.fresh.try_reserve(1).is_err() {
            return Err(dead);
        }
        self.fresh.push(dead);
        Ok(())
    }

    /// What nobody looks at any more, to be freed, and when to ask again. `others`: bit n for each CPU n (below 64)
    /// that runs but for this one, which is in no section; `barrier` has each CPU do a full barrier, and has ended when
    /// they have; `count`: what a CPU has counted.
    pub fn take(&mut self, others: u64, barrier: impl FnOnce(), count: impl Fn(usize) -> u32) -> (Vec<T>, Next) {
        if self.waiting == 0 && self.batch.is_empty() {
            self.batch = core::mem::take(&mut self.fresh);
            if !self.batch.is_empty() {
                barrier();
                self.note_sections(others, &count);
            }
        }
        self.look_again(&count);
        if self.waiting != 0 {
            return (Vec::new(), Next::Later);
        }
        let next = if self.fresh.is_empty() { Next::Never } else { Next::AtOnce };
        (core::mem::take(&mut self.batch), next)
    }

    /// Notes the sections that began before all of the batch were out of the list for everybody.
    fn note_sections(&mut self, others: u64, count: &impl Fn(usize) -> u32) {
        for (cpu, then) in self.then.iter_mut().enumerate().filter(|(cpu, _)| others >> cpu & 1 != 0) {
            *then = count(cpu);
            self.waiting |= u64::from(*then % 2) << cpu;
        }
    }

    /// Forgets those that have ended.
    fn look_again(&mut self, count: &impl Fn(usize) -> u32) {
        for (cpu, then) in self.then.iter().enumerate() {
            if self.waiting >> cpu & 1 != 0 && count(cpu) != *then {
                self.waiting &= !(1 << cpu);
            }
        }
    }
}

impl<T> Default for Graves<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use std::vec;

    /// Three CPUs; that which asks is CPU 0.
    #[derive(Default)]
    struct Cpus {
        counts: [Cell<u32>; 3],
        barriers: Cell<u32>,
    }

    impl Cpus {
        /// CPU `cpu` begins a section, or ends it.
        fn turn(&self, cpu: usize) {
            self.counts[cpu].set(self.counts[cpu].get().wrapping_add(1));
        }
        fn take(&self, graves: &mut Graves<u16>) -> (Vec<u16>, Next) {
            graves.take(0b110, || self.barriers.set(self.barriers.get() + 1), |cpu| self.counts[cpu].get())
        }
    }

    #[test]
    fn what_nobody_looks_at_is_free_at_once() {
        let (mut graves, cpus) = (Graves::new(), Cpus::default());
        assert_eq!((cpus.take(&mut graves), cpus.barriers.get()), ((vec![], Next::Never), 0));
        graves.add(7).unwrap();
        graves.add(8).unwrap();
        assert_eq!((cpus.take(&mut graves), cpus.barriers.get()), ((vec![7, 8], Next::Never), 1));
    }

    #[test]
    fn who_waits_for_a_section_lets_its_guest_run() {
        let (mut graves, cpus) = (Graves::new(), Cpus::default());
        cpus.turn(1);
        graves.add(7).unwrap();
        for _ in 0..3 {
            assert_eq!(cpus.take(&mut graves), (vec![], Next::Later), "nothing of it is due");
        }
        // What comes meanwhile does not make it due either.
        graves.add(8).unwrap();
        assert_eq!((cpus.take(&mut graves), cpus.barriers.get()), ((vec![], Next::Later), 1));
        cpus.turn(1);
        assert_eq!(cpus.take(&mut graves), (vec![7], Next::AtOnce));
        assert_eq!((cpus.take(&mut graves), cpus.barriers.get()), ((vec![8], Next::Never), 2));
    }

    #[test]
    fn each_section_is_waited_for_that_had_begun_and_no_later_one() {
        let (mut graves, cpus) = (Graves::new(), Cpus::default());
        cpus.counts[2].set(u32::MAX);
        cpus.turn(1);
        graves.add(7).unwrap();
        assert_eq!(cpus.take(&mut graves).1, Next::Later);
        // It ends one and begins another.
        cpus.turn(1);
        cpus.turn(1);
        assert_eq!(cpus.take(&mut graves).1, Next::Later, "the other one is in its own still");
        cpus.turn(2);
        assert_eq!(cpus.take(&mut graves), (vec![7], Next::Never), "its count went round");
    }
}
