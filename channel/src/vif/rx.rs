//! What a guest receives: packets are copied into the pages that it has posted.
//!
//! As Linux's netback does it: a packet fills one page after the other from the first byte on, is not begun unless
//! there are pages for all of it, and each response lies where its request lay, because front ends pair them so. If the
//! grant of a page does not hold, its response says so and the front end throws the packet away.
//!
//! What is in the ring goes in the order in which it came there. So where several send to a guest, and take turns,
//! [few](RxQueue::keep_few_unread) packets are put there before it has read the last ones: the others wait where they
//! can take turns.

use super::features::Accepts;
use super::stats::RxStats;
use crate::grants::{Frames, Grants};
use crate::offload::checksum::completed;
use crate::offload::segment::Cutter;
use crate::packet::{Checksum, Gso, GsoKind, View, HEADER_BYTES};
use crate::page::SharedPage;
use crate::ring::{BackRing, Indices, RingError};
use xen_abi::io::netif::{
    XEN_NETIF_EXTRA_TYPE_GSO, XEN_NETIF_GSO_TYPE_NONE, XEN_NETIF_GSO_TYPE_TCPV4, XEN_NETIF_GSO_TYPE_TCPV6,
    XEN_NETIF_RSP_ERROR, XEN_NETIF_RX_RING_SIZE, XEN_NETRXF_CSUM_BLANK, XEN_NETRXF_DATA_VALIDATED,
    XEN_NETRXF_EXTRA_INFO, XEN_NETRXF_MORE_DATA,
};

const PAGE: u32 = 4096;

/// What [`RxQueue::deliver`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The guest has it.
    Done,
    /// The guest has not posted enough pages: `slots` are needed.
    NoRoom {
        /// Slots of the packet, or of its next segment.
        slots: u32,
    },
    /// The guest has got as many segments of the packet as it may at one time. There may be room for more.
    Part,
    /// The guest cannot take such a packet.
    Unfit,
}

/// Segments of a packet that a guest gets at one time: of the longest packet's, with 536 bytes each, all of them, and
/// as many datagrams as Linux makes one of. They may be as short as a byte, and a guest may post pages as fast as they
/// are filled.
pub const MOST_SEGMENTS: u32 = 128;

/// Slots that a guest has not read, from which on it gets nothing more, if it is to have few of them: what Linux reads
/// at one time.
pub const MOST_UNREAD: u32 = 64;

/// How far a packet that is cut for its receiver has got: begins as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Segments that the guest has.
    pub segments: u32,
}

/// A receive ring.
pub struct RxQueue<P> {
    ring: BackRing<P, 2, XEN_NETIF_RX_RING_SIZE>,
    accepts: Accepts,
    /// What the guest has got.
    pub stats: RxStats,
    dead: Option<RingError>,
    /// Pages that the guest posts when it has read everything: the most that were seen since it last had. Those that
    /// are missing it has not read.
    posts: u32,
    /// It is to have few slots that it has not read.
    few: bool,
    /// `req_prod` and `rsp_prod` when it was last found that there are too many that it has not read.
    found_at: Option<(u32, u32)>,
    /// As long as `req_prod` is this, so many pages stay posted at most.
    relaxed: Option<(u32, u32)>,
}

impl<P: SharedPage> RxQueue<P> {
    /// Takes up the ring in `page`.
    pub fn attach(page: P, accepts: Accepts) -> Result<Self, RingError> {
        let (ring, stats) = (BackRing::attach(page)?, RxStats::default());
        Ok(RxQueue { ring, accepts, stats, dead: None, posts: 0, few: false, found_at: None, relaxed: None })
    }

    /// The ring's page.
    pub fn page(&self) -> &P {
        self.ring.page()
    }

    /// Where the ring is.
    pub fn indices(&self) -> Indices {
        self.ring.indices()
    }

    /// Does the guest take a packet of this kind that is to be cut?
    #[inline]
    pub fn takes(&self, kind: GsoKind) -> bool {
        self.accepts.gso(kind)
    }

