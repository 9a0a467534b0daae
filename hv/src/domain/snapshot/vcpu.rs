//! A vCPU as it was.

use crate::arch::fpu::FpuArea;
use crate::arch::tsc;
use crate::domain::vcpu::{stale, stop, Callback, Callbacks, IoBitmap, OwnedVcpu};
use crate::pv::address_space;
use crate::sched::timers::{self, Kind};
use crate::sched::{self, Held};
use alloc::boxed::Box;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use hv_core::wedge::Wedge;
use x86::{Mfn, PAGE_SIZE};
use xen_abi::errno::Errno;
use xen_abi::layout::FIRST_RESERVED_GDT_PAGE;
use xen_abi::regs::CpuUserRegs;
use xen_abi::trap::TrapInfo;

/// In [`SavedVcpu::info`]: it was where it is at first.
const NO_FRAME: u64 = !0;

/// All that a vCPU is, but for what the tools and the scheduler have to say (affinity, weight) and what it was waiting
/// for: it finds events for all that it could have waited for.
pub struct SavedVcpu {
    /// Its number.
    pub id: u32,
    is_down: bool,
    has_context: bool,
    kernel_mode: bool,
    kernel_root: Mfn,
    user_root: Mfn,
    kernel_sp: u64,
    kernel_ss: u16,
    /// Event, failsafe, syscall, syscall32, sysenter.
    callbacks: [Callback; 5],
    traps: Box<[TrapInfo; 256]>,
    iopl: u8,
    io_bitmap: IoBitmap,
    task_switched: bool,
    cr4: u64,
    cr2: u64,
    debugreg: [u64; 8],
    gdt_frames: [Mfn; FIRST_RESERVED_GDT_PAGE],
    gdt_entries: u32,
    ldt_base: u64,
    ldt_entries: u32,
    nmi_masked: bool,
    tsc_aux: u64,
    regs: CpuUserRegs,
    fs_base: u64,
    gs_base_kernel: u64,
    gs_base_user: u64,
    fpu: FpuArea,
    runstate_area: u64,
    time_area: u64,
    /// Frame of its `vcpu_info`, and where in that.
    info: (u64, usize),
    nmi_pending: bool,
    periodic_ns: u64,
    /// So long from then it was to tick, in ns.
    periodic_left: u64,
    /// So long from then the single-shot timer was to fire, in ns.
    single_shot_left: Option<u64>,
}

fn callbacks(v: &Callbacks) -> [&Cell<Callback>; 5] {
    [&v.event, &v.failsafe, &v.syscall, &v.syscall32, &v.sysenter]
}

impl SavedVcpu {
    /// Notes what `v` is. It takes two pages of the heap, which the caller has seen to be there.
    pub fn of(v: &Held<'_>) -> Box<Self> {
        let now = tsc::now_ns();
        let fpu = FpuArea::new();
        fpu.assign(&v.fpu);
        Box::new(Self {
            id: v.id,
            is_down: v.stop.load(Ordering::Relaxed) & stop::DOWN != 0,
            has_context: v.has_context(),
            kernel_mode: v.kernel_mode.get(),
            kernel_root: v.kernel_root.get(),
            user_root: v.user_root.get(),
            kernel_sp: v.kernel_sp.get(),
            kernel_ss: v.kernel_ss.get(),
            callbacks: callbacks(&v.callbacks).map(Cell::get),
            traps: Box::new(core::array::from_fn(|n| v.traps[n].get())),
            iopl: v.iopl.get(),
            io_bitmap: v.io_bitmap.get(),
            task_switched: v.task_switched.get(),
            cr4: v.cr4.get(),
            cr2: v.cr2.get(),
            debugreg: core::array::from_fn(|n| v.debugreg[n].get()),
            gdt_frames: v.gdt_frames.get(),
            gdt_entries: v.gdt_entries.get(),
            ldt_base: v.ldt_base.get(),
            ldt_entries: v.ldt_entries.get(),
            nmi_masked: v.nmi_masked.get(),
            tsc_aux: v.tsc_aux.get(),
            // SAFETY: the vCPU is held, and so its state the caller's.
            regs: unsafe { *v.saved.get() },
            fs_base: v.fs_base.get(),
            gs_base_kernel: v.gs_base_kernel.get(),
            gs_base_user: v.gs_base_user.get(),
            fpu,
            runstate_area: v.runstate_area.get(),
            time_area: v.time_area.load(Ordering::Relaxed),
            info: (v.info_frame.load(Ordering::Acquire), v.info() as usize % PAGE_SIZE),
            nmi_pending: v.nmi_pending.load(Ordering::Relaxed),
            periodic_ns: v.periodic.period_ns(),
            periodic_left: v.periodic.left_ns(now),
            single_shot_left: timers::deadline(v, Kind::SingleShot).map(|at| at.saturating_sub(now)),
        })
    }

