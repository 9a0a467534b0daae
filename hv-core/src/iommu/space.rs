//! What the devices of one domain may reach: its own frames by their type, and frames granted to it.

use super::tables::ENTRIES;
use super::{Access, Format, OutOfMemory, TableMem, Tables};
use alloc::collections::BTreeMap;
use x86::Mfn;

/// How often a frame is granted to the domain.
#[derive(Clone, Copy, Debug, Default)]
struct Shares {
    readers: u32,
    writers: u32,
    /// It is also a frame of its own that devices may write.
    own: bool,
}

impl Shares {
    const fn access(self) -> Access {
        if self.own || self.writers != 0 {
            Access::ReadWrite
        } else if self.readers != 0 {
            Access::Read
        } else {
            Access::None
        }
    }
}

/// Did devices lose rights, so that what the IOMMU remembers must be flushed?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a right that was withdrawn works until the flush"]
pub struct Narrowed(pub bool);

/// Did devices get more rights to a frame that they reached already? An IOMMU may remember the fewer ones, and stop
/// what is allowed now. That a frame is not reached at all it remembers only if it says so.
/// Source: VT-d specification, Capability Register, CM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a right that was added may not work until the flush"]
pub struct Widened(pub bool);

/// See the module's documentation. The shell keeps it in a lock that is taken after all others but the allocator's.
#[derive(Debug)]
pub struct DmaSpace<F> {
    /// The hardware's view.
    pub tables: Tables<F>,
    /// Frames that are granted to the domain at the moment.
    granted: BTreeMap<u64, Shares>,
}

impl<F: Format> DmaSpace<F> {
    /// Nothing can be reached.
    pub const fn new(tables: Tables<F>) -> Self {
        Self { tables, granted: BTreeMap::new() }
    }

    /// The domain is about to get the `count` frames from `first`, or a grant of them. After a success devices may be
    /// let reach them without an error.
    pub fn make_room(&self, mem: &impl TableMem, first: Mfn, count: u64) -> Result<(), OutOfMemory> {
        let end = first.raw().saturating_add(count);
        let mut at = first.raw();
        while at < end {
            self.tables.make_room(mem, Mfn::new(at))?;
            at = (at / ENTRIES as u64 + 1) * ENTRIES as u64;
        }
        Ok(())
    }

    /// A frame of the domain's became writable: devices may write it, too.
    pub fn allow_own(&mut self, mem: &impl TableMem, mfn: Mfn) -> Result<Widened, OutOfMemory> {
        if let Some(shares) = self.granted.get_mut(&mfn.raw()) {
            shares.own = true;
        }
        self.widen(mem, mfn, Access::ReadWrite)
    }

    /// It is not any more, or not the domain's.
    pub fn forbid_own(&mut self, mem: &impl TableMem, mfn: Mfn) -> Narrowed {
        let shares = self.granted.get_mut(&mfn.raw());
        let after = shares.map_or(Access::None, |shares| {
            shares.own = false;
            shares.access()
        });
        self.set(mem, mfn, after)
    }

    /// A frame is granted to the domain once more.
    pub fn grant(&mut self, mem: &impl TableMem, mfn: Mfn, writable: bool) -> Result<Widened, OutOfMemory> {
        let own = self.tables.get(mem, mfn) == Access::ReadWrite;
        let shares = self.granted.entry(mfn.raw()).or_insert(Shares { own, ..Shares::default() });
        let count = if writable { &mut shares.writers } else { &mut shares.readers };
        *count = count.saturating_add(1);
        let access = shares.access();
        self.widen(mem, mfn, access)
    }

    /// One such grant has ended.
    pub fn revoke(&mut self, mem: &impl TableMem, mfn: Mfn, writable: bool) -> Narrowed {
        let Some(shares) = self.granted.get_mut(&mfn.raw()) else { return Narrowed(false) };
        let count = if writable { &mut shares.writers } else { &mut shares.readers };
        *count = count.saturating_sub(1);
        let shares = *shares;
        if shares.readers == 0 && shares.writers == 0 {
            self.granted.remove(&mfn.raw());
            if self.granted.is_empty() {
                // An empty tree keeps a node: one that the last grant of many left would pin a page of the heap.
                self.granted = BTreeMap::new();
            }
        }
        self.set(mem, mfn, shares.access())
    }

    /// Sets an access that is no less than the one before.
    fn widen(&self, mem: &impl TableMem, mfn: Mfn, access: Access) -> Result<Widened, OutOfMemory> {
        let before = self.tables.set(mem, mfn, access)?;
        Ok(Widened(before != Access::None && before < access))
    }

    /// Sets an access that needs no new table: there is one, or nothing was ever mapped there.
    fn set(&self, mem: &impl TableMem, mfn: Mfn, access: Access) -> Narrowed {
        let before = self.tables.set(mem, mfn, access).unwrap_or(Access::None);
        Narrowed(access < before)
    }

    /// Nothing is granted to it any more and its tables are freed: `budget` of what was granted and of tables. `true`:
    /// all.
    pub fn free_some(&mut self, mem: &impl TableMem, mut budget: u32) -> bool {
        // As many as a domain has handles.
        while budget > 0 && self.granted.pop_first().is_some() {
            budget -= 1;
        }
        self.granted.is_empty() && self.tables.free_some(mem, budget)
    }
}
