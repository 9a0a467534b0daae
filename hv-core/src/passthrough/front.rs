//! What a domain sees of its functions by its PCI front end, and what it may ask of them (public/io/pciif.h): what a
//! PCI back end answers.
//!
//! The domain reads its functions' own configuration space, but for base addresses, which stay where they are and tell
//! their size if a kernel asks as one does, and for the number of the wire's interrupt. What it writes is judged by
//! [`crate::pcicfg`] like everybody's. A function stays in state D0 of its power management: what cannot be reached
//! cannot be reset when the domain dies. Nor does the domain reset it: it would answer nowhere afterwards. Messages are
//! the hypervisor's to program; the domain gets their interrupts.

use crate::pcicfg::layout::{find_capability, Registers};
use crate::pcicfg::{Bars, Sbdf};
use xen_abi::channel_op::PCI_MAX_FUNCTIONS;
use xen_abi::errno::Errno;
use xen_abi::io::pciif::{self as op, MsixEntry, PciOp};

/// The machine, as far as a front end reaches it.
pub trait Machine {
    /// Reads `width` (1, 2 or 4) bytes of a function's configuration space. `None`: it is not the domain's.
    fn read(&mut self, at: Sbdf, offset: u16, width: u8) -> Option<u32>;
    /// Writes some, as far as they are the domain's to write. `None`: as above.
    fn write(&mut self, at: Sbdf, offset: u16, width: u8, value: u32) -> Option<()>;
    /// Gives the domain the function's message `entry`, or that of its MSI if it is `None`: as which interrupt.
    fn map_message(&mut self, at: Sbdf, entry: Option<u16>) -> Result<u32, Errno>;
    /// Takes all messages of the function back.
    fn unmap_messages(&mut self, at: Sbdf);
}

/// A function's configuration space, to find out how long its regions are.
pub trait Space: Registers {
    /// Writes the 32 bits at `offset`.
    fn write(&self, offset: u16, value: u32);
}

const COMMAND: u16 = 0x04;
/// Answer in memory and at ports.
const DECODE: u32 = 3;
const ROM: u16 = 0x30;
/// The number of the wire's interrupt, in the lowest byte.
const INTERRUPT: u16 = 0x3c;
/// Base address registers, and that of the ROM.
const REGIONS: [u16; 7] = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, ROM];
/// What a domain does not set, in a byte of a capability: the state of power management, of which 0 is D0; the
/// function-level resets of PCI Express (bit 15 of device control) and of advanced features.
const NOT_SET: [(u8, u16, u8); 3] = [(0x01, 4, 0x03), (0x10, 9, 0x80), (0x13, 4, 0x01)];
/// The same in the header: start of its self-test.
const BIST: (u16, u8) = (0x0f, 0x40);
/// Who writes ones to at least these bits asks how long a region is. No base address has all of them.
const ASKS: u32 = 0xffff_f800;

/// A base address register as it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Region {
    /// What it holds.
    base: u32,
    /// What it holds after all bits were written as ones.
    size: u32,
    /// They were.
    asks: bool,
}

/// A function, as its domain sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    at: Sbdf,
    devfn: u8,
    wire: u8,
    regions: [Region; REGIONS.len()],
    /// Bytes of which it does not set some bits.
    not_set: [Option<(u16, u8)>; NOT_SET.len() + 1],
}

fn region_at(register: u16) -> Option<usize> {
    REGIONS.iter().position(|other| *other == register)
}

impl Seen {
    /// The function `at` with these base addresses, as `devfn` and with this wire. It answers nowhere while its regions
    /// are measured.
    pub fn new(at: Sbdf, devfn: u8, wire: u8, bars: &Bars, space: &impl Space) -> Self {
        let command = space.read(COMMAND) & 0xffff;
        // Zeros leave the status register, which is the upper half, as it is.
        space.write(COMMAND, command & !DECODE);
        let mut regions = [Region::default(); REGIONS.len()];
        let bases = bars.words.into_iter().chain([bars.rom]);
        for ((region, register), base) in regions.iter_mut().zip(REGIONS).zip(bases) {
            space.write(register, if register == ROM { ASKS } else { u32::MAX });
            *region = Region { base, size: space.read(register), asks: false };
            space.write(register, base);
        }
        space.write(COMMAND, command);
        let mut not_set = [Some(BIST); NOT_SET.len() + 1];
        for (place, (cap, offset, bits)) in not_set.iter_mut().zip(NOT_SET) {
            *place = find_capability(space, cap).map(|cap| (cap + offset, bits));
        }
        Self { at, devfn, wire, regions, not_set }
    }

    fn read(&self, offset: u16, width: u8, machine: &mut impl Machine) -> Option<u32> {
        let register = offset & !3;
        let whole = match region_at(register) {
            Some(n) => self.regions.get(n).map(|region| if region.asks { region.size } else { region.base })?,
            None if register == INTERRUPT => machine.read(self.at, register, 4)? & !0xff | u32::from(self.wire),
            None => return machine.read(self.at, offset, width),
        };
        Some(whole >> (8 * (offset & 3)) & (u32::MAX >> (32 - 8 * u32::from(width))))
    }

