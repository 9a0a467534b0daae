//! What UEFI firmware leaves behind: the memory map, the system table, and how its run-time services are to be mapped.
//!
//! Everything here was written by firmware and is only believed as far as it can be checked: signatures, bounds.
//! Layouts are those of the UEFI specification 2.10, sections 4 (tables) and 7.2 (memory map).

use core::ops::Range;

/// Bytes of a page, whatever the processor's are.
pub const PAGE: u64 = 4096;
/// `Region::kind`: code and data of the run-time services.
pub const RUNTIME_CODE: u32 = 5;
/// The second.
pub const RUNTIME_DATA: u32 = 6;
/// `Region::attributes`: may be mapped write-back.
pub const WRITE_BACK: u64 = 1 << 3;
/// Not executable.
pub const EXECUTE_PROTECTED: u64 = 1 << 14;
/// Not writable.
pub const READ_ONLY: u64 = 1 << 17;
/// The run-time services need it.
pub const RUNTIME: u64 = 1 << 63;

const DESCRIPTOR_BYTES: usize = 40;
const HEADER_BYTES: usize = 24;
/// More configuration tables than this are not looked at.
const MAX_TABLES: u64 = 256;
/// Longest vendor's name, in 16-bit characters.
pub const VENDOR_CHARS: usize = 100;
/// How much of a configuration table in memory that is otherwise free is kept: nobody says how long one is.
const KEPT_BYTES: u64 = 2 * PAGE;
/// GUID of the table that says which of the run-time services' pages are code and which are data.
const MEMORY_ATTRIBUTES: [u8; 16] =
    [0x1d, 0x91, 0xcf, 0xdc, 0xeb, 0x26, 0x9f, 0x46, 0xa2, 0x20, 0x38, 0xb7, 0xdc, 0x46, 0x12, 0x20];

/// A part of the memory map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// EFI_MEMORY_TYPE.
    pub kind: u32,
    /// Machine address.
    pub start: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// EFI_MEMORY_*.
    pub attributes: u64,
}

impl Region {
    fn parse(descriptor: &[u8]) -> Option<Self> {
        let region = Self {
            kind: u32_at(descriptor, 0)?,
            start: u64_at(descriptor, 8)?,
            bytes: u64_at(descriptor, 24)?.checked_mul(PAGE)?,
            attributes: u64_at(descriptor, 32)?,
        };
        let is_sound = region.start.is_multiple_of(PAGE) && region.start.checked_add(region.bytes).is_some();
        is_sound.then_some(region)
    }

    /// The addresses.
    pub const fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Up to `N` regions; what is alike and adjacent is joined. No heap is needed.
#[derive(Clone, Debug)]
pub struct Regions<const N: usize> {
    list: [Region; N],
    count: usize,
    is_cut: bool,
}

impl<const N: usize> Default for Regions<N> {
    fn default() -> Self {
        Self { list: [Region::default(); N], count: 0, is_cut: false }
    }
}

impl<const N: usize> Regions<N> {
    /// All, in the firmware's order.
    pub fn iter(&self) -> impl Iterator<Item = &Region> {
        self.list[..self.count].iter()
    }

    /// Were there more than there is room for?
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Takes the descriptor at the beginning of `bytes`; a nonsensical one is left out.
    pub fn push(&mut self, bytes: &[u8]) {
        let Some(region) = Region::parse(bytes).filter(|r| r.bytes != 0) else { return };
        if let Some(last) = self.list[..self.count].last_mut() {
            let is_alike = last.kind == region.kind && last.attributes == region.attributes;
            if is_alike && last.range().end == region.start {
                last.bytes += region.bytes;
                return;
            }
        }
        match self.list.get_mut(self.count) {
            Some(slot) => {
                *slot = region;
                self.count += 1;
            }
            None => self.is_cut = true,
        }
    }

    /// The region that `addr` lies in.
    pub fn find(&self, addr: u64) -> Option<&Region> {
        self.iter().find(|r| r.range().contains(&addr))
    }
}

/// Regions of a whole memory map: machines have some hundred descriptors, most of which can be joined.
pub type MemoryMap = Regions<192>;
/// Regions of the memory attributes table: code, constants and data of each run-time driver.
pub type Attributes = Regions<128>;

/// Machine memory as far as it can be read.
pub trait Memory {
    /// Fills `to` from `addr`; `None` if that cannot be read.
    fn read(&self, addr: u64, to: &mut [u8]) -> Option<()>;
}

/// What is used of the firmware's tables.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The specification's version.
    pub revision: u32,
    /// The firmware's version.
    pub firmware_revision: u32,
    /// Its maker, without the terminating zero.
    pub vendor: [u16; VENDOR_CHARS],
    /// Machine address of the configuration tables, and their number.
    pub config_tables: (u64, u32),
    /// The run-time services, if there are any.
    pub services: Option<Services>,
}

/// The run-time services: addresses of functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the specification's names")]
pub struct Services {
    /// The version of their table.
    pub revision: u32,
    pub get_time: u64,
    pub set_time: u64,
    pub get_wakeup_time: u64,
    pub set_wakeup_time: u64,
    pub get_variable: u64,
    pub get_next_variable_name: u64,
    pub set_variable: u64,
    pub get_next_high_monotonic_count: u64,
    pub reset_system: u64,
    pub query_variable_info: u64,
}

