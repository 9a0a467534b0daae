//! What comes from the wire, and what the driver is done with.

use super::attached::Attached;
use super::link::{hooks, Card, Checksum, Hooks, Piece, Said, CHECKSUM_UNNECESSARY};
use crate::cpu::requests;
use crate::twin::common::Common;
use crate::twin::frames::Frames;
use twin_runtime::linux::inbox::Inbox;
use twin_runtime::linux::skb::Frame;
use twin_runtime::Memory;
use x86::{Mfn, PAGE_SIZE};

/// Pages for frames that are not in one lent buffer: the longest that are one for many have 64 KiB and their headers.
const BOUNCE_PAGES: usize = 17;
/// Bytes of a VLAN tag.
const TAG: u16 = 4;
/// Bytes before a VLAN tag.
const ADDRESSES: usize = 12;
const MOST: usize = BOUNCE_PAGES * PAGE_SIZE;

/// What is on its way from a lane of a card to those who send and receive.
pub struct Passing {
    /// Frames that have come, in the order in which they came.
    inbox: Inbox,
    /// What the driver is done with.
    done: Cookies,
    /// Room for a frame that does not lie in one lent buffer.
    bounce: Frames,
}

impl Passing {
    /// Frames that it takes, beside itself: the list of those for frames that are in pieces, and they.
    pub const FRAMES: usize = 1 + BOUNCE_PAGES;

    /// Nothing. `None` when out of memory.
    pub fn new() -> Option<Self> {
        Some(Self { inbox: Inbox::default(), done: Cookies::default(), bounce: Frames::new(BOUNCE_PAGES)? })
    }
}

/// A lane of a card, to a session in its twin.
pub struct OnCard<'a> {
    /// The card.
    pub attached: &'a Attached,
    /// What is on its way from it.
    pub passing: &'a mut Passing,
}

impl OnCard<'_> {
    /// [`Self::receive`], if the frame can be kept at once. `false`: nothing was done.
    #[inline(always)]
    pub fn keep(&mut self, frame: Frame<'_>, common: &Common) -> bool {
        let inbox = &mut self.passing.inbox;
        !inbox.is_full() && common.with_pool(|pool| inbox.keep(pool, frame))
    }

    /// The driver hands `frame` over. One that lies in a lent buffer is kept, and passed on with others; of others
    /// there is a copy, which is passed on at once. What is longer than all that there is room for, is not there, or
    /// cannot be cut, is lost. `true`: it is kept.
    #[cold]
    #[inline(never)]
    pub fn receive(&mut self, frame: Frame<'_>, common: &Common, memory: &impl Memory) -> bool {
        let was_full = self.passing.inbox.is_full();
        self.pass_on(common);
        let inbox = &mut self.passing.inbox;
        if was_full && common.with_pool(|pool| inbox.keep(pool, frame)) {
            return true;
        }
        Source { card: self.attached.card, bounce: &self.passing.bounce, common, memory }.receive(&frame);
        false
    }

    /// Are there packets that are kept?
    pub fn keeps(&self) -> bool {
        !self.passing.inbox.kept().is_empty()
    }

    /// Passes on what was kept.
    #[inline]
    pub fn pass_on(&mut self, common: &Common) {
        if self.keeps() {
            self.pass_on_kept(common);
        }
    }

    #[inline(never)]
    fn pass_on_kept(&mut self, common: &Common) {
        let inbox = &mut self.passing.inbox;
        if let Some(hooks) = hooks() {
            (hooks.received)(self.attached.card, inbox.kept());
        }
        common.with_pool(|pool| inbox.let_go(pool));
    }

    /// The driver is done with a packet.
    #[inline]
    pub fn sent(&mut self, cookie: u64) {
        self.passing.done.push(self.attached.card, cookie);
    }

    /// Passes everything on.
    pub fn finish(&mut self, common: &Common) {
        self.pass_on(common);
        self.passing.done.flush(self.attached.card);
    }
}

const NO_PIECE: Piece = Piece { frame: Mfn::new(0), offset: 0, len: 0 };

