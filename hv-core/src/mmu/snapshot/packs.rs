//! Frames that hold several packed copies each.
//!
//! A frame is 64 units of 64 bytes, and a word says which of them are in use. A piece is some units in a row. It goes
//! into the frame whose largest gap is the smallest that it fits into, and takes another frame only if it fits into
//! none; with its last piece a frame goes back. So there are never more frames than pieces: however pieces come and go,
//! they take no more than if none were packed. Nothing is moved, since whoever has a piece knows where it is.
//!
//! Frames with gaps of one size are in a list, which their entries are linked into: to give a piece up takes no memory.

use super::Keep;
use alloc::collections::BTreeMap;
use x86::{Mfn, PAGE_SIZE};

/// Bytes of a unit.
pub(super) const UNIT: usize = 64;
/// Units of a frame: as many as a word has bits.
const UNITS: usize = 64;
const _: () = assert!(UNIT * UNITS == PAGE_SIZE && UNITS == u64::BITS as usize);
/// What is larger is not packed: three quarters of a page.
pub(super) const MOST: usize = PAGE_SIZE / 4 * 3;

/// Where a copy is: in a frame of its own, or packed in a part of one. The frame's number, the first unit and how many
/// bytes it has in one word: there is one of these for each frame of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u64);

impl Place {
    const LEN_BITS: u32 = 12;
    const FIRST_BITS: u32 = 6;

    /// Nowhere. No copy is in frame 0.
    pub const NONE: Self = Self(0);

    /// A whole frame.
    pub const fn whole(mfn: Mfn) -> Self {
        Self(mfn.raw() << (Self::LEN_BITS + Self::FIRST_BITS))
    }

    /// `len` bytes (1 to [`MOST`]) from unit `first` on.
    const fn piece(mfn: Mfn, first: usize, len: usize) -> Self {
        Self(Self::whole(mfn).0 | ((first % UNITS) as u64) << Self::LEN_BITS | len as u64)
    }

    /// The frame.
    pub const fn mfn(self) -> Mfn {
        Mfn::new(self.0 >> (Self::LEN_BITS + Self::FIRST_BITS))
    }

    /// Bytes of a piece; 0: it is a whole frame.
    #[allow(clippy::cast_possible_truncation, reason = "masked")]
    pub const fn len(self) -> usize {
        self.0 as usize & ((1 << Self::LEN_BITS) - 1)
    }

    /// Is it packed?
    pub const fn is_piece(self) -> bool {
        self.len() != 0
    }

    #[allow(clippy::cast_possible_truncation, reason = "masked")]
    const fn first(self) -> usize {
        (self.0 >> Self::LEN_BITS) as usize & (UNITS - 1)
    }

    const fn units(self) -> usize {
        self.len().div_ceil(UNIT)
    }

    /// Where in the frame a piece begins, in bytes.
    pub const fn offset(self) -> usize {
        self.first() * UNIT
    }

    /// What a piece takes, in bytes.
    pub const fn takes(self) -> u64 {
        (self.units() * UNIT) as u64
    }

    /// Its units.
    const fn mask(self) -> u64 {
        (!0 >> (UNITS - self.units())) << self.first()
    }
}

/// A frame with pieces, and its neighbours in the list of those with gaps as large as its own.
#[derive(Debug)]
struct Frame {
    used: u64,
    before: Option<Mfn>,
    after: Option<Mfn>,
}

/// Units of the largest gap.
fn largest_gap(used: u64) -> usize {
    // Bit n: so many units in a row that end with unit n are free.
    let (mut ends, mut gap) = (!used, 0);
    while ends != 0 {
        ends &= ends << 1;
        gap += 1;
    }
    gap
}

/// The first unit of the first gap that has `units`.
fn first_gap(used: u64, units: usize) -> usize {
    let begins = (1..units).fold(!used, |begins, _| begins & begins >> 1);
    begins.trailing_zeros() as usize
}

/// All frames with pieces.
#[derive(Debug)]
pub(super) struct Packs {
    frames: BTreeMap<Mfn, Frame>,
    /// The first frame whose largest gap has so many units.
    by_gap: [Option<Mfn>; UNITS + 1],
}

impl Packs {
    /// None yet.
    pub const fn new() -> Self {
        Self { frames: BTreeMap::new(), by_gap: [None; UNITS + 1] }
    }

    /// How many frames there are.
    pub fn nr_frames(&self) -> u64 {
        self.frames.len() as u64
    }

    /// A place for `len` bytes, 1 to [`MOST`]. `None`: there is no memory.
    pub fn take(&mut self, len: usize, keep: &impl Keep) -> Option<Place> {
        debug_assert!((1..=MOST).contains(&len));
        let units = len.div_ceil(UNIT);
        let mfn = match self.by_gap.get(units..)?.iter().copied().find_map(|first| first) {
            Some(mfn) => mfn,
            None => self.add(keep)?,
        };
        let used = self.frames.get(&mfn)?.used;
        let place = Place::piece(mfn, first_gap(used, units), len);
        debug_assert_eq!(used & place.mask(), 0);
        self.set_used(mfn, used | place.mask());
        Some(place)
    }

    fn add(&mut self, keep: &impl Keep) -> Option<Mfn> {
        if !keep.has_room(super::NODE) {
            return None;
        }
        let mfn = keep.alloc()?;
        self.frames.insert(mfn, Frame { used: 0, before: None, after: None });
        self.link(mfn, UNITS);
        Some(mfn)
    }

    /// Nobody asks for a piece any more.
    pub fn give_up(&mut self, piece: Place, keep: &impl Keep) {
        let Some(frame) = self.frames.get(&piece.mfn()) else { return };
        debug_assert_eq!(frame.used & piece.mask(), piece.mask());
        let used = frame.used & !piece.mask();
        self.set_used(piece.mfn(), used);
        if used == 0 {
            self.unlink(piece.mfn(), UNITS);
            self.frames.remove(&piece.mfn());
            if self.frames.is_empty() {
                // What it has on the heap goes, too.
                self.frames = BTreeMap::new();
            }
            keep.free(piece.mfn());
        }
    }

    fn set_used(&mut self, mfn: Mfn, used: u64) {
        let Some(frame) = self.frames.get_mut(&mfn) else { return };
        let (old, new) = (largest_gap(frame.used), largest_gap(used));
        frame.used = used;
        if old != new {
            self.unlink(mfn, old);
            self.link(mfn, new);
        }
    }

    fn link(&mut self, mfn: Mfn, gap: usize) {
        let after = self.by_gap.get_mut(gap).and_then(|first| first.replace(mfn));
        if let Some(frame) = self.frames.get_mut(&mfn) {
            (frame.before, frame.after) = (None, after);
        }
        if let Some(next) = after.and_then(|next| self.frames.get_mut(&next)) {
            next.before = Some(mfn);
        }
    }

    fn unlink(&mut self, mfn: Mfn, gap: usize) {
        let Some(&Frame { before, after, .. }) = self.frames.get(&mfn) else { return };
        match before.and_then(|before| self.frames.get_mut(&before)) {
            Some(frame) => frame.after = after,
            None => {
                if let Some(first) = self.by_gap.get_mut(gap) {
                    *first = after;
                }
            }
        }
        if let Some(frame) = after.and_then(|after| self.frames.get_mut(&after)) {
            frame.before = before;
        }
    }
}
