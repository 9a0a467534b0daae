//! A driver domain made of a few pages, that records what is written and what the host is told.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use super::inbox::Inbox;
use super::offsets::Offsets;
use super::pool::{Pool, USERS};
use super::skb::Frame;
use super::{Foreign, Host, Kernel, Routine, Support};
use crate::memory::{Fault, Memory};

/// What the host was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Poll(u64),
    Received { linear: u32, protocol: u16, fragments: usize },
    Transmitted(u64, u64),
    Free(Foreign),
    Queue(u64),
    Woken,
    Busy(u32),
    Note(Routine),
}

/// How much was read or written, in bytes and in instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub bytes: usize,
    pub accesses: usize,
}

#[derive(Default)]
pub struct Fake {
    bytes: RefCell<BTreeMap<u64, u8>>,
    pages: BTreeSet<u64>,
    pub written: RefCell<Vec<(u64, usize)>>,
    pub events: Vec<Event>,
    /// Machine frame = pfn + this, except those in `foreign`.
    pub shift: u64,
    pub foreign: BTreeSet<u64>,
    /// How often a busy lock is tried again, and after how many tries it is free.
    pub patience: u32,
    pub frees_after: Option<(u32, u64)>,
    pub pool: Pool,
    /// Packets that are kept, if any are.
    pub keeps: bool,
    pub inbox: Inbox,
    /// Cookies of packets that the domain freed.
    pub reclaimed: Vec<u64>,
    /// The host runs polls and takes packets.
    pub has_card: bool,
    /// How often a routine was asked whether to go on, and after how many times it is not to.
    pub asked: u32,
    /// What was read, and what was written, since then; the most of either at one time.
    was_read: Cell<Work>,
    was_written: Cell<Work>,
    pub most: Cell<Work>,
    pub ends_after: Option<u32>,
    /// A word that is another after each time that it was read.
    pub restless: Option<u64>,
    /// Invocations may wait.
    pub can_wait: bool,
    /// The DMA address of a bounce buffer.
    pub bounced: Option<u64>,
    /// The packet that was received last.
    pub last: Option<Frame<'static>>,
    /// The poll that was taken and not scheduled yet; those that were given up.
    pub taken: Option<u64>,
    pub completed: Vec<u64>,
}

impl Fake {
    pub fn reclaim(&mut self, o: &Offsets) -> Result<usize, Fault> {
        let mut pool = core::mem::take(&mut self.pool);
        let mut cookies = Vec::new();
        let (mut search, mut found) = (pool.search(), Ok(0));
        while let (Ok(before), false) = (found, search.is_over()) {
            let keep = |cookie| {
                cookies.push(cookie);
                true
            };
            found = pool.reclaim(self, o, &mut search, keep).map(|more| before + more);
            self.goes_on();
        }
        self.reclaimed.extend(cookies);
        self.pool = pool;
        found
    }

    /// Something is read or written.
    fn count(&self, access: &Cell<Work>, bytes: usize) {
        let Work { bytes: before, accesses } = access.get();
        let now = Work { bytes: before + bytes, accesses: accesses + 1 };
        access.set(now);
        let most = self.most.get();
        self.most.set(Work { bytes: most.bytes.max(now.bytes), accesses: most.accesses.max(now.accesses) });
    }

    pub fn map(&mut self, address: u64, pages: u64) {
        self.pages.extend((0..pages).map(|n| address / 4096 + n));
    }

    pub fn unmap(&mut self, address: u64) {
        self.pages.remove(&(address / 4096));
    }

    fn check(&self, address: u64, write: bool) -> Result<(), Fault> {
        if self.pages.contains(&(address / 4096)) {
            Ok(())
        } else {
            Err(Fault { address, write })
        }
    }
}

