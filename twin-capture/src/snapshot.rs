//! A stored snapshot: physical memory, the page tables in it, symbols, sections, device windows.

use crate::Result;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use twin_kernel::driver::{self, Live};
use twin_kernel::net::Interrupts;
use twin_kernel::symbols::Symbols;
use twin_kernel::{LiveKernel, ModuleInfo};

/// A leaf mapping of the kernel half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Virtual address.
    pub address: u64,
    /// Physical address.
    pub physical: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Writable at every level.
    pub writable: bool,
    /// Executable at every level.
    pub executable: bool,
}

/// A snapshot in memory. Physical memory is one vector; the stored file is never changed.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Where it is stored.
    pub dir: PathBuf,
    /// Physical memory.
    pub ram: Vec<u8>,
    /// Physical address of the L4 table.
    pub cr3: u64,
    /// Kernel release.
    pub release: String,
    /// Driver captured.
    pub driver: String,
    /// Interface name.
    pub netdev: String,
    /// Legacy interrupt of the device.
    pub irq: u32,
    /// Interrupts of the device if message-signalled.
    pub msi_irqs: Vec<u32>,
    /// Device windows: first and last physical address, resource flags.
    pub windows: Vec<(u64, u64, u64)>,
    /// Registers of the device that were not zero: physical address and value.
    pub registers: Vec<(u64, u32)>,
    /// Modules, by name.
    pub modules: BTreeMap<String, ModuleInfo>,
    /// All symbols.
    pub symbols: Symbols,
    by_name: BTreeMap<String, u64>,
}

fn number(text: &str) -> Option<u64> {
    text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u64::from_str_radix(hex, 16).ok())
}

const PAGE: u64 = 4096;
const PTE_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const PTE_PRESENT: u64 = 1;
const PTE_WRITABLE: u64 = 2;
const PTE_LARGE: u64 = 1 << 7;
const PTE_NO_EXECUTE: u64 = 1 << 63;

impl Snapshot {
    /// Opens the snapshot in `dir`.
    pub fn open(dir: &Path) -> Result<Self> {
        let index = std::fs::read_to_string(dir.join("index")).map_err(|e| format!("{}: {e}", dir.display()))?;
        let mut lines = index.lines();
        if lines.next() != Some("tandem-snapshot 1") {
            return Err(format!("{}: not a snapshot, or of another version", dir.display()));
        }
        let mut s = Self {
            dir: dir.to_path_buf(),
            ram: Vec::new(),
            cr3: 0,
            release: String::new(),
            driver: String::new(),
            netdev: String::new(),
            irq: 0,
            msi_irqs: Vec::new(),
            windows: Vec::new(),
            registers: Vec::new(),
            modules: BTreeMap::new(),
            symbols: Symbols::read(index.lines().filter_map(|line| line.strip_prefix("sym "))),
            by_name: BTreeMap::new(),
        };
        let mut ram_bytes = 0;
        for line in lines {
            s.line(line, &mut ram_bytes).ok_or_else(|| format!("snapshot index: cannot read \"{line}\""))?;
        }
        for y in s.symbols.iter() {
            let name = y.module.map_or_else(|| y.name.to_owned(), |m| format!("{m}:{}", y.name));
            s.by_name.entry(name).or_insert(y.address);
        }
        s.ram = vec![0; usize::try_from(ram_bytes).map_err(|e| e.to_string())?];
        File::open(dir.join("ram"))
            .and_then(|mut f| f.read_exact(&mut s.ram))
            .map_err(|e| format!("{}/ram: {e}", dir.display()))?;
        if s.cr3 == 0 || s.cr3 + PAGE > ram_bytes {
            return Err("the snapshot's page-table root is outside of its memory".into());
        }
        Ok(s)
    }

    fn line(&mut self, line: &str, ram_bytes: &mut u64) -> Option<()> {
        let (key, rest) = line.split_once(' ')?;
        let mut words = rest.split_whitespace();
        match key {
            "ram_bytes" => *ram_bytes = number(rest)?,
            "cr3" => self.cr3 = number(rest)?,
            "release" => self.release = rest.to_owned(),
            "driver" => self.driver = rest.to_owned(),
            "netdev" => self.netdev = rest.to_owned(),
            "module" => {
                let name = words.next()?.to_owned();
                let base = number(words.next()?)?;
                let len_bytes = number(words.next()?)?;
                let entry = self.modules.entry(name.clone()).or_default();
                (entry.name, entry.base, entry.len_bytes) = (name, base, len_bytes);
            }
            "section" => {
                let entry = self.modules.entry(words.next()?.to_owned()).or_default();
                entry.sections.push((words.next()?.to_owned(), number(words.next()?)?));
            }
            "pci" => self.irq = u32::try_from(number(words.nth(3)?)?).ok()?,
            "window" => self.windows.push((number(words.next()?)?, number(words.next()?)?, number(words.next()?)?)),
            "register" => {
                self.registers.push((number(words.next()?)?, u32::try_from(number(words.next()?)?).ok()?));
            }
            "msi" => self.msi_irqs.push(rest.parse().ok()?),
            _ => {}
        }
        Some(())
    }

