//! Bytes out of a packet, wherever they lie in it: by this a driver reads headers that are not whole in the linear
//! part.

use super::{read_fragments, Parts, LARGEST};
use crate::linux::text::{self, go_on};
use crate::linux::{bad, Done, Host, Stop, Support};

/// `-EFAULT`, as an `int`.
const EFAULT: u64 = 14u32.wrapping_neg() as u64;

/// `skb_copy_bits(skb, offset, to, len)`: 0, or `-EFAULT` if not all of that is in the packet; then nothing is written.
/// Bytes before the packet are not in it, though Linux's own copies what is there.
pub fn copy<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [skb, offset, to, len, ..] = *args;
    let (offset, len) = (offset & 0xffff_ffff, len & 0xffff_ffff);
    let parts = Parts::read(host, &s.offsets, skb)?;
    if offset + len > u64::from(parts.len) {
        return Ok(EFAULT);
    }
    if len > u64::from(LARGEST) {
        return Err(bad("copy too long", len));
    }
    let linear = u64::from(parts.len - parts.data_len);
    let first = len.min(linear.saturating_sub(offset));
    let rest = (to.wrapping_add(first), offset.max(linear) - linear, len - first);
    let copy_first = [to, parts.data.wrapping_add(offset), first, 0, 0, 0];
    if rest.2 == 0 {
        text::copy(s, host, &copy_first)?;
        return Ok(0);
    }
    copy_pieces(s, host, &parts, copy_first, rest)
}

/// The same of bytes that lie in fragments: those that come before them, and where the rest goes, begins in the
/// fragments, and how long it is.
#[cold]
#[inline(never)]
fn copy_pieces<H: Host>(
    s: &Support,
    host: &mut H,
    parts: &Parts,
    copy_first: [u64; 6],
    (mut to, mut skip, mut left): (u64, u64, u64),
) -> Done {
    let (fragments, nr) = read_fragments(host, s, parts)?;
    let fragments = fragments.get(..nr).unwrap_or_default();
    // The rest is in further packets, of which its own routine knows.
    if fragments.iter().map(|fragment| u64::from(fragment.len)).sum::<u64>() < skip + left {
        return Err(Stop::Upcall);
    }
    text::copy(s, host, &copy_first)?;
    for fragment in fragments {
        let before = skip.min(fragment.len.into());
        let now = left.min(u64::from(fragment.len) - before);
        skip -= before;
        if now == 0 {
            continue;
        }
        let page = s.page_address(fragment.page).ok_or(bad("fragment without a page", fragment.page))?;
        go_on(host)?;
        text::copy(s, host, &[to, page.wrapping_add(u64::from(fragment.offset) + before), now, 0, 0, 0])?;
        to = to.wrapping_add(now);
        left -= now;
    }
    Ok(0)
}

/// Reads a few bytes at `offset`. `false`: not all of them are in the packet.
pub(super) fn peek<H: Host>(
    s: &Support,
    host: &mut H,
    parts: &Parts,
    offset: u32,
    into: &mut [u8],
) -> Result<bool, Stop> {
    let linear = parts.len - parts.data_len;
    if u64::from(offset) + into.len() as u64 > parts.len.into() {
        return Ok(false);
    }
    let (first, mut rest) = into.split_at_mut(into.len().min(linear.saturating_sub(offset) as usize));
    if !first.is_empty() {
        host.read(parts.data.wrapping_add(offset.into()), first)?;
    }
    if rest.is_empty() {
        return Ok(true);
    }
    let (fragments, nr) = read_fragments(host, s, parts)?;
    let mut skip = offset.max(linear) - linear;
    for fragment in fragments.get(..nr).unwrap_or_default() {
        let before = skip.min(fragment.len);
        skip -= before;
        let now = rest.len().min((fragment.len - before) as usize);
        let (piece, left) = core::mem::take(&mut rest).split_at_mut(now);
        if now != 0 {
            let page = s.page_address(fragment.page).ok_or(bad("fragment without a page", fragment.page))?;
            host.read(page.wrapping_add(u64::from(fragment.offset) + u64::from(before)), piece)?;
        }
        rest = left;
        if rest.is_empty() {
            return Ok(true);
        }
    }
    // The rest is in further packets, of which its own routine knows.
    Err(Stop::Upcall)
}
