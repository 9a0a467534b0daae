//! What all instances of a twin have in common beside their code: what is known of the kernel, the buffers that it
//! lent, and what it has to do for the twin.

use super::instance::MAX_HELD;
use crate::cpu::percpu::MAX_CPUS;
use crate::domain::ports::GuestPage;
use crate::domain::{self, event, Domain};
use crate::mem::guest_ptr::{plain, GuestPtr};
use crate::mem::{frames, layout};
use crate::sync::Mutex;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use twin_abi::op::{self, lent, note, TwinKernel, TwinLent, TwinNote};
use twin_runtime::linux::lock::Sleepers;
use twin_runtime::linux::offsets::Offsets;
use twin_runtime::linux::pages::Pages;
use twin_runtime::linux::pool::{Kind, Pool, Refusal};
use twin_runtime::linux::skb::{LARGEST, MOST_FOREIGN};
use twin_runtime::linux::{Foreign, Kernel, Routine, Support};
use twin_runtime::order::sort_by_key;
use twin_runtime::stubs::Inline;
use x86::{MachAddr, Mfn, PAGE_SIZE};
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;

plain!(TwinKernel, TwinLent, TwinNote);

/// Most bytes of an element of the table of vCPUs that sleep.
const MAX_SLEEPER: u32 = 256;
/// Notes that one call of a routine may leave, and the end of an invocation after it, and of its lane and card: in all
/// instances at one time.
const NOTES_OF_CALLS: usize = (MOST_FOREIGN + MAX_HELD + 2) * MAX_CPUS;

/// So many buffers are lent at once that were not lent before: each may move all that are known already, in memory.
const NEW_AT_ONCE: u32 = 16;
/// So many frames go back at once.
const LET_GO_AT_ONCE: usize = 256;

/// See the module.
pub struct Common {
    /// What routines know.
    pub support: Support,
    p2m: u64,
    p2m_frames: u64,
    bounce: u64,
    bounce_frames: u64,
    owner: DomId,
    is_described: bool,
    pool: Mutex<Pool>,
    /// Where lent buffers lie, for stubs.
    pages: Pages,
    /// The frames of lent buffers, which stay the domain's own, and ordinary memory. Locked before the pool.
    held: Mutex<Vec<Held>>,
    /// Room for all was made at the start.
    notes: Mutex<Vec<TwinNote>>,
    /// How many notes there are.
    nr_notes: AtomicUsize,
}

/// The frame of a lent buffer.
struct Held {
    /// What was lent.
    object: u64,
    /// The `struct page`.
    page: u64,
    frame: GuestPage,
}

impl Common {
    /// For a twin of `owner`, with what it says at `kernel` of its kernel, if that is not 0. Errors: EFAULT; EINVAL if
    /// it says what cannot be; ENOMEM.
    pub fn new(owner: DomId, kernel: u64) -> Result<Self, Errno> {
        let said = if kernel == 0 { TwinKernel::default() } else { GuestPtr::new(kernel).read()? };
        let mut notes = Vec::new();
        notes.try_reserve_exact(op::MAX_NOTES + NOTES_OF_CALLS).map_err(|_| Errno::ENOMEM)?;
        Ok(Self {
            support: if kernel == 0 { Support::default() } else { support(&said)? },
            p2m: said.p2m,
            p2m_frames: said.p2m_frames,
            bounce: said.bounce,
            bounce_frames: said.bounce_frames,
            owner,
            is_described: kernel != 0,
            pool: Mutex::new(Pool::default()),
            pages: Pages::new().map_err(|_| Errno::ENOMEM)?,
            held: Mutex::new(Vec::new()),
            notes: Mutex::new(notes),
            nr_notes: AtomicUsize::new(0),
        })
    }

    /// Was the domain's kernel described?
    pub fn is_described(&self) -> bool {
        self.is_described
    }

    /// Does the hypervisor serve this routine? The others lead to work that the domain's own kernel has to know of.
    pub fn serves(&self, routine: Routine) -> bool {
        use Routine::{ModTimer, QueueDelayedWork, QueueWork};
        let is_the_domains = matches!(routine, QueueWork | QueueDelayedWork | ModTimer);
        self.is_described && !is_the_domains
    }

    /// What a stub can do instead of a routine.
    pub fn inline(&self, routine: Routine) -> Option<Inline> {
        use Routine::{DmaMapPage, DmaSyncForCpu, DmaSyncForDevice, DmaUnmapPage};
        match routine {
            DmaUnmapPage | DmaSyncForCpu | DmaSyncForDevice if self.bounce_frames != 0 => self.is_not_bounced(),
            DmaMapPage => Some(Inline::Page { table: self.pages.address() }),
            _ => routine.inline(&self.support),
        }
    }

