//! `SCHEDOP_*` (public/sched.h).
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

pub const SCHEDOP_YIELD: u32 = 0;
pub const SCHEDOP_BLOCK: u32 = 1;
pub const SCHEDOP_SHUTDOWN: u32 = 2;
pub const SCHEDOP_POLL: u32 = 3;
pub const SCHEDOP_REMOTE_SHUTDOWN: u32 = 4;
pub const SCHEDOP_SHUTDOWN_CODE: u32 = 5;
pub const SCHEDOP_WATCHDOG: u32 = 6;
pub const SCHEDOP_PIN_OVERRIDE: u32 = 7;

/// `shutdown` and `shutdown_code`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedShutdown {
    /// `SHUTDOWN_*`.
    pub reason: u32,
}
pub const SHUTDOWN_POWEROFF: u32 = 0;
pub const SHUTDOWN_REBOOT: u32 = 1;
pub const SHUTDOWN_SUSPEND: u32 = 2;
pub const SHUTDOWN_CRASH: u32 = 3;
pub const SHUTDOWN_WATCHDOG: u32 = 4;
pub const SHUTDOWN_SOFT_RESET: u32 = 5;
pub const SHUTDOWN_MAX: u32 = 5;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedPoll {
    /// Guest pointer to `u32[nr_ports]`.
    pub ports: u64,
    pub nr_ports: u32,
    pub pad: u32,
    /// Absolute system time in ns; 0: no time-out.
    pub timeout: u64,
}
/// More ports in one poll are refused.
pub const SCHED_POLL_MAX_PORTS: u32 = 128;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedRemoteShutdown {
    pub domain_id: u16,
    pub pad: u16,
    /// `SHUTDOWN_*`.
    pub reason: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedWatchdog {
    /// 0: allocate.
    pub id: u32,
    /// Seconds; 0: destroy.
    pub timeout: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedPinOverride {
    /// Negative: give up the override.
    pub pcpu: i32,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<SchedShutdown>() == 4);
    assert!(size_of::<SchedPoll>() == 24);
    assert!(offset_of!(SchedPoll, timeout) == 16);
    assert!(size_of::<SchedRemoteShutdown>() == 8);
    assert!(size_of::<SchedWatchdog>() == 8);
    assert!(size_of::<SchedPinOverride>() == 4);
};
