//! Domains: what belongs to a guest as a whole, the list of them, and their death.

pub mod event;
pub mod grant;
pub mod grants;
pub mod iospace;
pub mod lent;
pub mod life;
pub mod list;
pub mod memory;
pub mod owners;
pub mod passthrough;
pub mod ports;
pub mod snapshot;
pub mod vcpu;
pub mod watch;
pub mod withdrawal;

pub use hv_core::dma_faults;
pub use list::{find, find_from, for_each, insert, next_free_id, DomainRef, Section};

use crate::arch::cpu_policy::policies;
use crate::domain::vcpu::Vcpu;
use crate::mem;
use crate::sync::{Mutex, Once, RwLock};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::convert::Infallible;
use core::sync::atomic::{fence, AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicU8, Ordering};
use hv_core::cpuid::Policy;
use hv_core::watchdog::Watchdogs;
use x86::Mfn;
use xen_abi::assist;
use xen_abi::event::Port;
use xen_abi::layout::DomId;
use xen_abi::shared::{shared_info, vcpu_info, XEN_LEGACY_MAX_VCPUS};

/// Most vCPUs of one domain.
pub const MAX_VCPUS: u32 = 128;

/// In [`Domain::shutdown_code`]: still running.
pub const RUNNING: u32 = u32::MAX;

/// In `Domain::life`: not destroyed.
const ALIVE: u8 = 0;
/// In `Domain::life`: being destroyed; it never runs again.
const DYING: u8 = 1;
/// In `Domain::life`: everything that was its own is back.
const DEAD: u8 = 2;

/// A guest.
pub struct Domain {
    /// Its number.
    pub id: u16,
    /// Is it the control domain?
    pub is_privileged: bool,
    /// Is it the hardware domain: may it use all devices and power the machine off?
    pub is_hardware: bool,
    vcpus: Box<[Once<Box<Vcpu>>]>,
    /// Frame of its shared_info page, which belongs to the hypervisor's heap.
    pub shared_info: Mfn,
    /// Pages of the hypervisor's that are lent to it, or were, and are still referred to.
    lent: AtomicU64,
    /// Assists in use: bit n is VMASST_TYPE n.
    pub vm_assist: AtomicU64,
    /// CPUs whose TLB may hold translations of this domain.
    dirty_cpus: AtomicU64,
    /// CPUs that are on a mirror of its kernel half: a twin of its drivers runs there.
    mirror_cpus: AtomicU64,
    /// Its UUID.
    handle: Mutex<[u8; 16]>,
    /// Why it shut down (SHUTDOWN_*), or [`RUNNING`].
    pub shutdown_code: AtomicU32,
    /// It was the hypervisor that ended it, because of what one of its vCPUs did.
    pub was_crashed: AtomicBool,
    /// VIRQ_SUPERVISOR tells of its end.
    pub is_watched: AtomicBool,
    /// So long each of its vCPUs, whenever it is made, may run while an event waits, in ns; 0: for ever.
    pub wedged_limit_ns: AtomicU64,
    /// Accesses of its devices that an IOMMU stopped.
    pub dma_faults: Arc<dma_faults::DmaFaults>,
    /// When it shut down, in ns since the start.
    ended_at: AtomicU64,
    /// How often it is paused. Whoever stops or starts all vCPUs holds this, so that they do what the last one said.
    pauses: Mutex<u32>,
    /// How far its end has come: [`ALIVE`], [`DYING`], [`DEAD`].
    life: AtomicU8,
    /// How its TSC is to behave (TSC_MODE_*), as the tools set it, and how often it has moved to another machine.
    pub tsc_mode: AtomicU32,
    /// See `tsc_mode`.
    pub tsc_incarnation: AtomicU32,
    /// So many seconds is its wall clock ahead of UTC. The tools set it when they make the domain, or restore it; it is
    /// not the guest's, so it stays when that is rolled back.
    pub time_offset_s: AtomicI64,
    /// Scheduling weight of its vCPUs.
    pub weight: AtomicU32,
    /// How much of one CPU its vCPUs may use together, in percent; 0: no cap.
    pub cap: AtomicU32,
    /// Page tables, frames and memory accounting. Lock order: first of the domain's locks.
    pub mm: crate::domain::memory::DomainMm,
    /// Was it created for devices?
    pub may_own_devices: AtomicBool,
    /// Does it drive devices? Then events for it are urgent. The scheduler's alone to change.
    pub drives_devices: AtomicBool,
    /// A device was taken from it that was not reset by its own registers.
    pub left_unreset: AtomicBool,
    /// It had devices, and has none any more.
    pub is_bereft: AtomicBool,
    /// What its devices reach.
    pub dma: crate::iommu::DomainDma,
    /// I/O memory, ports and interrupts that it may use.
    pub io: crate::domain::iospace::IoSpace,
    /// What CPUID tells its kernels.
    pub cpu_policy: RwLock<Policy>,
    /// Event channels.
    pub events: crate::domain::ports::DomainEvents,
    /// A port whose events go to the hypervisor, not to whom it is connected with, in the lower half, and the
    /// hypervisor's name for it; 0: none.
    diverted: AtomicU64,
    /// Grants.
    pub grants: crate::domain::grants::DomainGrants,
    /// Watchdogs that it has wound up.
    watchdogs: Mutex<Watchdogs>,
    /// The next in its bucket of the list.
    next_in_bucket: AtomicPtr<Domain>,
}

