//! A TLB in software, for a domain whose writes are logged (live migration).
//!
//! While a domain is logged, its vCPUs do not run on its own page tables but on a *cache* of them: a small set of
//! tables that starts empty, is filled at page faults by walking the guest's tables, and is emptied whenever the TLB
//! would be. A page is entered writable only by a write, which marks it in the log; so the guest's tables stay exactly
//! as the guest wrote them, which matters twice: the guest reads them (fork looks at the write bit), and the tools send
//! them.
//!
//! Why not take the write bit away in the guest's own tables: the guest would see it, and copy it. Why not full shadow
//! tables: they must follow every change of every table. Whatever keeps a TLB right keeps this cache right too, and the
//! hypervisor has that already: a frame changes its use only after a flush.
//!
//! The cache belongs to one vCPU and is used only by the CPU that runs it. Nothing here allocates or locks.
//!
//! The CPU remembers tables, not only pages (SDM volume 3, section 5.10.3): it may walk on from one that no entry leads
//! to any more. So a table gets another use only after CR3 was loaded, and who empties the cache says how that is done.

use crate::mmu::{MmuEnv, PtMem, Slot};
use alloc::vec::Vec;
use core::cell::Cell;
use x86::{Mfn, Pte, PteFlags, VirtAddr};
use xen_abi::layout::{HYPERVISOR_VIRT_END, HYPERVISOR_VIRT_START};

/// Frames for tables below the roots; a whole path must fit.
pub const MIN_POOL: usize = 8;
const ENTRIES: usize = 512;

/// Which of a vCPU's two address spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Guest-kernel mode.
    Kernel = 0,
    /// Guest-user mode.
    User = 1,
}

/// What an access wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Write.
    pub write: bool,
    /// Execute.
    pub fetch: bool,
}

/// What the CPU has to forget after a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Nothing: the entry was not there before.
    Nothing,
    /// The page.
    Page,
    /// Everything: the cache is full and nothing was entered. It is to be emptied, by [`Vtlb::wipe`], and the access
    /// faults again.
    All,
}

/// What came of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The access may be tried again.
    Done(Stale),
    /// The guest's tables do not allow it; is there a present entry?
    Refused {
        /// For the error code.
        present: bool,
    },
}

/// The log of a domain's writes. Neither waits for a lock: a CPU that does answers requests to flush, and what
/// [`Vtlb::fill`] has read before and enters afterwards would be out of date.
pub trait WriteLog {
    /// Notes that `mfn` was written.
    fn mark(&self, mfn: Mfn);
    /// Is that noted already?
    fn is_marked(&self, mfn: Mfn) -> bool;
}

/// The cache of one vCPU. See the module's documentation.
pub struct Vtlb {
    roots: [Mfn; 2],
    /// L4 entries in use.
    used: [Cell<[u64; ENTRIES / 64]>; 2],
    pool: Vec<Mfn>,
    taken: Cell<usize>,
}

/// A translation of the guest's.
struct Walk {
    slot: Slot,
    writable: bool,
    no_execute: bool,
}

impl Vtlb {
    /// An empty cache. `roots` are two L4 tables with the hypervisor's entries and nothing else; `pool` are frames of
    /// any contents, at least [`MIN_POOL`].
    pub fn new(roots: [Mfn; 2], pool: Vec<Mfn>) -> Self {
        assert!(pool.len() >= MIN_POOL, "too few frames for a path");
        Self { roots, used: [const { Cell::new([0; ENTRIES / 64]) }; 2], pool, taken: Cell::new(0) }
    }

    /// All its frames, to be given back.
    pub fn into_frames(self) -> impl Iterator<Item = Mfn> {
        self.pool.into_iter().chain(self.roots)
    }

    /// The root to run on.
    pub fn root(&self, space: Space) -> Mfn {
        self.roots[space as usize]
    }

    /// Frees a table for use; `None`: the cache is full.
    fn take<E: MmuEnv>(&self, env: &E) -> Option<Mfn> {
        let next = self.taken.get();
        let mfn = *self.pool.get(next)?;
        self.taken.set(next + 1);
        env.clear_page(mfn);
        Some(mfn)
    }

    /// Empties it. `load_cr3` has the CPU that uses it load CR3, with whatever root: only then are its tables free for
    /// another use.
    #[inline(never)]
    pub fn wipe<E: PtMem>(&self, env: &E, load_cr3: impl FnOnce()) {
        for (root, used) in self.roots.iter().zip(&self.used) {
            for (word, bits) in used.take().into_iter().enumerate() {
                let mut bits = bits;
                while bits != 0 {
                    let index = word * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    env.write(Slot::new(*root, index), Pte::EMPTY);
                }
            }
        }
        load_cr3();
        self.taken.set(0);
    }

