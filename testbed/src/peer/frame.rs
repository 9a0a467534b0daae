//! Ethernet, ARP, IPv4, ICMP echo and UDP, as little of them as the peer needs.

/// Our own addresses.
pub const MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x70, 0x65, 0x72];
pub const IP: [u8; 4] = [10, 9, 0, 1];

/// A checksum in the frame is wrong, or a length in it cannot be.
#[derive(Debug, PartialEq, Eq)]
pub struct Damaged;

/// Someone asks for our MAC address.
pub struct Arp {
    mac: [u8; 6],
    ip: [u8; 4],
}

impl Arp {
    pub fn request_for_us(frame: &[u8]) -> Option<Self> {
        let body = payload(frame, [8, 6])?.get(..28)?;
        if body[..8] != [0, 1, 8, 0, 6, 4, 0, 1] || body[24..28] != IP {
            return None;
        }
        Some(Self { mac: body[8..14].try_into().ok()?, ip: body[14..18].try_into().ok()? })
    }

    pub fn answer(&self) -> Vec<u8> {
        let mut out = ethernet(self.mac, [8, 6]);
        out.extend([0, 1, 8, 0, 6, 4, 0, 2]);
        out.extend(MAC);
        out.extend(IP);
        out.extend(self.mac);
        out.extend(self.ip);
        out.resize(60, 0);
        out
    }
}

/// IPv4, IPv6 or ARP.
pub fn is_known(frame: &[u8]) -> bool {
    matches!(frame.get(12..14), Some([8, 0 | 6] | [0x86, 0xdd]))
}

/// Someone says its MAC address.
pub fn is_arp_answer(frame: &[u8]) -> bool {
    payload(frame, [8, 6]).is_some_and(|body| body.get(6..8) == Some(&[0, 2]))
}

/// Frames for the TCP stack: TCP, and ARP, from which it learns addresses.
pub fn is_for_tcp(frame: &[u8]) -> bool {
    payload(frame, [8, 6]).is_some() || matches!(ipv4(frame), Ok(Some((_, 6, _))))
}

/// The answer to an ICMP echo request to us.
pub fn answer_ping(frame: &[u8]) -> Option<Vec<u8>> {
    let (from, protocol, body) = ipv4(frame).ok()??;
    if protocol != 1 || body.first() != Some(&8) || internet_checksum(0, body) != 0 {
        return None;
    }
    let mut echo = body.to_vec();
    echo[0] = 0;
    echo[2..4].fill(0);
    let sum = internet_checksum(0, &echo);
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    Some(packet(frame.get(6..12)?.try_into().ok()?, from, 1, &echo))
}

/// A UDP datagram to us.
pub struct Udp<'a> {
    mac: [u8; 6],
    from: [u8; 4],
    from_port: u16,
    pub to_port: u16,
    pub body: &'a [u8],
}

impl<'a> Udp<'a> {
    /// The datagram in `frame`, `None` if it is something else.
    pub fn parse(frame: &'a [u8]) -> Result<Option<Self>, Damaged> {
        let Some((from, protocol, body)) = ipv4(frame)? else { return Ok(None) };
        if protocol != 17 {
            return Ok(None);
        }
        let word = |at: usize| body.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or(Damaged);
        let len = usize::from(word(4)?);
        let datagram = body.get(..len).filter(|d| d.len() >= 8).ok_or(Damaged)?;
        if word(6)? != 0 && internet_checksum(pseudo_header(from, IP, 17, datagram.len()), datagram) != 0 {
            return Err(Damaged);
        }
        let mac = frame.get(6..12).and_then(|m| m.try_into().ok()).ok_or(Damaged)?;
        Ok(Some(Self { mac, from, from_port: word(0)?, to_port: word(2)?, body: &datagram[8..] }))
    }

    /// Address and port.
    pub fn sender(&self) -> ([u8; 4], u16) {
        (self.from, self.from_port)
    }

    /// The way back to the sender.
    pub fn path(&self) -> UdpPath {
        UdpPath { mac: self.mac, to: self.from, to_port: self.from_port, own_port: self.to_port }
    }

    pub fn answer(&self, body: &[u8]) -> Vec<u8> {
        self.path().datagram(body)
    }
}

/// Where a datagram of ours goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UdpPath {
    mac: [u8; 6],
    to: [u8; 4],
    to_port: u16,
    own_port: u16,
}

impl UdpPath {
    /// Whose it is.
    pub fn to(&self) -> [u8; 4] {
        self.to
    }

    pub fn datagram(&self, body: &[u8]) -> Vec<u8> {
        let len = u16::try_from(body.len() + 8).unwrap_or(u16::MAX);
        let mut datagram = Vec::with_capacity(body.len() + 8);
        datagram.extend(self.own_port.to_be_bytes());
        datagram.extend(self.to_port.to_be_bytes());
        datagram.extend(len.to_be_bytes());
        datagram.extend([0, 0]);
        datagram.extend(body);
        let sum = match internet_checksum(pseudo_header(IP, self.to, 17, datagram.len()), &datagram) {
            0 => 0xffff,
            sum => sum,
        };
        datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        packet(self.mac, self.to, 17, &datagram)
    }
}

fn payload(frame: &[u8], ethertype: [u8; 2]) -> Option<&[u8]> {
    (frame.get(12..14)? == ethertype).then(|| &frame[14..])
}

/// Source, protocol and body.
type Packet<'a> = ([u8; 4], u8, &'a [u8]);

/// The parts of an IPv4 packet to us, without fragments and options.
fn ipv4(frame: &[u8]) -> Result<Option<Packet<'_>>, Damaged> {
    let Some(ip) = payload(frame, [8, 0]) else { return Ok(None) };
    let header = ip.get(..20).ok_or(Damaged)?;
    if header[16..20] != IP {
        return Ok(None);
    }
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] != 0x45 || internet_checksum(0, header) != 0 {
        return Err(Damaged);
    }
    let body = ip.get(20..len).ok_or(Damaged)?;
    Ok(Some(([header[12], header[13], header[14], header[15]], header[9], body)))
}

pub(super) fn ethernet(to: [u8; 6], ethertype: [u8; 2]) -> Vec<u8> {
    let mut out = Vec::with_capacity(1514);
    out.extend(to);
    out.extend(MAC);
    out.extend(ethertype);
    out
}

fn packet(to_mac: [u8; 6], to: [u8; 4], protocol: u8, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len() + 20).unwrap_or(u16::MAX).to_be_bytes();
    let mut header = vec![0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
    header.extend(IP);
    header.extend(to);
    let sum = internet_checksum(0, &header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut out = ethernet(to_mac, [8, 0]);
    out.extend(header);
    out.extend(body);
    out.resize(out.len().max(60), 0);
    out
}

fn pseudo_header(from: [u8; 4], to: [u8; 4], protocol: u8, len: usize) -> u64 {
    let mut bytes = Vec::with_capacity(12);
    bytes.extend(from);
    bytes.extend(to);
    bytes.extend([0, protocol]);
    bytes.extend(u16::try_from(len).unwrap_or(0).to_be_bytes());
    sum_words(0, &bytes)
}

pub(super) fn sum_words(start: u64, bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .fold(start, |sum, pair| sum + u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
}

/// RFC 1071's checksum; 0 over data that includes a right one.
pub(super) fn internet_checksum(start: u64, bytes: &[u8]) -> u16 {
    let mut sum = sum_words(start, bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or(0)
}
