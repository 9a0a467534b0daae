//! Registers that a domain may not use any more leave its page tables: the shell around `hv_core::mmu::withdrawal`.
//!
//! A driver may be using them: the toolstack takes the devices of a domain that it destroys before it stops it. So it is to see about what drivers
//! expect of a device that was pulled out: reads give all ones, and writes reach nobody. That is a page of ones, the domain's own, where the registers
//! were: one for all of them, and what is written there is read there from then on. If it could not be written, a twin's next write would end it.
//!
//! The pass looks at every frame of the machine. A domain that does not run cannot use what is in its tables, so it is put off for
//! one: whoever would let it run again does it first ([`super::life::unpause`]). A domain that is destroyed or rolled back instead, as
//! driver domains are while guests wait for the next one, never pays for it.

use crate::arch::tlb;
use crate::domain::lent::LentPage;
use crate::domain::memory::mmu_env::{self, mmu};
use crate::domain::Domain;
use crate::sched;
use crate::sync::{Mutex, MutexGuard};
use core::sync::atomic::{AtomicBool, Ordering};
use hv_core::evtchn::PageWords;
use hv_core::mmu::Withdrawal;
use x86::Mfn;
use xen_abi::errno::Errno;

/// Whether entries of I/O memory that a domain may not map any more can be in its page tables.
pub struct Withdrawn {
    /// Changes under the lock below; who looks at it may hold any.
    is_due: AtomicBool,
    /// Lock order: before the MMU lock.
    state: Mutex<State>,
}

struct State {
    /// How far the pass has come.
    progress: Withdrawal,
    /// What the domain has in the place of such memory.
    absent: Option<LentPage>,
}

impl Withdrawn {
    /// They cannot.
    pub const fn new() -> Self {
        let state = State { progress: Withdrawal::new(), absent: None };
        Self { is_due: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// From now on they can: it may not map some of what it could.
    pub fn begin(&self) {
        let mut state = self.state.lock();
        state.progress = Withdrawal::new();
        self.is_due.store(true, Ordering::SeqCst);
    }

    /// Is there something to be done?
    pub fn is_due(&self) -> bool {
        self.is_due.load(Ordering::SeqCst)
    }

    /// None of the domain's frames stays a page table, and whatever it maps afterwards it will have been asked for.
    pub fn settle(&self) {
        let _state = self.state.lock();
        self.is_due.store(false, Ordering::SeqCst);
    }

    /// Is `frame` the page that the domain has in the place of such memory?
    pub fn is_absent(&self, frame: Mfn) -> bool {
        self.state.lock().absent.as_ref().is_some_and(|page| page.mfn() == frame)
    }

    /// Its domain is dead.
    pub fn end_loan(&self) {
        self.state.lock().absent.iter().for_each(LentPage::end_loan);
    }
}

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
    let mut state = d.io.withdrawn.state.lock();
    if d.io.withdrawn.is_due() {
        mmu_env::refill_steps();
        let absent = absent_page(d, &mut state);
        mmu().withdraw(d.mm.id, absent, &mut state.progress, &d.mm.lock())?;
        tlb::flush(d.cpus_to_flush(), tlb::What::All);
        d.io.withdrawn.is_due.store(false, Ordering::SeqCst);
    }
    Ok(())
}

/// A page of ones, whatever the domain has written there before. `None`: there is no memory for it, or the domain does not run again; then its
/// accesses fault.
fn absent_page(d: &Domain, state: &mut MutexGuard<'_, State>) -> Option<Mfn> {
    if d.is_dying() {
        return None;
    }
    if state.absent.is_none() {
        state.absent = LentPage::new(d);
    }
    let page = state.absent.as_ref()?;
    let words: &PageWords = page.as_ref();
    words.iter().for_each(|word| word.store(u32::MAX, Ordering::Relaxed));
    Some(page.mfn())
}
