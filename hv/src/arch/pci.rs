//! PCI configuration space, by ports or by memory (ECAM), and what is found in it.

use crate::arch::acpi;
use crate::arch::insn::{inb, inl, inw, outb, outl, outw};
use crate::info;
use crate::mem::vmap;
use crate::sync::{Mutex, Once};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::fmt;
use x86::MachAddr;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// Registers of the common header.
pub mod reg {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const VENDOR: u16 = 0x00;
    pub const COMMAND: u16 = 0x04;
    pub const STATUS: u16 = 0x06;
    pub const CLASS: u16 = 0x08;
    pub const HEADER_TYPE: u16 = 0x0e;
    pub const BAR0: u16 = 0x10;
    pub const SECONDARY_BUS: u16 = 0x19;
    pub const ROM: u16 = 0x30;
    pub const CAPABILITIES: u16 = 0x34;
    pub const INTERRUPT_LINE: u16 = 0x3c;
    pub const INTERRUPT_PIN: u16 = 0x3d;
}

/// COMMAND: answers port accesses.
pub const COMMAND_IO: u16 = 1 << 0;
/// COMMAND: answers memory accesses.
pub const COMMAND_MEMORY: u16 = 1 << 1;
/// COMMAND: may do DMA.
pub const COMMAND_BUS_MASTER: u16 = 1 << 2;
/// COMMAND: may not raise its interrupt pin.
pub const COMMAND_INTX_DISABLE: u16 = 1 << 10;
const STATUS_CAPABILITIES: u16 = 1 << 4;

/// Capability: message-signalled interrupts.
pub const CAP_MSI: u8 = 0x05;
/// Capability: PCI Express.
pub const CAP_EXPRESS: u8 = 0x10;
/// Capability: MSI-X.
pub const CAP_MSIX: u8 = 0x11;

/// Segment, bus, device and function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sbdf {
    /// PCI segment (host bridge domain).
    pub segment: u16,
    /// Bus.
    pub bus: u8,
    /// Device in the upper five bits, function in the lower three.
    pub devfn: u8,
}

impl Sbdf {
    /// From its parts.
    pub const fn new(segment: u16, bus: u8, devfn: u8) -> Self {
        Self { segment, bus, devfn }
    }
    /// Bus and devfn in 16 bits: a DMA source id.
    pub const fn source_id(self) -> u16 {
        (self.bus as u16) << 8 | self.devfn as u16
    }
}

impl fmt::Display for Sbdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.segment, self.bus, self.devfn >> 3, self.devfn & 7)
    }
}

impl fmt::Debug for Sbdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

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

/// What a base address register decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Which register (0-5), or 6 for the expansion ROM.
    pub index: u8,
    /// Port or machine address.
    pub addr: u64,
    /// Size; a power of two.
    pub bytes: u64,
    /// Ports rather than memory.
    pub is_ports: bool,
    /// A 64-bit memory register, which takes two.
    pub is_64_bit: bool,
    /// Prefetchable memory.
    pub is_prefetchable: bool,
}

/// A function of a device.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Where it is.
    pub at: Sbdf,
    /// Vendor in the low half, device in the high half.
    pub id: u32,
    /// Class, subclass and programming interface, 24 bits.
    pub class: u32,
    /// Header layout: 0 device, 1 bridge.
    pub header: u8,
    /// Offset of its MSI capability.
    pub msi: Option<u16>,
    /// Offset of its MSI-X capability.
    pub msix: Option<u16>,
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
    scan_bus(0, 0, &mut found, 0);
    for range in acpi::tables().ecam.iter().filter(|r| r.segment != 0) {
        scan_bus(range.segment, range.first_bus, &mut found, 0);
    }
    info!("PCI: {} functions", found.len());
    FUNCTIONS.call_once(|| found);
}

fn scan_bus(segment: u16, bus: u8, found: &mut Vec<Function>, depth: u8) {
    for device in 0..32u8 {
        let first = Sbdf::new(segment, bus, device << 3);
        if read32(first, reg::VENDOR) & 0xffff == 0xffff {
            continue;
        }
        let has_more = read8(first, reg::HEADER_TYPE) & 0x80 != 0;
        for function in 0..if has_more { 8 } else { 1 } {
            scan_function(Sbdf::new(segment, bus, device << 3 | function), found, depth);
        }
    }
}

