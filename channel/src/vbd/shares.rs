//! What several disks have of one back end's domain: shares by weight.
//!
//! Together they have as much under way there as one alone could have ([`ROOM`]); what goes beyond waits in their
//! journals. Who of those that wait is the next is decided by start-time fair queueing: what a disk passes on moves its
//! own virtual time forward, the less the heavier it is, and the one that is behind goes first. So disks that always
//! have something to ask for get shares of what the driver domain does by their weights, in whatever order that
//! answers; one that asks now and then does not wait behind what others keep waiting, but for what is under way; and
//! what one does not use the others have. One that has the driver domain for itself is not held back at all.
//!
//! A medium may hang, and others of the same driver domain need not. So what a disk has under way does not count, and
//! it has no turns, while nothing of that was answered for [`STALL_NS`], if nothing at all was, or of others more than
//! can have been before it. All may be slow, and then each is answered seldom.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use xen_abi::channel_op::WEIGHT;

/// What may be under way at one time, of all disks. A run costs one, and one for each of its pages; so it is a ring
/// full of runs of one page each, or two of 32 pages.
pub const ROOM: u32 = 64;
/// So long nothing is answered of what a disk has under way until others do not wait for it any more, in ns. Who was
/// refused is to ask again then.
pub const STALL_NS: u64 = 100_000_000;
/// Of other disks so much is answered before what a disk has under way, at most: what was under way then, and some
/// more, since who answers may choose.
const PASSES: u64 = 4 * ROOM as u64;
/// Virtual time of what costs one, for the weight 1.
const UNIT: u64 = 1 << 20;

/// Whether answers that are in the ring are to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Belief {
    /// They are.
    Yes,
    /// It will be known in a moment.
    NotYet,
    /// They are not, nor is what comes.
    No,
}

/// What a disk knows of its back end's domain: whether it may pass on something now, as one of several, and whether it
/// is to believe that domain.
pub trait Turns {
    /// Whether to believe what is in the ring by now.
    fn belief(&self) -> Belief;
    /// Whether what it passes on now counts. Only what did is to have [`Turns::ended`].
    fn is_counted(&self) -> bool;
    /// Whether it may. If not, it waits for its turn, and then [`super::disk::Disk::go_on`] is to be called.
    fn may_begin(&mut self) -> bool;
    /// It has passed on what costs so much.
    fn began(&mut self, cost: u32);
    /// What cost so much is answered.
    fn ended(&mut self, cost: u32);
    /// It waits for no answers any more.
    fn abandoned(&mut self);
}

/// The turns of a disk that shares its back end's domain with nobody.
pub struct Alone;

impl Turns for Alone {
    fn belief(&self) -> Belief {
        Belief::Yes
    }
    fn is_counted(&self) -> bool {
        false
    }
    fn may_begin(&mut self) -> bool {
        true
    }
    fn began(&mut self, _: u32) {}
    fn ended(&mut self, _: u32) {}
    fn abandoned(&mut self) {}
}

/// Not enough memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// Names one of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member(u16);

/// A disk. `T`: how it is found.
struct Disk<T> {
    name: T,
    weight: u16,
    /// Virtual time at which what it has passed on ends.
    end: u64,
    under_way: u32,
    /// When the last of that was answered, or the first passed on, in ns.
    progress: u64,
    /// What had been answered of all by then.
    done_then: u64,
    /// That was too long ago.
    is_stalled: bool,
    /// Virtual time at which what waits for its turn may begin, or that has its turn now.
    start: Option<u64>,
    /// It is among those that wait.
    waits: bool,
}

impl<T> Disk<T> {
    /// When what is passed on next begins.
    fn start(&self, virtual_now: u64) -> u64 {
        self.start.unwrap_or(self.end.max(virtual_now))
    }

    /// What counts of what it has under way.
    fn counted(&self) -> u32 {
        if self.is_stalled {
            0
        } else {
            self.under_way
        }
    }
}

/// The disks of one back end's domain.
pub struct Shares<T> {
    disks: Vec<Option<Disk<T>>>,
    /// Those that wait, by the virtual time at which they may begin.
    waiting: BinaryHeap<Reverse<(u64, Member)>>,
    /// Virtual time of who began last.
    virtual_now: u64,
    /// What counts of all, and what all have.
    under_way: u32,
    all_under_way: u32,
    /// What was answered of all, and when the last of that was, or the first was passed on, in ns.
    done: u64,
    progress: u64,
    /// Not before is it looked again who has stalled.
    next_look: u64,
}

impl<T> Default for Shares<T> {
    fn default() -> Self {
        let (disks, waiting) = (Vec::new(), BinaryHeap::new());
        Shares { disks, waiting, virtual_now: 0, under_way: 0, all_under_way: 0, done: 0, progress: 0, next_look: 0 }
    }
}

impl<T: Copy> Shares<T> {
    /// Another disk. `weight` 0 is [`WEIGHT`].
    pub fn join(&mut self, name: T, weight: u16) -> Result<Member, NoMemory> {
        let weight = if weight == 0 { WEIGHT } else { weight };
        let at = self.disks.iter().position(Option::is_none).unwrap_or(self.disks.len());
        let member = Member(u16::try_from(at).map_err(|_| NoMemory)?);
        if at == self.disks.len() {
            self.disks.try_reserve(1).map_err(|_| NoMemory)?;
            self.waiting.try_reserve(at + 1 - self.waiting.len()).map_err(|_| NoMemory)?;
            self.disks.push(None);
        }
        let (end, waits, is_stalled) = (self.virtual_now, false, false);
        let (under_way, progress, done_then, start) = (0, 0, 0, None);
        self.disks[at] = Some(Disk { name, weight, end, under_way, progress, done_then, is_stalled, start, waits });
        Ok(member)
    }

