//! Socket buffers: allocation from the pool, building, sizes, hand-over of received packets, and packets to be sent.

use super::offsets::Offsets;
use super::pool::{Given, Lent, LentPage, Pool, Use, USERS_OUT};
use super::{bad, Done, Foreign, Host, Stop, Support};
use crate::abort::Reason;
use crate::memory::{Fault, Memory};

/// Bytes that Linux leaves free before the data (`NET_SKB_PAD`).
pub const HEADROOM: u64 = 64;
/// Most page fragments of a packet (`MAX_SKB_FRAGS`).
pub const MAX_FRAGMENTS: usize = 17;

/// No buffer is larger; what claims to be is none.
pub const LARGEST: u32 = 1 << 20;
const ETHERNET_HEADER: u32 = 14;
/// Where it names the protocol.
const PROTOCOL_AT: u64 = 12;
/// Bit of the byte of `cloned` that says that the head is a page fragment.
const HEAD_FRAG: u8 = 1 << 5;
const CLONED: u8 = 1;
/// `ip_summed` in the byte of `pkt_type`.
const CHECKSUM_PARTIAL: u8 = 3 << 5;
const GRO_NORMAL: u64 = 3;
const PAGE_BYTES: u32 = 4096;
/// `gso_type` of TCP over IPv4 (`SKB_GSO_TCPV4`).
pub const GSO_TCP_V4: u32 = 1;
/// `gso_type` of TCP over IPv6 (`SKB_GSO_TCPV6`).
pub const GSO_TCP_V6: u32 = 1 << 4;

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

/// A received packet. Each word was read once and is a copy; the Ethernet header and the linear part lie inside the buffer, and
/// each fragment names a `struct page` and at most [`LARGEST`] bytes. What the pages hold, and whether they are the domain's, whoever
/// reads them checks: [`Memory`] for linear data, [`Host::machine_frame`] for fragments.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'f> {
    /// The `sk_buff`.
    pub skb: u64,
    /// Its buffer.
    pub head: u64,
    /// Address of the linear data (after the Ethernet header).
    pub data: u64,
    /// Bytes of it.
    pub linear: u32,
    /// Address of the Ethernet header; not above `data`.
    pub mac_header: u64,
    /// Bytes from the Ethernet header to the end of the linear part; at least those of the header.
    pub len: u32,
    /// `protocol`, as stored (big endian).
    pub protocol: u16,
    /// Whether the device checked the checksum (`ip_summed`).
    pub ip_summed: u8,
    /// The VLAN tag that the device took out after the addresses, as it stands in a packet.
    pub tag: Option<[u8; 4]>,
    /// Page fragments.
    pub fragments: &'f [Fragment],
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
/// `mac_header` and `transport_header` where there is none.
const NOWHERE: u16 = u16::MAX;

/// Bytes of a buffer of `size` bytes that come before its shared info.
fn end_of(o: &Offsets, size: u64) -> u64 {
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
    #[inline]
    fn write<M: Memory>(&self, m: &M, o: &Offsets, skb: u64, device: u64) -> Result<(), Fault> {
        // Of its members `users` is the last but for one that only counts if another says so.
        let len = o.skb_users + 4;
        if len > LONGEST {
            return Err(Fault { address: skb, write: true });
        }
        m.fill(skb, 0, len)?;
        let at = |member: u64| skb.wrapping_add(member);
        m.put_u32(at(o.skb_users), USERS_OUT)?;
        m.put_u64(at(o.skb_dev), device)?;
        m.put_u64(at(o.skb_head), self.head)?;
        m.put_u64(at(o.skb_data), self.head.wrapping_add(self.data))?;
        m.put_u32(at(o.skb_tail), low_u32(self.tail))?;
        m.put_u32(at(o.skb_end), low_u32(end_of(o, self.size)))?;
        m.put_u32(at(o.skb_truesize), low_u32(self.size + o.skb_size))?;
        m.put_u16(at(o.skb_mac_header), self.mac_header)?;
        m.put_u16(at(o.skb_transport_header), self.transport_header)
    }

    /// Writes its shared info, whose data has one user, as far as it is the same for all packets: the fragments are behind. Where it is.
    #[inline]
    fn write_info<M: Memory>(&self, m: &M, o: &Offsets) -> Result<u64, Fault> {
        let info = self.head.wrapping_add(end_of(o, self.size));
        m.fill(info, 0, o.info_dataref)?;
        m.put_u32(info.wrapping_add(o.info_dataref), 1)?;
        Ok(info)
    }
}

