//! Cutting a packet that is one for many into segments, as a network card would: TCP's, or datagrams of UDP's.

use super::checksum::{pseudo_header, sum};
use super::headers::{parse, Headers, ETH_HEADER, L4};
use crate::packet::{Checksum, Gso, GsoKind, View, HEADER_BYTES};

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
/// Payload of segments below which there are more of them than a card should be asked for at once.
const MIN_SIZE: u32 = 256;
/// An IPv6 header without extensions.
const IPV6_HEADER: usize = 40;

/// A packet and where it is to be cut.
#[derive(Clone, Copy, Debug)]
pub struct Cutter<'a, F> {
    view: View<'a, F>,
    headers: Headers,
    /// Payload of a segment, in bytes.
    size: u32,
    /// Payload of all.
    payload: u32,
    /// Payload that lies in the copied part.
    copied: u32,
}

impl<'a, F: Copy> Cutter<'a, F> {
    /// `None`: the packet is not to be cut, or cannot be.
    pub fn new(view: View<'a, F>) -> Option<Cutter<'a, F>> {
        let Gso { kind, size } = view.gso?;
        let protocol = if kind == GsoKind::Udp { L4::Udp } else { L4::Tcp };
        let headers = parse(view.header).filter(|h| h.protocol == protocol)?;
        let copied = u32::try_from(view.header.len() - headers.payload).ok()?;
        (size > 0).then_some(Cutter { view, headers, size: size.into(), payload: copied + view.body, copied })
    }

    /// Number of segments; at least 1.
    pub fn nr_segments(&self) -> u32 {
        self.payload.div_ceil(self.size).max(1)
    }

    /// May a card, which sends no frame longer than `max_frame` bytes, be asked to cut it? Whatever is unusual is cut
    /// here: what its headers and its sender say of it differs, there are tags or extension headers, segments are tiny,
    /// or there is only one.
    pub fn is_plain(&self, max_frame: u32) -> bool {
        let Headers { is_v6, l3, l4, protocol, payload } = self.headers;
        let is_v6_packet = self.view.gso.is_some_and(|gso| gso.kind == GsoKind::TcpV6);
        let is_blank = match self.view.checksum {
            Checksum::Blank { start, field } => (start.into(), field.into()) == (l4, l4 + protocol.field()),
            _ => false,
        };
        let has_plain_headers = l3 == ETH_HEADER && (!is_v6 || l4 == l3 + IPV6_HEADER);
        let has_plain_segments = self.size >= MIN_SIZE
            && self.payload > self.size
            && u32::try_from(payload).is_ok_and(|headers| headers.saturating_add(self.size) <= max_frame);
        is_v6 == is_v6_packet && is_blank && has_plain_headers && has_plain_segments
    }

    /// Segment `i`. Its headers are made in `buffer`. Its checksum is blank.
    pub fn segment<'b>(&'b self, i: u32, buffer: &'b mut [u8; HEADER_BYTES]) -> View<'b, F> {
        let begin = (i * self.size).min(self.payload);
        let end = (begin + self.size).min(self.payload);
        let is_last = end == self.payload;
        // What of its payload is in the copied part goes behind the headers.
        let headers_len = self.headers.payload;
        let (from, to) = (begin.min(self.copied) as usize, end.min(self.copied) as usize);
        let len = headers_len + to - from;
        buffer[..headers_len].copy_from_slice(&self.view.header[..headers_len]);
        buffer[headers_len..len].copy_from_slice(&self.view.header[headers_len + from..headers_len + to]);
        self.write_headers(&mut buffer[..headers_len], i, end - begin, is_last);
        #[allow(clippy::cast_possible_truncation, reason = "headers are short")]
        let checksum = Checksum::Blank { start: self.headers.l4 as u16, field: self.checksum_field() as u16 };
        View {
            header: &buffer[..len],
            fragments: self.view.fragments,
            skip: self.view.skip + begin.max(self.copied) - self.copied,
            body: end.max(self.copied) - begin.max(self.copied),
            checksum,
            gso: None,
        }
    }

    /// Where the checksum is.
    fn checksum_field(&self) -> usize {
        self.headers.l4 + self.headers.protocol.field()
    }

    #[allow(clippy::cast_possible_truncation, reason = "a segment is no longer than its packet, which has 64 KiB")]
    fn write_headers(&self, h: &mut [u8], i: u32, payload: u32, is_last: bool) {
        let Headers { is_v6, l3, l4, payload: behind, .. } = self.headers;
        let l4_len = (behind - l4) as u32 + payload;
        if is_v6 {
            let len = (l4 - l3 - 40) as u32 + l4_len;
            h[l3 + 4..l3 + 6].copy_from_slice(&(len as u16).to_be_bytes());
        } else {
            let len = (l4 - l3) as u32 + l4_len;
            h[l3 + 2..l3 + 4].copy_from_slice(&(len as u16).to_be_bytes());
            let id = u16::from_be_bytes([h[l3 + 4], h[l3 + 5]]).wrapping_add(i as u16);
            h[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
            h[l3 + 10..l3 + 12].fill(0);
            let checksum = !sum(&h[l3..l4]);
            h[l3 + 10..l3 + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        match self.headers.protocol {
            L4::Tcp => self.write_tcp(&mut h[l4..], i, is_last),
            L4::Udp => h[l4 + 4..l4 + 6].copy_from_slice(&(l4_len as u16).to_be_bytes()),
        }
        let (field, blank) = (self.checksum_field(), pseudo_header(h, &self.headers, l4_len).unwrap_or(0));
        h[field..field + 2].copy_from_slice(&blank.to_be_bytes());
    }

    fn write_tcp(&self, h: &mut [u8], i: u32, is_last: bool) {
        let sequence = u32::from_be_bytes([h[4], h[5], h[6], h[7]]);
        h[4..8].copy_from_slice(&sequence.wrapping_add(i * self.size).to_be_bytes());
        if !is_last {
            h[13] &= !(FIN | PSH);
        }
        if i > 0 {
            h[13] &= !CWR;
        }
    }
}

#[cfg(test)]
mod tests;
