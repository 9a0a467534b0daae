//! Packets that were received: their Ethernet header is taken off, and they are handed over to the host.

use super::alloc::{napi_allocate, release, release_unread};
use super::transmit::{GSO_TCP_V4, GSO_TCP_V6, GSO_UDP, GSO_UDP_FRAGMENTS};
use super::{read_fragments, Fragment, Parts, ETHERNET_HEADER};
use crate::linux::offsets::Offsets;
use crate::linux::{bad, Done, Host, Stop, Support};
use crate::memory::{Fault, Memory};

const GRO_NORMAL: u64 = 3;
/// `ip_summed`: the checksum is to be completed by whoever sends the packet on.
const CHECKSUM_PARTIAL: u8 = 3;

/// A received packet. Each word was read once and is a copy; the Ethernet header and the linear part lie inside the
/// buffer, and each fragment names a `struct page` and at most [`super::LARGEST`] bytes. What the pages hold, and
/// whether they are the domain's, whoever reads them checks: [`Memory`] for linear data, [`Host::machine_frame`] for
/// fragments.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'f> {
    /// The `sk_buff`.
    pub skb: u64,
    /// Its buffer.
    pub head: u64,
    /// Address of the linear data (after the Ethernet header).
    pub data: u64,
    /// Bytes of it.
    pub linear: u32,
    /// Address of the Ethernet header; not above `data`.
    pub mac_header: u64,
    /// Bytes from the Ethernet header to the end of the linear part; at least those of the header.
    pub len: u32,
    /// `protocol`, as stored (big endian).
    pub protocol: u16,
    /// Whether the device checked the checksum (`ip_summed`).
    pub ip_summed: u8,
    /// The VLAN tag that the device took out after the addresses, as it stands in a packet.
    pub tag: Option<[u8; 4]>,
    /// Page fragments.
    pub fragments: &'f [Fragment],
    /// It has never been on a wire, and its checksum is to be completed: where the sum begins and where it is stored,
    /// from the Ethernet header on, in the linear part and not before that.
    pub blank: Option<(u16, u16)>,
    /// It is one for many: payload of each in bytes, not 0, and `gso_type`. Also by a device that puts together what
    /// came on a wire.
    pub segmentation: Option<(u16, u32)>,
}

/// What a frame is many of that is one for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Many {
    /// Segments of TCP over IPv4.
    TcpV4,
    /// Segments of TCP over IPv6.
    TcpV6,
    /// Datagrams of UDP.
    Udp,
}

/// A frame is one for many of a kind that cannot be cut here. Linux asks no device for such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownKind;

impl Frame<'_> {
    /// What the frame is many of, if it is, and the payload of each in bytes. One datagram that is to be cut into
    /// fragments of IP's is not: its receiver would put them together again. Nor is what was put together with its sums
    /// made: it is a long one, unless it is datagrams.
    ///
    /// # Errors
    /// See [`UnknownKind`].
    pub fn many(&self) -> Result<Option<(Many, u16)>, UnknownKind> {
        match self.segmentation {
            None => Ok(None),
            Some((size, kind)) if kind & GSO_UDP != 0 => Ok(Some((Many::Udp, size))),
            Some(_) if self.blank.is_none() => Ok(None),
            Some((size, kind)) if kind & GSO_TCP_V4 != 0 => Ok(Some((Many::TcpV4, size))),
            Some((size, kind)) if kind & GSO_TCP_V6 != 0 => Ok(Some((Many::TcpV6, size))),
            Some((_, kind)) if kind & GSO_UDP_FRAGMENTS != 0 => Ok(None),
            Some(_) => Err(UnknownKind),
        }
    }
}

/// `eth_type_trans(skb, device)`: strips the Ethernet header; returns the protocol as stored.
#[inline(always)]
pub fn eth_type_trans<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [skb, device, ..] = *args;
    let o = s.offsets;
    let parts = Parts::read(host, &o, skb)?;
    let [first, second] = host.u64s(parts.data, [0, 8])?;
    host.put_member_u64(skb, o.skb_dev, device)?;
    let mac = parts.data.wrapping_sub(parts.head);
    host.put_member_u16(skb, o.skb_mac_header, (mac & 0xffff) as u16)?;
    if parts.len >= ETHERNET_HEADER {
        if parts.len - ETHERNET_HEADER < parts.data_len {
            return Err(bad("no linear Ethernet header", skb));
        }
        host.put_member_u32(skb, o.skb_len, parts.len - ETHERNET_HEADER)?;
        host.put_member_u64(skb, o.skb_data, parts.data.wrapping_add(u64::from(ETHERNET_HEADER)))?;
    }
    let own = host.member_u64(device, o.device_address)?;
    let own = u64::from(host.u32(own)?) | u64::from(host.member_u16(own, 4)?) << 32;
    let kind = packet_type(first & BROADCAST, own);
    if kind != 0 {
        let byte = host.member_u8(skb, o.skb_pkt_type)?;
        host.put_member_u8(skb, o.skb_pkt_type, byte & !7 | kind)?;
    }
    // What follows the header, or what is there instead of one, tells the two old encapsulations apart.
    let (after, follows) =
        if parts.len >= ETHERNET_HEADER { (ETHERNET_HEADER, second >> 48) } else { (0, first & 0xffff) };
    let raw = parts.len - parts.data_len >= after + 2 && follows == 0xffff;
    Ok(u64::from(protocol((second >> 32 & 0xffff) as u16, raw)))
}