    /// The device's interrupts: the message-signalled ones if there are any, else the legacy one.
    pub fn irqs(&self) -> Vec<u32> {
        if self.msi_irqs.is_empty() {
            vec![self.irq]
        } else {
            self.msi_irqs.clone()
        }
    }

    /// The objects of the driver.
    ///
    /// # Errors
    /// If one is not there, in words.
    pub fn live(&self) -> Result<Live> {
        let drivers = [self.driver.replace('-', "_")];
        let numbers = self.irqs();
        let irqs = Interrupts { numbers: &numbers, are_messages: !self.msi_irqs.is_empty(), drivers: &drivers };
        driver::live(self, &self.netdev, &irqs)
    }

    /// The kernel symbol at or below `address` with its distance.
    pub fn describe(&self, address: u64) -> String {
        match self.symbols.below(address) {
            Some(s) if address - s.address < 1 << 20 => format!("{}+{:#x}", s.name, address - s.address),
            _ => format!("{address:#x}"),
        }
    }

    fn entry(&self, table: u64, index: u64) -> u64 {
        self.physical_u64((table & PTE_ADDRESS) + index * 8).unwrap_or(0)
    }

    fn physical_u64(&self, physical: u64) -> Option<u64> {
        let at = usize::try_from(physical).ok()?;
        let bytes = self.ram.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The leaf mapping that covers `address`.
    pub fn mapping(&self, address: u64) -> Option<Mapping> {
        let (mut table, mut writable, mut executable) = (self.cr3, true, true);
        for level in (0..4u32).rev() {
            let shift = 12 + 9 * level;
            let entry = self.entry(table, address >> shift & 511);
            if entry & PTE_PRESENT == 0 {
                return None;
            }
            writable &= entry & PTE_WRITABLE != 0;
            executable &= entry & PTE_NO_EXECUTE == 0;
            if level == 0 || (level < 3 && entry & PTE_LARGE != 0) {
                let len_bytes = 1 << shift;
                let physical = entry & PTE_ADDRESS & !(len_bytes - 1);
                return Some(Mapping {
                    address: address & !(len_bytes - 1),
                    physical,
                    len_bytes,
                    writable,
                    executable,
                });
            }
            table = entry;
        }
        None
    }

    /// Physical address of `address`.
    pub fn translate(&self, address: u64) -> Option<u64> {
        self.mapping(address).map(|m| m.physical + (address - m.address))
    }

    /// Every leaf mapping of the kernel half, in order.
    pub fn mappings(&self) -> Vec<Mapping> {
        let mut out = Vec::new();
        for i in 256..512u64 {
            self.walk(self.entry(self.cr3, i), 3, 0xffff << 48 | i << 39, true, true, &mut out);
        }
        out
    }

    fn walk(&self, entry: u64, level: u32, base: u64, writable: bool, executable: bool, out: &mut Vec<Mapping>) {
        if entry & PTE_PRESENT == 0 {
            return;
        }
        let writable = writable && entry & PTE_WRITABLE != 0;
        let executable = executable && entry & PTE_NO_EXECUTE == 0;
        if level == 0 || (level < 3 && entry & PTE_LARGE != 0) {
            let len_bytes = 1u64 << (12 + 9 * level);
            let physical = entry & PTE_ADDRESS & !(len_bytes - 1);
            out.push(Mapping { address: base, physical, len_bytes, writable, executable });
            return;
        }
        let shift = 12 + 9 * (level - 1);
        for i in 0..512u64 {
            self.walk(self.entry(entry, i), level - 1, base | i << shift, writable, executable, out);
        }
    }

    /// Writes driver-domain memory (for tests and set-up).
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Option<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = address.wrapping_add(done as u64);
            let physical = usize::try_from(self.translate(at)?).ok()?;
            let step = left_in_page(at).min(bytes.len() - done);
            self.ram.get_mut(physical..physical.checked_add(step)?)?.copy_from_slice(&bytes[done..done + step]);
            done += step;
        }
        Some(())
    }
}

/// Bytes from `at` to the end of its page.
#[allow(clippy::cast_possible_truncation, reason = "a page at most")]
fn left_in_page(at: u64) -> usize {
    (PAGE - at % PAGE) as usize
}

impl LiveKernel for Snapshot {
    fn read(&self, address: u64, out: &mut [u8]) -> Option<()> {
        let mut done = 0;
        while done < out.len() {
            let at = address.wrapping_add(done as u64);
            let physical = usize::try_from(self.translate(at)?).ok()?;
            let step = left_in_page(at).min(out.len() - done);
            out[done..done + step].copy_from_slice(self.ram.get(physical..physical.checked_add(step)?)?);
            done += step;
        }
        Some(())
    }

    fn is_writable(&self, address: u64) -> bool {
        self.mapping(address).is_some_and(|page| page.writable)
    }

    fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    fn module(&self, name: &str) -> Option<&ModuleInfo> {
        self.modules.get(name)
    }

    fn symbol(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).copied()
    }
}
