//! `sysctl`: what the tools ask about the machine and the hypervisor.

use super::{bitmap, domctl, Caller, GuestPtr, Outcome, OK};
use crate::arch::cpu_policy::policies;
use crate::arch::pci::{self, Sbdf};
use crate::arch::tsc;
use crate::cpu::percpu;
use crate::domain::memory::{claims, limbo};
use crate::domain::{self, passthrough};
use crate::mem::guest_ptr::plain;
use crate::{audit, console, guest_debug, mem, sched};
use alloc::vec::Vec;
use hv_core::conring::ReadRequest;
use hv_core::cpuid::Policy;
use xen_abi::domctl::{Bitmap, CpuidLeaf, GetDomainInfo, MsrEntry, XEN_SCHEDULER_CREDIT2};
use xen_abi::errno::Errno;
use xen_abi::sysctl::*;

plain!(
    Sysctl,
    ReadConsole,
    PhysInfo,
    SchedId,
    GetDomainInfoList,
    AvailHeap,
    CpuTopo,
    CpuTopoInfo,
    MemInfo,
    NumaInfo,
    CpupoolOp,
    SchedulerOp,
    CpuFeatureset,
    CpuPolicy,
    CpuLevellingCaps,
    DebugKeys,
    CpuInfo,
    GetCpuInfo,
    PciTopoInfo,
    GetPmstat,
    CpuidLeaf,
    MsrEntry,
);

/// Most domains described in one call; the tools ask again from the next on.
const MAX_DOMAINS: u32 = 1024;
/// The distance of a node to itself (ACPI SLIT).
const LOCAL_DISTANCE: u32 = 10;

/// Serves the system operation at `arg`. Errors: EPERM unless the caller is the control domain; EACCES for another
/// interface version; ENOSYS for operations that are not served; what each adds. Source: public/sysctl.h.
///
/// | operation | what it adds |
/// |---|---|
/// | debug_keys | E2BIG for more than 256 keys; a key without a meaning is no error |
/// | availheap | EINVAL for another node than 0 |
/// | cpupool_op | ENOENT after the one pool, ESRCH, EOPNOTSUPP for making, changing and destroying pools |
/// | scheduler_op | EINVAL for another scheduler than credit2, another pool, a rate limit that is neither 0 nor 100 to 500000 us |
/// | pcitopoinfo | EINVAL for no list or more than 4096 devices |
/// | get_cpu_featureset, get_cpu_policy | EINVAL, EOPNOTSUPP for emulated machines, ENOBUFS |
/// | get_pmstat, pm_op | ENODEV: frequencies and sleep states are the firmware's; EINVAL for a CPU that is not there |
/// | cpu_hotplug, page_offline_op, coverage_op, livepatch_op | EOPNOTSUPP |
/// | tbuf_op, perfc_op, lockprof_op | ENOSYS |
/// | psr_cmt_op, psr_alloc | ENODEV |
pub fn call(cx: &mut Caller, arg: GuestPtr<Sysctl>) -> Outcome {
    cx.require_privilege()?;
    let Sysctl { cmd, interface_version } = arg.read()?;
    if interface_version != XEN_SYSCTL_INTERFACE_VERSION {
        return Err(Errno::EACCES);
    }
    let payload = GuestPtr::<u8>::new(arg.addr().checked_add(PAYLOAD_OFFSET as u64).ok_or(Errno::EFAULT)?);
    match cmd {
        READCONSOLE => read_console(payload.cast()),
        PHYSINFO => answer(payload, &physinfo()),
        SCHED_ID => answer(payload, &SchedId { sched_id: XEN_SCHEDULER_CREDIT2 }),
        GETDOMAININFOLIST => domain_list(payload.cast()),
        AVAILHEAP => available_heap(payload.cast()),
        CPUTOPOINFO => cpu_topology(payload.cast()),
        NUMAINFO => numa(payload.cast()),
        CPUPOOL_OP => cpupool(payload.cast()),
        SCHEDULER_OP => scheduler(payload.cast()),
        GET_CPU_LEVELLING_CAPS => answer(payload, &CpuLevellingCaps::default()),
        GET_CPU_FEATURESET => featureset(payload.cast()),
        GET_CPU_POLICY => cpu_policy(payload.cast()),
        DEBUG_KEYS => debug_keys(payload.cast()),
        GETCPUINFO => cpu_info(payload.cast()),
        PCITOPOINFO => pci_topology(payload.cast()),
        GET_PMSTAT => pm_statistics(payload.cast()),
        // Frequencies and sleep states are the firmware's business here.
        PM_OP => Err(Errno::ENODEV),
        // CPUs cannot be taken away from the hypervisor, nor frames.
        CPU_HOTPLUG | PAGE_OFFLINE_OP => Err(Errno::EOPNOTSUPP),
        // Built without: tracing, counters, lock profiles, coverage, live patches; and no cache allocation on this kind
        // of CPU.
        TBUF_OP | PERFC_OP | LOCKPROF_OP => Err(Errno::ENOSYS),
        COVERAGE_OP | LIVEPATCH_OP => Err(Errno::EOPNOTSUPP),
        PSR_CMT_OP | PSR_ALLOC => Err(Errno::ENODEV),
        cmd => {
            guest_debug!("sysctl {cmd} is not served");
            Err(Errno::ENOSYS)
        }
    }
}