    /// From now on the guest has about [`MOST_UNREAD`] slots at most that it has not read; or as many as it posts.
    #[inline]
    pub fn keep_few_unread(&mut self, few: bool) {
        self.few = few;
    }

    /// Posted pages that may be filled now.
    #[inline]
    fn room(&mut self) -> Result<u32, RingError> {
        let posted = self.ring.available()?;
        self.posts = self.posts.max(posted);
        Ok(if self.few { posted.saturating_sub(self.kept_free()) } else { posted })
    }

    /// Pages that stay posted, if it is to have few slots that it has not read: nothing is put into them.
    #[inline]
    fn kept_free(&self) -> u32 {
        let kept_free = self.posts.saturating_sub(MOST_UNREAD);
        match self.relaxed {
            Some((req_prod, relaxed)) if req_prod == self.ring.indices().req_prod => kept_free.min(relaxed),
            _ => kept_free,
        }
    }

    /// Is it so that the guest has too many that it has not read? If it waits for the next packet it has read all, and
    /// posts fewer pages than before. If nothing has moved since this was asked last, either it has been kept from
    /// reading, or it posts fewer pages and does not say that it waits: it gets some more, once, or both would wait for
    /// each other.
    fn learn(&mut self) -> Result<(), RingError> {
        let posted = self.ring.available()?;
        let Indices { req_prod, rsp_prod, rsp_event, .. } = self.ring.indices();
        if rsp_event == rsp_prod.wrapping_add(1) {
            self.posts = posted;
        }
        let has_stopped = self.found_at.replace((req_prod, rsp_prod)) == Some((req_prod, rsp_prod));
        self.relaxed = has_stopped.then_some((req_prod, posted.saturating_sub(MOST_UNREAD)));
        Ok(())
    }

    /// What ended it, if it has ended.
    pub fn fatal(&self) -> Option<RingError> {
        self.dead
    }

