//! Where pages are looked at, packed (LZ4) and unpacked: one for all, as the lock of all snapshots is held. Stacks have
//! 32 KiB, and this takes 28.
//!
//! What is packed is a guest's, and may be anything: the library's encoder and decoder are those without `unsafe`, take
//! nothing from the heap, and go through a page once. What is unpacked is our own; should it not be a page, whoever
//! asked for it is told.

use super::super::MmuEnv;
use super::packs::{Place, MOST};
use lz4_flex::block::{compress_into_with_table, decompress_into, get_maximum_output_size, CompressTable};
use x86::{Mfn, PAGE_SIZE};

/// Room for what has become of a page, however large that is.
const ROOM: usize = get_maximum_output_size(PAGE_SIZE);

/// Work areas.
pub(super) struct Desk {
    /// The page that is looked at. Nobody else can write to it.
    page: [u8; PAGE_SIZE],
    /// What it is packed into; or a page that was unpacked.
    other: [u8; ROOM],
    /// What is unpacked.
    piece: [u8; MOST],
    table: CompressTable,
}

impl core::fmt::Debug for Desk {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Desk")
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
}

impl Desk {
    /// Nothing is on it.
    pub const fn new() -> Self {
        Self { page: [0; PAGE_SIZE], other: [0; ROOM], piece: [0; MOST], table: CompressTable::small() }
    }

    /// Takes what a frame holds, which others may write to meanwhile.
    pub fn look_at(&mut self, page: Mfn, env: &impl MmuEnv) {
        env.read_bytes(page, 0, &mut self.page);
    }

    /// The page that is looked at.
    pub const fn page(&self) -> &[u8; PAGE_SIZE] {
        &self.page
    }

    /// A sum of all its words, in their order.
    pub fn sum(&self) -> u32 {
        // Odd, with its bits in no order: 2^64 divided by the golden ratio.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let sum = words(&self.page).fold(0_u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(SPREAD));
        #[allow(clippy::cast_possible_truncation, reason = "the upper half depends on all bits")]
        let upper = (sum >> 32) as u32;
        upper
    }

    /// Is a copy the same?
    pub fn is_same(&mut self, copy: Place, env: &impl MmuEnv) -> bool {
        if copy.is_piece() {
            self.unpack(copy, env).is_some() && self.other[..PAGE_SIZE] == self.page
        } else {
            env.read_bytes(copy.mfn(), 0, &mut self.other[..PAGE_SIZE]);
            self.other[..PAGE_SIZE] == self.page
        }
    }

    /// The page that is looked at, packed. `None`: that takes more than [`MOST`] bytes.
    pub fn pack(&mut self) -> Option<&[u8]> {
        let len = compress_into_with_table(&self.page, &mut self.other, &mut self.table).ok()?;
        self.other.get(..len).filter(|packed| packed.len() <= MOST)
    }

    /// The page that was packed into a piece. `None`: what is there is no page.
    pub fn unpack(&mut self, piece: Place, env: &impl MmuEnv) -> Option<&[u8]> {
        let packed = self.piece.get_mut(..piece.len())?;
        env.read_bytes(piece.mfn(), piece.offset(), packed);
        let page = self.other.get_mut(..PAGE_SIZE)?;
        (decompress_into(packed, page).ok()? == PAGE_SIZE).then_some(page)
    }
}
