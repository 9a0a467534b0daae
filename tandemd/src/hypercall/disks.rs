//! Guests' disks in the hypervisor, and what a service's domain needs to be the front end of a stock back end: memory,
//! grants and ports.

use super::foreign::Foreign;
use super::{Argument, Call, Hypervisor, PAGE_BYTES};
use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Direction, Ioctl, IoctlOutput, Opcode};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::sync::atomic::{AtomicU32, Ordering};
use xen_abi::channel_op::{
    self as op, ChannelDisk, ChannelDiskAttach, ChannelDiskConnect, ChannelDiskPort, ChannelDiskStatus,
};
use xen_abi::event::{EvtchnAllocUnbound, EVTCHNOP_ALLOC_UNBOUND};
use xen_abi::grant::{ENTRIES_V1_PER_PAGE, GTF_PERMIT_ACCESS, GTF_READING, GTF_WRITING};
use xen_abi::hypercall::{EVENT_CHANNEL_OP, MEMORY_OP};
use xen_abi::memory::{MemoryReservation, RESOURCE_GRANT_TABLE, XENMEM_POPULATE_PHYSMAP};

/// What a service's domain is made with, in MiB.
pub const SERVICE_MIB: u64 = 4;
/// Pages that a disk's bytes go through: eight requests of 64 KiB with their lists, and some more.
pub const NR_PAGES: u32 = 160;
/// The logarithm of how many of them follow each other in memory, if there is such memory: those of the longest
/// request.
const PIECE_ORDER: u32 = 5;
const _: () = assert!(NR_PAGES.is_multiple_of(1 << PIECE_ORDER));
/// Sets of pages that a slot has: one back end may still reach its own when the next one comes.
const SETS: u32 = 2;
/// Grants of a set: the ring's, and those of the pages.
const EACH: u32 = NR_PAGES + 1;
/// The first slot's first; those below are the toolstack's.
const FIRST: u32 = 64;
/// What a service's domain may have, in KiB: enough for all slots.
const MEMORY_KIB: u64 = 384 << 10;
/// Frames that its grant table may have.
pub const GRANT_FRAMES: u32 = 160;
/// Slots of a service: what its grant table has room for.
pub const SLOTS: u32 = (GRANT_FRAMES * ENTRIES_V1_PER_PAGE - FIRST) / (SETS * EACH);
const _: () = assert!(SLOTS as u64 * (SETS * EACH) as u64 * 4 + (SERVICE_MIB << 10) <= MEMORY_KIB);
/// The first frame number of its own that it gets for slots: the one behind those it was made with. For DMA to a frame
/// that it has mapped, Linux in a driver domain walks its page tables less often if the frame's owner calls it by a
/// number that Linux has itself.
const FIRST_FRAME: u64 = (SERVICE_MIB << 20) / PAGE_BYTES as u64;
/// Slots whose frames are to have machine numbers that a driver domain's own frames have, too, if there are such: 40
/// MiB, and some devices reach no other memory.
const LOW_SLOTS: u32 = 32;

/// Below how many bits of address a machine has frames whose numbers a domain with so many pages has, too, or nearly
/// all of them; 0 if those are too few to look for. For DMA to a frame that is not its own, Linux looks up what it
/// calls by the frame's machine number itself, and walks its page tables if that is nothing.
fn low_address_bits(pages: u64) -> u32 {
    match (pages + pages / 16).checked_ilog2().unwrap_or(0) + PAGE_BYTES.ilog2() {
        bits @ 25.. => bits.min(32),
        _ => 0,
    }
}

/// The grant of the ring in a set of a slot's; those of its pages follow.
fn ring_of(slot: u32, set: u32) -> u32 {
    FIRST + (slot * SETS + set) * EACH
}

/// What disks the hypervisor has.
pub trait DiskList {
    /// The first one from this place on.
    fn next_disk(&mut self, place: u32) -> Result<ChannelDiskStatus, Errno>;
}

