//! Where the headers of a packet are: Ethernet, VLAN tags, IPv4 or IPv6, TCP or UDP.

use core::ops::Range;

/// Ethernet header without tags.
pub const ETH_HEADER: usize = 14;
const ETH_IPV4: u16 = 0x0800;
const ETH_IPV6: u16 = 0x86dd;
const ETH_VLAN: [u16; 2] = [0x8100, 0x88a8];
/// Tags that are looked through.
const MAX_TAGS: usize = 2;
/// Extension headers of IPv6 that are looked through.
const MAX_EXTENSIONS: usize = 8;

/// A protocol with a checksum over its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L4 {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl L4 {
    /// Place of the checksum in its header.
    pub const fn field(self) -> usize {
        match self {
            L4::Tcp => 16,
            L4::Udp => 6,
        }
    }

    /// Number of the protocol in IP's header.
    pub const fn number(self) -> u8 {
        match self {
            L4::Tcp => 6,
            L4::Udp => 17,
        }
    }
}

/// Where the headers of a packet are, in bytes from its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// IPv6 rather than IPv4.
    pub is_v6: bool,
    /// Begin of IP's header.
    pub l3: usize,
    /// Begin of TCP's or UDP's header.
    pub l4: usize,
    /// Which it is.
    pub protocol: L4,
    /// Begin of the payload.
    pub payload: usize,
}

/// The 16-bit big-endian word at `at`.
#[inline]
pub fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Finds the headers in the first bytes of a packet. `None`: no TCP or UDP, a fragment of a datagram, or headers that
/// do not lie in `bytes` as a whole.
#[inline]
pub fn parse(bytes: &[u8]) -> Option<Headers> {
    plain(bytes).or_else(|| parse_any(bytes))
}

/// The headers of what most packets are: IPv4 without options and tags. Where they are is known beforehand.
#[inline(always)]
pub fn plain(bytes: &[u8]) -> Option<Headers> {
    const L4_AT: usize = ETH_HEADER + 20;
    let (head, rest) = bytes.split_first_chunk::<{ L4_AT + 8 }>()?;
    let is_plain = head[12..15] == [0x08, 0x00, 0x45] && head[20] & 0x3f == 0 && head[21] == 0;
    let (protocol, header) = match head[23] {
        17 => (L4::Udp, 8),
        6 => (L4::Tcp, usize::from(rest.get(4)? >> 4) * 4),
        _ => return None,
    };
    let is_there = header <= rest.len() + 8 && (protocol == L4::Udp || header >= 20);
    (is_plain && is_there).then_some(Headers {
        is_v6: false,
        l3: ETH_HEADER,
        l4: L4_AT,
        protocol,
        payload: L4_AT + header,
    })
}

/// Is this IPv4 that carries no TCP? Told at a glance, of packets without tags.
#[inline]
pub fn is_ipv4_without_tcp(bytes: &[u8]) -> bool {
    const PROTOCOL_AT: usize = ETH_HEADER + 9;
    let is =
        |head: &[u8; PROTOCOL_AT + 1]| head[12..14] == ETH_IPV4.to_be_bytes() && head[PROTOCOL_AT] != L4::Tcp.number();
    bytes.first_chunk().is_some_and(is)
}

/// Bytes of a VLAN tag.
pub const TAG: u32 = 4;

/// Does a packet have a VLAN tag?
#[inline]
pub fn is_tagged(bytes: &[u8]) -> bool {
    word(bytes, 12).is_some_and(|ethertype| ETH_VLAN.contains(&ethertype))
}

/// Does a packet whose first bytes are these end within its tags? Of one that has no end of them it is not known, and
/// said as well.
#[cold]
pub fn ends_in_tags(bytes: &[u8]) -> bool {
    let mut types = (12..).step_by(TAG as usize).map(|at| word(bytes, at));
    types.find(|kind| !kind.is_some_and(|kind| ETH_VLAN.contains(&kind))) == Some(None)
}

/// What a packet carries, and where that begins: behind tags.
fn behind_tags(bytes: &[u8]) -> Option<(u16, usize)> {
    let mut l3 = ETH_HEADER;
    let mut ethertype = word(bytes, 12)?;
    for _ in 0..MAX_TAGS {
        if !ETH_VLAN.contains(&ethertype) {
            break;
        }
        ethertype = word(bytes, l3 + 2)?;
        l3 += 4;
    }
    Some((ethertype, l3))
}

