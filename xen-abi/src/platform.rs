//! `XENPF_*`: sub-operations of `platform_op`, for domain 0 only (public/platform.h).

/// What `PlatformOp::interface_version` must be; anything else is refused with `EACCES`.
pub const XENPF_INTERFACE_VERSION: u32 = 0x0300_0001;

/// Sets the wall clock; 32-bit seconds.
pub const XENPF_SETTIME32: u32 = 17;
/// Adds an MTRR.
pub const XENPF_ADD_MEMTYPE: u32 = 31;
/// Removes an MTRR.
pub const XENPF_DEL_MEMTYPE: u32 = 32;
/// Reads an MTRR.
pub const XENPF_READ_MEMTYPE: u32 = 33;
/// Loads microcode.
pub const XENPF_MICROCODE_UPDATE: u32 = 35;
/// Turns on a workaround for a chipset.
pub const XENPF_PLATFORM_QUIRK: u32 = 39;
/// Family, model, stepping of a CPU.
pub const XENPF_GET_CPU_VERSION: u32 = 48;
/// Calls an EFI run-time service.
pub const XENPF_EFI_RUNTIME_CALL: u32 = 49;
/// Facts that the firmware left behind.
pub const XENPF_FIRMWARE_INFO: u32 = 50;
/// Enters an ACPI sleep state.
pub const XENPF_ENTER_ACPI_SLEEP: u32 = 51;
/// Sets a CPU's frequency.
pub const XENPF_CHANGE_FREQ: u32 = 52;
/// Idle times of CPUs.
pub const XENPF_GETIDLETIME: u32 = 53;
/// Uploads ACPI processor data.
pub const XENPF_SET_PROCESSOR_PMINFO: u32 = 54;
/// Fills a `PcpuInfo`.
pub const XENPF_GET_CPUINFO: u32 = 55;
/// Brings a CPU up.
pub const XENPF_CPU_ONLINE: u32 = 56;
/// Takes a CPU down.
pub const XENPF_CPU_OFFLINE: u32 = 57;
/// Adds a CPU.
pub const XENPF_CPU_HOTADD: u32 = 58;
/// Adds memory.
pub const XENPF_MEM_HOTADD: u32 = 59;
/// Parks cores.
pub const XENPF_CORE_PARKING: u32 = 60;
/// Batched MSR accesses.
pub const XENPF_RESOURCE_OP: u32 = 61;
/// Sets the wall clock; takes a `SetTime64`.
pub const XENPF_SETTIME64: u32 = 62;
/// Walks the hypervisor's symbols.
pub const XENPF_GET_SYMBOL: u32 = 63;
/// Dom0's console, as a `dom0_vga_console_info`.
pub const XENPF_GET_DOM0_CONSOLE: u32 = 64;

/// `FirmwareInfo::kind`: disk parameters from int 13.
pub const XEN_FW_DISK_INFO: u32 = 1;
/// MBR signatures.
pub const XEN_FW_DISK_MBR_SIGNATURE: u32 = 2;
/// Monitor data from VESA.
pub const XEN_FW_VBEDDC_INFO: u32 = 3;
/// EFI tables.
pub const XEN_FW_EFI_INFO: u32 = 4;
/// `FirmwareInfo::index` of `XEN_FW_EFI_INFO`: the specification's version.
pub const XEN_FW_EFI_VERSION: u32 = 0;
/// The configuration tables: an `EfiConfig`.
pub const XEN_FW_EFI_CONFIG_TABLE: u32 = 1;
/// Who made the firmware: an `EfiVendor`.
pub const XEN_FW_EFI_VENDOR: u32 = 2;
/// What is at an address: an `EfiMemory`.
pub const XEN_FW_EFI_MEM_INFO: u32 = 3;
/// The version of the run-time services.
pub const XEN_FW_EFI_RT_VERSION: u32 = 4;
/// A device's option ROM.
pub const XEN_FW_EFI_PCI_ROM: u32 = 5;
/// Properties of Apple's devices.
pub const XEN_FW_EFI_APPLE_PROPERTIES: u32 = 6;
/// Keyboard shift state.
pub const XEN_FW_KBD_SHIFT_FLAGS: u32 = 5;

/// `PcpuInfo::flags`: the CPU is on line.
pub const XEN_PCPU_FLAGS_ONLINE: u32 = 1;
/// `PcpuInfo::flags`: there is no such CPU.
pub const XEN_PCPU_FLAGS_INVALID: u32 = 2;

/// The argument of `platform_op`, 136 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PlatformOp {
    /// `XENPF_*`.
    pub cmd: u32,
    /// `XENPF_INTERFACE_VERSION`.
    pub interface_version: u32,
    /// The sub-operation's own structure.
    pub u: [u8; 128],
}

/// `XENPF_GET_CPUINFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PcpuInfo {
    /// In: number of the CPU.
    pub xen_cpuid: u32,
    /// Out: the highest number of a CPU that is there.
    pub max_present: u32,
    /// Out: `XEN_PCPU_FLAGS_*`.
    pub flags: u32,
    /// Out: its local APIC's id.
    pub apic_id: u32,
    /// Out: its ACPI processor id.
    pub acpi_id: u32,
}

/// `XENPF_SETTIME64`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SetTime64 {
    /// Seconds since 1970, UTC.
    pub secs: u64,
    /// Nanoseconds.
    pub nsecs: u32,
    /// Must be zero.
    pub mbz: u32,
    /// The system time at which that was.
    pub system_time: u64,
}

/// Head of `XENPF_FIRMWARE_INFO`; the answer starts 8 bytes into the union.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FirmwareInfo {
    /// `XEN_FW_*`.
    pub kind: u32,
    /// Which of several.
    pub index: u32,
}

/// `XENPF_ENTER_ACPI_SLEEP`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EnterAcpiSleep {
    /// Value for PM1a control, or the sleep type of a reduced-hardware machine.
    pub val_a: u16,
    /// Value for PM1b control.
    pub val_b: u16,
    /// 1 to 5.
    pub sleep_state: u32,
    /// `XENPF_ACPI_SLEEP_EXTENDED` and none else.
    pub flags: u32,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<PlatformOp>() == 136);
    assert!(offset_of!(PlatformOp, u) == 8);
    assert!(size_of::<PcpuInfo>() == 20);
    assert!(size_of::<SetTime64>() == 24);
    assert!(offset_of!(SetTime64, system_time) == 16);
    assert!(size_of::<EnterAcpiSleep>() == 12);
};