/// Makes `skb` an empty packet in the buffer of `size` bytes at `head`, with `room` bytes before the data.
fn set_up<M: Memory>(m: &M, o: &Offsets, skb: u64, head: u64, size: u64, room: u64, device: u64) -> Result<(), Fault> {
    let place = Place::empty(head, size, room);
    place.write(m, o, skb, device)?;
    place.write_info(m, o).map(|_| ())
}

/// The pool has nothing that fits: what is its own the domain can still give, if the invocation can wait for it. Else the routine
/// fails, as it may.
fn none_left<H: Host>(host: &H) -> Done {
    if host.may_wait() {
        Err(Stop::Upcall)
    } else {
        Ok(0)
    }
}

/// `__netdev_alloc_skb(device, len, flags)`.
pub fn allocate<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let info = s.offsets.info_size.next_multiple_of(64);
    let need = (args[1] & 0xffff_ffff) + HEADROOM + info;
    let Some((skb, lent)) = take(host, |pool| pool.take(need, Use::Driver))? else { return none_left(host) };
    set_up(host, &s.offsets, skb, lent.head, u64::from(lent.size), HEADROOM, args[0])?;
    Ok(skb)
}

/// Takes something out of the pool, if need be after the host has given back what it keeps.
#[inline]
fn take<H: Host, T>(host: &mut H, take: impl Fn(&mut Pool) -> Option<T>) -> Result<Option<T>, Fault> {
    let taken = host.with_pool(&take);
    if taken.is_none() && host.relieve()? {
        return Ok(host.with_pool(&take));
    }
    Ok(taken)
}

/// `__napi_alloc_skb(napi, len, flags)`.
pub fn napi_allocate<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let device = host.u64(args[0].wrapping_add(s.offsets.napi_device))?;
    allocate(s, host, &[device, args[1], args[2], 0, 0, 0])
}

/// `napi_build_skb(data, size)`: an `sk_buff` around a received buffer.
pub fn build<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [data, size, ..] = *args;
    let size = size & 0xffff_ffff;
    if size == 0 {
        return Err(Stop::Upcall);
    }
    if size < s.offsets.info_size.next_multiple_of(64) {
        return Err(bad("buffer too small for the shared info", size));
    }
    let Some(skb) = take(host, Pool::take_bare)? else { return none_left(host) };
    set_up(host, &s.offsets, skb, data, size, 0, 0)?;
    host.put_u8(skb.wrapping_add(s.offsets.skb_cloned), HEAD_FRAG)?;
    Ok(skb)
}