/// The hypervisor's disks.
pub trait Disks: DiskList {
    /// Takes up a guest's; its name.
    fn connect_disk(&mut self, request: &ChannelDiskConnect) -> Result<u32, Errno>;
    /// Lets it go.
    fn disconnect_disk(&mut self, disk: u32) -> Result<(), Errno>;
    /// Nobody waits for another back end of one that has none: its requests are answered with errors. If not, they wait
    /// again.
    fn give_up_disk(&mut self, disk: u32, is_wanted: bool) -> Result<(), Errno>;
    /// Gives it a back end.
    fn attach_disk(&mut self, request: &ChannelDiskAttach) -> Result<(), Errno>;
    /// A port of domain `front` to which `back` may bind.
    fn open_port(&mut self, front: u16, back: u16) -> Result<u32, Errno>;
    /// Closes a port of domain `front`, if it is there.
    fn close_port(&mut self, front: u16, port: u32) -> Result<(), Errno>;
    /// Domain `front` grants ring and pages of a slot, of which nobody uses one, to `to`; it gets memory for them if it
    /// has none, and the ring is empty. The ring's grant; those of the pages follow. EBUSY: somebody still uses one of
    /// each set.
    fn grant(&mut self, front: u16, slot: u32, to: u16) -> Result<u32, Errno>;
    /// Domain `front` takes back what it grants of a slot, but what it grants to `but`. What somebody uses stays
    /// granted.
    fn revoke(&mut self, front: u16, slot: u32, but: Option<u16>) -> Result<Left, Errno>;
}

/// What is left of a slot's grants when all that can be was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// None that it does not need.
    Nothing,
    /// Somebody uses what was to be taken back.
    InUse,
    /// It has never granted anything.
    NoPages,
}

/// The disks of all services.
pub fn all_disks(disks: &mut impl DiskList) -> Result<Vec<ChannelDiskStatus>, Errno> {
    let (mut found, mut place) = (Vec::new(), 0);
    loop {
        match disks.next_disk(place) {
            Ok(status) => {
                place = status.next;
                found.push(status);
            }
            Err(Errno::NOENT) => return Ok(found),
            Err(error) => return Err(error),
        }
    }
}

/// The disks of the service whose domain this is.
pub fn disks_of(disks: &mut impl DiskList, domain: u16) -> Result<Vec<ChannelDiskStatus>, Errno> {
    let all = all_disks(disks)?.into_iter();
    Ok(all.filter(|status| status.backend == domain).collect())
}

/// Whether a guest waits for a back end of its disk. One that has stopped does not: it gets none before it goes on, if
/// it ever does.
pub fn is_missed(disk: &ChannelDiskStatus) -> bool {
    disk.back == op::DISK_NO_BACK && disk.state & op::DISK_GUEST_STOPPED == 0
}

impl Argument for ChannelDisk {}
impl Argument for ChannelDiskConnect {}
impl Argument for ChannelDiskAttach {}
impl Argument for ChannelDiskStatus {}
impl Argument for ChannelDiskPort {}
impl Argument for EvtchnAllocUnbound {}
impl Argument for Populate {}

impl DiskList for Hypervisor {
    fn next_disk(&mut self, place: u32) -> Result<ChannelDiskStatus, Errno> {
        self.call(op::CHANNELOP_DISK_NEXT, ChannelDiskStatus { next: place, ..ChannelDiskStatus::default() })
    }
}

impl Disks for Hypervisor {
    fn connect_disk(&mut self, request: &ChannelDiskConnect) -> Result<u32, Errno> {
        self.call(op::CHANNELOP_DISK_CONNECT, *request).map(|made| made.disk)
    }

    fn disconnect_disk(&mut self, disk: u32) -> Result<(), Errno> {
        self.call(op::CHANNELOP_DISK_DISCONNECT, ChannelDisk { disk, flags: 0 }).map(|_| ())
    }

