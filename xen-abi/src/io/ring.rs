//! Shared rings (public/io/ring.h): a page of indices and slots that a front end writes requests into and its back end
//! writes responses into, over them.

/// What a shared ring begins with; the slots follow. Indices count for ever (modulo 2^32), a slot's place is the index
/// modulo the ring's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SharedRing {
    /// Index of the request that the front end writes next.
    pub req_prod: u32,
    /// The front end sends an event when `req_prod` passes this; written by the back end.
    pub req_event: u32,
    /// Index of the response that the back end writes next.
    pub rsp_prod: u32,
    /// The back end sends an event when `rsp_prod` passes this; written by the front end.
    pub rsp_event: u32,
    /// For protocols of their own.
    pub private: [u8; 4],
    /// Nothing.
    pub pad: [u8; 44],
}

/// Number of slots of a ring of `pages` pages with slots of `slot_bytes`: as many as fit, rounded down to a power of
/// two.
pub const fn ring_size(pages: u32, slot_bytes: u32) -> u32 {
    let fit = (pages * 4096 - 64) / slot_bytes;
    1 << (31 - fit.leading_zeros())
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<SharedRing>() == 64);
    assert!(offset_of!(SharedRing, req_prod) == 0);
    assert!(offset_of!(SharedRing, req_event) == 4);
    assert!(offset_of!(SharedRing, rsp_prod) == 8);
    assert!(offset_of!(SharedRing, rsp_event) == 12);
    assert!(offset_of!(SharedRing, private) == 16);
    // vif transmit and receive, vbd.
    assert!(ring_size(1, 12) == 256);
    assert!(ring_size(1, 8) == 256);
    assert!(ring_size(1, 112) == 32);
};
