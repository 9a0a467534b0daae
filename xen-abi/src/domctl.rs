//! `XEN_DOMCTL_*`, interface version 0x15 (public/domctl.h).
//!
//! A request is [`Domctl`], 16 bytes, followed by 128 bytes whose meaning depends on `cmd`: one of the other structures
//! here, read and written back by itself at offset [`PAYLOAD_OFFSET`]. Guest pointers are plain `u64`. All padding is
//! spelled out, so that no byte of the hypervisor's stack ever reaches a guest.
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

/// The version that every request must carry; anything else is `EACCES`.
pub const XEN_DOMCTL_INTERFACE_VERSION: u32 = 0x15;
/// Bytes of a whole request.
pub const DOMCTL_SIZE: usize = 144;
/// Where the payload begins.
pub const PAYLOAD_OFFSET: usize = 16;

pub const CREATEDOMAIN: u32 = 1;
pub const DESTROYDOMAIN: u32 = 2;
pub const PAUSEDOMAIN: u32 = 3;
pub const UNPAUSEDOMAIN: u32 = 4;
pub const GETDOMAININFO: u32 = 5;
pub const SETVCPUAFFINITY: u32 = 9;
pub const SHADOW_OP: u32 = 10;
pub const MAX_MEM: u32 = 11;
pub const SETVCPUCONTEXT: u32 = 12;
pub const GETVCPUCONTEXT: u32 = 13;
pub const GETVCPUINFO: u32 = 14;
pub const MAX_VCPUS: u32 = 15;
pub const SCHEDULER_OP: u32 = 16;
pub const SETDOMAINHANDLE: u32 = 17;
pub const SETDEBUGGING: u32 = 18;
pub const IRQ_PERMISSION: u32 = 19;
pub const IOMEM_PERMISSION: u32 = 20;
pub const IOPORT_PERMISSION: u32 = 21;
pub const HYPERCALL_INIT: u32 = 22;
pub const SETTIMEOFFSET: u32 = 24;
pub const GETVCPUAFFINITY: u32 = 25;
pub const RESUMEDOMAIN: u32 = 27;
pub const SENDTRIGGER: u32 = 28;
pub const SUBSCRIBE: u32 = 29;
pub const SET_ADDRESS_SIZE: u32 = 35;
pub const GET_ADDRESS_SIZE: u32 = 36;
pub const ASSIGN_DEVICE: u32 = 37;
pub const MEMORY_MAPPING: u32 = 39;
pub const IOPORT_MAPPING: u32 = 40;
pub const SET_EXT_VCPUCONTEXT: u32 = 42;
pub const GET_EXT_VCPUCONTEXT: u32 = 43;
pub const TEST_ASSIGN_DEVICE: u32 = 45;
pub const SET_TARGET: u32 = 46;
pub const DEASSIGN_DEVICE: u32 = 47;
pub const GET_DEVICE_GROUP: u32 = 50;
pub const GETTSCINFO: u32 = 59;
pub const SETTSCINFO: u32 = 60;
pub const GETPAGEFRAMEINFO3: u32 = 61;
pub const SETVCPUEXTSTATE: u32 = 62;
pub const GETVCPUEXTSTATE: u32 = 63;
pub const SET_VIRQ_HANDLER: u32 = 66;
pub const SETNODEAFFINITY: u32 = 68;
pub const GETNODEAFFINITY: u32 = 69;
pub const CACHEFLUSH: u32 = 71;
pub const GET_VCPU_MSRS: u32 = 72;
pub const SET_VCPU_MSRS: u32 = 73;
pub const SETVNUMAINFO: u32 = 74;
pub const GET_CPU_POLICY: u32 = 82;
pub const SET_CPU_POLICY: u32 = 83;
pub const GET_PAGING_MEMPOOL_SIZE: u32 = 85;
pub const SET_PAGING_MEMPOOL_SIZE: u32 = 86;

/// Head of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Domctl {
    pub cmd: u32,
    pub interface_version: u32,
    /// In, for `CREATEDOMAIN` and `GETDOMAININFO` also out.
    pub domain: u16,
    pub pad: [u16; 3],
}

/// A sixteen-byte name that the tools choose, usually a UUID.
pub type DomainHandle = [u8; 16];

/// A bitmap in guest memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Bitmap {
    /// Guest address of the bytes, lowest bit first.
    pub bitmap: u64,
    pub nr_bits: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ArchDomainConfig {
    /// Emulated devices; 0 for PV guests.
    pub emulation_flags: u32,
    pub misc_flags: u32,
}

