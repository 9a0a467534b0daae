//! Where socket buffers come from and go to: those of the pool, pieces of pages around which they are built, and
//! whatever else the driver is done with.

use super::{read_fragments, Fragment, Frame, Parts, Place, HEADROOM};
use crate::linux::offsets::Offsets;
use crate::linux::pool::{Given, Pool, Use};
use crate::linux::{bad, Done, Foreign, Host, Stop, Support};
use crate::memory::{Fault, Memory};

/// Bit of the byte of `cloned` that says that the head is a page fragment.
const HEAD_FRAG: u8 = 1 << 5;

/// Makes `skb` an empty packet in the buffer of `size` bytes at `head`, with `room` bytes before the data.
#[inline(always)]
fn set_up<M: Memory>(m: &M, o: &Offsets, skb: u64, head: u64, size: u64, room: u64, device: u64) -> Result<(), Fault> {
    let place = Place::empty(head, size, room);
    place.write(m, o, skb, device)?;
    place.write_info(m, o).map(|_| ())
}

/// The pool has nothing that fits: what is its own the domain can still give, if the invocation can wait for it. Else
/// the routine fails, as it may.
fn none_left<H: Host>(host: &H) -> Done {
    if host.may_wait() {
        Err(Stop::Upcall)
    } else {
        Ok(0)
    }
}

/// `__netdev_alloc_skb(device, len, flags)`.
#[inline(always)]
pub fn allocate<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let info = s.offsets.info_size.next_multiple_of(64);
    let need = (args[1] & 0xffff_ffff) + HEADROOM + info;
    let Some((skb, lent)) = take(host, |pool| pool.take(need, Use::Driver)) else { return none_left(host) };
    set_up(host, &s.offsets, skb, lent.head, u64::from(lent.size), HEADROOM, args[0])?;
    Ok(skb)
}

/// Takes something out of the pool, if need be after the host has given back what it keeps.
#[inline]
fn take<H: Host, T>(host: &mut H, take: impl Fn(&mut Pool) -> Option<T>) -> Option<T> {
    let taken = host.with_pool(&take);
    if taken.is_none() && host.relieve() {
        return host.with_pool(&take);
    }
    taken
}

/// `__napi_alloc_skb(napi, len, flags)`.
#[inline(always)]
pub fn napi_allocate<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let device = host.u64(args[0].wrapping_add(s.offsets.napi_device))?;
    allocate(s, host, &[device, args[1], args[2], 0, 0, 0])
}

/// `napi_build_skb(data, size)`: an `sk_buff` around a received buffer.
#[inline(always)]
pub fn build<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [data, size, ..] = *args;
    let size = size & 0xffff_ffff;
    if size == 0 {
        return Err(Stop::Upcall);
    }
    if size < s.offsets.info_size.next_multiple_of(64) {
        return Err(bad("buffer too small for the shared info", size));
    }
    let Some(skb) = take(host, Pool::take_bare) else { return none_left(host) };
    set_up(host, &s.offsets, skb, data, size, 0, 0)?;
    host.put_member_u8(skb, s.offsets.skb_cloned, HEAD_FRAG)?;
    Ok(skb)
}

/// `__netdev_alloc_frag_align(size, mask)`. Every buffer is aligned to its page or half of it.
#[inline(always)]
pub fn allocate_fragment<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    match take(host, |pool| pool.take_fragment(args[0] & 0xffff_ffff)) {
        Some(data) => Ok(data),
        None => none_left(host),
    }
}

/// `page_frag_free(data)`.
pub fn free_fragment<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    match host.with_pool(|pool| pool.give_fragment(args[0])) {
        Some(true) => Ok(0),
        Some(false) => Err(bad("fragment freed twice", args[0])),
        None => {
            if !put_page(s, host, args[0]) {
                host.free_in_domain(Foreign::Fragment(args[0]));
            }
            Ok(0)
        }
    }
}

/// Gives up a reference to the domain's page in which `data` lies, unless it is the last one: that only its own kernel
/// can give up, which then frees the page. `false`: nothing was done.
fn put_page(s: &Support, host: &impl Memory, data: u64) -> bool {
    const TAIL: u64 = 1;
    let put = || {
        let page = s.page_of(data)?;
        let head = host.u64(page.wrapping_add(s.offsets.page_compound_head)).ok()?;
        let page = if head & TAIL == 0 { page } else { head - TAIL };
        let one_less = |count: u32| (count > 1).then(|| count - 1);
        host.update_u32(page.wrapping_add(s.offsets.page_refcount), one_less).ok()
    };
    put().is_some_and(|(_, is_put)| is_put)
}

