//! Requests of a guest's, out of the words of a slot: what they claim is checked here, once.

use xen_abi::io::blkif::*;

/// Words of a slot.
pub const WORDS: usize = SLOT_BYTES as usize / 4;
/// Segments of the longest request, which is an indirect one.
pub const MAX_SEGMENTS: usize = 32;
/// Segments in a request itself.
pub const DIRECT_SEGMENTS: usize = BLKIF_MAX_SEGMENTS_PER_REQUEST as usize;

/// What a guest was told that it may ask for, beside reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Writes.
    pub write: bool,
    /// Flushes of the medium's cache.
    pub flush: bool,
    /// Barriers.
    pub barrier: bool,
    /// Discards.
    pub discard: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The guest's pages are filled.
    #[default]
    Read,
    /// The medium is.
    Write,
    /// What was written is made to last; then it is a write, if it has segments.
    Flush,
    /// A flush that nothing passes.
    Barrier,
    /// Sectors are needed no longer.
    Discard,
}

impl Kind {
    /// What it is called in a ring.
    pub fn operation(self) -> u8 {
        match self {
            Kind::Read => BLKIF_OP_READ,
            Kind::Write => BLKIF_OP_WRITE,
            Kind::Flush => BLKIF_OP_FLUSH_DISKCACHE,
            Kind::Barrier => BLKIF_OP_WRITE_BARRIER,
            Kind::Discard => BLKIF_OP_DISCARD,
        }
    }
}

/// A part of a page, of whole sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The page's grant.
    pub gref: u32,
    first: u8,
    last: u8,
}

impl Segment {
    /// From a list. `None`: it is none, or not in a page.
    fn decode([gref, place]: [u32; 2]) -> Option<Segment> {
        let [first, last, ..] = place.to_le_bytes();
        (first <= last && last < SECTORS_PER_PAGE).then_some(Segment { gref, first, last })
    }

    /// As it is in a list, with another grant for a page of the same layout.
    pub fn encode(self, gref: u32) -> [u32; 2] {
        [gref, u32::from(self.first) | u32::from(self.last) << 8]
    }

    /// First byte in its page.
    pub fn offset(self) -> u16 {
        u16::from(self.first) * SECTOR
    }

    /// Bytes.
    pub fn len(self) -> u16 {
        self.sectors() * SECTOR
    }

    /// Sectors.
    pub fn sectors(self) -> u16 {
        u16::from(self.last) + 1 - u16::from(self.first)
    }
}

const SECTOR: u16 = 512;
const _: () = assert!(SECTOR as u32 == SECTOR_BYTES);

/// A request, as it was when it was taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// What is to be done.
    pub kind: Kind,
    /// What the guest calls it.
    pub id: u64,
    /// The first sector on the medium.
    pub sector: u64,
    /// Of a discard: how many sectors.
    pub discard_sectors: u64,
    /// Of a discard: [`BLKIF_DISCARD_SECURE`], or nothing.
    pub discard_flag: u8,
    nr_segments: u8,
    /// Of all segments.
    nr_sectors: u16,
    segments: [Segment; MAX_SEGMENTS],
}

impl Request {
    /// The guest's pages.
    pub fn segments(&self) -> &[Segment] {
        &self.segments[..usize::from(self.nr_segments).min(MAX_SEGMENTS)]
    }

    /// The answer of who does not do it.
    pub fn refused(&self) -> Answer {
        Answer { id: self.id, operation: self.kind.operation(), status: BLKIF_RSP_ERROR }
    }

    /// It changes the medium's content.
    pub fn is_write(&self) -> bool {
        match self.kind {
            Kind::Read => false,
            Kind::Write | Kind::Discard => true,
            Kind::Flush | Kind::Barrier => self.nr_segments != 0,
        }
    }

    /// Bytes that are copied for it.
    pub fn bytes(&self) -> u32 {
        u32::from(self.nr_sectors) * SECTOR_BYTES
    }

