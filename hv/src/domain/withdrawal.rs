//! Registers that a domain may not use any more leave its page tables: the shell around `hv_core::mmu::withdrawal`.
//!
//! A driver may be using them: the toolstack takes the devices of a domain that it destroys before it stops it. So it
//! is to see about what drivers expect of a device that was pulled out: reads give all ones, and writes reach nobody.
//! That is a page of ones, the domain's own, where the registers were: one for all of them, and what is written there
//! is read there from then on. If it could not be written, a twin's next write would end it.
//!
//! The pass looks at every frame of the machine. A domain that does not run cannot use what is in its tables, so it is
//! put off for one: whoever would let it run again does it first ([`super::life::unpause`]). A domain that is destroyed
//! or rolled back instead, as driver domains are while guests wait for the next one, never pays for it.

use crate::arch::tlb;
use crate::domain::iospace::Withdrawing;
use crate::domain::memory::mmu_env::mmu;
use crate::domain::Domain;
use crate::mem::{frames, phys_to_virt};
use crate::sched;
use core::sync::atomic::{AtomicU64, Ordering};
use x86::{Mfn, PAGE_SIZE};
use xen_abi::errno::Errno;

/// Has this time until the domain is to run again? Then it runs no more when this returns. A twin of its would: it uses
/// the same tables.
pub fn can_wait(d: &Domain) -> bool {
    let is_still = d.is_kept_still();
    if is_still {
        d.vcpus().for_each(sched::wait_asleep);
    }
    is_still
}

/// When this returns no page table of the domain, and no CPU, knows of I/O memory that it may not map. ERESTART: to be
/// called again.
pub fn finish(d: &Domain) -> Result<(), Errno> {
    d.io.withdrawn.go_on(|state| {
        let absent = absent_page(d, state);
        mmu().withdraw(d.mm.id, absent, &mut state.progress, &d.mm.lock())?;
        tlb::flush(d.cpus_to_flush(), tlb::What::All);
        Ok(())
    })
}

/// A page of ones, whatever the domain has written there before. `None`: there is no memory for it, or the domain does
/// not run again; then its accesses fault.
fn absent_page(d: &Domain, state: &mut Withdrawing) -> Option<Mfn> {
    if d.is_dying() {
        return None;
    }
    if state.absent.is_none() {
        let page = frames::alloc_zeroed()?;
        d.lend(page);
        state.absent = Some(page);
    }
    let page = state.absent?;
    for n in 0..PAGE_SIZE / size_of::<u64>() {
        // SAFETY: inside the page, which is the domain's until it is freed; aligned; the guest's writes are met by an
        // atomic.
        unsafe { AtomicU64::from_ptr(phys_to_virt(page.addr()).cast::<u64>().add(n)) }
            .store(u64::MAX, Ordering::Relaxed);
    }
    Some(page)
}
