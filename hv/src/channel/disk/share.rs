//! Disks that one driver domain serves: each has its share of what that does, by weight.
//!
//! What is shared is decided in the crate `channel`; here is who shares with whom. A disk whose driver domain has no
//! other takes no lock.

use super::{wake, Name, DISKS};
use crate::arch::tsc;
use crate::domain::dma_faults::DmaFaults;
use crate::domain::Domain;
use crate::iommu;
use crate::sync::{FairGuard, FairMutex};
use ::channel::vbd::shares::{Belief, Member, NoMemory, Shares, Turns, STALL_NS};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Turns that are given at one time. Whoever has the next one gets it from the timer.
const TURNS: usize = 64;

/// The disks of one driver domain.
pub struct Common {
    shares: FairMutex<Shares<Name>>,
    /// There are several.
    is_shared: AtomicBool,
    /// Of the driver domain's devices.
    dma_faults: Arc<DmaFaults>,
}

impl Common {
    /// Of a driver domain that has none yet.
    pub fn new(back: &Domain) -> Self {
        let shares = FairMutex::new(Shares::default());
        Common { shares, is_shared: AtomicBool::new(false), dma_faults: back.dma_faults.clone() }
    }

    /// A device of the driver domain's was stopped: its answers are not to be believed.
    #[inline]
    pub fn is_distrusted(&self) -> bool {
        self.dma_faults.has_any()
    }

    /// Whether to believe the answers that are in its rings by now. An IOMMU may have stopped a device before one of
    /// them came, and be about to tell.
    #[inline]
    pub fn belief(&self) -> Belief {
        let is_doubtful = self.dma_faults.is_watched() && iommu::has_news();
        match self.is_distrusted() {
            true => Belief::No,
            false if is_doubtful => Belief::NotYet,
            false => Belief::Yes,
        }
    }

    /// Those whose turn it is pass on what they have. No disk's lock may be held.
    pub fn go_on(&self) {
        for _ in 0..TURNS {
            let Some(name) = self.shares.lock().next_turn() else { return };
            let mut shelf = DISKS[name.place()].lock();
            if let Some(shelf) = shelf.as_deref_mut().filter(|shelf| shelf.name == name) {
                shelf.go_on();
            }
        }
        if let Some(name) = self.shares.lock().next_turn() {
            wake(name, tsc::now_ns());
        }
    }
}

/// A disk's place among those of its driver domain, until this is dropped.
pub struct Share {
    common: Arc<Common>,
    member: Member,
}

impl Share {
    /// A disk of this weight is served, too.
    pub fn of(common: &Arc<Common>, name: Name, weight: u16) -> Result<Share, NoMemory> {
        let mut shares = common.shares.lock();
        let member = shares.join(name, weight)?;
        common.is_shared.store(shares.nr_disks() > 1, Relaxed);
        Ok(Share { common: common.clone(), member })
    }

    /// All disks of the driver domain.
    pub fn common(&self) -> &Arc<Common> {
        &self.common
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = self.common.shares.lock();
        shares.leave(self.member);
        self.common.is_shared.store(shares.nr_disks() > 1, Relaxed);
    }
}

/// Turns of a disk with this share; without a back end it has none.
pub struct Turn<'a> {
    share: Option<&'a Share>,
    is_shared: bool,
    /// There is room that others may wait for.
    pub is_left: bool,
    /// It was refused: it is to ask again then, in ns, if it is not asked before.
    pub again_at: Option<u64>,
}

impl<'a> Turn<'a> {
    /// A disk's, which is held.
    pub fn of(share: Option<&'a Share>) -> Self {
        let is_shared = share.is_some_and(|share| share.common.is_shared.load(Relaxed));
        Turn { share, is_shared, is_left: false, again_at: None }
    }

    fn shares(&self) -> Option<(FairGuard<'a, Shares<Name>>, Member)> {
        self.share.map(|share| (share.common.shares.lock(), share.member))
    }
}

impl Turns for Turn<'_> {
    #[inline]
    fn belief(&self) -> Belief {
        self.share.map_or(Belief::Yes, |share| share.common.belief())
    }

    #[inline]
    fn is_counted(&self) -> bool {
        self.is_shared
    }

    fn may_begin(&mut self) -> bool {
        let Some((mut shares, member)) = self.shares() else { return true };
        let now = tsc::now_ns();
        let may = shares.may_begin(member, now);
        self.again_at = (!may).then_some(now + STALL_NS);
        may
    }

    fn began(&mut self, cost: u32) {
        if let Some((mut shares, member)) = self.shares() {
            shares.began(member, cost, tsc::now_ns());
        }
    }

    fn ended(&mut self, cost: u32) {
        if let Some((mut shares, member)) = self.shares() {
            self.is_left |= shares.ended(member, cost, tsc::now_ns());
        }
    }

    fn abandoned(&mut self) {
        if let Some((mut shares, member)) = self.shares() {
            self.is_left |= shares.abandoned(member);
        }
    }
}