/// What is to be known of a frame. `None`: it is one for many of a kind that cannot be cut here.
fn said_of(frame: &Frame<'_>) -> Option<Said> {
    // A tag that is put in comes before all this.
    let tag = if frame.tag.is_some() { TAG } else { 0 };
    let blank = frame.blank.map(|(start, field)| Checksum {
        start: start.saturating_add(tag),
        // It is not before that.
        offset: field.saturating_sub(start),
    });
    let many = frame.many().ok()?;
    Some(Said { is_verified: frame.ip_summed == CHECKSUM_UNNECESSARY, blank, many })
}

/// What hands over a frame that is not kept: the card, where it is copied to, what its twin knows, and the domain's
/// memory.
struct Source<'a, M> {
    card: Card,
    bounce: &'a Frames,
    common: &'a Common,
    memory: &'a M,
}

impl<M: Memory> Source<'_, M> {
    fn receive(&self, frame: &Frame<'_>) {
        let Some(hooks) = hooks() else { return };
        if self.pass_on(frame, hooks).is_none() {
            (hooks.lost)(self.card);
        }
    }

    /// `None`: it cannot be passed on.
    #[allow(clippy::cast_possible_truncation, reason = "at most a page")]
    fn pass_on(&self, frame: &Frame<'_>, hooks: &Hooks) -> Option<()> {
        let said = said_of(frame)?;
        let mut pieces = [NO_PIECE; BOUNCE_PAGES];
        let len = self.copy(frame)?;
        let mut left = len;
        let mut count = 0;
        for (to, mfn) in pieces.iter_mut().zip(self.bounce.all()).take(len.div_ceil(PAGE_SIZE)) {
            *to = Piece::at(mfn.addr().raw(), left.min(PAGE_SIZE) as u16);
            left -= left.min(PAGE_SIZE);
            count += 1;
        }
        (hooks.received_in_pieces)(self.card, &pieces[..count], &said);
        Some(())
    }

    /// Copies `frame` into pages of the hypervisor's own; how many bytes. `None`: too many, or they are not there.
    fn copy(&self, frame: &Frame<'_>) -> Option<usize> {
        let mut done = 0;
        let (mut at, mut len) = (frame.mac_header, frame.len as usize);
        if let Some(tag) = frame.tag {
            done = self.append(0, at, ADDRESSES)?;
            self.bounce.put(done, &tag);
            done += tag.len();
            (at, len) = (at.wrapping_add(ADDRESSES as u64), len.checked_sub(ADDRESSES)?);
        }
        done = self.append(done, at, len)?;
        for fragment in frame.fragments {
            let address = self.common.support.page_address(fragment.page)?.wrapping_add(fragment.offset.into());
            done = self.append(done, address, fragment.len as usize)?;
        }
        Some(done)
    }

    /// Copies `len` bytes of the domain's at `address` behind the first `done`; how many there are then.
    fn append(&self, mut done: usize, mut address: u64, len: usize) -> Option<usize> {
        let end = done.checked_add(len).filter(|end| *end <= MOST)?;
        let mut chunk = [0; 256];
        while done < end {
            if done.is_multiple_of(PAGE_SIZE) {
                // It may be registers of a device.
                requests::answer();
            }
            let now = (end - done).min(chunk.len()).min(PAGE_SIZE - done % PAGE_SIZE);
            self.memory.read(address, &mut chunk[..now]).ok()?;
            self.bounce.put(done, &chunk[..now]);
            done += now;
            address = address.wrapping_add(now as u64);
        }
        Some(done)
    }
}

/// Cookies that go back together.
const AT_ONCE: usize = 32;

/// Cookies of packets that the driver is done with. They go back when there are many, or at the end of a session.
#[derive(Default)]
struct Cookies {
    list: [u64; AT_ONCE],
    count: usize,
}

impl Cookies {
    /// One more, of a packet that `card` has sent.
    #[inline]
    fn push(&mut self, card: Card, cookie: u64) {
        self.list[self.count] = cookie;
        self.count += 1;
        if self.count == AT_ONCE {
            self.flush(card);
        }
    }

    fn flush(&mut self, card: Card) {
        let count = core::mem::take(&mut self.count);
        if let (Some(hooks), 1..) = (hooks(), count) {
            (hooks.transmitted)(card, &self.list[..count]);
        }
    }
}
