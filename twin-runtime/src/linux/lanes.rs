//! The lanes of a card: one for each of its transmit queues, with a share of its interrupts and polls. What two lanes
//! do may be done at one time, as Linux does it on two CPUs; what one does is done in order.
//!
//! Packets of one poll would overtake each other if two lanes ran it, one after the other, for what it has received is
//! passed on when a lane is done with it. So a poll belongs to the lane that was the first to schedule it: that of its
//! interrupt, as nothing else does that in the steady state.

use core::sync::atomic::{AtomicU8, Ordering};

/// Most lanes, and most polls that are dealt to them.
pub const MAX_LANES: usize = 16;
/// A poll that no lane has scheduled.
const NOBODY: u8 = u8::MAX;

/// See the module.
#[derive(Debug)]
pub struct Lanes {
    /// The first `netdev_queue`.
    first: u64,
    /// Bytes from one to the next.
    stride: u32,
    count: u8,
    nr_lines: u8,
    /// To which lane each poll belongs.
    homes: [AtomicU8; MAX_LANES],
}

impl Lanes {
    /// Of a card with `count` transmit queues, from that at address `first` on, `stride` bytes from one to the next,
    /// and `nr_lines` interrupts. `None`: there is no queue, or more than [`MAX_LANES`], or they lie in one another.
    #[must_use]
    pub fn new(first: u64, stride: u32, count: u32, nr_lines: u8) -> Option<Self> {
        let count = u8::try_from(count).ok().filter(|count| (1..=MAX_LANES).contains(&usize::from(*count)))?;
        let homes = [const { AtomicU8::new(NOBODY) }; MAX_LANES];
        (count == 1 || stride != 0).then_some(Self { first, stride, count, nr_lines, homes })
    }

    /// How many.
    #[inline]
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// The `netdev_queue` of a lane.
    #[must_use]
    pub fn queue(&self, lane: usize) -> u64 {
        self.first.wrapping_add(u64::from(self.stride).wrapping_mul(lane as u64))
    }

    /// The lane with this `netdev_queue`.
    #[must_use]
    pub fn of_queue(&self, queue: u64) -> Option<usize> {
        (0..self.count()).find(|lane| self.queue(*lane) == queue)
    }

    /// The lane of an interrupt, of those that there are. They are dealt round so that the last queue's is in the last
    /// lane: what a card has beside one for each queue most have before them.
    #[must_use]
    pub fn of_line(&self, line: usize) -> usize {
        let (count, behind) = (self.count(), usize::from(self.nr_lines).saturating_sub(line + 1));
        count - 1 - behind % count
    }

    /// The interrupts of a lane: bits.
    #[must_use]
    pub fn lines(&self, lane: usize) -> u32 {
        (0..self.nr_lines.into()).filter(|line| self.of_line(*line) == lane).fold(0, |bits, line| bits | 1 << line)
    }

    /// The lane in which a poll is run that `lane` has scheduled.
    #[inline]
    pub fn home(&self, poll: usize, lane: usize) -> usize {
        let Some(home) = self.homes.get(poll) else { return lane };
        match home.load(Ordering::Relaxed) {
            NOBODY => Self::settle(home, lane),
            own => own.into(),
        }
    }

    #[cold]
    fn settle(home: &AtomicU8, lane: usize) -> usize {
        #[allow(clippy::cast_possible_truncation, reason = "less than MAX_LANES")]
        match home.compare_exchange(NOBODY, lane as u8, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => lane,
            Err(other) => other.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 0xffff_8880_0123_4000;
    const STRIDE: u32 = 0x140;

    fn lanes(count: u32, nr_lines: u8) -> Lanes {
        Lanes::new(FIRST, STRIDE, count, nr_lines).expect("can be")
    }

    #[test]
    fn each_queue_is_a_lanes_and_nothing_between_them_is() {
        let four = lanes(4, 5);
        assert_eq!(four.count(), 4);
        for lane in 0..4 {
            let queue = FIRST + u64::from(STRIDE) * lane as u64;
            assert_eq!((four.queue(lane), four.of_queue(queue)), (queue, Some(lane)));
            assert_eq!(four.of_queue(queue + 8), None);
        }
        assert_eq!(four.of_queue(FIRST + 4 * u64::from(STRIDE)), None, "a fifth");
        assert_eq!(four.of_queue(FIRST - u64::from(STRIDE)), None);
    }

    #[test]
    fn there_is_a_queue_and_none_lies_in_another() {
        assert!(Lanes::new(FIRST, STRIDE, 0, 1).is_none());
        assert!(Lanes::new(FIRST, STRIDE, 17, 1).is_none());
        assert!(Lanes::new(FIRST, STRIDE, 256, 1).is_none());
        assert!(Lanes::new(FIRST, 0, 2, 1).is_none());
        assert!(Lanes::new(FIRST, 0, 1, 1).is_some_and(|one| one.queue(0) == FIRST && one.lines(0) == 1));
    }

    #[test]
    fn each_interrupt_is_in_one_lane_and_they_are_dealt_evenly() {
        for count in 1..=16 {
            for nr_lines in 1..=16_u8 {
                let lanes = lanes(count, nr_lines);
                let all = (0..lanes.count()).map(|lane| lanes.lines(lane)).collect::<alloc::vec::Vec<_>>();
                assert_eq!(all.iter().sum::<u32>(), (1 << nr_lines) - 1, "{count} lanes, {nr_lines} interrupts");
                let most = all.iter().map(|lines| lines.count_ones()).max();
                assert_eq!(most, Some(u32::from(nr_lines).div_ceil(count)), "{count} lanes, {nr_lines} interrupts");
            }
        }
        // One for the card, then one for each queue.
        let igb = lanes(2, 3);
        assert_eq!([0, 1, 2].map(|line| igb.of_line(line)), [1, 0, 1]);
        assert_eq!((igb.lines(0), igb.lines(1)), (0b010, 0b101));
    }

    #[test]
    fn a_poll_stays_where_it_was_scheduled_first() {
        let two = lanes(2, 3);
        assert_eq!((two.home(0, 1), two.home(0, 0), two.home(0, 1)), (1, 1, 1));
        assert_eq!((two.home(1, 0), two.home(1, 1)), (0, 0));
        assert_eq!(two.home(99, 1), 1, "one that is none of the card's");
    }
}
