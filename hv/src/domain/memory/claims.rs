//! Claims: see [`hv_core::claims`].

use crate::domain::memory::limbo;
use crate::domain::memory::DomainMm;
use crate::mem::frames;
use crate::sync::FairMutex;
use hv_core::claims::{Claim, Claims};
use xen_abi::errno::Errno;

/// Held by all that take memory for domains, until it is not free any more.
static CLAIMS: FairMutex<Claims> = FairMutex::new(Claims::new());

/// Does `f` with the lock held. Tables of guests grow without it, and leave what is claimed then
/// ([`frames::grow_tables`]).
fn locked<T>(f: impl FnOnce(&mut Claims) -> T) -> T {
    let mut claims = CLAIMS.lock();
    let result = f(&mut claims);
    frames::set_claimed(claims.outstanding());
    result
}

/// Frames that are claimed and not yet allocated.
pub fn outstanding() -> u64 {
    CLAIMS.lock().outstanding()
}

/// Claims what the domain with `mm` needs to have `pages` in all; 0 gives its claim up. EINVAL if it may not have so
/// many, or has a claim or as many pages already, or is dying; ENOMEM if there are not as many free and unclaimed.
///
/// One that dies gives its claim up after it has begun to, so it is asked under the lock: a claim behind that would be
/// nobody's to give up.
pub fn claim(mm: &DomainMm, is_dying: impl FnOnce() -> bool, pages: u64) -> Result<(), Errno> {
    locked(|claims| {
        if pages == 0 {
            claims.give_up(mm.claim());
            return Ok(());
        }
        let missing = pages.saturating_sub(mm.tot_pages());
        if pages > mm.max_pages() || missing == 0 || mm.claim().frames() != 0 || is_dying() {
            return Err(Errno::EINVAL);
        }
        if !claims.set_aside(mm.claim(), missing, limbo::available_count()) {
            return Err(Errno::ENOMEM);
        }
        Ok(())
    })
}

/// Gives the claim up.
pub fn forget(mm: &DomainMm) {
    locked(|claims| claims.give_up(mm.claim()));
}

/// Has `take` take `frames` for somebody who has the claim `own`, if he may have them; so much of the claim is used up
/// if it does.
pub fn take<T>(own: &Claim, frames: u64, take: impl FnOnce() -> Option<T>) -> Option<T> {
    locked(|claims| claims.take(own, frames, limbo::available_count, take))
}

/// The domain with `mm` got frames that were not free before.
pub fn use_up(mm: &DomainMm, frames: u64) {
    locked(|claims| claims.use_up(mm.claim(), frames));
}
