//! Making domains, describing them, and taking them apart.

use super::{Request, OK};
use crate::domain::memory::{claims, log_dirty};
use crate::domain::vcpu::stop;
use crate::domain::{self, life, passthrough, snapshot, Domain, DOMAIN_LIST_LOCK, MAX_VCPUS, RUNNING};
use crate::hypercall::{Done, Outcome};
use crate::pv::vtlb;
use crate::sched::Held;
use crate::{iommu, sched};
use alloc::boxed::Box;
use core::sync::atomic::Ordering;
use hv_core::dirty_log::Place;
use hv_core::domain_info::vcpu_flags;
use xen_abi::domctl as op;
use xen_abi::errno::Errno;
use xen_abi::layout::DOMID_FIRST_RESERVED;

/// Creation flags that mean something for a PV domain here.
const KNOWN_FLAGS: u32 = op::CDF_IOMMU;

/// Makes a domain: paused, without vCPUs and memory. Domain 0 or a reserved number as id asks for any free one, which
/// is written back. Errors: EINVAL for flags and sizes that are not supported; EEXIST for an id in use; ENOMEM.
pub(super) fn create(r: &mut Request) -> Outcome {
    let config: op::CreateDomain = r.read()?;
    let is_pv = config.flags & (op::CDF_HVM | op::CDF_HAP) == 0;
    if !is_pv || config.flags & !KNOWN_FLAGS != 0 || config.arch.emulation_flags != 0 {
        return Err(Errno::EINVAL);
    }
    if config.max_vcpus == 0 || config.max_vcpus > MAX_VCPUS || config.grant_opts & op::GRANT_VERSION_MASK == 0 {
        return Err(Errno::EINVAL);
    }
    let wants_devices = config.flags & op::CDF_IOMMU != 0;
    if wants_devices && !passthrough::is_possible() {
        return Err(Errno::EINVAL);
    }
    let _list = DOMAIN_LIST_LOCK.lock();
    let id = match r.head.domain {
        0 | DOMID_FIRST_RESERVED.. => domain::next_free_id().ok_or(Errno::ENOMEM)?,
        wanted if domain::find(wanted).is_some() => return Err(Errno::EEXIST),
        wanted => wanted,
    };
    let d = Domain::new(id, config.max_vcpus, false).ok_or(Errno::ENOMEM)?;
    if wants_devices {
        iommu::prepare(&d.dma).ok_or(Errno::ENOMEM)?;
    }
    d.may_own_devices.store(wants_devices, Ordering::Release);
    d.set_handle(config.handle);
    d.events.set_max_ports(config.max_evtchn_port);
    d.grants.set_limits(
        u32::try_from(config.max_grant_frames).unwrap_or(xen_abi::grant::DEFAULT_MAX_GRANT_FRAMES),
        u32::try_from(config.max_maptrack_frames).unwrap_or(xen_abi::grant::DEFAULT_MAX_MAPTRACK_FRAMES),
    );
    life::pause(&d);
    domain::insert(d);
    r.head.domain = id;
    r.at.write(&r.head)?;
    OK
}

/// Describes the first domain whose id is not below the one asked for. ESRCH: there is none.
pub(super) fn info(r: &mut Request) -> Outcome {
    let d = domain::find_from(r.head.domain).ok_or(Errno::ESRCH)?;
    r.head.domain = d.id;
    r.at.write(&r.head)?;
    r.answer(&describe(&d))
}

/// What the tools are told about a domain.
pub(crate) fn describe(d: &Domain) -> op::GetDomainInfo {
    let mut online = 0;
    let mut cpu_time = 0;
    let (mut running, mut blocked) = (false, true);
    for v in d.vcpus() {
        let why = v.stop.load(Ordering::Relaxed);
        if why & stop::DOWN == 0 {
            online += 1;
            running |= v.loaded.load(Ordering::Relaxed);
            blocked &= why & (stop::BLOCKED | stop::POLLING) != 0;
        }
        cpu_time += sched::with(|s, now| s.run_time(v.sched_id, now));
    }
    let mut flags = vcpu_flags(online, running, blocked);
    if d.is_paused() {
        flags |= op::DOMINF_PAUSED;
    }
    let code = d.shutdown_code.load(Ordering::Acquire);
    if code != RUNNING {
        flags |= op::DOMINF_SHUTDOWN | (code & 0xff) << op::DOMINF_SHUTDOWN_SHIFT;
    }
    if d.is_dead() {
        flags |= op::DOMINF_DYING;
    }
    let last = d.vcpus().map(|v| v.id).max();
    op::GetDomainInfo {
        domain: d.id,
        flags,
        tot_pages: d.mm.tot_pages(),
        max_pages: d.mm.max_pages(),
        outstanding_pages: d.mm.claim().frames(),
        shared_info_frame: d.shared_info.raw(),
        cpu_time,
        nr_online_vcpus: online,
        max_vcpu_id: last.unwrap_or(op::INVALID_MAX_VCPU_ID),
        handle: d.handle(),
        gpaddr_bits: 64,
        ..op::GetDomainInfo::default()
    }
}

