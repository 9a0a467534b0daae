//! Message-signalled interrupts: the hypervisor alone writes messages and mask bits.

use crate::arch::pci::{self, Sbdf};
use crate::mem::device_frames;
use crate::sync::Mutex;
use alloc::vec::Vec;
use hv_core::pcicfg::layout::{Msi, Msix};
use x86::MachAddr;

const MSI_ENABLE: u16 = 1 << 0;
const MSIX_CONTROL: u16 = 2;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_MASK_ALL: u16 = 1 << 14;
const MSIX_ENTRY_MASKED: u32 = 1;

/// What a device writes where to interrupt a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Address.
    pub addr: u64,
    /// Data.
    pub data: u32,
}

impl Message {
    /// Raises `vector` on CPU `apic_id` (below 256; physical destination, fixed, edge).
    pub const fn new(apic_id: u32, vector: u8) -> Self {
        Self { addr: 0xfee0_0000 | (apic_id as u64 & 0xff) << 12, data: vector as u32 }
    }

    /// Raises what the IOMMU was told.
    pub const fn remapped(interrupt: hv_core::iommu::Remapped) -> Self {
        let (addr, data) = interrupt.message();
        Self { addr, data }
    }
}

/// Programs the function's MSI capability with one message and enables it.
pub fn enable_msi(at: Sbdf, msi: Msi, message: Message) {
    disable_msi(at, msi);
    let [low, high] = halves(message.addr);
    pci::write32(at, msi.cap + 4, low);
    if msi.is_64_bit {
        pci::write32(at, msi.cap + 8, high);
    }
    pci::write(at, msi.data(), pci::Width::W16, message.data);
    // With one message only: all its other bits say what the function can, or are 0.
    pci::write16(at, msi.control(), MSI_ENABLE);
}

/// Sends the function's MSI to where `message` says, with the vector that it has: the low half of the address, in one
/// write, so that it need not be masked meanwhile.
pub fn steer_msi(at: Sbdf, msi: Msi, message: Message) {
    let [low, _] = halves(message.addr);
    pci::write32(at, msi.cap + 4, low);
}

/// Disables the function's MSI capability.
pub fn disable_msi(at: Sbdf, msi: Msi) {
    pci::write16(at, msi.control(), 0);
}

/// Masks or unmasks an MSI, if the function can. The masks of messages that it is not told to use stay 0.
pub fn set_msi_masked(at: Sbdf, msi: Msi, masked: bool) {
    if let Some(register) = msi.mask() {
        pci::write32(at, register, masked.into());
    }
}

/// The table of a function's MSI-X entries, mapped.
#[derive(Clone, Copy, Debug)]
pub struct MsixTable {
    at: Sbdf,
    cap: u16,
    /// Where its entries are mapped.
    entries: usize,
    /// How many there are.
    pub count: u16,
}

/// Tables of functions, each mapped once and together with where it was. They stay when their functions go, as what is
/// mapped stays mapped: who comes there finds his own by its address and size. There is room for all that were there at
/// boot, so a domain's use of a device leaves nothing behind in the heap.
static TABLES: Mutex<Vec<(u64, MsixTable)>> = Mutex::new(Vec::new());

/// Makes room for the tables of all functions that were found.
pub fn init() {
    TABLES.lock().reserve_exact(pci::functions().iter().filter(|f| f.layout.msix.is_some()).count());
}