impl Domain {
    /// A domain without memory, with room for `max_vcpus` vCPUs, none of them made yet. `None` when out of memory.
    pub fn new(id: u16, max_vcpus: u32, control: bool) -> Option<Arc<Self>> {
        let max_vcpus = max_vcpus.clamp(1, MAX_VCPUS) as usize;
        let io = crate::domain::iospace::IoSpace::new(control)?;
        let events = crate::domain::ports::DomainEvents::new(id, max_vcpus as u32)?;
        // Last of what can fail: only the domain's end gives it back.
        let shared_info = mem::frames::alloc_zeroed()?;
        mem::frames::frame(shared_info)?.lend(DomId(id), true);
        let d = Arc::new(Self {
            id,
            is_privileged: control,
            is_hardware: control,
            vcpus: (0..max_vcpus).map(|_| Once::new()).collect(),
            shared_info,
            lent: AtomicU64::new(1),
            vm_assist: AtomicU64::new(0),
            dirty_cpus: AtomicU64::new(0),
            mirror_cpus: AtomicU64::new(0),
            handle: Mutex::new([0; 16]),
            shutdown_code: AtomicU32::new(RUNNING),
            was_crashed: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            wedged_limit_ns: AtomicU64::new(0),
            dma_faults: Arc::default(),
            ended_at: AtomicU64::new(0),
            pauses: Mutex::new(0),
            life: AtomicU8::new(ALIVE),
            tsc_mode: AtomicU32::new(0),
            tsc_incarnation: AtomicU32::new(0),
            time_offset_s: AtomicI64::new(0),
            weight: AtomicU32::new(hv_core::sched::DEFAULT_WEIGHT),
            cap: AtomicU32::new(0),
            mm: crate::domain::memory::DomainMm::new(id),
            may_own_devices: AtomicBool::new(false),
            drives_devices: AtomicBool::new(control),
            left_unreset: AtomicBool::new(false),
            is_bereft: AtomicBool::new(false),
            dma: crate::iommu::DomainDma::new(DomId(id)),
            io,
            cpu_policy: RwLock::new(policies().pv_default.clone()),
            events,
            diverted: AtomicU64::new(0),
            grants: crate::domain::grants::DomainGrants::new(
                id,
                xen_abi::grant::DEFAULT_MAX_GRANT_FRAMES,
                xen_abi::grant::DEFAULT_MAX_MAPTRACK_FRAMES,
            ),
            watchdogs: Mutex::new(Watchdogs::new()),
            next_in_bucket: AtomicPtr::new(core::ptr::null_mut()),
        });
        for v in 0..XEN_LEGACY_MAX_VCPUS {
            // Until a kernel has set up its interrupts it wants none: events start masked.
            let mask = shared_info::VCPU_INFO + v * vcpu_info::SIZE + vcpu_info::UPCALL_MASK;
            // SAFETY: inside the page just allocated.
            unsafe { d.shared_info_ptr().add(mask).write(1) };
        }
        Some(d)
    }

