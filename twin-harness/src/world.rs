//! The driver domain as the harness sees it: memory with page rights, the device, and what support routines tell the
//! host.

use crate::device::Device;
use crate::embed::Answers;
use crate::ram::Ram;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use twin_capture::snapshot::Snapshot;
use twin_runtime::linux::pool::Pool;
use twin_runtime::linux::skb::Frame;
use twin_runtime::linux::{Foreign, Host, Routine};
use twin_runtime::memory::{Fault, Memory};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Mask that the harness keeps of a domain address: the window lies below the harness itself.
pub const MASK_BITS: u32 = 46;

/// Where an address leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Physical memory.
    Ram(u64),
    /// A device register, by physical address.
    Device(u64),
    /// Memory beside the domain's: a stack.
    Beside(usize, usize),
}

/// Hashes page numbers by a multiplication; they are not chosen by an adversary.
#[derive(Debug, Default, Clone, Copy)]
pub struct PageHasher(u64);

impl std::hash::Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// Pages of the domain's kernel half.
#[derive(Debug, Default)]
pub struct PageMap {
    pages: HashMap<u64, (u64, bool), std::hash::BuildHasherDefault<PageHasher>>,
}

impl PageMap {
    /// Physical address and right to write of the page with number `vpn`.
    pub fn get(&self, vpn: u64) -> Option<(u64, bool)> {
        self.pages.get(&vpn).copied()
    }

    /// All pages.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        self.pages.iter().map(|(v, (p, w))| (*v, *p, *w))
    }
}

/// Memory beside the domain's, at an address of its own.
#[derive(Debug)]
pub struct Beside {
    /// First address.
    pub address: u64,
    /// Content.
    pub bytes: RefCell<Vec<u8>>,
    /// If set, the content is here and not in `bytes`.
    pub at: Option<*mut u8>,
}

/// One thing that code did to the outside world, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    /// Wrote memory: physical address, bytes, value.
    Write(u64, usize, u64),
    /// Read a register: physical address, bytes, value.
    ReadDevice(u64, usize, u64),
    /// Wrote a register.
    WriteDevice(u64, usize, u64),
    /// Called a function outside, with its first arguments.
    Call(String, [u64; 3]),
}

/// What the host was told.
#[derive(Debug, Default)]
pub struct Told {
    /// Polls to run.
    pub polls: Vec<u64>,
    /// Received packets, from the Ethernet header on.
    pub received: Vec<Vec<u8>>,
    /// Cookies of packets that were sent.
    pub transmitted: Vec<u64>,
    /// Objects that the domain has to free.
    pub foreign: Vec<Foreign>,
    /// Queues that may go on.
    pub queue_events: u64,
    /// Calls to make later.
    pub notes: Vec<(Routine, [u64; 6])>,
    /// Calls that no native routine served.
    pub upcalls: Vec<String>,
}

/// The driver domain.
pub struct World {
    /// Physical memory.
    pub ram: Ram,
    /// Page tables.
    pub pages: Rc<PageMap>,
    /// The same pages by masked address.
    pub masked: Rc<PageMap>,
    /// Physical windows of the device.
    pub windows: Vec<(u64, u64)>,
    /// The device.
    pub device: RefCell<Box<dyn Device>>,
    /// Stacks and the like.
    pub beside: Vec<Beside>,
    /// What the code does, if it is to be kept.
    pub deeds: RefCell<Option<Vec<Deed>>>,
    /// What the host was told.
    pub told: Told,
    /// Whether received packets are kept.
    pub keep_received: bool,
    /// Packets received.
    pub nr_received: u64,
    /// Buffers that the domain lent.
    pub pool: Pool,
    /// What the next upcalls answer.
    pub answers: Answers,
    /// Functions that are served by upcalls although there are native routines.
    pub forced: Vec<String>,
    cache: Vec<Cell<(u64, u64, bool)>>,
}

const CACHE: usize = 1024;
const MOST_ALIASES: u32 = 64;

impl World {
    /// A world in the state of the snapshot.
    pub fn new(s: &Snapshot, device: Box<dyn Device>) -> Result<Self, String> {
        let ram = Ram::new(&s.ram).map_err(|e| format!("memory: {e}"))?;
        let windows: Vec<(u64, u64)> = s.windows.iter().map(|(a, b, _)| (*a, *b)).collect();
        let (mut pages, mut masked) = (PageMap::default(), PageMap::default());
        let mappings = s.mappings();
        let mut aliases: HashMap<u64, u32> = HashMap::new();
        for m in mappings.iter().filter(|m| m.len_bytes == PAGE) {
            *aliases.entry(m.physical).or_default() += 1;
        }
        for m in mappings {
            // The kernel shows a few pages at thousands of addresses, for its own returns to user mode.
            if aliases.get(&m.physical).is_some_and(|n| *n > MOST_ALIASES) {
                continue;
            }
            for offset in (0..m.len_bytes).step_by(PAGE as usize) {
                let (va, pa) = (m.address + offset, m.physical + offset);
                let is_device = windows.iter().any(|(a, b)| (*a..=*b).contains(&pa));
                if pa < ram.len() || is_device {
                    pages.pages.insert(va / PAGE, (pa, m.writable));
                    let low = (va & ((1 << MASK_BITS) - 1)) / PAGE;
                    if let Some((other, _)) = masked.pages.insert(low, (pa, m.writable)) {
                        if other != pa {
                            return Err(format!("two pages of the domain have the masked address {:#x}", low * PAGE));
                        }
                    }
                }
            }
        }
        Ok(Self::from_parts(ram, Rc::new(pages), Rc::new(masked), windows, device))
    }