impl MsixTable {
    /// Maps the table that `msix` describes of the function, at `addr`, where it is by base addresses that are known to
    /// be right. `None`: out of memory; or that is memory, or something of the hypervisor's.
    pub fn map(at: Sbdf, msix: Msix, addr: u64) -> Option<Self> {
        let mut tables = TABLES.lock();
        let known = tables.iter().position(|(_, table)| table.at == at);
        // Another device may have come in the place of the one that was there.
        let is_same = |(then, table): &(u64, Self)| (*then, table.cap, table.count) == (addr, msix.cap, msix.count);
        if let Some((_, table)) = known.map(|n| tables[n]).filter(is_same) {
            return Some(table);
        }
        let bytes = u64::from(msix.count) * Msix::ENTRY_BYTES;
        let entries = device_frames::map_registers(MachAddr::new(addr), usize::try_from(bytes).ok()?)? as usize;
        let table = Self { at, cap: msix.cap, entries, count: msix.count };
        match known {
            Some(n) => tables[n] = (addr, table),
            None => {
                tables.try_reserve(1).ok()?;
                tables.push((addr, table));
            }
        }
        Some(table)
    }

    /// The table of the function, if it has been mapped.
    pub fn of(at: Sbdf) -> Option<Self> {
        TABLES.lock().iter().find(|(_, table)| table.at == at).map(|(_, table)| *table)
    }

    fn word(&self, entry: u16, word: usize) -> Option<*mut u32> {
        (entry < self.count)
            .then_some((self.entries + usize::from(entry) * Msix::ENTRY_BYTES as usize + word * 4) as *mut u32)
    }

    /// Writes the message of `entry`, masked meanwhile and after.
    pub fn set(&self, entry: u16, message: Message) -> Option<()> {
        self.set_masked(entry, true)?;
        let [low, high] = halves(message.addr);
        for (word, value) in [low, high, message.data].into_iter().enumerate() {
            // SAFETY: an aligned word inside the mapped table.
            unsafe { self.word(entry, word)?.write_volatile(value) };
        }
        Some(())
    }

    /// Sends `entry` to where `message` says, with the vector that it has. A table entry must be masked while it is
    /// written; what the device has to say meanwhile it says afterwards.
    pub fn steer(&self, entry: u16, message: Message) -> Option<()> {
        let control = self.word(entry, 3)?;
        let [low, _] = halves(message.addr);
        // SAFETY: aligned words inside the mapped table.
        unsafe {
            let before = control.read_volatile();
            control.write_volatile(before | MSIX_ENTRY_MASKED);
            self.word(entry, 0)?.write_volatile(low);
            control.write_volatile(before);
        }
        Some(())
    }

    /// Masks or unmasks `entry`.
    pub fn set_masked(&self, entry: u16, masked: bool) -> Option<()> {
        let control = self.word(entry, 3)?;
        // SAFETY: an aligned word inside the mapped table.
        unsafe {
            let others = control.read_volatile() & !MSIX_ENTRY_MASKED;
            control.write_volatile(others | u32::from(masked));
        }
        Some(())
    }

    /// Masks every entry and switches the function to MSI-X.
    ///
    /// There may be 2048, and interrupts are off: entries are written only, for which nobody waits, and not read, which
    /// takes about a microsecond each. Software must preserve the other bits of an entry's control (PCI Express 5.0,
    /// 7.7.2.9: reserved, or steering tags). They are 0 after a reset, and nobody sets any before this: messages are
    /// the hypervisor's, which sets none, and a driver sets tags of messages that it has.
    pub fn enable(&self) {
        let register = self.cap + MSIX_CONTROL;
        if pci::read16(self.at, register) & MSIX_ENABLE == 0 {
            pci::write16(self.at, register, MSIX_ENABLE | MSIX_MASK_ALL);
            for control in (0..self.count).filter_map(|entry| self.word(entry, 3)) {
                // SAFETY: an aligned word inside the mapped table.
                unsafe { control.write_volatile(MSIX_ENTRY_MASKED) };
            }
        }
        // It arrives after what was written to the table: no configuration write overtakes that.
        // All its other bits say what the function can, or are 0.
        pci::write16(self.at, register, MSIX_ENABLE);
    }
}

#[allow(clippy::cast_possible_truncation, reason = "split into halves")]
const fn halves(addr: u64) -> [u32; 2] {
    [addr as u32, (addr >> 32) as u32]
}
