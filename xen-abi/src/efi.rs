//! EFI's part of `platform_op` (public/platform.h): what is asked of the firmware by `XENPF_FIRMWARE_INFO`, and the
//! calls of its run-time services by `XENPF_EFI_RUNTIME_CALL`.
#![allow(missing_docs, reason = "the names are those of the header and of the UEFI specification")]

/// Answer to `XEN_FW_EFI_CONFIG_TABLE`: machine address and number of the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EfiConfig {
    pub addr: u64,
    pub nent: u32,
    pub pad: u32,
}

/// `XEN_FW_EFI_VENDOR`. In: room in bytes and where the name goes, in 16-bit characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EfiVendor {
    pub revision: u32,
    pub bufsz: u32,
    pub name: u64,
}

/// `XEN_FW_EFI_MEM_INFO`. In: address and size. Out: size up to the region's end, attributes, type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EfiMemory {
    pub addr: u64,
    pub size: u64,
    pub attr: u64,
    pub kind: u32,
    pub pad: u32,
}

pub const XEN_EFI_GET_TIME: u32 = 1;
pub const XEN_EFI_SET_TIME: u32 = 2;
pub const XEN_EFI_GET_WAKEUP_TIME: u32 = 3;
pub const XEN_EFI_SET_WAKEUP_TIME: u32 = 4;
pub const XEN_EFI_GET_NEXT_HIGH_MONOTONIC_COUNT: u32 = 5;
pub const XEN_EFI_GET_VARIABLE: u32 = 6;
pub const XEN_EFI_SET_VARIABLE: u32 = 7;
pub const XEN_EFI_GET_NEXT_VARIABLE_NAME: u32 = 8;
pub const XEN_EFI_QUERY_VARIABLE_INFO: u32 = 9;
pub const XEN_EFI_QUERY_CAPSULE_CAPABILITIES: u32 = 10;
pub const XEN_EFI_UPDATE_CAPSULE: u32 = 11;

/// `RuntimeCall::misc` after `XEN_EFI_GET_TIME`: setting the time clears its nanoseconds.
pub const XEN_EFI_GET_TIME_SET_CLEARS_NS: u32 = 1;
pub const XEN_EFI_GET_WAKEUP_TIME_ENABLED: u32 = 1;
pub const XEN_EFI_GET_WAKEUP_TIME_PENDING: u32 = 2;
pub const XEN_EFI_SET_WAKEUP_TIME_ENABLE: u32 = 1;
pub const XEN_EFI_SET_WAKEUP_TIME_ENABLE_ONLY: u32 = 2;
/// `RuntimeCall::misc` of `XEN_EFI_QUERY_VARIABLE_INFO`: as it was before the firmware left its boot services.
pub const XEN_EFI_VARINFO_BOOT_SNAPSHOT: u32 = 1;

pub type EfiGuid = [u8; 16];

/// Head of a call; its parameters follow, and `status` is what the firmware says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RuntimeCall {
    pub function: u32,
    pub misc: u32,
    pub status: u64,
}

/// EFI_TIME, and on getting it what the clock can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EfiTime {
    pub year: u16,
    pub month: u8,
    pub day: u8,
    pub hour: u8,
    pub minute: u8,
    pub second: u8,
    pub pad1: u8,
    pub ns: u32,
    pub timezone: i16,
    pub daylight: u8,
    pub pad2: u8,
    pub resolution: u32,
    pub accuracy: u32,
}

/// Parameters of getting and setting a variable. On getting, `size` is the room for its data, then its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EfiVariable {
    pub name: u64,
    pub size: u64,
    pub data: u64,
    pub guid: EfiGuid,
}

/// Parameters of `XEN_EFI_GET_NEXT_VARIABLE_NAME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EfiNextName {
    pub size: u64,
    pub name: u64,
    pub guid: EfiGuid,
}

/// Parameters of `XEN_EFI_QUERY_VARIABLE_INFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EfiVariableInfo {
    pub attr: u32,
    pub pad: u32,
    pub max_store_size: u64,
    pub remain_store_size: u64,
    pub max_size: u64,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<EfiConfig>() == 16);
    assert!(size_of::<EfiVendor>() == 16);
    assert!(size_of::<EfiMemory>() == 32);
    assert!(size_of::<RuntimeCall>() == 16);
    assert!(offset_of!(EfiTime, ns) == 8 && offset_of!(EfiTime, timezone) == 12);
    assert!(offset_of!(EfiTime, resolution) == 16 && size_of::<EfiTime>() == 24);
    assert!(size_of::<EfiVariable>() == 40);
    assert!(offset_of!(EfiNextName, guid) == 16 && size_of::<EfiNextName>() == 32);
    assert!(offset_of!(EfiVariableInfo, max_size) == 24 && size_of::<EfiVariableInfo>() == 32);
};