/// `__netdev_alloc_frag_align(size, mask)`. Every buffer is aligned to its page or half of it.
pub fn allocate_fragment<H: Host>(_: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    match take(host, |pool| pool.take_fragment(args[0] & 0xffff_ffff))? {
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

/// Gives up a reference to the domain's page in which `data` lies, unless it is the last one: that only its own kernel can give up,
/// which then frees the page. `false`: nothing was done.
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

/// `skb_page_frag_refill(bytes, fragment, flags)`: is there room for so many bytes in the page that a driver cuts up? Another page is the
/// domain's to give.
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
pub fn consume<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if args[0] != 0 {
        release(s, host, args[0], None)?;
    }
    Ok(0)
}

/// Is done with an `sk_buff`, and with its page fragments; `frame` is what was read of it, if anything was.
fn release<H: Host>(s: &Support, host: &mut H, skb: u64, frame: Option<&Frame<'_>>) -> Result<(), Stop> {
    let lent = match host.with_pool(|pool| pool.give(skb)) {
        Given::Back(lent) => lent,
        Given::Twice => return Err(bad("sk_buff freed twice", skb)),
        Given::Foreign => {
            host.free_in_domain(Foreign::Skb(skb));
            return Ok(());
        }
    };
    Pool::at_home(host, &s.offsets, skb)?;
    match (lent.out, frame) {
        // Nobody but the host has put any into what it sends.
        (Use::Transmit(_), _) => {}
        (_, Some(frame)) => put_fragments(s, host, frame.fragments)?,
        (_, None) => {
            let parts = Parts::read(host, &s.offsets, skb)?;
            let (fragments, nr) = read_fragments(host, s, &parts)?;
            put_fragments(s, host, fragments.get(..nr).unwrap_or_default())?;
        }
    }
    if lent.head == 0 {
        let head = host.u64(skb.wrapping_add(s.offsets.skb_head))?;
        free_fragment(s, host, &[head, 0, 0, 0, 0, 0])?;
    }
    if let Use::Transmit(cookie) = lent.out {
        host.transmitted(skb, cookie);
    }
    Ok(())
}

fn put_fragments<H: Host>(s: &Support, host: &mut H, fragments: &[Fragment]) -> Result<(), Stop> {
    for fragment in fragments {
        let data = s.page_address(fragment.page).ok_or(bad("fragment without a page", fragment.page))?;
        free_fragment(s, host, &[data, 0, 0, 0, 0, 0])?;
    }
    Ok(())
}

/// `skb_put(skb, len)`: the old tail.
pub fn put<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let (skb, more) = (args[0], (args[1] & 0xffff_ffff) as u32);
    let parts = Parts::read(host, &s.offsets, skb)?;
    let tail = parts.tail.checked_add(more).filter(|tail| *tail <= parts.end && parts.data_len == 0);
    let tail = tail.ok_or(bad("skb_put beyond the buffer", u64::from(more)))?;
    host.put_u32(skb.wrapping_add(s.offsets.skb_tail), tail)?;
    host.put_u32(skb.wrapping_add(s.offsets.skb_len), parts.len.wrapping_add(more))?;
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
    host.fill(parts.tail_address(), 0, pad)?;
    Ok(0)
}

/// `eth_type_trans(skb, device)`: strips the Ethernet header; returns the protocol as stored.
pub fn eth_type_trans<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let [skb, device, ..] = *args;
    let o = s.offsets;
    let parts = Parts::read(host, &o, skb)?;
    let (first, second) = (host.u64(parts.data)?, host.u64(parts.data.wrapping_add(8))?);
    host.put_u64(skb.wrapping_add(o.skb_dev), device)?;
    let mac = parts.data.wrapping_sub(parts.head);
    host.put_u16(skb.wrapping_add(o.skb_mac_header), (mac & 0xffff) as u16)?;
    if parts.len >= ETHERNET_HEADER {
        if parts.len - ETHERNET_HEADER < parts.data_len {
            return Err(bad("no linear Ethernet header", skb));
        }
        host.put_u32(skb.wrapping_add(o.skb_len), parts.len - ETHERNET_HEADER)?;
        host.put_u64(skb.wrapping_add(o.skb_data), parts.data.wrapping_add(u64::from(ETHERNET_HEADER)))?;
    }
    let own = host.u64(device.wrapping_add(o.device_address))?;
    let own = u64::from(host.u32(own)?) | u64::from(host.u16(own.wrapping_add(4))?) << 32;
    let kind = packet_type(first & BROADCAST, own);
    if kind != 0 {
        let at = skb.wrapping_add(o.skb_pkt_type);
        host.put_u8(at, host.u8(at)? & !7 | kind)?;
    }
    // What follows the header, or what is there instead of one, tells the two old encapsulations apart.
    let (after, follows) =
        if parts.len >= ETHERNET_HEADER { (ETHERNET_HEADER, second >> 48) } else { (0, first & 0xffff) };
    let raw = parts.len - parts.data_len >= after + 2 && follows == 0xffff;
    Ok(u64::from(protocol((second >> 32 & 0xffff) as u16, raw)))
}

