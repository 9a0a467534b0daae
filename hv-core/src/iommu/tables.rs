//! A tree of tables that an IOMMU walks: 512 entries of 8 bytes each, whose form the hardware decides.

use super::Access;
use x86::Mfn;

/// Entries of a table.
pub(super) const ENTRIES: usize = 512;
const INDEX_BITS: u32 = 9;

/// The form of entries.
pub trait Format: Copy {
    /// An entry of a table of `level` (1: leaves only) that points to the next lower table.
    fn table(self, next: Mfn, level: u32) -> u64;
    /// An entry of a table of `level` that maps a page; `access` is not `None`.
    fn leaf(self, mfn: Mfn, access: Access, level: u32) -> u64;
    /// What an entry says; `None`: nothing.
    fn decode(self, entry: u64, level: u32) -> Option<Entry>;
}

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The next lower table is there.
    Table(Mfn),
    /// Pages from here on.
    Leaf(Mfn, Access),
}

/// Memory for tables.
pub trait TableMem {
    /// Reads an entry.
    fn read(&self, table: Mfn, index: usize) -> u64;
    /// Writes an entry; the hardware sees it when this returns.
    fn write(&self, table: Mfn, index: usize, value: u64);
    /// A frame of zeroes, as the hardware sees it too.
    fn alloc(&self) -> Option<Mfn>;
    /// Takes a frame back that the hardware does not walk any more.
    fn free(&self, table: Mfn);
}

/// There was no frame for a table. What is mapped is right, but not all that was asked for is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

/// The tables, from the root. They are freed by [`Tables::free_some`], not by a drop.
#[derive(Debug)]
pub struct Tables<F> {
    root: Mfn,
    levels: u32,
    format: F,
}

#[allow(clippy::cast_possible_truncation, reason = "masked")]
const fn index(frame: u64, level: u32) -> usize {
    (frame >> (INDEX_BITS * (level - 1))) as usize & (ENTRIES - 1)
}

impl<F: Format> Tables<F> {
    /// Maps nothing. `levels`: of tables.
    pub fn new(mem: &impl TableMem, levels: u32, format: F) -> Option<Self> {
        Some(Self { root: mem.alloc()?, levels, format })
    }

    /// The highest table, for the hardware.
    pub const fn root(&self) -> Mfn {
        self.root
    }

    /// Number of levels.
    pub const fn levels(&self) -> u32 {
        self.levels
    }

    /// One past the last frame that can be mapped.
    pub const fn end(&self) -> u64 {
        1 << (INDEX_BITS * self.levels)
    }

    /// What devices may do with `mfn`.
    pub fn get(&self, mem: &impl TableMem, mfn: Mfn) -> Access {
        if mfn.raw() >= self.end() {
            return Access::None;
        }
        let mut table = self.root;
        for level in (1..=self.levels).rev() {
            match self.format.decode(mem.read(table, index(mfn.raw(), level)), level) {
                None => return Access::None,
                Some(Entry::Leaf(_, access)) => return access,
                Some(Entry::Table(next)) => table = next,
            }
        }
        Access::None
    }

    /// Changes what devices may do with one frame, which is not part of a larger page. Returns what they might before.
    /// Frames that the hardware cannot address stay out of reach.
    pub fn set(&self, mem: &impl TableMem, mfn: Mfn, access: Access) -> Result<Access, OutOfMemory> {
        if mfn.raw() >= self.end() {
            return Ok(Access::None);
        }
        let Some(table) = self.walk(mem, mfn.raw(), 1, access != Access::None)? else { return Ok(Access::None) };
        let index = index(mfn.raw(), 1);
        let before = match self.format.decode(mem.read(table, index), 1) {
            Some(Entry::Leaf(_, before)) => before,
            _ => Access::None,
        };
        if before != access {
            let entry = if access == Access::None { 0 } else { self.format.leaf(mfn, access, 1) };
            mem.write(table, index, entry);
        }
        Ok(before)
    }

    /// Makes what tables are missing for [`Self::set`] on `mfn`, which needs no memory then. Those that were made stay,
    /// as do all.
    pub fn make_room(&self, mem: &impl TableMem, mfn: Mfn) -> Result<(), OutOfMemory> {
        if mfn.raw() < self.end() {
            self.walk(mem, mfn.raw(), 1, true)?;
        }
        Ok(())
    }

    /// Maps the frames `first..end`, of which nothing is mapped yet, with pages up to those that an entry of a table of
    /// level `largest` maps.
    pub fn map(
        &self,
        mem: &impl TableMem,
        first: Mfn,
        end: Mfn,
        access: Access,
        largest: u32,
    ) -> Result<(), OutOfMemory> {
        let (mut at, end) = (first.raw(), end.raw().min(self.end()));
        while at < end {
            let fits = |level: &u32| {
                let frames = 1u64 << (INDEX_BITS * (level - 1));
                at % frames == 0 && end - at >= frames
            };
            let level = (1..=largest.min(self.levels)).rev().find(fits).unwrap_or(1);
            if let Some(table) = self.walk(mem, at, level, true)? {
                mem.write(table, index(at, level), self.format.leaf(Mfn::new(at), access, level));
            }
            at += 1 << (INDEX_BITS * (level - 1));
        }
        Ok(())
    }

    /// The table of `level` for `frame`; if there is none, it is made if `make`. A larger page in the way is none.
    fn walk(&self, mem: &impl TableMem, frame: u64, level: u32, make: bool) -> Result<Option<Mfn>, OutOfMemory> {
        let mut table = self.root;
        for above in (level + 1..=self.levels).rev() {
            let index = index(frame, above);
            table = match self.format.decode(mem.read(table, index), above) {
                Some(Entry::Table(next)) => next,
                Some(Entry::Leaf(..)) => return Ok(None),
                None if !make => return Ok(None),
                None => {
                    let next = mem.alloc().ok_or(OutOfMemory)?;
                    mem.write(table, index, self.format.table(next, above));
                    next
                }
            };
        }
        Ok(Some(table))
    }

    /// Frees up to `budget` tables; the hardware does not walk them any more. `true`: all are gone, with the root.
    pub fn free_some(&mut self, mem: &impl TableMem, mut budget: u32) -> bool {
        if self.root == Mfn::INVALID {
            return true;
        }
        if !self.empty(mem, self.root, self.levels, &mut budget) || budget == 0 {
            return false;
        }
        mem.free(core::mem::replace(&mut self.root, Mfn::INVALID));
        true
    }

    /// Frees the tables below `table`. `false`: the budget ran out.
    fn empty(&self, mem: &impl TableMem, table: Mfn, level: u32, budget: &mut u32) -> bool {
        if level == 1 {
            return true;
        }
        for index in 0..ENTRIES {
            let Some(Entry::Table(next)) = self.format.decode(mem.read(table, index), level) else { continue };
            if !self.empty(mem, next, level - 1, budget) || *budget == 0 {
                return false;
            }
            *budget -= 1;
            mem.write(table, index, 0);
            mem.free(next);
        }
        true
    }
}
