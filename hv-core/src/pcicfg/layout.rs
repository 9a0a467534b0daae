//! What a function's configuration space says of the function, read once: when it is found.
//!
//! A device may have a back door to its own configuration space, which its driver can be told to use. Who read there
//! again where the table of messages or the registers for a reset are would write to where the driver's domain likes.
//! So nothing here is read again; base addresses follow what the hardware domain writes while the function is its own
//! ([`super::Bars`]).

use super::Bars;

/// A function's configuration space.
pub trait Registers {
    /// The 32 bits at `offset`, a multiple of four below 4096; all ones where there is nothing.
    fn read(&self, offset: u16) -> u32;
}

/// Message-signalled interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Msi {
    /// Offset of the capability.
    pub cap: u16,
    /// Addresses have 64 bits.
    pub is_64_bit: bool,
    /// There is a mask bit.
    pub is_maskable: bool,
}

impl Msi {
    /// Offset of the control register.
    pub const fn control(self) -> u16 {
        self.cap + 2
    }
    /// Offset of the data.
    pub const fn data(self) -> u16 {
        self.cap + if self.is_64_bit { 12 } else { 8 }
    }
    /// Offset of the mask bits, if there are any.
    pub const fn mask(self) -> Option<u16> {
        match (self.is_maskable, self.is_64_bit) {
            (false, _) => None,
            (true, true) => Some(self.cap + 16),
            (true, false) => Some(self.cap + 12),
        }
    }
    /// Bytes of the capability (PCI local bus specification 3.0, 6.8.1).
    pub const fn len_bytes(self) -> u16 {
        match (self.is_64_bit, self.is_maskable) {
            (false, false) => 10,
            (true, false) => 14,
            (false, true) => 20,
            (true, true) => 24,
        }
    }
}

/// Messages in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Msix {
    /// Offset of the capability.
    pub cap: u16,
    /// The base address register of the region that has the table.
    pub bar: u8,
    /// Where the table begins there.
    pub offset: u32,
    /// Entries of it.
    pub count: u16,
}

impl Msix {
    /// Bytes of an entry.
    pub const ENTRY_BYTES: u64 = 16;

    /// First and last byte of the table. `None`: the region has no address, or is no memory.
    pub fn table(self, bars: &Bars) -> Option<(u64, u64)> {
        let first = bars.memory(self.bar)?.checked_add(self.offset.into())?;
        Some((first, first.checked_add(u64::from(self.count) * Self::ENTRY_BYTES - 1)?))
    }
}

/// PCI Express.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Express {
    /// Offset of the capability.
    pub cap: u16,
    /// What it is on its link: see [`kind`].
    pub kind: u8,
}

/// Kinds of PCI Express functions.
pub mod kind {
    /// The port of a root complex.
    pub const ROOT_PORT: u8 = 4;
    /// The port of a switch towards devices.
    pub const DOWNSTREAM: u8 = 6;
    /// A bridge to conventional PCI.
    pub const TO_PCI_BRIDGE: u8 = 7;
}

/// First and last byte of a part of configuration space.
pub type Range = (u16, u16);

/// What a frame of the machine's addresses is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Memory.
    Ram,
    /// Registers that the hypervisor keeps to itself, entirely or for writing: interrupt controllers, configuration
    /// space.
    Ours,
    /// Anything else.
    Other,
}

/// The first megabyte: memory, the firmware's, and of the times of ISA.
const LOW_MEMORY_END: u64 = 0x100;

/// Could a device's registers be in the frames `first..=last`, as it says?
pub fn may_be_registers(first: u64, last: u64, place: impl Fn(u64) -> Place) -> bool {
    first >= LOW_MEMORY_END && (first..=last).all(|frame| place(frame) == Place::Other)
}

/// The frames of a table of messages, `first..=last`, in which none of the `others` has its own: first and last frames
/// of theirs.
pub fn unshared<I: Iterator<Item = (u64, u64)>>(
    (first, last): (u64, u64),
    others: impl Fn() -> I,
) -> impl Iterator<Item = u64> {
    (first..=last).filter(move |frame| !others().any(|(first, last)| (first..=last).contains(frame)))
}

/// Extended capabilities that make a function answer at other addresses than its base address registers say: resizable
/// regions, those of virtual functions, and virtual functions themselves.
const MOVING: [u16; 3] = [0x15, 0x24, 0x10];

/// What is known of a function for as long as it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Who made it.
    pub vendor: u16,
    /// What it is, in its maker's numbering.
    pub device: u16,
    /// What it is, in 24 bits.
    pub class: u32,
    /// Layout of its header: 0 device, 1 bridge.
    pub header: u8,
    /// The device has several functions, if this is the first of them.
    pub is_multi: bool,
    /// Message-signalled interrupts.
    pub msi: Option<Msi>,
    /// The same, in a table.
    pub msix: Option<Msix>,
    /// PCI Express.
    pub express: Option<Express>,
    /// Offset of the capability by which it is put to sleep.
    pub power: Option<u16>,
    /// It offers a function-level reset.
    pub has_reset: bool,
    /// Offset of the access control services.
    pub acs: Option<u16>,
    /// Extended capabilities that are nobody's while the function is away from the hardware domain.
    pub moving: [Option<Range>; MOVING.len()],
}

