//! Memory management of PV guests: guest page tables are used by the CPU as they are, so every change of one is
//! checked.
//!
//! A page becomes a page table by *promotion* (all entries validated, each taking references) and stops being one by
//! *demotion*. While it is one, nobody has a writable mapping of it, and its entries change only here. All functions
//! that read or change page tables of a domain need that domain's MMU lock, and take a proof that it is held
//! ([`Deferred`],
//! [`Locked`]); reference and type counts are lock-free, for other domains map its frames at any time.
//!
//! * [`env`]: the traits for what the machine must do ([`MmuEnv`], [`PtMem`]);
//! * [`refs`]: references to pages, as values that give themselves back ([`PageRef`], [`WritableRef`]);
//! * [`l1`]: what an L1 entry may map, and changing one; [`tables`]: promotion and demotion; [`upper`]: L2-L4 entries;
//! * [`update`]: `mmu_update`, `update_va_mapping`, writable page tables; [`ext`]: pins, roots, flushes;
//! * [`mirror`]: what a root of the hypervisor's shares with a domain's;
//! * [`segdesc`]: descriptor pages; [`teardown`]: the end of a domain; [`withdrawal`]: I/O memory that it may not map
//!   any more;
//!   [`snapshot`]: its memory as it once was; [`audit`]: a recount of everything.
//!
//! # Long operations
//! Promotion and demotion of L2-L4 tables stop when [`MmuEnv::is_out_of_steps`] says so and return
//! [`MmuError::Preempted`]; the caller re-executes the same operation later. What is half done is remembered in the
//! domain's [`Deferred`], which its MMU lock guards: a table on its way up is resumed by the re-executed operation; a
//! table on its way down no longer belongs to any operation and is finished at the start of the next one. The frame
//! itself records how far it is.
//!
//! # Example
//! ```
//! use hv_core::mmu::{Mmu, Deferred, MmuEnv};
//! use x86::{Level, Mfn};
//! use xen_abi::layout::DomId;
//!
//! fn pin_and_load<E: MmuEnv>(env: &E, l4: Mfn, deferred: &mut Deferred) -> Option<Mfn> {
//!     let mmu = Mmu::new(env);
//!     let dom = DomId(1);
//!     mmu.pin(dom, l4, Level::L4, deferred).ok()?;
//!     let root = mmu.acquire_root(dom, l4, deferred).ok()?;
//!     let cr3 = root.mfn(); // the shell loads it, stores `root`, and only then releases the old one:
//!     mmu.release_root(root, deferred).ok()?;
//!     Some(cr3)
//! }
//! ```

pub mod audit;
pub mod env;
mod error;
pub mod ext;
pub mod l1;
pub mod mirror;
pub mod refs;
pub mod segdesc;
pub mod snapshot;
pub mod tables;
pub mod teardown;
pub mod update;
pub mod upper;
pub mod withdrawal;
mod work;

pub use audit::{Audit, Table, Tally};
pub use env::{IoAccess, MmuEnv, PtMem, Slot};
pub use error::MmuError;
pub use ext::{Flush, FlushWhat, FlushWhere, RootRef};
pub use refs::{PageRef, WritableRef};
pub use segdesc::GdtFrames;
pub use tables::{Deferred, Locked};
pub use teardown::Relinquish;
pub use update::{ForeignDom, Owners};
pub use withdrawal::Withdrawal;

use crate::frame::Frame;
use x86::Mfn;

/// The operations in an environment. Costs nothing to make.
pub struct Mmu<'a, E> {
    /// The machine.
    pub env: &'a E,
}

impl<E> Clone for Mmu<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for Mmu<'_, E> {}

impl<'a, E: MmuEnv> Mmu<'a, E> {
    /// Operations in the environment `env`.
    #[inline]
    pub const fn new(env: &'a E) -> Self {
        Self { env }
    }

    /// The frame `mfn` if it is RAM.
    #[inline]
    pub(crate) fn frame(&self, mfn: Mfn) -> Option<&'a Frame> {
        self.env.frame(mfn).filter(|f| !f.is_io())
    }

    #[inline]
    pub(crate) fn ram(&self, mfn: Mfn) -> Result<&'a Frame, MmuError> {
        self.frame(mfn).ok_or(MmuError::BadFrame)
    }
}

#[cfg(any(test, feature = "fuzzing"))]
pub mod fake;
#[cfg(any(test, feature = "fuzzing"))]
pub mod model;
#[cfg(test)]
mod tests;
