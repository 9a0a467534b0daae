//! `domctl`: the control domain's operations on other domains.
//!
//! A request is 144 bytes: command, interface version, domain, and a payload that the command defines. It is read once;
//! commands that answer write their payload back.

mod cpu_policy;
mod device;
mod extended;
mod lifecycle;
mod pages;
mod permission;
mod request;
mod shadow;
mod vcpus;

pub(crate) use lifecycle::describe;
use request::Request;

use super::{bitmap, Caller, Done, GuestPtr, Outcome, OK};
use crate::domain::{life, watch};
use crate::guest_debug;
use crate::mem::guest_ptr::plain;
use crate::pv::time;
use core::sync::atomic::Ordering;
use xen_abi::domctl as op;
use xen_abi::errno::Errno;

plain!(
    op::Domctl,
    op::CpuPolicy,
    op::CreateDomain,
    op::GetDomainInfo,
    op::VcpuAffinity,
    op::NodeAffinity,
    op::MaxMem,
    op::VcpuContext,
    op::GetVcpuInfo,
    op::MaxVcpus,
    op::SchedulerOp,
    op::SetDomainHandle,
    op::IrqPermission,
    op::IomemPermission,
    op::IoportPermission,
    op::AddressSize,
    op::AssignDevice,
    op::GetDeviceGroup,
    op::TscInfo,
    op::PagingMempool,
    op::ShadowOp,
    op::GetPageFrameInfo3,
    op::ExtVcpuContext,
    op::VcpuExtState,
    op::VcpuMsrs,
    op::VcpuMsr,
    op::HypercallInit,
    op::SetVirqHandler,
    op::SetTimeOffset,
    op::SendTrigger,
);

/// Does the command put objects on the hypervisor's heap? What ends or describes a domain works without memory.
fn makes_objects(cmd: u32) -> bool {
    matches!(
        cmd,
        op::CREATEDOMAIN
            | op::MAX_VCPUS
            | op::SETVCPUCONTEXT
            | op::GETVCPUCONTEXT
            | op::GET_EXT_VCPUCONTEXT
            | op::SET_EXT_VCPUCONTEXT
            | op::GETVCPUEXTSTATE
            | op::SETVCPUEXTSTATE
            | op::GET_VCPU_MSRS
            | op::SET_VCPU_MSRS
            | op::SHADOW_OP
            | op::HYPERCALL_INIT
            | op::ASSIGN_DEVICE
            | op::DEASSIGN_DEVICE
            | op::GET_DEVICE_GROUP
    )
}