const VENDOR: u16 = 0x00;
const STATUS: u16 = 0x04;
const CLASS: u16 = 0x08;
const HEADER: u16 = 0x0c;
const CAPABILITIES: u16 = 0x34;
const EXTENDED: u16 = 0x100;
const CAP_POWER: u8 = 0x01;
const CAP_MSI: u8 = 0x05;
const CAP_EXPRESS: u8 = 0x10;
const CAP_MSIX: u8 = 0x11;
const CAP_ADVANCED_FEATURES: u8 = 0x13;
const EXT_ACS: u16 = 0x0d;

/// Offset of the capability `id` in the function's list.
pub fn find_capability(registers: &impl Registers, id: u8) -> Option<u16> {
    const HAS_CAPABILITIES: u32 = 1 << (16 + 4);
    if registers.read(STATUS) & HAS_CAPABILITIES == 0 {
        return None;
    }
    let [first, ..] = registers.read(CAPABILITIES).to_le_bytes();
    let mut next = first & !3;
    // A list of 4-byte entries in 192 bytes: longer means it is a circle.
    for _ in 0..48 {
        if next < 0x40 {
            return None;
        }
        let [found, after, ..] = registers.read(next.into()).to_le_bytes();
        if found == id {
            return Some(next.into());
        }
        next = after & !3;
    }
    None
}

/// Where the extended capability `id` is.
fn find_extended(registers: &impl Registers, id: u16) -> Option<Range> {
    let mut next = EXTENDED;
    let mut found = None;
    // The same for 8-byte entries in 3840 bytes. The next one in memory is where this one ends at the latest.
    let mut end = 4096;
    for _ in 0..480 {
        let head = registers.read(next);
        let [low, high, ..] = head.to_le_bytes();
        if head == 0 || head == u32::MAX {
            break;
        }
        if found.is_none() && u16::from_le_bytes([low, high]) == id {
            found = Some(next);
        }
        if found.is_some_and(|at| next > at && next < end) {
            end = next;
        }
        let [_, _, link_low, link_high] = head.to_le_bytes();
        next = u16::from_le_bytes([link_low, link_high]) >> 4 & !3;
        if next < EXTENDED {
            break;
        }
    }
    found.map(|at| (at, end - 1))
}

impl Layout {
    /// Reads it. `None`: there is no function.
    pub fn read(registers: &impl Registers) -> Option<Self> {
        let [v0, v1, d0, d1] = registers.read(VENDOR).to_le_bytes();
        let vendor = u16::from_le_bytes([v0, v1]);
        if vendor == u16::MAX {
            return None;
        }
        let [_, _, header, _] = registers.read(HEADER).to_le_bytes();
        let find = |id| find_capability(registers, id);
        let express = find(CAP_EXPRESS).map(|cap| {
            let [_, _, flags, _] = registers.read(cap).to_le_bytes();
            Express { cap, kind: flags >> 4 }
        });
        const EXPRESS_RESET: u32 = 1 << 28;
        const CONVENTIONAL_RESET: u32 = 1 << 25;
        let has_reset = express.is_some_and(|e| registers.read(e.cap + 4) & EXPRESS_RESET != 0)
            || find(CAP_ADVANCED_FEATURES).is_some_and(|cap| registers.read(cap) & CONVENTIONAL_RESET != 0);
        let extended = |id| express.and_then(|_| find_extended(registers, id));
        Some(Self {
            vendor,
            device: u16::from_le_bytes([d0, d1]),
            class: registers.read(CLASS) >> 8,
            header: header & 0x7f,
            is_multi: header & 0x80 != 0,
            msi: find(CAP_MSI).map(|cap| msi(cap, registers.read(cap))),
            msix: find(CAP_MSIX).and_then(|cap| msix(cap, registers.read(cap), registers.read(cap + 4))),
            express,
            power: find(CAP_POWER),
            has_reset,
            acs: extended(EXT_ACS).map(|(at, _)| at),
            moving: MOVING.map(extended),
        })
    }
}

fn msi(cap: u16, head: u32) -> Msi {
    Msi { cap, is_64_bit: head >> (16 + 7) & 1 != 0, is_maskable: head >> (16 + 8) & 1 != 0 }
}

/// `None`: the table would be in no region.
fn msix(cap: u16, head: u32, place: u32) -> Option<Msix> {
    let [bar, ..] = (place & 7).to_le_bytes();
    let [_, _, low, high] = head.to_le_bytes();
    let count = (u16::from_le_bytes([low, high]) & 0x7ff) + 1;
    (bar < 6).then_some(Msix { cap, bar, offset: place & !7, count })
}

#[cfg(test)]
mod tests;