fn answer<T: super::Plain>(payload: GuestPtr<u8>, value: &T) -> Outcome {
    payload.cast::<T>().write(value)?;
    OK
}

fn read_console(payload: GuestPtr<ReadConsole>) -> Outcome {
    let mut op = payload.read()?;
    let target = GuestPtr::<u8>::new(op.buffer);
    let request = ReadRequest { clear: op.clear != 0, incremental: op.incremental != 0, index: op.index };
    (op.count, op.index) = match console::ring() {
        Some(ring) => {
            let mut copied = 0;
            ring.lock().read(request, op.count, |text| -> Result<(), Errno> {
                target.at(copied)?.write_slice(text)?;
                copied += text.len() as u64;
                Ok(())
            })?
        }
        None => (0, 0),
    };
    payload.write(&op)?;
    OK
}

/// Most keys of one call.
const MAX_KEYS: u32 = 256;

/// Does what each key means. E2BIG for more than 256. EIO: the audit of frames found something wrong.
fn debug_keys(payload: GuestPtr<DebugKeys>) -> Outcome {
    let op = payload.read()?;
    if op.nr_keys > MAX_KEYS {
        return Err(Errno::E2BIG);
    }
    for n in 0..op.nr_keys {
        match GuestPtr::<u8>::new(op.keys).at(n.into())?.read()? {
            audit::KEY => audit::run()?,
            key => crate::debug_keys::handle(key),
        }
    }
    OK
}

/// How long each CPU has been idle.
fn cpu_info(payload: GuestPtr<GetCpuInfo>) -> Outcome {
    let mut op = payload.read()?;
    let cpus = percpu::online_mask().checked_ilog2().unwrap_or(0) + 1;
    op.nr_cpus = op.max_cpus.min(cpus);
    for cpu in 0..op.nr_cpus {
        let idletime = sched::with(|s, now| s.idle_time(cpu as usize, now));
        GuestPtr::<CpuInfo>::new(op.info).at(cpu.into())?.write(&CpuInfo { idletime })?;
    }
    payload.write(&op)?;
    OK
}

/// Most devices of one call.
const MAX_DEVICES: u32 = 4096;

/// The node of each PCI function in a list: there is one. EINVAL for a list that is too long or missing.
fn pci_topology(payload: GuestPtr<PciTopoInfo>) -> Outcome {
    let mut op = payload.read()?;
    if op.devs == 0 || op.nodes == 0 || op.num_devs > MAX_DEVICES {
        return Err(Errno::EINVAL);
    }
    for n in 0..op.num_devs {
        let [segment_low, segment_high, bus, devfn]: [u8; 4] = GuestPtr::new(op.devs).at(n.into())?.read()?;
        let at = Sbdf::new(u16::from_le_bytes([segment_low, segment_high]), bus, devfn);
        let exists = pci::function(at).is_some();
        let node = if exists { 0 } else { INVALID_PCI_NODE };
        GuestPtr::<u32>::new(op.nodes).at(n.into())?.write(&node)?;
    }
    op.num_devs = op.num_devs.min(MAX_DEVICES);
    payload.write(&op)?;
    OK
}

/// There is nothing to be told about frequencies and sleep states. EINVAL for a CPU that is not there.
fn pm_statistics(payload: GuestPtr<GetPmstat>) -> Outcome {
    let op = payload.read()?;
    let exists = percpu::online_mask().checked_shr(op.cpuid).is_some_and(|mask| mask & 1 != 0);
    Err(if exists { Errno::ENODEV } else { Errno::EINVAL })
}