/// `CreateDomain::flags`.
pub const CDF_HVM: u32 = 1 << 0;
pub const CDF_HAP: u32 = 1 << 1;
pub const CDF_S3_INTEGRITY: u32 = 1 << 2;
pub const CDF_OOS_OFF: u32 = 1 << 3;
pub const CDF_XS_DOMAIN: u32 = 1 << 4;
pub const CDF_IOMMU: u32 = 1 << 5;
pub const CDF_NESTED_VIRT: u32 = 1 << 6;
pub const CDF_VPMU: u32 = 1 << 7;
/// `CreateDomain::grant_opts`: the highest grant-table version allowed.
pub const GRANT_VERSION_MASK: u32 = 0xf;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CreateDomain {
    pub ssidref: u32,
    pub handle: DomainHandle,
    pub flags: u32,
    pub iommu_opts: u32,
    pub max_vcpus: u32,
    pub max_evtchn_port: u32,
    /// Negative: the default.
    pub max_grant_frames: i32,
    /// Negative: the default.
    pub max_maptrack_frames: i32,
    pub grant_opts: u32,
    pub vmtrace_size: u32,
    pub cpupool_id: u32,
    pub arch: ArchDomainConfig,
}

/// `GetDomainInfo::flags`.
pub const DOMINF_DYING: u32 = 1 << 0;
pub const DOMINF_HVM_GUEST: u32 = 1 << 1;
pub const DOMINF_SHUTDOWN: u32 = 1 << 2;
pub const DOMINF_PAUSED: u32 = 1 << 3;
pub const DOMINF_BLOCKED: u32 = 1 << 4;
pub const DOMINF_RUNNING: u32 = 1 << 5;
pub const DOMINF_DEBUGGED: u32 = 1 << 6;
pub const DOMINF_XS_DOMAIN: u32 = 1 << 7;
pub const DOMINF_HAP: u32 = 1 << 8;
/// Position of the shutdown code, eight bits.
pub const DOMINF_SHUTDOWN_SHIFT: u32 = 16;
/// `GetDomainInfo::max_vcpu_id` of a domain without vCPUs.
pub const INVALID_MAX_VCPU_ID: u32 = !0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GetDomainInfo {
    pub domain: u16,
    pub pad1: u16,
    pub flags: u32,
    pub tot_pages: u64,
    pub max_pages: u64,
    pub outstanding_pages: u64,
    pub shr_pages: u64,
    pub paged_pages: u64,
    pub shared_info_frame: u64,
    /// Nanoseconds.
    pub cpu_time: u64,
    pub nr_online_vcpus: u32,
    pub max_vcpu_id: u32,
    pub ssidref: u32,
    pub handle: DomainHandle,
    pub cpupool: u32,
    pub gpaddr_bits: u8,
    pub pad2: [u8; 7],
    pub arch_config: ArchDomainConfig,
}

/// Page types that `GETPAGEFRAMEINFO3` answers with, in bits 28-31.
pub const PFINFO_L1TAB: u32 = 1 << 28;
pub const PFINFO_L2TAB: u32 = 2 << 28;
pub const PFINFO_L3TAB: u32 = 3 << 28;
pub const PFINFO_L4TAB: u32 = 4 << 28;
pub const PFINFO_LPINTAB: u32 = 1 << 31;
pub const PFINFO_XTAB: u32 = 0xf << 28;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GetPageFrameInfo3 {
    pub num: u64,
    pub array: u64,
}

/// `SETNODEAFFINITY`, `GETNODEAFFINITY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct NodeAffinity {
    pub nodemap: Bitmap,
}

/// `VcpuAffinity::flags`.
pub const VCPUAFFINITY_HARD: u32 = 1 << 0;
pub const VCPUAFFINITY_SOFT: u32 = 1 << 1;
pub const VCPUAFFINITY_FORCE: u32 = 1 << 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuAffinity {
    pub vcpu: u32,
    pub flags: u32,
    pub cpumap_hard: Bitmap,
    pub cpumap_soft: Bitmap,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MaxMem {
    pub max_memkb: u64,
}

/// `SETVCPUCONTEXT`, `GETVCPUCONTEXT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuContext {
    pub vcpu: u32,
    pub pad: u32,
    /// Guest address of a `vcpu_guest_context`.
    pub ctxt: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GetVcpuInfo {
    pub vcpu: u32,
    pub online: u8,
    pub blocked: u8,
    pub running: u8,
    pub pad0: u8,
    /// Nanoseconds.
    pub cpu_time: u64,
    pub cpu: u32,
    pub pad1: u32,
}

/// `MAX_VCPUS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MaxVcpus {
    pub max: u32,
}

