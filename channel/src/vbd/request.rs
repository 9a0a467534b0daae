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
    segments: [Segment; MAX_SEGMENTS],
}

impl Request {
    /// The guest's pages.
    pub fn segments(&self) -> &[Segment] {
        &self.segments[..usize::from(self.nr_segments).min(MAX_SEGMENTS)]
    }

    /// Becomes the same as another. Segments that that one does not have are left what they were.
    pub fn copy_from(&mut self, other: &Request) {
        let Request { kind, id, sector, discard_sectors, discard_flag, nr_segments, .. } = *other;
        (self.kind, self.id, self.sector, self.nr_segments) = (kind, id, sector, nr_segments);
        (self.discard_sectors, self.discard_flag) = (discard_sectors, discard_flag);
        self.segments.iter_mut().zip(other.segments()).for_each(|(to, from)| *to = *from);
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
        self.segments().iter().map(|s| u32::from(s.len())).sum()
    }

    /// Takes over `list`. `false`: a segment cannot be, or the medium is not as long as that.
    fn set_segments(&mut self, list: impl ExactSizeIterator<Item = [u32; 2]>) -> bool {
        #[allow(clippy::cast_possible_truncation, reason = "compared before")]
        let nr_segments = list.len().min(MAX_SEGMENTS) as u8;
        let mut sectors = 0u64;
        for (place, words) in self.segments.iter_mut().zip(list) {
            let Some(segment) = Segment::decode(words) else { return false };
            sectors += u64::from(segment.sectors());
            *place = segment;
        }
        self.nr_segments = nr_segments;
        self.sector.checked_add(sectors).is_some()
    }
}

/// A slot's content.
#[derive(Clone, Copy, Debug)]
pub enum Slot {
    /// All of a request.
    Whole(Request),
    /// A request whose segments are in the page of this grant.
    Indirect(Indirect),
    /// What is not done: its answer.
    Refused(Answer),
}

impl Slot {
    /// The answer of who does nothing of what he is asked.
    pub fn refused(&self) -> Answer {
        match self {
            Slot::Whole(request) => request.refused(),
            Slot::Indirect(indirect) => indirect.refused(),
            Slot::Refused(answer) => *answer,
        }
    }
}

/// An indirect request without its segments.
#[derive(Clone, Copy, Debug)]
pub struct Indirect {
    request: Request,
    /// Where its segments are listed.
    pub gref: u32,
    nr_segments: u8,
}

impl Indirect {
    /// Bytes of the list.
    pub fn list_bytes(&self) -> usize {
        usize::from(self.nr_segments) * 8
    }

    /// The whole request; `list` is a copy of what is in its page.
    pub fn with_list(self, list: &[u8]) -> Slot {
        let mut request = self.request;
        let word = |b: &[u8]| b.iter().rev().fold(0, |all, byte| all << 8 | u32::from(*byte));
        if request.set_segments(list.chunks_exact(8).map(|entry| [word(&entry[..4]), word(&entry[4..])])) {
            Slot::Whole(request)
        } else {
            Slot::Refused(self.refused())
        }
    }

    /// The answer if its list cannot be read.
    pub fn refused(&self) -> Answer {
        self.request.refused()
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

/// What a guest has written into a slot.
pub fn decode(words: &[u32; WORDS], offers: Offers) -> Slot {
    let [operation, second, third, fourth] = words[0].to_le_bytes();
    let id = whole(words[2], words[3]);
    let mut request = Request { id, sector: whole(words[4], words[5]), ..Request::default() };
    let is_indirect = operation == BLKIF_OP_INDIRECT;
    // As in blkback, the answer to an indirect request names what it wanted done.
    let wanted = if is_indirect { second } else { operation };
    let refused = |status| Slot::Refused(Answer { id, operation: wanted, status });
    request.kind = match wanted {
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
                Slot::Indirect(Indirect { request, gref: words[7], nr_segments })
            }
            _ => refused(BLKIF_RSP_ERROR),
        };
    }
    if request.kind == Kind::Discard {
        request.discard_sectors = whole(words[6], words[7]);
        request.discard_flag = second & BLKIF_DISCARD_SECURE;
        let is_on_medium = request.sector.checked_add(request.discard_sectors).is_some();
        return if is_on_medium { Slot::Whole(request) } else { refused(BLKIF_RSP_ERROR) };
    }
    let nr_segments = usize::from(second);
    let may_be_empty = matches!(request.kind, Kind::Flush | Kind::Barrier);
    let is_known = nr_segments <= DIRECT_SEGMENTS && (nr_segments > 0 || may_be_empty);
    // A flush with segments writes them.
    let is_allowed = offers.write || !may_be_empty || nr_segments == 0;
    let list = words[6..].chunks_exact(2).take(nr_segments).map(|pair| [pair[0], pair[1]]);
    if is_known && is_allowed && request.set_segments(list) {
        Slot::Whole(request)
    } else {
        refused(BLKIF_RSP_ERROR)
    }
}

#[cfg(test)]
mod tests;
