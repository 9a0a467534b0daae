//! What comes from the wire, and what the driver is done with.

use super::attached::Attached;
use super::link::{hooks, Card, Piece, Received};
use crate::twin::common::Common;
use twin_runtime::linux::skb::Frame;
use twin_runtime::Memory;
use x86::{MachAddr, Mfn, PAGE_SIZE};

/// `ip_summed`: the card found the checksum right.
const CHECKSUM_UNNECESSARY: u8 = 1;
/// Pages for frames that are not in one lent buffer.
pub const BOUNCE_PAGES: usize = 4;
/// Bytes before a VLAN tag.
const ADDRESSES: usize = 12;
const MOST: usize = BOUNCE_PAGES * PAGE_SIZE;

/// What hands frames over: the card, what its twin knows, and the domain's memory.
pub struct Source<'a, M> {
    /// The card.
    pub card: &'a Attached,
    /// What is known of its buffers.
    pub common: &'a Common,
    /// The domain's memory.
    pub memory: &'a M,
}

impl<M: Memory> Source<'_, M> {
    /// The driver hands `frame` over. One that lies in a lent buffer is passed on as it is; of others, and of those whose VLAN tag the card
    /// took out, there is a copy. What is longer than all that there is room for, or is not there, is lost.
    pub fn receive(&self, frame: &Frame) {
        let Some(hooks) = hooks() else { return };
        let is_verified = frame.ip_summed == CHECKSUM_UNNECESSARY;
        let lent = |len| self.common.with_pool(|pool| pool.machine_address(frame.skb, frame.mac_header, len));
        let whole = (frame.nr_fragments == 0 && frame.tag.is_none()).then(|| lent(frame.len.into())).flatten();
        if let Some(at) = whole {
            return (hooks.received)(
                self.card.card,
                &Received { pieces: &[piece(at, frame.len as usize)], is_verified },
            );
        }
        let mut pieces = [piece(0, 0); BOUNCE_PAGES];
        let Some(len) = self.copy(frame) else { return };
        let mut left = len;
        let mut count = 0;
        for (to, mfn) in pieces.iter_mut().zip(self.card.bounce.all()).take(len.div_ceil(PAGE_SIZE)) {
            *to = piece(mfn.addr().raw(), left.min(PAGE_SIZE));
            left -= left.min(PAGE_SIZE);
            count += 1;
        }
        (hooks.received)(self.card.card, &Received { pieces: &pieces[..count], is_verified });
    }

    /// Copies `frame` into pages of the hypervisor's own; how many bytes. `None`: too many, or they are not there.
    fn copy(&self, frame: &Frame) -> Option<usize> {
        let mut done = 0;
        let (mut at, mut len) = (frame.mac_header, frame.len as usize);
        if let Some(tag) = frame.tag {
            done = self.append(0, at, ADDRESSES)?;
            self.card.bounce.put(done, &tag);
            done += tag.len();
            (at, len) = (at.wrapping_add(ADDRESSES as u64), len.checked_sub(ADDRESSES)?);
        }
        done = self.append(done, at, len)?;
        for fragment in frame.fragments.get(..frame.nr_fragments)? {
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
            let now = (end - done).min(chunk.len()).min(PAGE_SIZE - done % PAGE_SIZE);
            self.memory.read(address, &mut chunk[..now]).ok()?;
            self.card.bounce.put(done, &chunk[..now]);
            done += now;
            address = address.wrapping_add(now as u64);
        }
        Some(done)
    }
}

/// `len` bytes at machine address `at`, in one frame.
#[allow(clippy::cast_possible_truncation, reason = "in one frame")]
fn piece(at: u64, len: usize) -> Piece {
    let at = MachAddr::new(at);
    Piece { frame: Mfn::containing(at), offset: at.page_offset() as u16, len: len as u16 }
}

/// Cookies that go back together.
const AT_ONCE: usize = 32;

/// Cookies of packets that the driver is done with. They go back when there are many, or when this is dropped.
pub struct Cookies {
    card: Option<Card>,
    list: [u64; AT_ONCE],
    count: usize,
}

impl Cookies {
    /// Of packets that `card` sends.
    pub fn new(card: Option<&Attached>) -> Self {
        Self { card: card.map(|card| card.card), list: [0; AT_ONCE], count: 0 }
    }

    /// One more.
    pub fn push(&mut self, cookie: u64) {
        self.list[self.count] = cookie;
        self.count += 1;
        if self.count == AT_ONCE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let count = core::mem::take(&mut self.count);
        if let (Some(card), Some(hooks), 1..) = (self.card, hooks(), count) {
            (hooks.transmitted)(card, &self.list[..count]);
        }
    }
}

impl Drop for Cookies {
    fn drop(&mut self) {
        self.flush();
    }
}
