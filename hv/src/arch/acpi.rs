//! Finds the ACPI tables in memory. What they say is parsed in `hv_core::acpi`.

use crate::mem::vmap;
use crate::sync::Once;
use crate::{info, warn};
use alloc::vec::Vec;
use hv_core::acpi::{self, Ecam, Fadt, Madt, HEADER_BYTES};
use x86::MachAddr;

/// A table longer than this is taken for garbage.
const MAX_TABLE_BYTES: usize = 4 << 20;
/// The firmware's area that may hold the root pointer.
const BIOS_AREA: core::ops::Range<u64> = 0xe_0000..0x10_0000;
/// Holds the segment of the extended BIOS data area.
const EBDA_POINTER: u64 = 0x40e;
const EBDA_BYTES: usize = 1024;

/// What the tables say.
#[derive(Debug, Default)]
pub struct Acpi {
    /// Processors and I/O APICs.
    pub madt: Option<Madt>,
    /// Power management.
    pub fadt: Option<Fadt>,
    /// Address of the event timer.
    pub hpet: Option<u64>,
    /// Memory-mapped PCI configuration space.
    pub ecam: Vec<Ecam>,
    /// Address of the DMA-remapping table (Intel VT-d), if there is one.
    pub dmar: Option<MachAddr>,
    /// Address of the I/O virtualization table (AMD-Vi), if there is one.
    pub ivrs: Option<MachAddr>,
}

static ACPI: Once<Acpi> = Once::new();

/// What the tables say; all empty before [`init`] and on machines without ACPI.
pub fn tables() -> &'static Acpi {
    ACPI.call_once(Acpi::default)
}

/// Does as if there were none, also where the firmware shows them to whoever looks.
pub fn do_without() {
    warn!("ACPI is off: one CPU, no I/O APIC");
    ACPI.call_once(Acpi::default);
}

/// Reads the tables. `root` is what the boot loader said about the root table.
pub fn init(root: Option<(MachAddr, bool)>) {
    let acpi = root.or_else(find_root).and_then(|(addr, is_xsdt)| read_all(addr, is_xsdt));
    if acpi.is_none() {
        warn!("No ACPI tables: one CPU, no I/O APIC");
    }
    ACPI.call_once(|| acpi.unwrap_or_default());
}

fn read_all(root: MachAddr, is_xsdt: bool) -> Option<Acpi> {
    let root = read_table(root)?;
    let mut found = Acpi::default();
    for addr in acpi::listed_tables(&root, is_xsdt).into_iter().map(MachAddr::new) {
        let Some(head) = copy(addr, HEADER_BYTES) else { continue };
        match head.get(..4) {
            Some(b"APIC") => found.madt = read_table(addr).as_deref().and_then(Madt::parse),
            Some(b"FACP") => found.fadt = read_table(addr).as_deref().and_then(Fadt::parse),
            Some(b"HPET") => found.hpet = read_table(addr).as_deref().and_then(acpi::hpet_address),
            Some(b"MCFG") => found.ecam = read_table(addr).as_deref().map_or_else(Vec::new, acpi::ecam_ranges),
            Some(b"DMAR") => found.dmar = Some(addr),
            Some(b"IVRS") => found.ivrs = Some(addr),
            _ => {}
        }
    }
    if let Some(madt) = &found.madt {
        let cpus = madt.processors.iter().filter(|p| p.enabled).count();
        info!("ACPI: {cpus} CPUs, {} I/O APICs, {} interrupt overrides", madt.io_apics.len(), madt.overrides.len());
    }
    Some(found)
}

/// Sleep types for power-off, read from the DSDT when they are needed.
pub fn s5_sleep_types() -> Option<(u8, u8)> {
    let dsdt = read_table(MachAddr::new(tables().fadt?.dsdt))?;
    acpi::s5_sleep_types(&dsdt)
}

fn find_root() -> Option<(MachAddr, bool)> {
    // Neither the first page nor what it points to need be RAM: UEFI reserves the first page as a rule.
    let in_ebda = || {
        let pointer = copy(MachAddr::new(EBDA_POINTER), 2)?;
        copy(MachAddr::new(acpi::extended_bios_data(&pointer)?), EBDA_BYTES)
    };
    let length = (BIOS_AREA.end - BIOS_AREA.start) as usize;
    let bios = || copy(MachAddr::new(BIOS_AREA.start), length);
    let (addr, is_xsdt) =
        bios().and_then(|m| acpi::find_root(&m)).or_else(|| in_ebda().and_then(|m| acpi::find_root(&m)))?;
    Some((MachAddr::new(addr), is_xsdt))
}

/// Gives the DMAR table another name, so that domain 0's kernel does not try to drive the IOMMU.
pub fn hide_dmar() {
    hide(tables().dmar);
}

/// The same for the IVRS table.
pub fn hide_ivrs() {
    hide(tables().ivrs);
}

fn hide(table: Option<MachAddr>) {
    const SIGNATURE: usize = 0;
    const CHECKSUM: usize = 9;
    let Some(table) = table.and_then(|addr| vmap::map_firmware_writable(addr, HEADER_BYTES)) else { return };
    // SAFETY: `map_firmware_writable` mapped the header; nobody else looks at it before domain 0 runs.
    unsafe {
        let was = table.add(SIGNATURE).read_volatile();
        table.add(SIGNATURE).write_volatile(b'X');
        let checksum = table.add(CHECKSUM).read_volatile();
        table.add(CHECKSUM).write_volatile(checksum.wrapping_add(was.wrapping_sub(b'X')));
    }
}

/// Copies a table after checking its length and checksum.
pub fn read_table(addr: MachAddr) -> Option<Vec<u8>> {
    let (_, length) = acpi::header(&copy(addr, HEADER_BYTES)?)?;
    if length > MAX_TABLE_BYTES {
        return None;
    }
    copy(addr, length).filter(|table| acpi::checksum_is_right(table))
}

/// Copies firmware memory.
fn copy(addr: MachAddr, bytes: usize) -> Option<Vec<u8>> {
    let from = vmap::map_firmware(addr, bytes)?;
    let mut out = Vec::with_capacity(bytes);
    // SAFETY: `map_firmware` mapped this many bytes; the vector has room for them, and any bytes are valid `u8`s.
    unsafe {
        core::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), bytes);
        out.set_len(bytes);
    }
    Some(out)
}