/// The address of all stations, as it is stored.
const BROADCAST: u64 = (1 << 48) - 1;

/// `PACKET_HOST` 0, `PACKET_BROADCAST` 1, `PACKET_MULTICAST` 2, `PACKET_OTHERHOST` 3. Addresses are as they are stored.
fn packet_type(target: u64, own: u64) -> u8 {
    match target {
        _ if target == own => 0,
        BROADCAST => 1,
        _ if target & 1 != 0 => 2,
        _ => 3,
    }
}

/// The type field in memory order, or for 802.3 frames the pseudo types 1 (`raw`) and 4.
fn protocol(stored: u16, raw: bool) -> u16 {
    match u16::from_be(stored) {
        0x0600.. => stored,
        _ if raw => 1u16.to_be(),
        _ => 4u16.to_be(),
    }
}

/// `napi_gro_receive(napi, skb)`.
#[inline(always)]
pub fn gro_receive<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if !host.takes_packets() {
        return Err(Stop::Upcall);
    }
    hand_over(s, host, args[1])?;
    Ok(GRO_NORMAL)
}

/// Bytes for headers in an `sk_buff` whose packet is in pages.
const HEADERS: u64 = 256;

/// `napi_get_frags(napi)`: the `sk_buff` that the next packet in pages is described by; it stays the poll's until that
/// is handed over.
pub fn get_frags<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let at = args[0].wrapping_add(s.offsets.napi_skb);
    let kept = host.u64(at)?;
    if kept != 0 {
        return Ok(kept);
    }
    let skb = napi_allocate(s, host, &[args[0], HEADERS, 0, 0, 0, 0])?;
    host.put_u64(at, skb)?;
    Ok(skb)
}

/// `napi_gro_frags(napi)`: hands that packet over. It begins with its Ethernet header, in the first page.
pub fn gro_frags<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if !host.takes_packets() {
        return Err(Stop::Upcall);
    }
    let at = args[0].wrapping_add(s.offsets.napi_skb);
    let skb = host.u64(at)?;
    host.put_u64(at, 0)?;
    if pull_header(s, host, skb)? {
        hand_over(s, host, skb)?;
    } else {
        release_unread(s, host, skb)?;
    }
    Ok(GRO_NORMAL)
}

/// Moves the Ethernet header of a packet in pages to where others have it. `false`: the packet is too short, or has no
/// room for it.
fn pull_header<H: Host>(s: &Support, host: &mut H, skb: u64) -> Result<bool, Stop> {
    let o = &s.offsets;
    let len = ETHERNET_HEADER;
    let parts = Parts::read(host, o, skb)?;
    let (fragments, nr) = read_fragments(host, s, &parts)?;
    let is_whole = nr != 0 && parts.data_len == parts.len && parts.len >= len;
    let first = fragments.first().filter(|first| is_whole && first.len >= len);
    let Some(first) = first.filter(|_| parts.tail.checked_add(len).is_some_and(|tail| tail <= parts.end)) else {
        return Ok(false);
    };
    let mut header = [0; ETHERNET_HEADER as usize];
    let page = s.page_address(first.page).ok_or(bad("fragment without a page", first.page))?;
    host.read(page.wrapping_add(first.offset.into()), &mut header)?;
    host.write(parts.tail_address(), &header)?;
    let mac = u16::try_from(parts.tail).map_err(|_| bad("no room for headers", skb))?;
    let put = |member: u64, value: u32| host.put_u32(skb.wrapping_add(member), value);
    host.put_u16(skb.wrapping_add(o.skb_mac_header), mac)?;
    host.put_u64(skb.wrapping_add(o.skb_data), parts.tail_address().wrapping_add(len.into()))?;
    put(o.skb_tail, parts.tail + len)?;
    put(o.skb_len, parts.len - len)?;
    put(o.skb_data_len, parts.data_len - len)?;
    let fragment = parts.head.wrapping_add(u64::from(parts.end)).wrapping_add(o.info_frags);
    host.put_u32(fragment.wrapping_add(8), first.len - len)?;
    host.put_u32(fragment.wrapping_add(12), first.offset + len)?;
    host.write(skb.wrapping_add(o.skb_protocol), &header[12..])?;
    Ok(true)
}

/// `netif_receive_skb(skb)`.
pub fn receive<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if !host.takes_packets() {
        return Err(Stop::Upcall);
    }
    hand_over(s, host, args[0])?;
    Ok(0)
}

