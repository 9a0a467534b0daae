//! Interrupt vectors: the hypervisor's own, and those given to devices.
//!
//! A device's vector is the same on all CPUs. So sending its interrupt to another CPU changes the destination only, in
//! one write, and an interrupt that is still on its way to the old one is known there.
//!
//! Vectors 0-31 are exceptions. Devices get 0x30..0xf0 except 0x80, which guests raise themselves. The hypervisor's own
//! have the highest priority.

use crate::sync::Mutex;
use core::sync::atomic::{AtomicU32, Ordering};

/// The timer of the running CPU.
pub const TIMER: u8 = 0xf0;
/// Another CPU wants this one to answer its requests and look at its pending work.
pub const KICK: u8 = 0xf1;
/// The local APIC noticed an error.
pub const APIC_ERROR: u8 = 0xfe;
/// The local APIC had an interrupt that went away. Needs no EOI.
pub const SPURIOUS: u8 = 0xff;

const FIRST_DEVICE: u8 = 0x30;
const LAST_DEVICE: u8 = 0xef;
/// What the master and the slave 8259 raise (they are masked, but may raise spurious ones).
pub const PIC_BASE: u8 = 0x20;
/// The last of those.
pub const PIC_LAST: u8 = 0x2f;

/// Whose interrupts arrive with a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A line of the guests' tables: a wire or a message.
    Line(u32),
    /// The serial port.
    Serial,
    /// All IOMMUs.
    Iommu,
}

impl Owner {
    /// As a number in [`OWNERS`]. Lines are few: those of all I/O APICs, and some messages.
    const fn code(self) -> u32 {
        match self {
            Self::Line(line) => line,
            Self::Serial => SERIAL,
            Self::Iommu => IOMMU,
        }
    }

    const fn from_code(code: u32) -> Option<Self> {
        match code {
            FREE | RELEASED => None,
            SERIAL => Some(Self::Serial),
            IOMMU => Some(Self::Iommu),
            line => Some(Self::Line(line)),
        }
    }
}

/// No owner.
const FREE: u32 = u32::MAX;
/// No owner any more: an interrupt may have been on its way to a CPU when it was taken back.
const RELEASED: u32 = u32::MAX - 1;
const SERIAL: u32 = u32::MAX - 2;
const IOMMU: u32 = u32::MAX - 3;

/// Owner of each vector: [`Owner::code`], [`FREE`] or [`RELEASED`].
static OWNERS: [AtomicU32; 256] = [const { AtomicU32::new(FREE) }; 256];
/// Where to look for a free vector next.
static NEXT: Mutex<u8> = Mutex::new(FIRST_DEVICE);

/// Gives `owner` a vector. `None` if all are taken.
pub fn allocate(owner: Owner) -> Option<u8> {
    let mut next = NEXT.lock();
    for _ in FIRST_DEVICE..=LAST_DEVICE {
        let vector = *next;
        *next = if vector == LAST_DEVICE { FIRST_DEVICE } else { vector + 1 };
        if vector != x86::vector::INT80 && self::owner(vector).is_none() {
            OWNERS[usize::from(vector)].store(owner.code(), Ordering::Release);
            return Some(vector);
        }
    }
    None
}

/// Takes the vector back. The interrupt must be masked at its source.
pub fn release(vector: u8) {
    OWNERS[usize::from(vector)].store(RELEASED, Ordering::Release);
}

/// `vector` fired without an owner. `true`: it was on its way when it was taken back; that happens once.
pub fn was_on_its_way(vector: u8) -> bool {
    OWNERS[usize::from(vector)].compare_exchange(RELEASED, FREE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// How many have an owner.
pub fn count() -> usize {
    (0..=u8::MAX).filter(|&vector| owner(vector).is_some()).count()
}

/// Who owns `vector`.
#[inline]
pub fn owner(vector: u8) -> Option<Owner> {
    Owner::from_code(OWNERS[usize::from(vector)].load(Ordering::Acquire))
}
