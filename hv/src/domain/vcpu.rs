//! A virtual CPU: what the guest set up (callbacks, traps, stacks, roots) and what is saved while it does not run.
//!
//! Most fields are `Cell`s that belong to whoever *owns the vCPU's state*: the physical CPU to which the scheduler gave
//! it, or, when it is on none, whoever holds it still ([`crate::sched::Held`]). They are reached only through an
//! [`OwnedVcpu`], and a reference to one is the proof of ownership. Fields that anybody may touch at any time are
//! atomics, in [`Shared`].

use crate::arch::fpu::FpuArea;
use crate::cpu::percpu::CpuInfo;
use crate::domain::Domain;
use alloc::boxed::Box;
use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicU8, Ordering};
use hv_core::periodic::Periodic;
use hv_core::sched::{LoadId, VcpuId};
use hv_core::sleep::Waiting;
use hv_core::vtlb::Vtlb;
use hv_core::wedge::Wedge;
use x86::Mfn;
use xen_abi::layout::FIRST_RESERVED_GDT_PAGE;
use xen_abi::regs::CpuUserRegs;
use xen_abi::shared::{shared_info, vcpu_info, XEN_LEGACY_MAX_VCPUS};
use xen_abi::trap::TrapInfo;

/// Why a vCPU may not run; bits of [`Vcpu::stop`]. It is runnable when none is set.
pub mod stop {
    /// Not brought up yet, or taken down by the guest.
    pub const DOWN: u32 = 1 << 0;
    /// Waits for an event (SCHEDOP_block).
    pub const BLOCKED: u32 = 1 << 1;
    /// Waits for one of some ports (SCHEDOP_poll).
    pub const POLLING: u32 = 1 << 2;
    /// Its domain is paused, by the tools or by the hypervisor.
    pub const PAUSED: u32 = 1 << 3;
    /// Its domain has shut down, crashed or is dying.
    pub const SHUTDOWN: u32 = 1 << 4;
    /// The frames are being recounted.
    pub const AUDIT: u32 = 1 << 5;
    /// Somebody else owns its state ([`crate::sched::Held`]).
    pub const HELD: u32 = 1 << 6;
    /// It has no context yet, or no longer: no page tables to run on. Only its holder changes this.
    pub const NO_CONTEXT: u32 = 1 << 7;
    /// Its domain is noted as it is, or made what it was.
    pub const SNAPSHOT: u32 = 1 << 8;
    /// The log of its domain's writes is switched or read.
    pub const LOG: u32 = 1 << 9;
}

/// Pages of an LDT.
pub const LDT_PAGES: usize = 16;

/// An address that the guest registered to be entered at.
#[derive(Clone, Copy, Default)]
pub struct Callback {
    /// Entry point; 0 if none.
    pub address: u64,
    /// Whether entering masks event delivery.
    pub mask_events: bool,
}

/// Entry points of a guest kernel.
#[derive(Default)]
#[allow(missing_docs, reason = "named by their CALLBACKTYPE_*")]
pub struct Callbacks {
    pub event: Cell<Callback>,
    pub failsafe: Cell<Callback>,
    pub syscall: Cell<Callback>,
    pub syscall32: Cell<Callback>,
    pub sysenter: Cell<Callback>,
}

/// Records in the guest kernel's address space that could not be written; bits of [`Vcpu::stale_areas`].
pub mod stale {
    /// The runstate.
    pub const RUNSTATE: u8 = 1 << 0;
    /// The time.
    pub const TIME: u8 = 1 << 1;
}

/// Which ports the guest's code may use although the IOPL forbids it, as its kernel says.
#[derive(Clone, Copy, Default)]
pub struct IoBitmap {
    /// Guest virtual address in the kernel's address space. A bit that is clear permits.
    pub address: u64,
    /// Ports below this have a bit.
    pub nr_ports: u32,
}

/// A virtual CPU, as anybody may see it. A reference to one gives no access to what only its owner may touch.
#[repr(transparent)]
pub struct Vcpu(OwnedVcpu);

