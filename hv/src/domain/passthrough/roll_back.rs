//! Functions of a domain that is rolled back: they stay its own, and are reset.
//!
//! What a function does with interrupts and messages is the interrupts' to say; its translations stay. It is confined
//! to them anew, as it may be one that the IOMMU was told not to report any more.

use super::{confine, owner_of, ownership};
use crate::arch::pci::{self, reg, Sbdf};
use crate::arch::pci_reset;
use crate::domain::Domain;
use crate::irq;
use alloc::vec::Vec;
use hv_core::passthrough::reset::Leaving;
use hv_core::passthrough::Move;
use hv_core::pcicfg::{self, Bars};
use xen_abi::errno::Errno;

/// What of a function's configuration space its driver has chosen, and a reset forgets.
pub struct Config {
    at: Sbdf,
    header: [u32; CONFIG_HEADER],
    express: [u16; EXPRESS_CONTROLS.len()],
}

/// Words of the header.
const CONFIG_HEADER: usize = 16;
/// Control registers of a PCI Express function, from its capability: device, link, device 2.
const EXPRESS_CONTROLS: [u16; 3] = [0x08, 0x10, 0x28];
/// Words of the header in the order in which they are written: the command last.
const CONFIG_ORDER: [u16; 9] = [0x0c, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x30, 0x3c];

impl Config {
    /// Which function's.
    pub fn at(&self) -> Sbdf {
        self.at
    }

    fn read(at: Sbdf) -> Self {
        let cap = pci::function(at).and_then(|f| f.layout.express).map(|e| e.cap);
        let word = |offset: usize| pci::read(at, u16::try_from(offset).unwrap_or(u16::MAX), pci::Width::W32);
        Self {
            at,
            header: core::array::from_fn(|n| word(4 * n)),
            express: EXPRESS_CONTROLS.map(|offset| cap.map_or(0, |cap| pci::read16(at, cap + offset))),
        }
    }

    /// All but the command.
    fn write(&self) {
        for offset in CONFIG_ORDER {
            let value = self.header.get(usize::from(offset) / 4).copied().unwrap_or(0);
            if pci::read(self.at, offset, pci::Width::W32) != value {
                pci::write(self.at, offset, pci::Width::W32, value);
            }
        }
        if let Some(cap) = pci::function(self.at).and_then(|f| f.layout.express).map(|e| e.cap) {
            for (offset, value) in EXPRESS_CONTROLS.into_iter().zip(self.express) {
                pci::write16(self.at, cap + offset, value);
            }
        }
    }

    #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
    fn command(&self) -> u16 {
        self.header[usize::from(reg::COMMAND) / 4] as u16
    }
}

/// Notes how the functions of `d` are set up. ENOMEM.
pub fn save(d: &Domain) -> Result<Vec<Config>, Errno> {
    let table = ownership().lock();
    let mut configs = Vec::new();
    for entry in table.of(owner_of(d)) {
        configs.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        configs.push(Config::read(entry.at));
    }
    Ok(configs)
}

/// Does `d` have these functions and no others, and can each be reset? If not, one that is in the way. Changes nothing.
pub fn check_reset(d: &Domain, configs: &[Config]) -> Result<(), Sbdf> {
    let table = ownership().lock();
    let is_known = |at| configs.iter().any(|config| config.at == at);
    if let Some(new) = table.of(owner_of(d)).find(|e| !is_known(e.at)) {
        return Err(new.at);
    }
    let is_fit = |at| table.find(at).is_some_and(|e| e.is_usable_by(owner_of(d))) && pci_reset::can_reset(at);
    configs.iter().map(|config| config.at).find(|at| !is_fit(*at)).map_or(Ok(()), Err)
}

/// Ends accesses to memory and interrupts of a function of `d`'s, which stays its, and resets it by its own registers,
/// if its kind is known: for a while, then ERESTART. ENODEV: it is not the domain's, or leaves it. EIO: it could not be
/// reset, and has no function-level reset, which is the caller's to begin. Until [`revive`] nobody can use it.
pub fn silence(at: Sbdf, d: &Domain) -> Result<(), Errno> {
    let mut table = ownership().lock();
    let entry = table.find(at).filter(|e| e.is_kept_by(owner_of(d))).ok_or(Errno::ENODEV)?;
    let (bars, so_far) = (entry.bars, entry.silenced);
    if so_far.is_none() {
        let was = pci::read16(at, reg::COMMAND);
        pci::write16(at, reg::COMMAND, pcicfg::silent(was));
    }
    let mut so_far = so_far.unwrap_or(Leaving::NEW);
    let left = pci_reset::go_on(at, &bars, &mut so_far);
    table.silences(at, so_far);
    let is_as_new = left.ok_or(Errno::ERESTART)?.is_as_new(pci_reset::has_function_reset(at));
    is_as_new.then_some(()).ok_or(Errno::EIO)
}

/// Makes a function of `d`'s, which was reset, what it was when `config` was noted, but for what its driver has told
/// it: its messages are those that are mapped now, and what it had been stopped for is over. ENODEV: it is not the
/// domain's, or leaves it, or does not come back.
pub fn revive(config: &Config, d: &Domain) -> Result<(), Errno> {
    let mut table = ownership().lock();
    let at = config.at;
    let entry = table.find(at).filter(|e| e.is_kept_by(owner_of(d))).ok_or(Errno::ENODEV)?;
    let bars = entry.bars;
    config.write();
    // Where its registers are is not for the device to say.
    let f = pci::function(at).ok_or(Errno::ENODEV)?;
    if Bars::read(&pci::Space(at), f.layout.header) != bars {
        return Err(Errno::ENODEV);
    }
    let owner = owner_of(d);
    // While it is no bus master: until this is done it may be blocked.
    confine(&table, at, owner, Some(d));
    // The table of messages is in its memory.
    pci::write16(at, reg::COMMAND, pcicfg::answering(config.command()));
    irq::guest::restore_msi(at);
    pci::write16(at, reg::COMMAND, config.command());
    table.record(at, Move { from: owner, to: owner });
    Ok(())
}
