//! What each transmit queue of a card holds of the buffers that were lent: no more than its share, so that one which
//! the card does not serve leaves the others theirs. What one that has no others holds is not counted.

use super::lanes::MAX_LANES;

/// Places for counts: one for each queue, and one for what is no queue's.
const PLACES: usize = (MAX_LANES + 1).next_power_of_two();

/// See the module. Of one queue, if nothing else was said.
#[derive(Clone, Debug)]
pub struct Shares {
    nr_queues: usize,
    /// What each holds.
    buffers: [u32; PLACES],
    pages: [u32; PLACES],
}

impl Default for Shares {
    fn default() -> Self {
        Self { nr_queues: 1, buffers: [0; PLACES], pages: [0; PLACES] }
    }
}

/// Whose a buffer is. It goes with the buffer, and says so until that comes home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder(u8);

impl Holder {
    /// Nobody's.
    pub const NOBODY: Self = Self(0);

    /// That of a queue; nobody's, if there is no such queue.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "at most MAX_LANES")]
    fn of(queue: usize) -> Self {
        if queue < MAX_LANES {
            Self(queue as u8 + 1)
        } else {
            Self::NOBODY
        }
    }

    #[inline(always)]
    fn place(self) -> usize {
        usize::from(self.0) % PLACES
    }
}

impl Shares {
    /// From now on so many queues share, at least one.
    pub fn among(&mut self, nr_queues: usize) {
        self.nr_queues = nr_queues.max(1);
    }

    /// So many share.
    #[must_use]
    pub fn nr_queues(&self) -> usize {
        self.nr_queues
    }

    /// May `queue` hold one more buffer, if there are `all` for all of them? Each may hold something.
    #[inline(always)]
    #[must_use]
    pub fn may_hold_buffer(&self, queue: usize, all: usize) -> bool {
        self.nr_queues == 1 || self.has_its_share_beside(self.buffers[Holder::of(queue).place()], 1, all)
    }

    /// May `queue` hold `count` more pages, if there are `all` for all of them? One that holds none may have those of a
    /// packet.
    #[must_use]
    pub fn may_hold_pages(&self, queue: usize, count: usize, all: usize) -> bool {
        self.nr_queues == 1 || self.has_its_share_beside(self.pages[Holder::of(queue).place()], count, all)
    }

    /// A queue that holds `held` has its share of `all` with `count` more, or less.
    #[inline]
    fn has_its_share_beside(&self, held: u32, count: usize, all: usize) -> bool {
        held == 0 || (held as usize + count).saturating_mul(self.nr_queues) <= all
    }

    /// `queue` holds one more buffer.
    #[inline(always)]
    pub fn hold_buffer(&mut self, queue: usize) -> Holder {
        if self.nr_queues == 1 {
            return Holder::NOBODY;
        }
        self.count_buffer(queue)
    }

    #[cold]
    fn count_buffer(&mut self, queue: usize) -> Holder {
        let holder = Holder::of(queue);
        self.buffers[holder.place()] = self.buffers[holder.place()].wrapping_add(1);
        holder
    }

    /// And so many pages more with it.
    pub fn hold_pages(&mut self, holder: Holder, count: usize) {
        let pages = &mut self.pages[holder.place()];
        *pages = pages.wrapping_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// A buffer comes home, with so many pages.
    pub fn give_back(&mut self, holder: Holder, nr_pages: usize) {
        // What is nobody's is counted wrongly, and asked for by nobody.
        let (buffers, pages) = (&mut self.buffers[holder.place()], &mut self.pages[holder.place()]);
        *buffers = buffers.wrapping_sub(1);
        *pages = pages.wrapping_sub(u32::try_from(nr_pages).unwrap_or(u32::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(nr_queues: usize) -> Shares {
        let mut shares = Shares::default();
        shares.among(nr_queues);
        shares
    }

    /// `queue` takes as many of `all` as it may; how many.
    fn fill(shares: &mut Shares, queue: usize, all: usize) -> alloc::vec::Vec<Holder> {
        let mut holders = alloc::vec::Vec::new();
        while shares.may_hold_buffer(queue, all) {
            holders.push(shares.hold_buffer(queue));
        }
        holders
    }

    #[test]
    fn one_queue_may_hold_what_there_is() {
        let mut shares = shares(1);
        for _ in 0..3 {
            assert!(shares.may_hold_buffer(0, 1) && shares.may_hold_pages(0, 17, 1));
            assert_eq!(shares.hold_buffer(0), Holder::NOBODY);
        }
    }

    #[test]
    fn none_takes_what_is_the_others() {
        let mut shares = shares(3);
        let first = fill(&mut shares, 0, 100);
        assert_eq!((first.len(), fill(&mut shares, 1, 100).len(), fill(&mut shares, 2, 100).len()), (33, 33, 33));
        shares.give_back(first[7], 0);
        assert_eq!(fill(&mut shares, 0, 100).len(), 1);
        shares.give_back(Holder::NOBODY, 0);
        let more = [0, 1, 2].map(|queue| fill(&mut shares, queue, 100).len());
        assert_eq!(more, [0; 3], "what is nobody's is nobody's");
        assert_eq!(fill(&mut shares, 2, 130).len(), 10, "there are more");
        assert_eq!(fill(&mut shares, 2, 100).len(), 0, "there are fewer, and it holds more than its share");
        shares.among(2);
        assert_eq!(fill(&mut shares, 1, 130).len(), 65 - 33, "what it holds counts when others share");
    }

    #[test]
    fn each_may_hold_something() {
        let mut shares = shares(16);
        assert_eq!((fill(&mut shares, 0, 3).len(), fill(&mut shares, 15, 3).len()), (1, 1));
        assert!(shares.may_hold_pages(3, 17, 3), "those of one packet");
        assert_eq!(shares.hold_buffer(16), Holder::NOBODY, "there is no such queue");
    }

    #[test]
    fn pages_are_shared_like_buffers() {
        let mut shares = shares(2);
        let holder = shares.hold_buffer(1);
        shares.hold_pages(holder, 10);
        let may = |shares: &Shares, queue, count| shares.may_hold_pages(queue, count, 32);
        assert!(may(&shares, 1, 6) && !may(&shares, 1, 7) && may(&shares, 0, 16));
        shares.give_back(holder, 10);
        assert!(may(&shares, 1, 16) && fill(&mut shares, 1, 32).len() == 16);
    }
}