/// Writes the stubs for hypercalls into a page of the domain's, for kernels that have no note that says where. EACCES
/// for a page that it cannot write.
pub(super) fn hypercall_init(r: &Request) -> Outcome {
    let d = r.target()?;
    let mfn = x86::Mfn::new(r.read::<op::HypercallInit>()?.gmfn);
    let page = d.mm.take_writable(mfn).ok_or(Errno::EACCES)?;
    // SAFETY: a whole page in the direct map that the reference just taken keeps writable.
    unsafe { core::ptr::copy_nonoverlapping(hypercall_page().as_ptr(), page, x86::PAGE_SIZE) };
    if log_dirty::any() {
        log_dirty::mark(mfn);
    }
    d.mm.drop_writable(mfn);
    OK
}

/// The page: 32 bytes for each number. `push %rcx; push %r11; mov $number, %eax; syscall; pop %r11; pop %rcx; ret`;
/// iret does not come back. Source: public/arch-x86/xen-x86_64.h.
fn hypercall_page() -> Box<[u8; x86::PAGE_SIZE]> {
    const STUB: usize = 32;
    const IRET: u8 = 23;
    let mut page = Box::new([0xcc; x86::PAGE_SIZE]);
    for (number, stub) in (0u8..).zip(page.chunks_exact_mut(STUB)) {
        if number == IRET {
            // push %rcx; push %r11; push %rax; mov $23, %eax; syscall
            stub[..12].copy_from_slice(&[0x51, 0x41, 0x53, 0x50, 0xb8, number, 0, 0, 0, 0x0f, 0x05, 0xcc]);
        } else {
            stub[..14].copy_from_slice(&[0x51, 0x41, 0x53, 0xb8, number, 0, 0, 0, 0x0f, 0x05, 0x41, 0x5b, 0x59, 0xc3]);
        }
    }
    page
}

/// Destroys a domain. Preemptible: executed again until done. What others still map of its memory stays until they let
/// go; the domain is a zombie meanwhile.
pub(super) fn destroy(r: &mut Request) -> Outcome {
    let d = r.other()?;
    life::shutdown_for_good(&d);
    // Nobody else changes them meanwhile, another tool that destroys the same domain included.
    let held = sched::hold_all(&d)?;
    {
        // It is not logged again, nor goes on to be.
        let mut place = d.mm.lock_log();
        *place = Place::new();
        held.each(vtlb::disable);
        // It is gone for good: nothing is logged any more.
        d.mm.log.disable();
    }
    claims::forget(&d.mm);
    snapshot::forget_domain(&d)?;
    crate::domain::event::forget_virq_handler(&d);
    // Before the channels that it serves, and before its ports.
    crate::twin::net::forget_domain(&d)?;
    crate::channel::forget_domain(&d)?;
    let preempt = || r.cx.preempt_pending();
    // The tools may be opening one just now.
    d.events.lock().close_for_good();
    if !crate::domain::event::reset(&d, crate::channel::lost_port, preempt)? {
        return Ok(Done::Continue);
    }
    // Before any frame is given back: its devices may still be writing.
    passthrough::release_domain(&d)?;
    iommu::release(&d.dma)?;
    crate::irq::guest::release_domain(&d);
    crate::twin::forget_domain(&d)?;
    held.try_each(release_vcpu)?;
    d.mm.relinquish()?;
    // Behind its page tables: a granter that sees its use end may have the frame be anything at once.
    crate::domain::grant::release(&d)?;
    life::died(&d);
    OK
}

fn release_vcpu(v: &Held<'_>) -> Result<(), Errno> {
    crate::pv::address_space::drop_context(v)?;
    v.forget_info();
    // Nothing of it is to come. Its place with the scheduler is its own until the domain is freed.
    sched::timers::disarm_all(v);
    Ok(())
}
