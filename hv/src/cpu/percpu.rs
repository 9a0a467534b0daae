//! Per-CPU data, found through the stack pointer.
//!
//! Each CPU has one stack block of [`STACK_SIZE`] bytes, aligned to its size. At its top lies [`CpuInfo`]; below it the
//! normal stack; at the bottom the interrupt stacks of the exceptions that must not use the normal one. Below each of
//! them nothing is mapped ([`crate::arch::stacks`]): who needs more than there is gets a #DF, not a neighbour. Because
//! every stack of a CPU lies in the same block, masking `rsp` finds [`CpuInfo`] in any context, and neither GS nor FS
//! base has to be touched: they keep the guest's values while the hypervisor runs.
//!
//! ```text
//!  top  +--------------------------------+ <- block + STACK_SIZE
//!       | CpuInfo: guest frame, current  |
//!       +--------------------------------+ <- TSS.rsp0 points into it, just past `ss`
//!       | normal stack, grows down       |    32 KiB
//!       +--------------------------------+ <- block + 96 KiB
//!       | not mapped                     |
//!       +--------------------------------+ <- block + 80 KiB
//!       | twins, #DF, #MC, NMI, #DB      |    16 KiB each, of which the lower half is not mapped
//!       +--------------------------------+ <- block
//! ```
//!
//! There is one stack for each physical CPU and none for each vCPU: a hypercall never sleeps.

use core::cell::Cell;
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use hv_core::allowance::Allowance;
use hv_core::stint::Stint;
use hv_core::vtlb::Vtlb;
use xen_abi::regs::CpuUserRegs;

/// Bytes of a CPU's stack block, and its alignment.
pub const STACK_SIZE: usize = 128 << 10;
/// Bytes from one interrupt stack to the next.
const IST_SLOT: usize = 16 * 1024;
/// The parts of a block that are mapped: offset and bytes. The normal stack with [`CpuInfo`], and the interrupt stacks.
pub const MAPPED: [(usize, usize); 6] = [
    (96 << 10, 32 << 10),
    (8 << 10, 8 << 10),
    (24 << 10, 8 << 10),
    (40 << 10, 8 << 10),
    (56 << 10, 8 << 10),
    (72 << 10, 8 << 10),
];
/// Most physical CPUs that are used.
pub const MAX_CPUS: usize = 64;

/// Work that a CPU has to do before it enters a guest again; bits of [`CpuInfo::pending`].
pub mod pending {
    /// Run the scheduler.
    pub const SCHEDULE: u32 = 1 << 0;
    /// Timers may have expired.
    pub const TIMER: u32 = 1 << 1;
    /// Console input or output is waiting.
    pub const CONSOLE: u32 = 1 << 2;
    /// Domains wait to be freed.
    pub const GRAVES: u32 = 1 << 3;
    /// Network cards of twins have something to do.
    pub const CARDS: u32 = 1 << 4;
    /// Somebody asks whether this CPU goes on.
    pub const SIGN: u32 = 1 << 5;
    /// The vCPU's preemption waits until its events are on again: is that so?
    pub const DELAYED: u32 = 1 << 6;
    /// With that: an upcall is marked as pending for it, though there was no event.
    pub const MARKED: u32 = 1 << 7;
    /// Text has gone into the console's ring.
    pub const CON_RING: u32 = 1 << 8;
    /// All but what waits for the guest: as long as any of it is there, the guest does not go on.
    pub const DUE: u32 = !(DELAYED | MARKED);
}

/// What one CPU knows about itself.
#[repr(C, align(16))]
pub struct CpuInfo {
    /// Keeps `guest_regs.es`, where the CPU starts to push a trap frame, 16-byte aligned.
    pad: u64,
    /// The guest's registers while the hypervisor runs on its behalf.
    pub guest_regs: CpuUserRegs,
    /// Number of this CPU, from 0.
    pub cpu: u32,
    /// Work to be done before the next guest entry ([`pending`]); other CPUs set bits too.
    pub pending: AtomicU32,
    /// The vCPU whose registers are in `guest_regs`; null while idle. Typed by `domain::vcpu`, which alone touches it.
    pub current: Cell<*const ()>,
    /// The cache of page tables on which that vCPU runs; null if it runs on its own. The TLB is never flushed without
    /// it.
    cache: Cell<*const Vtlb>,
    /// LAPIC id of this CPU.
    pub apic_id: Cell<u32>,
    /// The domain whose translations this CPU's TLB may hold.
    pub last_domain: Cell<Option<u16>>,
    /// When it last answered to [`pending::SIGN`], in ns.
    pub sign_ns: AtomicU64,
    /// What it has worked since it let interrupts in.
    pub allowance: Allowance,
    /// Whether the CPU waits in the idle loop.
    pub idle: AtomicU32,
    /// Grows when the CPU begins and when it ceases to look at the list of domains: odd while it does.
    pub sections: AtomicU32,
    /// How deep such sections are nested.
    pub section_depth: Cell<u32>,
    /// It is to look at interfaces of guests when its vCPU goes to sleep.
    pub looks_after: Cell<bool>,
    /// The first of these, the next time.
    pub first_late: Cell<usize>,
    /// What it has worked for network cards of twins.
    pub stint: Cell<Stint>,
    /// It has worked for them since a guest ran here.
    pub has_worked: Cell<bool>,
    /// There is more to do for them, which waits until guests had their time: so it is done if there are none.
    pub rests: Cell<bool>,
    /// The lane with which it begins then.
    pub next_lane: Cell<usize>,
}

