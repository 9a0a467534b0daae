//! Logging a domain's writes.

use super::{Outcome, Request, OK};
use crate::cpu::percpu::this_cpu;
use crate::domain::vcpu::stop;
use crate::domain::{passthrough, Domain};
use crate::hypercall::{Done, GuestPtr};
use crate::mem::frames;
use crate::pv::vtlb;
use crate::sched::{self, AllHeld, Held};
use crate::sync::MutexGuard;
use core::sync::atomic::Ordering;
use hv_core::allowance::PAGE;
use hv_core::dirty_log::{Making, Place, Reading};
use x86::Mfn;
use xen_abi::domctl as op;
use xen_abi::domctl::ShadowOp;
use xen_abi::errno::Errno;

/// Words of the log read between two looks at what else there is to do.
const STRIDE: u64 = 4096;
/// Most bits that a reading may ask for.
const MAX_PAGES: u64 = 1 << 32;

/// XEN_DOMCTL_SHADOW_OP_*: the log of writes. EINVAL for other modes of shadow tables, which do not exist here, and for
/// reading a log that is off; EBUSY for switching it on twice, and for a reading while another one is preempted; EXDEV
/// for a domain with devices; ENOMEM.
pub(super) fn call(r: &mut Request) -> Outcome {
    let d = r.other()?;
    let mut request: ShadowOp = r.read()?;
    match request.op {
        op::SHADOW_OP_OFF => while_held(&d, |held, place| {
            disable(&d, held, place);
            OK
        }),
        op::SHADOW_OP_ENABLE_LOGDIRTY => while_held(&d, |held, place| enable(&d, held, place)),
        op::SHADOW_OP_CLEAN | op::SHADOW_OP_PEEK => {
            if request.pages > MAX_PAGES || request.mode & !op::SHADOW_LOGDIRTY_FINAL != 0 {
                return Err(Errno::EINVAL);
            }
            // vCPUs that are loaded again begin with an empty cache, so what was cleared is noted again.
            while_held(&d, |_, place| read(r, &d, &mut request, place))
        }
        // Tables for shadows come out of the hypervisor's own memory and need no allowance.
        op::SHADOW_OP_GET_ALLOCATION => r.answer(&ShadowOp { mb: 0, ..request }),
        op::SHADOW_OP_SET_ALLOCATION => OK,
        _ => Err(Errno::EINVAL),
    }
}

/// The lock of the log of `d`, which is off and stays so as long as this is held: `d` may get a part of a device. EXDEV
/// if it is on. ERESTART: it is somebody else's just now, who may be reading it and lets interrupts in.
pub(super) fn keep_off(d: &Domain) -> Result<MutexGuard<'_, Place>, Errno> {
    let lock = d.mm.try_lock_log().ok_or(Errno::ERESTART)?;
    if d.mm.log.is_enabled() {
        return Err(Errno::EXDEV);
    }
    Ok(lock)
}

