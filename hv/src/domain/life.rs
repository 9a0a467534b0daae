//! What domains go through: vCPUs are made, all of them pause and go on, the domain shuts down or crashes, dies, and is
//! forgotten.

use crate::arch::{reboot, tsc};
use crate::cpu::percpu::{pending, this_cpu};
use crate::domain::vcpu::{stop, OwnedVcpu, Vcpu};
use crate::domain::{event, lent, list, watch, withdrawal, Domain, ALIVE, DEAD, DYING, RUNNING};
use crate::mem::copy;
use crate::pv::time;
use crate::sched::{self, timers};
use crate::{detail, error, info, panic};
use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::Ordering;
use hv_core::graves::Next;
use list::bury_if_empty;
use xen_abi::errno::Errno;
use xen_abi::regs::CpuUserRegs;
use xen_abi::sched as reason;
use xen_abi::shared::{shared_info, vcpu_info, XEN_LEGACY_MAX_VCPUS};

/// Pauses `d` once more.
pub fn pause(d: &Domain) {
    let mut pauses = d.pauses.lock();
    *pauses = pauses.saturating_add(1);
    d.vcpus().for_each(|v| sched::halt(v, stop::PAUSED));
}

/// Takes one pause back; the last one lets it run. EINVAL if it is not paused; ERESTART: to be called again.
pub fn unpause(d: &Domain) -> Result<(), Errno> {
    if d.pause_count() == 1 {
        withdrawal::finish(d)?;
    }
    // It may be destroyed, or rolled back, meanwhile: their records stay where they are as long as this is locked.
    let _records = d.events.lock();
    let mut pauses = d.pauses.lock();
    let left = pauses.checked_sub(1).ok_or(Errno::EINVAL)?;
    if left == 0 && d.io.withdrawn.is_due() {
        // Since the look above.
        return Err(Errno::ERESTART);
    }
    *pauses = left;
    if left == 0 {
        // The tools may have written shared_info while it was paused.
        d.vcpus().for_each(time::update_time_info);
        time::update_wall_clock(d);
        d.vcpus().for_each(|v| sched::start(v, stop::PAUSED));
    }
    Ok(())
}

/// Lets `d` go on after a shutdown (a suspend that was cancelled).
pub fn resume(d: &Domain) {
    let _one_at_a_time = d.pauses.lock();
    if d.life.load(Ordering::Acquire) == ALIVE && d.shutdown_code.swap(RUNNING, Ordering::AcqRel) != RUNNING {
        d.was_crashed.store(false, Ordering::Relaxed);
        d.vcpus().for_each(|v| sched::start(v, stop::SHUTDOWN));
    }
}

/// `d` is being destroyed: it never runs again.
pub fn shutdown_for_good(d: &Domain) {
    let _one_at_a_time = d.pauses.lock();
    let _ = d.life.compare_exchange(ALIVE, DYING, Ordering::AcqRel, Ordering::Relaxed);
    d.vcpus().for_each(|v| sched::halt(v, stop::SHUTDOWN));
}

/// Makes vCPU `id` of `d`, which is paused if the domain is. `None` if there is no such number, it exists already, the
/// scheduler is full, or the domain is dying.
pub fn add_vcpu(d: &Domain, id: u32) -> Option<&Vcpu> {
    let pauses = d.pauses.lock();
    let slot = d.vcpus.get(id as usize)?;
    if slot.is_completed() || d.is_dying() {
        return None;
    }
    let sched_id = sched::allocate_slot()?;
    let info = (id < XEN_LEGACY_MAX_VCPUS as u32)
        .then(|| d.shared_info_ptr().wrapping_add(shared_info::VCPU_INFO + id as usize * vcpu_info::SIZE));
    // SAFETY: (1) the slot is the domain's, which is never moved and drops its vCPUs. (2) the id is below the number of
    // places in the shared page, which stays the domain's as long.
    let v = slot.call_once(|| Box::new(unsafe { Vcpu::new(d, id, sched_id, info) }));
    sched::register(v);
    if *pauses != 0 {
        sched::halt(v, stop::PAUSED);
    }
    if d.has_stopped() {
        sched::halt(v, stop::SHUTDOWN);
    }
    // Domain 0 is built while time is still being measured; its records are written when that is done.
    if tsc::is_calibrated() {
        time::update_time_info(v);
    }
    Some(v)
}

/// Winds a watchdog of `d` up or lets it go: see [`Watchdogs::set`].
pub fn set_watchdog(d: &Domain, id: u32, timeout_s: u32) -> Result<u32, Errno> {
    let mut watchdogs = d.watchdogs.lock();
    let result = watchdogs.set(id, timeout_s, tsc::now_ns())?;
    if let Some(v) = d.vcpu(0) {
        match watchdogs.next() {
            Some(deadline) => timers::arm(v, timers::Kind::Watchdog, deadline),
            None => timers::disarm(v, timers::Kind::Watchdog),
        }
    }
    Ok(result)
}

/// The timer of the watchdogs of `d` has expired.
pub fn watchdog_bites(d: &Domain, now: u64) {
    // It may have been wound up again meanwhile.
    if d.watchdogs.lock().bites(now) {
        info!("d{} did not wind its watchdog up", d.id);
        shutdown(d, reason::SHUTDOWN_WATCHDOG);
    }
}

