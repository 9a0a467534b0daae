//! PCI configuration space, by ports or by memory (ECAM), and what is found in it.

use crate::arch::acpi;
use crate::cpu::port::{inb, inl, inw, outb, outl, outw};
use crate::info;
use crate::mem::vmap;
use crate::sync::{Mutex, Once};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
pub use hv_core::pcicfg::Sbdf;
use x86::MachAddr;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// Registers of the common header.
pub mod reg {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const VENDOR: u16 = 0x00;
    pub const DEVICE: u16 = 0x02;
    pub const COMMAND: u16 = 0x04;
    pub const STATUS: u16 = 0x06;
    pub const REVISION_AND_CLASS: u16 = 0x08;
    pub const HEADER_TYPE: u16 = 0x0e;
    pub const BAR0: u16 = 0x10;
    pub const ROM: u16 = 0x30;
    pub const SECONDARY_BUS: u16 = 0x19;
    pub const CAPABILITIES: u16 = 0x34;
}

/// Bits of the command register.
pub mod command {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const MEMORY: u16 = 1 << 1;
    pub const BUS_MASTER: u16 = 1 << 2;
    pub const INTX_DISABLE: u16 = 1 << 10;
}

const STATUS_CAPABILITIES: u16 = 1 << 4;

/// Capability: message-signalled interrupts.
pub const CAP_MSI: u8 = 0x05;
/// Capability: PCI Express.
pub const CAP_EXPRESS: u8 = 0x10;
/// Capability: MSI-X.
pub const CAP_MSIX: u8 = 0x11;
/// Capability: advanced features of conventional PCI.
pub const CAP_ADVANCED_FEATURES: u8 = 0x13;

/// Width of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "widths in bits")]
pub enum Width {
    W8,
    W16,
    W32,
}

/// The ports are a pair: address, then data.
static PORTS: Mutex<()> = Mutex::new(());
/// Where the configuration space of each bus (1 MiB) is mapped, filled as buses are first touched.
static ECAM: Mutex<BTreeMap<(u16, u8), usize>> = Mutex::new(BTreeMap::new());

/// Address of the register in mapped memory, if the bus has ECAM.
fn ecam_address(at: Sbdf, offset: u16) -> Option<usize> {
    let range =
        acpi::tables().ecam.iter().find(|r| r.segment == at.segment && (r.first_bus..=r.last_bus).contains(&at.bus))?;
    let base = {
        let mut mapped = ECAM.lock();
        match mapped.get(&(at.segment, at.bus)) {
            Some(base) => *base,
            None => {
                let addr = range.addr + (u64::from(at.bus - range.first_bus) << 20);
                let base = vmap::map_device(MachAddr::new(addr), 1 << 20)? as usize;
                mapped.insert((at.segment, at.bus), base);
                base
            }
        }
    };
    Some(base | usize::from(at.devfn) << 12 | usize::from(offset))
}

/// Selects a register; the data port's offset. Ports reach segment 0 and the first 256 bytes.
fn select(at: Sbdf, offset: u16) -> Option<u16> {
    if at.segment != 0 || offset >= 256 {
        return None;
    }
    outl(ADDRESS_PORT, ENABLE | u32::from(at.source_id()) << 8 | u32::from(offset & !3));
    Some(DATA_PORT + (offset & 3))
}

const fn is_aligned(offset: u16, width: Width) -> bool {
    match width {
        Width::W8 => offset < 4096,
        Width::W16 => offset < 4096 && offset % 2 == 0,
        Width::W32 => offset < 4096 && offset % 4 == 0,
    }
}