    /// Frame that its `vcpu_info` is in, if that has been moved.
    pub fn info_frame(&self) -> Option<Mfn> {
        (self.info.0 != NO_FRAME).then(|| Mfn::new(self.info.0))
    }

    /// Lets go of all that `v` refers to. ERESTART: to be called again.
    pub fn let_go(v: &Held<'_>) -> Result<(), Errno> {
        address_space::drop_context(v)?;
        v.forget_info();
        timers::disarm_all(v);
        Ok(())
    }

    /// Gives `v`, which has let go of all, its page tables again, and its `vcpu_info`. ERESTART: to be called again.
    /// Others: it cannot be, and it must not run.
    pub fn take_hold(&self, v: &Held<'_>) -> Result<(), Errno> {
        if self.has_context {
            let frames = self.gdt_frames.map(Mfn::raw);
            address_space::set_context(v, self.kernel_root, self.user_root, &frames, self.gdt_entries)?;
        }
        let Some(mfn) = self.info_frame() else {
            v.info_in_shared_page();
            return Ok(());
        };
        if v.info_frame.load(Ordering::Acquire) == NO_FRAME {
            let page = v.domain().mm.take_writable(mfn).ok_or(Errno::EBUSY)?;
            v.info_frame.store(mfn.raw(), Ordering::Release);
            // SAFETY: the page stays the domain's, and writable, by the reference just taken, which `info_frame`
            // records; the offset is that of a `vcpu_info` that was there before.
            unsafe { v.set_info(page.add(self.info.1)) };
        }
        Ok(())
    }

    /// Makes the state of `v` what it was, which has page tables by [`Self::take_hold`], since it was held. It does not
    /// wait for anything; its timers have as much time left as they had.
    pub fn put_back(&self, v: &Held<'_>) {
        self.put_back_kernel(v);
        self.put_back_registers(v);
        let now = tsc::now_ns();
        v.runstate_area.set(self.runstate_area);
        v.time_area.store(self.time_area, Ordering::Relaxed);
        // What they hold is from then.
        v.stale_areas.store(stale::RUNSTATE | stale::TIME, Ordering::Relaxed);
        v.nmi_pending.store(self.nmi_pending, Ordering::Relaxed);
        v.periodic.set(self.periodic_ns, now.saturating_add(self.periodic_left));
        if let Some(left) = self.single_shot_left {
            timers::arm(v, Kind::SingleShot, now.saturating_add(left));
        }
        v.poll_is_over.store(false, Ordering::SeqCst);
        v.wedge.set(Wedge::new());
        v.watch.due_ns.store(0, Ordering::Relaxed);
        v.watch.since_ns.store(0, Ordering::Relaxed);
        v.state_changed.store(true, Ordering::Release);
        sched::start(v, stop::BLOCKED | stop::POLLING);
        if self.is_down {
            sched::halt(v, stop::DOWN);
        } else {
            sched::start(v, stop::DOWN);
        }
        if self.has_context {
            sched::start(v, stop::NO_CONTEXT);
        }
    }

    /// What the guest kernel has told of itself.
    fn put_back_kernel(&self, v: &OwnedVcpu) {
        for (place, callback) in callbacks(&v.callbacks).into_iter().zip(self.callbacks) {
            place.set(callback);
        }
        for (place, trap) in v.traps.iter().zip(self.traps.iter()) {
            place.set(*trap);
        }
        v.kernel_sp.set(self.kernel_sp);
        v.kernel_ss.set(self.kernel_ss);
        v.iopl.set(self.iopl);
        v.io_bitmap.set(self.io_bitmap);
        v.ldt_base.set(self.ldt_base);
        v.ldt_entries.set(self.ldt_entries);
        v.nmi_masked.set(self.nmi_masked);
    }

    fn put_back_registers(&self, v: &OwnedVcpu) {
        v.kernel_mode.set(self.kernel_mode);
        v.task_switched.set(self.task_switched);
        v.cr4.set(self.cr4);
        v.cr2.set(self.cr2);
        for (place, value) in v.debugreg.iter().zip(self.debugreg) {
            place.set(value);
        }
        v.tsc_aux.set(self.tsc_aux);
        // SAFETY: the vCPU is held, and so its state the caller's.
        unsafe { *v.saved.get() = self.regs };
        v.fs_base.set(self.fs_base);
        v.gs_base_kernel.set(self.gs_base_kernel);
        v.gs_base_user.set(self.gs_base_user);
        v.fpu.assign(&self.fpu);
    }
}
