//! Bytes between guests' pages and those that a back end has.

use super::pool::PageNr;
use super::request::{List, Request, Segment, MAX_SEGMENTS};
use crate::grants::{Frames, Grants};
use xen_abi::io::blkif::*;

/// The frame of a page; none that can be used, if there is no such page.
pub fn frame_of<F: Copy + Default>(frames: &[F], nr: PageNr) -> F {
    frames.get(usize::from(nr)).copied().unwrap_or_default()
}

/// Reads the list of an indirect request's segments. `false`: it is refused.
pub fn read_list<G: Grants>(list: List, request: &mut Request, grants: &mut G, frames: &impl Frames<G::Frame>) -> bool {
    let mut bytes = [0; MAX_SEGMENTS * 8];
    let bytes = &mut bytes[..list.bytes()];
    grants.use_once(list.gref, false, |frame| frames.read(frame, 0, bytes)).is_ok() && request.set_list(bytes)
}

/// Copies what is to be written out of one of the guest's pages. `false`: its grant does not hold.
#[inline]
pub fn copy_in<G: Grants>(segment: &Segment, page: G::Frame, grants: &mut G, frames: &impl Frames<G::Frame>) -> bool {
    let copy = |frame| frames.copy(frame, segment.offset(), page, segment.offset(), segment.len());
    grants.use_once(segment.gref, false, copy).is_ok()
}

/// Copies what was read into the guest's pages. The status: an error if one of its grants does not hold.
pub fn copy_out<'a, G: Grants>(
    segments: impl Iterator<Item = (&'a Segment, G::Frame)>,
    grants: &mut G,
    frames: &impl Frames<G::Frame>,
) -> i16 {
    for (segment, page) in segments {
        let copy = |frame| frames.copy(page, segment.offset(), frame, segment.offset(), segment.len());
        if grants.use_once(segment.gref, true, copy).is_err() {
            return BLKIF_RSP_ERROR;
        }
    }
    BLKIF_RSP_OKAY
}

/// Writes segments where an indirect request has them.
pub fn write_list<F>(list: &[[u32; 2]], page: F, frames: &impl Frames<F>) {
    let mut bytes = [0; MAX_SEGMENTS * 8];
    for (to, from) in bytes.chunks_exact_mut(4).zip(list.as_flattened()) {
        to.copy_from_slice(&from.to_le_bytes());
    }
    frames.write(page, 0, &bytes[..list.len() * 8]);
}