    /// Copies a packet into the guest's pages. The guest sees it after [`RxQueue::push`]. Is it to be cut, because this
    /// guest does not take it whole, then `progress` says where to go on after [`Delivered::NoRoom`] and
    /// [`Delivered::Part`]; otherwise nothing was done then. An error ends the queue: the same is answered from then
    /// on. `view` is handed on by value, so that of a plain packet it need not lie in memory.
    #[inline(always)]
    pub fn deliver<G: Grants>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<G::Frame>,
        view: View<'_, G::Frame>,
        progress: &mut Progress,
    ) -> Result<Delivered, RingError> {
        if let Some(e) = self.dead {
            return Err(e);
        }
        // What is one for many has a blank checksum, too.
        let is_taken = self.accepts.checksum(&view) && view.gso.is_none_or(|gso| self.accepts.gso(gso.kind));
        let result = match is_taken {
            true if view.len() <= PAGE && view.gso.is_none() && !view.is_empty() => self.copy_one(grants, frames, view),
            true => self.copy(grants, frames, view),
            false => self.adapt(grants, frames, view, progress),
        };
        result.inspect_err(|e| self.dead = Some(*e))
    }

    /// Delivers what the guest does not take as it is.
    #[cold]
    fn adapt<G: Grants>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<G::Frame>,
        view: View<'_, G::Frame>,
        progress: &mut Progress,
    ) -> Result<Delivered, RingError> {
        if view.gso.is_none() {
            return self.copy_complete(grants, frames, view);
        }
        let Some(cutter) = Cutter::new(view) else { return Ok(Delivered::Unfit) };
        let mut buffer = [0; HEADER_BYTES];
        let end = cutter.nr_segments().min(progress.segments.saturating_add(MOST_SEGMENTS));
        while progress.segments < end {
            let segment = cutter.segment(progress.segments, &mut buffer);
            let delivered = if self.accepts.checksum(&segment) {
                self.copy(grants, frames, segment)?
            } else {
                self.copy_complete(grants, frames, segment)?
            };
            if delivered != Delivered::Done {
                return Ok(delivered);
            }
            progress.segments += 1;
        }
        Ok(if end < cutter.nr_segments() { Delivered::Part } else { Delivered::Done })
    }

    /// Delivers a packet with its checksum completed.
    fn copy_complete<G: Grants>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<G::Frame>,
        view: View<'_, G::Frame>,
    ) -> Result<Delivered, RingError> {
        let mut buffer = [0; HEADER_BYTES];
        let Some(view) = completed(&view, frames, &mut buffer) else { return Ok(Delivered::Unfit) };
        self.copy(grants, frames, view)
    }

    /// [`Self::copy`], of a packet for which one page is enough, as for most it is.
    #[inline(always)]
    fn copy_one<G: Grants>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<G::Frame>,
        view: View<'_, G::Frame>,
    ) -> Result<Delivered, RingError> {
        if self.room()? == 0 {
            return Ok(Delivered::NoRoom { slots: 1 });
        }
        let flags = flags_of(view.checksum);
        let [id, gref] = self.ring.request(0);
        #[allow(clippy::cast_possible_truncation, reason = "at most a page")]
        let len = view.len() as u16;
        let written = grants.use_once(gref, true, |frame| {
            frames.write(frame, 0, view.header);
            #[allow(clippy::cast_possible_truncation, reason = "headers are short")]
            let mut at = view.header.len() as u16;
            for piece in view.pieces() {
                frames.copy(piece.frame, piece.offset, frame, at, piece.len);
                at += piece.len;
            }
        });
        let status = match written {
            Ok(()) => {
                self.stats.packets += 1;
                self.stats.bytes += u64::from(len);
                len
            }
            Err(_) => {
                self.stats.errors += 1;
                u16::from_ne_bytes(XEN_NETIF_RSP_ERROR.to_ne_bytes())
            }
        };
        self.answer([id & 0xffff, u32::from(flags) | u32::from(status) << 16]);
        Ok(Delivered::Done)
    }

    #[inline(never)]
    fn copy<G: Grants>(
        &mut self,
        grants: &mut G,
        frames: &impl Frames<G::Frame>,
        view: View<'_, G::Frame>,
    ) -> Result<Delivered, RingError> {
        let len = view.len();
        let pages = len.div_ceil(PAGE);
        if pages > 1 && !self.accepts.sg || len == 0 {
            return Ok(Delivered::Unfit);
        }
        let slots = pages + u32::from(view.gso.is_some());
        if self.room()? < slots {
            return Ok(Delivered::NoRoom { slots });
        }
        let mut flags = flags_of(view.checksum);
        if view.gso.is_some() {
            flags |= XEN_NETRXF_EXTRA_INFO;
        }
        let mut source = Source::new(&view);
        let mut left = len;
        let mut is_bad = false;
        for page in 0..pages {
            let take = left.min(PAGE);
            left -= take;
            let more = if left > 0 { XEN_NETRXF_MORE_DATA } else { 0 };
            let [id, gref] = self.ring.request(0);
            #[allow(clippy::cast_possible_truncation, reason = "at most a page")]
            let take = take as u16;
            let written = grants.use_once(gref, true, |frame| {
                source.copy(take, |offset, part| match part {
                    Part::Bytes(bytes) => frames.write(frame, offset, bytes),
                    Part::Frame(from, at, n) => frames.copy(from, at, frame, offset, n),
                });
            });
            let status = match written {
                Ok(()) => take,
                Err(_) => {
                    is_bad = true;
                    source.copy(take, |_, _| ());
                    u16::from_ne_bytes(XEN_NETIF_RSP_ERROR.to_ne_bytes())
                }
            };
            self.answer([id & 0xffff, u32::from(flags | more) | u32::from(status) << 16]);
            flags = 0;
            if let (0, Some(gso)) = (page, view.gso) {
                self.answer(extra(gso));
            }
        }
        if is_bad {
            self.stats.errors += 1;
        } else {
            self.stats.packets += 1;
            self.stats.bytes += u64::from(len);
        }
        Ok(Delivered::Done)
    }

    /// Answers the next request where it lies.
    #[inline]
    fn answer(&mut self, response: [u32; 2]) {
        self.ring.consume(1);
        let is_room = self.ring.respond(response);
        debug_assert!(is_room, "a request was taken");
    }

    /// Lets the guest see what it has got. `true`: it wants an event.
    #[inline]
    pub fn push(&mut self) -> bool {
        self.ring.push()
    }

    /// Asks for an event when `slots` pages are posted. `true`: they are. To be called when a packet waits for them and
    /// at no other time: events that nobody needs cost.
    pub fn ask_for_event(&mut self, slots: u32) -> Result<bool, RingError> {
        if let Some(e) = self.dead {
            return Err(e);
        }
        self.ask(slots).inspect_err(|e| self.dead = Some(*e))
    }

    fn ask(&mut self, slots: u32) -> Result<bool, RingError> {
        if !self.few {
            return self.ring.ask_for_event(slots);
        }
        self.learn()?;
        // Not for each slot that it reads.
        let wanted = match self.posts.saturating_sub(MOST_UNREAD) {
            0 => slots,
            kept_free => kept_free + slots.max(MOST_UNREAD / 2),
        };
        let is_asked_for = self.ring.ask_for_event(wanted)?;
        Ok(is_asked_for || self.room()? >= slots)
    }
}

