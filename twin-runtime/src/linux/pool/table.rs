//! Objects by address, sorted. Only lending one takes memory; finding, taking and giving do not.

use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Table<T> {
    pub(super) objects: Vec<(u64, T)>,
    /// Where one whose address has that [`hash`] was found last. Nothing depends on their being right.
    hints: Vec<u16>,
}

/// Places for hints: some times as many as there are objects, a power of two.
const HINTS: usize = 16384;

/// A place for a hint. Addresses are multiples of powers of two, whose low bits say nothing.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "less than HINTS")]
fn hash(address: u64) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (address.wrapping_mul(SPREAD) >> (u64::BITS - HINTS.trailing_zeros())) as usize
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { objects: Vec::new(), hints: Vec::new() }
    }
}

impl<T> Table<T> {
    #[inline(always)]
    pub(super) fn get_mut(&mut self, address: u64) -> Option<&mut T> {
        let hint = usize::from(self.hints.get(hash(address)).copied().unwrap_or(0));
        let is_right = self.objects.get(hint).is_some_and(|(found, _)| *found == address);
        let at = if is_right { hint } else { self.search(address)? };
        self.objects.get_mut(at).map(|(_, object)| object)
    }

    /// Finds one for which there is no good hint, and leaves one.
    #[cold]
    fn search(&mut self, address: u64) -> Option<usize> {
        let at = self.objects.binary_search_by_key(&address, |(a, _)| *a).ok()?;
        if let Some(hint) = self.hints.get_mut(hash(address)) {
            *hint = u16::try_from(at).unwrap_or(0);
        }
        Some(at)
    }

    /// Adds an object, with room in `free` for it to come home to, and puts it there. One that is known stays as it is.
    pub(super) fn add(&mut self, address: u64, object: T, free: &mut Vec<u64>) -> Result<(), TryReserveError> {
        let Err(at) = self.objects.binary_search_by_key(&address, |(a, _)| *a) else { return Ok(()) };
        if self.hints.is_empty() {
            self.hints.try_reserve_exact(HINTS)?;
            self.hints.resize(HINTS, 0);
        }
        self.objects.try_reserve(1)?;
        // All that may ever be free: those that are out now come back to the same list.
        free.try_reserve(self.objects.len() + 1 - free.len().min(self.objects.len()))?;
        self.objects.insert(at, (address, object));
        free.push(address);
        Ok(())
    }
}