/// Reads a register. What does not exist, or is not aligned, reads all ones.
pub fn read(at: Sbdf, offset: u16, width: Width) -> u32 {
    if !is_aligned(offset, width) {
        return u32::MAX;
    }
    // The first 256 bytes go by ports where those reach: they need no mapping.
    if at.segment == 0 && offset < 256 {
        let _pair = PORTS.lock();
        return match (select(at, offset), width) {
            (Some(port), Width::W8) => inb(port).into(),
            (Some(port), Width::W16) => inw(port).into(),
            (Some(port), Width::W32) => inl(port),
            (None, _) => u32::MAX,
        };
    }
    let Some(address) = ecam_address(at, offset) else { return u32::MAX };
    // SAFETY: configuration space that is mapped for ever; aligned, and inside the function's 4 KiB.
    unsafe {
        match width {
            Width::W8 => (address as *const u8).read_volatile().into(),
            Width::W16 => (address as *const u16).read_volatile().into(),
            Width::W32 => (address as *const u32).read_volatile(),
        }
    }
}

/// Writes a register. Writes to what does not exist are lost.
#[allow(clippy::cast_possible_truncation, reason = "the width says how much of the value counts")]
pub fn write(at: Sbdf, offset: u16, width: Width, value: u32) {
    if !is_aligned(offset, width) {
        return;
    }
    if at.segment == 0 && offset < 256 {
        let _pair = PORTS.lock();
        match (select(at, offset), width) {
            (Some(port), Width::W8) => outb(port, value as u8),
            (Some(port), Width::W16) => outw(port, value as u16),
            (Some(port), Width::W32) => outl(port, value),
            (None, _) => {}
        }
        return;
    }
    let Some(address) = ecam_address(at, offset) else { return };
    // SAFETY: as for `read`; who may write which register is decided by the callers.
    unsafe {
        match width {
            Width::W8 => (address as *mut u8).write_volatile(value as u8),
            Width::W16 => (address as *mut u16).write_volatile(value as u16),
            Width::W32 => (address as *mut u32).write_volatile(value),
        }
    }
}

/// Reads 8 bits.
pub fn read8(at: Sbdf, offset: u16) -> u8 {
    read(at, offset, Width::W8).to_le_bytes()[0]
}

/// Reads 16 bits.
pub fn read16(at: Sbdf, offset: u16) -> u16 {
    let [low, high, ..] = read(at, offset, Width::W16).to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Reads 32 bits.
pub fn read32(at: Sbdf, offset: u16) -> u32 {
    read(at, offset, Width::W32)
}

/// Writes 16 bits.
pub fn write16(at: Sbdf, offset: u16, value: u16) {
    write(at, offset, Width::W16, value.into());
}

/// Writes 32 bits.
pub fn write32(at: Sbdf, offset: u16, value: u32) {
    write(at, offset, Width::W32, value);
}

/// Offset of the capability `id` in the function's list.
pub fn find_capability(at: Sbdf, id: u8) -> Option<u16> {
    if read16(at, reg::STATUS) & STATUS_CAPABILITIES == 0 {
        return None;
    }
    let mut next = read8(at, reg::CAPABILITIES) & !3;
    // A list of 4-byte entries in 192 bytes: longer means it is a circle.
    for _ in 0..48 {
        if next < 0x40 {
            return None;
        }
        let [found, after, ..] = read32(at, next.into()).to_le_bytes();
        if found == id {
            return Some(next.into());
        }
        next = after & !3;
    }
    None
}

/// Where the memory begins that base address register `bar` describes, as it is set now.
pub fn memory_bar(at: Sbdf, bar: u8) -> Option<MachAddr> {
    let register = |n: u8| read32(at, reg::BAR0 + u16::from(n) * 4);
    let low = match bar {
        0..=5 => register(bar),
        _ => return None,
    };
    if low & 1 != 0 {
        return None;
    }
    let high = if low & 6 == 4 && bar < 5 { register(bar + 1) } else { 0 };
    let base = u64::from(high) << 32 | u64::from(low & !15);
    (base != 0).then_some(MachAddr::new(base))
}

/// A function of a device.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Where it is.
    pub at: Sbdf,
    /// Header layout: 0 device, 1 bridge.
    pub header: u8,
    /// Offset of its MSI capability.
    pub msi: Option<u16>,
    /// Offset of its MSI-X capability.
    pub msix: Option<u16>,
    /// Offset of its PCI Express capability.
    pub express: Option<u16>,
    /// The bridge to its bus, unless that is a root bus.
    pub bridge: Option<Sbdf>,
}