/// What a response says of its packet's checksum.
#[inline]
fn flags_of(checksum: Checksum) -> u16 {
    match checksum {
        Checksum::Unknown => 0,
        Checksum::Validated => XEN_NETRXF_DATA_VALIDATED,
        Checksum::Blank { .. } => XEN_NETRXF_CSUM_BLANK | XEN_NETRXF_DATA_VALIDATED,
    }
}

/// A response that says how the packet is cut.
fn extra(gso: Gso) -> [u32; 2] {
    let kind = match gso.kind {
        GsoKind::TcpV4 => XEN_NETIF_GSO_TYPE_TCPV4,
        GsoKind::TcpV6 => XEN_NETIF_GSO_TYPE_TCPV6,
        // No guest takes it.
        GsoKind::Udp => XEN_NETIF_GSO_TYPE_NONE,
    };
    [u32::from(XEN_NETIF_EXTRA_TYPE_GSO) | u32::from(gso.size) << 16, kind.into()]
}

enum Part<'a, F> {
    Bytes(&'a [u8]),
    /// Frame, offset, length.
    Frame(F, u16, u16),
}

/// Where a packet's next byte is.
struct Source<'a, F> {
    header: &'a [u8],
    fragments: &'a [crate::packet::Fragment<F>],
    /// Bytes of the first of `fragments` that are done.
    done: u32,
}

impl<'a, F: Copy> Source<'a, F> {
    #[inline]
    fn new(view: &View<'a, F>) -> Self {
        Source { header: view.header, fragments: view.fragments, done: view.skip }
    }

    /// Hands the next `n` bytes to `f`, piece by piece, each with its place among them.
    #[inline]
    fn copy(&mut self, n: u16, mut f: impl FnMut(u16, Part<'_, F>)) {
        let mut at = 0;
        if !self.header.is_empty() {
            let (bytes, rest) = self.header.split_at(self.header.len().min(n.into()));
            #[allow(clippy::cast_possible_truncation, reason = "at most n")]
            {
                at = bytes.len() as u16;
            }
            f(0, Part::Bytes(bytes));
            self.header = rest;
        }
        while at < n {
            let Some((first, rest)) = self.fragments.split_first() else { return };
            let left = u32::from(first.len).saturating_sub(self.done);
            if left == 0 {
                self.done -= u32::from(first.len);
                self.fragments = rest;
                continue;
            }
            #[allow(clippy::cast_possible_truncation, reason = "at most first.len")]
            let (offset, len) = (first.offset + self.done as u16, left.min(u32::from(n - at)) as u16);
            f(at, Part::Frame(first.frame, offset, len));
            at += len;
            self.done += u32::from(len);
        }
    }
}

#[cfg(test)]
mod tests;
