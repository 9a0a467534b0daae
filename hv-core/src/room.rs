//! Memory for tables that a guest makes longer as it likes: its grants, its ports.
//!
//! They can be as large as all that is kept for objects whose allocation cannot report that there is no memory. So who
//! adds to one asks each time, and says how much it takes; and nobody else takes what the answer counted on until it is
//! taken.

/// Lets what it is given take so many bytes, or refuses. Was it let, and did it succeed?
pub type Room = fn(usize, &mut dyn FnMut() -> bool) -> bool;

/// May tables take `frames` more of the `free` ones, so that `claimed` ones are there for the domains for which they
/// are set aside ([`crate::claims`]), and `headroom` for what cannot report that there is none?
pub const fn is_there(frames: u64, free: u64, claimed: u64, headroom: u64) -> bool {
    free >= frames.saturating_add(claimed).saturating_add(headroom)
}

/// There is always room: for tests.
#[cfg(any(test, feature = "fuzzing"))]
pub fn boundless(_bytes: usize, take: &mut dyn FnMut() -> bool) -> bool {
    take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_grow_by_what_is_not_claimed() {
        assert!(is_there(744, 1000, 0, 256) && !is_there(745, 1000, 0, 256));
        assert!(is_there(400, 1000, 300, 256) && is_there(444, 1000, 300, 256));
        assert!(!is_there(445, 1000, 300, 256) && !is_there(500, 1000, 300, 256));
        assert!(!is_there(1, 1000, u64::MAX, 256) && !is_there(u64::MAX, 1000, 300, 256));
    }
}
