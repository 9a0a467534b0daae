//! Memory for tables that a guest makes longer as it likes: its grants, its ports.
//!
//! They can be as large as all that is kept for objects whose allocation cannot report that there is no memory. So who adds to one
//! asks each time, and says how much it takes; and nobody else takes what the answer counted on until it is taken.

/// Lets what it is given take so many bytes, or refuses. Was it let, and did it succeed?
pub type Room = fn(usize, &mut dyn FnMut() -> bool) -> bool;

/// There is always room: for tests.
#[cfg(any(test, feature = "fuzzing"))]
pub fn boundless(_bytes: usize, take: &mut dyn FnMut() -> bool) -> bool {
    take()
}
