//! Network interfaces (public/io/netif.h). Directions are the guest's: it transmits to the back end and receives from
//! it.
#![allow(missing_docs, reason = "the names are those of the header")]

use super::ring::ring_size;
use crate::grant::GrantRef;

/// Slots that any back end takes for one packet.
pub const XEN_NETIF_NR_SLOTS_MIN: u32 = 18;
/// Bytes of the longest packet.
pub const XEN_NETIF_MAX_TX_SIZE: u32 = 0xffff;

pub const XEN_NETIF_TX_RING_SIZE: u32 = ring_size(1, 12);
pub const XEN_NETIF_RX_RING_SIZE: u32 = ring_size(1, 8);
pub const XEN_NETIF_CTRL_RING_SIZE: u32 = ring_size(1, 16);

/// The packet's protocol checksum is not yet complete: its field holds the sum of the pseudo header.
pub const XEN_NETTXF_CSUM_BLANK: u16 = 1 << 0;
/// The packet's data need not be checked.
pub const XEN_NETTXF_DATA_VALIDATED: u16 = 1 << 1;
/// The packet goes on in another slot.
pub const XEN_NETTXF_MORE_DATA: u16 = 1 << 2;
/// The next slot is an [`ExtraInfo`].
pub const XEN_NETTXF_EXTRA_INFO: u16 = 1 << 3;

/// A slot of a packet to send. `size`: of the first slot, the whole packet's; of others, the slot's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TxRequest {
    pub gref: GrantRef,
    pub offset: u16,
    pub flags: u16,
    pub id: u16,
    pub size: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TxResponse {
    pub id: u16,
    /// `XEN_NETIF_RSP_*`.
    pub status: i16,
}

/// A page to receive into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RxRequest {
    pub id: u16,
    pub pad: u16,
    pub gref: GrantRef,
}

pub const XEN_NETRXF_DATA_VALIDATED: u16 = 1 << 0;
pub const XEN_NETRXF_CSUM_BLANK: u16 = 1 << 1;
pub const XEN_NETRXF_MORE_DATA: u16 = 1 << 2;
pub const XEN_NETRXF_EXTRA_INFO: u16 = 1 << 3;
/// No longer used.
pub const XEN_NETRXF_GSO_PREFIX: u16 = 1 << 4;

/// A part of a received packet. It lies in the ring where its request lay: front ends pair them by place, not by `id`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RxResponse {
    pub id: u16,
    pub offset: u16,
    pub flags: u16,
    /// Number of bytes, or a negative `XEN_NETIF_RSP_*`.
    pub status: i16,
}

pub const XEN_NETIF_RSP_DROPPED: i16 = -2;
pub const XEN_NETIF_RSP_ERROR: i16 = -1;
pub const XEN_NETIF_RSP_OKAY: i16 = 0;
/// What answers an [`ExtraInfo`].
pub const XEN_NETIF_RSP_NULL: i16 = 1;

/// Never used.
pub const XEN_NETIF_EXTRA_TYPE_NONE: u8 = 0;
pub const XEN_NETIF_EXTRA_TYPE_GSO: u8 = 1;
pub const XEN_NETIF_EXTRA_TYPE_MCAST_ADD: u8 = 2;
pub const XEN_NETIF_EXTRA_TYPE_MCAST_DEL: u8 = 3;
pub const XEN_NETIF_EXTRA_TYPE_HASH: u8 = 4;
/// In Linux (since 5.9); the header of Xen 4.17 does not have it.
pub const XEN_NETIF_EXTRA_TYPE_XDP: u8 = 5;
pub const XEN_NETIF_EXTRA_TYPE_MAX: u8 = 6;

/// Another [`ExtraInfo`] follows.
pub const XEN_NETIF_EXTRA_FLAG_MORE: u8 = 1 << 0;

pub const XEN_NETIF_GSO_TYPE_NONE: u8 = 0;
pub const XEN_NETIF_GSO_TYPE_TCPV4: u8 = 1;
pub const XEN_NETIF_GSO_TYPE_TCPV6: u8 = 2;

/// A slot that says something of the packet. What `data` is depends on `type_`: [`ExtraGso`], [`ExtraMcast`],
/// [`ExtraHash`], [`ExtraXdp`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExtraInfo {
    pub type_: u8,
    pub flags: u8,
    pub data: [u16; 3],
}

/// The packet is to be cut into segments of `size` bytes of payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExtraGso {
    pub type_: u8,
    pub flags: u8,
    pub size: u16,
    /// `XEN_NETIF_GSO_TYPE_*`.
    pub gso_type: u8,
    pub pad: u8,
    pub features: u16,
}