    /// As [`Self::is_bounced`], for a stub.
    fn is_not_bounced(&self) -> Option<Inline> {
        let frames = u32::try_from(frames::with_entries_from_0().min(i32::MAX as u64)).ok()?;
        let count = u32::try_from(self.bounce_frames).ok().filter(|count| i32::try_from(*count).is_ok())?;
        Some(Inline::IsOutside { list: layout::M2P, frames, start: self.bounce, count })
    }

    /// Where the machine frame of pseudo-physical frame `pfn` stands in the domain's list.
    pub fn p2m_entry(&self, pfn: u64) -> Option<u64> {
        (pfn < self.p2m_frames).then(|| self.p2m.wrapping_add(pfn.wrapping_mul(8)))
    }

    /// Is this a frame of the domain's own, which its devices may reach?
    pub fn owns(&self, mfn: u64) -> bool {
        frames::frame(Mfn::new(mfn)).is_some_and(|frame| frame.owner() == self.owner && frame.count().refs() != 0)
    }

    /// Is machine address `at` in the domain's bounce buffers?
    pub fn is_bounced(&self, at: u64) -> bool {
        let pfn = || frames::m2p(Mfn::containing(MachAddr::new(at))).map(|entry| entry.load(Ordering::Relaxed));
        self.bounce_frames != 0 && pfn().is_some_and(|pfn| pfn.wrapping_sub(self.bounce) < self.bounce_frames)
    }

    /// Does something with the pool.
    #[inline(always)]
    pub fn with_pool<R>(&self, work: impl FnOnce(&mut Pool) -> R) -> R {
        work(&mut self.pool.lock())
    }

    /// Takes buffers that `d`, whose page `locate` finds, lends. Errors: EINVAL for one that cannot be, as at address
    /// 0, or whose bytes are not in one frame of `d`'s that it may write; ENOSPC if there are too many; ENOMEM;
    /// ERESTART: to be called again, for there are more. Those before are lent then.
    pub fn lend(
        &self,
        d: &Domain,
        buffers: &[TwinLent],
        locate: impl Fn(u64) -> Option<MachAddr>,
    ) -> Result<(), Errno> {
        let mut left = NEW_AT_ONCE;
        for buffer in buffers {
            let bytes = match buffer.kind {
                lent::SKB => Some((buffer.of, buffer.bytes)),
                lent::FRAGMENT => Some((buffer.object, buffer.bytes)),
                lent::BARE_SKB => None,
                _ => return Err(Errno::EINVAL),
            };
            let is_at_zero = buffer.object == 0 || buffer.kind == lent::SKB && buffer.of == 0;
            if buffer.flags != 0 || is_at_zero || bytes.is_some_and(|(_, len)| !(1..=LARGEST).contains(&len)) {
                return Err(Errno::EINVAL);
            }
            if self.with_pool(|pool| pool.knows(buffer.object)) {
                continue;
            }
            left = left.checked_sub(1).ok_or(Errno::ERESTART)?;
            if !frames::has_headroom() {
                return Err(Errno::ENOMEM);
            }
            let found = bytes.map(|bytes| hold(d, bytes, &locate)).transpose()?;
            // What is lent is held, and what is held is lent: others lend and recall at the same time.
            let mut held = self.held.lock();
            let mut pool = self.pool.lock();
            if pool.knows(buffer.object) {
                continue;
            }
            let (skbs, fragments) = pool.lent();
            if skbs + fragments >= op::MAX_LENT {
                return Err(Errno::ENOSPC);
            }
            held.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            match buffer.kind {
                lent::SKB => pool.lend(buffer.object, buffer.of, buffer.bytes),
                lent::FRAGMENT => pool.lend_fragment(buffer.object, buffer.of, buffer.references, buffer.bytes.into()),
                _ => pool.lend_bare(buffer.object),
            }
            .map_err(|refusal| match refusal {
                Refusal::AtZero => Errno::EINVAL,
                Refusal::NoMemory => Errno::ENOMEM,
            })?;
            if let (Some((frame, at)), Some((address, _))) = (found, bytes) {
                pool.locate(buffer.object, at);
                let page = self.support.page_of(address).unwrap_or(0);
                self.show(page, at);
                held.push(Held { object: buffer.object, page, frame });
            }
        }
        Ok(())
    }

    /// Gives lent buffers back that the twin does not use, as many as there is room for in `into`; how many that are.
    pub fn recall(&self, into: &mut [TwinLent]) -> usize {
        let mut gone = [(Kind::Whole, 0); op::MAX_LENT_AT_ONCE as usize];
        let room = into.len().min(gone.len());
        let mut held = self.held.lock();
        let count = self.pool.lock().recall(&mut gone[..room]);
        for (to, (kind, object)) in into.iter_mut().zip(&gone[..count]) {
            let kind = match kind {
                Kind::Whole => lent::SKB,
                Kind::Bare => lent::BARE_SKB,
                Kind::Fragment => lent::FRAGMENT,
            };
            *to = TwinLent { kind, object: *object, ..TwinLent::default() };
        }
        let gone = &mut gone[..count];
        sort_by_key(gone, |(_, object)| *object);
        held.retain(|held| {
            let is_gone = gone.binary_search_by_key(&held.object, |(_, object)| *object).is_ok();
            if is_gone {
                self.pages.forget(held.page);
            }
            !is_gone
        });
        count
    }

