//! Handles: what a domain has mapped of others, in chunks that have memory only while it is needed.

use super::DomId;
use crate::room::Room;
use alloc::vec::Vec;

/// Handles per unit of the toolstack's limit ("maptrack frames").
const HANDLES_PER_FRAME: u32 = 256;
/// End of the free list.
const NONE: u32 = u32::MAX;

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Whose grant.
    pub granter: DomId,
    /// Which of the domains of that number: see [`super::GrantTable::incarnation`].
    pub incarnation: u32,
    /// Which.
    pub gref: u32,
    /// The frame, fixed as long as the handle lives.
    pub frame: u64,
    /// There is a mapping for CPUs.
    pub host: bool,
    /// There is one for devices.
    pub device: bool,
    /// For writing.
    pub writable: bool,
    /// Its place was named by the address of the page-table entry.
    pub by_entry: bool,
}

/// Parts of a mapping that were taken from its handle and are still pinned.
#[must_use = "the grant stays pinned until unmap_finish"]
#[derive(Debug)]
pub struct Retired {
    pub(super) handle: u32,
    /// What the handle stood for.
    pub mapping: Mapping,
    pub(super) host: bool,
    pub(super) device: bool,
    pub(super) last: bool,
}

impl Retired {
    /// Was this all that was left of the handle?
    pub const fn is_last(&self) -> bool {
        self.last
    }
}

enum Slot {
    /// The next free one.
    Free(u32),
    /// Taken, not (or no longer) a mapping.
    Reserved,
    Used(Mapping),
}

/// Handles in a chunk.
const CHUNK: u32 = 128;
const _: () = assert!(HANDLES_PER_FRAME.is_multiple_of(CHUNK));
/// Chunks for which there is a place from the first handle on.
const FIRST_CHUNKS: usize = 16;

/// Some of a domain's handles, which have memory only while one of them is taken.
struct Chunk {
    slots: Vec<Slot>,
    free: u32,
    taken: u32,
}

impl Chunk {
    const EMPTY: Chunk = Chunk { slots: Vec::new(), free: NONE, taken: 0 };

    fn has_room(&self) -> bool {
        self.taken < CHUNK
    }

    #[inline]
    fn allocate(&mut self) -> Option<u32> {
        let index = if let Some(slot @ Slot::Free(_)) = self.slots.get_mut(self.free as usize) {
            let Slot::Free(next) = core::mem::replace(slot, Slot::Reserved) else { return None };
            core::mem::replace(&mut self.free, next)
        } else {
            if self.slots.capacity() == 0 {
                self.slots.try_reserve_exact(CHUNK as usize).ok()?;
            }
            self.slots.push(Slot::Reserved);
            u32::try_from(self.slots.len()).ok()? - 1
        };
        self.taken += 1;
        Some(index)
    }

    fn free(&mut self, index: u32) {
        if let Some(slot @ Slot::Reserved) = self.slots.get_mut(index as usize) {
            *slot = Slot::Free(self.free);
            self.free = index;
            self.taken -= 1;
        }
        if self.taken == 0 {
            *self = Chunk::EMPTY;
        }
    }
}

/// A domain's handles. The lowest are used first, so that memory for many goes back when they are not needed any more.
pub struct Maptrack {
    chunks: Vec<Chunk>,
    /// All chunks below are full.
    room_from: usize,
    max: u32,
}

impl Maptrack {
    /// No handles yet, up to `max_frames` times 256.
    pub const fn new(max_frames: u32) -> Maptrack {
        Maptrack { chunks: Vec::new(), room_from: 0, max: max_frames.saturating_mul(HANDLES_PER_FRAME) }
    }

    /// Changes the limit. Handles above it stay.
    pub fn set_max_frames(&mut self, max_frames: u32) {
        self.max = max_frames.saturating_mul(HANDLES_PER_FRAME);
    }

    /// What a handle stands for, if it stands for anything.
    pub fn get(&self, handle: u32) -> Option<Mapping> {
        match self.chunks.get(chunk(handle))?.slots.get(index(handle))? {
            Slot::Used(mapping) if mapping.host || mapping.device => Some(*mapping),
            _ => None,
        }
    }

    /// Was the mapping's place named by the address of its page-table entry? `false` if there is no such handle.
    pub fn is_by_entry(&self, handle: u32) -> bool {
        self.get(handle).is_some_and(|m| m.by_entry)
    }

    /// Drops parts whose granter no longer exists.
    pub fn abandon(&mut self, retired: Retired) {
        if retired.last {
            self.free(retired.handle);
        }
    }

    /// The first handle from `from` on that stands for something, for taking all of them back in steps.
    pub fn next_used(&self, from: u32) -> Option<u32> {
        let chunks = (0u32..).zip(&self.chunks).skip(chunk(from));
        let slots = chunks.flat_map(|(n, chunk)| (n * CHUNK..).zip(&chunk.slots));
        let mut used =
            slots.filter(|(_, s)| matches!(s, Slot::Used(m) if m.host || m.device)).map(|(handle, _)| handle);
        used.find(|handle| *handle >= from)
    }

