//! Headers of a packet of IPv6: a driver that tells connections from each other looks past the extension headers. Its
//! results go to variables of its own, in the unsafe area, which the domain's routines do not reach.

use super::bits::peek;
use super::{low_u32, Parts};
use crate::linux::text::go_on;
use crate::linux::{Done, Host, Stop, Support};

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const NO_NEXT: u8 = 59;
const DESTINATION: u8 = 60;

/// Bytes of the header of IPv6 itself; where in it is what comes next.
const FIXED: u32 = 40;
const NEXT: usize = 6;

/// Flags of `ipv6_find_hdr`: it has come across a fragment header; it is to end at an authentication header; it is to
/// pass routing headers without segments left.
const HAS_FRAGMENT: u32 = 1 << 0;
const TO_AUTHENTICATION: u32 = 1 << 1;
const PAST_ROUTING: u32 = 1 << 2;

/// What is returned, as an `int`.
const NOT_THERE: u64 = 1u32.wrapping_neg() as u64;
const ENOENT: u64 = 2u32.wrapping_neg() as u64;
const EBADMSG: u64 = 74u32.wrapping_neg() as u64;

fn is_extension(header: u8) -> bool {
    matches!(header, HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | NO_NEXT | DESTINATION)
}

/// Bytes of an extension header that says of itself that it has `more`.
fn length(header: u8, more: u8) -> u32 {
    match header {
        FRAGMENT => 8,
        AUTHENTICATION => (u32::from(more) + 2) * 4,
        _ => (u32::from(more) + 1) * 8,
    }
}

/// A packet whose headers are read.
struct Headers<'a> {
    support: &'a Support,
    parts: Parts,
}

impl Headers<'_> {
    /// Bytes at `offset`, an `int`; what is before the packet in its buffer can be read as well. `None`: not all of
    /// them are there.
    fn read<H: Host, const N: usize>(&self, host: &mut H, offset: u32) -> Result<Option<[u8; N]>, Stop> {
        let mut bytes = [0; N];
        let before = offset.cast_signed();
        if before < 0 {
            host.read(self.parts.data.wrapping_add_signed(before.into()), &mut bytes)?;
            return Ok(Some(bytes));
        }
        Ok(peek(self.support, host, &self.parts, offset, &mut bytes)?.then_some(bytes))
    }

    /// Of an extension header: what comes next, and how long it says that it is. Others are answered before.
    fn extension<H: Host>(&self, host: &mut H, offset: u32) -> Result<Option<[u8; 2]>, Stop> {
        go_on(host)?;
        self.read(host, offset)
    }

    /// Of a fragment header: where the fragment begins, and three bits beside, as they are in the packet.
    fn fragment<H: Host>(&self, host: &mut H, offset: u32) -> Result<Option<u16>, Stop> {
        Ok(self.read(host, offset.wrapping_add(2))?.map(u16::from_be_bytes))
    }
}

/// Where a fragment begins.
fn begin(word: u16) -> u16 {
    word & !7
}

/// `ipv6_skip_exthdr(skb, start, next, fragment)`: where the first header from `start` on is that is no extension; its
/// number is put to `next`, and the word of the last fragment header to `fragment`, as it is in the packet. -1: the
/// packet ends before. That of a fragment which is not the first is where the search ends.
pub fn skip_extensions<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [skb, start, next, fragment, ..] = *args;
    let headers = Headers { support: s, parts: Parts::read(host, &s.offsets, skb)? };
    let (mut header, mut word) = (host.u8(next)?, 0);
    let found = skip(&headers, host, low_u32(start), &mut header, &mut word)?;
    host.put_u16(fragment, word.to_be())?;
    if found.is_some() {
        host.put_u8(next, header)?;
    }
    Ok(found.map_or(NOT_THERE, u64::from))
}

fn skip<H: Host>(
    headers: &Headers<'_>,
    host: &mut H,
    mut at: u32,
    header: &mut u8,
    word: &mut u16,
) -> Result<Option<u32>, Stop> {
    while is_extension(*header) {
        if *header == NO_NEXT {
            return Ok(None);
        }
        let Some([next, more]) = headers.extension(host, at)? else { return Ok(None) };
        if *header == FRAGMENT {
            let Some(found) = headers.fragment(host, at)? else { return Ok(None) };
            *word = found;
            if begin(found) != 0 {
                break;
            }
        }
        at = at.wrapping_add(length(*header, more));
        *header = next;
    }
    Ok(Some(at))
}

