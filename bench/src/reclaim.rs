//! What could be had of the memory of domains, by what their pages hold: as the paper on driver reuse in virtual
//! machines counts it.
//!
//! A page that its domain works in stays, but of those with the same contents one is enough, which nobody may write to
//! until it has been copied. Of the others, a page of zeros takes nothing; one with the same contents as another page,
//! whether that is worked in or not, takes nothing beside that one; and what is left is packed (LZ4) if it shrinks to
//! three quarters or less, which is the rule of the hypervisor's snapshots (hv-core/src/mmu/snapshot/packs.rs).

use lz4_flex::block::{compress_into_with_table, get_maximum_output_size, CompressTable};
use std::collections::BTreeSet;

/// Bytes in a page.
pub const PAGE: usize = 4096;
/// A page that takes more than this when it is packed stays whole.
const MOST: usize = PAGE / 4 * 3;

/// A page of a domain's.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// What it holds.
    pub bytes: &'a [u8; PAGE],
    /// It must be there at once: its domain works in it, or the MMU does.
    pub is_active: bool,
}

/// So many pages are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Active, the first one with its contents.
    pub active: u64,
    /// Active, with the same contents as such a one.
    pub active_same: u64,
    /// Not active, from here on. Zeros.
    pub zero: u64,
    /// The same contents as an active one.
    pub same_as_active: u64,
    /// The same contents as another one that is not active either, but for the first of those.
    pub same: u64,
    /// The first one with its contents, and packed.
    pub packed: u64,
    /// What these take.
    pub packed_bytes: u64,
    /// The first one with its contents, and whole: it shrinks too little.
    pub whole: u64,
    /// What all that are not active and not zeros would take if each was kept on its own, packed or whole.
    pub apart_bytes: u64,
}

impl Pages {
    /// Looks at all of them.
    pub fn count(pages: &[Page<'_>]) -> Self {
        let mut found = Self::default();
        let mut active = BTreeSet::new();
        for page in pages.iter().filter(|page| page.is_active) {
            if active.insert(page.bytes) {
                found.active += 1;
            } else {
                found.active_same += 1;
            }
        }
        let mut others = BTreeSet::new();
        let mut packer = Packer::new();
        for page in pages.iter().filter(|page| !page.is_active) {
            if *page.bytes == [0; PAGE] {
                found.zero += 1;
                continue;
            }
            let takes = packer.pack(page.bytes);
            found.apart_bytes += takes.unwrap_or(PAGE as u64);
            if active.contains(page.bytes) {
                found.same_as_active += 1;
            } else if !others.insert(page.bytes) {
                found.same += 1;
            } else if let Some(bytes) = takes {
                found.packed += 1;
                found.packed_bytes += bytes;
            } else {
                found.whole += 1;
            }
        }
        found
    }

    /// All of them.
    pub fn all(&self) -> u64 {
        self.active + self.active_same + self.zero + self.same_as_active + self.same + self.packed + self.whole
    }

    /// KiB that are left if what is not active is packed, and nothing is shared.
    pub fn packed_kib(&self) -> u64 {
        kib((self.active + self.active_same) * PAGE as u64 + self.apart_bytes)
    }

    /// KiB that are left if moreover what is the same is kept once.
    pub fn shared_kib(&self) -> u64 {
        kib((self.active + self.whole) * PAGE as u64 + self.packed_bytes)
    }
}

/// At least so many.
fn kib(bytes: u64) -> u64 {
    bytes.div_ceil(1024)
}

struct Packer {
    room: Vec<u8>,
    table: CompressTable,
}

impl Packer {
    fn new() -> Self {
        Self { room: vec![0; get_maximum_output_size(PAGE)], table: CompressTable::small() }
    }

    /// Into how many bytes; `None`: into so many that it stays whole.
    fn pack(&mut self, page: &[u8; PAGE]) -> Option<u64> {
        let bytes = compress_into_with_table(page, &mut self.room, &mut self.table).ok()?;
        (bytes <= MOST).then_some(bytes as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that shrinks to almost nothing.
    fn plain(number: u8) -> [u8; PAGE] {
        [number; PAGE]
    }

    /// One of which so many bytes are noise.
    fn noise(seed: u64, bytes: usize) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        let mut x = seed;
        for word in page[..bytes].chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word.copy_from_slice(&x.to_le_bytes());
        }
        page
    }

    fn count(pages: &[([u8; PAGE], bool)]) -> Pages {
        Pages::count(&pages.iter().map(|(bytes, is_active)| Page { bytes, is_active: *is_active }).collect::<Vec<_>>())
    }

    #[test]
    fn each_page_is_one_of_all_kinds() {
        let pages = [
            (plain(0), false),
            (plain(1), false),
            // It comes after one that it is the same as, which is upgraded.
            (plain(1), true),
            (plain(2), false),
            (plain(0), true),
            (plain(2), false),
            (plain(2), false),
            (noise(5, PAGE), false),
            (plain(1), true),
        ];
        let found = count(&pages);
        let wanted = Pages {
            active: 2,
            active_same: 1,
            zero: 1,
            same_as_active: 1,
            same: 2,
            packed: 1,
            packed_bytes: found.packed_bytes,
            whole: 1,
            apart_bytes: PAGE as u64 + 4 * found.packed_bytes,
        };
        assert_eq!(found, wanted);
        assert!((1..64).contains(&found.packed_bytes), "{found:?}");
        assert_eq!(found.all(), pages.len() as u64);
        assert_eq!(found.packed_kib(), 3 * 4 + 4 + (4 * found.packed_bytes).div_ceil(1024));
        assert_eq!(found.shared_kib(), 2 * 4 + 4 + 1);
    }

    #[test]
    fn three_quarters_are_the_limit() {
        let most = count(&[(noise(7, MOST - 64), false)]);
        assert_eq!((most.packed, most.whole), (1, 0));
        assert!(most.packed_bytes > MOST as u64 - 64 && most.packed_bytes <= MOST as u64, "{most:?}");
        let more = count(&[(noise(7, MOST), false)]);
        assert_eq!((more.packed, more.whole, more.apart_bytes), (0, 1, PAGE as u64));
    }

    #[test]
    fn nothing_is_nothing() {
        let none = count(&[]);
        assert_eq!((none.all(), none.packed_kib(), none.shared_kib()), (0, 0, 0));
    }
}
