//! vCPUs of other domains: number, context, affinity, weight.

use super::{shadow, Request, OK};
use crate::cpu::percpu;
use crate::domain::life;
use crate::domain::vcpu::{stop, Vcpu};
use crate::domain::Domain;
use crate::hypercall::{GuestPtr, Outcome};
use crate::mem::frames;
use crate::pv::time;
use crate::sched::{self, Held};
use core::sync::atomic::Ordering;
use hv_core::sched::{DEFAULT_WEIGHT, MAX_PCPUS};
use xen_abi::domctl as op;
use xen_abi::errno::Errno;
use xen_abi::trap::{VcpuGuestContext, VGCF_ONLINE};

/// Makes the vCPUs that the domain was created for. EINVAL for another number, and for a dying domain; EBUSY if its
/// writes are logged; ENOMEM; ERESTART.
pub(super) fn set_max(r: &Request) -> Outcome {
    let d = r.other()?;
    let max = r.read::<op::MaxVcpus>()?.max;
    if max != d.max_vcpus() {
        return Err(Errno::EINVAL);
    }
    // With a log they would run without a cache. It is not switched on meanwhile, either.
    let is_logged = |why| if why == Errno::EXDEV { Errno::EBUSY } else { why };
    let _not_logged = shadow::keep_off(&d).map_err(is_logged)?;
    if d.is_dying() {
        return Err(Errno::EINVAL);
    }
    for id in 0..max {
        if d.vcpu(id).is_none() {
            // Many vCPUs are more than the request was admitted for. Those that were made stay; it can be asked again.
            if !frames::has_headroom() {
                return Err(Errno::ENOMEM);
            }
            life::add_vcpu(&d, id).ok_or(Errno::ENOMEM)?;
        }
    }
    OK
}

/// vCPU `id` of `d`, held still, so that its state is changed. ENOENT if there is none; EBUSY while the domain is noted
/// or on its way back, which take several executions and count on what they have left, and if it could not go all the
/// way; ERESTART.
pub(super) fn hold_to_change(d: &Domain, id: u32) -> Result<Held<'_>, Errno> {
    let v = sched::hold(d.vcpu(id).ok_or(Errno::ENOENT)?)?;
    // A snapshot stops it before it holds it, and waits for this one.
    if v.stop.load(Ordering::Acquire) & stop::SNAPSHOT != 0 {
        return Err(Errno::EBUSY);
    }
    Ok(v)
}

/// Loads a vCPU's state, while it is held still. A null pointer resets the vCPU. Errors: EINVAL for a bad context and
/// for a dying domain; EBUSY while a snapshot of the domain is taken or gone back to; ENOENT.
pub(super) fn set_context(r: &Request) -> Outcome {
    let d = r.other()?;
    let request: op::VcpuContext = r.read()?;
    let v = hold_to_change(&d, request.vcpu)?;
    if d.is_dying() {
        // What it refers to is being dropped, or was.
        return Err(Errno::EINVAL);
    }
    change_context(&d, &v, &request)
}

fn change_context(d: &Domain, v: &Held<'_>, request: &op::VcpuContext) -> Outcome {
    if request.ctxt == 0 {
        sched::halt(v, stop::DOWN | stop::NO_CONTEXT);
        // The next context waits for nothing.
        sched::start(v, stop::BLOCKED | stop::POLLING);
        crate::pv::address_space::drop_context(v)?;
        v.fpu.reset();
        v.state_changed.store(true, Ordering::Release);
        return OK;
    }
    let context = GuestPtr::<VcpuGuestContext>::new(request.ctxt).read()?;
    crate::pv::context::set(v, &context)?;
    // The builder has cleared the shared page since the domain was made.
    time::update_time_info(v);
    if v.id == 0 {
        time::update_wall_clock(d);
    }
    if context.flags & VGCF_ONLINE != 0 {
        sched::start(v, stop::DOWN);
    } else {
        sched::halt(v, stop::DOWN);
    }
    OK
}

/// Reads a vCPU's state, while it is held still. ENODATA if it has none; ENOENT.
pub(super) fn get_context(r: &Request) -> Outcome {
    let d = r.other()?;
    let request: op::VcpuContext = r.read()?;
    let context = {
        let v = sched::hold(d.vcpu(request.vcpu).ok_or(Errno::ENOENT)?)?;
        if !v.has_context() {
            return Err(Errno::ENODATA);
        }
        crate::pv::context::get(&v)
    };
    GuestPtr::<VcpuGuestContext>::new(request.ctxt).write(&*context)?;
    OK
}

/// State and CPU time of a vCPU. ENOENT.
pub(super) fn info(r: &Request) -> Outcome {
    let d = r.target()?;
    let request: op::GetVcpuInfo = r.read()?;
    let v = d.vcpu(request.vcpu).ok_or(Errno::ENOENT)?;
    let why = v.stop.load(Ordering::Relaxed);
    r.answer(&op::GetVcpuInfo {
        vcpu: v.id,
        online: u8::from(why & stop::DOWN == 0),
        blocked: u8::from(why & (stop::BLOCKED | stop::POLLING) != 0),
        running: u8::from(v.loaded.load(Ordering::Relaxed)),
        pad0: 0,
        cpu_time: sched::with(|s, now| s.run_time(v.sched_id, now)),
        cpu: v.processor.load(Ordering::Relaxed),
        pad1: 0,
    })
}

