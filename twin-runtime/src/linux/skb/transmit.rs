//! Packets to be sent: an `sk_buff` of the pool is made to carry one.

use super::{low_u16, low_u32, Fragment, Place, ETHERNET_HEADER, HEADROOM, MAX_FRAGMENTS, NOWHERE};
use crate::abort::Reason;
use crate::linux::pool::{Lent, LentPage, Use};
use crate::linux::{Host, Support};
use crate::memory::{Fault, Memory};

/// Where it names the protocol.
const PROTOCOL_AT: u64 = 12;
/// Protocols that are VLAN tags, with what the packet carries behind them, as they are stored.
const TAGS: [u16; 2] = [0x8100u16.to_be(), 0x88a8u16.to_be()];
/// Bytes of a tag, and tags that are looked through.
const TAG: u64 = 4;
const MAX_TAGS: u64 = 2;
/// `ip_summed` in the byte of `pkt_type`.
const CHECKSUM_PARTIAL: u8 = 3 << 5;
const PAGE_BYTES: u32 = 4096;
/// `gso_type` of TCP over IPv4 (`SKB_GSO_TCPV4`).
pub const GSO_TCP_V4: u32 = 1;
/// `gso_type` of TCP over IPv6 (`SKB_GSO_TCPV6`).
pub const GSO_TCP_V6: u32 = 1 << 4;
/// `gso_type` of one datagram of UDP's, to be cut into IP's fragments (`SKB_GSO_UDP`).
pub const GSO_UDP_FRAGMENTS: u32 = 1 << 16;
/// `gso_type` of datagrams of UDP's (`SKB_GSO_UDP_L4`).
pub const GSO_UDP: u32 = 1 << 17;

/// A packet to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'p> {
    /// The device.
    pub device: u64,
    /// Linear part, from the Ethernet header on. Enough of it for what the driver reads (the paper copies 96 bytes).
    pub header: &'p [u8],
    /// The rest, in pages that have a `struct page` in the domain.
    pub fragments: &'p [Fragment],
    /// Where the device starts to sum and where it stores the sum, from the Ethernet header on.
    pub checksum: Option<(u16, u16)>,
    /// TCP segmentation: segment size, number of segments, `gso_type`.
    pub segmentation: Option<(u16, u16, u32)>,
    /// Transmit queue.
    pub queue: u16,
    /// Comes back with [`Host::transmitted`].
    pub cookie: u64,
}

/// The pages of an `sk_buff` as its fragments, of which `bytes` bytes are used. `None`: it has not so many.
fn fragments_of<'f, H: Host>(
    host: &mut H,
    skb: u64,
    bytes: u32,
    into: &'f mut [Fragment; MAX_FRAGMENTS],
) -> Option<&'f [Fragment]> {
    let mut pages = [LentPage::default(); MAX_FRAGMENTS];
    let count = host.with_pool(|pool| pool.pages(skb, &mut pages));
    let mut left = bytes;
    for (to, page) in into.iter_mut().zip(&pages[..count]) {
        let len = left.min(PAGE_BYTES);
        *to = Fragment { page: page.page, offset: 0, len };
        left -= len;
    }
    let used = bytes.div_ceil(PAGE_BYTES) as usize;
    (left == 0).then(|| into.get(..used)).flatten()
}

/// Bytes of the tags of the packet at `at`, of which `len` bytes are there; it has one.
#[cold]
fn tags<M: Memory>(m: &M, at: u64, len: u64) -> Result<u64, Fault> {
    let mut bytes = TAG;
    while bytes < MAX_TAGS * TAG
        && PROTOCOL_AT + bytes + 2 <= len
        && TAGS.contains(&m.member_u16(at, PROTOCOL_AT + bytes)?)
    {
        bytes += TAG;
    }
    Ok(bytes)
}

impl Support {
    /// Makes an `sk_buff` of the pool carry a packet. `None` if the pool is empty or the header too long.
    ///
    /// # Errors
    /// If the pool's memory is not there any more.
    pub fn prepare<H: Host>(&self, host: &mut H, packet: &Packet<'_>) -> Result<Option<u64>, Reason> {
        let Ok(len) = u16::try_from(packet.header.len()) else { return Ok(None) };
        let need = u64::from(len) + self.overhead();
        if packet.fragments.len() > MAX_FRAGMENTS || u32::from(len) < ETHERNET_HEADER {
            return Ok(None);
        }
        let Some((skb, lent)) = host.with_pool(|pool| pool.take(need, Use::Transmit(packet.cookie))) else {
            return Ok(None);
        };
        host.write(lent.head.wrapping_add(HEADROOM), packet.header)?;
        self.dress(host, skb, &lent, len, *packet)?;
        Ok(Some(skb))
    }

