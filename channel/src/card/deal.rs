//! Which of a card's transmit queues a sender's packets go by.
//!
//! A sender keeps its queue for as long as it is there, so its packets stay in order, whatever it sends. It gets the
//! queue with the fewest senders when it first sends something; so of senders that come one after the other none shares
//! a queue before each queue has one.

use super::turns::NoMemory;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A sender that has sent nothing.
const NONE: u8 = u8::MAX;

/// See the module.
pub struct Deal {
    /// The queue of each sender.
    queues: Box<[u8]>,
    /// How many senders each queue has.
    counts: Box<[u16]>,
    /// One of the first queue's that is not counted.
    left_out: Option<u16>,
}

impl Deal {
    /// Senders `0..nr_senders`, none of which has sent anything, and `nr_queues` queues: one at least, and fewer
    /// than 255.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(nr_senders: u16, nr_queues: u8) -> Result<Self, NoMemory> {
        let queues = filled(NONE, nr_senders.into())?;
        let counts = filled(0, nr_queues.clamp(1, NONE - 1).into())?;
        Ok(Self { queues, counts, left_out: None })
    }

    /// A sender, which has sent nothing, sends so little that it takes no queue from others: the first is its.
    pub fn leave_out(&mut self, sender: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(sender)) {
            (*queue, self.left_out) = (0, Some(sender));
        }
    }

    /// How many queues there are.
    #[inline]
    pub fn nr_queues(&self) -> usize {
        self.counts.len()
    }

    /// The queue of a sender, from now on.
    #[inline]
    pub fn queue_of(&mut self, sender: u16) -> usize {
        match self.known(sender) {
            Some(queue) => queue,
            None => self.assign(sender),
        }
    }

    /// The queue of a sender that has sent something.
    #[inline]
    pub fn known(&self, sender: u16) -> Option<usize> {
        self.queues.get(usize::from(sender)).filter(|queue| **queue != NONE).map(|queue| usize::from(*queue))
    }

    #[cold]
    fn assign(&mut self, sender: u16) -> usize {
        let Some(own) = self.queues.get_mut(usize::from(sender)) else { return 0 };
        let fewest = self.counts.iter().enumerate().min_by_key(|(_, count)| **count);
        let queue = fewest.map_or(0, |(queue, _)| queue);
        self.counts[queue] += 1;
        #[allow(clippy::cast_possible_truncation, reason = "there are fewer than 255")]
        {
            *own = queue as u8;
        }
        queue
    }

    /// A sender is gone: the next one of that number gets a queue anew.
    pub fn forget(&mut self, sender: u16) {
        let Some(queue) = self.known(sender) else { return };
        if self.left_out.take_if(|left_out| *left_out == sender).is_none() {
            self.counts[queue] -= 1;
        }
        self.queues[usize::from(sender)] = NONE;
    }
}

fn filled<T: Copy>(value: T, count: usize) -> Result<Box<[T]>, NoMemory> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| NoMemory)?;
    list.resize(count, value);
    Ok(list.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sender_keeps_its_queue() {
        let mut deal = Deal::new(8, 3).expect("memory");
        assert_eq!(deal.known(5), None);
        assert_eq!([5, 2, 7, 0].map(|sender| deal.queue_of(sender)), [0, 1, 2, 0]);
        assert_eq!([0, 7, 2, 5].map(|sender| deal.queue_of(sender)), [0, 2, 1, 0]);
        assert_eq!(deal.known(7), Some(2));
    }

    #[test]
    fn one_that_is_gone_leaves_room() {
        let mut deal = Deal::new(8, 2).expect("memory");
        assert_eq!([0, 1, 2, 3].map(|sender| deal.queue_of(sender)), [0, 1, 0, 1]);
        deal.forget(1);
        deal.forget(3);
        deal.forget(3);
        assert_eq!((deal.queue_of(4), deal.queue_of(5)), (1, 1));
        assert_eq!(deal.queue_of(1), 0);
    }

    #[test]
    fn one_that_is_left_out_takes_no_queue_from_others() {
        let mut deal = Deal::new(8, 2).expect("memory");
        deal.leave_out(3);
        assert_eq!([0, 3, 1, 2].map(|sender| deal.queue_of(sender)), [0, 0, 1, 0]);
        deal.forget(3);
        deal.forget(3);
        assert_eq!((deal.queue_of(3), deal.queue_of(4)), (1, 0), "another one of its number is counted");
        deal.leave_out(8);
        assert_eq!(deal.known(8), None, "nobody");
    }

    #[test]
    fn one_queue_is_everybodys_and_there_is_always_one() {
        for nr_queues in [0, 1] {
            let mut deal = Deal::new(4, nr_queues).expect("memory");
            assert_eq!((deal.nr_queues(), deal.queue_of(0), deal.queue_of(3)), (1, 0, 0));
            assert_eq!(deal.queue_of(4), 0, "nobody");
        }
    }

    proptest! {
        /// Whoever comes and goes: nobody changes his queue, and queues differ by no more senders than have gone.
        #[test]
        fn senders_keep_their_queues_whoever_comes_and_goes(nr_queues in 1_u8..=16, ops in prop::collection::vec((0_u16..64, 0_u8..4), 1..300)) {
            let mut deal = Deal::new(64, nr_queues).expect("memory");
            let mut model = std::collections::HashMap::new();
            for (sender, op) in ops {
                if op == 0 {
                    deal.forget(sender);
                    model.remove(&sender);
                    continue;
                }
                let has = |queue: usize| model.values().filter(|q| **q == queue).count();
                let fewest = (0..usize::from(nr_queues)).map(has).min();
                let queue = deal.queue_of(sender);
                match model.get(&sender) {
                    Some(known) => prop_assert_eq!(queue, *known),
                    None => {
                        prop_assert_eq!(Some(has(queue)), fewest);
                        model.insert(sender, queue);
                    }
                }
                prop_assert!(model.iter().all(|(sender, queue)| deal.known(*sender) == Some(*queue)));
            }
        }
    }
}
