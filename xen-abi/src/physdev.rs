//! `PHYSDEVOP_*` (public/physdev.h).
#![allow(missing_docs, reason = "the names are those of the header; docs/abi.md describes each call")]

/// Obsolete spelling of `unmask`-with-notify; takes no argument.
pub const PHYSDEVOP_IRQ_UNMASK_NOTIFY: u32 = 4;
pub const PHYSDEVOP_IRQ_STATUS_QUERY: u32 = 5;
pub const PHYSDEVOP_SET_IOPL: u32 = 6;
pub const PHYSDEVOP_SET_IOBITMAP: u32 = 7;
pub const PHYSDEVOP_APIC_READ: u32 = 8;
pub const PHYSDEVOP_APIC_WRITE: u32 = 9;
pub const PHYSDEVOP_ALLOC_IRQ_VECTOR: u32 = 10;
pub const PHYSDEVOP_FREE_IRQ_VECTOR: u32 = 11;
pub const PHYSDEVOP_EOI: u32 = 12;
pub const PHYSDEVOP_MAP_PIRQ: u32 = 13;
pub const PHYSDEVOP_UNMAP_PIRQ: u32 = 14;
pub const PHYSDEVOP_MANAGE_PCI_ADD: u32 = 15;
pub const PHYSDEVOP_MANAGE_PCI_REMOVE: u32 = 16;
pub const PHYSDEVOP_PIRQ_EOI_GMFN_V1: u32 = 17;
pub const PHYSDEVOP_RESTORE_MSI: u32 = 19;
pub const PHYSDEVOP_MANAGE_PCI_ADD_EXT: u32 = 20;
pub const PHYSDEVOP_SETUP_GSI: u32 = 21;
pub const PHYSDEVOP_GET_FREE_PIRQ: u32 = 23;
pub const PHYSDEVOP_PCI_MMCFG_RESERVED: u32 = 24;
pub const PHYSDEVOP_PCI_DEVICE_ADD: u32 = 25;
pub const PHYSDEVOP_PCI_DEVICE_REMOVE: u32 = 26;
pub const PHYSDEVOP_RESTORE_MSI_EXT: u32 = 27;
pub const PHYSDEVOP_PIRQ_EOI_GMFN_V2: u32 = 28;
pub const PHYSDEVOP_DBGP_OP: u32 = 29;
pub const PHYSDEVOP_PREPARE_MSIX: u32 = 30;
pub const PHYSDEVOP_RELEASE_MSIX: u32 = 31;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevEoi {
    pub irq: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevPirqEoiGmfn {
    pub gmfn: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevIrqStatusQuery {
    pub irq: u32,
    /// Out: `XENIRQSTAT_*`.
    pub flags: u32,
}
/// The guest must say when it has handled the interrupt.
pub const XENIRQSTAT_NEEDS_EOI: u32 = 1;
/// The line is shared with another domain.
pub const XENIRQSTAT_SHARED: u32 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevSetIopl {
    pub iopl: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevSetIobitmap {
    /// Guest virtual address; a set bit forbids its port.
    pub bitmap: u64,
    pub nr_ports: u32,
    pub pad: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevApic {
    pub apic_physbase: u64,
    pub reg: u32,
    /// In or out.
    pub value: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevIrq {
    pub irq: u32,
    /// Out.
    pub vector: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevMapPirq {
    pub domid: u16,
    pub pad0: u16,
    /// `MAP_PIRQ_TYPE_*`.
    pub kind: u32,
    /// GSI, or wanted vector for MSI (-1).
    pub index: u32,
    /// In: the wanted number or -1. Out: the number.
    pub pirq: u32,
    /// Low 8 bits: bus; from bit 16: segment.
    pub bus: u32,
    pub devfn: u32,
    /// MSI-X: table entry. Multi-MSI: number of messages.
    pub entry_nr: u32,
    pub pad1: u32,
    /// MSI-X: machine address of the table. 0: MSI.
    pub table_base: u64,
}
pub const MAP_PIRQ_TYPE_MSI: u32 = 0;
pub const MAP_PIRQ_TYPE_GSI: u32 = 1;
pub const MAP_PIRQ_TYPE_UNKNOWN: u32 = 2;
pub const MAP_PIRQ_TYPE_MSI_SEG: u32 = 3;
pub const MAP_PIRQ_TYPE_MULTI_MSI: u32 = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevUnmapPirq {
    pub domid: u16,
    pub pad: u16,
    pub pirq: u32,
}

/// `manage_pci_add`, `manage_pci_remove`, `restore_msi`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevManagePci {
    pub bus: u8,
    pub devfn: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevManagePciExt {
    pub bus: u8,
    pub devfn: u8,
    pub pad: u16,
    pub is_extfn: u32,
    pub is_virtfn: u32,
    pub physfn_bus: u8,
    pub physfn_devfn: u8,
    pub pad1: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevSetupGsi {
    pub gsi: u32,
    /// 0 edge, 1 level.
    pub triggering: u8,
    /// 0 active high, 1 active low.
    pub polarity: u8,
    pub pad: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevGetFreePirq {
    /// `MAP_PIRQ_TYPE_*`.
    pub kind: u32,
    /// Out.
    pub pirq: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevPciMmcfgReserved {
    pub address: u64,
    pub segment: u16,
    pub start_bus: u8,
    pub end_bus: u8,
    pub flags: u32,
}
pub const XEN_PCI_MMCFG_RESERVED: u32 = 1;

/// The fixed part; `u32 optarr[]` (a proximity domain) follows when `XEN_PCI_DEV_PXM` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevPciDeviceAdd {
    pub seg: u16,
    pub bus: u8,
    pub devfn: u8,
    pub flags: u32,
    pub physfn_bus: u8,
    pub physfn_devfn: u8,
    pub pad: u16,
}
pub const XEN_PCI_DEV_EXTFN: u32 = 1;
pub const XEN_PCI_DEV_VIRTFN: u32 = 2;
pub const XEN_PCI_DEV_PXM: u32 = 4;

/// `pci_device_remove`, `restore_msi_ext`, `prepare_msix`, `release_msix`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevPciDevice {
    pub seg: u16,
    pub bus: u8,
    pub devfn: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhysdevDbgpOp {
    pub op: u8,
    pub bus_kind: u8,
    pub pad: u16,
    pub seg: u16,
    pub bus: u8,
    pub devfn: u8,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<PhysdevEoi>() == 4);
    assert!(size_of::<PhysdevPirqEoiGmfn>() == 8);
    assert!(size_of::<PhysdevIrqStatusQuery>() == 8);
    assert!(size_of::<PhysdevSetIopl>() == 4);
    assert!(size_of::<PhysdevSetIobitmap>() == 16);
    assert!(size_of::<PhysdevApic>() == 16);
    assert!(size_of::<PhysdevIrq>() == 8);
    assert!(size_of::<PhysdevMapPirq>() == 40);
    assert!(offset_of!(PhysdevMapPirq, kind) == 4);
    assert!(offset_of!(PhysdevMapPirq, pirq) == 12);
    assert!(offset_of!(PhysdevMapPirq, entry_nr) == 24);
    assert!(offset_of!(PhysdevMapPirq, table_base) == 32);
    assert!(size_of::<PhysdevUnmapPirq>() == 8);
    assert!(size_of::<PhysdevManagePci>() == 2);
    assert!(size_of::<PhysdevManagePciExt>() == 16);
    assert!(size_of::<PhysdevSetupGsi>() == 8);
    assert!(size_of::<PhysdevGetFreePirq>() == 8);
    assert!(size_of::<PhysdevPciMmcfgReserved>() == 16);
    assert!(size_of::<PhysdevPciDeviceAdd>() == 12);
    assert!(size_of::<PhysdevPciDevice>() == 4);
};