/// The address of all stations, as it is stored.
const BROADCAST: u64 = (1 << 48) - 1;

/// `PACKET_HOST` 0, `PACKET_BROADCAST` 1, `PACKET_MULTICAST` 2, `PACKET_OTHERHOST` 3. Addresses are as they are stored.
fn packet_type(target: u64, own: u64) -> u8 {
    match target {
        _ if target == own => 0,
        BROADCAST => 1,
        _ if target & 1 != 0 => 2,
        _ => 3,
    }
}

/// The type field in memory order, or for 802.3 frames the pseudo types 1 (`raw`) and 4.
fn protocol(stored: u16, raw: bool) -> u16 {
    match u16::from_be(stored) {
        0x0600.. => stored,
        _ if raw => 1u16.to_be(),
        _ => 4u16.to_be(),
    }
}

/// `napi_gro_receive(napi, skb)`.
pub fn gro_receive<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if !host.takes_packets() {
        return Err(Stop::Upcall);
    }
    hand_over(s, host, args[1])?;
    Ok(GRO_NORMAL)
}

/// Bytes for headers in an `sk_buff` whose packet is in pages.
const HEADERS: u64 = 256;

/// `napi_get_frags(napi)`: the `sk_buff` that the next packet in pages is described by; it stays the poll's until that is handed over.
pub fn get_frags<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    let at = args[0].wrapping_add(s.offsets.napi_skb);
    let kept = host.u64(at)?;
    if kept != 0 {
        return Ok(kept);
    }
    let skb = napi_allocate(s, host, &[args[0], HEADERS, 0, 0, 0, 0])?;
    host.put_u64(at, skb)?;
    Ok(skb)
}

/// `napi_gro_frags(napi)`: hands that packet over. It begins with its Ethernet header, in the first page.
pub fn gro_frags<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if !host.takes_packets() {
        return Err(Stop::Upcall);
    }
    let at = args[0].wrapping_add(s.offsets.napi_skb);
    let skb = host.u64(at)?;
    host.put_u64(at, 0)?;
    if pull_header(s, host, skb)? {
        hand_over(s, host, skb)?;
    } else {
        release(s, host, skb, None)?;
    }
    Ok(GRO_NORMAL)
}

/// Moves the Ethernet header of a packet in pages to where others have it. `false`: the packet is too short, or has no room for it.
fn pull_header<H: Host>(s: &Support, host: &mut H, skb: u64) -> Result<bool, Stop> {
    let o = &s.offsets;
    let len = ETHERNET_HEADER;
    let parts = Parts::read(host, o, skb)?;
    let (fragments, nr) = read_fragments(host, s, &parts)?;
    let is_whole = nr != 0 && parts.data_len == parts.len && parts.len >= len;
    let first = fragments.first().filter(|first| is_whole && first.len >= len);
    let Some(first) = first.filter(|_| parts.tail.checked_add(len).is_some_and(|tail| tail <= parts.end)) else {
        return Ok(false);
    };
    let mut header = [0; ETHERNET_HEADER as usize];
    let page = s.page_address(first.page).ok_or(bad("fragment without a page", first.page))?;
    host.read(page.wrapping_add(first.offset.into()), &mut header)?;
    host.write(parts.tail_address(), &header)?;
    let mac = u16::try_from(parts.tail).map_err(|_| bad("no room for headers", skb))?;
    let put = |member: u64, value: u32| host.put_u32(skb.wrapping_add(member), value);
    host.put_u16(skb.wrapping_add(o.skb_mac_header), mac)?;
    host.put_u64(skb.wrapping_add(o.skb_data), parts.tail_address().wrapping_add(len.into()))?;
    put(o.skb_tail, parts.tail + len)?;
    put(o.skb_len, parts.len - len)?;
    put(o.skb_data_len, parts.data_len - len)?;
    let fragment = parts.head.wrapping_add(u64::from(parts.end)).wrapping_add(o.info_frags);
    host.put_u32(fragment.wrapping_add(8), first.len - len)?;
    host.put_u32(fragment.wrapping_add(12), first.offset + len)?;
    host.write(skb.wrapping_add(o.skb_protocol), &header[12..])?;
    Ok(true)
}

