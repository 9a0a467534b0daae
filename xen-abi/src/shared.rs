//! `shared_info`, `vcpu_info`, `vcpu_time_info` and runstate (public/xen.h, public/vcpu.h).

/// Number of vCPUs that have a `vcpu_info` inside `shared_info`.
pub const XEN_LEGACY_MAX_VCPUS: usize = 32;

/// Byte offsets inside the shared-info page.
pub mod shared_info {
    /// `vcpu_info[32]`, 64 bytes each.
    pub const VCPU_INFO: usize = 0;
    /// 2-level pending bits, 64 words.
    pub const EVTCHN_PENDING: usize = 2048;
    /// 2-level mask bits, 64 words.
    pub const EVTCHN_MASK: usize = 2560;
    /// Wall-clock version (`u32`).
    pub const WC_VERSION: usize = 3072;
    /// Wall-clock seconds, low half.
    pub const WC_SEC: usize = 3076;
    /// Wall-clock nanoseconds.
    pub const WC_NSEC: usize = 3080;
    /// Wall-clock seconds, high half.
    pub const WC_SEC_HI: usize = 3084;
    /// `arch.max_pfn`.
    pub const ARCH_MAX_PFN: usize = 3088;
    /// `arch.nmi_reason`.
    pub const ARCH_NMI_REASON: usize = 3104;
    /// Bytes in use.
    pub const SIZE: usize = 3136;
}

/// Byte offsets inside a `vcpu_info`.
pub mod vcpu_info {
    /// `evtchn_upcall_pending` (`u8`).
    pub const UPCALL_PENDING: usize = 0;
    /// `evtchn_upcall_mask` (`u8`).
    pub const UPCALL_MASK: usize = 1;
    /// `evtchn_pending_sel` (`u64`).
    pub const PENDING_SEL: usize = 8;
    /// `arch.cr2` (`u64`).
    pub const ARCH_CR2: usize = 16;
    /// `time`, a `VcpuTimeInfo`.
    pub const TIME: usize = 32;
    /// Size of the structure.
    pub const SIZE: usize = 64;
}

/// System time of one vCPU: ns = `system_time` + (((tsc - `tsc_timestamp`) << `tsc_shift`) * mul >> 32).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "documented above and in the header")]
pub struct VcpuTimeInfo {
    pub version: u32,
    pub pad0: u32,
    pub tsc_timestamp: u64,
    pub system_time: u64,
    pub tsc_to_system_mul: u32,
    pub tsc_shift: i8,
    pub flags: u8,
    pub pad1: [u8; 2],
}
/// `VcpuTimeInfo::flags`: TSC values of different vCPUs may be compared.
pub const PVCLOCK_TSC_STABLE_BIT: u8 = 1;

/// How long a vCPU has been in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "documented in the header")]
pub struct VcpuRunstateInfo {
    pub state: u32,
    pub pad: u32,
    pub state_entry_time: u64,
    /// Nanoseconds in state running, runnable, blocked, offline.
    pub time: [u64; 4],
}
/// `VcpuRunstateInfo::state`: on a CPU.
pub const RUNSTATE_RUNNING: u32 = 0;
/// Ready, but not on a CPU.
pub const RUNSTATE_RUNNABLE: u32 = 1;
/// Waiting for an event.
pub const RUNSTATE_BLOCKED: u32 = 2;
/// Down, or paused.
pub const RUNSTATE_OFFLINE: u32 = 3;
/// Set in `state_entry_time` while the record is being written (VMASST_TYPE_runstate_update_flag).
pub const XEN_RUNSTATE_UPDATE: u64 = 1 << 63;

const _: () = {
    assert!(core::mem::size_of::<VcpuTimeInfo>() == 32);
    assert!(core::mem::size_of::<VcpuRunstateInfo>() == 48);
};