impl Memory for Fake {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        self.count(&self.was_read, into.len());
        for (at, byte) in (address..).zip(into.iter_mut()) {
            self.check(at, false)?;
            *byte = self.bytes.borrow().get(&at).copied().unwrap_or(0);
        }
        if self.restless == Some(address) {
            *self.bytes.borrow_mut().entry(address).or_default() ^= 4;
        }
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        self.count(&self.was_written, from.len());
        self.written.borrow_mut().push((address, from.len()));
        for (at, byte) in (address..).zip(from) {
            self.check(at, true)?;
            self.bytes.borrow_mut().insert(at, *byte);
        }
        Ok(())
    }

    fn exchange_u32(&self, address: u64, old: u32, new: u32) -> Result<u32, Fault> {
        let found = self.u32(address)?;
        if found == old {
            self.put_u32(address, new)?;
        }
        Ok(found)
    }

    fn exchange_u64(&self, address: u64, old: u64, new: u64) -> Result<u64, Fault> {
        let found = self.u64(address)?;
        if found == old {
            self.put_u64(address, new)?;
        }
        Ok(found)
    }
}

impl Host for Fake {
    fn with_pool<R>(&mut self, work: impl FnOnce(&mut Pool) -> R) -> R {
        work(&mut self.pool)
    }
    fn machine_frame(&self, pfn: u64) -> Option<u64> {
        (!self.foreign.contains(&pfn)).then_some(pfn + self.shift)
    }
    fn is_bounced(&self, address: u64) -> bool {
        self.bounced == Some(address)
    }
    fn runs_poll(&self, _: u64) -> bool {
        self.has_card
    }
    fn takes_packets(&self) -> bool {
        self.has_card
    }
    fn may_wait(&self) -> bool {
        self.can_wait
    }
    fn schedule_poll(&mut self, napi: u64) {
        self.events.push(Event::Poll(napi));
    }
    fn has_taken_poll(&mut self, napi: u64) {
        self.taken = Some(napi);
    }
    fn schedules_poll(&mut self, napi: u64) {
        self.taken = self.taken.filter(|taken| *taken != napi);
    }
    fn has_completed_poll(&mut self, napi: u64) {
        self.completed.push(napi);
    }
    fn receive(&mut self, f: Frame<'_>) -> bool {
        self.last = Some(Frame { fragments: &[], ..f });
        self.events.push(Event::Received { linear: f.linear, protocol: f.protocol, fragments: f.fragments.len() });
        self.keeps && self.inbox.keep(&mut self.pool, f)
    }
    fn relieve(&mut self) -> bool {
        let had_some = !self.inbox.kept().is_empty();
        self.inbox.let_go(&mut self.pool);
        had_some
    }
    fn transmitted(&mut self, skb: u64, cookie: u64) {
        self.events.push(Event::Transmitted(skb, cookie));
    }
    fn wake_sleepers(&mut self) {
        self.events.push(Event::Woken);
    }
    fn free_in_domain(&mut self, what: Foreign) {
        self.events.push(Event::Free(what));
    }
    fn queue_event(&mut self, queue: u64) {
        self.events.push(Event::Queue(queue));
    }
    fn lock_is_busy(&mut self, _: u64, tries: u32) -> bool {
        self.events.push(Event::Busy(tries));
        if let Some((after, lock)) = self.frees_after.filter(|(after, _)| *after == tries) {
            assert!(after > 0 && self.put_u32(lock, 0).is_ok());
        }
        tries < self.patience
    }
    fn goes_on(&mut self) -> bool {
        self.asked += 1;
        self.was_read.take();
        self.was_written.take();
        self.ends_after.is_none_or(|after| self.asked < after)
    }
    fn note(&mut self, routine: Routine, _: &[u64; 6]) {
        self.events.push(Event::Note(routine));
    }
}