/// `netif_receive_skb(skb)`.
pub fn receive<H: Host>(s: &Support, host: &mut H, args: &[u64; 6]) -> Done {
    if !host.takes_packets() {
        return Err(Stop::Upcall);
    }
    hand_over(s, host, args[0])?;
    Ok(0)
}

fn hand_over<H: Host>(s: &Support, host: &mut H, skb: u64) -> Result<(), Stop> {
    let o = &s.offsets;
    let parts = Parts::read(host, o, skb)?;
    let Some(frame) = frame(host, s, skb, &parts)? else { return release(s, host, skb, None) };
    let nr = host.u8(parts.head.wrapping_add(u64::from(parts.end)).wrapping_add(o.info_nr_frags))?;
    if nr != 0 || parts.data_len != 0 {
        return hand_over_fragments(s, host, &parts, &frame);
    }
    if host.receive(&frame)? {
        return Ok(());
    }
    release(s, host, skb, Some(&frame))
}

#[cold]
fn hand_over_fragments<H: Host>(s: &Support, host: &mut H, parts: &Parts, frame: &Frame<'_>) -> Result<(), Stop> {
    let (fragments, nr) = read_fragments(host, s, parts)?;
    let fragments = fragments.get(..nr).unwrap_or_default();
    let sum: u64 = fragments.iter().map(|fragment| u64::from(fragment.len)).sum();
    if sum != u64::from(parts.data_len) {
        return Err(bad("fragments do not make up data_len", sum));
    }
    let frame = Frame { fragments, ..*frame };
    if host.receive(&frame)? {
        return Ok(());
    }
    release(s, host, frame.skb, Some(&frame))
}

/// Reads a packet, without its fragments. `None` if it is too short for an Ethernet header: nobody wants it, but whoever sent it must not
/// end the twin by it.
fn frame<H: Host>(host: &H, s: &Support, skb: u64, parts: &Parts) -> Result<Option<Frame<'static>>, Stop> {
    let o = &s.offsets;
    let linear = parts.len - parts.data_len;
    let data_at = parts.data.wrapping_sub(parts.head);
    let linear_end = data_at + u64::from(linear);
    if linear_end > u64::from(parts.end) {
        return Err(bad("packet longer than its buffer", u64::from(linear)));
    }
    let mac = u64::from(host.u16(skb.wrapping_add(o.skb_mac_header))?);
    if mac > data_at {
        return Err(bad("Ethernet header behind the data", mac));
    }
    if mac + u64::from(ETHERNET_HEADER) > linear_end {
        return Ok(None);
    }
    Ok(Some(Frame {
        skb,
        head: parts.head,
        data: parts.data,
        linear,
        mac_header: parts.head.wrapping_add(mac),
        len: u32::try_from(linear_end - mac).unwrap_or(0),
        protocol: host.u16(skb.wrapping_add(o.skb_protocol))?,
        ip_summed: host.u8(skb.wrapping_add(o.skb_pkt_type))? >> 5 & 3,
        tag: read_tag(host, o, skb)?,
        fragments: &[],
    }))
}

/// Reads the tag. Where there is none, nothing was written since the `sk_buff` was all zeroes.
fn read_tag(memory: &impl Memory, o: &Offsets, skb: u64) -> Result<Option<[u8; 4]>, Fault> {
    let kind = memory.u16(skb.wrapping_add(o.skb_vlan_proto))?;
    if kind == 0 {
        return Ok(None);
    }
    let ([a, b], [c, d]) = (kind.to_le_bytes(), memory.u16(skb.wrapping_add(o.skb_vlan_tci))?.to_be_bytes());
    Ok(Some([a, b, c, d]))
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

/// A packet to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'p> {
    /// The device.
    pub device: u64,
    /// Linear part, from the Ethernet header on. Enough of it for what the driver reads (the paper copies 96 bytes).
    pub header: &'p [u8],
    /// The rest, in pages that have a `struct page` in the domain.
    pub fragments: &'p [Fragment],
    /// Where the device starts to sum and where it stores the sum, from the Ethernet header on.
    pub checksum: Option<(u16, u16)>,
    /// TCP segmentation: segment size, number of segments, `gso_type`.
    pub segmentation: Option<(u16, u16, u32)>,
    /// Transmit queue.
    pub queue: u16,
    /// Comes back with [`Host::transmitted`].
    pub cookie: u64,
}

