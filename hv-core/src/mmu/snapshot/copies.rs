//! Copies of pages, of all snapshots: pages that are the same are kept once.
//!
//! Driver domains run the same kernel, and most of what one holds when it has booted another one holds, too. A copy is
//! found by a sum of its words; what has the same sum and is another page has a copy of its own. Nobody writes to a
//! copy that others may share.
//!
//! A copy is a frame or, if that was asked for and the page shrinks, [packed](super::packs). It stays what it was made
//! as, whoever else finds it.

use super::super::MmuEnv;
use super::desk::Desk;
use super::packs::{Packs, Place};
use super::Keep;
use alloc::collections::BTreeMap;
use x86::Mfn;

/// How copies are kept of which there is none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Each in a frame.
    Whole,
    /// Compressed, if they shrink.
    Packed,
}

/// A copy of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Where it is; nowhere if all was zero.
    place: Place,
    /// Of its words.
    sum: u32,
    /// It is among those that may be shared.
    may_be_shared: bool,
}

impl Kept {
    /// Of a page that was zero.
    pub(super) const NONE: Self = Self { place: Place::NONE, sum: 0, may_be_shared: false };

    pub(super) fn is_none(self) -> bool {
        self.place == Place::NONE
    }

    /// Bytes that it takes if it is packed.
    pub(super) fn packed(self) -> Option<u64> {
        self.place.is_piece().then(|| self.place.takes())
    }
}

/// One that may be shared, and by how many it is.
#[derive(Debug)]
struct Shared {
    place: Place,
    uses: u32,
}

/// All copies that may be shared, and where packed ones are.
#[derive(Debug)]
pub struct Copies {
    by_sum: BTreeMap<u32, Shared>,
    packs: Packs,
    desk: Desk,
}

impl Copies {
    /// None yet.
    #[allow(clippy::new_without_default, reason = "it is made once")]
    pub const fn new() -> Self {
        Self { by_sum: BTreeMap::new(), packs: Packs::new(), desk: Desk::new() }
    }

    /// Frames that hold packed copies.
    pub fn nr_packs(&self) -> u64 {
        self.packs.nr_frames()
    }

    /// A copy of what a frame holds, which others may write to meanwhile, and whether there was the same one already.
    /// `None`: there is no memory.
    pub(super) fn keep(&mut self, page: Mfn, form: Form, env: &(impl Keep + MmuEnv)) -> Option<(Kept, bool)> {
        self.desk.look_at(page, env);
        let sum = self.desk.sum();
        let known = self.by_sum.get_mut(&sum);
        let is_known = known.is_some();
        if let Some(known) = known.filter(|known| known.uses < u32::MAX && self.desk.is_same(known.place, env)) {
            known.uses += 1;
            return Some((Kept { place: known.place, sum, may_be_shared: true }, true));
        }
        let place = self.put(form, env)?;
        // Else what is known by this sum is another page, or there is no memory to know it.
        let may_be_shared = !is_known && env.has_room(super::NODE);
        if may_be_shared {
            self.by_sum.insert(sum, Shared { place, uses: 1 });
        }
        Some((Kept { place, sum, may_be_shared }, false))
    }

    /// Keeps the page that is looked at.
    fn put(&mut self, form: Form, env: &(impl Keep + MmuEnv)) -> Option<Place> {
        let packed = if form == Form::Packed { self.desk.pack() } else { None };
        if let Some((packed, place)) = packed.and_then(|packed| Some((packed, self.packs.take(packed.len(), env)?))) {
            env.write_bytes(place.mfn(), place.offset(), packed);
            return Some(place);
        }
        let mfn = env.alloc()?;
        env.write_bytes(mfn, 0, self.desk.page());
        Some(Place::whole(mfn))
    }

    /// A copy that is neither shared nor packed.
    pub(super) fn keep_apart(&self, page: Mfn, env: &(impl Keep + MmuEnv)) -> Option<Kept> {
        let mfn = env.alloc()?;
        env.copy_page(mfn, page);
        Some(Kept { place: Place::whole(mfn), ..Kept::NONE })
    }

    /// Writes what was kept to a frame. `false`: it cannot be unpacked, which does not come about.
    pub(super) fn write_back(&mut self, copy: Kept, to: Mfn, env: &impl MmuEnv) -> bool {
        if !copy.place.is_piece() {
            env.copy_page(to, copy.place.mfn());
            return true;
        }
        let page = self.desk.unpack(copy.place, env);
        page.map(|page| env.write_bytes(to, 0, page)).is_some()
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
            if self.by_sum.is_empty() {
                // What it has on the heap goes, too.
                self.by_sum = BTreeMap::new();
            }
        }
        if copy.place.is_piece() {
            self.packs.give_up(copy.place, env);
        } else {
            env.free(copy.place.mfn());
        }
    }

    /// How many there are that may be shared.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.by_sum.len()
    }
}

#[cfg(test)]
mod tests;
