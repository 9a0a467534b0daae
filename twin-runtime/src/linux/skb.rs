//! Socket buffers: what one consists of ([`Parts`], [`Fragment`]), how an empty one is laid out, and how a driver makes
//! its data longer or shorter. Where they come from is in [`alloc`], received packets are in [`receive`], those to be
//! sent in `transmit`.

pub mod alloc;
pub mod bits;
pub mod ipv6;
pub mod receive;
mod transmit;

use super::offsets::Offsets;
use super::pool::USERS;
use super::text::fill_bytes;
use super::{bad, Done, Host, Stop, Support};
use crate::memory::{Fault, Memory};
pub use receive::{Frame, Many, UnknownKind};
pub use transmit::{Packet, GSO_TCP_V4, GSO_TCP_V6};

/// Bytes that Linux leaves free before the data (`NET_SKB_PAD`).
pub const HEADROOM: u64 = 64;
/// Most page fragments of a packet (`MAX_SKB_FRAGS`).
pub const MAX_FRAGMENTS: usize = 17;

/// Most that one call of a routine leaves to the domain ([`Host::free_in_domain`]): what a packet consists of besides
/// its `sk_buff`. An `sk_buff` of the domain's own is one, whatever is in it.
pub const MOST_FOREIGN: usize = MAX_FRAGMENTS + 1;

/// No buffer is larger; what claims to be is none.
pub const LARGEST: u32 = 1 << 20;
const ETHERNET_HEADER: u32 = 14;
const CLONED: u8 = 1;

/// A page fragment of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fragment {
    /// Address of the `struct page`.
    pub page: u64,
    /// Offset in the page.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// The members that describe the data.
pub(super) struct Parts {
    head: u64,
    pub data: u64,
    tail: u32,
    end: u32,
    pub len: u32,
    pub data_len: u32,
}

impl Parts {
    /// Reads them once and checks `head <= data <= tail <= end`.
    pub fn read(memory: &impl Memory, o: &Offsets, skb: u64) -> Result<Self, Stop> {
        let [head, data] = memory.u64s(skb, [o.skb_head, o.skb_data])?;
        let [tail, end, len, data_len] = memory.u32s(skb, [o.skb_tail, o.skb_end, o.skb_len, o.skb_data_len])?;
        let parts = Self { head, data, tail, end, len, data_len };
        let data_at = parts.data.wrapping_sub(parts.head);
        if parts.end > LARGEST
            || parts.tail > parts.end
            || data_at > u64::from(parts.tail)
            || parts.data_len > parts.len
        {
            return Err(bad("sk_buff out of its buffer", skb));
        }
        Ok(parts)
    }

    fn tail_address(&self) -> u64 {
        self.head.wrapping_add(u64::from(self.tail))
    }
}

/// Most bytes of an `sk_buff` up to its last member.
const LONGEST: u64 = 320;
/// Most bytes of the shared info up to its fragments.
const LONGEST_INFO: u64 = 256;
/// `mac_header` and `transport_header` where there is none.
const NOWHERE: u16 = u16::MAX;

/// Bytes of a buffer of `size` bytes that come before its shared info.
pub(super) fn end_of(o: &Offsets, size: u64) -> u64 {
    size.saturating_sub(o.info_size.next_multiple_of(64))
}

/// The low half of a word.
#[inline]
fn low_u32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

/// The lowest quarter of a word.
#[inline]
fn low_u16(value: u64) -> u16 {
    (value & 0xffff) as u16
}

/// Where a packet lies in its buffer.
struct Place {
    /// The buffer, and its bytes.
    head: u64,
    size: u64,
    /// Where the packet begins and ends in it.
    data: u64,
    tail: u64,
    mac_header: u16,
    transport_header: u16,
}

impl Place {
    /// No packet yet, with `room` bytes before it.
    fn empty(head: u64, size: u64, room: u64) -> Self {
        Self { head, size, data: room, tail: room, mac_header: NOWHERE, transport_header: NOWHERE }
    }

    /// Makes `skb` one in this buffer, all zeroes but for that. Its `len` is 0.
    #[inline(always)]
    fn write<M: Memory>(&self, m: &M, o: &Offsets, skb: u64, device: u64) -> Result<(), Fault> {
        // Of its members `users` is the last but for one that only counts if another says so. It keeps its value, in
        // one word with what is beside it: another lane may look at it just now, and take an `sk_buff` for freed that
        // has less.
        let last = o.skb_users & !7;
        if last + 8 > LONGEST {
            return Err(Fault { address: skb, write: true });
        }
        m.fill(skb, 0, last)?;
        m.put_member_u64(skb, last, u64::from(USERS) << (8 * (o.skb_users & 4)))?;
        m.put_member_u64(skb, o.skb_dev, device)?;
        m.put_member_u64(skb, o.skb_head, self.head)?;
        m.put_member_u64(skb, o.skb_data, self.head.wrapping_add(self.data))?;
        m.put_member_u32(skb, o.skb_tail, low_u32(self.tail))?;
        m.put_member_u32(skb, o.skb_end, low_u32(end_of(o, self.size)))?;
        m.put_member_u32(skb, o.skb_truesize, low_u32(self.size + o.skb_size))?;
        m.put_member_u16(skb, o.skb_mac_header, self.mac_header)?;
        m.put_member_u16(skb, o.skb_transport_header, self.transport_header)
    }