/// Kinds of PCI Express functions (capabilities register, bits 4-7) that are bridges to conventional PCI.
const EXPRESS_TO_PCI_BRIDGE: u16 = 7;

impl Function {
    /// Does it offer a function-level reset?
    pub fn has_function_reset(&self) -> bool {
        const EXPRESS: u32 = 1 << 28;
        const CONVENTIONAL: u8 = 1 << 1;
        let express = self.express.is_some_and(|cap| read32(self.at, cap + 4) & EXPRESS != 0);
        express
            || find_capability(self.at, CAP_ADVANCED_FEATURES)
                .is_some_and(|cap| read8(self.at, cap + 3) & CONVENTIONAL != 0)
    }

    /// A bridge between PCI Express and conventional PCI, or a conventional one: what lies behind it has no identity of its
    /// own on the bus that the IOMMU sees.
    fn hides_identities(&self) -> bool {
        match self.express {
            None => true,
            Some(cap) => read16(self.at, cap + 2) >> 4 & 15 == EXPRESS_TO_PCI_BRIDGE,
        }
    }

    /// The bridge that puts its own identity on this function's accesses to memory: the one nearest to the root.
    pub fn identity_bridge(&self) -> Option<&'static Function> {
        let mut found = None;
        let mut next = self.bridge;
        while let Some(bridge) = next.and_then(function) {
            if bridge.hides_identities() {
                found = Some(bridge);
            }
            next = bridge.bridge;
        }
        found
    }
}

static FUNCTIONS: Once<Vec<Function>> = Once::new();

/// All functions found at boot.
pub fn functions() -> &'static [Function] {
    FUNCTIONS.get().map_or(&[], Vec::as_slice)
}

/// The function at `at`, if it was there at boot.
pub fn function(at: Sbdf) -> Option<&'static Function> {
    functions().iter().find(|f| f.at == at)
}

/// Finds the functions behind all host bridges.
pub fn init() {
    let mut found = Vec::new();
    scan_bus(0, 0, None, &mut found);
    for range in acpi::tables().ecam.iter().filter(|r| r.segment != 0) {
        scan_bus(range.segment, range.first_bus, None, &mut found);
    }
    info!("PCI: {} functions", found.len());
    FUNCTIONS.call_once(|| found);
}

fn scan_bus(segment: u16, bus: u8, bridge: Option<Sbdf>, found: &mut Vec<Function>) {
    for device in 0..32u8 {
        let first = Sbdf::new(segment, bus, device << 3);
        if read32(first, reg::VENDOR) & 0xffff == 0xffff {
            continue;
        }
        let has_more = read8(first, reg::HEADER_TYPE) & 0x80 != 0;
        for function in 0..if has_more { 8 } else { 1 } {
            scan_function(Sbdf::new(segment, bus, device << 3 | function), bridge, found);
        }
    }
}

fn scan_function(at: Sbdf, bridge: Option<Sbdf>, found: &mut Vec<Function>) {
    let id = read32(at, reg::VENDOR);
    if id & 0xffff == 0xffff {
        return;
    }
    let header = read8(at, reg::HEADER_TYPE) & 0x7f;
    found.push(Function {
        at,
        header,
        msi: find_capability(at, CAP_MSI),
        msix: find_capability(at, CAP_MSIX),
        express: find_capability(at, CAP_EXPRESS),
        bridge,
    });
    if header == 1 {
        let secondary = read8(at, reg::SECONDARY_BUS);
        // Buses behind a bridge have higher numbers, so this ends; anything else is not set up, or a circle.
        if secondary > at.bus {
            scan_bus(at.segment, secondary, Some(at), found);
        }
    }
}
