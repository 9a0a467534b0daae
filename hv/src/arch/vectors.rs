//! Interrupt vectors: the hypervisor's own, and those given to devices.
//!
//! A device's vector is the same on all CPUs. So sending its interrupt to another CPU changes the destination only, in one
//! write, and an interrupt that is still on its way to the old one is known there.
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

/// No owner.
const FREE: u32 = u32::MAX;

/// Owner of each vector: a number that means something to whoever allocated it.
static OWNERS: [AtomicU32; 256] = [const { AtomicU32::new(FREE) }; 256];
/// Where to look for a free vector next.
static NEXT: Mutex<u8> = Mutex::new(FIRST_DEVICE);

/// Gives `owner` a vector. `None` if all are taken.
pub fn allocate(owner: u32) -> Option<u8> {
    let mut next = NEXT.lock();
    for _ in FIRST_DEVICE..=LAST_DEVICE {
        let vector = *next;
        *next = if vector == LAST_DEVICE { FIRST_DEVICE } else { vector + 1 };
        if vector != x86::vector::INT80 && OWNERS[usize::from(vector)].load(Ordering::Relaxed) == FREE {
            OWNERS[usize::from(vector)].store(owner, Ordering::Release);
            return Some(vector);
        }
    }
    None
}

/// Takes the vector back. The interrupt must be masked at its source.
pub fn release(vector: u8) {
    OWNERS[usize::from(vector)].store(FREE, Ordering::Release);
}

/// How many have an owner.
pub fn count() -> usize {
    OWNERS.iter().filter(|owner| owner.load(Ordering::Relaxed) != FREE).count()
}

/// Who owns `vector`.
#[inline]
pub fn owner(vector: u8) -> Option<u32> {
    let owner = OWNERS[usize::from(vector)].load(Ordering::Acquire);
    (owner != FREE).then_some(owner)
}