    fn from_parts(
        ram: Ram,
        pages: Rc<PageMap>,
        masked: Rc<PageMap>,
        windows: Vec<(u64, u64)>,
        device: Box<dyn Device>,
    ) -> Self {
        Self {
            ram,
            pages,
            masked,
            windows,
            device: RefCell::new(device),
            beside: Vec::new(),
            deeds: RefCell::new(None),
            told: Told::default(),
            keep_received: true,
            nr_received: 0,
            pool: Pool::default(),
            answers: Answers::default(),
            forced: Vec::new(),
            cache: vec![Cell::new((u64::MAX, 0, false)); CACHE],
        }
    }

    /// Another world in the same state, without the memory beside it.
    pub fn copy(&self) -> Result<Self, String> {
        let ram = Ram::new(self.ram.bytes()).map_err(|e| format!("memory: {e}"))?;
        let device = self.device.borrow().copy();
        Ok(Self::from_parts(ram, self.pages.clone(), self.masked.clone(), self.windows.clone(), device))
    }

    /// Where a domain address leads, if the access is allowed.
    pub fn place(&self, address: u64, size: usize, write: bool) -> Result<Place, Fault> {
        let fault = Fault { address, write };
        for (n, b) in self.beside.iter().enumerate() {
            let offset = address.wrapping_sub(b.address) as usize;
            let len = b.bytes.borrow().len();
            if offset < len && offset + size <= len {
                return Ok(Place::Beside(n, offset));
            }
        }
        let vpn = address / PAGE;
        let slot = &self.cache[vpn as usize % CACHE];
        let (tag, mut pa, mut writable) = slot.get();
        if tag != vpn {
            (pa, writable) = self.pages.get(vpn).ok_or(fault)?;
            slot.set((vpn, pa, writable));
        }
        if write && !writable {
            return Err(fault);
        }
        Ok(self.target(pa + address % PAGE))
    }

    /// Where a physical address leads.
    pub fn target(&self, pa: u64) -> Place {
        if pa < self.ram.len() {
            Place::Ram(pa)
        } else {
            Place::Device(pa)
        }
    }

    fn keep(&self, deed: impl FnOnce() -> Deed) {
        if let Some(list) = self.deeds.borrow_mut().as_mut() {
            list.push(deed());
        }
    }

    /// Notes a call of a function outside.
    pub fn keep_call(&self, name: &str, args: &[u64; 6]) {
        self.keep(|| Deed::Call(name.to_owned(), [args[0], args[1], args[2]]));
    }

    /// Calls a function of the domain that no native routine serves. Nothing runs; what it answers was said before.
    pub fn upcall(&mut self, name: &str, _args: &[u64; 6]) -> u64 {
        self.told.upcalls.push(name.to_owned());
        self.answers.pop()
    }

    /// Reads from a place.
    pub fn load(&self, place: Place, size: usize) -> u64 {
        match place {
            Place::Ram(pa) => self.ram.int(pa, size).unwrap_or(0),
            Place::Device(pa) => {
                let value = self.device.borrow_mut().read(pa, size);
                self.keep(|| Deed::ReadDevice(pa, size, value));
                value
            }
            Place::Beside(n, offset) => {
                let mut bytes = [0; 8];
                self.beside_bytes(n, offset, &mut bytes[..size], false);
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// Writes to a place.
    pub fn store(&self, place: Place, size: usize, value: u64) {
        match place {
            Place::Ram(pa) => {
                self.ram.write(pa, &value.to_le_bytes()[..size]);
                self.keep(|| Deed::Write(pa, size, value));
            }
            Place::Device(pa) => {
                self.keep(|| Deed::WriteDevice(pa, size, value));
                self.device.borrow_mut().write(pa, size, value, &self.ram);
            }
            Place::Beside(n, offset) => {
                let mut bytes = value.to_le_bytes();
                self.beside_bytes(n, offset, &mut bytes[..size], true);
            }
        }
    }

    #[allow(unsafe_code, reason = "memory that the twin has, too")]
    fn beside_bytes(&self, n: usize, offset: usize, bytes: &mut [u8], write: bool) {
        let b = &self.beside[n];
        if let Some(at) = b.at {
            // SAFETY: `place` checked offset and size against the area's length; `at` maps that many bytes.
            unsafe {
                let at = at.add(offset);
                if write {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len());
                } else {
                    std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), bytes.len());
                }
            }
            return;
        }
        let mut content = b.bytes.borrow_mut();
        let range = &mut content[offset..offset + bytes.len()];
        if write {
            range.copy_from_slice(bytes);
        } else {
            bytes.copy_from_slice(range);
        }
    }

