//! Putting TCP segments that follow each other together, as a receiver's own stack would: one packet for many, which
//! says how it is to be cut. Cut, it is the same segments again.
//!
//! Only what differs in nothing but its place in the stream is put together: the same headers and options, no VLAN tag,
//! no flags but ACK and, on the last, PSH. Identifications of IPv4 count up, or say nothing because the packet may not
//! be cut on its way (RFC 6864).

use super::checksum::{pseudo_header, sum};
use super::headers::{parse, word, Headers, ETH_HEADER, L4};
use crate::packet::{Checksum, Fragment, Gso, GsoKind, View, HEADER_BYTES, MAX_FRAGMENTS};

const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
/// In IPv4's word of flags.
const DONT_FRAGMENT: u16 = 0x4000;
/// Longest packet that IP's length says, from IP's header on.
const LONGEST: u32 = u16::MAX as u32;

/// Segments of one stream.
pub struct Merger<F> {
    header: [u8; HEADER_BYTES],
    /// Of the first.
    headers: Headers,
    fragments: [Fragment<F>; MAX_FRAGMENTS],
    nr: usize,
    /// Payload of all.
    payload: u32,
    /// Payload of each but the last.
    size: u16,
    /// Nothing can follow.
    is_closed: bool,
}

impl<F: Copy + Default> Default for Merger<F> {
    fn default() -> Self {
        Self {
            header: [0; HEADER_BYTES],
            headers: Headers { is_v6: false, l3: 0, l4: 0, protocol: L4::Tcp, payload: 0 },
            fragments: [Fragment::default(); MAX_FRAGMENTS],
            nr: 0,
            payload: 0,
            size: 0,
            is_closed: false,
        }
    }
}