    /// Stubs may know the page of a buffer at machine address `at`, if its device reaches all of it.
    fn show(&self, page: u64, at: u64) {
        let machine = Mfn::containing(MachAddr::new(at)).addr().raw();
        let limit = self.support.dma_limit;
        if page != 0 && (limit == 0 || machine + PAGE_SIZE as u64 <= limit) {
            self.pages.put(page, machine);
        }
    }

    /// Lets go of some frames of lent buffers, of a twin that goes. `true`: there are more. The domain may have given
    /// each up, so that it comes back now.
    pub fn let_go(&self) -> bool {
        let mut held = self.held.lock();
        let left = held.len().saturating_sub(LET_GO_AT_ONCE);
        held.truncate(left);
        left != 0
    }

    /// Calls `f` with the frames of lent buffers.
    pub fn for_each_held(&self, mut f: impl FnMut(Mfn)) {
        self.held.lock().iter().for_each(|held| f(held.frame.mfn()));
    }

    /// May one more call of a routine leave notes? There is room beyond for what others that are under way leave.
    #[inline]
    pub fn has_room_for_notes(&self) -> bool {
        self.nr_notes.load(Ordering::Relaxed) < op::MAX_NOTES
    }

    /// What the domain's vCPUs poll for may have come.
    pub fn wake_pollers(&self) {
        if let Some(d) = domain::find(self.owner.0) {
            d.vcpus().for_each(event::end_poll);
        }
    }

    /// The domain has to do something.
    pub fn note(&self, kind: u32, object: u64) {
        let mut notes = self.notes.lock();
        debug_assert!(notes.len() < notes.capacity(), "there was room when the gate was called");
        if notes.len() < notes.capacity() {
            notes.push(TwinNote { kind, flags: 0, object });
            self.nr_notes.store(notes.len(), Ordering::Relaxed);
        }
    }

    /// The domain has to do something, of which it is enough to know once.
    pub fn note_once(&self, kind: u32, object: u64) {
        let is_noted = self.notes.lock().iter().any(|note| note.kind == kind && note.object == object);
        if !is_noted {
            self.note(kind, object);
        }
    }

    /// Is there something that the domain has not fetched?
    pub fn has_notes(&self) -> bool {
        self.nr_notes.load(Ordering::Relaxed) != 0
    }

    /// The domain has to free something.
    pub fn note_foreign(&self, what: Foreign) {
        match what {
            Foreign::Skb(skb) => self.note(note::FREE_SKB, skb),
            Foreign::Fragment(data) => self.note(note::FREE_FRAGMENT, data),
            Foreign::Lock(lock) => self.note(note::UNLOCK, lock),
        }
    }

    /// Moves the oldest notes into `into`, as many as there is room for; how many that are.
    pub fn fetch(&self, into: &mut [TwinNote]) -> usize {
        let mut notes = self.notes.lock();
        let count = notes.len().min(into.len());
        for (to, note) in into.iter_mut().zip(notes.drain(..count)) {
            *to = note;
        }
        self.nr_notes.store(notes.len(), Ordering::Relaxed);
        count
    }
}

/// Holds the frame of `d`'s in which so many bytes at an address are; and where in the machine they are. Errors:
/// EINVAL.
fn hold(
    d: &Domain,
    (address, len): (u64, u32),
    locate: impl Fn(u64) -> Option<MachAddr>,
) -> Result<(GuestPage, u64), Errno> {
    if address % PAGE_SIZE as u64 + u64::from(len) > PAGE_SIZE as u64 {
        return Err(Errno::EINVAL);
    }
    let at = locate(address).ok_or(Errno::EINVAL)?;
    Ok((GuestPage::take(&d.mm, Mfn::containing(at).raw())?, at.raw()))
}

/// What routines know, from what the domain says.
fn support(said: &TwinKernel) -> Result<Support, Errno> {
    let mut words = [0; Offsets::COUNT];
    if said.flags != 0
        || said.nr_offsets as usize != words.len()
        || said.nr_sleepers > Sleepers::MOST
        || said.sleeper_bytes > MAX_SLEEPER
    {
        return Err(Errno::EINVAL);
    }
    GuestPtr::new(said.offsets).read_slice(&mut words)?;
    let offsets = Offsets::of(&words).ok_or(Errno::EINVAL)?;
    let kernel = Kernel {
        page_offset: said.page_offset,
        vmalloc_start: said.vmalloc_start,
        vmalloc_end: said.vmalloc_end,
        vmemmap: said.vmemmap,
        jiffies: said.jiffies,
        sleepers: Sleepers { table: said.sleepers, count: said.nr_sleepers, stride: said.sleeper_bytes },
    };
    Ok(Support { offsets, kernel, dma_limit: said.dma_limit })
}
