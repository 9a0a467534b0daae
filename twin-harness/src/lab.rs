//! A driver ready to run: its world, the support routines with a filled pool, and the things one does with a network
//! driver.

use crate::device::{Arrival, Device};
use crate::emulate::class_of;
use crate::world::{World, PAGE};
use twin_abi::Image;
use twin_kernel::driver::Live;
use twin_runtime::linux::pool::Pool;
use twin_runtime::linux::queue::Begun;
use twin_runtime::linux::skb::{Fragment, Packet};
use twin_runtime::linux::Support;
use twin_runtime::Abort;
use twin_runtime::Memory;
use twin_runtime::Reason;

/// Why a call did not return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// What happened.
    pub reason: String,
    /// Where, as symbol and offset.
    pub at: String,
    /// Coarse class, for statistics.
    pub class: Class,
}

impl Ended {
    /// From an abort in an invocation of the function at domain address `entry`. What was called last, by a jump, has
    /// left no place in the twin behind: then it is the function that was entered.
    pub fn from_abort(abort: &Abort, image: &Image<'_>, entry: u64) -> Self {
        let entered = || {
            let name = image.functions().iter().find(|f| f.domain == entry).map(|f| image.name(f.name, f.name_len));
            format!("the end of {}", name.unwrap_or("?"))
        };
        let known = image.function_at(abort.offset).is_some();
        let at = if known { format!("{}+{:#x}", abort.symbol, abort.original) } else { entered() };
        Self { class: class_of(&abort.reason), reason: format!("{:x?}", abort.reason), at }
    }
}

/// How a call ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A memory access that is not allowed.
    Memory,
    /// BUG or another trap.
    Trap,
    /// Division.
    Divide,
    /// An indirect call to nowhere.
    IndirectCall,
    /// A support routine refused its arguments.
    Structure,
    /// The budget was used up.
    Budget,
    /// The time was used up: the code ran on without charging itself to the budget.
    TimeOut,
    /// The stack was used up.
    Stack,
    /// Something that must not happen: the code did what the sandbox should have prevented.
    Escape,
    /// Anything else.
    Other,
}

/// Runs driver functions.
pub trait Executor {
    /// Calls the function at a domain address.
    fn call(&mut self, world: &mut World, support: &Support, function: u64, args: &[u64; 6]) -> Result<u64, Ended>;
    /// Instructions of driver text run so far.
    fn instructions(&self) -> u64;
}

/// The driver's world with its support routines.
pub struct Lab {
    /// The domain.
    pub world: World,
    /// The routines.
    pub support: Support,
    /// What was found in the snapshot.
    pub live: Live,
    /// Pages for fragments of packets to send: `struct page` and domain address.
    pub pages: Vec<(u64, u64)>,
    next_page: usize,
    next_cookie: u64,
}

/// A packet to send.
#[derive(Debug, Clone, Default)]
pub struct Outgoing {
    /// The frame.
    pub frame: Vec<u8>,
    /// How it is cut: bytes in the linear part, then bytes of each fragment.
    pub cuts: Vec<usize>,
    /// Ask the device for the checksum.
    pub checksum: bool,
}

/// What became of a packet to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The driver took it.
    Taken,
    /// The driver had no room.
    Busy,
    /// The queue is stopped.
    Stopped,
    /// The pool is empty.
    NoBuffer,
}

const SKB_BYTES: u64 = 256;
const WHOLE: usize = 700;
const BARE: usize = 700;
const FRAGMENTS: usize = 700;
const TX_PAGES: usize = 64;