    fn give_up_disk(&mut self, disk: u32, is_wanted: bool) -> Result<(), Errno> {
        let flags = if is_wanted { op::DISK_GIVE_UP } else { 0 };
        self.call(op::CHANNELOP_DISK_DETACH, ChannelDisk { disk, flags }).map(|_| ())
    }

    fn attach_disk(&mut self, request: &ChannelDiskAttach) -> Result<(), Errno> {
        self.call(op::CHANNELOP_DISK_ATTACH, *request).map(|_| ())
    }

    fn open_port(&mut self, front: u16, back: u16) -> Result<u32, Errno> {
        let request = EvtchnAllocUnbound { dom: front, remote_dom: back, port: 0 };
        self.call_of(EVENT_CHANNEL_OP.into(), EVTCHNOP_ALLOC_UNBOUND, request).map(|made| made.port)
    }

    fn close_port(&mut self, front: u16, port: u32) -> Result<(), Errno> {
        match self.call(op::CHANNELOP_DISK_CLOSE_PORT, ChannelDiskPort { domain: front, pad: 0, port }) {
            Ok(_) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn grant(&mut self, front: u16, slot: u32, to: u16) -> Result<u32, Errno> {
        if slot >= SLOTS {
            return Err(Errno::NOSPC);
        }
        let mut sets = (0..SETS).map(|set| ring_of(slot, set));
        let granted = sets.find_map(|ring| match self.grant_set(front, ring, to) {
            Err(Errno::BUSY) => None,
            result => Some(result.map(|()| ring)),
        });
        granted.unwrap_or(Err(Errno::BUSY))
    }

    fn revoke(&mut self, front: u16, slot: u32, but: Option<u16>) -> Result<Left, Errno> {
        let mut left = Left::NoPages;
        if slot >= SLOTS {
            return Ok(left);
        }
        for set in 0..SETS {
            let table = Table::map(&self.privcmd, front, ring_of(slot, set))?;
            if table.entry(0).1.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let heads = (0..EACH).map(|n| table.entry(n).0);
            left = match (left, take_back(heads, but)) {
                (Left::InUse, _) | (_, false) => Left::InUse,
                _ => Left::Nothing,
            };
        }
        Ok(left)
    }
}

/// Takes back what these entries grant, but what they grant to `but`. `false`: somebody uses some of that.
fn take_back<'a>(heads: impl Iterator<Item = &'a AtomicU32>, but: Option<u16>) -> bool {
    let mut is_all = true;
    for head in heads {
        let seen = head.load(Ordering::Acquire);
        let is_its = but.is_some_and(|but| seen >> 16 == u32::from(but));
        let is_granted = seen & u32::from(GTF_PERMIT_ACCESS) != 0 && !is_its;
        let is_used = seen & u32::from(GTF_READING | GTF_WRITING) != 0;
        // Who begins to use it meanwhile has it.
        let is_taken = || head.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        is_all &= !is_granted || !is_used && is_taken();
    }
    is_all
}

/// Argument of XENMEM_populate_physmap, with its list.
#[repr(C)]
#[derive(Clone, Copy)]
struct Populate {
    reservation: MemoryReservation,
    /// In: what the domain calls the frame. Out: the frame.
    frame: u64,
}

impl Hypervisor {
    /// Grants ring and pages of a set. EBUSY.
    fn grant_set(&mut self, front: u16, ring: u32, to: u16) -> Result<(), Errno> {
        let table = Table::map(&self.privcmd, front, ring)?;
        // Nobody can begin to use one that is not granted.
        for n in 0..EACH {
            let (head, _) = table.entry(n);
            let seen = head.load(Ordering::Acquire);
            let is_used = seen & u32::from(GTF_READING | GTF_WRITING) != 0;
            if is_used || head.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
                return Err(Errno::BUSY);
            }
        }
        self.fill(front, ring, to, &table)?;
        // A back end takes a ring up where it finds it: here it begins, whatever an earlier one has left.
        clear(&self.map(front, u64::from(table.entry(0).1.load(Ordering::Relaxed)))?);
        for n in 0..EACH {
            let (head, _) = table.entry(n);
            head.store(u32::from(GTF_PERMIT_ACCESS) | u32::from(to) << 16, Ordering::Release);
        }
        Ok(())
    }