/// Operations on domains, for the control domain. Errors: EPERM for others; EACCES for another interface version;
/// EFAULT; ESRCH for a domain that does not exist; ENOMEM; EINVAL for what a domain may not do to itself; ENOSYS for a
/// command that is not served; what each command adds. Source: public/domctl.h, interface version 0x15.
///
/// | command | what it adds |
/// |---|---|
/// | createdomain | EINVAL for flags and sizes that are not supported, EEXIST, ENOMEM |
/// | max_vcpus | EINVAL for another number than at creation and for a dying domain, EBUSY while writes are logged, ENOMEM |
/// | setvcpucontext, getvcpucontext | ENOENT, EINVAL for a context that is not fit and for a dying domain, EBUSY for setting one while a snapshot is taken or gone back to (and if it could not be), ENODATA for a vCPU without one |
/// | getvcpuinfo | ENOENT |
/// | setvcpuaffinity, getvcpuaffinity | ENOENT, EINVAL for no CPU that is up, EBUSY during a pin override; soft affinity is noted only |
/// | scheduler_op | EINVAL for another scheduler than credit2 and for single vCPUs; weight 0 and cap 65535 change nothing |
/// | shadow_op | EINVAL for anything but logging of writes, EBUSY for switching it on twice and for a second reading while one is under way, EXDEV for a domain with devices, ENOMEM |
/// | getpageframeinfo3 | E2BIG for more than 1024 frames |
/// | set_ext_vcpucontext, get_ext_vcpucontext | ENOENT, EINVAL, EBUSY as for a context |
/// | setvcpuextstate, getvcpuextstate | ENOENT, EINVAL for another size or components that the domain may not have, EOPNOTSUPP for the compact form, EBUSY as for a context |
/// | set_vcpu_msrs, get_vcpu_msrs | ENOENT, EINVAL, E2BIG for more than 32, ENOBUFS, EBUSY as for a context |
/// | settscinfo | EOPNOTSUPP for modes that emulate |
/// | set_address_size | EINVAL for anything but 64 |
/// | hypercall_init | EACCES for a page that the domain cannot write |
/// | set_virq_handler | EINVAL for a virtual interrupt that is not the tools' |
/// | sendtrigger | ENOENT, EINVAL for anything but an NMI |
/// | set_cpu_policy, get_cpu_policy | E2BIG, ERANGE, EINVAL; ENOBUFS |
/// | irq, iomem, ioport_permission | EINVAL, EPERM for what the caller has not itself (to take it away, too), ENOMEM, EXDEV for permitting something to a domain whose writes are logged |
/// | setdebugging, subscribe, memory_mapping, ioport_mapping, set_target, cacheflush, setvnumainfo, paging_mempool_size | EOPNOTSUPP |
pub fn call(cx: &mut Caller, at: GuestPtr<op::Domctl>) -> Outcome {
    cx.require_privilege()?;
    let head = at.read()?;
    if head.interface_version != op::XEN_DOMCTL_INTERFACE_VERSION {
        return Err(Errno::EACCES);
    }
    if makes_objects(head.cmd) && !crate::mem::frames::has_headroom() {
        return Err(Errno::ENOMEM);
    }
    let mut r = Request { cx, at, head };
    match head.cmd {
        op::CREATEDOMAIN => lifecycle::create(&mut r),
        op::DESTROYDOMAIN => lifecycle::destroy(&mut r),
        op::PAUSEDOMAIN => {
            let d = r.other()?;
            life::pause(&d);
            // What it had in its registers is in its memory when this returns.
            d.vcpus().for_each(crate::sched::wait_asleep);
            watch::tell_of_pause(&d);
            OK
        }
        op::UNPAUSEDOMAIN => life::unpause(&*r.other()?).map(|()| Done::Return(0)),
        op::RESUMEDOMAIN => {
            life::resume(&*r.other()?);
            OK
        }
        op::GETDOMAININFO => lifecycle::info(&mut r),
        op::SETDOMAINHANDLE => {
            r.target()?.set_handle(r.read::<op::SetDomainHandle>()?.handle);
            OK
        }
        op::MAX_MEM => {
            let kib = r.read::<op::MaxMem>()?.max_memkb;
            r.target()?.mm.set_max_pages(kib / 4);
            OK
        }
        op::MAX_VCPUS => vcpus::set_max(&r),
        op::SETVCPUCONTEXT => vcpus::set_context(&r),
        op::GETVCPUCONTEXT => vcpus::get_context(&r),
        op::GETVCPUINFO => vcpus::info(&r),
        op::SETVCPUAFFINITY | op::GETVCPUAFFINITY => vcpus::affinity(&r, head.cmd == op::SETVCPUAFFINITY),
        op::SCHEDULER_OP => vcpus::scheduler(&r),
        // One node: every affinity to nodes is the same.
        op::SETNODEAFFINITY => r.target().map(|_| Done::Return(0)),
        op::SET_ADDRESS_SIZE => match r.read::<op::AddressSize>()?.size {
            64 => r.target().map(|_| Done::Return(0)),
            _ => Err(Errno::EINVAL),
        },
        op::GET_ADDRESS_SIZE => {
            r.target()?;
            r.answer(&op::AddressSize { size: 64 })
        }
        op::GETNODEAFFINITY => {
            r.target()?;
            bitmap::write(&r.read::<op::NodeAffinity>()?.nodemap, 1)?;
            OK
        }
        op::SETTSCINFO => {
            let d = r.other()?;
            // Guests always use the TSC as it is: default (0) and native (2).
            let info: op::TscInfo = r.read()?;
            match info.tsc_mode {
                TSC_DEFAULT | TSC_NATIVE => {
                    d.tsc_mode.store(info.tsc_mode, Ordering::Relaxed);
                    // The tools hand on what they got where it was before, and nobody else counts.
                    d.tsc_incarnation.store(info.incarnation.wrapping_add(1), Ordering::Relaxed);
                    OK
                }
                _ => Err(Errno::EOPNOTSUPP),
            }
        }
        op::GETTSCINFO => {
            let d = r.target()?;
            let khz = u32::try_from(crate::arch::tsc::frequencies().tsc_hz / 1000).unwrap_or(u32::MAX);
            r.answer(&op::TscInfo {
                tsc_mode: d.tsc_mode.load(Ordering::Relaxed),
                gtsc_khz: khz,
                incarnation: d.tsc_incarnation.load(Ordering::Relaxed),
                pad: 0,
                elapsed_nsec: 0,
            })
        }
        op::SHADOW_OP => shadow::call(&mut r),
        op::GETPAGEFRAMEINFO3 => pages::kinds(&r),
        op::GET_EXT_VCPUCONTEXT => extended::get_context(&r),
        op::SET_EXT_VCPUCONTEXT => extended::set_context(&r),
        op::GETVCPUEXTSTATE => extended::get_state(&r),
        op::SETVCPUEXTSTATE => extended::set_state(&r),
        op::GET_VCPU_MSRS => extended::get_msrs(&r),
        op::SET_VCPU_MSRS => extended::set_msrs(&r),
        op::HYPERCALL_INIT => lifecycle::hypercall_init(&r),
        op::SET_VIRQ_HANDLER => {
            crate::domain::event::set_virq_handler(r.target()?, r.read::<op::SetVirqHandler>()?.virq)?;
            OK
        }
        op::SENDTRIGGER => vcpus::trigger(&r),
        op::SETTIMEOFFSET => {
            let d = r.target()?;
            d.time_offset_s.store(r.read::<op::SetTimeOffset>()?.time_offset_seconds, Ordering::Relaxed);
            time::update_wall_clock(&d);
            OK
        }
        op::IRQ_PERMISSION => permission::irq(&r),
        op::IOMEM_PERMISSION => permission::iomem(&r),
        op::IOPORT_PERMISSION => permission::ioport(&r),
        op::ASSIGN_DEVICE => device::assign(&r),
        op::TEST_ASSIGN_DEVICE => device::test(&r),
        op::DEASSIGN_DEVICE => device::deassign(&r),
        op::GET_DEVICE_GROUP => device::group(&r),
        op::SET_CPU_POLICY => cpu_policy::set(&r),
        op::GET_CPU_POLICY => cpu_policy::get(&r),
        op::GET_PAGING_MEMPOOL_SIZE | op::SET_PAGING_MEMPOOL_SIZE => Err(Errno::EOPNOTSUPP),
        // Kinds of guests, of memory and of supervision that there are not: emulated hardware, translated memory,
        // debuggers and monitors outside the guest.
        op::SETDEBUGGING
        | op::SUBSCRIBE
        | op::MEMORY_MAPPING
        | op::IOPORT_MAPPING
        | op::SET_TARGET
        | op::CACHEFLUSH
        | op::SETVNUMAINFO => {
            r.target()?;
            Err(Errno::EOPNOTSUPP)
        }
        cmd => {
            guest_debug!("d{}: domctl {cmd} is not served", r.cx.domain().id);
            Err(Errno::ENOSYS)
        }
    }
}

/// The guest's TSC is whatever suits it best, or that of the machine: the same here.
const TSC_DEFAULT: u32 = 0;
const TSC_NATIVE: u32 = 2;