    fn write(&mut self, offset: u16, width: u8, value: u32, machine: &mut impl Machine) -> Option<()> {
        let register = offset & !3;
        if let Some(region) = region_at(register).and_then(|n| self.regions.get_mut(n)) {
            region.asks = width == 4 && value & ASKS == ASKS;
            return Some(());
        }
        if register == INTERRUPT {
            return Some(());
        }
        machine.write(self.at, offset, width, self.settable(offset, width, value))
    }

    /// The value without another power state, or a reset.
    fn settable(&self, offset: u16, width: u8, value: u32) -> u32 {
        let inside =
            self.not_set.iter().flatten().filter(|(byte, _)| (offset..offset + u16::from(width)).contains(byte));
        inside.fold(value, |value, (byte, bits)| value & !(u32::from(*bits) << (8 * (byte - offset))))
    }
}

/// All functions of a domain.
#[derive(Clone, Debug, Default)]
pub struct Front {
    functions: [Option<Seen>; PCI_MAX_FUNCTIONS],
}

/// What the answer is: an error, and a value.
type Answer = Result<u32, i32>;

impl Front {
    /// One more. `false`: there are too many, or one is there.
    pub fn add(&mut self, seen: Seen) -> bool {
        if self.functions.iter().flatten().any(|other| other.devfn == seen.devfn || other.at == seen.at) {
            return false;
        }
        let free = self.functions.iter_mut().find(|place| place.is_none());
        free.map(|place| *place = Some(seen)).is_some()
    }

    /// Does what is asked and writes the answer, and interrupts of messages, over it. `messages` are as many as are
    /// asked for, up to what there is room for.
    pub fn serve(&mut self, asked: &mut PciOp, messages: &mut [MsixEntry], machine: &mut impl Machine) {
        let answer = self.answer(asked, messages, machine);
        asked.err = answer.err().unwrap_or(op::XEN_PCI_ERR_SUCCESS);
        asked.value = answer.unwrap_or(0);
    }

    fn answer(&mut self, asked: &PciOp, messages: &mut [MsixEntry], machine: &mut impl Machine) -> Answer {
        let place = u8::try_from(asked.devfn).ok().filter(|_| asked.domain == 0 && asked.bus == 0);
        let is_it = |seen: &&mut Seen| Some(seen.devfn) == place;
        let seen = self.functions.iter_mut().flatten().find(is_it).ok_or(op::XEN_PCI_ERR_DEV_NOT_FOUND)?;
        match asked.cmd {
            op::XEN_PCI_OP_CONF_READ => {
                let (offset, width) = register(asked)?;
                seen.read(offset, width, machine).ok_or(op::XEN_PCI_ERR_DEV_NOT_FOUND)
            }
            op::XEN_PCI_OP_CONF_WRITE => {
                let (offset, width) = register(asked)?;
                seen.write(offset, width, asked.value, machine).ok_or(op::XEN_PCI_ERR_DEV_NOT_FOUND)?;
                Ok(asked.value)
            }
            op::XEN_PCI_OP_ENABLE_MSI => {
                machine.unmap_messages(seen.at);
                machine.map_message(seen.at, None).map_err(|_| op::XEN_PCI_ERR_OP_FAILED)
            }
            op::XEN_PCI_OP_ENABLE_MSIX => {
                machine.unmap_messages(seen.at);
                if messages.is_empty() || asked.value as usize != messages.len() {
                    return Err(op::XEN_PCI_ERR_OP_FAILED);
                }
                map_all(seen.at, messages, machine).map_err(|_| {
                    machine.unmap_messages(seen.at);
                    op::XEN_PCI_ERR_OP_FAILED
                })
            }
            // Linux 6.1 asks for the end of MSI when it means that of MSI-X.
            op::XEN_PCI_OP_DISABLE_MSI | op::XEN_PCI_OP_DISABLE_MSIX => {
                machine.unmap_messages(seen.at);
                Ok(0)
            }
            _ => Err(op::XEN_PCI_ERR_NOT_IMPLEMENTED),
        }
    }
}

fn map_all(at: Sbdf, messages: &mut [MsixEntry], machine: &mut impl Machine) -> Result<u32, Errno> {
    for message in messages {
        let interrupt = machine.map_message(at, Some(message.entry))?;
        message.vector = u16::try_from(interrupt).map_err(|_| Errno::ENOSPC)?;
    }
    Ok(0)
}

/// Which register is asked for, and how much of it.
fn register(asked: &PciOp) -> Result<(u16, u8), i32> {
    let width = u8::try_from(asked.size).ok().filter(|width| matches!(width, 1 | 2 | 4));
    let offset = u16::try_from(asked.offset).ok().filter(|offset| *offset < 4096);
    match (offset, width) {
        (Some(offset), Some(width)) if offset.is_multiple_of(width.into()) => Ok((offset, width)),
        _ => Err(op::XEN_PCI_ERR_INVALID_OFFSET),
    }
}

#[cfg(test)]
mod tests;