/// A virtual CPU for the owner of its state. Whoever has a reference to one is the owner: there is none but from
/// [`current`], from a [`crate::sched::Held`] and from [`Vcpu::owned`].
pub struct OwnedVcpu {
    /// In guest-kernel mode (else guest-user mode); both at ring 3.
    pub kernel_mode: Cell<bool>,
    /// L4 table of kernel mode. Frame 0 is none; then [`stop::NO_CONTEXT`] keeps it from running.
    pub kernel_root: Cell<Mfn>,
    /// L4 table of user mode; frame 0 if none: then it is in kernel mode.
    pub user_root: Cell<Mfn>,
    /// Stack for entries from user mode.
    pub kernel_sp: Cell<u64>,
    /// Its selector, as the guest gave it.
    pub kernel_ss: Cell<u16>,
    /// Entry points.
    pub callbacks: Callbacks,
    /// Trap table.
    pub traps: Box<[Cell<TrapInfo>; 256]>,
    /// Virtual IOPL (0..=3).
    pub iopl: Cell<u8>,
    /// Ports that its code may use besides.
    pub io_bitmap: Cell<IoBitmap>,
    /// The guest's CR0.TS.
    pub task_switched: Cell<bool>,
    /// The guest's CR4 (only the bits it may change).
    pub cr4: Cell<u64>,
    /// Address of its last page fault.
    pub cr2: Cell<u64>,
    /// DR0..DR3, two unused, DR6, DR7.
    pub debugreg: [Cell<u64>; 8],
    /// Its GDT pages.
    pub gdt_frames: Cell<[Mfn; FIRST_RESERVED_GDT_PAGE]>,
    /// Number of GDT entries.
    pub gdt_entries: Cell<u32>,
    /// LDT pages in use, each with a reference; frame 0 is none.
    pub ldt_frames: Cell<[Mfn; LDT_PAGES]>,
    /// Linear address of its LDT.
    pub ldt_base: Cell<u64>,
    /// Number of LDT entries.
    pub ldt_entries: Cell<u32>,
    /// An NMI is being handled: no other until the next iret.
    pub nmi_masked: Cell<bool>,
    /// TSC_AUX.
    pub tsc_aux: Cell<u64>,

    /// General registers and selectors while it does not run.
    pub saved: UnsafeCell<CpuUserRegs>,
    /// FS base while it does not run.
    pub fs_base: Cell<u64>,
    /// Kernel-mode GS base while it does not run.
    pub gs_base_kernel: Cell<u64>,
    /// User-mode GS base while it does not run.
    pub gs_base_user: Cell<u64>,
    /// FPU state while it does not run.
    pub fpu: FpuArea,

    /// Where the guest wants its runstate: an address of the guest kernel's; 0 if nowhere.
    pub runstate_area: Cell<u64>,
    /// The last time that a CPU loaded it.
    pub last_load: Cell<LoadId>,
    /// Cache of its page tables, on which it runs while its domain's writes are logged.
    vtlb: AtomicPtr<Vtlb>,
    /// Whether it is wedged.
    pub wedge: Cell<Wedge>,

    shared: Shared,
}

/// Where entry.S finds what it reads and changes of the vCPU that runs on its CPU: offsets in an [`OwnedVcpu`].
pub mod offset {
    use super::{Callback, Callbacks, OwnedVcpu, Shared};
    use core::mem::offset_of;

    const SHARED: usize = offset_of!(OwnedVcpu, shared);
    const SYSCALL: usize = offset_of!(OwnedVcpu, callbacks) + offset_of!(Callbacks, syscall);
    pub const KERNEL_MODE: usize = offset_of!(OwnedVcpu, kernel_mode);
    pub const KERNEL_ROOT: usize = offset_of!(OwnedVcpu, kernel_root);
    pub const USER_ROOT: usize = offset_of!(OwnedVcpu, user_root);
    pub const KERNEL_SP: usize = offset_of!(OwnedVcpu, kernel_sp);
    pub const SYSCALL_ADDRESS: usize = SYSCALL + offset_of!(Callback, address);
    pub const SYSCALL_MASKS: usize = SYSCALL + offset_of!(Callback, mask_events);
    pub const NMI_MASKED: usize = offset_of!(OwnedVcpu, nmi_masked);
    pub const VTLB: usize = offset_of!(OwnedVcpu, vtlb);
    pub const NMI_PENDING: usize = SHARED + offset_of!(Shared, nmi_pending);
    pub const STALE_AREAS: usize = SHARED + offset_of!(Shared, stale_areas);
    pub const INFO: usize = SHARED + offset_of!(Shared, info);
    pub const DOMAIN: usize = SHARED + offset_of!(Shared, domain);
}