    /// Becomes what a guest has written into a slot, whose words `word` reads: each is read once at most. Segments
    /// beyond its own are left what they were, and if it is refused everything may be anything.
    #[inline]
    pub fn decode(&mut self, word: impl Fn(usize) -> u32, offers: Offers) -> Slot {
        let [operation, second, third, fourth] = word(0).to_le_bytes();
        (self.id, self.sector) = (whole(word(2), word(3)), whole(word(4), word(5)));
        (self.nr_segments, self.nr_sectors) = (0, 0);
        let is_indirect = operation == BLKIF_OP_INDIRECT;
        // As in blkback, the answer to an indirect request names what it wanted done.
        let wanted = if is_indirect { second } else { operation };
        let id = self.id;
        let refused = |status| Slot::Refused(Answer { id, operation: wanted, status });
        self.kind = match wanted {
            BLKIF_OP_READ => Kind::Read,
            BLKIF_OP_WRITE if !offers.write => return refused(BLKIF_RSP_ERROR),
            BLKIF_OP_WRITE => Kind::Write,
            _ if is_indirect => return refused(BLKIF_RSP_ERROR),
            BLKIF_OP_FLUSH_DISKCACHE if offers.flush => Kind::Flush,
            BLKIF_OP_WRITE_BARRIER if offers.barrier => Kind::Barrier,
            BLKIF_OP_DISCARD if offers.discard && offers.write => Kind::Discard,
            _ => return refused(BLKIF_RSP_EOPNOTSUPP),
        };
        if is_indirect {
            let nr = u16::from_le_bytes([third, fourth]);
            return match u8::try_from(nr) {
                Ok(nr_segments) if nr > 0 && usize::from(nr) <= MAX_SEGMENTS => {
                    Slot::Indirect(List { gref: word(7), nr_segments })
                }
                _ => refused(BLKIF_RSP_ERROR),
            };
        }
        if self.kind == Kind::Discard {
            self.discard_sectors = whole(word(6), word(7));
            self.discard_flag = second & BLKIF_DISCARD_SECURE;
            let is_on_medium = self.sector.checked_add(self.discard_sectors).is_some();
            return if is_on_medium { Slot::Whole } else { refused(BLKIF_RSP_ERROR) };
        }
        let nr_segments = usize::from(second);
        let may_be_empty = matches!(self.kind, Kind::Flush | Kind::Barrier);
        let is_known = nr_segments <= DIRECT_SEGMENTS && (nr_segments > 0 || may_be_empty);
        // A flush with segments writes them.
        let is_allowed = offers.write || !may_be_empty || nr_segments == 0;
        let list = (0..nr_segments).map(|n| [word(6 + 2 * n), word(7 + 2 * n)]);
        if is_known && is_allowed && self.set_segments(list) {
            Slot::Whole
        } else {
            refused(BLKIF_RSP_ERROR)
        }
    }

    /// Takes over the segments of an indirect request, of which `list` is a copy. `false`: it is refused.
    pub fn set_list(&mut self, list: &[u8]) -> bool {
        let word = |b: &[u8]| b.iter().rev().fold(0, |all, byte| all << 8 | u32::from(*byte));
        self.set_segments(list.chunks_exact(8).map(|entry| [word(&entry[..4]), word(&entry[4..])]))
    }

    /// Takes over `list`. `false`: a segment cannot be, or the medium is not as long as that.
    fn set_segments(&mut self, list: impl ExactSizeIterator<Item = [u32; 2]>) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "compared before")]
        let nr_segments = list.len().min(MAX_SEGMENTS) as u8;
        let mut sectors = 0;
        for (place, words) in self.segments.iter_mut().zip(list) {
            let Some(segment) = Segment::decode(words) else { return false };
            sectors += segment.sectors();
            *place = segment;
        }
        (self.nr_segments, self.nr_sectors) = (nr_segments, sectors);
        self.sector.checked_add(u64::from(sectors)).is_some()
    }
}

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// All of a request.
    Whole,
    /// A request whose segments are listed elsewhere.
    Indirect(List),
    /// What is not done: its answer.
    Refused(Answer),
}

/// Where the segments of an indirect request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Their page.
    pub gref: u32,
    nr_segments: u8,
}

impl List {
    /// Its bytes.
    pub fn bytes(&self) -> usize {
        usize::from(self.nr_segments) * 8
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the guest calls the request.
    pub id: u64,
    /// What it wanted.
    pub operation: u8,
    /// `BLKIF_RSP_*`.
    pub status: i16,
}

impl Answer {
    /// As words of a slot.
    pub fn encode(self) -> [u32; 3] {
        let [low, high] = halves(self.id);
        [low, high, u32::from(self.operation) | u32::from(u16::from_ne_bytes(self.status.to_ne_bytes())) << 16]
    }

    /// From words of a slot.
    pub fn decode([low, high, rest]: [u32; 3]) -> Answer {
        let [operation, _, s0, s1] = rest.to_le_bytes();
        Answer { id: whole(low, high), operation, status: i16::from_le_bytes([s0, s1]) }
    }
}

/// Both halves of a field of 64 bits, the low one first.
#[allow(clippy::cast_possible_truncation, reason = "halves")]
pub fn halves(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests;