/// What [`find_header`] has found out.
struct Found {
    /// What it returns.
    value: u64,
    /// Where the header is; `None`: that is not said.
    at: Option<u32>,
    /// Where the fragment begins, if it is not the first.
    fragment: u16,
    flags: u32,
}

/// `ipv6_find_hdr(skb, offset, target, fragment, flags)`: the number of the header that was found, and its place in
/// `offset`: the first with the number `target`, or the last one if that is negative. It looks into the packet's own
/// header, or that at `offset` unless that is 0. `fragment` and `flags` may be null: where a fragment begins, and see
/// the flags. `-ENOENT`: there is none; `-EBADMSG`: the packet ends before.
pub fn find_header<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [skb, offset, target, fragment, flags, _] = *args;
    let headers = Headers { support: s, parts: Parts::read(host, &s.offsets, skb)? };
    let inner = host.u32(offset)?;
    let given = if flags == 0 { 0 } else { host.u32(flags)? };
    let found = find(&headers, host, (skb, inner), low_u32(target), given)?;
    if fragment != 0 {
        host.put_u16(fragment, found.fragment)?;
    }
    if flags != 0 && found.flags != given {
        host.put_u32(flags, found.flags)?;
    }
    if let Some(at) = found.at {
        host.put_u32(offset, at)?;
    }
    Ok(found.value)
}

fn find<H: Host>(
    headers: &Headers<'_>,
    host: &mut H,
    (skb, inner): (u64, u32),
    target: u32,
    flags: u32,
) -> Result<Found, Stop> {
    let Headers { support, parts } = headers;
    let is_last_wanted = target.cast_signed() < 0;
    let mut found = Found { value: EBADMSG, at: None, fragment: 0, flags };
    let (mut at, mut header) = if inner == 0 {
        let own = u64::from(host.u16(skb.wrapping_add(support.offsets.skb_network_header))?);
        let own = parts.head.wrapping_add(own);
        (low_u32(own.wrapping_sub(parts.data)).wrapping_add(FIXED), host.u8(own.wrapping_add(NEXT as u64))?)
    } else {
        match headers.read::<H, { FIXED as usize }>(host, inner)? {
            Some(header) if header[0] >> 4 == 6 => (inner.wrapping_add(FIXED), header[NEXT]),
            _ => return Ok(found),
        }
    };
    loop {
        let mut is_it = u32::from(header) == target;
        if !is_extension(header) || header == NO_NEXT {
            if !is_last_wanted && !is_it {
                return Ok(Found { value: ENOENT, ..found });
            }
            break;
        }
        let Some([next, more]) = headers.extension(host, at)? else { return Ok(found) };
        match header {
            ROUTING => {
                let Some([_, _, _, left]) = headers.read(host, at)? else { return Ok(found) };
                is_it &= left != 0 || flags & PAST_ROUTING == 0;
            }
            FRAGMENT => {
                found.flags |= HAS_FRAGMENT;
                let Some(word) = headers.fragment(host, at)? else { return Ok(found) };
                if begin(word) != 0 {
                    // What comes next is in the packet of the first fragment.
                    let is_known = is_last_wanted && (!is_extension(next) || next == NO_NEXT);
                    if !is_known && !is_it {
                        return Ok(Found { value: ENOENT, ..found });
                    }
                    found.fragment = begin(word);
                    if is_known {
                        return Ok(Found { value: next.into(), ..found });
                    }
                    break;
                }
            }
            AUTHENTICATION if is_last_wanted && flags & TO_AUTHENTICATION != 0 => break,
            _ => {}
        }
        if is_it {
            break;
        }
        let bytes = length(header, more);
        if parts.len.wrapping_sub(at) < bytes {
            return Ok(found);
        }
        at = at.wrapping_add(bytes);
        header = next;
    }
    Ok(Found { value: header.into(), at: Some(at), ..found })
}
