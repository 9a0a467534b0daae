//! Guest entry points: `CALLBACKOP_*` (public/callback.h).
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

pub const CALLBACKOP_REGISTER: u32 = 0;
pub const CALLBACKOP_UNREGISTER: u32 = 1;

pub const CALLBACKTYPE_EVENT: u16 = 0;
pub const CALLBACKTYPE_FAILSAFE: u16 = 1;
/// 64-bit only.
pub const CALLBACKTYPE_SYSCALL: u16 = 2;
pub const CALLBACKTYPE_NMI: u16 = 4;
pub const CALLBACKTYPE_SYSENTER: u16 = 5;
pub const CALLBACKTYPE_SYSCALL32: u16 = 7;

/// Events are disabled while the entry runs.
pub const CALLBACKF_MASK_EVENTS: u16 = 1;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallbackRegister {
    pub kind: u16,
    pub flags: u16,
    pub pad: u32,
    pub address: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallbackUnregister {
    pub kind: u16,
    pub unused: u16,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<CallbackRegister>() == 16);
    assert!(offset_of!(CallbackRegister, address) == 8);
    assert!(size_of::<CallbackUnregister>() == 4);
};