/// Scheduler ids.
pub const XEN_SCHEDULER_CREDIT: u32 = 5;
pub const XEN_SCHEDULER_CREDIT2: u32 = 6;
/// `SchedulerOp::cmd`.
pub const SCHEDOP_PUTINFO: u32 = 0;
pub const SCHEDOP_GETINFO: u32 = 1;
pub const SCHEDOP_PUTVCPUINFO: u32 = 2;
pub const SCHEDOP_GETVCPUINFO: u32 = 3;

/// `SCHEDULER_OP`; the union is spelled as its credit and credit2 members, which look alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedulerOp {
    pub sched_id: u32,
    pub cmd: u32,
    pub weight: u16,
    pub cap: u16,
    /// The rest of the union.
    pub rest: [u32; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SetDomainHandle {
    pub handle: DomainHandle,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IrqPermission {
    pub pirq: u32,
    pub allow_access: u8,
    pub pad: [u8; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IomemPermission {
    pub first_mfn: u64,
    pub nr_mfns: u64,
    pub allow_access: u8,
    pub pad: [u8; 7],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct IoportPermission {
    pub first_port: u32,
    pub nr_ports: u32,
    pub allow_access: u8,
    pub pad: [u8; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HypercallInit {
    pub gmfn: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SetTimeOffset {
    pub time_offset_seconds: i64,
}

/// `SET_ADDRESS_SIZE`, `GET_ADDRESS_SIZE`: bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AddressSize {
    pub size: u32,
}

/// `SENDTRIGGER`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SendTrigger {
    pub trigger: u32,
    pub vcpu: u32,
}

/// `AssignDevice::dev`: a PCI function.
pub const DEV_PCI: u32 = 0;

/// `ASSIGN_DEVICE`, `DEASSIGN_DEVICE`, `TEST_ASSIGN_DEVICE` of a PCI function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AssignDevice {
    pub dev: u32,
    pub flags: u32,
    /// Segment, bus, device, function: 16, 8, 5, 3 bits from the top.
    pub machine_sbdf: u32,
    pub rest: [u32; 3],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GetDeviceGroup {
    pub machine_sbdf: u32,
    pub max_sdevs: u32,
    pub num_sdevs: u32,
    pub pad: u32,
    /// Guest address of `u32`s.
    pub sdev_array: u64,
}

/// `SUBSCRIBE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Subscribe {
    pub port: u32,
}

/// `SET_VIRQ_HANDLER`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SetVirqHandler {
    pub virq: u32,
}

/// `GETTSCINFO`, `SETTSCINFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TscInfo {
    pub tsc_mode: u32,
    pub gtsc_khz: u32,
    pub incarnation: u32,
    pub pad: u32,
    pub elapsed_nsec: u64,
}

/// `GET_CPU_POLICY`, `SET_CPU_POLICY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuPolicy {
    pub nr_leaves: u32,
    pub nr_msrs: u32,
    /// Guest address of [`CpuidLeaf`]s.
    pub leaves: u64,
    /// Guest address of [`MsrEntry`]s.
    pub msrs: u64,
    /// Out: what was objected to; all ones if nothing.
    pub err_leaf: u32,
    pub err_subleaf: u32,
    pub err_msr: u32,
    pub pad: u32,
}

/// `CpuidLeaf::subleaf` of a leaf that has no subleaves.
pub const CPUID_NO_SUBLEAF: u32 = !0;

/// One CPUID leaf of a policy (public/arch-x86/xen.h, `xen_cpuid_leaf`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuidLeaf {
    pub leaf: u32,
    pub subleaf: u32,
    pub a: u32,
    pub b: u32,
    pub c: u32,
    pub d: u32,
}

/// One MSR of a policy (`xen_msr_entry`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MsrEntry {
    pub idx: u32,
    /// Must be zero.
    pub flags: u32,
    pub val: u64,
}

/// `GETVCPUEXTSTATE`, `SETVCPUEXTSTATE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuExtState {
    pub vcpu: u32,
    pub pad: u32,
    pub xfeature_mask: u64,
    pub size: u64,
    pub buffer: u64,
}

/// `GET_VCPU_MSRS`, `SET_VCPU_MSRS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuMsrs {
    pub vcpu: u32,
    pub msr_count: u32,
    /// Guest address of [`VcpuMsr`]s, or null to ask for the number.
    pub msrs: u64,
}

/// One element of the array of `GET_VCPU_MSRS`, `SET_VCPU_MSRS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuMsr {
    pub index: u32,
    pub reserved: u32,
    pub value: u64,
}