#[inline(always)]
fn hand_over<H: Host>(s: &Support, host: &mut H, skb: u64) -> Result<(), Stop> {
    let o = &s.offsets;
    let parts = Parts::read(host, o, skb)?;
    let Some(frame) = frame(host, s, skb, &parts)? else { return release_unread(s, host, skb) };
    let nr = host.u8(parts.head.wrapping_add(u64::from(parts.end)).wrapping_add(o.info_nr_frags))?;
    // What a device has put together in one buffer is a packet like any other.
    if nr != 0 || parts.data_len != 0 || frame.ip_summed == CHECKSUM_PARTIAL {
        return hand_over_unusual(s, host, &parts, frame);
    }
    if host.receive(frame) {
        return Ok(());
    }
    release(s, host, &frame)
}

/// The same of one that has fragments, or comes from a machine that leaves to others what a card does: the host, or a
/// neighbour there.
#[cold]
fn hand_over_unusual<H: Host>(s: &Support, host: &mut H, parts: &Parts, frame: Frame<'_>) -> Result<(), Stop> {
    let (fragments, nr) = read_fragments(host, s, parts)?;
    let fragments = fragments.get(..nr).unwrap_or_default();
    let sum: u64 = fragments.iter().map(|fragment| u64::from(fragment.len)).sum();
    if sum != u64::from(parts.data_len) {
        return Err(bad("fragments do not make up data_len", sum));
    }
    let blank = if frame.ip_summed == CHECKSUM_PARTIAL { Some(blank(s, host, parts, &frame)?) } else { None };
    let info = parts.head.wrapping_add(u64::from(parts.end));
    let size = host.u16(info.wrapping_add(s.offsets.info_gso_size))?;
    let segmentation =
        if size == 0 { None } else { Some((size, host.u32(info.wrapping_add(s.offsets.info_gso_type))?)) };
    let frame = Frame { fragments, blank, segmentation, ..frame };
    if host.receive(frame) {
        return Ok(());
    }
    release(s, host, &frame)
}

/// Reads where the checksum is that is to be completed; the second is not before the first. A buffer may be longer than
/// a packet.
fn blank<H: Host>(s: &Support, host: &H, parts: &Parts, frame: &Frame<'_>) -> Result<(u16, u16), Stop> {
    let (o, mac) = (&s.offsets, frame.mac_header.wrapping_sub(parts.head));
    let start = u64::from(host.member_u16(frame.skb, o.skb_csum_start)?).checked_sub(mac);
    let field = start.map(|start| Ok::<_, Stop>(start + u64::from(host.member_u16(frame.skb, o.skb_csum_offset)?)));
    let places = match (start, field.transpose()?) {
        (Some(start), Some(field)) if field + 2 <= u64::from(frame.len) => {
            u16::try_from(start).ok().zip(u16::try_from(field).ok())
        }
        _ => None,
    };
    places.ok_or(bad("checksum out of the packet", frame.skb))
}

/// Reads a packet, without its fragments. `None` if it is too short for an Ethernet header: nobody wants it, but
/// whoever sent it must not end the twin by it.
#[inline(always)]
fn frame<H: Host>(host: &H, s: &Support, skb: u64, parts: &Parts) -> Result<Option<Frame<'static>>, Stop> {
    let o = &s.offsets;
    let linear = parts.len - parts.data_len;
    let data_at = parts.data.wrapping_sub(parts.head);
    let linear_end = data_at + u64::from(linear);
    if linear_end > u64::from(parts.end) {
        return Err(bad("packet longer than its buffer", u64::from(linear)));
    }
    let mac = u64::from(host.member_u16(skb, o.skb_mac_header)?);
    if mac > data_at {
        return Err(bad("Ethernet header behind the data", mac));
    }
    if mac + u64::from(ETHERNET_HEADER) > linear_end {
        return Ok(None);
    }
    Ok(Some(Frame {
        skb,
        head: parts.head,
        data: parts.data,
        linear,
        mac_header: parts.head.wrapping_add(mac),
        len: u32::try_from(linear_end - mac).unwrap_or(0),
        protocol: host.member_u16(skb, o.skb_protocol)?,
        ip_summed: host.member_u8(skb, o.skb_pkt_type)? >> 5 & 3,
        tag: read_tag(host, o, skb)?,
        fragments: &[],
        blank: None,
        segmentation: None,
    }))
}

/// Reads the tag. Where there is none, nothing was written since the `sk_buff` was all zeroes.
fn read_tag(memory: &impl Memory, o: &Offsets, skb: u64) -> Result<Option<[u8; 4]>, Fault> {
    let kind = memory.member_u16(skb, o.skb_vlan_proto)?;
    if kind == 0 {
        return Ok(None);
    }
    let ([a, b], [c, d]) = (kind.to_le_bytes(), memory.member_u16(skb, o.skb_vlan_tci)?.to_be_bytes());
    Ok(Some([a, b, c, d]))
}
