//! What a CPU does between guests: its pending work, the choice of who runs next, and waiting while there is nobody.
//!
//! Nothing below knows this file: whoever wants something done sets a bit of the CPU's pending work.

use super::{chosen, delay, scheduler, switch};
use crate::arch::tsc;
use crate::cpu::percpu::{self, pending, this_cpu, CpuInfo};
use crate::cpu::{self, Interruptible};
use crate::domain::vcpu::{self, stop, OwnedVcpu, Vcpu};
use crate::domain::{event, life, watch};
use crate::irq;
use crate::pv::time;
use crate::sched;
use crate::sched::timers::{self, Due, Kind, Own};
use crate::sync::Once;
use core::sync::atomic::Ordering;
use hv_core::sched::PcpuId;
use xen_abi::event::{VIRQ_CONSOLE, VIRQ_CON_RING, VIRQ_TIMER};
use xen_abi::regs::CpuUserRegs;

/// What device channels do when their timer fires, at a time in ns. They lie above, so it is installed.
static CHANNEL_WORK: Once<fn(u64)> = Once::new();
/// What is done for the interfaces that this CPU looks after, of one domain or of all.
static SENDER_WORK: Once<fn(Option<u16>)> = Once::new();

/// Says what is done when the timer of device channels fires, and for the interfaces that a CPU looks after.
pub fn install_channel_work(work: fn(u64), for_senders: fn(Option<u16>)) {
    CHANNEL_WORK.call_once(|| work);
    SENDER_WORK.call_once(|| for_senders);
}

