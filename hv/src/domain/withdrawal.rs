//! Registers that a domain may not use any more leave its page tables: the shell around `hv_core::mmu::withdrawal`.
//!
//! The pass looks at every frame of the machine. A domain that does not run cannot use what is in its tables, so it is put off for
//! one: whoever would let it run again does it first ([`super::life::unpause`]). A domain that is destroyed or rolled back instead, as
//! driver domains are while guests wait for the next one, never pays for it.

use crate::arch::tlb;
use crate::domain::memory::mmu_env::{self, mmu};
use crate::domain::Domain;
use crate::sched;
use xen_abi::errno::Errno;

/// Has this time until the domain is to run again? Then it runs no more when this returns. A twin of its would: it uses the same tables.
pub fn can_wait(d: &Domain) -> bool {
    let is_still = d.is_kept_still();
    if is_still {
        d.vcpus().for_each(sched::wait_asleep);
    }
    is_still
}

/// When this returns no page table of the domain, and no CPU, knows of I/O memory that it may not map. ERESTART: to be called again.
pub fn finish(d: &Domain) -> Result<(), Errno> {
    d.io.withdrawn.go_on(|progress| {
        mmu_env::refill_steps();
        mmu().withdraw(d.mm.id, progress, &d.mm.lock())?;
        tlb::flush(d.cpus_to_flush(), tlb::What::All);
        Ok(())
    })
}