/// Timers of a vCPU.
pub const NR_TIMERS: usize = 5;

/// What anybody may know of whether a vCPU is wedged. Times in ns.
pub struct Watch {
    /// When it is to be looked at, since the start. Its CPU's alone to change.
    pub due_ns: AtomicU64,
    /// Since when an event waits for it, if it is wedged; 0: it is not. Its CPU's alone to change.
    pub since_ns: AtomicU64,
}

impl Watch {
    /// Nothing was seen yet.
    pub const fn new() -> Self {
        Self { due_ns: AtomicU64::new(0), since_ns: AtomicU64::new(0) }
    }

    /// Since when an event waits for it, in ns since the start, if it is wedged.
    pub fn wedged_since(&self) -> Option<u64> {
        Some(self.since_ns.load(Ordering::Relaxed)).filter(|since| *since != 0)
    }
}

/// What anybody may look at and change.
pub struct Shared {
    /// Number inside its domain, from 0.
    pub id: u32,
    domain: *const Domain,
    /// Its slot in the scheduler.
    pub sched_id: VcpuId,

    /// Where it wants a copy of its time record: an address of the guest kernel's; 0 if nowhere.
    pub time_area: AtomicU64,
    /// Those of its records (runstate, time) that wait for the next switch to kernel mode ([`stale`]).
    pub stale_areas: AtomicU8,

    /// Its `vcpu_info`, through the direct map.
    info: AtomicPtr<u8>,
    /// Where `info` is while it is nowhere else.
    dummy: Box<DummyInfo>,
    /// Frame that `info` was moved to with VCPUOP_register_vcpu_info (all ones while it is in shared_info).
    pub info_frame: AtomicU64,
    /// Why it may not run ([`stop`]).
    pub stop: AtomicU32,
    /// CPUs on which it may run.
    pub affinity: AtomicU64,
    /// It asked to stay on one CPU for a while (SCHEDOP_pin_override); `affinity` counts again afterwards.
    pub pinned: AtomicBool,
    /// CPUs on which the tools would rather have it.
    pub soft_affinity: AtomicU64,
    /// CPU on which it runs or ran last.
    pub processor: AtomicU32,
    /// Its registers are loaded on `processor` (running there, or not yet written back).
    pub loaded: AtomicBool,
    /// How often it has entered its event callback. Its owner alone counts.
    pub upcalls: AtomicU32,
    /// An NMI waits for delivery.
    pub nmi_pending: AtomicBool,
    /// Its periodic timer.
    pub periodic: Periodic,
    /// CPU in whose queue each of its timers was armed last.
    pub timer_cpu: [AtomicU32; NR_TIMERS],
    /// What is known of whether it is wedged, for others.
    pub watch: Watch,
    /// What it polls for may have come: the next poll does not sleep.
    pub poll_is_over: AtomicBool,
    /// Its saved state was changed from outside: nothing that a CPU may still hold of it counts.
    pub state_changed: AtomicBool,
}

// SAFETY: what is not `Shared` is reached only through `OwnedVcpu`, which is not `Sync` and comes from `Vcpu::owned`,
// whose caller is the owner. The scheduler's lock passes ownership from CPU to CPU, and to a `Held` and back: a CPU
// owns what the scheduler says is on it or leaving it, a `Held` what the scheduler says is asleep and its own stop bit
// keeps so. `domain` points to the domain that owns this vCPU and outlives it.
unsafe impl Send for Vcpu {}
// SAFETY: as above.
unsafe impl Sync for Vcpu {}

impl Deref for Vcpu {
    type Target = Shared;
    #[inline(always)]
    fn deref(&self) -> &Shared {
        &self.0.shared
    }
}

impl Deref for OwnedVcpu {
    type Target = Vcpu;
    #[inline(always)]
    fn deref(&self) -> &Vcpu {
        // SAFETY: a `Vcpu` is nothing but an `OwnedVcpu` (`repr(transparent)`), and gives access to less.
        unsafe { &*core::ptr::from_ref(self).cast::<Vcpu>() }
    }
}

