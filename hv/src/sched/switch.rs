//! Storing a vCPU's state away from a CPU and loading another's.

use crate::arch::{descriptor, tlb};
use crate::cpu::percpu::this_cpu;
use crate::cpu::{self, msr};
use crate::domain::vcpu::OwnedVcpu;
use crate::domain::{event, watch};
use crate::pv::{control_regs, debugreg, entry, time, vtlb};
use crate::sched::timers;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use hv_core::sched::LoadId;
use xen_abi::event::VIRQ_TIMER;
use xen_abi::regs::CpuUserRegs;

extern "C" {
    fn load_ds(selector: u32) -> u32;
    fn load_es(selector: u32) -> u32;
    fn load_fs(selector: u32) -> u32;
    fn load_user_gs(selector: u32) -> u32;
}

/// ds, es, fs, gs of the guest.
pub fn read_selectors() -> [u16; 4] {
    let (ds, es, fs, gs): (u16, u16, u16, u16);
    // SAFETY: reading selectors has no effect.
    unsafe {
        core::arch::asm!("mov {:x}, ds", "mov {:x}, es", "mov {:x}, fs", "mov {:x}, gs",
            out(reg) ds, out(reg) es, out(reg) fs, out(reg) gs, options(nomem, nostack, preserves_flags));
    }
    [ds, es, fs, gs]
}

/// Stores the state of `v`, which runs on this CPU with `regs`. Afterwards another CPU may load it.
pub fn save(v: &OwnedVcpu, regs: &CpuUserRegs) {
    timers::pause_periodic(v);
    let [ds, es, fs, gs] = read_selectors();
    // SAFETY: this CPU owns the state of the vCPU that it runs.
    let saved = unsafe { &mut *v.saved.get() };
    *saved = *regs;
    (saved.ds, saved.es, saved.fs, saved.gs) = (ds, es, fs, gs);
    v.fs_base.set(cpu::rdmsr(msr::IA32_FS_BASE));
    let (live, other) = (cpu::rdmsr(msr::IA32_GS_BASE), cpu::rdmsr(msr::IA32_KERNEL_GS_BASE));
    let (kernel, user) = if v.kernel_mode.get() { (live, other) } else { (other, live) };
    v.gs_base_kernel.set(kernel);
    v.gs_base_user.set(user);
    if v.task_switched.get() {
        cpu::clts();
    }
    v.fpu.save();
    if debugreg::in_use(v) {
        // SAFETY: no breakpoints.
        unsafe { cpu::write_dr7(x86::rflags::DR7_DEFAULT) };
    }
    // As soon as others may have the vCPU, its page tables may be freed: this CPU must be off them.
    // SAFETY: there is no cache.
    unsafe { this_cpu().set_cache(None) };
    load_idle();
    v.loaded.store(false, Ordering::Release);
}

/// What this CPU still holds of the vCPU that it loaded last, apart from the general registers.
struct Resident {
    /// That load. The vCPU itself may be gone, and its memory another's.
    load: Cell<LoadId>,
    /// What IA32_TSC_AUX holds; 0 after reset.
    tsc_aux: Cell<u64>,
}
struct ResidentTable([Resident; crate::cpu::percpu::MAX_CPUS]);
// SAFETY: each CPU uses only its own entry.
unsafe impl Sync for ResidentTable {}
static RESIDENT: ResidentTable = ResidentTable(
    [const { Resident { load: Cell::new(LoadId::NEVER), tsc_aux: Cell::new(0) } }; crate::cpu::percpu::MAX_CPUS],
);