/// The guest wants packets to this multicast address, or wants them no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExtraMcast {
    pub type_: u8,
    pub flags: u8,
    pub addr: [u8; 6],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExtraHash {
    pub type_: u8,
    pub flags: u8,
    /// `XEN_NETIF_CTRL_HASH_TYPE_*_BIT`.
    pub hash_type: u8,
    /// `XEN_NETIF_CTRL_HASH_ALGORITHM_*`.
    pub algorithm: u8,
    /// Low byte first.
    pub value: [u8; 4],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExtraXdp {
    pub type_: u8,
    pub flags: u8,
    pub headroom: u16,
    pub pad: [u16; 2],
}

pub const XEN_NETIF_CTRL_HASH_TYPE_IPV4_BIT: u8 = 0;
pub const XEN_NETIF_CTRL_HASH_TYPE_IPV4_TCP_BIT: u8 = 1;
pub const XEN_NETIF_CTRL_HASH_TYPE_IPV6_BIT: u8 = 2;
pub const XEN_NETIF_CTRL_HASH_TYPE_IPV6_TCP_BIT: u8 = 3;
pub const XEN_NETIF_CTRL_HASH_ALGORITHM_NONE: u32 = 0;
pub const XEN_NETIF_CTRL_HASH_ALGORITHM_TOEPLITZ: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CtrlRequest {
    pub id: u16,
    /// `XEN_NETIF_CTRL_TYPE_*`.
    pub type_: u16,
    pub data: [u32; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CtrlResponse {
    pub id: u16,
    pub type_: u16,
    /// `XEN_NETIF_CTRL_STATUS_*`.
    pub status: u32,
    pub data: u32,
}

pub const XEN_NETIF_CTRL_TYPE_INVALID: u16 = 0;
pub const XEN_NETIF_CTRL_TYPE_GET_HASH_FLAGS: u16 = 1;
pub const XEN_NETIF_CTRL_TYPE_SET_HASH_FLAGS: u16 = 2;
pub const XEN_NETIF_CTRL_TYPE_SET_HASH_KEY: u16 = 3;
pub const XEN_NETIF_CTRL_TYPE_GET_HASH_MAPPING_SIZE: u16 = 4;
pub const XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING_SIZE: u16 = 5;
pub const XEN_NETIF_CTRL_TYPE_SET_HASH_MAPPING: u16 = 6;
pub const XEN_NETIF_CTRL_TYPE_SET_HASH_ALGORITHM: u16 = 7;
pub const XEN_NETIF_CTRL_TYPE_GET_GREF_MAPPING_SIZE: u16 = 8;
pub const XEN_NETIF_CTRL_TYPE_ADD_GREF_MAPPING: u16 = 9;
pub const XEN_NETIF_CTRL_TYPE_DEL_GREF_MAPPING: u16 = 10;

pub const XEN_NETIF_CTRL_STATUS_SUCCESS: u32 = 0;
pub const XEN_NETIF_CTRL_STATUS_NOT_SUPPORTED: u32 = 1;
pub const XEN_NETIF_CTRL_STATUS_INVALID_PARAMETER: u32 = 2;
pub const XEN_NETIF_CTRL_STATUS_BUFFER_OVERFLOW: u32 = 3;

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<TxRequest>() == 12);
    assert!(offset_of!(TxRequest, gref) == 0);
    assert!(offset_of!(TxRequest, offset) == 4);
    assert!(offset_of!(TxRequest, flags) == 6);
    assert!(offset_of!(TxRequest, id) == 8);
    assert!(offset_of!(TxRequest, size) == 10);
    assert!(size_of::<TxResponse>() == 4);
    assert!(offset_of!(TxResponse, status) == 2);
    assert!(size_of::<RxRequest>() == 8);
    assert!(offset_of!(RxRequest, id) == 0);
    assert!(offset_of!(RxRequest, gref) == 4);
    assert!(size_of::<RxResponse>() == 8);
    assert!(offset_of!(RxResponse, offset) == 2);
    assert!(offset_of!(RxResponse, flags) == 4);
    assert!(offset_of!(RxResponse, status) == 6);
    assert!(size_of::<ExtraInfo>() == 8 && align_of::<ExtraInfo>() == 2);
    assert!(offset_of!(ExtraInfo, data) == 2);
    assert!(size_of::<ExtraGso>() == 8);
    assert!(offset_of!(ExtraGso, size) == 2);
    assert!(offset_of!(ExtraGso, gso_type) == 4);
    assert!(offset_of!(ExtraGso, features) == 6);
    assert!(size_of::<ExtraMcast>() == 8);
    assert!(offset_of!(ExtraMcast, addr) == 2);
    assert!(size_of::<ExtraHash>() == 8);
    assert!(offset_of!(ExtraHash, hash_type) == 2);
    assert!(offset_of!(ExtraHash, algorithm) == 3);
    assert!(offset_of!(ExtraHash, value) == 4);
    assert!(size_of::<ExtraXdp>() == 8);
    assert!(offset_of!(ExtraXdp, headroom) == 2);
    assert!(size_of::<CtrlRequest>() == 16);
    assert!(offset_of!(CtrlRequest, data) == 4);
    assert!(size_of::<CtrlResponse>() == 12);
    assert!(offset_of!(CtrlResponse, status) == 4);
    assert!(offset_of!(CtrlResponse, data) == 8);
    assert!(XEN_NETIF_TX_RING_SIZE == 256);
    assert!(XEN_NETIF_RX_RING_SIZE == 256);
};