const _: () = assert!((offset_of!(CpuInfo, guest_regs) + offset_of!(CpuUserRegs, es)) % 16 == 0);
const _: () = assert!(size_of::<CpuInfo>().is_multiple_of(16));

/// Distance from the end of a stack block down to its [`CpuInfo`].
pub const CPU_INFO_FROM_TOP: usize = size_of::<CpuInfo>();
/// Offset in [`CpuInfo`] at which the CPU's own trap frame ends (the initial stack pointer).
pub const FRAME_END: usize = offset_of!(CpuInfo, guest_regs) + offset_of!(CpuUserRegs, es);

/// The [`CpuInfo`] of each CPU that is up, for remote access to its atomics.
static CPUS: [AtomicPtr<CpuInfo>; MAX_CPUS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_CPUS];
/// Bit n: CPU n runs.
static ONLINE: AtomicU64 = AtomicU64::new(0);

impl CpuInfo {
    /// The cache of page tables on which the running vCPU runs, if it does on one.
    #[inline(always)]
    pub fn cache(&self) -> Option<&Vtlb> {
        // SAFETY: null, or set by `set_cache`, whose caller keeps it until it is replaced.
        unsafe { self.cache.get().as_ref() }
    }

    /// Notes on which cache the running vCPU runs from now on.
    ///
    /// # Safety
    /// 1. The cache stays until this is called again.
    #[inline(always)]
    pub unsafe fn set_cache(&self, cache: Option<&Vtlb>) {
        self.cache.set(cache.map_or(core::ptr::null(), core::ptr::from_ref));
    }

    /// Asks this CPU to do `work` before it enters a guest again. Does not interrupt it.
    #[inline]
    pub fn raise(&self, work: u32) {
        self.pending.fetch_or(work, Ordering::Release);
    }
}

/// The running CPU's data.
#[inline(always)]
pub fn this_cpu() -> &'static CpuInfo {
    let rsp: usize;
    // SAFETY: reading the stack pointer has no effect.
    unsafe { core::arch::asm!("mov {}, rsp", out(reg) rsp, options(nomem, nostack, preserves_flags, pure)) };
    let info = (rsp | (STACK_SIZE - 1)) + 1 - CPU_INFO_FROM_TOP;
    // SAFETY: all hypervisor code runs on a stack inside a block whose top holds an initialised `CpuInfo`
    // (`init_block`). The fields that change are `Cell`s (only touched by this CPU) or atomics; `guest_regs` is reached
    // by raw pointer.
    unsafe { &*(info as *const CpuInfo) }
}

/// The guest's registers as saved by the entry code on this CPU.
///
/// # Safety
/// 1. The caller holds no other reference to them.
#[inline(always)]
pub unsafe fn guest_regs() -> &'static mut CpuUserRegs {
    let p = core::ptr::from_ref(this_cpu()).cast_mut();
    // SAFETY: the block is ours and the caller promises (1) that no other reference lives.
    unsafe { &mut *core::ptr::addr_of_mut!((*p).guest_regs) }
}

/// The data of CPU `cpu`, if it is up. Only its atomics may be used from elsewhere.
#[inline]
pub fn cpu(cpu: usize) -> Option<&'static CpuInfo> {
    // SAFETY: a non-null entry points to a `CpuInfo` that lives for ever.
    unsafe { CPUS.get(cpu)?.load(Ordering::Acquire).as_ref() }
}

/// Mask of the CPUs that run.
pub fn online_mask() -> u64 {
    ONLINE.load(Ordering::Acquire)
}

/// Number of CPUs that run.
pub fn online_count() -> usize {
    online_mask().count_ones() as usize
}

/// Initialises the [`CpuInfo`] at the top of a zeroed stack block that will belong to CPU `cpu`.
/// Returns the stack pointer with which that CPU may start.
///
/// # Safety
/// 1. `block` is a stack block, aligned to [`STACK_SIZE`], whose parts in [`MAPPED`] are zeroed, writable and owned by
///    the caller for ever.
pub unsafe fn init_block(block: *mut u8, cpu: usize, apic_id: u32) -> u64 {
    let info = block.wrapping_add(STACK_SIZE - CPU_INFO_FROM_TOP).cast::<CpuInfo>();
    // SAFETY: (1): the bytes are ours, and zero is valid for every field.
    unsafe {
        (*info).cpu = cpu as u32;
        (*info).apic_id.set(apic_id);
    }
    if let Some(slot) = CPUS.get(cpu) {
        slot.store(info, Ordering::Release);
    }
    info as u64
}

/// Marks the running CPU as up. Called once by each CPU when its tables are loaded.
pub fn set_online() {
    ONLINE.fetch_or(1 << this_cpu().cpu, Ordering::AcqRel);
}

/// Top of interrupt stack `ist` (1..=5) in the block of `info`.
pub fn ist_top(info: &CpuInfo, ist: usize) -> u64 {
    let end = core::ptr::from_ref(info) as usize + CPU_INFO_FROM_TOP;
    (end - STACK_SIZE + ist * IST_SLOT) as u64
}
