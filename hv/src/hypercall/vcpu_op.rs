//! `vcpu_op`: bringing vCPUs up and down, their timers and shared records.

use super::sched_op::set_singleshot;
use super::{Caller, Done, GuestPtr, Outcome, OK};
use crate::arch::{acpi, smp};
use crate::domain::vcpu::{stop, Vcpu};
use crate::domain::{event, life};
use crate::mem::copy;
use crate::pv::time;
use crate::sched;
use crate::sched::timers::{self, Kind};
use core::sync::atomic::{AtomicU64, Ordering};
use x86::{Mfn, PAGE_SIZE};
use xen_abi::errno::Errno;
use xen_abi::event::VIRQ_TIMER;
use xen_abi::shared::{vcpu_info, VcpuRunstateInfo, VcpuTimeInfo};
use xen_abi::trap::VcpuGuestContext;
use xen_abi::vcpu as op;

/// VCPUOP_*. Errors: ENOENT for a vCPU that does not exist; EFAULT; EEXIST for initialising one twice; EINVAL for a
/// context that is not fit, for initialising one (from 32 on) that has no `vcpu_info`, for what only the vCPU itself
/// may do, for periods under a millisecond, records in bad places and the ids of a CPU to which no vCPU of the hardware
/// domain is pinned; ENOSYS for unknown commands.
/// Source: public/vcpu.h.
pub fn call(cx: &mut Caller, cmd: u32, id: u32, arg: GuestPtr<u8>) -> Outcome {
    let domain = cx.vcpu.domain();
    let v = domain.vcpu(id).ok_or(Errno::ENOENT)?;
    let is_self = id == cx.vcpu.id;
    match cmd {
        op::VCPUOP_INITIALISE => initialise(v, arg.cast()),
        op::VCPUOP_UP => {
            if !v.has_context() {
                return Err(Errno::EINVAL);
            }
            sched::start(v, stop::DOWN);
            OK
        }
        op::VCPUOP_DOWN => {
            let last = domain.vcpus().all(|o| o.id == id || o.stop.load(Ordering::Relaxed) & stop::DOWN != 0);
            if last {
                // A domain without a running vCPU has powered itself off.
                life::shutdown(domain, xen_abi::sched::SHUTDOWN_POWEROFF);
                return OK;
            }
            sched::halt(v, stop::DOWN);
            OK
        }
        op::VCPUOP_IS_UP => Ok(Done::Return(i64::from(v.stop.load(Ordering::Relaxed) & stop::DOWN == 0))),
        op::VCPUOP_GET_RUNSTATE_INFO => {
            arg.cast().write(&time::runstate(v))?;
            OK
        }
        op::VCPUOP_REGISTER_RUNSTATE_MEMORY_AREA => {
            let area: op::VcpuRegisterMemoryArea = arg.cast().read()?;
            if is_self {
                cx.vcpu.runstate_area.set(area.addr);
                time::update_runstate_area(cx.vcpu);
            } else {
                if area.addr != 0 {
                    GuestPtr::<VcpuRunstateInfo>::new(area.addr).write(&time::runstate(v))?;
                }
                sched::hold(v)?.runstate_area.set(area.addr);
            }
            OK
        }
        op::VCPUOP_SET_PERIODIC_TIMER => {
            let request: op::VcpuSetPeriodicTimer = arg.cast().read()?;
            if request.period_ns < op::MIN_PERIODIC_NS || request.period_ns > i64::MAX as u64 {
                return Err(Errno::EINVAL);
            }
            set_periodic(v, request.period_ns, is_self)
        }
        op::VCPUOP_STOP_PERIODIC_TIMER => set_periodic(v, 0, is_self),
        op::VCPUOP_SET_SINGLESHOT_TIMER => {
            if !is_self {
                return Err(Errno::EINVAL);
            }
            let request: op::VcpuSetSingleshotTimer = arg.cast().read()?;
            set_singleshot(v, request.timeout_abs_ns.max(1));
            OK
        }
        op::VCPUOP_STOP_SINGLESHOT_TIMER => {
            if !is_self {
                return Err(Errno::EINVAL);
            }
            set_singleshot(v, 0);
            OK
        }
        op::VCPUOP_REGISTER_VCPU_INFO => register_info(cx, v, arg.cast().read()?),
        op::VCPUOP_SEND_NMI => {
            if !v.nmi_pending.swap(true, Ordering::AcqRel) {
                sched::notify(v);
            }
            OK
        }
        op::VCPUOP_REGISTER_VCPU_TIME_MEMORY_AREA => {
            let area = arg.cast::<op::VcpuRegisterMemoryArea>().read()?.addr;
            if !x86::addr::is_canonical(area) || !copy::is_guest_range(area, size_of::<VcpuTimeInfo>() as u64) {
                return Err(Errno::EFAULT);
            }
            v.time_area.store(area, Ordering::Relaxed);
            time::update_time_info(v);
            time::update_time_area(v);
            OK
        }
        op::VCPUOP_GET_PHYSID => {
            arg.cast().write(&physical_id(v)?)?;
            OK
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// APIC id (low half) and ACPI id of the CPU on which `v`, of the hardware domain, is pinned. EINVAL for a vCPU that is
/// not, and of another domain. As on Xen it is the CPU of the vCPU's own number: the kernel pins them one to one.
fn physical_id(v: &Vcpu) -> Result<u64, Errno> {
    let is_pinned = v.affinity.load(Ordering::Relaxed).count_ones() == 1;
    if !v.domain().is_hardware || !is_pinned {
        return Err(Errno::EINVAL);
    }
    let apic_id = smp::apic_id(v.id as usize);
    let processors = acpi::tables().madt.as_ref().map_or(&[][..], |madt| &madt.processors);
    let known = processors.iter().find(|p| p.apic_id == apic_id);
    Ok(u64::from(apic_id) | u64::from(known.map_or(u32::MAX, |p| p.acpi_id)) << 32)
}

/// Another vCPU is on no CPU meanwhile: the one that loads it arms the timer.
fn set_periodic(v: &Vcpu, period_ns: u64, is_self: bool) -> Outcome {
    let _held = if is_self { None } else { Some(sched::hold(v)?) };
    v.periodic.set(period_ns, crate::arch::tsc::now_ns().saturating_add(period_ns));
    timers::disarm(v, Kind::Periodic);
    if is_self && timers::resume_periodic(v) {
        event::raise_virq(v, VIRQ_TIMER);
    }
    OK
}

fn initialise(v: &Vcpu, arg: GuestPtr<VcpuGuestContext>) -> Outcome {
    // As on Xen: its kernel could neither mask events nor know of any.
    if v.has_dummy_info() {
        return Err(Errno::EINVAL);
    }
    // On the stack: the heap may be empty, by the guest's own doing.
    let context = arg.read()?;
    if v.has_context() {
        return Err(Errno::EEXIST);
    }
    let v = sched::hold(v)?;
    // Another one may have been quicker.
    if v.has_context() {
        return Err(Errno::EEXIST);
    }
    crate::pv::context::set(&v, &context)?;
    OK
}

/// Moves `vcpu_info` into a page of the guest's. Everything counts as pending afterwards, so that nothing is lost.
fn register_info(cx: &mut Caller, v: &Vcpu, request: op::VcpuRegisterVcpuInfo) -> Outcome {
    let offset = request.offset as usize;
    if !offset.is_multiple_of(8) || offset > PAGE_SIZE - vcpu_info::SIZE {
        return Err(Errno::ENXIO);
    }
    if v.info_frame.load(Ordering::Acquire) != !0 {
        return Err(Errno::EINVAL);
    }
    let _held = if v.id == cx.vcpu.id {
        None
    } else {
        let held = sched::hold(v)?;
        if v.stop.load(Ordering::Acquire) & stop::DOWN == 0 {
            return Err(Errno::EINVAL);
        }
        Some(held)
    };
    let mfn = Mfn::new(request.mfn);
    let page = cx.domain().mm.take_writable(mfn).ok_or(Errno::EINVAL)?;
    if v.info_frame.compare_exchange(!0, mfn.raw(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
        cx.domain().mm.drop_writable(mfn);
        return Err(Errno::EINVAL);
    }
    let target = page.wrapping_add(offset);
    // SAFETY: 64 bytes, 8-byte aligned, inside a frame that `take_writable` holds for the domain until the vCPU is
    // gone. The guest may write there any time, so they are only accessed as atomics or, before anybody knows of them,
    // written.
    unsafe {
        if v.has_dummy_info() {
            core::ptr::write_bytes(target, 0, vcpu_info::SIZE);
            target.add(vcpu_info::UPCALL_MASK).write(1);
        } else {
            // Word by word, as the guest and its event channels may write to both; and it may be in the same frame.
            for at in (0..vcpu_info::SIZE).step_by(8) {
                let word = v.info_word(at).load(Ordering::Relaxed);
                AtomicU64::from_ptr(target.add(at).cast()).store(word, Ordering::Relaxed);
            }
        }
        v.set_info(target);
    }
    time::update_time_info(v);
    time::update_time_area(v);
    v.info_word(vcpu_info::PENDING_SEL).store(!0, Ordering::Release);
    v.set_upcall_pending();
    OK
}