    /// A disk goes, and nobody waits for what it has under way.
    pub fn leave(&mut self, member: Member) {
        let Some(disk) = self.disks.get_mut(usize::from(member.0)).and_then(Option::take) else { return };
        self.under_way = self.under_way.saturating_sub(disk.counted());
        self.all_under_way -= disk.under_way;
        self.waiting.retain(|Reverse((_, other))| *other != member);
    }

    /// Disks that there are.
    pub fn nr_disks(&self) -> usize {
        self.disks.iter().flatten().count()
    }

    /// Whether a disk that has something to pass on may do so, at time `now` (ns). If not it waits, and
    /// [`Shares::next_turn`] names it when its turn has come.
    #[inline]
    pub fn may_begin(&mut self, member: Member, now: u64) -> bool {
        self.is_its_turn(member) || self.is_turn_at_last(member, now)
    }

    #[inline]
    fn is_its_turn(&self, member: Member) -> bool {
        let Some(Some(disk)) = self.disks.get(usize::from(member.0)) else { return true };
        let start = disk.start(self.virtual_now);
        let is_first = |first: &Reverse<(u64, Member)>| (start, member) <= first.0;
        // What others have under way that does not count may count again soon.
        let is_alone = self.waiting.is_empty() && self.all_under_way == disk.under_way;
        is_alone || !disk.is_stalled && self.under_way < ROOM && self.waiting.peek().is_none_or(is_first)
    }

    /// Whether it is, if nobody waits for those that have stalled. If not the disk waits; whoever has come before it
    /// keeps his place.
    #[cold]
    fn is_turn_at_last(&mut self, member: Member, now: u64) -> bool {
        if now >= self.next_look {
            self.next_look = now + STALL_NS / 4;
            self.look_for_stalled(now);
            if self.is_its_turn(member) {
                return true;
            }
        }
        if let Some(Some(disk)) = self.disks.get_mut(usize::from(member.0)) {
            // One that has stalled asks again when it is answered.
            if !disk.waits && !disk.is_stalled {
                let start = disk.start(self.virtual_now);
                (disk.start, disk.waits) = (Some(start), true);
                self.waiting.push(Reverse((start, member)));
            }
        }
        false
    }

    fn look_for_stalled(&mut self, now: u64) {
        let is_over = |since: u64| now >= since.saturating_add(STALL_NS);
        let (done, is_nothing_done) = (self.done, is_over(self.progress));
        for disk in self.disks.iter_mut().flatten() {
            let is_passed = is_nothing_done || done.wrapping_sub(disk.done_then) >= PASSES;
            if disk.counted() > 0 && is_over(disk.progress) && is_passed {
                self.under_way -= disk.under_way;
                (disk.is_stalled, disk.waits, disk.start) = (true, false, None);
            }
        }
        let disks = &self.disks;
        self.waiting.retain(|Reverse((_, member))| {
            disks.get(usize::from(member.0)).is_some_and(|disk| disk.as_ref().is_some_and(|disk| disk.waits))
        });
    }

    /// A disk has passed on what costs so much, at time `now` (ns).
    #[inline]
    pub fn began(&mut self, member: Member, cost: u32, now: u64) {
        let Some(Some(disk)) = self.disks.get_mut(usize::from(member.0)) else { return };
        if disk.under_way == 0 {
            (disk.progress, disk.done_then) = (now, self.done);
        }
        if self.under_way == 0 {
            self.progress = now;
        }
        disk.under_way += cost;
        self.under_way += if disk.is_stalled { 0 } else { cost };
        self.all_under_way += cost;
        let start = disk.start(self.virtual_now);
        disk.start = None;
        self.virtual_now = self.virtual_now.max(start);
        disk.end = start.saturating_add(u64::from(cost) * UNIT / u64::from(disk.weight));
    }

    /// That is answered, at time `now` (ns). Whether there is room now that a disk waits for.
    #[inline]
    pub fn ended(&mut self, member: Member, cost: u32, now: u64) -> bool {
        let Some(Some(disk)) = self.disks.get_mut(usize::from(member.0)) else { return false };
        self.under_way -= disk.counted();
        let cost = cost.min(disk.under_way);
        self.done = self.done.wrapping_add(cost.into());
        self.all_under_way -= cost;
        self.progress = self.progress.max(now);
        disk.under_way -= cost;
        (disk.progress, disk.done_then, disk.is_stalled) = (now, self.done, false);
        self.under_way += disk.under_way;
        self.under_way < ROOM && !self.waiting.is_empty()
    }

    /// Nobody waits for anything that a disk has under way. As above.
    pub fn abandoned(&mut self, member: Member) -> bool {
        self.ended(member, u32::MAX, 0)
    }

    /// The disk that is to pass on something now, if there is room for what waits. It does not wait any more, unless it
    /// asks again.
    pub fn next_turn(&mut self) -> Option<T> {
        while self.under_way < ROOM {
            let Reverse((_, member)) = self.waiting.pop()?;
            if let Some(Some(disk)) = self.disks.get_mut(usize::from(member.0)) {
                disk.waits = false;
                return Some(disk.name);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
