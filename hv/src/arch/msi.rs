//! Message-signalled interrupts: the hypervisor alone writes messages and mask bits.

use crate::arch::pci::{self, Sbdf};
use crate::mem::vmap;
use crate::sync::Mutex;
use alloc::vec::Vec;
use x86::MachAddr;

const CONTROL: u16 = 2;
const MSI_ENABLE: u16 = 1 << 0;
const MSI_MULTIPLE: u16 = 7 << 4;
const MSI_64_BIT: u16 = 1 << 7;
const MSI_MASKABLE: u16 = 1 << 8;
const MSIX_ENABLE: u16 = 1 << 15;
const MSIX_MASK_ALL: u16 = 1 << 14;
const MSIX_SIZE: u16 = 0x7ff;
const MSIX_TABLE: u16 = 4;
const MSIX_ENTRY_BYTES: usize = 16;
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

/// Programs the function's MSI capability at `cap` with one message and enables it.
pub fn enable_msi(at: Sbdf, cap: u16, message: Message) {
    let control = pci::read16(at, cap + CONTROL);
    pci::write16(at, cap + CONTROL, control & !(MSI_ENABLE | MSI_MULTIPLE));
    let [low, high] = halves(message.addr);
    pci::write32(at, cap + 4, low);
    let data = if control & MSI_64_BIT != 0 {
        pci::write32(at, cap + 8, high);
        cap + 12
    } else {
        cap + 8
    };
    pci::write(at, data, pci::Width::W16, message.data);
    pci::write16(at, cap + CONTROL, control & !MSI_MULTIPLE | MSI_ENABLE);
}

/// Sends the function's MSI to where `message` says, with the vector that it has: the low half of the address, in one
/// write, so that it need not be masked meanwhile.
pub fn steer_msi(at: Sbdf, cap: u16, message: Message) {
    let [low, _] = halves(message.addr);
    pci::write32(at, cap + 4, low);
}

/// Disables the function's MSI capability.
pub fn disable_msi(at: Sbdf, cap: u16) {
    let control = pci::read16(at, cap + CONTROL);
    pci::write16(at, cap + CONTROL, control & !MSI_ENABLE);
}

/// Masks or unmasks an MSI, if the function can.
pub fn set_msi_masked(at: Sbdf, cap: u16, masked: bool) {
    let control = pci::read16(at, cap + CONTROL);
    if control & MSI_MASKABLE != 0 {
        let register = cap + if control & MSI_64_BIT != 0 { 16 } else { 12 };
        let others = pci::read32(at, register) & !1;
        pci::write32(at, register, others | u32::from(masked));
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

/// Tables of functions, each mapped once and together with where it was: the owner may move BARs. There is room for all
/// from the boot on, so a domain's use of a device leaves nothing behind in the heap.
static TABLES: Mutex<Vec<(u64, MsixTable)>> = Mutex::new(Vec::new());

/// Makes room for the tables of all functions that were found.
pub fn init() {
    TABLES.lock().reserve_exact(pci::functions().iter().filter(|f| f.msix.is_some()).count());
}

impl MsixTable {
    /// The table of the function with capability `cap`; `addr` is its machine address as [`msix_table_addr`] computes it.
    pub fn map(at: Sbdf, cap: u16, addr: u64) -> Option<Self> {
        let mut tables = TABLES.lock();
        let known = tables.iter().position(|(_, table)| table.at == at);
        if let Some((_, table)) = known.map(|n| tables[n]).filter(|(mapped_addr, _)| *mapped_addr == addr) {
            return Some(table);
        }
        let count = (pci::read16(at, cap + CONTROL) & MSIX_SIZE) + 1;
        let entries = vmap::map_device(MachAddr::new(addr), usize::from(count) * MSIX_ENTRY_BYTES)? as usize;
        let table = Self { at, cap, entries, count };
        match known {
            Some(n) => tables[n] = (addr, table),
            None => tables.push((addr, table)),
        }
        Some(table)
    }

    fn word(&self, entry: u16, word: usize) -> Option<*mut u32> {
        (entry < self.count).then_some((self.entries + usize::from(entry) * MSIX_ENTRY_BYTES + word * 4) as *mut u32)
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
    pub fn enable(&self) {
        let control = pci::read16(self.at, self.cap + CONTROL);
        if control & MSIX_ENABLE == 0 {
            pci::write16(self.at, self.cap + CONTROL, control | MSIX_ENABLE | MSIX_MASK_ALL);
            for entry in 0..self.count {
                let _ = self.set_masked(entry, true);
            }
        }
        pci::write16(self.at, self.cap + CONTROL, control & !MSIX_MASK_ALL | MSIX_ENABLE);
    }
}

/// Machine address and bytes of the function's MSI-X table, from the BAR as it is set now.
pub fn msix_table_addr(at: Sbdf, cap: u16) -> Option<(u64, u64)> {
    let where_ = pci::read32(at, cap + MSIX_TABLE);
    let base = pci::memory_bar(at, u8::try_from(where_ & 7).ok()?)?.raw();
    let count = u64::from(pci::read16(at, cap + CONTROL) & MSIX_SIZE) + 1;
    Some((base + u64::from(where_ & !7), count * MSIX_ENTRY_BYTES as u64))
}

#[allow(clippy::cast_possible_truncation, reason = "split into halves")]
const fn halves(addr: u64) -> [u32; 2] {
    [addr as u32, (addr >> 32) as u32]
}