/// Loads `v` on this CPU: `regs`, which are the last vCPU's that ran here, become its registers. They, descriptors, FPU
/// and bases are left alone if nobody has used this CPU or this vCPU since it ran here.
pub fn load(v: &'static OwnedVcpu, regs: &mut CpuUserRegs) {
    let me = this_cpu();
    let resident = &RESIDENT.0[me.cpu as usize];
    let stays = resident.load.get().is_last_of(v.last_load.get());
    let load = resident.load.get().next_on(me.cpu);
    resident.load.set(load);
    v.last_load.set(load);
    v.processor.store(me.cpu, Ordering::Relaxed);
    // Before this CPU looks for events on its way to the guest: who has made one pending and finds the vCPU not loaded
    // leaves it to that.
    v.loaded.swap(true, Ordering::SeqCst);
    tlb::enter_guests();
    // SAFETY: it stays as long as the vCPU is loaded; `save` forgets it.
    unsafe { me.set_cache(v.vtlb()) };
    if v.state_changed.swap(false, Ordering::Relaxed) || !stays {
        // SAFETY: the scheduler gave this CPU the vCPU's state.
        *regs = unsafe { *v.saved.get() };
        load_all(v, regs);
    } else {
        vtlb::load_empty(v);
        v.fpu.load_xcr0();
        if v.task_switched.get() {
            cpu::stts();
        }
        if debugreg::in_use(v) {
            debugreg::load(v);
        }
    }
    if timers::resume_periodic(v) {
        event::raise_virq(v, VIRQ_TIMER);
    }
    watch::resume(v);
    time::update_runstate_area(v);
}

fn load_all(v: &'static OwnedVcpu, regs: &mut CpuUserRegs) {
    let me = this_cpu();
    let domain = v.domain();
    domain.add_dirty_cpu(me.cpu);
    vtlb::load_empty(v);
    if let Some(old) = me.last_domain.replace(Some(domain.id)) {
        if old != domain.id {
            crate::domain::list::forget_dirty(old, me.cpu);
        }
    }
    let cr4 = control_regs::real_cr4(v.cr4.get());
    if cr4 != cpu::read_cr4() {
        // SAFETY: the host's bits plus those that the domain's policy let the guest choose, which are bits that the
        // machine has.
        unsafe { cpu::write_cr4(cr4) };
    }
    descriptor::load_guest_gdt(v.gdt_pages());
    descriptor::load_guest_ldt(v.ldt_entries.get());
    if v.task_switched.get() {
        cpu::clts();
    }
    v.fpu.load();
    if v.task_switched.get() {
        cpu::stts();
    }
    if debugreg::in_use(v) {
        debugreg::load(v);
    }
    load_tsc_aux(v);
    load_segments(v, regs);
}

/// Loads the vCPU's TSC_AUX, unless this CPU has that value already.
pub fn load_tsc_aux(v: &OwnedVcpu) {
    let resident = &RESIDENT.0[this_cpu().cpu as usize];
    if resident.tsc_aux.replace(v.tsc_aux.get()) != v.tsc_aux.get() {
        // SAFETY: a value other than that after reset: a guest has set one, which it may only where CPUID offers
        // RDTSCP.
        unsafe { cpu::wrmsr(msr::IA32_TSC_AUX, v.tsc_aux.get()) };
    }
}

/// Loads selectors, then bases: loading a selector changes the base. A selector that does not load ends in the failsafe
/// callback, as on the way back from a bad iret.
fn load_segments(v: &OwnedVcpu, regs: &mut CpuUserRegs) {
    let wanted = [regs.ds, regs.es, regs.fs, regs.gs];
    let mut bad = 0;
    // SAFETY: ring-3 selectors with a null fall-back; the hypervisor uses none of these registers.
    unsafe {
        let now = read_selectors();
        if wanted[0] | now[0] != 0 {
            bad |= load_ds(wanted[0].into());
        }
        if wanted[1] | now[1] != 0 {
            bad |= load_es(wanted[1].into());
        }
        if wanted[2] | now[2] != 0 {
            bad |= load_fs(wanted[2].into());
        }
        if wanted[3] | now[3] != 0 {
            bad |= load_user_gs(wanted[3].into());
        }
        cpu::wrmsr(msr::IA32_FS_BASE, v.fs_base.get());
        let (kernel, user) = (v.gs_base_kernel.get(), v.gs_base_user.get());
        let (live, other) = if v.kernel_mode.get() { (kernel, user) } else { (user, kernel) };
        cpu::wrmsr(msr::IA32_GS_BASE, live);
        cpu::wrmsr(msr::IA32_KERNEL_GS_BASE, other);
    }
    if bad != 0 {
        entry::failsafe(v, regs);
    }
}

/// This CPU runs nobody: no guest's page tables stay loaded, so that they may be freed.
pub fn load_idle() {
    tlb::leave_guests();
}
