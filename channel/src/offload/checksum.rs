//! Internet checksums (RFC 1071): sums of big-endian 16-bit words modulo 2^16 - 1.

use super::headers::{word, Headers, L4};
use crate::grants::Frames;
use crate::packet::{Checksum, Fragment, View, HEADER_BYTES};

/// A sum on its way, of any number of bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    words: u64,
    /// The next byte is the low half of a word.
    is_odd: bool,
}

impl Sum {
    /// Adds bytes.
    #[inline]
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add_part(sum(bytes), bytes.len());
    }

    /// Adds `len` bytes whose sum, as if they began a word, is `part`.
    #[inline]
    pub fn add_part(&mut self, part: u16, len: usize) {
        self.words += u64::from(if self.is_odd { part.swap_bytes() } else { part });
        self.is_odd ^= len % 2 == 1;
    }

    /// The sum so far.
    #[inline]
    pub fn fold(self) -> u16 {
        let mut x = self.words;
        while x >> 16 != 0 {
            x = (x & 0xffff) + (x >> 16);
        }
        #[allow(clippy::cast_possible_truncation, reason = "folded")]
        {
            x as u16
        }
    }
}

/// A sum of bytes that are taken eight at a time, in the order of this machine: 2^64 is 1 modulo 2^16 - 1, so carries
/// go round, and the order comes right at the end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Eights {
    total: u64,
    carries: u64,
}

impl Eights {
    /// Adds eight bytes, or the sum of many eights with its carries.
    #[inline(always)]
    pub fn add(&mut self, eight: u64) {
        let (total, carry) = self.total.overflowing_add(eight);
        self.total = total;
        self.carries += u64::from(carry);
    }

    /// Adds bytes, fewer than eight; a last single one is the high half of a word.
    #[inline(always)]
    pub fn add_rest(&mut self, rest: &[u8]) {
        let mut last = [0; 8];
        if let Some(last) = last.get_mut(..rest.len()) {
            last.copy_from_slice(rest);
        }
        self.add(u64::from_ne_bytes(last));
    }

    /// Adds what stands where a word begins.
    #[inline(always)]
    pub fn append(&mut self, more: Self) {
        self.add(more.total());
    }

    #[inline(always)]
    fn total(self) -> u64 {
        let (sum, carry) = self.total.overflowing_add(self.carries);
        sum + u64::from(carry)
    }

    /// The sum as big-endian words.
    #[inline]
    pub fn fold(self) -> u16 {
        let total = self.total();
        let folded = Sum { words: (total & 0xffff_ffff) + (total >> 32), is_odd: false }.fold();
        u16::from_be(folded)
    }

    /// Is the sum one that a right checksum makes, 0 modulo 2^16 - 1? In any order of bytes that is the same.
    #[inline(always)]
    pub fn is_right(self) -> bool {
        self.total().is_multiple_of(u16::MAX.into())
    }
}

/// The sum of bytes as big-endian words; a last single byte is the high half of one.
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    eights(bytes).fold()
}

#[inline(always)]
fn eights(bytes: &[u8]) -> Eights {
    let mut total = Eights::default();
    let mut eights = bytes.chunks_exact(8);
    for eight in &mut eights {
        total.add(u64::from_ne_bytes(eight.try_into().expect("chunks of 8")));
    }
    total.add_rest(eights.remainder());
    total
}

/// The sum of the pseudo header of a packet with `len` bytes of TCP or UDP (header and payload).
#[inline(always)]
pub fn pseudo_header(bytes: &[u8], headers: &Headers, len: u32) -> Option<u16> {
    pseudo_eights(bytes, headers, len).map(Eights::fold)
}

#[inline(always)]
fn pseudo_eights(bytes: &[u8], headers: &Headers, len: u32) -> Option<Eights> {
    // Of a known length each.
    let mut sum = if headers.is_v6 {
        eights(bytes.get(headers.l3 + 8..)?.first_chunk::<32>()?)
    } else {
        eights(bytes.get(headers.l3 + 12..)?.first_chunk::<8>()?)
    };
    sum.add(u32::to_be(u32::from(headers.protocol.number()) + len).into());
    Some(sum)
}

