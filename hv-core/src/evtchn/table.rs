//! The ports of a domain, in chunks that are added when a higher port is needed and go back when all above are free.

use super::{Binding, DomId};
use crate::room::Room;
use alloc::vec::Vec;
use xen_abi::errno::Errno;
use xen_abi::event::Port;

const CHUNK: usize = 128;
/// Chunks for which there is a place from the first on.
const FIRST_CHUNKS: usize = 16;
/// `FIFO_PRIORITY_DEFAULT` as it is stored.
const DEFAULT_PRIORITY: u8 = 7;
const _: () = assert!(DEFAULT_PRIORITY as u32 == xen_abi::event::FIFO_PRIORITY_DEFAULT);

/// One port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    pub binding: Binding,
    /// The vCPU that is told.
    pub notify: u16,
    pub priority: u8,
    /// FIFO: the queue that it was last put on.
    pub queued_on: (u16, u8),
    /// FIFO: it has an event, but its word is not there yet.
    pub pending: bool,
    /// A physical interrupt that has been a card's since it was bound.
    pub is_cards: bool,
}

impl Channel {
    const FREE: Channel = Channel {
        binding: Binding::Free,
        notify: 0,
        priority: DEFAULT_PRIORITY,
        queued_on: (0, DEFAULT_PRIORITY),
        pending: false,
        is_cards: false,
    };

    /// Is it connected to port `port` of `dom`?
    pub fn is_peer(&self, dom: DomId, port: Port) -> bool {
        self.binding == Binding::Interdomain { dom, port }
    }

    /// Forgets all but the queue that it may still be on.
    pub fn release(&mut self) {
        *self = Channel { queued_on: self.queued_on, ..Channel::FREE };
    }
}

pub(super) struct PortTable {
    chunks: Vec<Vec<Channel>>,
}

impl PortTable {
    pub const fn new() -> PortTable {
        PortTable { chunks: Vec::new() }
    }

    /// One past the highest port that exists.
    pub fn end(&self) -> Port {
        // At most 131072, see `EventChannels::limit`.
        u32::try_from(self.chunks.len() * CHUNK).unwrap_or(u32::MAX)
    }

    #[inline]
    pub fn get(&self, port: Port) -> Option<&Channel> {
        self.chunks.get(port as usize / CHUNK)?.get(port as usize % CHUNK)
    }

    #[inline]
    pub fn get_mut(&mut self, port: Port) -> Option<&mut Channel> {
        self.chunks.get_mut(port as usize / CHUNK)?.get_mut(port as usize % CHUNK)
    }

    /// Adds a chunk, if there is `room`. What it was before is forgotten, so the caller notes which of its ports still
    /// end a queue.
    pub fn grow(&mut self, room: Room) -> Result<(), Errno> {
        let is_full = self.chunks.len() == self.chunks.capacity();
        let more = if is_full { self.chunks.len().max(FIRST_CHUNKS) } else { 0 };
        let places = if is_full { (self.chunks.len() + more) * size_of::<Vec<Channel>>() } else { 0 };
        let mut add = || self.add(more).is_some();
        room(CHUNK * size_of::<Channel>() + places, &mut add).then_some(()).ok_or(Errno::ENOMEM)
    }

    /// Adds a chunk, after places for `more`.
    fn add(&mut self, more: usize) -> Option<()> {
        let mut chunk = Vec::new();
        chunk.try_reserve_exact(CHUNK).ok()?;
        chunk.resize(CHUNK, Channel::FREE);
        self.chunks.try_reserve_exact(more).ok()?;
        self.chunks.push(chunk);
        Some(())
    }

    /// Another with the same ports; `room` is asked for each chunk. `ENOMEM`.
    pub fn try_clone(&self, room: Room) -> Result<PortTable, Errno> {
        let mut chunks = Vec::new();
        chunks.try_reserve(self.chunks.len()).map_err(|_| Errno::ENOMEM)?;
        for chunk in &self.chunks {
            let mut copy = Vec::new();
            let mut take = || copy.try_reserve_exact(CHUNK).is_ok();
            room(CHUNK * size_of::<Channel>(), &mut take).then_some(()).ok_or(Errno::ENOMEM)?;
            copy.extend_from_slice(chunk);
            chunks.push(copy);
        }
        Ok(PortTable { chunks })
    }

    /// Makes the ports those of `other`. Only where there are fewer it takes memory. `ENOMEM`: nothing has changed but
    /// that there may be more.
    pub fn assign(&mut self, other: &PortTable, room: Room) -> Result<(), Errno> {
        while self.chunks.len() < other.chunks.len() {
            self.grow(room)?;
        }
        self.chunks.truncate(other.chunks.len());
        for (chunk, then) in self.chunks.iter_mut().zip(&other.chunks) {
            chunk.copy_from_slice(then);
        }
        Ok(())
    }

    /// No port waits for its word, and none is a card's.
    pub fn forget_pending(&mut self) {
        for ch in self.chunks.iter_mut().flatten() {
            (ch.pending, ch.is_cards) = (false, false);
        }
    }

    /// Gives back the last chunks, as far as no port of them is open; the first stays.
    pub fn shrink(&mut self) {
        let is_free = |chunk: &Vec<Channel>| chunk.iter().all(|ch| ch.binding == Binding::Free);
        while self.chunks.len() > 1 && self.chunks.last().is_some_and(is_free) {
            self.chunks.pop();
        }
    }
}
