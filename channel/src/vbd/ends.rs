//! After how much more the ends of a disk are to notify: its guest, and its back end.

use crate::pace::{Pace, LATE_NS};
use xen_abi::io::blkif::BLKIF_RING_SIZE;

/// How busy one end of a disk's is.
#[derive(Default)]
pub struct End {
    /// After how many entries it is asked to.
    pub pace: Pace,
    /// How far it had been looked after when it was left alone.
    pub left_at: u32,
}

impl End {
    /// After how many entries it is to notify, if `under_way` will bring about another look: after half of them at
    /// most, so that nobody waits for what waits for him. And its pace then, if that changes.
    #[inline]
    pub fn ahead(&self, at: u32, under_way: u32, now: &impl Fn() -> u64) -> (u32, Option<Pace>) {
        if under_way < 4 {
            return (1, None);
        }
        let mut pace = self.pace;
        let ahead = pace.looked(at.wrapping_sub(self.left_at), now());
        (ahead.min(under_way / 2), Some(pace))
    }

    /// It was left alone `at` this entry.
    #[inline]
    pub fn left(&mut self, at: u32, pace: Option<Pace>) {
        self.left_at = at;
        if let Some(pace) = pace {
            self.pace = pace;
        }
    }
}

/// If nothing has happened for so long, in ns, what has come before is not expected to come soon.
const QUIET_NS: u64 = 2 * LATE_NS;

/// Since when nothing has happened at a disk, as far as looks have found that.
#[derive(Default)]
pub struct Quiet {
    /// How far its rings were.
    at: [u32; 3],
    /// The first look at which they were, in ns.
    since: u64,
}

impl Quiet {
    /// A look at one end that has brought nothing, at `now` (ns); how far the rings are. Whether nothing has happened
    /// for long: then whoever does something next notifies. A medium may take minutes.
    #[cold]
    pub fn is_long(&mut self, at: [u32; 3], now: u64) -> bool {
        if self.at != at {
            (self.at, self.since) = (at, now);
        }
        now.saturating_sub(self.since) >= QUIET_NS
    }
}

/// How many requests a guest brings one after the other when nothing was under way: it waits for nothing meanwhile, so
/// it need not notify of each of them if it has brought so many before.
#[derive(Clone, Copy, Default)]
pub struct Burst {
    /// Requests of this one.
    now: u32,
    /// Of the one before, and of the shorter one of the two before.
    last: u32,
    usual: u32,
    /// All requests were answered when the disk was left alone.
    was_idle: bool,
}

impl Burst {
    /// So many more were taken, and so many are under way. How many are still to come, if all is as usual.
    #[inline]
    pub fn taken(&mut self, nr: u32, under_way: u32) -> u32 {
        if self.was_idle && nr > 0 {
            let ended = self.now.min(BLKIF_RING_SIZE);
            (self.usual, self.last, self.now) = (ended.min(self.last), ended, 0);
        }
        self.now = self.now.saturating_add(nr);
        self.was_idle = under_way == 0;
        if self.now == under_way {
            self.usual.saturating_sub(self.now)
        } else {
            0
        }
    }
}
