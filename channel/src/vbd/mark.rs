//! Whether a read brought anything.
//!
//! A back end may say that a read is done which has brought nothing: its kernel is damaged, and its device wrote
//! elsewhere, or not at all. What is in the page then is an earlier request's. So before a back end is asked to read
//! there is a *mark* at the end of each segment, a number that nobody else knows; where it still is afterwards nothing
//! has come. A back end that knows the number can lie all the same: this is for those that mean no harm.

use super::request::Segment;
use crate::grants::Frames;

/// A number that no guest can guess: one that had it on its disk would have its back end taken for a liar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// That number.
    pub fn new(secret: u64) -> Self {
        // A page that cannot be read has 0s, and no mark.
        Mark(secret.max(1))
    }

    /// Puts it where the last bytes of a segment will be, which has a sector at least.
    #[inline]
    pub fn put<F>(&self, segment: &Segment, page: F, frames: &impl Frames<F>) {
        frames.write_word(page, Self::place(segment), self.0);
    }

    /// Whether it still is there.
    #[inline]
    pub fn is_there<F>(&self, segment: &Segment, page: F, frames: &impl Frames<F>) -> bool {
        frames.read_word(page, Self::place(segment)) == self.0
    }

    #[allow(clippy::cast_possible_truncation, reason = "eight")]
    fn place(segment: &Segment) -> u16 {
        segment.offset() + segment.len() - size_of::<Self>() as u16
    }
}
