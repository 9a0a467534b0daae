//! Ethernet frames for tests.

use std::vec::Vec;

/// What a frame is to be.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Destination.
    pub to: [u8; 6],
    /// Source.
    pub from: [u8; 6],
    /// VLAN tags.
    pub tags: u8,
    /// IPv6 rather than IPv4.
    pub is_v6: bool,
    /// TCP rather than UDP.
    pub is_tcp: bool,
    /// Bytes of TCP options, a multiple of 4; for IPv6 also of a destination options header, if 8 or more.
    pub options: u8,
    /// Bytes of payload.
    pub payload: usize,
    /// Makes contents differ.
    pub seed: u32,
}

impl Shape {
    /// A plain TCP packet.
    pub const fn tcp(to: [u8; 6], from: [u8; 6], payload: usize) -> Shape {
        Shape { to, from, tags: 0, is_v6: false, is_tcp: true, options: 0, payload, seed: 1 }
    }

    /// The frame, with the sum of the pseudo header where the checksum belongs (as for `XEN_NETTXF_csum_blank`).
    pub fn blank(self) -> Vec<u8> {
        let mut f = Vec::new();
        f.extend(self.to);
        f.extend(self.from);
        for i in 0..self.tags {
            f.extend([
                if i == 0 && self.tags > 1 { 0x88 } else { 0x81 },
                if i == 0 && self.tags > 1 { 0xa8 } else { 0 },
            ]);
            f.extend([0, 7 + i]);
        }
        f.extend(if self.is_v6 { [0x86, 0xdd] } else { [8, 0] });
        let options = usize::from(self.options & !3).min(40);
        let l4_header = if self.is_tcp { 20 + options } else { 8 };
        let l4_len = l4_header + self.payload;
        let protocol = if self.is_tcp { 6 } else { 17 };
        let addresses: Vec<u8>;
        let l3 = f.len();
        if self.is_v6 {
            let extension = if options >= 8 { 8 } else { 0 };
            f.extend([0x60, 0, 0, 1]);
            f.extend(((extension + l4_len) as u16).to_be_bytes());
            f.extend([if extension > 0 { 60 } else { protocol }, 64]);
            f.extend((0..32u32).map(|i| (i * 37 + self.seed) as u8));
            addresses = f[l3 + 8..].to_vec();
            if extension > 0 {
                f.extend([protocol, 0, 1, 4, 0, 0, 0, 0]);
            }
        } else {
            f.extend([0x45, 0]);
            f.extend(((20 + l4_len) as u16).to_be_bytes());
            f.extend((self.seed as u16).to_be_bytes());
            f.extend([0x40, 0, 64, protocol, 0, 0, 10, 0, 0, self.seed as u8, 10, 0, 1, 2]);
            addresses = f[l3 + 12..].to_vec();
            let sum = !slow_sum(&[&f[l3..]]);
            f[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        let l4 = f.len();
        f.extend([0x12, 0x34, 0x56, 0x78]);
        let sum = slow_sum(&[&addresses, &[0, protocol], &(l4_len as u32).to_be_bytes()]);
        if self.is_tcp {
            f.extend(self.seed.wrapping_mul(0x0101_0101).to_be_bytes());
            f.extend([9, 9, 9, 9, (l4_header as u8 / 4) << 4, 0x99, 0x20, 0]);
            f.extend(sum.to_be_bytes());
            f.extend([0, 0]);
            f.extend((0..options).map(|_| 1));
        } else {
            f.extend((l4_len as u16).to_be_bytes());
            f.extend(sum.to_be_bytes());
        }
        assert_eq!(f.len(), l4 + l4_header);
        f.extend((0..self.payload as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(self.seed) >> 13) as u8));
        f
    }

    /// The frame with its checksum.
    pub fn complete(self) -> Vec<u8> {
        let mut f = self.blank();
        let l4 = f.len() - self.payload - if self.is_tcp { 20 + usize::from(self.options & !3).min(40) } else { 8 };
        let field = l4 + if self.is_tcp { 16 } else { 6 };
        let sum = match !slow_sum(&[&f[l4..]]) {
            0 => 0xffff,
            x => x,
        };
        f[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        f
    }

    /// Its segments of `size` bytes of payload, byte by byte as RFC 9293, RFC 768 and RFC 791 have them, with their
    /// checksums.
    pub fn segments(self, size: usize) -> Vec<Vec<u8>> {
        let (frame, shape) = (self.blank(), self);
        let l3 = 14 + 4 * usize::from(shape.tags);
        let extension = if shape.is_v6 && shape.options >= 8 { 8 } else { 0 };
        let l4 = l3 + if shape.is_v6 { 40 + extension } else { 20 };
        let behind = frame.len() - shape.payload;
        let (headers, payload) = frame.split_at(behind);
        let parts: Vec<&[u8]> = if payload.is_empty() { std::vec![payload] } else { payload.chunks(size).collect() };
        let mut segments = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let mut f = headers.to_vec();
            f.extend(*part);
            let l4_len = f.len() - l4;
            if shape.is_v6 {
                f[l3 + 4..l3 + 6].copy_from_slice(&((l4_len + extension) as u16).to_be_bytes());
            } else {
                f[l3 + 2..l3 + 4].copy_from_slice(&((l4_len + 20) as u16).to_be_bytes());
                let id = (shape.seed as u16).wrapping_add(i as u16);
                f[l3 + 4..l3 + 6].copy_from_slice(&id.to_be_bytes());
                f[l3 + 10..l3 + 12].fill(0);
                let sum = !slow_sum(&[&f[l3..l4]]);
                f[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
            }
            let (protocol, field) = if shape.is_tcp { (6, l4 + 16) } else { (17, l4 + 6) };
            if shape.is_tcp {
                let sequence = shape.seed.wrapping_mul(0x0101_0101).wrapping_add((i * size) as u32);
                f[l4 + 4..l4 + 8].copy_from_slice(&sequence.to_be_bytes());
                let mut flags = 0x99;
                if i > 0 {
                    flags &= 0x7f;
                }
                if i + 1 < parts.len() {
                    flags &= 0xf6;
                }
                f[l4 + 13] = flags;
            } else {
                f[l4 + 4..l4 + 6].copy_from_slice(&(l4_len as u16).to_be_bytes());
            }
            f[field..field + 2].fill(0);
            let addresses = if shape.is_v6 { &f[l3 + 8..l3 + 40] } else { &f[l3 + 12..l3 + 20] };
            let sum = !slow_sum(&[addresses, &[0, protocol], &(l4_len as u32).to_be_bytes(), &f[l4..]]);
            let sum = if sum == 0 { 0xffff } else { sum };
            f[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            segments.push(f);
        }
        segments
    }
}

/// The Internet checksum's sum of parts that each begin a word, as the dullest code has it.
pub fn slow_sum(parts: &[&[u8]]) -> u16 {
    let mut sum = 0u32;
    for part in parts {
        for pair in part.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    sum as u16
}
