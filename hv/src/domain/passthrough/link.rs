//! Links that outlive their drivers: the shell around `hv_core::passthrough::link`.
//!
//! While the next driver begins, it may read the page of registers that matters, but its writes to it fault, and
//! `pv::mmio_ro` has them done here, as far as they leave the link alone. When the driver has begun, the page is its
//! own: the mapping by which it wrote becomes what the driver had asked for, and so does any other at its next write.

use super::{has_stopped, owner_of, ownership, while_owned};
use crate::arch::pci::{self, command, reg, Sbdf};
use crate::arch::pci_reset;
use crate::domain::Domain;
use crate::info;
use crate::mem::device_frames;
use crate::sync::Mutex;
use alloc::vec::Vec;
use hv_core::passthrough::link::{self, Begins, BAR, STATUS};
use hv_core::passthrough::Owner;
use hv_core::pcicfg::Bars;
use x86::{MachAddr, Mfn};
use xen_abi::errno::Errno;

/// Functions whose links are kept. Lock order: after the table of owners, rows 210 and 220 of `docs/architecture.md`.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

struct Kept {
    at: Sbdf,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The next domain has not got it yet.
    Waits,
    /// Its driver begins, and has come so far: its writes to this frame are looked at.
    Begins(Mfn, Begins),
    /// Its driver has begun. Mappings of this frame may be read-only still.
    HasBegun(Mfn),
}

/// See `CHANNELOP_KEEP_LINK`.
pub fn keep(at: Sbdf, d: &Domain) -> Result<(), Errno> {
    let table = ownership().lock();
    let entry = table.find(at).filter(|e| e.owner == owner_of(d)).ok_or(Errno::ENODEV)?;
    if !has_stopped(entry.owner) {
        return Err(Errno::EBUSY);
    }
    if !pci_reset::kind(at).is_some_and(link::is_known) {
        return Err(Errno::EOPNOTSUPP);
    }
    let registers = pci_reset::registers(at, &entry.bars).ok_or(Errno::ENODEV)?;
    let was = pci::read16(at, reg::COMMAND);
    pci::write16(at, reg::COMMAND, was | command::MEMORY);
    let status = registers.read(STATUS);
    pci::write16(at, reg::COMMAND, was);
    if !link::is_up(status) {
        return Err(Errno::ENOTCONN);
    }
    forget(at);
    let mut kept = KEPT.lock();
    kept.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    kept.push(Kept { at, stage: Stage::Waits });
    Ok(())
}

/// The function gets this owner.
pub(super) fn arrives(at: Sbdf, to: Owner, bars: &Bars) {
    let mut kept = KEPT.lock();
    let Some(waiting) = kept.iter_mut().find(|k| k.at == at && k.stage == Stage::Waits) else { return };
    let frame = bars.memory(BAR).map(|addr| Mfn::containing(MachAddr::new(addr)));
    match (to, frame) {
        (Owner::Domain(_), Some(frame)) if device_frames::hold_registers(frame).is_ok() => {
            waiting.stage = Stage::Begins(frame, Begins::default());
            info!("{at}: its link is kept while its driver begins");
        }
        _ => kept.retain(|k| k.at != at),
    }
}

/// The function leaves its owner.
pub(super) fn leaves(at: Sbdf) {
    if KEPT.lock().iter().any(|k| k.at == at && k.stage != Stage::Waits) {
        forget(at);
    }
}

fn forget(at: Sbdf) {
    KEPT.lock().retain(|k| {
        if let (true, Stage::Begins(frame, _)) = (k.at == at, k.stage) {
            device_frames::release_registers(frame);
        }
        k.at != at
    });
}

/// What is to become of a write by `d` to I/O memory that it may only read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registers {
    /// It is to no such registers.
    Others,
    /// It is to registers of this function, whose driver begins.
    Held(Sbdf),
    /// The driver has begun: the mapping may be made writable.
    Free,
}

/// Whose registers are in `frame`?
pub fn registers(d: &Domain, frame: Mfn) -> Registers {
    let found = KEPT.lock().iter().find_map(|k| match k.stage {
        Stage::Begins(held, _) if held == frame => Some((k.at, true)),
        Stage::HasBegun(held) if held == frame => Some((k.at, false)),
        _ => None,
    });
    match found {
        Some((at, is_held)) if super::owner(at) == Some(owner_of(d)) => {
            if is_held {
                Registers::Held(at)
            } else {
                Registers::Free
            }
        }
        _ => Registers::Others,
    }
}

/// Reads a register of [`Registers::Held`].
pub fn read(at: Sbdf, d: &Domain, offset: u16) -> u32 {
    let read = |bars: &Bars| Ok(pci_reset::registers(at, bars).ok_or(Errno::ENODEV)?.read(offset));
    while_owned(at, d, read).unwrap_or(u32::MAX)
}

/// Writes a register of [`Registers::Held`], as far as that leaves the link alone.
pub fn write(at: Sbdf, d: &Domain, offset: u16, value: u32) {
    let write = |bars: &Bars| {
        let registers = pci_reset::registers(at, bars).ok_or(Errno::ENODEV)?;
        let mut kept = KEPT.lock();
        let Some(kept) = kept.iter_mut().find(|k| k.at == at) else { return Err(Errno::ENOENT) };
        let Stage::Begins(frame, driver) = &mut kept.stage else {
            // Another of the driver's writes was the last.
            registers.write(offset, value);
            return Ok(());
        };
        let passed = driver.pass(offset, value);
        if let Some((offset, value)) = passed.first {
            registers.write(offset, value);
        }
        registers.write(offset, passed.value);
        if passed.is_last {
            device_frames::release_registers(*frame);
            kept.stage = Stage::HasBegun(*frame);
        }
        Ok(())
    };
    // Lost where its owner has lost it meanwhile.
    let _ = while_owned(at, d, write);
}