impl Tables {
    /// Reads the system table at `addr` and what it refers to. `None` if there is no such table.
    pub fn read(memory: &impl Memory, addr: u64) -> Option<Self> {
        let mut table = [0; 120];
        memory.read(addr, &mut table)?;
        if !table.starts_with(b"IBI SYST") {
            return None;
        }
        let nr_tables = u32::try_from(u64_at(&table, 104)?.min(MAX_TABLES)).ok()?;
        let mut vendor = [0; VENDOR_CHARS];
        let name = u64_at(&table, 24)?;
        for (n, to) in vendor[..VENDOR_CHARS - 1].iter_mut().enumerate() {
            let mut character = [0; 2];
            let is_read = memory.read(name.wrapping_add(2 * n as u64), &mut character).is_some();
            match u16::from_le_bytes(character) {
                0 => break,
                character if is_read => *to = character,
                _ => break,
            }
        }
        Some(Self {
            revision: u32_at(&table, 8)?,
            firmware_revision: u32_at(&table, 32)?,
            vendor,
            config_tables: (u64_at(&table, 112)?, nr_tables),
            services: Services::read(memory, u64_at(&table, 88)?),
        })
    }

    /// GUID and address of each configuration table.
    pub fn config<'a>(&self, memory: &'a impl Memory) -> impl Iterator<Item = ([u8; 16], u64)> + 'a {
        let (first, count) = self.config_tables;
        (0..u64::from(count)).map_while(move |n| {
            let mut entry = [0; 24];
            memory.read(first.checked_add(n * 24)?, &mut entry)?;
            Some((*entry.first_chunk()?, u64_at(&entry, 16)?))
        })
    }

    /// The memory attributes table, empty if there is none.
    pub fn attributes(&self, memory: &impl Memory) -> Attributes {
        let mut found = Attributes::default();
        let Some((_, addr)) = self.config(memory).find(|(guid, _)| *guid == MEMORY_ATTRIBUTES) else { return found };
        let mut head = [0; 16];
        if memory.read(addr, &mut head).is_none() {
            return found;
        }
        let [count, step] = [4, 8].map(|at| u64::from(u32_at(&head, at).unwrap_or(0)));
        if step < DESCRIPTOR_BYTES as u64 || count > 4 * MAX_TABLES {
            return found;
        }
        for n in 0..count {
            let mut descriptor = [0; DESCRIPTOR_BYTES];
            if memory.read(addr + 16 + n * step, &mut descriptor).is_some() {
                found.push(&descriptor);
            }
        }
        found
    }

    /// Pages that hold configuration tables: what of them is in memory that is free otherwise must be kept, because the
    /// hardware domain reads it.
    pub fn kept_pages<'a>(&self, memory: &'a impl Memory) -> impl Iterator<Item = Range<u64>> + 'a {
        self.config(memory).map(|(guid, addr)| {
            let mut head = [0; 16];
            let mut bytes = KEPT_BYTES;
            if guid == MEMORY_ATTRIBUTES && memory.read(addr, &mut head).is_some() {
                let [count, step] = [4, 8].map(|at| u64::from(u32_at(&head, at).unwrap_or(0)).min(4 * MAX_TABLES));
                bytes = bytes.max(16 + count * step);
            }
            addr & !(PAGE - 1)..addr.saturating_add(bytes).next_multiple_of(PAGE)
        })
    }
}

impl Services {
    fn read(memory: &impl Memory, addr: u64) -> Option<Self> {
        let mut table = [0; 136];
        memory.read(addr, &mut table)?;
        if !table.starts_with(b"RUNTSERV") || (u32_at(&table, 12)? as usize) < HEADER_BYTES {
            return None;
        }
        let function = |n: usize| u64_at(&table, HEADER_BYTES + 8 * n);
        Some(Self {
            revision: u32_at(&table, 8)?,
            get_time: function(0)?,
            set_time: function(1)?,
            get_wakeup_time: function(2)?,
            set_wakeup_time: function(3)?,
            get_variable: function(6)?,
            get_next_variable_name: function(7)?,
            set_variable: function(8)?,
            get_next_high_monotonic_count: function(9)?,
            reset_system: function(10)?,
            query_variable_info: function(13)?,
        })
    }
}

/// How a page of the run-time services is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
    /// May be cached.
    pub cache: bool,
}

/// The run-time services' memory in pieces of equal rights. Without an attributes table, code may be written too:
/// firmware that has none keeps data among its code.
pub fn runtime_pieces<'a>(
    map: &'a MemoryMap,
    attributes: &'a Attributes,
) -> impl Iterator<Item = (Range<u64>, Rights)> + 'a {
    map.iter().filter(|region| region.attributes & RUNTIME != 0).flat_map(move |region| {
        let mut at = region.start;
        core::iter::from_fn(move || {
            if at >= region.range().end {
                return None;
            }
            let start = at;
            let rights = rights(region, attributes, start);
            while at < region.range().end && self::rights(region, attributes, at) == rights {
                at += PAGE;
            }
            Some((start..at, rights))
        })
    })
}

fn rights(region: &Region, attributes: &Attributes, page: u64) -> Rights {
    let cache = region.attributes & WRITE_BACK != 0;
    match attributes.find(page) {
        Some(piece) if region.kind == RUNTIME_CODE || region.kind == RUNTIME_DATA => {
            let execute = region.kind == RUNTIME_CODE && piece.attributes & EXECUTE_PROTECTED == 0;
            Rights { write: piece.attributes & READ_ONLY == 0, execute, cache }
        }
        _ => Rights { write: true, execute: region.kind == RUNTIME_CODE, cache },
    }
}

#[cfg(test)]
mod tests;
