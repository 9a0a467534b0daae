//! `VCPUOP_*` (public/vcpu.h).
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

pub const VCPUOP_INITIALISE: u32 = 0;
pub const VCPUOP_UP: u32 = 1;
pub const VCPUOP_DOWN: u32 = 2;
pub const VCPUOP_IS_UP: u32 = 3;
pub const VCPUOP_GET_RUNSTATE_INFO: u32 = 4;
pub const VCPUOP_REGISTER_RUNSTATE_MEMORY_AREA: u32 = 5;
pub const VCPUOP_SET_PERIODIC_TIMER: u32 = 6;
pub const VCPUOP_STOP_PERIODIC_TIMER: u32 = 7;
pub const VCPUOP_SET_SINGLESHOT_TIMER: u32 = 8;
pub const VCPUOP_STOP_SINGLESHOT_TIMER: u32 = 9;
pub const VCPUOP_REGISTER_VCPU_INFO: u32 = 10;
pub const VCPUOP_SEND_NMI: u32 = 11;
pub const VCPUOP_GET_PHYSID: u32 = 12;
pub const VCPUOP_REGISTER_VCPU_TIME_MEMORY_AREA: u32 = 13;

/// Registers a guest virtual address (runstate or time area).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuRegisterMemoryArea {
    pub addr: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuSetPeriodicTimer {
    pub period_ns: u64,
}
/// A shorter period is refused with `EINVAL`.
pub const MIN_PERIODIC_NS: u64 = 1_000_000;
/// The period that every PV vCPU starts with.
pub const DEFAULT_PERIODIC_NS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuSetSingleshotTimer {
    pub timeout_abs_ns: u64,
    pub flags: u32,
    pub pad: u32,
}
/// `VcpuSetSingleshotTimer::flags`: the time should be in the future (4.17 does not look at it).
pub const VCPU_SSHOTTMR_FUTURE: u32 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuRegisterVcpuInfo {
    pub mfn: u64,
    pub offset: u32,
    pub rsvd: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct VcpuGetPhysid {
    pub phys_id: u64,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<VcpuRegisterMemoryArea>() == 8);
    assert!(size_of::<VcpuSetPeriodicTimer>() == 8);
    assert!(size_of::<VcpuSetSingleshotTimer>() == 16);
    assert!(size_of::<VcpuRegisterVcpuInfo>() == 16);
    assert!(offset_of!(VcpuRegisterVcpuInfo, offset) == 8);
};