/// `skb_page_frag_refill(bytes, fragment, flags)`: is there room for so many bytes in the page that a driver cuts up?
/// Another page is the domain's to give.
pub fn refill_fragment<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [bytes, fragment, ..] = *args;
    let o = &s.offsets;
    let page = host.u64(fragment.wrapping_add(o.page_frag_page))?;
    if page == 0 {
        return Err(Stop::Upcall);
    }
    let at = fragment.wrapping_add(o.page_frag_offset);
    if host.u32(page.wrapping_add(o.page_refcount))? == 1 {
        host.put_u32(at, 0)?;
        return Ok(1);
    }
    let end = u64::from(host.u32(at)?).saturating_add(bytes & 0xffff_ffff);
    if end <= u64::from(host.u32(fragment.wrapping_add(o.page_frag_size))?) {
        Ok(1)
    } else {
        Err(Stop::Upcall)
    }
}

/// `napi_consume_skb(skb, budget)` and the other ways to be done with one.
#[inline(always)]
pub fn consume<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let skb = args[0];
    if skb == 0 {
        return Ok(0);
    }
    if !host.takes_packets() && host.with_pool(|pool| matches!(pool.is_with(skb), Some(Use::Transmit(_)))) {
        // Nobody would tell its sender. The domain frees it, and that it did is found.
        return Err(Stop::Upcall);
    }
    match host.with_pool(|pool| pool.give_sent(skb)) {
        // Nobody but the host has put fragments into what it sends.
        Some(cookie) => host.transmitted(skb, cookie),
        None => release_unread(s, host, skb)?,
    }
    Ok(0)
}

/// Is done with a received packet: with its `sk_buff`, and with its page fragments.
pub(super) fn release<H: Host>(s: &Support, host: &mut H, frame: &Frame<'_>) -> Result<(), Stop> {
    release_parts(s, host, frame.skb, frame.head, frame.fragments)
}

/// Is done with an `sk_buff` of which nothing is known yet. It is read while it is the driver's: whoever takes it out
/// of the pool writes it.
pub(super) fn release_unread<H: Host>(s: &Support, host: &mut H, skb: u64) -> Result<(), Stop> {
    if host.with_pool(|pool| pool.is_with(skb)) != Some(Use::Driver) {
        return release_parts(s, host, skb, 0, &[]);
    }
    let read = Parts::read(host, &s.offsets, skb).and_then(|parts| Ok((parts.head, read_fragments(host, s, &parts)?)));
    match read {
        Ok((head, (fragments, nr))) => release_parts(s, host, skb, head, fragments.get(..nr).unwrap_or_default()),
        Err(stop) => release_parts(s, host, skb, 0, &[]).and(Err(stop)),
    }
}

/// Gives an `sk_buff` back, then what is around it: page fragments, and the buffer at `head`, if there is one and the
/// pool has lent it apart.
fn release_parts<H: Host>(s: &Support, host: &mut H, skb: u64, head: u64, fragments: &[Fragment]) -> Result<(), Stop> {
    let lent = match host.with_pool(|pool| pool.give(skb)) {
        Given::Back(lent) => lent,
        Given::Twice => return Err(bad("sk_buff freed twice", skb)),
        Given::Foreign => {
            host.free_in_domain(Foreign::Skb(skb));
            return Ok(());
        }
    };
    if let Use::Transmit(cookie) = lent.out {
        // Nobody but the host has put any into what it sends.
        host.transmitted(skb, cookie);
        return Ok(());
    }
    put_fragments(s, host, fragments)?;
    if lent.head == 0 && head != 0 {
        free_fragment(s, host, &[head, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}

fn put_fragments<H: Host>(s: &Support, host: &mut H, fragments: &[Fragment]) -> Result<(), Stop> {
    for fragment in fragments {
        let data = s.page_address(fragment.page).ok_or(bad("fragment without a page", fragment.page))?;
        free_fragment(s, host, &[data, 0, 0, 0, 0, 0])?;
        // What is left would be lost where no time is left, so that is not asked.
        let _ = host.goes_on();
    }
    Ok(())
}
