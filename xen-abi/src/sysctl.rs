//! `XEN_SYSCTL_*`, interface version 0x15 (public/sysctl.h).
//!
//! A request is [`Sysctl`], 8 bytes, followed by 128 bytes whose meaning depends on `cmd`: one of the other structures
//! here, at offset [`PAYLOAD_OFFSET`]. Guest pointers are plain `u64`; padding is spelled out.
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

use crate::domctl::Bitmap;

/// The version that every request must carry; anything else is `EACCES`.
pub const XEN_SYSCTL_INTERFACE_VERSION: u32 = 0x15;
/// Bytes of a whole request.
pub const SYSCTL_SIZE: usize = 136;
/// Where the payload begins.
pub const PAYLOAD_OFFSET: usize = 8;

pub const READCONSOLE: u32 = 1;
pub const TBUF_OP: u32 = 2;
pub const PHYSINFO: u32 = 3;
pub const SCHED_ID: u32 = 4;
pub const PERFC_OP: u32 = 5;
pub const GETDOMAININFOLIST: u32 = 6;
pub const DEBUG_KEYS: u32 = 7;
pub const GETCPUINFO: u32 = 8;
pub const AVAILHEAP: u32 = 9;
pub const GET_PMSTAT: u32 = 10;
pub const CPU_HOTPLUG: u32 = 11;
pub const PM_OP: u32 = 12;
pub const PAGE_OFFLINE_OP: u32 = 14;
pub const LOCKPROF_OP: u32 = 15;
pub const CPUTOPOINFO: u32 = 16;
pub const NUMAINFO: u32 = 17;
pub const CPUPOOL_OP: u32 = 18;
pub const SCHEDULER_OP: u32 = 19;
pub const COVERAGE_OP: u32 = 20;
pub const PSR_CMT_OP: u32 = 21;
pub const PCITOPOINFO: u32 = 22;
pub const PSR_ALLOC: u32 = 23;
pub const GET_CPU_LEVELLING_CAPS: u32 = 25;
pub const GET_CPU_FEATURESET: u32 = 26;
pub const LIVEPATCH_OP: u32 = 27;
pub const GET_CPU_POLICY: u32 = 29;

/// Head of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sysctl {
    pub cmd: u32,
    pub interface_version: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ReadConsole {
    /// In: empty the ring afterwards?
    pub clear: u8,
    /// In: only what was written since `index`?
    pub incremental: u8,
    pub pad0: u16,
    /// In/out: position for `incremental`.
    pub index: u32,
    pub buffer: u64,
    /// In: size of the buffer. Out: bytes written.
    pub count: u32,
    pub pad1: u32,
}