    /// Writes its shared info, whose data has one user, as far as it is the same for all packets: the fragments are
    /// behind. Where it is.
    #[inline]
    fn write_info<M: Memory>(&self, m: &M, o: &Offsets) -> Result<u64, Fault> {
        let info = self.head.wrapping_add(end_of(o, self.size));
        if o.info_dataref > LONGEST_INFO {
            return Err(Fault { address: info, write: true });
        }
        m.fill(info, 0, o.info_dataref)?;
        m.put_member_u32(info, o.info_dataref, 1)?;
        Ok(info)
    }
}

/// `skb_put(skb, len)`: the old tail.
#[inline(always)]
pub fn put<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let (skb, more) = (args[0], (args[1] & 0xffff_ffff) as u32);
    let parts = Parts::read(host, &s.offsets, skb)?;
    let tail = parts.tail.checked_add(more).filter(|tail| *tail <= parts.end && parts.data_len == 0);
    let tail = tail.ok_or(bad("skb_put beyond the buffer", u64::from(more)))?;
    host.put_member_u32(skb, s.offsets.skb_tail, tail)?;
    host.put_member_u32(skb, s.offsets.skb_len, parts.len.wrapping_add(more))?;
    Ok(parts.tail_address())
}

/// `skb_trim(skb, len)`.
pub fn trim<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let (skb, len) = (args[0], (args[1] & 0xffff_ffff) as u32);
    let parts = Parts::read(host, &s.offsets, skb)?;
    if parts.len > len && parts.data_len == 0 {
        let tail = parts.data.wrapping_sub(parts.head).wrapping_add(u64::from(len));
        host.put_u32(skb.wrapping_add(s.offsets.skb_len), len)?;
        host.put_u32(skb.wrapping_add(s.offsets.skb_tail), (tail & 0xffff_ffff) as u32)?;
    }
    Ok(0)
}

/// `__skb_pad(skb, pad, free_on_error)`: zeroes after the data if there is room, else the domain does it.
pub fn pad<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let (skb, pad) = (args[0], args[1] & 0xffff_ffff);
    let parts = Parts::read(host, &s.offsets, skb)?;
    let cloned = host.u8(skb.wrapping_add(s.offsets.skb_cloned))? & CLONED != 0;
    if cloned || parts.data_len != 0 || u64::from(parts.tail) + pad > u64::from(parts.end) {
        return Err(Stop::Upcall);
    }
    fill_bytes(host, parts.tail_address(), 0, pad)?;
    Ok(0)
}

/// Reads the fragments; how many there are.
pub(super) fn read_fragments<H: Host>(
    host: &H,
    s: &Support,
    parts: &Parts,
) -> Result<([Fragment; MAX_FRAGMENTS], usize), Stop> {
    let info = parts.head.wrapping_add(u64::from(parts.end));
    let nr = usize::from(host.u8(info.wrapping_add(s.offsets.info_nr_frags))?);
    let mut fragments = [Fragment::default(); MAX_FRAGMENTS];
    let mut at = info.wrapping_add(s.offsets.info_frags);
    for fragment in fragments.get_mut(..nr).ok_or(bad("too many fragments", nr as u64))? {
        *fragment = read_fragment(host, s, at)?;
        at = at.wrapping_add(16);
    }
    Ok((fragments, nr))
}

/// Reads the fragment at `at`: a whole `struct page`, and no more bytes than a buffer has.
fn read_fragment<H: Host>(host: &H, s: &Support, at: u64) -> Result<Fragment, Stop> {
    let page = host.u64(at)?;
    let fragment = Fragment { page, len: host.u32(at.wrapping_add(8))?, offset: host.u32(at.wrapping_add(12))? };
    let is_page = page.checked_sub(s.kernel.vmemmap).is_some_and(|at| at.checked_rem(s.offsets.page_size) == Some(0));
    if !is_page {
        return Err(bad("fragment without a page", page));
    }
    match fragment.offset.checked_add(fragment.len) {
        Some(end) if end <= LARGEST => Ok(fragment),
        _ => Err(bad("fragment larger than a buffer", u64::from(fragment.len))),
    }
}

impl Support {
    /// The `struct page` of an address in the domain's direct map.
    #[must_use]
    pub fn page_of(&self, address: u64) -> Option<u64> {
        let pfn = address.checked_sub(self.kernel.page_offset)? >> 12;
        Some(self.kernel.vmemmap.wrapping_add(pfn.checked_mul(self.offsets.page_size)?))
    }

    /// Where the domain has the frame of a `struct page`.
    #[must_use]
    pub fn page_address(&self, page: u64) -> Option<u64> {
        let pfn = page.checked_sub(self.kernel.vmemmap)?.checked_div(self.offsets.page_size)?;
        Some(self.kernel.page_offset.wrapping_add(pfn.checked_mul(1 << 12)?))
    }
}