impl<F: Copy> Merger<F> {
    /// Is there nothing in it?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.nr == 0
    }

    /// Makes it empty.
    #[inline]
    pub fn clear(&mut self) {
        self.nr = 0;
    }

    /// Takes a packet: `header` is a copy of its beginning, and all of it lies in `whole`. `takes` says what may be
    /// made of it, and `is_right`, asked last, whether its checksum is right. `false`: it is not in, because it is no
    /// such segment, or does not follow those that are.
    #[inline]
    pub fn add(
        &mut self,
        header: &[u8],
        whole: Fragment<F>,
        takes: impl FnOnce(GsoKind) -> bool,
        is_right: impl FnOnce(&Headers) -> bool,
    ) -> bool {
        if self.nr == 0 {
            self.begin(header, whole, takes, is_right).is_some()
        } else {
            self.follow(header, whole, is_right).is_some()
        }
    }

    fn begin(
        &mut self,
        header: &[u8],
        whole: Fragment<F>,
        takes: impl FnOnce(GsoKind) -> bool,
        is_right: impl FnOnce(&Headers) -> bool,
    ) -> Option<()> {
        let headers = parse(header).filter(|headers| headers.protocol == L4::Tcp)?;
        let Headers { is_v6, l3, l4, payload, .. } = headers;
        let kind = if is_v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        // Who receives it takes none with a VLAN tag that is to be cut.
        let is_plain = l3 == ETH_HEADER && l4 - l3 == if is_v6 { 40 } else { 20 } && header.get(l4 + 13) == Some(&ACK);
        let bytes = body(header, &headers, whole)?;
        if !is_plain || !takes(kind) || !is_right(&headers) {
            return None;
        }
        self.header.get_mut(..payload)?.copy_from_slice(header.get(..payload)?);
        (self.headers, self.is_closed) = (headers, false);
        (self.payload, self.size) = (0, bytes);
        self.push(whole, bytes)
    }

    fn follow(&mut self, header: &[u8], whole: Fragment<F>, is_right: impl FnOnce(&Headers) -> bool) -> Option<()> {
        let Headers { is_v6, l3, l4, payload, .. } = self.headers;
        let (own, new) = (self.header.get(..payload)?, header.get(..payload)?);
        let same = |range: core::ops::Range<usize>| own.get(range.clone()) == new.get(range);
        // Without lengths, IPv4's identification and checksum, TCP's place in the stream, flags and checksum.
        let is_same = if is_v6 {
            same(0..l3 + 4) && same(l3 + 6..l4 + 4)
        } else {
            same(0..l3 + 2) && same(l3 + 6..l3 + 10) && same(l3 + 12..l4 + 4) && self.has_next_id(new, l3)
        };
        let flags = *new.get(l4 + 13)?;
        let sequence = |bytes: &[u8]| Some(u32::from_be_bytes(*bytes.get(l4 + 4..)?.first_chunk()?));
        let is_next = sequence(new)? == sequence(own)?.wrapping_add(self.payload);
        let is_good = is_same
            && is_next
            && flags & !PSH == ACK
            && same(l4 + 8..l4 + 13)
            && same(l4 + 14..l4 + 16)
            && same(l4 + 18..payload);
        if !is_good || self.is_closed || self.nr >= MAX_FRAGMENTS {
            return None;
        }
        let bytes = body(header, &self.headers, whole)?;
        #[allow(clippy::cast_possible_truncation, reason = "headers are short")]
        let all = (payload - l3) as u32 + self.payload + u32::from(bytes);
        if bytes > self.size || all > LONGEST || !is_right(&self.headers) {
            return None;
        }
        self.push(whole, bytes)?;
        self.is_closed = bytes < self.size || flags & PSH != 0;
        if let Some(own) = self.header.get_mut(l4 + 13) {
            *own |= flags;
        }
        Some(())
    }

    /// Does the identification of `new` follow, or say nothing?
    #[allow(clippy::cast_possible_truncation, reason = "few")]
    fn has_next_id(&self, new: &[u8], l3: usize) -> bool {
        let (Some(first), Some(next), Some(flags)) = (word(&self.header, l3 + 4), word(new, l3 + 4), word(new, l3 + 6))
        else {
            return false;
        };
        next == first.wrapping_add(self.nr as u16) || flags & DONT_FRAGMENT != 0 && next == first
    }

    fn push(&mut self, whole: Fragment<F>, bytes: u16) -> Option<()> {
        *self.fragments.get_mut(self.nr)? =
            Fragment { frame: whole.frame, offset: whole.offset + (whole.len - bytes), len: bytes };
        self.nr += 1;
        self.payload += u32::from(bytes);
        Some(())
    }

    /// The packet. One segment alone is as it came.
    #[allow(clippy::cast_possible_truncation, reason = "no longer than IP's length says")]
    pub fn view(&mut self) -> Option<View<'_, F>> {
        let headers @ Headers { is_v6, l3, l4, payload, .. } = self.headers;
        let bytes = self.header.get_mut(..payload)?;
        let fragments = self.fragments.get(..self.nr)?;
        let view = |header, checksum, gso| View { header, fragments, skip: 0, body: self.payload, checksum, gso };
        match self.nr {
            0 => return None,
            1 => return Some(view(bytes, Checksum::Validated, None)),
            _ => {}
        }
        let l4_len = (payload - l4) as u32 + self.payload;
        if is_v6 {
            bytes.get_mut(l3 + 4..l3 + 6)?.copy_from_slice(&(l4_len as u16).to_be_bytes());
        } else {
            let len = (l4 - l3) as u32 + l4_len;
            bytes.get_mut(l3 + 2..l3 + 4)?.copy_from_slice(&(len as u16).to_be_bytes());
            bytes.get_mut(l3 + 10..l3 + 12)?.fill(0);
            let checksum = !sum(bytes.get(l3..l4)?);
            bytes.get_mut(l3 + 10..l3 + 12)?.copy_from_slice(&checksum.to_be_bytes());
        }
        let blank = pseudo_header(bytes, &headers, l4_len)?;
        bytes.get_mut(l4 + 16..l4 + 18)?.copy_from_slice(&blank.to_be_bytes());
        let kind = if is_v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let checksum = Checksum::Blank { start: l4 as u16, field: (l4 + 16) as u16 };
        Some(view(bytes, checksum, Some(Gso { kind, size: self.size })))
    }
}

/// Bytes of payload of a packet in `whole`. `None`: it has none, or IP's length does not say the same.
#[inline]
fn body<F>(header: &[u8], headers: &Headers, whole: Fragment<F>) -> Option<u16> {
    let Headers { is_v6, l3, payload, .. } = *headers;
    let said = if is_v6 { usize::from(word(header, l3 + 4)?) + 40 } else { word(header, l3 + 2)?.into() };
    if l3 + said != usize::from(whole.len) {
        return None;
    }
    whole.len.checked_sub(u16::try_from(payload).ok()?).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests;