    /// Reads an integer at a domain address; accesses over a page boundary are taken apart.
    pub fn read_int(&self, address: u64, size: usize) -> Result<u64, Fault> {
        if address % PAGE + size as u64 <= PAGE {
            return Ok(self.load(self.place(address, size, false)?, size));
        }
        let mut out = 0;
        for k in 0..size {
            out |= self.load(self.place(address.wrapping_add(k as u64), 1, false)?, 1) << (8 * k);
        }
        Ok(out)
    }

    /// Writes an integer.
    pub fn write_int(&self, address: u64, size: usize, value: u64) -> Result<(), Fault> {
        if address % PAGE + size as u64 <= PAGE {
            self.store(self.place(address, size, true)?, size, value);
            return Ok(());
        }
        for k in 0..size {
            self.store(self.place(address.wrapping_add(k as u64), 1, true)?, 1, value >> (8 * k) & 0xff);
        }
        Ok(())
    }
}

impl Memory for World {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < into.len() {
            let at = address.wrapping_add(done as u64);
            let step = ((PAGE - at % PAGE) as usize).min(into.len() - done);
            match self.place(at, step, false)? {
                Place::Ram(pa) => drop(self.ram.read(pa, &mut into[done..done + step])),
                Place::Beside(n, offset) => self.beside_bytes(n, offset, &mut into[done..done + step], false),
                place @ Place::Device(_) if step <= 8 => {
                    let value = self.load(place, step);
                    into[done..done + step].copy_from_slice(&value.to_le_bytes()[..step]);
                }
                Place::Device(_) => return Err(Fault { address: at, write: false }),
            }
            done += step;
        }
        Ok(())
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < from.len() {
            let at = address.wrapping_add(done as u64);
            let step = ((PAGE - at % PAGE) as usize).min(from.len() - done);
            match self.place(at, step, true)? {
                Place::Ram(pa) => drop(self.ram.write(pa, &from[done..done + step])),
                Place::Beside(n, offset) => {
                    let mut bytes = from[done..done + step].to_vec();
                    self.beside_bytes(n, offset, &mut bytes, true);
                }
                place @ Place::Device(_) if step <= 8 => {
                    let mut bytes = [0; 8];
                    bytes[..step].copy_from_slice(&from[done..done + step]);
                    self.store(place, step, u64::from_le_bytes(bytes));
                }
                Place::Device(_) => return Err(Fault { address: at, write: true }),
            }
            done += step;
        }
        Ok(())
    }

    fn exchange_u32(&self, address: u64, old: u32, new: u32) -> Result<u32, Fault> {
        self.place(address, 4, true)?;
        let found = self.u32(address)?;
        if found == old {
            self.put_u32(address, new)?;
        }
        Ok(found)
    }

    fn exchange_u64(&self, address: u64, old: u64, new: u64) -> Result<u64, Fault> {
        self.place(address, 8, true)?;
        let found = self.u64(address)?;
        if found == old {
            self.put_u64(address, new)?;
        }
        Ok(found)
    }
}

impl Host for World {
    fn with_pool<R>(&mut self, work: impl FnOnce(&mut Pool) -> R) -> R {
        work(&mut self.pool)
    }

    fn machine_frame(&self, pfn: u64) -> Option<u64> {
        (pfn < self.ram.len() / PAGE).then_some(pfn)
    }

    fn schedule_poll(&mut self, napi: u64) {
        self.told.polls.push(napi);
    }

    fn receive(&mut self, frame: Frame<'_>) -> bool {
        self.nr_received += 1;
        if !self.keep_received {
            return false;
        }
        let mut bytes = vec![0; frame.len as usize];
        if self.read(frame.mac_header, &mut bytes).is_ok() {
            self.told.received.push(bytes);
        }
        false
    }

    fn transmitted(&mut self, _skb: u64, cookie: u64) {
        self.told.transmitted.push(cookie);
    }

    fn free_in_domain(&mut self, what: Foreign) {
        self.told.foreign.push(what);
    }

    fn queue_event(&mut self, _queue: u64) {
        self.told.queue_events += 1;
    }

    fn lock_is_busy(&mut self, _lock: u64, tries: u32) -> bool {
        tries < 1000
    }

    fn note(&mut self, routine: Routine, args: &[u64; 6]) {
        self.told.notes.push((routine, *args));
    }
}