/// The pages of an `sk_buff` as its fragments, of which `bytes` bytes are used. `None`: it has not so many.
fn fragments_of<'f, H: Host>(
    host: &mut H,
    skb: u64,
    bytes: u32,
    into: &'f mut [Fragment; MAX_FRAGMENTS],
) -> Option<&'f [Fragment]> {
    let mut pages = [LentPage::default(); MAX_FRAGMENTS];
    let count = host.with_pool(|pool| pool.pages(skb, &mut pages));
    let mut left = bytes;
    for (to, page) in into.iter_mut().zip(&pages[..count]) {
        let len = left.min(PAGE_BYTES);
        *to = Fragment { page: page.page, offset: 0, len };
        left -= len;
    }
    let used = bytes.div_ceil(PAGE_BYTES) as usize;
    (left == 0).then(|| into.get(..used)).flatten()
}

impl Support {
    /// The `struct page` of an address in the domain's direct map.
    pub(super) fn page_of(&self, address: u64) -> Option<u64> {
        let pfn = address.checked_sub(self.kernel.page_offset)? >> 12;
        Some(self.kernel.vmemmap.wrapping_add(pfn.checked_mul(self.offsets.page_size)?))
    }

    /// Where the domain has the frame of a `struct page`.
    #[must_use]
    pub fn page_address(&self, page: u64) -> Option<u64> {
        let pfn = page.checked_sub(self.kernel.vmemmap)?.checked_div(self.offsets.page_size)?;
        Some(self.kernel.page_offset.wrapping_add(pfn.checked_mul(1 << 12)?))
    }

    /// Makes an `sk_buff` of the pool carry a packet. `None` if the pool is empty or the header too long.
    ///
    /// # Errors
    /// If the pool's memory is not there any more.
    pub fn prepare<H: Host>(&self, host: &mut H, packet: &Packet<'_>) -> Result<Option<u64>, Reason> {
        let Ok(len) = u16::try_from(packet.header.len()) else { return Ok(None) };
        let need = u64::from(len) + self.overhead();
        if packet.fragments.len() > MAX_FRAGMENTS || u32::from(len) < ETHERNET_HEADER {
            return Ok(None);
        }
        let Some((skb, lent)) = host.with_pool(|pool| pool.take(need, Use::Transmit(packet.cookie))) else {
            return Ok(None);
        };
        host.write(lent.head.wrapping_add(HEADROOM), packet.header)?;
        self.dress(host, skb, &lent, len, packet)?;
        Ok(Some(skb))
    }

