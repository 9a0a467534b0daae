//! Copies of pages, of all snapshots: pages that are the same are kept once.
//!
//! Driver domains run the same kernel, and most of what one holds when it has booted another one holds, too. A copy is found by a sum of its words; what
//! has the same sum and is another page has a copy of its own. Nobody writes to a copy that others may share.

use super::super::tables::ENTRIES;
use super::super::{MmuEnv, Slot};
use super::Keep;
use alloc::collections::BTreeMap;
use x86::Mfn;

/// A copy of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Where it is; frame 0: nowhere, since all was zero.
    pub(super) mfn: Mfn,
    /// Of its words.
    sum: u32,
    /// It is among those that may be shared.
    may_be_shared: bool,
}

impl Kept {
    /// Of a page that was zero.
    pub(super) const NONE: Self = Self { mfn: Mfn::new(0), sum: 0, may_be_shared: false };

    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// One that may be shared, and by how many it is.
#[derive(Debug)]
struct Shared {
    mfn: Mfn,
    uses: u32,
}

/// All copies that may be shared.
#[derive(Debug, Default)]
pub struct Copies {
    by_sum: BTreeMap<u32, Shared>,
}

impl Copies {
    /// None yet.
    pub const fn new() -> Self {
        Self { by_sum: BTreeMap::new() }
    }

    /// A copy of what a frame holds, which others may write to meanwhile, and whether there was the same one already. `None`: there is no memory.
    pub(super) fn keep(&mut self, page: Mfn, env: &(impl Keep + MmuEnv)) -> Option<(Kept, bool)> {
        let new = self.keep_apart(page, env)?;
        let sum = sum(new.mfn, env);
        match self.by_sum.get_mut(&sum) {
            Some(known) if known.uses < u32::MAX && is_same(known.mfn, new.mfn, env) => {
                known.uses += 1;
                env.free(new.mfn);
                Some((Kept { mfn: known.mfn, sum, may_be_shared: true }, true))
            }
            // What is known by this sum is another page, or there is no memory to know it.
            None if env.has_room() => {
                self.by_sum.insert(sum, Shared { mfn: new.mfn, uses: 1 });
                Some((Kept { sum, may_be_shared: true, ..new }, false))
            }
            Some(_) | None => Some((new, false)),
        }
    }

    /// The same of one that is not shared, so that it can be written again.
    pub(super) fn keep_apart(&self, page: Mfn, env: &(impl Keep + MmuEnv)) -> Option<Kept> {
        let mfn = env.alloc()?;
        env.copy_page(mfn, page);
        Some(Kept { mfn, sum: 0, may_be_shared: false })
    }

    /// Nobody asks for it any more who got it from [`Copies::keep`] or [`Copies::keep_apart`].
    pub(super) fn give_up(&mut self, copy: Kept, env: &impl Keep) {
        if copy.is_none() {
            return;
        }
        if let Some(shared) = self.by_sum.get_mut(&copy.sum).filter(|_| copy.may_be_shared) {
            shared.uses -= 1;
            if shared.uses != 0 {
                return;
            }
            self.by_sum.remove(&copy.sum);
        }
        env.free(copy.mfn);
    }

    /// How many there are that may be shared.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.by_sum.len()
    }
}

/// Of all words of a page, in their order.
fn sum(page: Mfn, env: &impl MmuEnv) -> u32 {
    // Odd, with its bits in no order: 2^64 divided by the golden ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let word = |index| env.read(Slot::new(page, index)).0;
    let sum = (0..ENTRIES).fold(0_u64, |sum, index| (sum.rotate_left(5) ^ word(index)).wrapping_mul(SPREAD));
    #[allow(clippy::cast_possible_truncation, reason = "the upper half depends on all bits")]
    let upper = (sum >> 32) as u32;
    upper
}

fn is_same(one: Mfn, other: Mfn, env: &impl MmuEnv) -> bool {
    (0..ENTRIES).all(|index| env.read(Slot::new(one, index)) == env.read(Slot::new(other, index)))
}
