//! Handles: what a domain has mapped of others.

use super::DomId;
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

/// A domain's handles.
pub struct Maptrack {
    slots: Vec<Slot>,
    free: u32,
    max: u32,
}

impl Maptrack {
    /// No handles yet, up to `max_frames` times 256.
    pub const fn new(max_frames: u32) -> Maptrack {
        Maptrack { slots: Vec::new(), free: NONE, max: max_frames.saturating_mul(HANDLES_PER_FRAME) }
    }

    /// Changes the limit. Handles above it stay.
    pub fn set_max_frames(&mut self, max_frames: u32) {
        self.max = max_frames.saturating_mul(HANDLES_PER_FRAME);
    }

    /// What a handle stands for, if it stands for anything.
    pub fn get(&self, handle: u32) -> Option<Mapping> {
        match self.slots.get(handle as usize)? {
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
        let slots = self.slots.iter().enumerate().skip(from as usize);
        { slots }.find(|(_, s)| matches!(s, Slot::Used(m) if m.host || m.device)).and_then(|(n, _)| n.try_into().ok())
    }

    /// Does the next handle want more memory?
    pub fn is_full(&self) -> bool {
        !matches!(self.slots.get(self.free as usize), Some(Slot::Free(_))) && self.slots.len() == self.slots.capacity()
    }

    pub(super) fn allocate(&mut self) -> Option<u32> {
        if let Some(Slot::Free(next)) = self.slots.get(self.free as usize) {
            let handle = core::mem::replace(&mut self.free, *next);
            self.slots[handle as usize] = Slot::Reserved;
            return Some(handle);
        }
        let handle = u32::try_from(self.slots.len()).ok().filter(|n| *n < self.max)?;
        self.slots.try_reserve(1).ok()?;
        self.slots.push(Slot::Reserved);
        Some(handle)
    }

    pub(super) fn set(&mut self, handle: u32, mapping: Mapping) {
        if let Some(slot @ Slot::Reserved) = self.slots.get_mut(handle as usize) {
            *slot = Slot::Used(mapping);
        }
    }

    /// Takes the wanted parts off a handle: nobody else can take them again. `None` if there are none of them.
    pub fn retire(&mut self, handle: u32, host: bool, device: bool) -> Option<Retired> {
        let Some(slot @ Slot::Used(_)) = self.slots.get_mut(handle as usize) else { return None };
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
        if let Some(slot @ Slot::Reserved) = self.slots.get_mut(handle as usize) {
            *slot = Slot::Free(self.free);
            self.free = handle;
        }
    }
}
