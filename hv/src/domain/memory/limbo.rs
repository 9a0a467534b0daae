//! Frames that domains let go, on their way to the allocator: translations of them may still be in TLBs, also in
//! those of IOMMUs, so they wait here, and go on in batches after one flush. Their contents are wiped when a domain
//! gets them again. Those that a snapshot notes do not go on: they are away until their owner goes back to it, or it is
//! dropped.

use crate::arch::tlb;
use crate::cpu::percpu::this_cpu;
use crate::iommu;
use crate::mem::frames;
use crate::sync::FairMutex;
use core::sync::atomic::{AtomicU64, Ordering};
use hv_core::allowance::MOVED;
use hv_core::frame::Gone;
use x86::Mfn;

/// Frames that wait at most.
const CAPACITY: usize = 256;

struct Limbo {
    waiting: [Mfn; CAPACITY],
    count: usize,
    /// Clock when the last one came.
    stamp: u32,
}

static LIMBO: FairMutex<Limbo> = FairMutex::new(Limbo { waiting: [Mfn::INVALID; CAPACITY], count: 0, stamp: 0 });

/// Frames that are away ([`Gone::Away`]): nobody's, and not free.
static AWAY: AtomicU64 = AtomicU64::new(0);

/// Takes a frame that nobody refers to any more. All that go come by here, so it is here that they count.
pub fn take(mfn: Mfn, gone: Gone) {
    this_cpu().allowance.spend(MOVED);
    match gone {
        Gone::Free => put(mfn),
        Gone::Away => {
            AWAY.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A frame that was away has an owner again.
pub fn returned() {
    AWAY.fetch_sub(1, Ordering::Relaxed);
}

/// A frame that was away is free.
pub fn set_free(mfn: Mfn) {
    returned();
    put(mfn);
}

/// How many frames are away. The audit wants to know.
pub fn away_count() -> u64 {
    AWAY.load(Ordering::Relaxed)
}

fn put(mfn: Mfn) {
    let mut limbo = LIMBO.lock();
    if limbo.count == CAPACITY {
        limbo.empty();
    }
    let place = limbo.count;
    limbo.waiting[place] = mfn;
    limbo.count = place + 1;
    limbo.stamp = tlb::clock();
}

/// Number of frames that wait.
pub fn count() -> u64 {
    LIMBO.lock().count as u64
}

/// Free frames in all, those that wait among them: they are free to whoever wants one.
pub fn free_in_all() -> u64 {
    let limbo = LIMBO.lock();
    // Under the lock, so that none is on its way from here to there.
    frames::free_count() + limbo.count as u64
}

/// Free frames that domains can have.
pub fn available_count() -> u64 {
    free_in_all().saturating_sub(frames::RESERVE)
}

/// Calls `f` for each frame that waits.
pub fn for_each(f: impl FnMut(&Mfn)) {
    let limbo = LIMBO.lock();
    limbo.waiting[..limbo.count].iter().for_each(f);
}

/// Sends all waiting frames on to the allocator.
pub fn drain() {
    LIMBO.lock().empty();
}

impl Limbo {
    fn empty(&mut self) {
        if self.count == 0 {
            return;
        }
        tlb::flush_since(self.stamp, || !0);
        iommu::flush_released();
        for &mfn in &self.waiting[..self.count] {
            frames::free(mfn, 0);
        }
        self.count = 0;
    }
}
