//! Where the headers of a packet are: Ethernet, VLAN tags, IPv4 or IPv6, TCP or UDP.

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
pub fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

/// Finds the headers in the first bytes of a packet. `None`: no TCP or UDP, a fragment of a datagram, or headers that do not
/// lie in `bytes` as a whole.
#[inline]
pub fn parse(bytes: &[u8]) -> Option<Headers> {
    let mut l3 = ETH_HEADER;
    let mut ethertype = word(bytes, 12)?;
    for _ in 0..MAX_TAGS {
        if !ETH_VLAN.contains(&ethertype) {
            break;
        }
        ethertype = word(bytes, l3 + 2)?;
        l3 += 4;
    }
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