/// The vCPU that runs on `cpu`, which is the running CPU, if any. This CPU owns its state until it switches to another.
#[inline(always)]
pub fn current(cpu: &CpuInfo) -> Option<&'static OwnedVcpu> {
    // SAFETY: the pointer is null or was set by `set_current`, which was given a reference that counts as long as this
    // CPU owns the vCPU (`sched::chosen`) and is asked for another before it lets go.
    unsafe { cpu.current.get().cast::<OwnedVcpu>().as_ref() }
}

/// Notes which vCPU runs on `cpu`, which is the running CPU.
pub fn set_current(cpu: &CpuInfo, vcpu: Option<&'static OwnedVcpu>) {
    cpu.current.set(vcpu.map_or(core::ptr::null(), |v| core::ptr::from_ref(v).cast()));
}

/// Registers of a vCPU as somebody sees them who does not own its state.
#[allow(missing_docs, reason = "as in [`OwnedVcpu`]")]
pub struct Glimpse {
    pub regs: CpuUserRegs,
    pub fs_base: u64,
    pub gs_base_kernel: u64,
    pub gs_base_user: u64,
}

/// The `vcpu_info` of a vCPU that has none in guest memory yet (ids from 32 on): events stay masked. Each vCPU has one,
/// so that none learns of another by it.
#[repr(C, align(64))]
struct DummyInfo([AtomicU64; vcpu_info::SIZE / 8]);

impl DummyInfo {
    fn new() -> Self {
        let masked = 1 << (8 * vcpu_info::UPCALL_MASK);
        Self(core::array::from_fn(|n| AtomicU64::new(if n == 0 { masked } else { 0 })))
    }

    fn as_ptr(&self) -> *mut u8 {
        core::ptr::from_ref(self).cast::<u8>().cast_mut()
    }
}

impl Vcpu {
    /// A vCPU that is down, of `domain`, whose `vcpu_info` is at `info`, or a dummy if `None`.
    ///
    /// # Safety
    /// 1. `domain` will own the vCPU: it lives, at this address, until the vCPU is gone.
    /// 2. `info` is as for [`Vcpu::set_info`].
    pub unsafe fn new(domain: *const Domain, id: u32, sched_id: VcpuId, info: Option<*mut u8>) -> Self {
        let dummy = Box::new(DummyInfo::new());
        let shared = Shared {
            id,
            domain,
            sched_id,
            time_area: AtomicU64::new(0),
            stale_areas: AtomicU8::new(0),
            info: AtomicPtr::new(info.unwrap_or(dummy.as_ptr())),
            dummy,
            info_frame: AtomicU64::new(!0),
            stop: AtomicU32::new(stop::DOWN | stop::NO_CONTEXT),
            affinity: AtomicU64::new(u64::MAX),
            soft_affinity: AtomicU64::new(u64::MAX),
            processor: AtomicU32::new(0),
            loaded: AtomicBool::new(false),
            upcalls: AtomicU32::new(0),
            nmi_pending: AtomicBool::new(false),
            periodic: Periodic::new(xen_abi::vcpu::DEFAULT_PERIODIC_NS),
            timer_cpu: [const { AtomicU32::new(u32::MAX) }; NR_TIMERS],
            watch: Watch::new(),
            pinned: AtomicBool::new(false),
            state_changed: AtomicBool::new(false),
            poll_is_over: AtomicBool::new(false),
        };
        Self(OwnedVcpu {
            kernel_mode: Cell::new(true),
            kernel_root: Cell::new(Mfn::new(0)),
            user_root: Cell::new(Mfn::new(0)),
            kernel_sp: Cell::new(0),
            kernel_ss: Cell::new(0),
            callbacks: Callbacks::default(),
            traps: Box::new([const { Cell::new(TrapInfo { vector: 0, flags: 0, cs: 0, pad: 0, address: 0 }) }; 256]),
            iopl: Cell::new(0),
            io_bitmap: Cell::new(IoBitmap::default()),
            task_switched: Cell::new(false),
            cr4: Cell::new(0),
            cr2: Cell::new(0),
            debugreg: core::array::from_fn(|i| {
                Cell::new(match i {
                    6 => x86::rflags::DR6_DEFAULT,
                    7 => x86::rflags::DR7_DEFAULT,
                    _ => 0,
                })
            }),
            ldt_frames: Cell::new([Mfn::new(0); LDT_PAGES]),
            gdt_frames: Cell::new([Mfn::new(0); FIRST_RESERVED_GDT_PAGE]),
            gdt_entries: Cell::new(0),
            ldt_base: Cell::new(0),
            ldt_entries: Cell::new(0),
            nmi_masked: Cell::new(false),
            tsc_aux: Cell::new(0),
            saved: UnsafeCell::new(CpuUserRegs::default()),
            fs_base: Cell::new(0),
            gs_base_kernel: Cell::new(0),
            gs_base_user: Cell::new(0),
            fpu: FpuArea::new(),
            runstate_area: Cell::new(0),
            last_load: Cell::new(LoadId::NEVER),
            vtlb: AtomicPtr::new(core::ptr::null_mut()),
            wedge: Cell::new(Wedge::new()),
            shared,
        })
    }

