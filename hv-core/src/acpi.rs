//! The static ACPI tables that a hypervisor needs, read from bytes (ACPI specification 6.4, chapters 5.2 and 20).
//!
//! Firmware is not trusted to be right: every field is looked up with a bound, and what is missing reads as nothing.

use crate::pcicfg::Sbdf;
use alloc::vec::Vec;

/// Bytes in the header that all tables share.
pub const HEADER_BYTES: usize = 36;

fn number<const N: usize>(table: &[u8], at: usize) -> Option<u64> {
    let bytes = table.get(at..)?.first_chunk::<N>()?;
    Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

fn u8_at(table: &[u8], at: usize) -> Option<u8> {
    table.get(at).copied()
}

fn u16_at(table: &[u8], at: usize) -> Option<u16> {
    table.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

fn u32_at(table: &[u8], at: usize) -> Option<u32> {
    table.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

/// Do the bytes sum up to zero, as those of a valid table do?
pub fn checksum_is_right(table: &[u8]) -> bool {
    table.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

/// Signature and length from a table's header.
pub fn header(table: &[u8]) -> Option<([u8; 4], usize)> {
    let length = u32_at(table, 4)? as usize;
    (length >= HEADER_BYTES).then_some((*table.first_chunk()?, length))
}

/// Finds the root pointer in `memory` (on 16-byte borders) and returns where the root table is and whether it is the
/// XSDT.
pub fn find_root(memory: &[u8]) -> Option<(u64, bool)> {
    (0..memory.len()).step_by(16).find_map(|at| root(memory.get(at..)?))
}

/// Where a BIOS has its extended data area, by the word that it leaves in low memory. `None`: it has none.
pub fn extended_bios_data(pointer: &[u8]) -> Option<u64> {
    number::<2>(pointer, 0).map(|segment| segment << 4).filter(|&addr| addr >= 0x400)
}

/// Reads a root pointer structure.
pub fn root(rsdp: &[u8]) -> Option<(u64, bool)> {
    if !rsdp.starts_with(b"RSD PTR ") || !checksum_is_right(rsdp.get(..20)?) {
        return None;
    }
    let xsdt = number::<8>(rsdp, 24).filter(|&addr| addr != 0 && u8_at(rsdp, 15).is_some_and(|revision| revision >= 2));
    match xsdt {
        Some(addr) if checksum_is_right(rsdp.get(..36)?) => Some((addr, true)),
        _ => Some((number::<4>(rsdp, 16)?, false)),
    }
}

/// Addresses of the tables that a root table lists.
pub fn listed_tables(root: &[u8], is_xsdt: bool) -> Vec<u64> {
    let body = root.get(HEADER_BYTES..).unwrap_or_default();
    if is_xsdt {
        body.chunks_exact(8).filter_map(|entry| number::<8>(entry, 0)).collect()
    } else {
        body.chunks_exact(4).filter_map(|entry| number::<4>(entry, 0)).collect()
    }
}

/// A processor as the MADT lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "ACPI's names")]
pub struct Processor {
    pub apic_id: u32,
    pub acpi_id: u32,
    /// It can be started now.
    pub enabled: bool,
}

/// An I/O APIC as the MADT lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "ACPI's names")]
pub struct IoApic {
    pub id: u8,
    pub addr: u64,
    pub gsi_base: u32,
}

/// An ISA interrupt that is wired differently from what its number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "ACPI's names")]
pub struct Override {
    pub irq: u8,
    pub gsi: u32,
    pub level: bool,
    pub active_low: bool,
}

/// Multiple APIC Description Table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "ACPI's names")]
pub struct Madt {
    pub local_apic: u64,
    pub processors: Vec<Processor>,
    pub io_apics: Vec<IoApic>,
    pub overrides: Vec<Override>,
}

impl Madt {
    /// Reads the table.
    pub fn parse(table: &[u8]) -> Option<Self> {
        let mut madt = Self { local_apic: number::<4>(table, 36)?, ..Self::default() };
        let mut rest = table.get(44..)?;
        while let &[kind, length, ..] = rest {
            let Some(entry) = rest.get(..usize::from(length)).filter(|entry| entry.len() >= 2) else { break };
            // An entry that is too short for its kind is left out.
            let _ = madt.add(kind, entry);
            rest = &rest[entry.len()..];
        }
        Some(madt)
    }

    /// APIC ids of the processors to be started by `running`, in order, each once; and those that are listed again, as
    /// in an entry of either kind. One that runs must not be started: it would begin anew, on the stack and with the
    /// number of another one.
    pub fn others(&self, running: u32) -> (Vec<u32>, Vec<u32>) {
        let (mut ids, mut repeated) = (Vec::new(), Vec::new());
        for processor in self.processors.iter().filter(|p| p.enabled) {
            let list = if ids.contains(&processor.apic_id) { &mut repeated } else { &mut ids };
            list.push(processor.apic_id);
        }
        ids.retain(|id| *id != running);
        (ids, repeated)
    }

    fn add(&mut self, kind: u8, entry: &[u8]) -> Option<()> {
        match kind {
            0 => self.processors.push(Processor {
                acpi_id: u8_at(entry, 2)?.into(),
                apic_id: u8_at(entry, 3)?.into(),
                enabled: u32_at(entry, 4)? & 1 != 0,
            }),
            1 => self.io_apics.push(IoApic {
                id: u8_at(entry, 2)?,
                addr: number::<4>(entry, 4)?,
                gsi_base: u32_at(entry, 8)?,
            }),
            2 => {
                // Polarity: 1 high, 3 low; trigger: 1 edge, 3 level; 0 means the bus's default, and ISA's is edge,
                // high.
                let flags = u16_at(entry, 8)?;
                self.overrides.push(Override {
                    irq: u8_at(entry, 3)?,
                    gsi: u32_at(entry, 4)?,
                    level: flags >> 2 & 3 == 3,
                    active_low: flags & 3 == 3,
                });
            }
            5 => self.local_apic = number::<8>(entry, 4)?,
            9 => self.processors.push(Processor {
                apic_id: u32_at(entry, 4)?,
                enabled: u32_at(entry, 8)? & 1 != 0,
                acpi_id: u32_at(entry, 12)?,
            }),
            _ => {}
        }
        Some(())
    }
}

/// What is used of the Fixed ACPI Description Table. Zero ports do not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "ACPI's names")]
pub struct Fadt {
    pub dsdt: u64,
    pub sci_irq: u16,
    pub pm1a_control: u16,
    pub pm1b_control: u16,
    pub pm_timer: u16,
    pub pm_timer_is_32_bit: bool,
    pub reset: Option<Reset>,
}

/// How to reset the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "ACPI's names")]
pub struct Reset {
    /// 0 memory, 1 port, 2 PCI configuration space of bus 0.
    pub space: u8,
    pub addr: u64,
    pub value: u8,
}

impl Fadt {
    /// Reads the table.
    pub fn parse(table: &[u8]) -> Option<Self> {
        let port = |at: usize| u32_at(table, at).and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
        let flags = u32_at(table, 112).unwrap_or(0);
        let reset =
            || Some(Reset { space: u8_at(table, 116)?, addr: number::<8>(table, 120)?, value: u8_at(table, 128)? });
        Some(Self {
            dsdt: number::<8>(table, 140).filter(|&addr| addr != 0).or_else(|| number::<4>(table, 40))?,
            sci_irq: u16_at(table, 46)?,
            pm1a_control: port(64),
            pm1b_control: port(68),
            pm_timer: port(76),
            pm_timer_is_32_bit: flags & 1 << 8 != 0,
            reset: reset().filter(|r| flags & 1 << 10 != 0 && r.addr != 0),
        })
    }
}

/// Address of the event timer's registers, if they are in memory.
pub fn hpet_address(table: &[u8]) -> Option<u64> {
    (u8_at(table, 40)? == 0).then(|| number::<8>(table, 44))?
}

/// A range of buses whose configuration space is in memory. `addr` is that of bus 0, whether the range begins with it
/// or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "ACPI's names")]
pub struct Ecam {
    pub addr: u64,
    pub segment: u16,
    pub first_bus: u8,
    pub last_bus: u8,
}

impl Ecam {
    /// Bytes of a bus's configuration space: 256 functions of 4 KiB.
    pub const BUS_BYTES: u64 = 1 << 20;

    /// Machine address of a bus's configuration space. `None`: the bus is not in the range.
    pub fn bus(&self, segment: u16, bus: u8) -> Option<u64> {
        let is_inside = segment == self.segment && (self.first_bus..=self.last_bus).contains(&bus);
        if is_inside {
            self.addr.checked_add(u64::from(bus) * Self::BUS_BYTES)
        } else {
            None
        }
    }

    /// First and last machine address of all of it. `None`: there is none.
    pub fn span(&self) -> Option<(u64, u64)> {
        let last = self.bus(self.segment, self.last_bus)?.checked_add(Self::BUS_BYTES - 1)?;
        Some((self.bus(self.segment, self.first_bus)?, last))
    }

    /// The function whose configuration space is at a machine address. `None`: no function of the range.
    pub fn function_at(&self, addr: u64) -> Option<Sbdf> {
        let offset = addr.checked_sub(self.addr)?;
        let bus = u8::try_from(offset / Self::BUS_BYTES).ok()?;
        let [devfn, ..] = (offset % Self::BUS_BYTES / 4096).to_le_bytes();
        self.bus(self.segment, bus).map(|_| Sbdf::new(self.segment, bus, devfn))
    }
}

/// Reads the MCFG table.
pub fn ecam_ranges(table: &[u8]) -> Vec<Ecam> {
    let entry = |bytes: &[u8]| {
        Some(Ecam {
            addr: number::<8>(bytes, 0)?,
            segment: u16_at(bytes, 8)?,
            first_bus: u8_at(bytes, 10)?,
            last_bus: u8_at(bytes, 11)?,
        })
    };
    table.get(44..).unwrap_or_default().chunks_exact(16).filter_map(entry).collect()
}

/// The sleep types of S5 for PM1a and PM1b, from the package `_S5_` of the DSDT's byte code.
pub fn s5_sleep_types(dsdt: &[u8]) -> Option<(u8, u8)> {
    const PACKAGE: u8 = 0x12;
    let at = dsdt.windows(5).position(|w| w.starts_with(b"_S5_") && w[4] == PACKAGE)? + 5;
    // The package's length takes one byte and as many more as its two top bits say; then comes the number of elements.
    let mut rest = dsdt.get(at + 2 + usize::from(u8_at(dsdt, at)? >> 6)..)?;
    let mut element = || -> Option<u8> {
        let (value, used) = match *rest {
            [0x0a, value, ..] => (value, 2),
            [0x0b, value, _, ..] => (value, 3),
            [value @ (0 | 1), ..] => (value, 1),
            _ => return None,
        };
        rest = &rest[used..];
        Some(value & 7)
    };
    let first = element()?;
    Some((first, element().unwrap_or(0)))
}

#[cfg(test)]
#[path = "acpi_tests.rs"]
mod tests;