    /// Makes the `sk_buff` `skb`, in whose buffer the packet lies, say so.
    #[inline]
    fn dress<H: Host>(&self, host: &mut H, skb: u64, lent: &Lent, len: u16, packet: &Packet<'_>) -> Result<(), Fault> {
        let o = &self.offsets;
        let at = |member: u64| skb.wrapping_add(member);
        let (len, more) = (u64::from(len), packet.fragments.iter().map(|f| u64::from(f.len)).sum::<u64>());
        let transport_header = packet.checksum.map_or(NOWHERE, |(start, _)| low_u16(HEADROOM + u64::from(start)));
        let place = Place {
            head: lent.head,
            size: lent.size.into(),
            data: HEADROOM,
            tail: HEADROOM + len,
            mac_header: low_u16(HEADROOM),
            transport_header,
        };
        place.write(host, o, skb, packet.device)?;
        host.put_u32(at(o.skb_len), low_u32(len + more))?;
        host.put_u16(at(o.skb_network_header), low_u16(HEADROOM + u64::from(ETHERNET_HEADER)))?;
        // As it stands in the packet.
        let kind = host.u16(lent.head.wrapping_add(HEADROOM + PROTOCOL_AT))?;
        host.put_u16(at(o.skb_protocol), kind)?;
        if let Some((_, offset)) = packet.checksum {
            host.put_u16(at(o.skb_csum_start), transport_header)?;
            host.put_u16(at(o.skb_csum_offset), offset)?;
            host.put_u8(at(o.skb_pkt_type), CHECKSUM_PARTIAL)?;
        }
        if packet.queue != 0 {
            host.put_u16(at(o.skb_queue_mapping), packet.queue)?;
        }
        let info = place.write_info(host, o)?;
        if let Some((size, segments, kind)) = packet.segmentation {
            host.put_u16(info.wrapping_add(o.info_gso_size), size)?;
            host.put_u16(info.wrapping_add(o.info_gso_segs), segments)?;
            host.put_u32(info.wrapping_add(o.info_gso_type), kind)?;
        }
        if !packet.fragments.is_empty() {
            host.put_u32(at(o.skb_data_len), low_u32(more))?;
            self.list_fragments(host, info, packet.fragments)?;
        }
        Ok(())
    }

    /// Lists `fragments` in the shared info at `info`.
    fn list_fragments<H: Host>(&self, host: &mut H, info: u64, fragments: &[Fragment]) -> Result<(), Fault> {
        let o = &self.offsets;
        host.put_u8(info.wrapping_add(o.info_nr_frags), u8::try_from(fragments.len()).unwrap_or(0))?;
        let mut to = info.wrapping_add(o.info_frags);
        for fragment in fragments {
            host.put_u64(to, fragment.page)?;
            host.put_u64(to.wrapping_add(8), u64::from(fragment.len) | u64::from(fragment.offset) << 32)?;
            to = to.wrapping_add(16);
        }
        Ok(())
    }

    /// Has an `sk_buff` that was reserved carry a packet of which `len` bytes lie in its buffer, and the next `more` in its pages; of
    /// `packet`, header and fragments are not used. `false`: it is not reserved; or has not so many pages, and is given back.
    ///
    /// # Errors
    /// If the pool's memory is not there any more.
    pub fn prepare_reserved<H: Host>(
        &self,
        host: &mut H,
        skb: u64,
        (len, more): (u16, u32),
        packet: &Packet<'_>,
    ) -> Result<bool, Reason> {
        let Some(lent) = host.with_pool(|pool| pool.hand_over(skb, packet.cookie)) else { return Ok(false) };
        if more == 0 {
            self.dress(host, skb, &lent, len, packet)?;
            return Ok(true);
        }
        let mut fragments = [Fragment::default(); MAX_FRAGMENTS];
        let Some(fragments) = fragments_of(host, skb, more, &mut fragments) else {
            host.with_pool(|pool| {
                pool.take_over(skb, packet.cookie);
                pool.unreserve(skb);
            });
            return Ok(false);
        };
        self.dress(host, skb, &lent, len, &Packet { fragments, ..*packet })?;
        Ok(true)
    }

    /// Bytes of a buffer that are not for the packet.
    #[must_use]
    pub fn overhead(&self) -> u64 {
        self.offsets.info_size.next_multiple_of(64) + HEADROOM
    }

    /// Bytes of a packet for which a buffer of `size` bytes has room.
    #[must_use]
    pub fn room(&self, size: u32) -> u32 {
        u32::try_from(u64::from(size).saturating_sub(self.overhead())).unwrap_or(0)
    }

    /// Takes back a prepared packet that was not handed to the driver (its queue was stopped, or it answered "busy").
    pub fn withdraw<H: Host>(&self, host: &mut H, skb: u64) {
        if let Given::Back(_) = host.with_pool(|pool| pool.give(skb)) {
            // The pool's own memory; if it is gone, the next use of it says so.
            let _ = Pool::at_home(host, &self.offsets, skb);
        }
    }
}