    /// It for the owner of its state.
    ///
    /// # Safety
    /// 1. The caller owns the state (module documentation) as long as the result is used.
    #[inline(always)]
    pub unsafe fn owned(&self) -> &OwnedVcpu {
        &self.0
    }

    /// What its saved registers seem to be, for who only prints them. Another CPU may be storing them just now.
    pub fn glimpse(&self) -> Glimpse {
        let own = &self.0;
        // SAFETY: plain words of a vCPU that lives. A half-written mixture of two sets is a set, too.
        unsafe {
            Glimpse {
                regs: own.saved.get().read_volatile(),
                fs_base: own.fs_base.as_ptr().read_volatile(),
                gs_base_kernel: own.gs_base_kernel.as_ptr().read_volatile(),
                gs_base_user: own.gs_base_user.as_ptr().read_volatile(),
            }
        }
    }

    /// The domain that it belongs to.
    #[inline(always)]
    pub fn domain(&self) -> &Domain {
        // SAFETY: as `new` was promised (1).
        unsafe { &*self.domain }
    }

    /// Its `vcpu_info` (64 bytes, 8-byte aligned). Guest memory: atomics and volatile accesses only.
    #[inline(always)]
    pub fn info(&self) -> *mut u8 {
        self.info.load(Ordering::Relaxed)
    }

    /// Is it on the dummy `vcpu_info`?
    pub fn has_dummy_info(&self) -> bool {
        core::ptr::eq(self.info(), self.dummy.as_ptr())
    }

    /// Points it to another `vcpu_info`.
    ///
    /// # Safety
    /// 1. `info` is the direct-map address of 64 bytes, 8-byte aligned, in a frame that stays the domain's and writable
    ///    until the vCPU is gone.
    pub unsafe fn set_info(&self, info: *mut u8) {
        self.info.store(info, Ordering::Release);
    }

    /// Goes back to the dummy and gives up the frame that `vcpu_info` was moved to; the vCPU runs no more. Who writes
    /// there otherwise than by it has its domain's event lock, and is waited for: when the frame goes nobody knows its
    /// address. That lock is not the caller's.
    pub fn forget_info(&self) {
        let events = self.domain().events.lock();
        let frame = self.info_frame.swap(!0, Ordering::AcqRel);
        self.info.store(self.dummy.as_ptr(), Ordering::Release);
        drop(events);
        if frame != !0 {
            self.domain().mm.drop_writable(Mfn::new(frame));
        }
    }

    /// Points it to the `vcpu_info` that it has at first: its place in shared_info, or the dummy.
    pub fn info_in_shared_page(&self) {
        if self.info_frame.load(Ordering::Acquire) == !0 && (self.id as usize) < XEN_LEGACY_MAX_VCPUS {
            let offset = shared_info::VCPU_INFO + self.id as usize * vcpu_info::SIZE;
            self.info.store(self.domain().shared_info_ptr().wrapping_add(offset), Ordering::Release);
        }
    }

    /// A byte of `vcpu_info`, as an atomic: the guest changes it under us.
    #[inline(always)]
    pub fn info_byte(&self, offset: usize) -> &AtomicU8 {
        debug_assert!(offset < vcpu_info::SIZE);
        // SAFETY: `info` is valid for 64 bytes (`new`, `set_info`); atomics tolerate concurrent writes by the guest.
        unsafe { AtomicU8::from_ptr(self.info().add(offset)) }
    }

