//! PCI configuration space, by ports or by memory (ECAM), and what is found in it.

use crate::arch::acpi;
use crate::cpu::port::{inb, inl, inw, outb, outl, outw};
use crate::info;
use crate::mem::vmap;
use crate::sync::{Mutex, RwLock};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};
use hv_core::acpi::Ecam;
use hv_core::passthrough::{front, isolation};
use hv_core::pcicfg::layout::{self, Layout, Registers};
pub use hv_core::pcicfg::Sbdf;
use hv_core::pcicfg::{self, bridges};
use x86::MachAddr;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// Registers of the common header.
pub mod reg {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const COMMAND: u16 = 0x04;
    pub const STATUS: u16 = 0x06;
    pub const BUSES: u16 = 0x18;
}

/// Bits of the command register.
pub mod command {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const MEMORY: u16 = 1 << 1;
    pub const BUS_MASTER: u16 = 1 << 2;
    pub const SERR: u16 = 1 << 8;
    pub const INTX_DISABLE: u16 = 1 << 10;
}

/// Bits of the status register.
pub mod status {
    #![allow(missing_docs, reason = "the specification's names")]
    pub const INTERRUPT: u16 = 1 << 3;
}

/// Width of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "widths in bits")]
pub enum Width {
    W8,
    W16,
    W32,
}

impl Width {
    /// For 1, 2 or 4 bytes.
    pub const fn of(bytes: u8) -> Self {
        match bytes {
            1 => Self::W8,
            2 => Self::W16,
            _ => Self::W32,
        }
    }
}

/// The ports are a pair: address, then data.
static PORTS: Mutex<()> = Mutex::new(());
/// Where the configuration space of each bus (1 MiB) is mapped, filled as buses are first touched.
static ECAM: Mutex<BTreeMap<(u16, u8), usize>> = Mutex::new(BTreeMap::new());

/// Address of the register in mapped memory, if the bus has ECAM.
fn ecam_address(at: Sbdf, offset: u16) -> Option<usize> {
    let addr = acpi::tables().ecam.iter().find_map(|range| range.bus(at.segment, at.bus))?;
    let base = {
        let mut mapped = ECAM.lock();
        match mapped.get(&(at.segment, at.bus)) {
            Some(base) => *base,
            None => {
                let base = vmap::map_device(MachAddr::new(addr), Ecam::BUS_BYTES as usize)? as usize;
                mapped.insert((at.segment, at.bus), base);
                base
            }
        }
    };
    Some(pcicfg::ecam_register(base, at.devfn, offset))
}

/// Selects a register; the data port's offset. Ports reach segment 0 and the first 256 bytes.
fn select(at: Sbdf, offset: u16) -> Option<u16> {
    if at.segment != 0 || offset >= 256 {
        return None;
    }
    // SAFETY: only selects.
    unsafe { outl(ADDRESS_PORT, ENABLE | u32::from(at.source_id()) << 8 | u32::from(offset & !3)) };
    Some(DATA_PORT + (offset & 3))
}

const fn is_aligned(offset: u16, width: Width) -> bool {
    match width {
        Width::W8 => offset < 4096,
        Width::W16 => offset < 4096 && offset.is_multiple_of(2),
        Width::W32 => offset < 4096 && offset.is_multiple_of(4),
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
        // SAFETY: who may write which register is decided by the callers.
        unsafe {
            match (select(at, offset), width) {
                (Some(port), Width::W8) => outb(port, value as u8),
                (Some(port), Width::W16) => outw(port, value as u16),
                (Some(port), Width::W32) => outl(port, value),
                (None, _) => {}
            }
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

/// A function's configuration space, for `hv_core` to read.
pub struct Space(pub Sbdf);

impl Registers for Space {
    fn read(&self, offset: u16) -> u32 {
        read32(self.0, offset)
    }
}

impl front::Space for Space {
    fn write(&self, offset: u16, value: u32) {
        write32(self.0, offset, value);
    }
}

/// Offset of the capability `id` in the function's list.
pub fn find_capability(at: Sbdf, id: u8) -> Option<u16> {
    layout::find_capability(&Space(at), id)
}

/// A function of a device.
#[derive(Debug)]
pub struct Function {
    /// Where it is.
    pub at: Sbdf,
    /// What its configuration space said when it was found.
    pub layout: Layout,
    /// The bridge to its bus, unless that is a root bus.
    pub bridge: Option<Sbdf>,
    /// A bridge's register of bus numbers, as it was read last: one that was pulled out cannot be asked, and must be
    /// found all the same.
    buses: AtomicU32,
}

impl Function {
    fn new(at: Sbdf, layout: Layout, bridge: Option<Sbdf>) -> Self {
        Self { at, layout, bridge, buses: AtomicU32::new(read32(at, reg::BUSES)) }
    }

    /// A bridge between PCI Express and conventional PCI, or a conventional one: what lies behind it has no identity of
    /// its own on the bus that the IOMMU sees.
    fn hides_identities(&self) -> bool {
        self.layout.express.is_none_or(|express| express.kind == layout::kind::TO_PCI_BRIDGE)
    }

    /// The bridge that puts its own identity on this function's accesses to memory: the one nearest to the root.
    pub fn identity_bridge(&self) -> Option<&'static Function> {
        self.above().filter_map(function).filter(|bridge| bridge.hides_identities()).last()
    }

    /// The bridges above it, from the nearest one up.
    pub fn above(&self) -> impl Iterator<Item = Sbdf> {
        bridges::above(self.bridge, |at| function(at)?.bridge)
    }

    /// Its register of bus numbers, if it is a bridge: its own bus, and the first and the last one behind it.
    pub fn buses(&self) -> Option<[u8; 4]> {
        (self.layout.header == 1).then(|| self.buses.load(Ordering::Relaxed).to_le_bytes())
    }

    /// The bus behind it, if it is a bridge.
    pub fn secondary(&self) -> Option<u8> {
        self.buses().map(|[_, secondary, ..]| secondary)
    }

    /// The hardware domain, whose all bridges are, may have renumbered buses.
    pub fn learn_buses(&self) {
        let held = bridges::learned(self.buses.load(Ordering::Relaxed), read32(self.at, reg::BUSES));
        self.buses.store(held, Ordering::Relaxed);
    }
}

/// A function is never forgotten: those that are gone are kept for when they come back.
static FUNCTIONS: RwLock<Vec<&'static Function>> = RwLock::new(Vec::new());
static GONE: Mutex<Vec<&'static Function>> = Mutex::new(Vec::new());

/// All functions that are there.
pub fn functions() -> impl Deref<Target = Vec<&'static Function>> {
    FUNCTIONS.read()
}

/// The function at `at`, if there is one.
pub fn function(at: Sbdf) -> Option<&'static Function> {
    FUNCTIONS.read().iter().copied().find(|f| f.at == at)
}