fn physinfo() -> PhysInfo {
    let cpus = percpu::online_count() as u32;
    let features = policies().raw.featureset();
    PhysInfo {
        threads_per_core: 1,
        cores_per_socket: cpus,
        nr_cpus: cpus,
        max_cpu_id: percpu::online_mask().checked_ilog2().unwrap_or(0),
        nr_nodes: 1,
        cpu_khz: u32::try_from(tsc::frequencies().tsc_hz / 1000).unwrap_or(u32::MAX),
        capabilities: PHYSCAP_PV | PHYSCAP_GNTTAB_V1 | if passthrough::is_possible() { PHYSCAP_DIRECTIO } else { 0 },
        outstanding_pages: claims::outstanding(),
        total_pages: mem::frames::total(),
        free_pages: limbo::available_count(),
        max_mfn: mem::frames::end().raw().saturating_sub(1),
        hw_cap: core::array::from_fn(|i| features[i]),
        ..PhysInfo::default()
    }
}

fn domain_list(payload: GuestPtr<GetDomainInfoList>) -> Outcome {
    let mut op = payload.read()?;
    let room = op.max_domains.min(MAX_DOMAINS) as usize;
    let mut found: Vec<GetDomainInfo> = Vec::new();
    let mut has_memory = true;
    domain::for_each(|d| {
        if d.id >= op.first_domain && found.len() < room && has_memory {
            has_memory = found.try_reserve(1).is_ok();
            if has_memory {
                found.push(domctl::describe(d));
            }
        }
    });
    if !has_memory {
        // A list that is too short would say that the others do not exist.
        return Err(Errno::ENOMEM);
    }
    GuestPtr::<GetDomainInfo>::new(op.buffer).write_slice(&found)?;
    op.num_domains = found.len() as u32;
    payload.write(&op)?;
    OK
}

fn available_heap(payload: GuestPtr<AvailHeap>) -> Outcome {
    let mut op = payload.read()?;
    if !matches!(op.node, -1 | 0) {
        return Err(Errno::EINVAL);
    }
    let frames = match op.max_bitwidth {
        0 => limbo::available_count(),
        bits => {
            limbo::drain();
            mem::frames::free_count_below(bits)
        }
    };
    op.avail_bytes = frames << x86::PAGE_SHIFT;
    payload.write(&op)?;
    OK
}

/// Each CPU counts as a core of one socket.
fn cpu_topology(payload: GuestPtr<CpuTopoInfo>) -> Outcome {
    let mut op = payload.read()?;
    let cpus = percpu::online_mask().checked_ilog2().unwrap_or(0) + 1;
    let table = GuestPtr::<CpuTopo>::new(op.cputopo);
    if !table.is_null() {
        op.num_cpus = op.num_cpus.min(cpus);
        for cpu in 0..op.num_cpus {
            let online = percpu::online_mask() >> cpu & 1 != 0;
            let entry = if online {
                CpuTopo { core: cpu, socket: 0, node: 0 }
            } else {
                CpuTopo { core: INVALID_CORE_ID, socket: INVALID_SOCKET_ID, node: INVALID_NODE_ID }
            };
            table.at(cpu.into())?.write(&entry)?;
        }
    } else {
        op.num_cpus = cpus;
    }
    payload.write(&op)?;
    OK
}

fn numa(payload: GuestPtr<NumaInfo>) -> Outcome {
    let mut op = payload.read()?;
    let (memory, distance) = (GuestPtr::<MemInfo>::new(op.meminfo), GuestPtr::<u32>::new(op.distance));
    let asks_only = memory.is_null() && distance.is_null();
    if asks_only || op.num_nodes > 1 {
        op.num_nodes = 1;
    }
    if op.num_nodes == 1 {
        if !memory.is_null() {
            let memsize = mem::frames::total() << x86::PAGE_SHIFT;
            memory.write(&MemInfo { memsize, memfree: limbo::available_count() << x86::PAGE_SHIFT })?;
        }
        if !distance.is_null() {
            distance.write(&LOCAL_DISTANCE)?;
        }
    }
    payload.write(&op)?;
    OK
}

/// There is one pool, number 0, with all CPUs and all domains.
fn cpupool(payload: GuestPtr<CpupoolOp>) -> Outcome {
    let mut op = payload.read()?;
    let cpumap = Bitmap { ..op.cpumap };
    match op.op {
        CPUPOOL_OP_INFO => {
            if op.cpupool_id != 0 && op.cpupool_id != CPUPOOL_PAR_ANY {
                return Err(Errno::ENOENT);
            }
            let mut domains = 0;
            domain::for_each(|_| domains += 1);
            (op.cpupool_id, op.sched_id, op.n_dom) = (0, XEN_SCHEDULER_CREDIT2, domains);
            bitmap::write(&cpumap, percpu::online_mask())?;
        }
        // CPUs in no pool.
        CPUPOOL_OP_FREEINFO => bitmap::write(&cpumap, 0)?,
        CPUPOOL_OP_MOVEDOMAIN if op.cpupool_id == 0 => {
            let id = u16::try_from(op.domid).map_err(|_| Errno::ESRCH)?;
            domain::find(id).ok_or(Errno::ESRCH)?;
        }
        _ => return Err(Errno::EOPNOTSUPP),
    }
    payload.write(&op)?;
    OK
}

