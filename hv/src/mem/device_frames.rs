//! Frames of devices that the hypervisor keeps to itself, entirely or for writing. Whoever drives such a device says so
//! here.

use crate::mem::{frames, vmap};
use crate::sync::RwLock;
use crate::warn;
use alloc::vec::Vec;
use hv_core::pcicfg::layout::{self, Place};
use hv_core::rangeset::RangeSet;
use x86::{MachAddr, Mfn};
use xen_abi::errno::Errno;

/// Frames that nobody may write, though they may map them: configuration space.
static READ_ONLY_FRAMES: RwLock<RangeSet> = RwLock::new(RangeSet::new());
/// The same for as long as the hypervisor watches them: tables of messages.
static WATCHED_TABLES: RwLock<RangeSet> = RwLock::new(RangeSet::new());
/// The same for as long as a link is kept: registers of network interfaces.
static HELD_REGISTERS: RwLock<Vec<Mfn>> = RwLock::new(Vec::new());
/// Frames that no domain may map: interrupt controllers, the IOMMU.
static HIDDEN_FRAMES: RwLock<RangeSet> = RwLock::new(RangeSet::new());

/// No domain may map these frames.
pub fn hide(first: Mfn, last: Mfn) {
    HIDDEN_FRAMES.write().insert(first.raw(), last.raw()).expect("boot-time ranges are few");
}

/// Domains may map these frames, but not write them.
pub fn watch(first: Mfn, last: Mfn) -> Result<(), Errno> {
    READ_ONLY_FRAMES.write().insert(first.raw(), last.raw()).map_err(|_| Errno::ENOMEM)
}

/// The same, until [`unwatch_table`].
pub fn watch_table(first: Mfn, last: Mfn) -> Result<(), Errno> {
    WATCHED_TABLES.write().insert(first.raw(), last.raw()).map_err(|_| Errno::ENOMEM)
}

/// Ends [`watch_table`] for one frame.
pub fn unwatch_table(frame: Mfn) {
    // A failure leaves it watched: its writers are slower, that is all.
    let _ = WATCHED_TABLES.write().remove(frame.raw(), frame.raw());
}

/// The same, until [`release_registers`].
pub fn hold_registers(frame: Mfn) -> Result<(), Errno> {
    let mut held = HELD_REGISTERS.write();
    held.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    held.push(frame);
    Ok(())
}

/// Ends [`hold_registers`].
pub fn release_registers(frame: Mfn) {
    HELD_REGISTERS.write().retain(|held| *held != frame);
}

/// May no domain map it?
pub fn is_hidden(mfn: Mfn) -> bool {
    HIDDEN_FRAMES.read().contains(mfn.raw())
}

/// Is there a frame among these that no domain may map?
pub fn is_any_hidden(first: Mfn, last: Mfn) -> bool {
    HIDDEN_FRAMES.read().overlaps(first.raw(), last.raw())
}

/// Is it a frame that only the hypervisor writes?
pub fn is_watched(mfn: Mfn) -> bool {
    READ_ONLY_FRAMES.read().contains(mfn.raw())
        || WATCHED_TABLES.read().contains(mfn.raw())
        || HELD_REGISTERS.read().contains(&mfn)
}

/// Could a device's registers be at `first..=last`? Not if that is memory, or something of the hypervisor's.
pub fn may_be_registers(first: Mfn, last: Mfn) -> bool {
    layout::may_be_registers(first.raw(), last.raw(), |frame| {
        let mfn = Mfn::new(frame);
        if frames::frame(mfn).is_some_and(|frame| !frame.is_io()) {
            Place::Ram
        } else if is_hidden(mfn) || READ_ONLY_FRAMES.read().contains(frame) {
            Place::Ours
        } else {
            Place::Other
        }
    })
}

/// Maps registers that a device says are at `addr`, for good. `None`: they cannot be there; or out of memory.
pub fn map_registers(addr: MachAddr, bytes: usize) -> Option<*mut u8> {
    let last = addr.raw().checked_add(bytes.max(1) as u64 - 1)?;
    if !may_be_registers(Mfn::containing(addr), Mfn::containing(MachAddr::new(last))) {
        warn!("A device says that its registers are at {:#x}, which cannot be", addr.raw());
        return None;
    }
    vmap::map_device(addr, bytes)
}