/// Finds the functions behind all host bridges. Those that ACPI does not describe other than by a program, which nobody
/// runs here, are found by looking at every bus.
pub fn init() {
    let mut found = Vec::new();
    let mut looked_at = BTreeSet::new();
    let ecam = acpi::tables().ecam.iter().map(|r| (r.segment, r.first_bus..=r.last_bus));
    for (segment, buses) in core::iter::once((0, 0..=u8::MAX)).chain(ecam) {
        for bus in buses {
            scan_bus((segment, bus), None, &mut found, &mut looked_at);
        }
    }
    info!("PCI: {} functions", found.len());
    *FUNCTIONS.write() = found;
}

fn scan_bus(
    at: (u16, u8),
    bridge: Option<Sbdf>,
    found: &mut Vec<&'static Function>,
    looked_at: &mut BTreeSet<(u16, u8)>,
) {
    let (segment, bus) = at;
    if !looked_at.insert(at) {
        return;
    }
    for device in 0..32u8 {
        let mut is_multi = false;
        for n in 0..8 {
            if n != 0 && !is_multi {
                break;
            }
            let at = Sbdf::new(segment, bus, device << 3 | n);
            let Some(layout) = Layout::read(&Space(at)) else {
                if n == 0 {
                    break;
                }
                continue;
            };
            is_multi |= layout.is_multi;
            let function: &'static Function = Box::leak(Box::new(Function::new(at, layout, bridge)));
            found.push(function);
            // Buses behind a bridge have higher numbers, so this ends; anything else is not set up, or a circle.
            if let Some(secondary) = function.secondary().filter(|secondary| *secondary > bus) {
                scan_bus((segment, secondary), Some(at), found, looked_at);
            }
        }
    }
}

/// The hardware domain says that a function is there. `None`: nothing answers, or out of memory.
pub fn add(at: Sbdf) -> Option<&'static Function> {
    if let Some(known) = function(at) {
        return Some(known);
    }
    let layout = Layout::read(&Space(at))?;
    let bridge = bridges::bridge_to(at, functions().iter().filter_map(|f| Some((f.at, f.secondary()?))));
    let mut gone = GONE.lock();
    let function = match gone.iter().position(|f| (f.at, f.layout, f.bridge) == (at, layout, bridge)) {
        Some(n) => gone.swap_remove(n),
        None => Box::leak(Box::new(Function::new(at, layout, bridge))),
    };
    function.learn_buses();
    let mut all = FUNCTIONS.write();
    all.try_reserve(1).ok()?;
    all.push(function);
    Some(function)
}

/// It is there no more.
pub fn remove(at: Sbdf) {
    let mut all = FUNCTIONS.write();
    if let Some(n) = all.iter().position(|f| f.at == at) {
        GONE.lock().push(all.remove(n));
    }
}

/// Has bridges send what a function behind one has for another to the root, where the IOMMU sees it. Once the IOMMU is
/// found.
pub fn separate() {
    const CONTROL: u16 = 6;
    for f in functions().iter().filter(|f| f.layout.header == 1) {
        if let Some(acs) = f.layout.acs {
            write16(f.at, acs + CONTROL, isolation::wanted(read16(f.at, acs + 4)));
        }
    }
}

/// Where a function is, as far as it matters for who can reach whom past the IOMMU.
pub fn place(f: &Function) -> isolation::Place {
    const CONTROL: u16 = 6;
    isolation::Place {
        at: f.at,
        bridge: f.bridge,
        is_bridge: f.layout.header != 0,
        kind: f.layout.express.map(|e| e.kind),
        control: f.layout.acs.map(|acs| read16(f.at, acs + CONTROL)),
    }
}