/// Reads a CPU mask of up to `MAX_PCPUS` bits; longer ones are cut.
fn read_mask(map: &op::Bitmap) -> Result<u64, Errno> {
    let bytes = (map.nr_bits.div_ceil(8) as usize).min(MAX_PCPUS / 8);
    let mut raw = [0u8; MAX_PCPUS / 8];
    GuestPtr::<u8>::new(map.bitmap).read_slice(&mut raw[..bytes])?;
    Ok(u64::from_le_bytes(raw))
}

fn write_mask(map: &op::Bitmap, mask: u64) -> Result<(), Errno> {
    if map.bitmap == 0 || map.nr_bits == 0 {
        return Ok(());
    }
    let bytes = map.nr_bits.div_ceil(8) as usize;
    let raw = mask.to_le_bytes();
    for i in 0..bytes.min(1024) {
        GuestPtr::<u8>::new(map.bitmap).at(i as u64)?.write(raw.get(i).unwrap_or(&0))?;
    }
    Ok(())
}

/// Sets or reads on which CPUs a vCPU may run (hard) and would best run (soft; noted, and no more). Setting answers
/// with what is in effect. EINVAL for a mask without a CPU that is up.
pub(super) fn affinity(r: &Request, set: bool) -> Outcome {
    let d = r.target()?;
    let request: op::VcpuAffinity = r.read()?;
    let v = d.vcpu(request.vcpu).ok_or(Errno::ENOENT)?;
    if set && request.flags & op::VCPUAFFINITY_HARD != 0 {
        let mask = read_mask(&request.cpumap_hard)?;
        if mask & percpu::online_mask() == 0 {
            return Err(Errno::EINVAL);
        }
        if v.pinned.load(Ordering::Relaxed) && request.flags & op::VCPUAFFINITY_FORCE == 0 {
            return Err(Errno::EBUSY);
        }
        v.pinned.store(false, Ordering::Relaxed);
        v.affinity.store(mask, Ordering::Relaxed);
        if let Some(cpu) = sched::with(|s, now| s.set_affinity(v.sched_id, mask, now)) {
            sched::kick(cpu);
        }
    }
    if set && request.flags & op::VCPUAFFINITY_SOFT != 0 {
        v.soft_affinity.store(read_mask(&request.cpumap_soft)?, Ordering::Relaxed);
    }
    let (mut hard, mut soft) = (v.affinity.load(Ordering::Relaxed), v.soft_affinity.load(Ordering::Relaxed));
    if set {
        hard &= percpu::online_mask();
        soft &= hard;
    }
    if request.flags & op::VCPUAFFINITY_HARD != 0 {
        write_mask(&request.cpumap_hard, hard)?;
    }
    if request.flags & op::VCPUAFFINITY_SOFT != 0 {
        write_mask(&request.cpumap_soft, soft)?;
    }
    OK
}

/// Pokes a vCPU from outside: an NMI. EINVAL for other triggers, which only emulated machines have; ENOENT.
pub(super) fn trigger(r: &Request) -> Outcome {
    const NMI: u32 = 0;
    let d = r.target()?;
    let request: op::SendTrigger = r.read()?;
    let v = d.vcpu(request.vcpu).ok_or(Errno::ENOENT)?;
    if request.trigger != NMI {
        return Err(Errno::EINVAL);
    }
    if !v.nmi_pending.swap(true, Ordering::AcqRel) {
        sched::notify(v);
    }
    OK
}

/// Weight and cap of a domain: reads (cmd 1) or sets (cmd 0) them; weight 0 and cap 65535 leave them as they are.
/// EINVAL for another scheduler's parameters, and for those of single vCPUs, which there are not.
pub(super) fn scheduler(r: &Request) -> Outcome {
    let d = r.target()?;
    let mut request: op::SchedulerOp = r.read()?;
    if request.sched_id != op::XEN_SCHEDULER_CREDIT2 {
        return Err(Errno::EINVAL);
    }
    match request.cmd {
        op::SCHEDOP_PUTINFO => {
            if request.cap != KEEP_CAP {
                d.cap.store(request.cap.into(), Ordering::Relaxed);
                if let Some(first) = d.vcpu(0) {
                    sched::with(|s, now| s.set_cap(first.sched_id, request.cap.into(), now));
                    d.vcpus().for_each(sched::look_again);
                }
            }
            if request.weight != 0 {
                d.weight.store(request.weight.into(), Ordering::Relaxed);
                d.vcpus().for_each(|v| apply_weight(v, request.weight.into()));
            }
            OK
        }
        op::SCHEDOP_GETINFO => {
            request.weight = u16::try_from(d.weight.load(Ordering::Relaxed)).unwrap_or(DEFAULT_WEIGHT as u16);
            request.cap = u16::try_from(d.cap.load(Ordering::Relaxed)).unwrap_or(0);
            r.answer(&request)
        }
        op::SCHEDOP_PUTVCPUINFO | op::SCHEDOP_GETVCPUINFO => Err(Errno::EINVAL),
        _ => Err(Errno::ENOSYS),
    }
}

/// As a cap: no change.
const KEEP_CAP: u16 = u16::MAX;

fn apply_weight(v: &Vcpu, weight: u32) {
    sched::with(|s, now| s.set_weight(v.sched_id, weight, now));
}