/// `PhysInfo::capabilities`.
pub const PHYSCAP_HVM: u32 = 1 << 0;
pub const PHYSCAP_PV: u32 = 1 << 1;
pub const PHYSCAP_DIRECTIO: u32 = 1 << 2;
pub const PHYSCAP_HAP: u32 = 1 << 3;
pub const PHYSCAP_SHADOW: u32 = 1 << 4;
pub const PHYSCAP_IOMMU_HAP_PT_SHARE: u32 = 1 << 5;
pub const PHYSCAP_VMTRACE: u32 = 1 << 6;
pub const PHYSCAP_VPMU: u32 = 1 << 7;
pub const PHYSCAP_GNTTAB_V1: u32 = 1 << 8;
pub const PHYSCAP_GNTTAB_V2: u32 = 1 << 9;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysInfo {
    pub threads_per_core: u32,
    pub cores_per_socket: u32,
    pub nr_cpus: u32,
    pub max_cpu_id: u32,
    pub nr_nodes: u32,
    pub max_node_id: u32,
    pub cpu_khz: u32,
    pub capabilities: u32,
    pub arch_capabilities: u32,
    pub pad: u32,
    pub total_pages: u64,
    pub free_pages: u64,
    pub scrub_pages: u64,
    pub outstanding_pages: u64,
    pub max_mfn: u64,
    pub hw_cap: [u32; 8],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedId {
    pub sched_id: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GetDomainInfoList {
    pub first_domain: u16,
    pub pad0: u16,
    pub max_domains: u32,
    /// Guest address of `domctl::GetDomainInfo`s.
    pub buffer: u64,
    pub num_domains: u32,
    pub pad1: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct DebugKeys {
    pub keys: u64,
    pub nr_keys: u32,
    pub pad: u32,
}

/// One element of the array of `GETCPUINFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuInfo {
    /// Nanoseconds.
    pub idletime: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GetCpuInfo {
    pub max_cpus: u32,
    pub pad0: u32,
    /// Guest address of [`CpuInfo`]s.
    pub info: u64,
    pub nr_cpus: u32,
    pub pad1: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AvailHeap {
    pub min_bitwidth: u32,
    pub max_bitwidth: u32,
    pub node: i32,
    pub pad: u32,
    pub avail_bytes: u64,
}

/// One element of the array of `CPUTOPOINFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuTopo {
    pub core: u32,
    pub socket: u32,
    pub node: u32,
}
/// `CpuTopo` fields of a CPU that is not there.
pub const INVALID_CORE_ID: u32 = !0;
pub const INVALID_SOCKET_ID: u32 = !0;
pub const INVALID_NODE_ID: u32 = !0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuTopoInfo {
    pub num_cpus: u32,
    pub pad: u32,
    /// Guest address of [`CpuTopo`]s, or null to ask for the number.
    pub cputopo: u64,
}

/// One element of the array of `NUMAINFO`: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MemInfo {
    pub memsize: u64,
    pub memfree: u64,
}
/// Distance between two nodes of which one is not there.
pub const INVALID_NODE_DIST: u32 = !0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NumaInfo {
    pub num_nodes: u32,
    pub pad: u32,
    /// Guest address of [`MemInfo`]s, or null.
    pub meminfo: u64,
    /// Guest address of `num_nodes` squared `u32`s, or null.
    pub distance: u64,
}

/// `CpupoolOp::op`.
pub const CPUPOOL_OP_CREATE: u32 = 1;
pub const CPUPOOL_OP_DESTROY: u32 = 2;
pub const CPUPOOL_OP_INFO: u32 = 3;
pub const CPUPOOL_OP_ADDCPU: u32 = 4;
pub const CPUPOOL_OP_RMCPU: u32 = 5;
pub const CPUPOOL_OP_MOVEDOMAIN: u32 = 6;
pub const CPUPOOL_OP_FREEINFO: u32 = 7;
/// `CpupoolOp::cpupool_id` of no pool in particular.
pub const CPUPOOL_PAR_ANY: u32 = !0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpupoolOp {
    pub op: u32,
    pub cpupool_id: u32,
    pub sched_id: u32,
    pub domid: u32,
    pub cpu: u32,
    pub n_dom: u32,
    pub cpumap: Bitmap,
}

/// `SchedulerOp::cmd`.
pub const SCHEDOP_PUTINFO: u32 = 0;
pub const SCHEDOP_GETINFO: u32 = 1;

/// `SCHEDULER_OP`: parameters of a scheduler; for credit2 its rate limit in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedulerOp {
    pub cpupool_id: u32,
    pub sched_id: u32,
    pub cmd: u32,
    pub pad: u32,
    pub ratelimit_us: u32,
    pub rest: [u32; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PciTopoInfo {
    pub num_devs: u32,
    pub pad: u32,
    /// Guest address of `physdev_pci_device`s (segment `u16`, bus `u8`, devfn `u8`).
    pub devs: u64,
    /// Guest address of `u32`s.
    pub nodes: u64,
}

/// In the answer to `PCITOPOINFO`: no such device.
pub const INVALID_PCI_NODE: u32 = !1;

/// Head of `GET_PMSTAT`; the rest depends on the type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GetPmstat {
    pub kind: u32,
    pub cpuid: u32,
}

/// `CpuFeatureset::index`.
pub const CPU_FEATURESET_RAW: u32 = 0;
pub const CPU_FEATURESET_HOST: u32 = 1;
pub const CPU_FEATURESET_PV: u32 = 2;
pub const CPU_FEATURESET_HVM: u32 = 3;
pub const CPU_FEATURESET_PV_MAX: u32 = 4;
pub const CPU_FEATURESET_HVM_MAX: u32 = 5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuFeatureset {
    pub index: u32,
    pub nr_features: u32,
    /// Guest address of `u32`s, or null to ask for the number.
    pub features: u64,
}

/// `CpuPolicy::index`.
pub const CPU_POLICY_RAW: u32 = 0;
pub const CPU_POLICY_HOST: u32 = 1;
pub const CPU_POLICY_PV_MAX: u32 = 2;
pub const CPU_POLICY_HVM_MAX: u32 = 3;
pub const CPU_POLICY_PV_DEFAULT: u32 = 4;
pub const CPU_POLICY_HVM_DEFAULT: u32 = 5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuPolicy {
    pub index: u32,
    /// In: room in `leaves`. Out: leaves written, or their number if `leaves` is null.
    pub nr_leaves: u32,
    pub nr_msrs: u32,
    pub rsvd: u32,
    /// Guest address of `domctl::CpuidLeaf`s.
    pub leaves: u64,
    /// Guest address of `domctl::MsrEntry`s.
    pub msrs: u64,
}

/// `GET_CPU_LEVELLING_CAPS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuLevellingCaps {
    pub caps: u32,
}

/// Checked against the header with a C compiler.
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Sysctl>() == PAYLOAD_OFFSET);
    assert!(size_of::<ReadConsole>() == 24);
    assert!(offset_of!(ReadConsole, index) == 4);
    assert!(size_of::<PhysInfo>() == 112);
    assert!(offset_of!(PhysInfo, total_pages) == 40);
    assert!(offset_of!(PhysInfo, hw_cap) == 80);
    assert!(size_of::<GetDomainInfoList>() == 24);
    assert!(offset_of!(GetDomainInfoList, num_domains) == 16);
    assert!(size_of::<GetCpuInfo>() == 24);
    assert!(size_of::<AvailHeap>() == 24);
    assert!(size_of::<CpuTopo>() == 12);
    assert!(size_of::<CpuTopoInfo>() == 16);
    assert!(size_of::<NumaInfo>() == 24);
    assert!(size_of::<CpupoolOp>() == 40);
    assert!(offset_of!(CpupoolOp, cpumap) == 24);
    assert!(size_of::<SchedulerOp>() == 32);
    assert!(offset_of!(SchedulerOp, ratelimit_us) == 16);
    assert!(size_of::<PciTopoInfo>() == 24);
    assert!(size_of::<CpuFeatureset>() == 16);
    assert!(size_of::<CpuPolicy>() == 32);
};