    /// Forgets one page, in both spaces.
    pub fn forget<E: PtMem>(&self, env: &E, va: VirtAddr) {
        if is_hypervisors(va) {
            return;
        }
        for root in self.roots {
            if let Some(slot) = self.lookup(env, root, va) {
                env.write(slot, Pte::EMPTY);
            }
        }
    }

    /// The L1 entry for `va`, if there is a table for it.
    fn lookup<E: PtMem>(&self, env: &E, root: Mfn, va: VirtAddr) -> Option<Slot> {
        let mut table = root;
        for level in [4, 3, 2] {
            let entry = env.read(Slot::new(table, va.table_index(level)));
            if !entry.is_present() {
                return None;
            }
            table = entry.mfn();
        }
        Some(Slot::new(table, va.table_index(1)))
    }

    /// An access to `va` faulted in `space`, whose tables are those of the guest at `guest_root`: enters what the
    /// guest's tables allow, sets accessed and dirty bits there as the CPU would, and notes a write in the log.
    pub fn fill<E: MmuEnv, L: WriteLog>(
        &self,
        env: &E,
        log: &L,
        (space, guest_root): (Space, Mfn),
        va: VirtAddr,
        access: Access,
    ) -> Fill {
        if is_hypervisors(va) {
            return Fill::Refused { present: true };
        }
        let Some(walk) = walk(env, guest_root, va) else { return Fill::Refused { present: false } };
        let entry = loop {
            let entry = env.read(walk.slot);
            if !entry.is_present() {
                return Fill::Refused { present: false };
            }
            let writable = walk.writable && entry.is_writable();
            let no_execute = walk.no_execute || entry.contains(PteFlags::NX);
            if access.write && !writable || access.fetch && no_execute {
                return Fill::Refused { present: true };
            }
            let touched = entry.with(if access.write { PteFlags::A | PteFlags::D } else { PteFlags::A });
            if touched != entry && env.cmpxchg(walk.slot, entry, touched).is_err() {
                continue;
            }
            if access.write {
                log.mark(entry.mfn());
            }
            // Only a page that is in the log already may be written without another fault.
            let logged = access.write || touched.contains(PteFlags::D) && log.is_marked(entry.mfn());
            let mut cached = touched.with(PteFlags::A | PteFlags::D);
            if !(writable && logged) {
                cached = cached.without(PteFlags::RW);
            }
            break if no_execute { cached.with(PteFlags::NX) } else { cached };
        };
        Fill::Done(self.enter(env, space, va, entry))
    }

    fn enter<E: MmuEnv>(&self, env: &E, space: Space, va: VirtAddr, entry: Pte) -> Stale {
        // An empty cache has room for a path.
        let Some(slot) = self.path(env, space, va) else { return Stale::All };
        let before = env.read(slot);
        env.write(slot, entry);
        if before.is_present() {
            Stale::Page
        } else {
            Stale::Nothing
        }
    }

    /// The L1 entry for `va`, with the tables above it made. `None`: the cache is full.
    fn path<E: MmuEnv>(&self, env: &E, space: Space, va: VirtAddr) -> Option<Slot> {
        let mut table = self.root(space);
        for level in [4, 3, 2] {
            let index = va.table_index(level);
            let slot = Slot::new(table, index);
            let mut entry = env.read(slot);
            if !entry.is_present() {
                let flags = PteFlags::P | PteFlags::RW | PteFlags::US | PteFlags::A | PteFlags::D;
                entry = Pte::new(self.take(env)?, flags);
                env.write(slot, entry);
                if level == 4 {
                    let used = &self.used[space as usize];
                    let mut bits = used.get();
                    bits[index / 64] |= 1 << (index % 64);
                    used.set(bits);
                }
            }
            table = entry.mfn();
        }
        Some(Slot::new(table, va.table_index(1)))
    }
}

fn is_hypervisors(va: VirtAddr) -> bool {
    (HYPERVISOR_VIRT_START..HYPERVISOR_VIRT_END).contains(&va.raw())
}

/// Walks the guest's tables down to the L1 entry, as the CPU does: without a lock. A table that goes away meanwhile
/// gets no other use before this CPU has flushed, which it does not do in between.
fn walk<E: MmuEnv>(env: &E, root: Mfn, va: VirtAddr) -> Option<Walk> {
    let (mut table, mut writable, mut no_execute) = (root, true, false);
    for level in [4, 3, 2] {
        env.frame(table).filter(|f| !f.is_io())?;
        let entry = env.read(Slot::new(table, va.table_index(level)));
        if !entry.is_present() {
            return None;
        }
        writable &= entry.is_writable();
        no_execute |= entry.contains(PteFlags::NX);
        table = entry.mfn();
    }
    env.frame(table).filter(|f| !f.is_io())?;
    Some(Walk { slot: Slot::new(table, va.table_index(1)), writable, no_execute })
}

#[cfg(test)]
mod tests;