/// Places as in a kernel of today. The tests work with any that do not overlap.
pub fn offsets() -> Offsets {
    let member = |structure: &str, member: &str| {
        let at = match (structure, member) {
            ("sk_buff", "next") => 0,
            ("sk_buff", "dev") => 16,
            ("sk_buff", "sk") => 24,
            ("sk_buff", "destructor") => 96,
            ("sk_buff", "len") => 112,
            ("sk_buff", "data_len") => 116,
            ("sk_buff", "queue_mapping") => 124,
            ("sk_buff", "cloned") => 126,
            ("sk_buff", "pkt_type") => 128,
            ("sk_buff", "csum_start") => 136,
            ("sk_buff", "csum_offset") => 138,
            ("sk_buff", "vlan_proto") => 152,
            ("sk_buff", "vlan_tci") => 154,
            ("sk_buff", "protocol") => 180,
            ("sk_buff", "transport_header") => 182,
            ("sk_buff", "network_header") => 184,
            ("sk_buff", "mac_header") => 186,
            ("sk_buff", "tail") => 188,
            ("sk_buff", "end") => 192,
            ("sk_buff", "head") => 200,
            ("sk_buff", "data") => 208,
            ("sk_buff", "truesize") => 216,
            ("sk_buff", "users") => 220,
            ("skb_shared_info", "nr_frags") => 2,
            ("skb_shared_info", "tx_flags") => 3,
            ("skb_shared_info", "gso_size") => 4,
            ("skb_shared_info", "gso_segs") => 6,
            ("skb_shared_info", "frag_list") => 8,
            ("skb_shared_info", "gso_type") => 24,
            ("skb_shared_info", "dataref") => 32,
            ("skb_shared_info", "frags") => 48,
            ("page", "compound_head") => 8,
            ("page", _) => 52,
            ("page_frag", "page") | ("scatterlist", "page_link") => 0,
            ("page_frag", "offset") | ("scatterlist", "offset") => 8,
            ("page_frag", _) | ("scatterlist", _) => 12,
            ("net_device", _) => 816,
            ("napi_struct", "state") => 16,
            ("napi_struct", "skb") => 200,
            ("napi_struct", _) => 56,
            ("netdev_queue", "_xmit_lock") => 128,
            ("netdev_queue", "xmit_lock_owner") => 132,
            ("netdev_queue", "trans_start") => 136,
            ("netdev_queue", _) => 144,
            ("dql", name) => {
                let order = [
                    "num_queued",
                    "adj_limit",
                    "last_obj_cnt",
                    "limit",
                    "num_completed",
                    "prev_ovlimit",
                    "prev_num_queued",
                    "prev_last_obj_cnt",
                    "lowest_slack",
                    "max_limit",
                    "min_limit",
                    "slack_hold_time",
                    "slack_start_time",
                ];
                order.iter().position(|n| *n == name)? as u64 * 8
            }
            _ => return None,
        };
        Some(at)
    };
    let size = |name: &str| match name {
        "scatterlist" => Some(32),
        "sk_buff" => Some(232),
        "skb_shared_info" => Some(320),
        "page" => Some(64),
        _ => None,
    };
    Offsets::fill(member, size).expect("all there")
}

pub const SKBS: u64 = 0xffff_8880_0010_0000;
pub const BUFFERS: u64 = 0xffff_8880_0020_0000;
pub const FRAGMENTS: u64 = 0xffff_8880_0030_0000;
pub const DEVICE: u64 = 0xffff_8880_0040_0000;
pub const VMEMMAP: u64 = 0xffff_ea00_0000_0000;

/// A domain with a device, and a pool of `n` of each kind.
pub fn domain(n: u64) -> (Fake, Support) {
    let mut fake = Fake { shift: 0x1000, patience: 3, has_card: true, ..Fake::default() };
    for area in [SKBS, BUFFERS, FRAGMENTS, DEVICE, VMEMMAP] {
        fake.map(area, 2 * n + 2);
    }
    let kernel = Kernel {
        page_offset: 0xffff_8880_0000_0000,
        vmalloc_start: 0xffff_c900_0000_0000,
        vmalloc_end: 0xffff_e900_0000_0000,
        vmemmap: VMEMMAP,
        jiffies: DEVICE + 0x800,
        ..Kernel::default()
    };
    let support = Support { offsets: offsets(), kernel, ..Support::default() };
    for k in 0..n {
        fake.pool.lend(SKBS + k * 512, BUFFERS + k * 4096, 2048).expect("memory");
        fake.pool.lend_bare(SKBS + k * 512 + 256).expect("memory");
        for skb in [SKBS + k * 512, SKBS + k * 512 + 256] {
            fake.put_u32(skb + support.offsets.skb_users, USERS).expect("mapped");
        }
        fake.put_u32(VMEMMAP + k * 64 + 52, 2).expect("mapped");
        fake.pool.lend_fragment(FRAGMENTS + k * 4096, VMEMMAP + k * 64, 2, 2048).expect("memory");
    }
    fake.put_u64(DEVICE + 816, DEVICE + 0x900).expect("mapped");
    fake.write(DEVICE + 0x900, &[2, 0, 0, 0, 0, 1]).expect("mapped");
    fake.written.borrow_mut().clear();
    (fake, support)
}
