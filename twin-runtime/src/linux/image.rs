//! Structures of the domain's kernel as bytes, made here and written in one go.

use crate::memory::{Fault, Memory};

/// The first `BYTES` bytes of a structure, all zero but for what was put there.
pub struct Image<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Image<BYTES> {
    /// Zeroes.
    pub const fn new() -> Self {
        Self([0; BYTES])
    }

    /// Puts a member at `offset`, or where the last one may be: no kernel has any behind.
    #[inline]
    pub fn put<const N: usize>(&mut self, offset: u64, value: [u8; N]) {
        let at = usize::try_from(offset).unwrap_or(BYTES).min(BYTES - N);
        if let Some(to) = self.0.get_mut(at..at + N) {
            to.copy_from_slice(&value);
        }
    }

    /// Writes its first `len` bytes to `address`.
    ///
    /// # Errors
    /// If they may not be written, or it has not so many.
    pub fn write(&self, memory: &impl Memory, address: u64, len: u64) -> Result<(), Fault> {
        let bytes = usize::try_from(len).ok().and_then(|len| self.0.get(..len));
        memory.write(address, bytes.ok_or(Fault { address, write: true })?)
    }
}
