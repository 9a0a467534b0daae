//! Received packets that the host keeps for a while, to pass on many at once.
//!
//! What is kept is nobody else's: the driver, which has handed it over, cannot give it back a second time, and the
//! domain cannot take it back.

use super::pool::Pool;
use super::skb::Frame;

/// Most that are kept.
pub const MOST: usize = 32;

/// A packet that is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    skb: u64,
    head: u64,
    /// Where its Ethernet header is in the machine. All of it lies in one lent buffer.
    pub machine: u64,
    /// Bytes.
    pub len: u32,
    /// [`Frame::ip_summed`].
    pub ip_summed: u8,
}

/// Packets in the order in which they came.
#[derive(Debug)]
pub struct Inbox {
    list: [Kept; MOST],
    count: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { list: [Kept::default(); MOST], count: 0 }
    }
}

impl Inbox {
    /// Keeps a packet that lies in one lent buffer, without a tag, and is as it would be on a wire. `false`: it is not,
    /// or there is no room, and nothing was done.
    #[inline(always)]
    pub fn keep(&mut self, pool: &mut Pool, frame: Frame<'_>) -> bool {
        let is_as_on_wire = frame.blank.is_none() && frame.segmentation.is_none();
        let is_plain = frame.fragments.is_empty() && frame.tag.is_none() && is_as_on_wire;
        let Some(place) = self.list.get_mut(self.count).filter(|_| is_plain) else { return false };
        let (skb, head, len) = (frame.skb, frame.head, frame.len);
        let Some(machine) = pool.keep(skb, head, frame.mac_header, len.into()) else { return false };
        *place = Kept { skb, head, machine, len, ip_summed: frame.ip_summed };
        self.count += 1;
        true
    }

    /// Is there room for no more?
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count == MOST
    }

    /// Those that are kept.
    #[must_use]
    pub fn kept(&self) -> &[Kept] {
        self.list.get(..self.count).unwrap_or_default()
    }

    /// Gives all buffers back.
    pub fn let_go(&mut self, pool: &mut Pool) {
        let count = core::mem::take(&mut self.count);
        for kept in self.list.iter().take(count) {
            pool.let_go(kept.skb, kept.head);
        }
    }
}
