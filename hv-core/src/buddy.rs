//! The frame allocator: a binary buddy system over all of memory, in zones by address width.
//!
//! A free block's list links live in the block's own first page, and one byte a frame says whether a free block of
//! which order starts there: allocation and release touch a few words, and the whole structure costs 256 KiB per GiB.
//! Both are reached through [`Storage`], so that this file needs no privilege and its tests no memory.
//!
//! Zone 0 is memory below 16 MiB, zone z memory between 2^(23+z) and 2^(24+z) bytes. A block never crosses a zone's
//! border. Allocation starts at the highest zone allowed, so memory that limited devices can reach is used last.

/// Largest block: 2^20 frames, 4 GiB.
pub const MAX_ORDER: u32 = 20;
/// Zones; the last ends at 8 TiB.
pub const ZONES: usize = 20;
/// Address bits of zone 0.
const ZONE0_ADDRESS_BITS: u32 = 24;
const ZONE0_FRAME_BITS: u32 = ZONE0_ADDRESS_BITS - 12;
const ORDERS: usize = MAX_ORDER as usize + 1;
/// No block: ends a list.
const NONE: u64 = u64::MAX;

/// Neighbours of a free block in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Links {
    next: u64,
    prev: u64,
}

/// Where the allocator keeps what it knows about frames.
pub trait Storage {
    /// The links in the first page of the free block at `frame`.
    fn links(&self, frame: u64) -> Links;
    /// Stores them.
    fn set_links(&mut self, frame: u64, links: Links);
    /// The frame's tag, zero for a frame that does not exist.
    fn tag(&self, frame: u64) -> u8;
    /// Stores the tag of a frame that exists.
    fn set_tag(&mut self, frame: u64, tag: u8);
}

/// Free memory.
#[derive(Debug)]
pub struct Buddy<S> {
    storage: S,
    heads: [[u64; ORDERS]; ZONES],
    /// Bit o of entry z: zone z has a free block of order o.
    nonempty: [u32; ZONES],
    free_in_zone: [u64; ZONES],
}

/// The zone of `frame`.
#[inline]
const fn zone_of(frame: u64) -> usize {
    let bits = u64::BITS - frame.leading_zeros();
    let zone = bits.saturating_sub(ZONE0_FRAME_BITS) as usize;
    if zone < ZONES {
        zone
    } else {
        ZONES - 1
    }
}

#[inline]
#[allow(clippy::cast_possible_truncation, reason = "orders are at most MAX_ORDER")]
const fn tag_of(order: u32) -> u8 {
    order as u8 + 1
}

impl<S: Storage> Buddy<S> {
    /// No memory yet. `storage` must have zero tags.
    pub const fn new(storage: S) -> Self {
        Self { storage, heads: [[NONE; ORDERS]; ZONES], nonempty: [0; ZONES], free_in_zone: [0; ZONES] }
    }

    /// The storage.
    pub const fn storage(&self) -> &S {
        &self.storage
    }

    /// Takes a block of 2^`order` frames, aligned to its size, all below 2^`address_bits` bytes. Its contents are
    /// whatever they were.
    #[inline]
    pub fn alloc(&mut self, order: u32, address_bits: u32) -> Option<u64> {
        if order > MAX_ORDER || address_bits < ZONE0_ADDRESS_BITS {
            return None;
        }
        let zones = ((address_bits - ZONE0_ADDRESS_BITS + 1) as usize).min(ZONES);
        let zone = (0..zones).rev().find(|&zone| self.nonempty[zone] >> order != 0)?;
        let mut from = order + (self.nonempty[zone] >> order).trailing_zeros();
        let frame = self.heads[zone][from as usize];
        self.unlink(zone, from, frame);
        while from > order {
            from -= 1;
            self.link(zone, from, frame + (1 << from));
        }
        self.free_in_zone[zone] -= 1 << order;
        Some(frame)
    }

    /// Gives back a block of 2^`order` frames at `frame`, which joins its neighbours where those are free.
    ///
    /// The block must be aligned to its size and be in use: whoever owns frames guarantees that.
    #[inline]
    pub fn free(&mut self, mut frame: u64, mut order: u32) {
        debug_assert!(order <= MAX_ORDER && frame.trailing_zeros() >= order);
        debug_assert!(self.storage.tag(frame) == 0, "frame {frame:#x} is free already");
        let zone = zone_of(frame);
        self.free_in_zone[zone] += 1 << order;
        while order < MAX_ORDER {
            let buddy = frame ^ (1 << order);
            if self.storage.tag(buddy) != tag_of(order) || zone_of(buddy) != zone {
                break;
            }
            self.unlink(zone, order, buddy);
            frame &= !(1 << order);
            order += 1;
        }
        self.link(zone, order, frame);
    }

    /// Gives back all frames of `start..end`, of any alignment.
    pub fn free_range(&mut self, mut start: u64, end: u64) {
        while start < end {
            let fits = (end - start).ilog2();
            // Only the block at 0 could be aligned so well that it reaches into the next zone.
            let aligned = if start == 0 { ZONE0_FRAME_BITS } else { start.trailing_zeros() };
            let order = fits.min(aligned).min(MAX_ORDER);
            self.free(start, order);
            start += 1 << order;
        }
    }

    /// Calls `f` for each free block that starts below `end`: its first frame and order.
    pub fn for_each_block(&self, end: u64, mut f: impl FnMut(u64, u32)) {
        for frame in 0..end {
            if let Some(order) = self.storage.tag(frame).checked_sub(1) {
                f(frame, order.into());
            }
        }
    }

    /// Free frames in all.
    pub fn free_frames(&self) -> u64 {
        self.free_in_zone.iter().sum()
    }

    /// Free frames below 2^`address_bits` bytes.
    pub fn free_frames_below(&self, address_bits: u32) -> u64 {
        let zones = ((address_bits + 1).saturating_sub(ZONE0_ADDRESS_BITS) as usize).min(ZONES);
        self.free_in_zone[..zones].iter().sum()
    }

    /// The largest order that can be allocated now.
    pub fn largest_order(&self) -> Option<u32> {
        self.nonempty.iter().fold(0, |all, mask| all | mask).checked_ilog2()
    }

    #[inline]
    fn link(&mut self, zone: usize, order: u32, frame: u64) {
        let head = self.heads[zone][order as usize];
        self.storage.set_tag(frame, tag_of(order));
        self.storage.set_links(frame, Links { next: head, prev: NONE });
        if head != NONE {
            let links = self.storage.links(head);
            self.storage.set_links(head, Links { prev: frame, ..links });
        }
        self.heads[zone][order as usize] = frame;
        self.nonempty[zone] |= 1 << order;
    }

    #[inline]
    fn unlink(&mut self, zone: usize, order: u32, frame: u64) {
        let Links { next, prev } = self.storage.links(frame);
        self.storage.set_tag(frame, 0);
        if next != NONE {
            let links = self.storage.links(next);
            self.storage.set_links(next, Links { prev, ..links });
        }
        if prev != NONE {
            let links = self.storage.links(prev);
            self.storage.set_links(prev, Links { next, ..links });
            return;
        }
        self.heads[zone][order as usize] = next;
        if next == NONE {
            self.nonempty[zone] &= !(1 << order);
        }
    }
}

#[cfg(test)]
#[path = "buddy_tests.rs"]
mod tests;