    /// Makes the `sk_buff` `skb`, in whose buffer the packet lies, say so.
    #[inline(always)]
    fn dress<H: Host>(&self, host: &mut H, skb: u64, lent: &Lent, len: u16, packet: Packet<'_>) -> Result<(), Fault> {
        let o = &self.offsets;
        let (len, more) = (u64::from(len), packet.fragments.iter().map(|f| u64::from(f.len)).sum::<u64>());
        let transport_header = packet.checksum.map_or(NOWHERE, |(start, _)| low_u16(HEADROOM + u64::from(start)));
        let place = Place {
            head: lent.head,
            size: lent.size.into(),
            data: HEADROOM,
            tail: HEADROOM + len,
            mac_header: low_u16(HEADROOM),
            transport_header,
        };
        place.write(host, o, skb, packet.device)?;
        host.put_member_u32(skb, o.skb_len, low_u32(len + more))?;
        // As it stands in the packet.
        let kind = host.member_u16(lent.head, HEADROOM + PROTOCOL_AT)?;
        host.put_member_u16(skb, o.skb_protocol, kind)?;
        let tags = if TAGS.contains(&kind) { tags(host, lent.head.wrapping_add(HEADROOM), len)? } else { 0 };
        host.put_member_u16(skb, o.skb_network_header, low_u16(HEADROOM + u64::from(ETHERNET_HEADER) + tags))?;
        if let Some((_, offset)) = packet.checksum {
            host.put_member_u16(skb, o.skb_csum_start, transport_header)?;
            host.put_member_u16(skb, o.skb_csum_offset, offset)?;
            host.put_member_u8(skb, o.skb_pkt_type, CHECKSUM_PARTIAL)?;
        }
        if packet.queue != 0 {
            host.put_member_u16(skb, o.skb_queue_mapping, packet.queue)?;
        }
        let info = place.write_info(host, o)?;
        if let Some((size, segments, kind)) = packet.segmentation {
            host.put_member_u16(info, o.info_gso_size, size)?;
            host.put_member_u16(info, o.info_gso_segs, segments)?;
            host.put_member_u32(info, o.info_gso_type, kind)?;
        }
        if !packet.fragments.is_empty() {
            host.put_member_u32(skb, o.skb_data_len, low_u32(more))?;
            self.list_fragments(host, info, packet.fragments)?;
        }
        Ok(())
    }

    /// Lists `fragments` in the shared info at `info`.
    fn list_fragments<H: Host>(&self, host: &mut H, info: u64, fragments: &[Fragment]) -> Result<(), Fault> {
        let o = &self.offsets;
        host.put_member_u8(info, o.info_nr_frags, u8::try_from(fragments.len()).unwrap_or(0))?;
        let mut to = info.wrapping_add(o.info_frags);
        for fragment in fragments {
            host.put_u64(to, fragment.page)?;
            host.put_member_u64(to, 8, u64::from(fragment.len) | u64::from(fragment.offset) << 32)?;
            to = to.wrapping_add(16);
        }
        Ok(())
    }

    /// Has an `sk_buff` that was reserved carry a packet of which `len` bytes lie in its buffer, and the next `more` in
    /// its pages; of `packet`, header and fragments are not used. `false`: it is not reserved; or has not so many
    /// pages, and is given back.
    ///
    /// # Errors
    /// If the pool's memory is not there any more.
    #[inline(always)]
    pub fn prepare_reserved<H: Host>(
        &self,
        host: &mut H,
        skb: u64,
        (len, more): (u16, u32),
        packet: Packet<'_>,
    ) -> Result<bool, Reason> {
        let Some(lent) = host.with_pool(|pool| pool.hand_over(skb, packet.cookie)) else { return Ok(false) };
        if more == 0 {
            self.dress(host, skb, &lent, len, Packet { fragments: &[], ..packet })?;
            return Ok(true);
        }
        self.prepare_in_pages(host, skb, lent, (len, more), packet)
    }

    /// The same of a packet in pages, which is handed over.
    #[inline(never)]
    fn prepare_in_pages<H: Host>(
        &self,
        host: &mut H,
        skb: u64,
        lent: Lent,
        (len, more): (u16, u32),
        packet: Packet<'_>,
    ) -> Result<bool, Reason> {
        let mut fragments = [Fragment::default(); MAX_FRAGMENTS];
        let Some(fragments) = fragments_of(host, skb, more, &mut fragments) else {
            host.with_pool(|pool| {
                pool.take_over(skb, packet.cookie);
                pool.unreserve(skb);
            });
            return Ok(false);
        };
        self.dress(host, skb, &lent, len, Packet { fragments, ..packet })?;
        Ok(true)
    }

    /// Bytes of a buffer that are not for the packet.
    #[must_use]
    pub fn overhead(&self) -> u64 {
        self.offsets.info_size.next_multiple_of(64) + HEADROOM
    }

    /// Bytes of a packet for which a buffer of `size` bytes has room.
    #[must_use]
    pub fn room(&self, size: u32) -> u32 {
        u32::try_from(u64::from(size).saturating_sub(self.overhead())).unwrap_or(0)
    }

    /// Takes back a prepared packet that was not handed to the driver (its queue was stopped, or it answered "busy").
    pub fn withdraw<H: Host>(&self, host: &mut H, skb: u64) {
        host.with_pool(|pool| pool.give(skb));
    }
}