/// What twins' network cards do when they have something to do. They lie above, so it is installed.
static CARD_WORK: Once<fn(Interruptible<'_>)> = Once::new();

/// Says what is done when twins' network cards have something to do.
pub fn install_card_work(work: fn(Interruptible<'_>)) {
    CARD_WORK.call_once(|| work);
}

/// Does the work that is pending on this CPU; on return a vCPU is current and `regs` are its registers.
pub fn do_pending(me: &'static CpuInfo, regs: &mut CpuUserRegs, mut interruptible: Interruptible<'_>) {
    let asked = do_work(me, interruptible.again());
    if asked != 0 {
        if asked & pending::DELAYED != 0 {
            delay::end(me, asked);
        }
        schedule(me, regs, interruptible);
    }
}

/// Does the work that is pending on this CPU but for scheduling, and says what of that is asked for, too.
#[inline]
fn do_work(me: &CpuInfo, interruptible: Interruptible<'_>) -> u32 {
    let work = me.pending.swap(0, Ordering::AcqRel);
    if work & pending::TIMER != 0 {
        let now = tsc::now_ns();
        timers::expire(now, |due| fire(due, now));
    }
    // Before cards, which then send what is found.
    if me.looks_after.get() {
        if let Some(v) = vcpu::current(me).filter(|v| !v.is_runnable()) {
            look_at_senders(Some(v.domain().id));
        }
    }
    // Expiring timers may have asked for it.
    if (work | me.pending.load(Ordering::Acquire)) & pending::CARDS != 0 {
        me.pending.fetch_and(!pending::CARDS, Ordering::AcqRel);
        if let Some(work) = CARD_WORK.get() {
            work(interruptible);
        }
    }
    if work & pending::SIGN != 0 {
        me.sign_ns.store(tsc::now_ns(), Ordering::Release);
        if let Some(v) = vcpu::current(me) {
            watch::resume(v);
        }
    }
    if work & pending::CONSOLE != 0 {
        // The domain that owns the console is told.
        event::raise_global_virq(VIRQ_CONSOLE);
    }
    if work & pending::CON_RING != 0 {
        event::raise_global_virq(VIRQ_CON_RING);
        // What was printed in doing so is read with the rest, if not now then with what is printed next.
        me.pending.fetch_and(!pending::CON_RING, Ordering::AcqRel);
    }
    if work & pending::GRAVES != 0 {
        life::bury();
    }
    // Expiring timers may have asked for scheduling.
    (work | me.pending.load(Ordering::Acquire)) & (pending::SCHEDULE | pending::DELAYED | pending::MARKED)
}

/// Interfaces whose guests do not notify each time are looked at: those of one domain, or of all.
fn look_at_senders(of: Option<u16>) {
    if let Some(work) = SENDER_WORK.get() {
        work(of);
    }
}

/// A timer has come to its time.
fn fire(due: Due<'_>, now: u64) {
    match due {
        Due::Own(Own::IrqRelease) => irq::guest::expire(),
        Due::Own(Own::Cards) => this_cpu().raise(pending::CARDS),
        Due::Own(Own::Senders) => look_at_senders(None),
        Due::Own(Own::Graves) => this_cpu().raise(pending::GRAVES),
        Due::Own(Own::Channels) => {
            if let Some(work) = CHANNEL_WORK.get() {
                work(now);
            }
        }
        Due::Vcpu { v, kind: Kind::SingleShot, .. } => event::raise_virq(v, VIRQ_TIMER),
        Due::Vcpu { v, kind: Kind::Periodic, deadline_ns } => {
            event::raise_virq(v, VIRQ_TIMER);
            timers::rearm_periodic(v, deadline_ns, now);
        }
        Due::Vcpu { v, kind: Kind::Poll, .. } => sched::start(v, stop::POLLING),
        Due::Vcpu { v, kind: Kind::Watchdog, .. } => life::watchdog_bites(v.domain(), now),
        // If it runs on another CPU by now, it is looked at there.
        Due::Vcpu { v, kind: Kind::Look, .. } => {
            if let Some(own) = vcpu::current(this_cpu()).filter(|own| core::ptr::eq::<Vcpu>(&***own, v)) {
                watch::look(own, now);
            }
        }
    }
}

/// Starts scheduling on this CPU, which runs nothing yet. Leaves for the first guest by way of `enter_guest`; never
/// returns.
///
/// # Safety
/// 1. `enter_guest` enters the current vCPU with the registers that lie in this CPU's `guest_regs`. 2. This CPU holds
///    no lock.
pub unsafe fn enter_first(enter_guest: unsafe extern "C" fn() -> !) -> ! {
    // SAFETY: nothing of this stack is needed any more; guest_regs is at its top.
    let regs = unsafe { percpu::guest_regs() };
    switch::load_idle();
    // SAFETY: (2); what is on the stack is not used any more.
    schedule(this_cpu(), regs, unsafe { Interruptible::on_entry() });
    // SAFETY: (1); a vCPU is current and its registers are in guest_regs.
    unsafe { enter_guest() }
}

/// Lets the scheduler decide, switches, and idles while there is nobody to run.
fn schedule(me: &'static CpuInfo, regs: &mut CpuUserRegs, mut interruptible: Interruptible<'_>) {
    let this = me.cpu as usize;
    loop {
        me.pending.fetch_and(!pending::SCHEDULE, Ordering::AcqRel);
        let now = tsc::now_ns();
        // One that sleeps is going to be switched away from, unless somebody wakes it just now.
        let sleeper = vcpu::current(me).filter(|v| !v.is_runnable());
        if let Some(prev) = sleeper {
            if time::is_seen_to_leave(prev) {
                let left = scheduler().lock().runstate_left(prev.sched_id, now);
                time::update_runstate_area_left(prev, left);
            }
            store(me, prev, regs);
        }
        let mut locked = scheduler().lock();
        if let Some(prev) = sleeper {
            // This CPU is told by being here.
            let _ = locked.sleep_untold(prev.sched_id, || !prev.is_runnable(), now);
        }
        let decision = locked.pick(this, now, sleeper.is_some(), || delay::is_uninterruptible(me));
        if decision.save.is_some() {
            let leaver = vcpu::current(me);
            if let Some(prev) = leaver.filter(|v| time::is_seen_to_leave(v)) {
                // As long as the lock is held: all CPUs want it.
                let left = locked.runstate_of_leaver(this);
                drop(locked);
                kick(decision.kick);
                time::update_runstate_area_left(prev, left);
            } else {
                drop(locked);
                kick(decision.kick);
            }
            if let Some(prev) = leaver {
                store(me, prev, regs);
            }
            let kicked = scheduler().lock().context_saved(this, now);
            kick(kicked);
        } else {
            drop(locked);
            if decision.is_delayed {
                delay::begin(me);
            }
            kick(decision.kick);
        }
        timers::set_slice_end(decision.slice_until_ns);
        let next = decision.next.and_then(chosen);
        if let Some(next) = next {
            if vcpu::current(me).is_none() {
                // First: loading its segments or its runstate record may fault on its behalf.
                vcpu::set_current(me, Some(next));
                switch::load(next, regs);
            }
            return;
        }
        idle(me, interruptible.again());
    }
}

#[inline]
fn kick(cpu: Option<PcpuId>) {
    if let Some(cpu) = cpu {
        sched::kick(cpu);
    }
}

/// Nobody is current any more on this CPU. Others have been told before: the record of that may fault on its behalf.
#[inline]
fn store(me: &CpuInfo, current: &OwnedVcpu, regs: &CpuUserRegs) {
    switch::save(current, regs);
    vcpu::set_current(me, None);
}

/// Waits for work. Returns when this CPU should ask the scheduler again.
fn idle(me: &'static CpuInfo, mut interruptible: Interruptible<'_>) {
    me.idle.store(1, Ordering::Release);
    if me.rests.take() {
        me.raise(pending::CARDS);
    }
    loop {
        if do_work(me, interruptible.again()) != 0 {
            break;
        }
        if me.pending.load(Ordering::Acquire) == 0 {
            cpu::sti_hlt_cli(interruptible.again());
        }
    }
    me.idle.store(0, Ordering::Release);
}
