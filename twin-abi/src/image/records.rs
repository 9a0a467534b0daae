//! The records of an image's sections: fixed sizes, read where they are.

use alloc::vec::Vec;
use core::marker::PhantomData;

use crate::kind::{Frame, State};

/// One function: a contiguous range of the code, entered only at `start`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Code offset of the entry. There is a label here; its declared frame is empty.
    pub start: u32,
    /// Code offset after the last byte.
    pub end: u32,
    /// Name: offset into the strings.
    pub name: u32,
    /// Name: bytes.
    pub name_len: u32,
    /// Address of the original function.
    pub domain: u64,
    /// Deepest frame in bytes.
    pub frame: u32,
    /// Eight-byte words of stack arguments above the return address that the function may read and write.
    pub stack_args: u32,
}

/// Bit of [`Label::state`]: the label is a charge point (rule B1).
pub const LABEL_CHARGE: u32 = 1 << 31;

/// A place that can be jumped to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// Code offset.
    pub offset: u32,
    /// Index of the declared state, with [`LABEL_CHARGE`] in bit 31.
    pub state: u32,
}

/// A function that may be entered by its domain address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Domain address.
    pub domain: u64,
    /// Index of the function.
    pub function: u32,
}

/// A function outside the module that the code calls by `call [rip+slot]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Import {
    /// Name: offset into the strings.
    pub name: u32,
    /// Name: bytes.
    pub name_len: u32,
    /// Domain address, the target of an upcall.
    pub domain: u64,
}

/// Where code comes from, for reports of aborts: the instructions from `offset` on stem from the original at
/// `text + original`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Code offset.
    pub offset: u32,
    /// Offset in the original text.
    pub original: u32,
}

/// A fixed-size record of a section.
pub trait Record: Copy {
    /// Bytes of one record.
    const BYTES: usize;
    /// Reads a record from exactly [`Self::BYTES`] bytes.
    fn read(bytes: &[u8]) -> Self;
    /// Appends the record.
    fn write(&self, out: &mut Vec<u8>);
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    match b.get(at..at + 2) {
        Some(&[a, b]) => u16::from_le_bytes([a, b]),
        _ => 0,
    }
}

pub(super) fn u32_at(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|s| s.try_into().ok()).map_or(0, u32::from_le_bytes)
}

pub(super) fn u64_at(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|s| s.try_into().ok()).map_or(0, u64::from_le_bytes)
}

impl Record for Function {
    const BYTES: usize = 32;
    fn read(b: &[u8]) -> Self {
        Self {
            start: u32_at(b, 0),
            end: u32_at(b, 4),
            name: u32_at(b, 8),
            name_len: u32::from(u16_at(b, 12)),
            stack_args: u32::from(u16_at(b, 14)),
            domain: u64_at(b, 16),
            frame: u32_at(b, 24),
        }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.start.to_le_bytes());
        out.extend(self.end.to_le_bytes());
        out.extend(self.name.to_le_bytes());
        out.extend(u16::try_from(self.name_len).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(u16::try_from(self.stack_args).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(self.domain.to_le_bytes());
        out.extend(self.frame.to_le_bytes());
        out.extend([0; 4]);
    }
}

impl Record for Label {
    const BYTES: usize = 8;
    fn read(b: &[u8]) -> Self {
        Self { offset: u32_at(b, 0), state: u32_at(b, 4) }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.offset.to_le_bytes());
        out.extend(self.state.to_le_bytes());
    }
}

impl Record for State {
    const BYTES: usize = 16;
    fn read(b: &[u8]) -> Self {
        let mut saved = [0; 6];
        if let Some(s) = b.get(10..16) {
            saved.copy_from_slice(s);
        }
        Self { regs: u64_at(b, 0), frame: Frame { depth: u16_at(b, 8), saved } }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.regs.to_le_bytes());
        out.extend(self.frame.depth.to_le_bytes());
        out.extend(self.frame.saved);
    }
}

impl Record for Address {
    const BYTES: usize = 16;
    fn read(b: &[u8]) -> Self {
        Self { domain: u64_at(b, 0), function: u32_at(b, 8) }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.domain.to_le_bytes());
        out.extend(self.function.to_le_bytes());
        out.extend([0; 4]);
    }
}

impl Record for Import {
    const BYTES: usize = 16;
    fn read(b: &[u8]) -> Self {
        Self { name: u32_at(b, 0), name_len: u32_at(b, 4), domain: u64_at(b, 8) }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.name.to_le_bytes());
        out.extend(self.name_len.to_le_bytes());
        out.extend(self.domain.to_le_bytes());
    }
}

impl Record for Origin {
    const BYTES: usize = 8;
    fn read(b: &[u8]) -> Self {
        Self { offset: u32_at(b, 0), original: u32_at(b, 4) }
    }
    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.offset.to_le_bytes());
        out.extend(self.original.to_le_bytes());
    }
}

/// A section as an array of records, read where they are.
#[derive(Debug)]
pub struct Records<'a, T> {
    bytes: &'a [u8],
    of: PhantomData<T>,
}

impl<T> Clone for Records<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Records<'_, T> {}

impl<'a, T: Record + 'a> Records<'a, T> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, of: PhantomData }
    }

    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / T::BYTES
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Record `index`, if there is one.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<T> {
        let at = index.checked_mul(T::BYTES)?;
        self.bytes.get(at..at.checked_add(T::BYTES)?).map(T::read)
    }

    /// All records in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + 'a {
        self.bytes.chunks_exact(T::BYTES).map(T::read)
    }

    /// Index of the last record whose `key` is not above `value`, in a section sorted by `key`.
    pub fn last_not_above<K: Ord>(&self, value: K, key: impl Fn(&T) -> K) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if key(&self.get(middle)?) <= value {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1)
    }
}