/// The rate limit of the one pool: for how long a vCPU that has begun to run is not preempted. 0 or 100 .. 500000 us.
/// EINVAL for others, and for another scheduler's parameters.
fn scheduler(payload: GuestPtr<SchedulerOp>) -> Outcome {
    let mut op = payload.read()?;
    if op.sched_id != XEN_SCHEDULER_CREDIT2 || op.cpupool_id != 0 {
        return Err(Errno::EINVAL);
    }
    match op.cmd {
        SCHEDOP_GETINFO => {
            op.ratelimit_us = u32::try_from(sched::with(|s, _| s.min_run()) / NS_PER_US).unwrap_or(u32::MAX);
        }
        SCHEDOP_PUTINFO if op.ratelimit_us == 0 || RATELIMIT_US.contains(&op.ratelimit_us) => {
            sched::with(|s, _| s.set_min_run(u64::from(op.ratelimit_us) * NS_PER_US));
        }
        _ => return Err(Errno::EINVAL),
    }
    payload.write(&op)?;
    OK
}

const NS_PER_US: u64 = 1000;
/// Rate limits that make sense, as in Xen.
const RATELIMIT_US: core::ops::RangeInclusive<u32> = 100..=500_000;

fn featureset(payload: GuestPtr<CpuFeatureset>) -> Outcome {
    let mut op = payload.read()?;
    let policy = match op.index {
        CPU_FEATURESET_RAW | CPU_FEATURESET_HOST => &policies().raw,
        CPU_FEATURESET_PV => &policies().pv_default,
        CPU_FEATURESET_PV_MAX => &policies().pv_max,
        CPU_FEATURESET_HVM | CPU_FEATURESET_HVM_MAX => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    let words = policy.featureset();
    let target = GuestPtr::<u32>::new(op.features);
    let room = op.nr_features;
    op.nr_features = words.len() as u32;
    if !target.is_null() {
        let n = words.len().min(room as usize);
        target.write_slice(&words[..n])?;
        op.nr_features = n as u32;
        payload.write(&op)?;
        return if n < words.len() { Err(Errno::ENOBUFS) } else { OK };
    }
    payload.write(&op)?;
    OK
}

fn cpu_policy(payload: GuestPtr<CpuPolicy>) -> Outcome {
    let mut op = payload.read()?;
    if op.rsvd != 0 {
        return Err(Errno::EINVAL);
    }
    let policy = match op.index {
        CPU_POLICY_RAW | CPU_POLICY_HOST => &policies().raw,
        CPU_POLICY_PV_MAX => &policies().pv_max,
        CPU_POLICY_PV_DEFAULT => &policies().pv_default,
        CPU_POLICY_HVM_MAX | CPU_POLICY_HVM_DEFAULT => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    (op.nr_leaves, op.nr_msrs) = copy_policy(policy, op.leaves, op.nr_leaves, op.msrs, op.nr_msrs)?;
    payload.write(&op)?;
    OK
}

/// Copies a policy's leaves and MSRs out; a null pointer asks for the number. Errors: ENOBUFS if there is not enough
/// room.
pub fn copy_policy(
    policy: &Policy,
    leaves: u64,
    leaf_room: u32,
    msrs: u64,
    msr_room: u32,
) -> Result<(u32, u32), Errno> {
    let mut nr_leaves = Policy::MAX_LEAVES as u32;
    let target = GuestPtr::<CpuidLeaf>::new(leaves);
    if !target.is_null() {
        nr_leaves = 0;
        for leaf in policy.leaves() {
            if nr_leaves == leaf_room {
                return Err(Errno::ENOBUFS);
            }
            target.at(nr_leaves.into())?.write(&leaf)?;
            nr_leaves += 1;
        }
    }
    let target = GuestPtr::<MsrEntry>::new(msrs);
    if !target.is_null() {
        let entries = policy.msrs();
        if entries.len() > msr_room as usize {
            return Err(Errno::ENOBUFS);
        }
        target.write_slice(&entries)?;
    }
    Ok((nr_leaves, Policy::MAX_MSRS as u32))
}