    /// Handles that are taken, and those that there is memory for.
    pub fn sizes(&self) -> (u32, usize) {
        (self.chunks.iter().map(|c| c.taken).sum(), self.chunks.iter().map(|c| c.slots.capacity()).sum())
    }

    /// The chunk that the next handle comes from.
    fn next_chunk(&self) -> usize {
        let rest = self.chunks.iter().enumerate().skip(self.room_from);
        { rest }.find(|(_, c)| c.has_room()).map_or(self.chunks.len(), |(n, _)| n)
    }

    /// Does the next handle want more memory?
    pub fn is_full(&self) -> bool {
        self.chunks.get(self.next_chunk()).is_none_or(|c| c.slots.capacity() == 0)
    }

    /// Takes memory for the next handle, if that wants more, and `room` lets it. `false`: it does not, or there is
    /// none.
    #[cold]
    pub fn make_room(&mut self, room: Room) -> bool {
        let at = self.next_chunk();
        // There is no such handle: whoever asks for it is told so.
        if !self.is_full() || self.first_handle(at).is_none() {
            return true;
        }
        let list = if at == self.chunks.capacity() { at.max(FIRST_CHUNKS) * 2 * size_of::<Chunk>() } else { 0 };
        room(list + CHUNK as usize * size_of::<Slot>(), &mut || {
            self.make_chunk(at).is_some_and(|chunk| chunk.slots.try_reserve_exact(CHUNK as usize).is_ok())
        })
    }

    /// The first handle of this chunk, if the limit allows it.
    #[inline]
    fn first_handle(&self, chunk: usize) -> Option<u32> {
        u32::try_from(chunk).ok()?.checked_mul(CHUNK).filter(|first| *first < self.max)
    }

    /// This chunk, which is there or is the next.
    #[inline]
    fn make_chunk(&mut self, at: usize) -> Option<&mut Chunk> {
        if at == self.chunks.len() {
            if at == self.chunks.capacity() {
                self.chunks.try_reserve(FIRST_CHUNKS).ok()?;
            }
            self.chunks.push(Chunk::EMPTY);
        }
        self.chunks.get_mut(at)
    }

    #[inline]
    pub(super) fn allocate(&mut self) -> Option<u32> {
        let at = self.next_chunk();
        let first = self.first_handle(at)?;
        self.room_from = at;
        Some(first + self.make_chunk(at)?.allocate()?)
    }

    fn slot_mut(&mut self, handle: u32) -> Option<&mut Slot> {
        self.chunks.get_mut(chunk(handle))?.slots.get_mut(index(handle))
    }

    pub(super) fn set(&mut self, handle: u32, mapping: Mapping) {
        if let Some(slot @ Slot::Reserved) = self.slot_mut(handle) {
            *slot = Slot::Used(mapping);
        }
    }

    /// Takes the wanted parts off a handle: nobody else can take them again. `None` if there are none of them.
    pub fn retire(&mut self, handle: u32, host: bool, device: bool) -> Option<Retired> {
        let Some(slot @ Slot::Used(_)) = self.slot_mut(handle) else { return None };
        let Slot::Used(m) = slot else { return None };
        let mapping = *m;
        let (host, device) = (host && m.host, device && m.device);
        if !host && !device {
            return None;
        }
        m.host &= !host;
        m.device &= !device;
        let last = !m.host && !m.device;
        if last {
            *slot = Slot::Reserved;
        }
        Some(Retired { handle, mapping, host, device, last })
    }

    pub(super) fn free(&mut self, handle: u32) {
        if let Some(chunk) = self.chunks.get_mut(chunk(handle)) {
            chunk.free(handle % CHUNK);
            self.room_from = self.room_from.min(self::chunk(handle));
        }
        // One that was given room for a handle that is about to be made stays.
        while self.chunks.last().is_some_and(|c| c.taken == 0 && c.slots.capacity() == 0) {
            self.chunks.pop();
        }
        if self.chunks.is_empty() {
            *self = Self { chunks: Vec::new(), room_from: 0, max: self.max };
        }
    }
}

/// The chunk of a handle.
const fn chunk(handle: u32) -> usize {
    (handle / CHUNK) as usize
}

/// Its place there.
const fn index(handle: u32) -> usize {
    (handle % CHUNK) as usize
}

#[cfg(test)]
mod tests {
    use super::Maptrack;

    #[test]
    fn the_last_handle_takes_all_memory_with_it() {
        let mut m = Maptrack::new(1);
        for _ in 0..2 {
            let handles = [m.allocate().unwrap(), m.allocate().unwrap()];
            assert_eq!(handles, [0, 1]);
            handles.into_iter().for_each(|handle| m.free(handle));
            assert_eq!(m.chunks.capacity(), 0);
        }
    }
}