impl Lab {
    /// Fills the pool from pages that are free in the snapshot.
    pub fn new(mut world: World, live: &Live) -> Result<Self, String> {
        let mut free = free_pages(&world, live)?.into_iter();
        let support = Support { offsets: live.offsets, kernel: live.kernel, ..Support::default() };
        let mut pool = Pool::default();
        let page_of = |pfn: u64| live.kernel.vmemmap + pfn * live.offsets.page_size;
        let address_of = |pfn: u64| live.kernel.page_offset + pfn * PAGE;
        let mut take = || -> Result<u64, String> {
            let pfn: u64 = free.next().ok_or("the snapshot has too few free pages")?;
            let page = page_of(pfn);
            let set = |offset: u64, v: u32| world.put_u32(page + offset, v).map_err(|f| format!("{f:?}"));
            set(live.page_type, u32::MAX)?;
            set(live.offsets.page_refcount, 1)?;
            Ok(pfn)
        };
        let per_page = (PAGE / SKB_BYTES) as usize;
        let mut structures = Vec::new();
        for _ in 0..(WHOLE + BARE).div_ceil(per_page) {
            let at = address_of(take()?);
            structures.extend((0..PAGE / SKB_BYTES).map(|n| at + n * SKB_BYTES));
        }
        for skb in structures.iter().take(WHOLE) {
            pool.lend(*skb, address_of(take()?), PAGE as u32).map_err(|e| format!("{e:?}"))?;
        }
        for skb in structures.iter().skip(WHOLE).take(BARE) {
            pool.lend_bare(*skb).map_err(|e| format!("{e:?}"))?;
        }
        for _ in 0..FRAGMENTS {
            let pfn = take()?;
            pool.lend_fragment(address_of(pfn), page_of(pfn), 1, PAGE).map_err(|f| format!("{f:?}"))?;
        }
        let mut pages = Vec::new();
        for _ in 0..TX_PAGES {
            let pfn = take()?;
            pages.push((page_of(pfn), address_of(pfn)));
        }
        world.pool = pool;
        Ok(Self { world, support, live: live.clone(), pages, next_page: 0, next_cookie: 0 })
    }

    /// Sends a packet.
    pub fn transmit(&mut self, e: &mut dyn Executor, out: &Outgoing) -> Result<Sent, Ended> {
        let queue = self.live.net.tx_queue;
        match self.support.begin_transmit(&mut self.world, queue).map_err(routine("begin_transmit"))? {
            Begun::Open => {}
            Begun::Stopped => return Ok(Sent::Stopped),
            Begun::Busy => return Err(routine("begin_transmit")(Reason::Lock(queue))),
        }
        let linear = out.cuts.first().copied().unwrap_or(out.frame.len()).clamp(14, out.frame.len());
        let mut fragments = Vec::new();
        let mut at = linear;
        for cut in out.cuts.iter().skip(1) {
            let len = (*cut).min(out.frame.len() - at).min(PAGE as usize);
            if len == 0 || fragments.len() >= 16 {
                break;
            }
            let (page, address) = self.pages[self.next_page % self.pages.len()];
            self.next_page += 1;
            let offset = (PAGE as usize - len).min(64 * (self.next_page % 8));
            self.world
                .write(address + offset as u64, &out.frame[at..at + len])
                .map_err(|f| routine("fragment")(f.into()))?;
            fragments.push(Fragment { page, offset: offset as u32, len: len as u32 });
            at += len;
        }
        self.next_cookie += 1;
        let packet = Packet {
            device: self.live.net.address,
            header: &out.frame[..linear],
            fragments: &fragments,
            checksum: (out.checksum && linear >= 42).then_some((34, 6)),
            segmentation: None,
            queue: 0,
            cookie: self.next_cookie,
        };
        let skb = self.support.prepare(&mut self.world, &packet).map_err(routine("prepare"))?;
        let Some(skb) = skb else {
            self.support.end_transmit(&mut self.world, queue, false).map_err(routine("end_transmit"))?;
            return Ok(Sent::NoBuffer);
        };
        let args = [skb, self.live.net.address, 0, 0, 0, 0];
        let result = e.call(&mut self.world, &self.support, self.live.net.start_xmit, &args)?;
        let taken = result as u32 == 0;
        self.support.end_transmit(&mut self.world, queue, taken).map_err(routine("end_transmit"))?;
        if taken {
            return Ok(Sent::Taken);
        }
        self.support.withdraw(&mut self.world, skb);
        Ok(Sent::Busy)
    }

    /// Lets a packet arrive at the device.
    pub fn arrive(&mut self, frame: &[u8], how: Arrival) -> bool {
        self.world.device.borrow_mut().arrive(frame, how, &self.world.ram)
    }