/// Bytes of TCP or UDP, header and payload, of a packet of `len` bytes that begins with `bytes`; a short frame is
/// filled up behind them. `None`: there are not so many, or IP and UDP say different lengths.
#[inline(always)]
fn l4_len(bytes: &[u8], headers: &Headers, len: u16) -> Option<u16> {
    let Headers { is_v6, l3, l4, protocol, payload } = *headers;
    let end = if is_v6 { l3 + 40 + usize::from(word(bytes, l3 + 4)?) } else { l3 + usize::from(word(bytes, l3 + 2)?) };
    let said = u16::try_from(end.checked_sub(l4)?).ok()?;
    let is_there = payload <= end && end <= len.into();
    (is_there && (protocol == L4::Tcp || word(bytes, l4 + 4)? == said)).then_some(said)
}

/// Is the TCP or UDP checksum of a packet right that lies in `whole`, and whose beginning is copied in `bytes`? One
/// that has none is not.
#[inline(always)]
pub fn is_right<F: Copy>(bytes: &[u8], headers: &Headers, whole: &Fragment<F>, frames: &impl Frames<F>) -> bool {
    let Some(len) = l4_len(bytes, headers, whole.len) else { return false };
    let Some(mut sum) = pseudo_eights(bytes, headers, len.into()) else { return false };
    if word(bytes, headers.l4 + headers.protocol.field()).is_none_or(|field| field == 0 && headers.protocol == L4::Udp)
    {
        return false;
    }
    let Ok(l4) = u16::try_from(headers.l4) else { return false };
    sum.append(frames.sum(whole.frame, whole.offset + l4, len));
    sum.is_right()
}

/// The checksum that completes a packet whose [`Checksum`] is blank, and where it belongs. `None`: nothing is to be
/// done. The payload is read: if its sender changes it meanwhile, the packet is what its receiver throws away.
pub fn complete<F: Copy>(view: &View<'_, F>, frames: &impl Frames<F>) -> Option<(usize, [u8; 2])> {
    let Checksum::Blank { start, field } = view.checksum else { return None };
    let mut sum = Sum::default();
    sum.add_bytes(view.header.get(usize::from(start)..)?);
    for piece in view.pieces() {
        sum.add_part(frames.sum(piece.frame, piece.offset, piece.len).fold(), piece.len.into());
    }
    // 0 says "none" in UDP, and there is another way to write it; to TCP both are the same.
    let value = match !sum.fold() {
        0 => 0xffff,
        value => value,
    };
    Some((field.into(), value.to_be_bytes()))
}

/// A packet whose checksum is blank, with its checksum; its beginning is made in `buffer`. `None`: it cannot be.
pub fn completed<'a, F: Copy>(
    view: &View<'a, F>,
    frames: &impl Frames<F>,
    buffer: &'a mut [u8; HEADER_BYTES],
) -> Option<View<'a, F>> {
    let header = buffer.get_mut(..view.header.len())?;
    header.copy_from_slice(view.header);
    let (at, checksum) = complete(view, frames)?;
    header.get_mut(at..at + 2)?.copy_from_slice(&checksum);
    Some(View { header, checksum: Checksum::Validated, ..*view })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn one_by_one(bytes: &[u8]) -> u16 {
        let words = bytes.chunks(2).map(|w| u64::from(w[0]) << 8 | w.get(1).map_or(0, |low| u64::from(*low)));
        Sum { words: words.sum(), is_odd: false }.fold()
    }

    /// Equal modulo 2^16 - 1: there are two ways to write 0.
    fn same(a: u16, b: u16) -> bool {
        a % u16::MAX == b % u16::MAX
    }

    #[test]
    fn eights_add_up_as_words_do() {
        let mut seed = 1u64;
        for round in 0..2000usize {
            let mut next = || {
                seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                // Many that are all ones, so that carries meet carries.
                if seed >> 62 == 0 {
                    u64::MAX
                } else {
                    seed
                }
            };
            let eights: Vec<u64> = (0..round % 40).map(|_| next()).collect();
            let mut bytes: Vec<u8> = eights.iter().flat_map(|eight| eight.to_ne_bytes()).collect();
            let mut total = Eights::default();
            eights.iter().for_each(|eight| total.add(*eight));
            let last = &next().to_ne_bytes()[..round % 8];
            bytes.extend(last);
            total.add_rest(last);
            let expected = one_by_one(&bytes);
            assert!(same(total.fold(), expected), "round {round}");
            assert_eq!(total.is_right(), expected.is_multiple_of(u16::MAX), "round {round}");
            total.add((!expected).to_be().into());
            assert!(total.is_right(), "round {round}");
            assert!(same(sum(&bytes), expected), "round {round}");
        }
    }
}