/// Shuts `d` down for `why` (SHUTDOWN_*): its vCPUs stop. If it is the hardware domain, so does the machine.
pub fn shutdown(d: &Domain, why: u32) {
    if d.is_hardware {
        hardware_domain_shutdown(why);
    }
    let one_at_a_time = d.pauses.lock();
    if d.shutdown_code.load(Ordering::Relaxed) == RUNNING {
        d.ended_at.store(tsc::now_ns(), Ordering::Relaxed);
        d.shutdown_code.store(why, Ordering::Release);
        d.vcpus().for_each(|v| sched::halt(v, stop::SHUTDOWN));
        drop(one_at_a_time);
        // Before what is said of it, which takes milliseconds at a serial port.
        watch::tell_of_end(d);
        event::raise_global_virq(xen_abi::event::VIRQ_DOM_EXC);
        info!("d{} shut down, reason {why}", d.id);
    }
}

/// What the end of the hardware domain means for the machine.
fn hardware_domain_shutdown(why: u32) -> ! {
    match why {
        reason::SHUTDOWN_POWEROFF => {
            info!("Hardware Dom0 halted: halting machine");
            reboot::power_off()
        }
        reason::SHUTDOWN_CRASH => {
            error!("Hardware Dom0 crashed: rebooting machine in 5 seconds.");
            panic::stop()
        }
        _ => {
            info!("Hardware Dom0 shutdown: rebooting machine");
            reboot::reboot()
        }
    }
}

/// Everything that was the dying domain's own is back. The tools hear of it; it is forgotten as soon as nobody maps its
/// memory either.
pub fn died(d: &Domain) {
    if d.life.swap(DEAD, Ordering::AcqRel) != DEAD {
        info!("d{} destroyed", d.id);
        d.grants.end_loans();
        d.io.withdrawn.absent().iter().for_each(|page| lent::end_loan(d.id, *page));
        lent::end_loan(d.id, d.shared_info);
    }
    watch::tell_of_end(d);
    bury_if_empty(d);
    event::raise_global_virq(xen_abi::event::VIRQ_DOM_EXC);
}

/// Crashes the domain of the running vCPU `v`, whose registers are `regs`, because of `why`. Whoever is told of the end
/// is told before it is reported, which takes its time at a serial port; and of vCPUs that do it at once one reports.
#[cold]
pub fn crash(v: &OwnedVcpu, regs: &CpuUserRegs, why: fmt::Arguments<'_>) {
    let d = v.domain();
    let is_first = !d.was_crashed.swap(true, Ordering::AcqRel);
    if d.is_hardware {
        // Its end is the machine's: nobody reads the ring afterwards.
        report_crash(v, regs, why, |line| {
            error!("{line}");
        });
    }
    shutdown(d, reason::SHUTDOWN_CRASH);
    this_cpu().raise(pending::SCHEDULE);
    if is_first {
        report_crash(v, regs, why, |line| detail!("{line}"));
    }
}

/// Says why `v` is ended, and gives `detail` its registers and the top of its stack.
fn report_crash(v: &OwnedVcpu, regs: &CpuUserRegs, why: fmt::Arguments<'_>, detail: fn(fmt::Arguments<'_>)) {
    error!("{v} crashed: {why}");
    error!(
        "{v} rip {:#06x}:{:#018x} rflags {:#010x} {} mode, cr2 {:#018x}",
        regs.cs,
        regs.rip,
        regs.rflags,
        if v.kernel_mode.get() { "kernel" } else { "user" },
        v.cr2.get()
    );
    detail(format_args!(
        "{v} rax {:#018x} rbx {:#018x} rcx {:#018x} rdx {:#018x}",
        regs.rax, regs.rbx, regs.rcx, regs.rdx
    ));
    detail(format_args!(
        "{v} rsi {:#018x} rdi {:#018x} rbp {:#018x} rsp {:#018x}",
        regs.rsi, regs.rdi, regs.rbp, regs.rsp
    ));
    detail(format_args!(
        "{v} r8  {:#018x} r9  {:#018x} r10 {:#018x} r11 {:#018x}",
        regs.r8, regs.r9, regs.r10, regs.r11
    ));
    detail(format_args!(
        "{v} r12 {:#018x} r13 {:#018x} r14 {:#018x} r15 {:#018x}",
        regs.r12, regs.r13, regs.r14, regs.r15
    ));
    for row in 0..4u64 {
        let word = |i: u64| copy::read_u64(regs.rsp.wrapping_add((row * 4 + i) * 8)).unwrap_or(0);
        detail(format_args!("{v} stack {:016x} {:016x} {:016x} {:016x}", word(0), word(1), word(2), word(3)));
    }
}

/// So long after a look at domains that somebody still looks at they are looked at again.
const GRAVES_NS: u64 = 500_000;

/// Frees the domains that nobody looks at any more. No lock is held and no domain looked at.
pub fn bury() {
    let (dead, next) = list::take_dead();
    match next {
        Next::Never => {}
        Next::AtOnce => this_cpu().raise(pending::GRAVES),
        // Who looks may take milliseconds, and may be waiting for the vCPU that ran here: that goes on.
        Next::Later => timers::arm_graves(tsc::now_ns().saturating_add(GRAVES_NS)),
    }
    dead.iter().flat_map(|d| d.vcpus()).for_each(sched::remove);
    // Their memory goes back outside all locks.
    drop(dead);
}
