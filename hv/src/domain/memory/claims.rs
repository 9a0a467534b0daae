//! Claims: frames that the tools set aside for a domain that they are about to build, so that two builders at a time
//! cannot both start and then both fail. A domain's own allocations use its claim up; others get only what is not claimed.

use crate::domain::memory::limbo;
use crate::domain::memory::DomainMm;
use crate::sync::Mutex;
use core::sync::atomic::{AtomicU64, Ordering};
use xen_abi::errno::Errno;

/// Frames in all claims.
static OUTSTANDING: AtomicU64 = AtomicU64::new(0);
/// Making and giving up claims, and every allocation that looks at them.
static LOCK: Mutex<()> = Mutex::new(());

/// Frames that are claimed and not yet allocated.
pub fn outstanding() -> u64 {
    OUTSTANDING.load(Ordering::Acquire)
}

/// Claims what the domain with `mm` needs to have `pages` in all; 0 gives its claim up. EINVAL if it may not have so many, or has a claim or
/// as many pages already, or is dying; ENOMEM if there are not as many free and unclaimed.
///
/// One that dies gives its claim up after it has begun to, so it is asked under the lock: a claim behind that would be nobody's to give up.
pub fn claim(mm: &DomainMm, is_dying: impl FnOnce() -> bool, pages: u64) -> Result<(), Errno> {
    let _lock = LOCK.lock();
    if pages == 0 {
        forget_locked(mm);
        return Ok(());
    }
    let missing = pages.saturating_sub(mm.tot_pages());
    if pages > mm.max_pages() || missing == 0 || mm.claim().load(Ordering::Relaxed) != 0 || is_dying() {
        return Err(Errno::EINVAL);
    }
    if missing > limbo::available_count().saturating_sub(outstanding()) {
        return Err(Errno::ENOMEM);
    }
    mm.claim().store(missing, Ordering::Relaxed);
    OUTSTANDING.fetch_add(missing, Ordering::AcqRel);
    Ok(())
}

/// Gives the claim up.
pub fn forget(mm: &DomainMm) {
    let _lock = LOCK.lock();
    forget_locked(mm);
}

fn forget_locked(mm: &DomainMm) {
    OUTSTANDING.fetch_sub(mm.claim().swap(0, Ordering::Relaxed), Ordering::AcqRel);
}

/// Says whether somebody who holds a claim of `own` may take `pages` frames; if so, that much of the claim is used up.
pub fn admit(own: &AtomicU64, pages: u64) -> bool {
    if outstanding() == 0 {
        return true;
    }
    let _lock = LOCK.lock();
    let claimed = own.load(Ordering::Relaxed);
    let others = outstanding() - claimed;
    if pages > claimed && pages > limbo::available_count().saturating_sub(others) {
        return false;
    }
    let used = claimed.min(pages);
    own.store(claimed - used, Ordering::Relaxed);
    OUTSTANDING.fetch_sub(used, Ordering::AcqRel);
    true
}