fn scan_function(at: Sbdf, found: &mut Vec<Function>, depth: u8) {
    let id = read32(at, reg::VENDOR);
    if id & 0xffff == 0xffff {
        return;
    }
    let header = read8(at, reg::HEADER_TYPE) & 0x7f;
    found.push(Function {
        at,
        id,
        class: read32(at, reg::CLASS) >> 8,
        header,
        msi: find_capability(at, CAP_MSI),
        msix: find_capability(at, CAP_MSIX),
    });
    if header == 1 {
        let secondary = read8(at, reg::SECONDARY_BUS);
        // Buses behind a bridge have higher numbers; anything else is not set up, or a circle.
        if secondary > at.bus && depth < 32 {
            scan_bus(at.segment, secondary, found, depth + 1);
        }
    }
}

/// The base address registers of a function, measured by writing ones. The function must not be in use: it does not
/// decode meanwhile.
pub fn bars(at: Sbdf) -> Vec<Bar> {
    let count = match read8(at, reg::HEADER_TYPE) & 0x7f {
        0 => 6,
        1 => 2,
        _ => 0,
    };
    let command = read16(at, reg::COMMAND);
    write16(at, reg::COMMAND, command & !(COMMAND_IO | COMMAND_MEMORY));
    let mut bars = Vec::new();
    let mut index = 0;
    while index < count {
        let bar = read_bar(at, index);
        index += if bar.is_some_and(|b| b.is_64_bit) { 2 } else { 1 };
        bars.extend(bar);
    }
    if count == 6 {
        bars.extend(read_rom(at));
    }
    write16(at, reg::COMMAND, command);
    bars
}

/// Writes ones to a register, reads back which bits stick, and restores it.
fn sticky_bits(at: Sbdf, offset: u16) -> (u32, u32) {
    let value = read32(at, offset);
    write32(at, offset, u32::MAX);
    let sticky = read32(at, offset);
    write32(at, offset, value);
    (value, sticky)
}

fn read_bar(at: Sbdf, index: u8) -> Option<Bar> {
    let offset = reg::BAR0 + u16::from(index) * 4;
    let (low, sticky) = sticky_bits(at, offset);
    if low & 1 != 0 {
        // The upper half may be unimplemented: ports have 16 bits.
        let bytes = u64::from((!(sticky & !3) & 0xffff) + 1) & 0xffff;
        let addr = u64::from(low & 0xfffc);
        return (sticky & 0xfffc != 0).then_some(Bar {
            index,
            addr,
            bytes,
            is_ports: true,
            is_64_bit: false,
            is_prefetchable: false,
        });
    }
    let is_64_bit = low & 6 == 4 && index < 5;
    let (high, sticky_high) = if is_64_bit { sticky_bits(at, offset + 4) } else { (0, u32::MAX) };
    let mask = u64::from(sticky_high) << 32 | u64::from(sticky & !15);
    let bar = Bar {
        index,
        addr: u64::from(high) << 32 | u64::from(low & !15),
        bytes: (!mask).wrapping_add(1),
        is_ports: false,
        is_64_bit,
        is_prefetchable: low & 8 != 0,
    };
    (sticky & !15 != 0 || is_64_bit && sticky_high != 0).then_some(bar)
}

fn read_rom(at: Sbdf) -> Option<Bar> {
    const ADDRESS: u32 = 0xffff_f800;
    let value = read32(at, reg::ROM);
    write32(at, reg::ROM, ADDRESS);
    let sticky = read32(at, reg::ROM) & ADDRESS;
    write32(at, reg::ROM, value);
    (sticky != 0).then_some(Bar {
        index: 6,
        addr: u64::from(value & ADDRESS),
        bytes: u64::from(!sticky) + 1,
        is_ports: false,
        is_64_bit: false,
        is_prefetchable: false,
    })
}