    /// CPUs that have to flush when it changes its page tables. To be called after the change.
    pub fn cpus_to_flush(&self) -> u64 {
        self.cpus_after_change(|| Ok::<_, Infallible>(!0)).unwrap_or_else(|never| match never {})
    }

    /// Those of them on which vCPUs run or ran last whose bits are set in a bitmap, of which `word` gives 64 bits at a
    /// time; and those that are on a mirror. A vCPU that runs nowhere starts with a flush. Errors: those of `word`.
    pub fn cpus_to_flush_of<E>(&self, mut word: impl FnMut(u32) -> Result<u64, E>) -> Result<u64, E> {
        self.cpus_after_change(|| {
            let mut cpus = 0;
            for n in 0..self.max_vcpus().div_ceil(64) {
                let mut bits = word(n)?;
                while bits != 0 {
                    let id = n * 64 + bits.trailing_zeros();
                    bits &= bits - 1;
                    if let Some(v) = self.vcpu(id) {
                        cpus |= 1 << (v.processor.load(Ordering::Acquire) & 63);
                    }
                }
            }
            Ok(cpus)
        })
    }

    /// The CPUs of `of` that may have translations of this domain, and those that are on a mirror.
    #[inline]
    fn cpus_after_change<E>(&self, of: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        // Others see the change before we look: a CPU that is not among them yet walks the tables after it has said
        // that it is, so it sees it.
        fence(Ordering::SeqCst);
        Ok(of()? & self.dirty_cpus.load(Ordering::Acquire) | self.mirror_cpus.load(Ordering::SeqCst))
    }

    /// CPU `cpu` is going to load page tables of this domain.
    #[inline]
    pub fn add_dirty_cpu(&self, cpu: u32) {
        self.dirty_cpus.fetch_or(1 << cpu, Ordering::AcqRel);
    }

    /// CPU `cpu` is going to load a mirror of its kernel half.
    pub fn add_mirror_cpu(&self, cpu: u32) {
        self.mirror_cpus.fetch_or(1 << cpu, Ordering::SeqCst);
    }

    /// CPU `cpu` is on none any more.
    pub fn remove_mirror_cpu(&self, cpu: u32) {
        self.mirror_cpus.fetch_and(!(1 << cpu), Ordering::SeqCst);
    }

    /// Its UUID.
    pub fn handle(&self) -> [u8; 16] {
        *self.handle.lock()
    }

    /// Gives it another UUID.
    pub fn set_handle(&self, handle: [u8; 16]) {
        *self.handle.lock() = handle;
    }

    /// How often it is paused.
    pub fn pause_count(&self) -> u32 {
        *self.pauses.lock()
    }

    /// Is it paused?
    pub fn is_paused(&self) -> bool {
        self.pause_count() != 0
    }

    /// Is it not to run before it is unpaused, or never again? It may be on a CPU still.
    pub fn is_kept_still(&self) -> bool {
        let pauses = self.pauses.lock();
        *pauses != 0 || self.is_dying()
    }

    /// Has its destruction begun?
    pub fn is_dying(&self) -> bool {
        self.life.load(Ordering::Acquire) != ALIVE
    }