/// Does `f` while all vCPUs of `d` are held still: one at a time, and not while the domain is destroyed.
///
/// It is not paused for that: what waits until a paused domain is to run again would have to be done here, before it
/// goes on.
fn while_held(d: &Domain, f: impl FnOnce(&AllHeld<'_>, &mut Place) -> Outcome) -> Outcome {
    // All of them at once. If another call lets them go meanwhile, those that are held stay.
    d.vcpus().for_each(|v| sched::halt(v, stop::LOG));
    let result = sched::hold_all(d).and_then(|held| {
        // A domain without vCPUs has a log, too.
        f(&held, &mut d.mm.lock_log())
    });
    d.vcpus().for_each(|v| sched::start(v, stop::LOG));
    result
}

fn enable(d: &Domain, held: &AllHeld<'_>, place: &mut Place) -> Outcome {
    if d.is_dying() {
        return Err(Errno::EINVAL);
    }
    if d.mm.log.is_enabled() {
        return Err(Errno::EBUSY);
    }
    // What a snapshot writes on the way back is not logged. It stops each vCPU before it holds them, and looks for a
    // log when it has.
    let is_free = |v: &Held<'_>| v.stop.load(Ordering::Acquire) & stop::SNAPSHOT == 0;
    let free = held.try_each(|v| if is_free(v) { Ok(()) } else { Err(Errno::EBUSY) });
    // What an earlier execution has made goes with any error.
    let result = free.and_then(|()| go_on_enabling(d, held, place));
    if result.is_err_and(|errno| errno != Errno::ERESTART) {
        disable(d, held, place);
    }
    result.map(|()| Done::Return(0))
}

/// Makes caches, and then the log. vCPUs that have a cache may run on it before there is a log: when they are loaded
/// again it is empty.
/// ERESTART: to be called again.
fn go_on_enabling(d: &Domain, held: &AllHeld<'_>, place: &mut Place) -> Result<(), Errno> {
    // Devices write without a fault. Whoever gives it a part of one looks whether it is logged, under the lock that is
    // held here.
    if d.io.has_io() || passthrough::nr_functions(d) != 0 {
        return Err(Errno::EXDEV);
    }
    held.try_each(vtlb::enable)?;
    // From here on the lock keeps others from being made, which would run without a cache.
    let allowance = &this_cpu().allowance;
    if allowance.is_used_up() || !held.are_all() {
        return Err(Errno::ERESTART);
    }
    let mut making = match place.making.take() {
        Some(begun) => begun,
        None => {
            let pfns = d.maximum_pfn().saturating_add(1).max(d.mm.max_pages());
            Making::begin(pfns, frames::grow_tables)?
        }
    };
    loop {
        allowance.spend(PAGE);
        match making.go_on() {
            Ok(log) => return d.mm.log.enable(log),
            Err(rest) if allowance.is_used_up() => {
                place.making = Some(rest);
                return Err(Errno::ERESTART);
            }
            Err(rest) => making = rest,
        }
    }
}

/// Stops logging.
fn disable(d: &Domain, held: &AllHeld<'_>, place: &mut Place) {
    *place = Place::new();
    held.each(vtlb::disable);
    d.mm.log.disable();
}

/// Copies the log out, and clears it if that is what is asked for.
fn read(r: &mut Request, d: &Domain, request: &mut ShadowOp, place: &mut Place) -> Outcome {
    if !d.mm.log.is_enabled() {
        return Err(Errno::EINVAL);
    }
    let clear = request.op == op::SHADOW_OP_CLEAN;
    let reading = Reading { clear, target: request.dirty_bitmap, pages: request.pages };
    let target = GuestPtr::<u64>::new(request.dirty_bitmap);
    let bytes = GuestPtr::<u8>::new(request.dirty_bitmap);
    let mut next = place.begin(reading)?;
    if next == 0 {
        mark_shared(d);
    }
    let log = d.mm.log.get();
    // Behind its end nothing is noted. Who wants to have it in memory is told so.
    let pages = if target.is_null() { request.pages.min(log.pfns()) } else { request.pages };
    while next * 64 < pages {
        let word = log.read(next, clear);
        let bits = (pages - next * 64).min(64);
        if !target.is_null() {
            let written = if bits == 64 {
                target.at(next).and_then(|t| t.write(&word))
            } else {
                let raw = word.to_le_bytes();
                bytes.at(next * 8).and_then(|t| t.write_slice(&raw[..bits.div_ceil(8) as usize]))
            };
            if let Err(errno) = written {
                log.put_back(next, word);
                return Err(errno);
            }
        }
        next += 1;
        if next.is_multiple_of(STRIDE) && next * 64 < pages && r.cx.preempt_pending() {
            place.preempt(reading, next);
            return Ok(Done::Continue);
        }
    }
    let counts = if clear { log.take_counts() } else { log.counts() };
    (request.fault_count, request.dirty_count) = (counts.faults, counts.dirty);
    r.answer(request)
}

/// Notes the pages of `d` that somebody may write any time without being noticed.
fn mark_shared(d: &Domain) {
    for v in d.vcpus() {
        let frame = v.info_frame.load(Ordering::Acquire);
        if frame != !0 {
            d.mm.log.mark(Mfn::new(frame));
        }
    }
    d.events.lock().for_each_page(|page| d.mm.log.mark(page.mfn()));
    d.grants.table().for_each_written(|frame| d.mm.log.mark(Mfn::new(frame)));
}