/// Bytes of [`ExtVcpuContext`] without its machine-check part.
pub const EXT_VCPUCONTEXT_BASE: u32 = 32;

/// `GET_EXT_VCPUCONTEXT`, `SET_EXT_VCPUCONTEXT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExtVcpuContext {
    pub vcpu: u32,
    /// How many bytes of this structure count.
    pub size: u32,
    pub syscall32_callback_eip: u64,
    pub sysenter_callback_eip: u64,
    pub syscall32_callback_cs: u16,
    pub sysenter_callback_cs: u16,
    pub syscall32_disables_events: u8,
    pub sysenter_disables_events: u8,
    pub pad0: u16,
    pub mcg_cap: u64,
    pub mci_ctl2_bank0: u64,
    pub mci_ctl2_bank1: u64,
    pub mcg_ext_ctl: u64,
}

/// `ShadowOp::op`.
pub const SHADOW_OP_OFF: u32 = 0;
pub const SHADOW_OP_ENABLE_TEST: u32 = 1;
pub const SHADOW_OP_ENABLE_LOGDIRTY: u32 = 2;
pub const SHADOW_OP_CLEAN: u32 = 11;
pub const SHADOW_OP_PEEK: u32 = 12;
pub const SHADOW_OP_GET_ALLOCATION: u32 = 30;
pub const SHADOW_OP_SET_ALLOCATION: u32 = 31;
pub const SHADOW_OP_ENABLE: u32 = 32;
/// `ShadowOp::mode` of `CLEAN` and `PEEK`: the domain runs no more, this is the last time.
pub const SHADOW_LOGDIRTY_FINAL: u32 = 1 << 0;

/// `SHADOW_OP`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ShadowOp {
    pub op: u32,
    pub mode: u32,
    pub mb: u32,
    pub pad: u32,
    /// Guest address of a bitmap by pseudo-physical frame, or null.
    pub dirty_bitmap: u64,
    /// In: bits there is room for. Out: bits written.
    pub pages: u64,
    pub fault_count: u32,
    pub dirty_count: u32,
}

/// `SETDEBUGGING`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SetDebugging {
    pub enable: u8,
}

/// `GET_PAGING_MEMPOOL_SIZE`, `SET_PAGING_MEMPOOL_SIZE`: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PagingMempool {
    pub size: u64,
}

/// Checked against the header with a C compiler.
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Domctl>() == PAYLOAD_OFFSET);
    assert!(size_of::<CreateDomain>() == 64);
    assert!(offset_of!(CreateDomain, flags) == 20);
    assert!(offset_of!(CreateDomain, grant_opts) == 44);
    assert!(offset_of!(CreateDomain, arch) == 56);
    assert!(size_of::<GetDomainInfo>() == 112);
    assert!(offset_of!(GetDomainInfo, cpu_time) == 56);
    assert!(offset_of!(GetDomainInfo, handle) == 76);
    assert!(offset_of!(GetDomainInfo, gpaddr_bits) == 96);
    assert!(offset_of!(GetDomainInfo, arch_config) == 104);
    assert!(size_of::<VcpuAffinity>() == 40);
    assert!(offset_of!(VcpuAffinity, cpumap_soft) == 24);
    assert!(size_of::<VcpuContext>() == 16);
    assert!(size_of::<GetVcpuInfo>() == 24);
    assert!(offset_of!(GetVcpuInfo, cpu_time) == 8);
    assert!(size_of::<SchedulerOp>() == 24);
    assert!(size_of::<IrqPermission>() == 8);
    assert!(size_of::<IomemPermission>() == 24);
    assert!(size_of::<IoportPermission>() == 12);
    assert!(size_of::<AssignDevice>() == 24);
    assert!(size_of::<GetDeviceGroup>() == 24);
    assert!(size_of::<TscInfo>() == 24);
    assert!(size_of::<CpuPolicy>() == 40);
    assert!(offset_of!(CpuPolicy, err_leaf) == 24);
    assert!(size_of::<CpuidLeaf>() == 24);
    assert!(size_of::<MsrEntry>() == 16);
    assert!(size_of::<VcpuExtState>() == 32);
    assert!(size_of::<VcpuMsrs>() == 16);
    assert!(size_of::<VcpuMsr>() == 16);
    assert!(size_of::<ExtVcpuContext>() == 64);
    assert!(offset_of!(ExtVcpuContext, mcg_cap) == EXT_VCPUCONTEXT_BASE as usize);
    assert!(size_of::<ShadowOp>() == 40);
    assert!(offset_of!(ShadowOp, pages) == 24);
};