    /// Has it shut down or crashed, or does it die?
    pub fn has_stopped(&self) -> bool {
        self.is_dying() || self.shutdown_code.load(Ordering::Acquire) != RUNNING
    }

    /// How long ago, in ns, it has shut down or crashed; 0 if it has not.
    pub fn ended_for(&self, now: u64) -> u64 {
        match self.shutdown_code.load(Ordering::Acquire) {
            RUNNING => 0,
            _ => now.saturating_sub(self.ended_at.load(Ordering::Relaxed)).max(1),
        }
    }

    /// Is it destroyed but for what others still map?
    pub fn is_dead(&self) -> bool {
        self.life.load(Ordering::Acquire) == DEAD
    }

    /// Lends it a page that the allocator gave, for reading and writing. The page keeps the domain from being forgotten
    /// until the loan has ended and nobody refers to it.
    pub fn lend(&self, mfn: Mfn) {
        if let Some(frame) = mem::frames::frame(mfn) {
            self.lent.fetch_add(1, Ordering::SeqCst);
            frame.lend(DomId(self.id), true);
        }
    }

    /// Its shared_info page, through the direct map. The guest writes it too: atomics and volatile accesses only.
    #[inline]
    pub fn shared_info_ptr(&self) -> *mut u8 {
        mem::phys_to_virt(self.shared_info.addr())
    }

    /// The highest pseudo-physical frame that it said it has.
    pub fn maximum_pfn(&self) -> u64 {
        let at = self.shared_info_ptr().wrapping_add(shared_info::ARCH_MAX_PFN).cast::<u64>();
        // SAFETY: inside the shared-info page, which lives as long as the domain; aligned; the guest may write it any
        // time.
        unsafe { at.read_volatile() }.saturating_sub(1)
    }

    /// vCPU `id`, if it exists.
    #[inline]
    pub fn vcpu(&self, id: u32) -> Option<&Vcpu> {
        self.vcpus.get(id as usize)?.get().map(|v| &**v)
    }

    /// All vCPUs that exist.
    pub fn vcpus(&self) -> impl Iterator<Item = &Vcpu> {
        self.vcpus.iter().filter_map(|slot| slot.get().map(|v| &**v))
    }

    /// Number of vCPUs that it may have.
    pub fn max_vcpus(&self) -> u32 {
        self.vcpus.len() as u32
    }

    /// Is assist `kind` in use?
    #[inline(always)]
    pub fn has_assist(&self, kind: u32) -> bool {
        self.vm_assist.load(Ordering::Relaxed) >> kind & 1 != 0
    }

    /// Does its kernel want IOPL where x86 has it?
    #[inline(always)]
    pub fn has_architectural_iopl(&self) -> bool {
        self.has_assist(assist::ARCHITECTURAL_IOPL)
    }

    /// Events by this port, which is connected with another domain's, go to the hypervisor from now on, by this name,
    /// and not there. One port at a time.
    pub fn divert(&self, port: Port, cookie: u32) {
        self.diverted.store(u64::from(cookie) << 32 | u64::from(port), Ordering::Relaxed);
    }

    /// Events by all ports go where they are connected.
    pub fn divert_nothing(&self) {
        self.diverted.store(0, Ordering::Relaxed);
    }

    /// The hypervisor's name for this port, if events by it are diverted.
    #[inline]
    pub fn diverted(&self, port: Port) -> Option<u32> {
        let diverted = self.diverted.load(Ordering::Relaxed);
        let cookie = u32::try_from(diverted >> 32).unwrap_or(0);
        (diverted & u64::from(u32::MAX) == u64::from(port) && cookie != 0).then_some(cookie)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        lent::take_back(self.id, self.shared_info);
        self.io.withdrawn.absent().iter().for_each(|page| lent::take_back(self.id, *page));
    }
}

/// A lock for the few operations that concern all domains (creation, destruction).
pub static DOMAIN_LIST_LOCK: Mutex<()> = Mutex::new(());