    /// Runs the interrupt handlers that the device asks for; returns how many.
    pub fn interrupt(&mut self, e: &mut dyn Executor) -> Result<usize, Ended> {
        let pending = self.world.device.borrow_mut().interrupts();
        for n in &pending {
            if let Some((irq, handler, argument)) = self.live.net.irqs.get(*n).copied() {
                let args = [u64::from(irq), argument, 0, 0, 0, 0];
                e.call(&mut self.world, &self.support, handler, &args)?;
            }
        }
        Ok(pending.len())
    }

    /// Runs the polls that were scheduled until none is left.
    pub fn poll(&mut self, e: &mut dyn Executor) -> Result<u64, Ended> {
        const WEIGHT: u64 = 64;
        let mut work = 0;
        for _ in 0..64 {
            let napis = std::mem::take(&mut self.world.told.polls);
            if napis.is_empty() {
                break;
            }
            for napi in napis {
                let Some((_, poll)) = self.live.net.napi.iter().find(|(n, _)| *n == napi).copied() else { continue };
                let done = e.call(&mut self.world, &self.support, poll, &[napi, WEIGHT, 0, 0, 0, 0])? & 0xffff_ffff;
                work += done;
                if done >= WEIGHT {
                    self.world.told.polls.push(napi);
                }
            }
        }
        Ok(work)
    }

    /// Interrupts and polls until the device is quiet.
    pub fn settle(&mut self, e: &mut dyn Executor) -> Result<(), Ended> {
        for _ in 0..16 {
            let interrupts = self.interrupt(e)?;
            if interrupts == 0 && self.world.told.polls.is_empty() {
                break;
            }
            self.poll(e)?;
        }
        Ok(())
    }
}

/// A support routine that the sender calls found a structure in a state that it must not be in.
fn routine(name: &'static str) -> impl Fn(twin_runtime::Reason) -> Ended {
    move |reason| Ended { reason: format!("{reason:x?}"), at: format!("routine {name}"), class: Class::Structure }
}

/// A state of a lab to which it can be brought back.
pub struct Checkpoint {
    pool: Pool,
    device: Box<dyn Device>,
}

impl Checkpoint {
    /// The state now. From here on changes of memory are kept.
    pub fn of(lab: &Lab) -> Self {
        lab.world.ram.mark();
        let device = lab.world.device.borrow().copy();
        Self { pool: lab.world.pool.clone(), device }
    }

    /// Brings everything back but memory, for those who track that in their own way.
    pub fn restore_beside_memory(&self, lab: &mut Lab) {
        lab.world.pool = self.pool.clone();
        *lab.world.device.borrow_mut() = self.device.copy();
        lab.world.told = Default::default();
        for b in lab.world.beside.iter().filter(|b| b.at.is_none()) {
            b.bytes.borrow_mut().fill(0);
        }
    }

    /// Brings everything back.
    pub fn restore(&self, lab: &mut Lab) {
        lab.world.ram.rewind();
        lab.world.ram.forget();
        self.restore_beside_memory(lab);
    }
}

/// Page frames that the kernel's allocator has free.
fn free_pages(world: &World, live: &Live) -> Result<Vec<u64>, String> {
    /// The type bits of a free block, which are clear in the word, and those that say that it is a type at all.
    const BUDDY: u32 = 0x80;
    const BASE: u32 = 0xf000_0000;
    let mut out = Vec::new();
    let mut pfn = 0;
    while pfn < world.ram.len() / PAGE {
        let page = live.kernel.vmemmap + pfn * live.offsets.page_size;
        let Ok(kind) = world.u32(page + live.page_type) else {
            pfn += 1;
            continue;
        };
        if kind & (BASE | BUDDY) == BASE {
            let order = world.u64(page + live.page_private).map_err(|f| format!("{f:?}"))?.min(10);
            out.extend(pfn..pfn + (1 << order));
            pfn += 1 << order;
        } else {
            pfn += 1;
        }
    }
    Ok(out)
}
