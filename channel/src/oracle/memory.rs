//! Memory of a few guests, and their grants.

use crate::grants::{Frames, GntStatus, Grants};
use crate::offload::checksum::Eights;
use core::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

/// All frames. Frame 0 is nobody's: it stands for "none".
#[derive(Clone, Default)]
pub struct Memory(Rc<RefCell<Vec<[u8; 4096]>>>);

impl Memory {
    /// `nr_frames` frames.
    pub fn new(nr_frames: usize) -> Memory {
        Memory(Rc::new(RefCell::new(std::vec![[0; 4096]; nr_frames])))
    }

    /// The sum as the dullest code has it.
    fn slow_sum(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }
}

impl Frames<u32> for Memory {
    fn read(&self, frame: u32, offset: u16, to: &mut [u8]) {
        assert_ne!(frame, 0, "a frame that nobody gave");
        let from = usize::from(offset);
        to.copy_from_slice(&self.0.borrow()[frame as usize][from..from + to.len()]);
    }

    fn write(&self, frame: u32, offset: u16, from: &[u8]) {
        assert_ne!(frame, 0, "a frame that nobody gave");
        let to = usize::from(offset);
        self.0.borrow_mut()[frame as usize][to..to + from.len()].copy_from_slice(from);
    }

    fn copy(&self, from: u32, from_offset: u16, to: u32, to_offset: u16, len: u16) {
        let mut bytes = std::vec![0; len.into()];
        self.read(from, from_offset, &mut bytes);
        self.write(to, to_offset, &bytes);
    }

    fn sum(&self, frame: u32, offset: u16, len: u16) -> Eights {
        let mut bytes = std::vec![0; len.into()];
        self.read(frame, offset, &mut bytes);
        let mut sum = Eights::default();
        sum.add(u64::from(Memory::slow_sum(&bytes).to_be()));
        sum
    }
}

#[derive(Clone, Copy, Default)]
struct Entry {
    frame: u32,
    is_granted: bool,
    is_writable: bool,
    reads: u32,
    writes: u32,
}

/// A guest's grants to its back end, and its free frames. Clones are the same guest.
#[derive(Clone)]
pub struct Guest(Rc<RefCell<Inner>>);

struct Inner {
    entries: Vec<Entry>,
    free_entries: Vec<u32>,
    free_frames: Vec<u32>,
    /// Every so many-th pin fails, as if the frame could not be used.
    fail_every: u32,
    nr_pins: u32,
}

impl Guest {
    /// A guest with these frames.
    pub fn new(frames: core::ops::Range<u32>) -> Guest {
        let n = frames.len();
        let free_entries = (0..n as u32).rev().collect();
        let inner = Inner {
            entries: std::vec![Entry::default(); n],
            free_entries,
            free_frames: frames.collect(),
            fail_every: 0,
            nr_pins: 0,
        };
        Guest(Rc::new(RefCell::new(inner)))
    }

    /// From now on every `n`-th use of a grant fails; 0: none does.
    pub fn fail_every(&self, n: u32) {
        self.0.borrow_mut().fail_every = n;
    }

    /// A frame, granted. `None`: there is none left.
    pub fn grant(&self, is_writable: bool) -> Option<(u32, u32)> {
        let mut inner = self.0.borrow_mut();
        let frame = inner.free_frames.pop()?;
        let gref = inner.free_entries.pop().expect("as many as frames");
        inner.entries[gref as usize] = Entry { frame, is_granted: true, is_writable, reads: 0, writes: 0 };
        Some((gref, frame))
    }

    /// Takes a grant back. `None`: it is in use. Else the frame is free again.
    pub fn end_access(&self, gref: u32) -> Option<u32> {
        let mut inner = self.0.borrow_mut();
        let entry = inner.entries[gref as usize];
        assert!(entry.is_granted, "taken back twice");
        if entry.reads + entry.writes > 0 {
            return None;
        }
        inner.entries[gref as usize] = Entry::default();
        inner.free_entries.push(gref);
        inner.free_frames.push(entry.frame);
        Some(entry.frame)
    }

    /// Makes a grant worthless without telling anybody, or good again: a hostile guest's.
    pub fn spoil(&self, gref: u32) {
        let mut inner = self.0.borrow_mut();
        if let Some(entry) = inner.entries.get_mut(gref as usize) {
            if entry.frame != 0 {
                entry.is_granted = !entry.is_granted;
            }
        }
    }

    /// Uses of grants under way.
    pub fn nr_uses(&self) -> u32 {
        self.0.borrow().entries.iter().map(|e| e.reads + e.writes).sum()
    }

    /// Frames that are not granted.
    pub fn nr_free(&self) -> usize {
        self.0.borrow().free_frames.len()
    }
}

impl Grants for Guest {
    type Frame = u32;

    fn pin(&mut self, gref: u32, writable: bool) -> Result<u32, GntStatus> {
        let mut inner = self.0.borrow_mut();
        inner.nr_pins += 1;
        if inner.fail_every != 0 && inner.nr_pins.is_multiple_of(inner.fail_every) {
            return Err(GntStatus::GeneralError);
        }
        let entry = inner.entries.get_mut(gref as usize).ok_or(GntStatus::BadGntref)?;
        if !entry.is_granted || writable && !entry.is_writable {
            return Err(GntStatus::GeneralError);
        }
        *(if writable { &mut entry.writes } else { &mut entry.reads }) += 1;
        Ok(entry.frame)
    }

    fn unpin(&mut self, gref: u32, writable: bool) {
        let mut inner = self.0.borrow_mut();
        let entry = &mut inner.entries[gref as usize];
        let n = if writable { &mut entry.writes } else { &mut entry.reads };
        *n = n.checked_sub(1).expect("a use that ends twice");
    }
}