    /// There is memory for all of a set, which is for domain `to` at first.
    fn fill(&mut self, front: u16, ring: u32, to: u16, table: &Table) -> Result<(), Errno> {
        let is_empty = |n: u32| table.entry(n).1.load(Ordering::Relaxed) == 0;
        let number = |n: u32| FIRST_FRAME + u64::from(ring - FIRST + n);
        let is_low = ring < ring_of(LOW_SLOTS, 0);
        let address_bits = if is_low { self.domain(to).map_or(0, |back| low_address_bits(back.tot_pages)) } else { 0 };
        let pieces = (1..EACH).step_by(1 << PIECE_ORDER).map(|first| first..first + (1 << PIECE_ORDER));
        for piece in std::iter::once(0..1).chain(pieces) {
            if piece.clone().all(is_empty) && piece.len() > 1 {
                // A back end that joins neighbours has less to do for pages that follow each other.
                if let Ok(first) = self.populate(front, number(piece.start), PIECE_ORDER, address_bits) {
                    let frames = piece.clone().zip(first..);
                    frames.for_each(|(n, frame)| table.entry(n).1.store(frame, Ordering::Relaxed));
                }
            }
            for n in piece.filter(|n| is_empty(*n)) {
                let frame = self.populate(front, number(n), 0, address_bits)?;
                table.entry(n).1.store(frame, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// So many more pages for `domain`, the logarithm of whose number is `order`; it calls the first one `number`. They
    /// are below 2^`address_bits` bytes if there are such, or anywhere if that is 0. The first one's frame.
    fn populate(&mut self, domain: u16, number: u64, order: u32, address_bits: u32) -> Result<u32, Errno> {
        self.limit_memory(domain, MEMORY_KIB)?;
        match self.populate_below(domain, number, order, address_bits) {
            Err(Errno::NOMEM) if address_bits > 0 => self.populate_below(domain, number, order, 0),
            result => result,
        }
    }

    fn populate_below(&mut self, domain: u16, number: u64, order: u32, address_bits: u32) -> Result<u32, Errno> {
        let list = self.page as u64 + std::mem::offset_of!(Populate, frame) as u64;
        let reservation = MemoryReservation {
            extent_start: list,
            nr_extents: 1,
            extent_order: order,
            mem_flags: address_bits,
            domid: domain,
            ..MemoryReservation::default()
        };
        let (made, nr) = self.make_counted(Populate { reservation, frame: number }, |address| Call {
            op: u64::from(MEMORY_OP),
            arg: [XENMEM_POPULATE_PHYSMAP, address, 0, 0, 0],
        })?;
        if nr != 1 {
            return Err(Errno::NOMEM);
        }
        u32::try_from(made.frame).map_err(|_| Errno::RANGE)
    }
}

/// Argument of IOCTL_PRIVCMD_MMAP_RESOURCE (Linux, include/uapi/xen/privcmd.h).
#[repr(C)]
struct Resource {
    domain: u16,
    kind: u32,
    id: u32,
    first: u32,
    number: u64,
    address: u64,
}

// SAFETY: the opcode is that of IOCTL_PRIVCMD_MMAP_RESOURCE, whose argument is a `Resource` that the kernel only reads
// (it writes `number` for those that ask for 0).
unsafe impl Ioctl for Resource {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::from_components(Direction::None, b'P', 7, size_of::<Resource>())
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// The frames of a domain's grant table that a set is in, one or two, as words: two for each entry.
struct Table {
    words: *mut c_void,
    bytes: usize,
    /// The set's first word.
    at: usize,
}

impl Table {
    fn map(privcmd: &File, domain: u16, ring: u32) -> Result<Self, Errno> {
        let (first, at) = (ring / ENTRIES_V1_PER_PAGE, ring % ENTRIES_V1_PER_PAGE);
        // Behind the last one there is none.
        let number = if at + EACH > ENTRIES_V1_PER_PAGE { 2 } else { 1 };
        let bytes = number * PAGE_BYTES;
        // SAFETY: a new mapping, at an address of the kernel's choice, which has no pages yet.
        let words = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, privcmd, 0)
        }?;
        let table = Self { words, bytes, at: 2 * at as usize };
        let kind = u32::from(RESOURCE_GRANT_TABLE);
        let resource = Resource { domain, kind, id: 0, first, number: number as u64, address: words as u64 };
        // SAFETY: see `Resource`; the mapping is ours alone, and so many pages long.
        unsafe { ioctl(privcmd, resource) }?;
        Ok(table)
    }

    /// The words of the set's entry `n`: flags and domain, and frame.
    fn entry(&self, n: u32) -> (&AtomicU32, &AtomicU32) {
        assert!(n < EACH);
        let place = self.words.cast::<AtomicU32>().wrapping_add(self.at + 2 * n as usize);
        // SAFETY: inside the pages, as many as the set is in; the mapping lasts as long as `self`; the hypervisor's
        // changes are met by atomics.
        unsafe { (&*place, &*place.wrapping_add(1)) }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this length; references into it do not outlive `self`.
        let _ = unsafe { munmap(self.words, self.bytes) };
    }
}

/// Makes a ring that nobody else uses an empty one, whose ends want an event at the first request and the first
/// response.
fn clear(ring: &Foreign) {
    for (word, value) in ring.words().iter().zip([0, 1, 0, 1]) {
        word.store(value, Ordering::Release);
    }
}

const _: () = assert!(size_of::<Resource>() == 32 && EACH < ENTRIES_V1_PER_PAGE);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_has_stopped_misses_no_back_end() {
        let disk = |back, state| ChannelDiskStatus { back, state, ..ChannelDiskStatus::default() };
        assert!(is_missed(&disk(op::DISK_NO_BACK, 0)) && is_missed(&disk(op::DISK_NO_BACK, op::DISK_GIVEN_UP)));
        assert!(!is_missed(&disk(5, 0)) && !is_missed(&disk(op::DISK_NO_BACK, op::DISK_GUEST_STOPPED)));
    }

    #[test]
    fn what_is_granted_is_taken_back_when_nobody_uses_it_and_is_not_its_own_domains() {
        let (granted, used) = (u32::from(GTF_PERMIT_ACCESS), u32::from(GTF_READING | GTF_WRITING));
        let (old, own) = (9 << 16, 10 << 16);
        let heads = [0, granted | old, granted | own, granted | old | used, granted | own | used].map(AtomicU32::new);
        let seen = || heads.each_ref().map(|head| head.load(Ordering::Relaxed));
        assert!(!take_back(heads.iter(), Some(10)));
        assert_eq!(seen(), [0, 0, granted | own, granted | old | used, granted | own | used]);
        heads[3].store(granted | old, Ordering::Relaxed);
        assert!(take_back(heads.iter(), Some(10)) && take_back(heads.iter(), Some(10)));
        assert_eq!(seen(), [0, 0, granted | own, 0, granted | own | used]);
        assert!(!take_back(heads.iter(), None));
        assert_eq!(seen(), [0, 0, 0, 0, granted | own | used]);
    }

    #[test]
    fn frames_of_a_service_are_to_have_numbers_that_its_driver_domain_has_too() {
        let mib = |mib: u64| (mib << 20) / PAGE_BYTES as u64;
        let bits = [0, 16, 48, 88, 256, 511, 16_384].map(|size| low_address_bits(mib(size)));
        assert_eq!(bits, [0, 0, 25, 26, 28, 29, 32]);
        // A domain that has given up a few pages.
        assert_eq!(low_address_bits(mib(256) - 300), 28);
    }
}
