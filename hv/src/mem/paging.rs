//! Builds and changes the hypervisor's own page tables.
//!
//! All tables of the sixteen L4 slots below L4 are shared by every address space: an L4 page of a guest gets copies of
//! the sixteen entries. So the L3 tables are made at boot and never replaced; L2 and L1 tables come when needed and
//! stay, but for those of twins ([`Tables::cut`]).

use crate::mem::layout;
use crate::mem::phys_to_virt;
use core::sync::atomic::{AtomicU64, Ordering};
use x86::{MachAddr, Mfn, Pte, PteFlags};

/// Bytes that a leaf entry of levels 1, 2, 3 maps.
const LEAF_BYTES: [u64; 4] = [0, 1 << 12, 1 << 21, 1 << 30];

/// Flags of a present, supervisor, global, accessed, dirty, no-execute leaf; write access is added where needed.
pub const READ_ONLY: PteFlags =
    PteFlags::P.union(PteFlags::A).union(PteFlags::D).union(PteFlags::G).union(PteFlags::NX);
/// The same, writable.
pub const READ_WRITE: PteFlags = READ_ONLY.union(PteFlags::RW);
/// The same, executable and not writable.
pub const EXECUTE: PteFlags = READ_ONLY.difference(PteFlags::NX);
/// Device memory: writable, strong uncacheable.
pub const DEVICE: PteFlags = READ_WRITE.union(PteFlags::PCD).union(PteFlags::PWT);
/// Entries that point to tables; rights are decided by the leaf.
const TABLE: PteFlags = PteFlags::P.union(PteFlags::RW).union(PteFlags::A).union(PteFlags::D);

/// A root and what is needed to extend it.
pub struct Tables {
    root: Mfn,
    has_1gib_pages: bool,
}

/// An entry of a table, read and written whole.
fn entry(table: Mfn, index: usize) -> &'static AtomicU64 {
    debug_assert!(index < 512);
    // SAFETY: tables are whole pages in the direct map that are not freed while somebody walks there; entries are only
    // accessed as atomics.
    unsafe { &*phys_to_virt(table.addr()).cast::<AtomicU64>().add(index) }
}

const fn index(va: u64, level: u32) -> usize {
    (va >> (12 + 9 * (level - 1)) & 0x1ff) as usize
}

impl Tables {
    /// Tables whose root is the zeroed page `root`.
    pub const fn new(root: Mfn, has_1gib_pages: bool) -> Self {
        Self { root, has_1gib_pages }
    }

    /// The root's frame.
    pub const fn root(&self) -> Mfn {
        self.root
    }

    /// L4 entry `slot`.
    pub fn root_entry(&self, slot: usize) -> Pte {
        Pte(entry(self.root, slot).load(Ordering::Relaxed))
    }

    /// Maps `bytes` from `va` to `pa` with the largest pages that fit. Nothing may be mapped there yet. `alloc` gives
    /// zeroed pages for tables.
    pub fn map(
        &self,
        mut va: u64,
        mut pa: u64,
        bytes: u64,
        flags: PteFlags,
        alloc: &mut impl FnMut() -> Option<Mfn>,
    ) -> Option<()> {
        let end = va + bytes;
        while va < end {
            let fits = |level: usize| (va | pa).is_multiple_of(LEAF_BYTES[level]) && end - va >= LEAF_BYTES[level];
            let level = if self.has_1gib_pages && fits(3) {
                3
            } else if fits(2) {
                2
            } else {
                1
            };
            let large = if level > 1 { PteFlags::PSE_PAT } else { PteFlags::empty() };
            let leaf = self.walk(va, level, alloc)?;
            leaf.store(Pte::new(Mfn::containing(MachAddr::new(pa)), flags | large).0, Ordering::Relaxed);
            let step = LEAF_BYTES[level as usize];
            va += step;
            pa += step;
        }
        Some(())
    }

    /// Where `va` is mapped to, if it is.
    pub fn translate(&self, va: u64) -> Option<MachAddr> {
        let mut table = self.root;
        for level in (1..=4).rev() {
            let value = Pte(entry(table, index(va, level)).load(Ordering::Relaxed));
            if !value.is_present() {
                return None;
            }
            if level == 1 || level < 4 && value.contains(PteFlags::PSE_PAT) {
                let offset = va % LEAF_BYTES[level as usize];
                return Some(MachAddr::new(
                    value.mfn().addr().raw() / LEAF_BYTES[level as usize] * LEAF_BYTES[level as usize] + offset,
                ));
            }
            table = value.mfn();
        }
        None
    }

    /// Takes the L2 table out that has what is mapped in the GiB at `va`, if there is one, for [`free_cut`]. Nobody
    /// maps, unmaps or looks up anything there meanwhile.
    pub fn cut(&self, va: u64) -> Option<Cut> {
        let slot = self.walk(va, 3, &mut || None)?;
        let value = Pte(slot.swap(0, Ordering::Relaxed));
        (value.is_present() && !value.contains(PteFlags::PSE_PAT)).then(|| Cut(value.mfn()))
    }

    /// The entry of `level` for `va`, after making the tables above it.
    pub fn walk(&self, va: u64, level: u32, alloc: &mut impl FnMut() -> Option<Mfn>) -> Option<&'static AtomicU64> {
        let mut table = self.root;
        let mut at = 4;
        while at > level {
            let slot = entry(table, index(va, at));
            let mut value = Pte(slot.load(Ordering::Relaxed));
            if !value.is_present() {
                // The machine-to-physical window is the one that ring 3 reads.
                let user = if index(va, 4) == layout::HYPERVISOR_FIRST_SLOT { PteFlags::US } else { PteFlags::empty() };
                value = Pte::new(alloc()?, TABLE | user);
                slot.store(value.0, Ordering::Relaxed);
            }
            assert!(at == 4 || !value.contains(PteFlags::PSE_PAT), "{va:#x} is inside a large page");
            table = value.mfn();
            at -= 1;
        }
        Some(entry(table, index(va, level)))
    }
}

/// An L2 table that is in no other table any more.
#[must_use = "its frames are still in use"]
pub struct Cut(Mfn);

/// Frees its frames and those of its L1 tables by `free`, not what those map. All CPUs have flushed all since it was
/// taken out.
pub fn free_cut(cut: Cut, free: impl Fn(Mfn)) {
    for index in 0..512 {
        let value = Pte(entry(cut.0, index).load(Ordering::Relaxed));
        if value.is_present() && !value.contains(PteFlags::PSE_PAT) {
            free(value.mfn());
        }
    }
    free(cut.0);
}