/// Where both IP addresses of a packet are, whatever it carries.
pub fn addresses(bytes: &[u8]) -> Option<Range<usize>> {
    match behind_tags(bytes)? {
        (ETH_IPV4, l3) => Some(l3 + 12..l3 + 20),
        (ETH_IPV6, l3) => Some(l3 + 8..l3 + 40),
        _ => None,
    }
}

/// [`parse`], of whatever packet.
#[inline(never)]
fn parse_any(bytes: &[u8]) -> Option<Headers> {
    let (ethertype, l3) = behind_tags(bytes)?;
    let (is_v6, protocol, l4) = match ethertype {
        ETH_IPV4 => {
            let first = *bytes.get(l3)?;
            let header = usize::from(first & 0xf) * 4;
            // Neither more fragments nor an offset.
            if first >> 4 != 4 || header < 20 || word(bytes, l3 + 6)? & 0x3fff != 0 {
                return None;
            }
            (false, *bytes.get(l3 + 9)?, l3 + header)
        }
        ETH_IPV6 => {
            let (protocol, l4) = skip_extensions(bytes, l3)?;
            (true, protocol, l4)
        }
        _ => return None,
    };
    let (protocol, header) = match protocol {
        6 => {
            let header = usize::from(bytes.get(l4 + 12)? >> 4) * 4;
            (L4::Tcp, if header < 20 { return None } else { header })
        }
        17 => (L4::Udp, 8),
        _ => return None,
    };
    let payload = l4 + header;
    (payload <= bytes.len()).then_some(Headers { is_v6, l3, l4, protocol, payload })
}

/// The protocol of an IPv6 packet's payload and where it begins.
fn skip_extensions(bytes: &[u8], l3: usize) -> Option<(u8, usize)> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const DESTINATION: u8 = 60;
    if bytes.get(l3)? >> 4 != 6 {
        return None;
    }
    let mut next = *bytes.get(l3 + 6)?;
    let mut at = l3 + 40;
    for _ in 0..MAX_EXTENSIONS {
        match next {
            HOP_BY_HOP | ROUTING | DESTINATION => {
                next = *bytes.get(at)?;
                at += (usize::from(*bytes.get(at + 1)?) + 1) * 8;
            }
            _ => break,
        }
    }
    Some((next, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The short way finds what the long one does, or nothing.
        #[test]
        fn plain_packets_are_as_any(
            mut bytes in prop::collection::vec(any::<u8>(), 0..90),
            is_v4 in prop::bool::weighted(0.9),
            protocol in prop::sample::select(std::vec![6u8, 17, 1]),
            flags in prop::sample::select(std::vec![0u8, 0x40, 0x20, 0x80, 1]),
            offset in prop::sample::select(std::vec![0u8, 0, 0, 1]),
            first in prop::sample::select(std::vec![0x45u8, 0x45, 0x46, 0x44, 0x65]),
            doff in 0u8..16,
        ) {
            let mut put = |at: usize, byte: u8| if let Some(to) = bytes.get_mut(at) { *to = byte };
            if is_v4 {
                [(12, 8), (13, 0)].into_iter().for_each(|(at, byte)| put(at, byte));
            }
            [(14, first), (20, flags), (21, offset), (23, protocol), (46, doff << 4)].into_iter().for_each(|(at, byte)| put(at, byte));
            let any = parse_any(&bytes);
            prop_assert!(plain(&bytes).is_none_or(|headers| Some(headers) == any));
            let is_v4_tcp = any.is_some_and(|headers| headers.protocol == L4::Tcp && !headers.is_v6);
            prop_assert!(!(is_v4_tcp && is_ipv4_without_tcp(&bytes)));
            if bytes.len() > 23 {
                prop_assert_eq!(is_ipv4_without_tcp(&bytes), bytes[12..14] == [8, 0] && bytes[23] != 6);
            }
            prop_assert_eq!(parse(&bytes), any);
        }
    }

    #[test]
    fn what_most_packets_are_goes_the_short_way() {
        let mut bytes = [0; 60];
        bytes[12..15].copy_from_slice(&[8, 0, 0x45]);
        bytes[23] = 17;
        assert_eq!(plain(&bytes).map(|h| (h.protocol, h.payload)), Some((L4::Udp, 42)));
        (bytes[23], bytes[46]) = (6, 0x50);
        assert_eq!(plain(&bytes).map(|h| (h.protocol, h.payload)), Some((L4::Tcp, 54)));
    }
}