    /// A word of `vcpu_info`.
    #[inline(always)]
    pub fn info_word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset < vcpu_info::SIZE);
        // SAFETY: as `info_byte`; offset and base are 8-byte aligned.
        unsafe { AtomicU64::from_ptr(self.info().add(offset).cast()) }
    }

    /// Are events masked (the guest's virtual interrupt flag is off)?
    #[inline(always)]
    pub fn events_masked(&self) -> bool {
        self.info_byte(vcpu_info::UPCALL_MASK).load(Ordering::Relaxed) != 0
    }

    /// Masks or unmasks events.
    #[inline(always)]
    pub fn set_events_masked(&self, masked: bool) {
        self.info_byte(vcpu_info::UPCALL_MASK).store(u8::from(masked), Ordering::Relaxed);
    }

    /// The raw mask byte, for the frame.
    #[inline(always)]
    pub fn upcall_mask(&self) -> u8 {
        self.info_byte(vcpu_info::UPCALL_MASK).load(Ordering::Relaxed)
    }

    /// Is an upcall pending, masked or not?
    #[inline(always)]
    pub fn upcall_pending(&self) -> bool {
        self.info_byte(vcpu_info::UPCALL_PENDING).load(Ordering::Acquire) != 0
    }

    /// Marks an upcall as pending. Whether it was not before.
    #[inline(always)]
    pub fn set_upcall_pending(&self) -> bool {
        self.info_byte(vcpu_info::UPCALL_PENDING).swap(1, Ordering::AcqRel) == 0
    }

    /// Is an upcall pending and not masked?
    #[inline(always)]
    pub fn event_deliverable(&self) -> bool {
        self.upcall_pending() && !self.events_masked()
    }

    /// Sets bits of [`Vcpu::stop`]. Returns the bits before.
    pub fn add_stop(&self, bits: u32) -> u32 {
        self.stop.fetch_or(bits, Ordering::AcqRel)
    }

    /// Has it been given a context?
    pub fn has_context(&self) -> bool {
        self.stop.load(Ordering::Acquire) & stop::NO_CONTEXT == 0
    }

    /// May the scheduler run it?
    #[inline]
    pub fn is_runnable(&self) -> bool {
        self.stop.load(Ordering::Acquire) == 0
    }
}

impl OwnedVcpu {
    /// The cache of page tables on which it runs, if its domain is logged.
    #[inline(always)]
    pub fn vtlb(&self) -> Option<&Vtlb> {
        // SAFETY: null, or from a box that `set_vtlb` frees only while the vCPU is held, when nobody looks.
        unsafe { self.vtlb.load(Ordering::Acquire).as_ref() }
    }

    /// Gives it another such cache, or none.
    ///
    /// # Safety
    /// 1. The vCPU is loaded nowhere, and stays so until the old cache is gone.
    pub unsafe fn set_vtlb(&self, cache: Option<Box<Vtlb>>) -> Option<Box<Vtlb>> {
        let new = cache.map_or(core::ptr::null_mut(), Box::into_raw);
        let old = self.vtlb.swap(new, Ordering::AcqRel);
        self.state_changed.store(true, Ordering::Release);
        // SAFETY: a non-null pointer came out of `Box::into_raw` here, and the swap makes this the only owner: nobody
        // looks at it (1).
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }

    /// What waits for it.
    #[inline(always)]
    pub fn waiting(&self) -> Waiting {
        Waiting {
            upcall: self.upcall_pending(),
            events_masked: self.events_masked(),
            nmi: self.nmi_pending.load(Ordering::Relaxed),
            nmi_masked: self.nmi_masked.get(),
        }
    }

    /// The pages of its GDT that are in use.
    #[inline]
    pub fn gdt_pages(&self) -> &[Cell<Mfn>] {
        let all: &Cell<[Mfn]> = &self.gdt_frames;
        let used = (self.gdt_entries.get() as usize).div_ceil(512).min(FIRST_RESERVED_GDT_PAGE);
        &all.as_slice_of_cells()[..used]
    }

    /// The root of the current mode.
    #[inline(always)]
    pub fn current_root(&self) -> Mfn {
        if self.kernel_mode.get() {
            self.kernel_root.get()
        } else {
            self.user_root.get()
        }
    }
}

impl fmt::Display for Vcpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "d{}v{}", self.domain().id, self.id)
    }
}

impl fmt::Display for OwnedVcpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Vcpu::fmt(self, f)
    }
}
