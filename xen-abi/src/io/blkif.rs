//! Disks (public/io/blkif.h), in the layout of 64-bit guests. A sector is 512 bytes, whatever the medium's are.
#![allow(missing_docs, reason = "the names are those of the header")]

use super::ring::ring_size;

pub const BLKIF_OP_READ: u8 = 0;
pub const BLKIF_OP_WRITE: u8 = 1;
/// All before it is done before it, all after it after it.
pub const BLKIF_OP_WRITE_BARRIER: u8 = 2;
/// What was answered before it is on the medium before it is answered.
pub const BLKIF_OP_FLUSH_DISKCACHE: u8 = 3;
pub const BLKIF_OP_DISCARD: u8 = 5;
/// A read or a write whose segments are listed in pages of their own.
pub const BLKIF_OP_INDIRECT: u8 = 6;

/// Segments in a request itself.
pub const BLKIF_MAX_SEGMENTS_PER_REQUEST: u32 = 11;
/// Pages that list segments, in an indirect request.
pub const BLKIF_MAX_INDIRECT_PAGES_PER_REQUEST: u32 = 8;
/// The only flag of a discard.
pub const BLKIF_DISCARD_SECURE: u8 = 1;

pub const BLKIF_RSP_OKAY: i16 = 0;
pub const BLKIF_RSP_ERROR: i16 = -1;
pub const BLKIF_RSP_EOPNOTSUPP: i16 = -2;

/// Bytes of a sector.
pub const SECTOR_BYTES: u32 = 512;
/// Sectors of a page.
pub const SECTORS_PER_PAGE: u8 = 8;
/// Bytes of a slot: a request's.
pub const SLOT_BYTES: u32 = 112;
/// Slots of a ring of one page.
pub const BLKIF_RING_SIZE: u32 = ring_size(1, SLOT_BYTES);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RequestSegment {
    pub gref: u32,
    pub first_sect: u8,
    /// The last that belongs to it.
    pub last_sect: u8,
    pub pad: u16,
}

/// A read, a write, a flush or a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Request {
    pub operation: u8,
    pub nr_segments: u8,
    pub handle: u16,
    pub pad: u32,
    pub id: u64,
    pub sector_number: u64,
    pub seg: [RequestSegment; 11],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RequestDiscard {
    pub operation: u8,
    pub flag: u8,
    pub handle: u16,
    pub pad: u32,
    pub id: u64,
    pub sector_number: u64,
    pub nr_sectors: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RequestIndirect {
    pub operation: u8,
    pub indirect_op: u8,
    pub nr_segments: u16,
    pub pad: u32,
    pub id: u64,
    pub sector_number: u64,
    pub handle: u16,
    pub pad2: u16,
    pub indirect_grefs: [u32; 8],
    pub pad3: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Response {
    pub id: u64,
    pub operation: u8,
    pub pad: u8,
    pub status: i16,
    pub pad2: u32,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(BLKIF_RING_SIZE == 32);
    assert!(size_of::<RequestSegment>() == 8 && size_of::<Request>() == SLOT_BYTES as usize);
    assert!(offset_of!(Request, id) == 8 && offset_of!(Request, sector_number) == 16 && offset_of!(Request, seg) == 24);
    assert!(size_of::<RequestDiscard>() == 32 && offset_of!(RequestDiscard, nr_sectors) == 24);
    assert!(size_of::<RequestIndirect>() == 64 && offset_of!(RequestIndirect, handle) == 24);
    assert!(offset_of!(RequestIndirect, indirect_grefs) == 28);
    assert!(size_of::<Response>() == 16 && offset_of!(Response, operation) == 8 && offset_of!(Response, status) == 10);
};
