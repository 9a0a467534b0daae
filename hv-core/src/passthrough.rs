//! Which domain owns which PCI function, and who may become its owner.
//!
//! A function belongs to the hardware domain, to one other domain, or to nobody (*quarantine*: it has left one owner
//! and not yet reached the next). From the moment it leaves the hardware domain until it is back there, its base
//! addresses and its table of messages stay where they were; in quarantine it cannot reach memory. The shell does to
//! the hardware what the [`Move`]s say, under the lock of the table.

pub mod front;
pub mod isolation;
pub mod link;
pub mod reset;

use crate::pcicfg::{bridges, Bars, Base, Fixed, Sbdf};
use alloc::vec::Vec;
use core::fmt;
use xen_abi::errno::Errno;

/// Whose a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The hardware domain's.
    Hardware,
    /// Nobody's.
    Quarantine,
    /// This other domain's.
    Domain(u16),
}

/// What keeps the memory of others from a domain's devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// An IOMMU.
    Iommu,
    /// Nothing, and whoever started the hypervisor wanted it so.
    Unsafe,
    /// Nothing: no function leaves the hardware domain.
    Forbidden,
}

/// Why a function does not change hands. `Display` is for the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such function.
    NoSuchFunction,
    /// Nothing would confine it.
    NotConfined,
    /// The domain was not created for devices.
    NotPrepared,
    /// The domain is being destroyed.
    Dying,
    /// Another domain has it.
    Taken(u16),
    /// The IOMMU does not translate its accesses.
    Untranslated,
    /// Bridges stay the hardware domain's.
    Bridge,
    /// The IOMMU cannot tell its accesses from those of the functions beside it behind a bridge.
    SharedIdentity,
    /// The firmware needs memory of its own for it.
    FirmwareMemory,
    /// The hypervisor drives it.
    Hypervisors,
    /// The domain that is to give it up does not have it.
    NotOwned,
    /// It is on its way from its owner, who has not got rid of it.
    Leaving,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchFunction => "there is no such function",
            Self::NotConfined => "without an IOMMU a device reaches all memory (passthrough=unsafe allows it)",
            Self::Untranslated => "it is behind no unit of the IOMMU, and would reach all memory",
            Self::NotPrepared => "the domain was not created for devices",
            Self::Dying => "the domain is being destroyed",
            Self::Taken(id) => return write!(f, "it is d{id}'s"),
            Self::Bridge => "bridges stay with the hardware domain",
            Self::SharedIdentity => "the IOMMU cannot tell it from the functions beside it",
            Self::Hypervisors => "the hypervisor drives it",
            Self::FirmwareMemory => "the firmware reserves memory for it",
            Self::NotOwned => "the domain does not have it",
            Self::Leaving => "it is being reset",
        })
    }
}

impl From<Refusal> for Errno {
    fn from(why: Refusal) -> Self {
        match why {
            Refusal::NoSuchFunction | Refusal::NotOwned => Self::ENODEV,
            // As for a machine without an IOMMU: xl prints "Operation not supported".
            Refusal::NotConfined | Refusal::Untranslated | Refusal::NotPrepared => Self::EOPNOTSUPP,
            Refusal::Dying | Refusal::Bridge => Self::EINVAL,
            Refusal::Taken(_) | Refusal::Leaving => Self::EBUSY,
            Refusal::SharedIdentity | Refusal::FirmwareMemory | Refusal::Hypervisors => Self::EPERM,
        }
    }
}

/// What is known of a function from the boot on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traits {
    /// Is it a bridge?
    pub is_bridge: bool,
    /// The bridge to its bus, unless that is a root bus.
    pub bridge: Option<Sbdf>,
    /// Is it behind no unit of the IOMMU? Without one nobody asks.
    pub is_untranslated: bool,
    /// Does a bridge put its own identity on its accesses?
    pub shares_identity: bool,
    /// Has the firmware reserved memory for it?
    pub has_firmware_memory: bool,
    /// Does the hypervisor drive it?
    pub is_ours: bool,
}

/// The domain that a function is to go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipient {
    /// Which.
    pub owner: Owner,
    /// Was it created for devices?
    pub is_prepared: bool,
    /// Is it being destroyed?
    pub is_dying: bool,
}

impl Recipient {
    /// No domain: the function waits.
    pub const QUARANTINE: Self = Self { owner: Owner::Quarantine, is_prepared: true, is_dying: false };
}

/// A change of owners, for the shell to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// From whom.
    pub from: Owner,
    /// To whom.
    pub to: Owner,
}

/// One function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is.
    pub at: Sbdf,
    /// What it is.
    pub traits: Traits,
    /// Whose it is.
    pub owner: Owner,
    /// Its base addresses: what the hardware domain wrote last while it was its own.
    pub bars: Bars,
    /// It was stopped because it would not leave alone what it may not reach: it does not become bus master for this
    /// owner again.
    pub is_stopped: bool,
    /// It is on its way into quarantine: it is the owner's only so that nobody else gets it.
    pub leaving: Option<reset::Leaving>,
    /// Its owner is being rolled back: it is reset, and stays the owner's, who cannot use it until that has ended.
    pub silenced: Option<reset::Leaving>,
    /// The hardware domain has said that it is gone while another domain had it: it is forgotten when that has given it
    /// up.
    pub is_gone: bool,
}

impl Entry {
    const fn new(at: Sbdf, traits: Traits, bars: Bars) -> Self {
        Self {
            at,
            traits,
            owner: Owner::Hardware,
            bars,
            is_stopped: false,
            leaving: None,
            silenced: None,
            is_gone: false,
        }
    }

    /// May `who` use it?
    pub fn is_usable_by(&self, who: Owner) -> bool {
        self.is_kept_by(who) && self.silenced.is_none()
    }

    /// Is it of `who`'s, and not on its way from him?
    pub fn is_kept_by(&self, who: Owner) -> bool {
        self.owner == who && self.leaving.is_none()
    }

    /// What of it does not change; `None`: it is the hardware domain's.
    pub fn fixed(&self) -> Option<Fixed> {
        let is_quarantined = self.owner == Owner::Quarantine || self.leaving.is_some() || self.silenced.is_some();
        (self.owner != Owner::Hardware || is_quarantined).then_some(Fixed {
            bars: self.bars,
            is_quarantined,
            is_stopped: self.is_stopped,
        })
    }
}

/// Whose memory an identity on the bus may reach that the functions of all `owners` have: another domain's only if all
/// of them are its own, else the hardware domain's if any of them is. [`Owner::Quarantine`]: nobody's.
pub fn confined_to(owners: impl IntoIterator<Item = Owner>) -> Owner {
    let (mut is_home, mut is_mixed, mut domain) = (false, false, None);
    for owner in owners {
        match owner {
            Owner::Hardware => is_home = true,
            Owner::Quarantine => is_mixed = true,
            Owner::Domain(id) => is_mixed |= *domain.get_or_insert(id) != id,
        }
    }
    match (domain, is_home) {
        (Some(id), false) if !is_mixed => Owner::Domain(id),
        (Some(_), _) | (None, false) => Owner::Quarantine,
        (None, true) => Owner::Hardware,
    }
}

/// The functions of the machine.
#[derive(Debug)]
pub struct Ownership {
    entries: Vec<Entry>,
    confinement: Confinement,
}

impl Ownership {
    /// All functions are the hardware domain's.
    pub fn new(functions: impl Iterator<Item = (Sbdf, Traits, Bars)>, confinement: Confinement) -> Self {
        Self { entries: functions.map(|(at, traits, bars)| Entry::new(at, traits, bars)).collect(), confinement }
    }

    /// A function appeared, for the hardware domain. EEXIST; ENOMEM.
    pub fn add(&mut self, at: Sbdf, traits: Traits, bars: Bars) -> Result<(), Errno> {
        if self.find(at).is_some() {
            return Err(Errno::EEXIST);
        }
        self.entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        self.entries.push(Entry::new(at, traits, bars));
        Ok(())
    }

    /// A function is gone. Nobody's is forgotten as well: if it comes again it is the hardware domain's, which looks
    /// then where its registers could be, and has to be free to move them. EBUSY: another domain has it, or it is a
    /// bridge that leads to one that is not the hardware domain's; it is forgotten when that has been given up
    /// ([`Self::gone`]). EPERM: the hypervisor drives it. ENODEV.
    pub fn remove(&mut self, at: Sbdf) -> Result<Entry, Errno> {
        let place = self.entries.iter().position(|e| e.at == at).ok_or(Errno::ENODEV)?;
        let leads_away = self.leads_away(at);
        let entry = self.entries.get_mut(place).ok_or(Errno::ENODEV)?;
        if entry.traits.is_ours {
            return Err(Errno::EPERM);
        }
        if leads_away || matches!(entry.owner, Owner::Domain(_)) {
            entry.is_gone = true;
            return Err(Errno::EBUSY);
        }
        Ok(self.entries.remove(place))
    }

    /// The hardware domain has found a function at `at`. `false`: none is known there. EBUSY: that one was gone, a
    /// domain has it still, and this is not the same, which `is_same` says: it waits until that domain has given it up.
    pub fn came_back(&mut self, at: Sbdf, is_same: impl FnOnce() -> bool) -> Result<bool, Errno> {
        let Some(entry) = self.entries.iter_mut().find(|e| e.at == at) else { return Ok(false) };
        if entry.is_gone && !is_same() {
            return Err(Errno::EBUSY);
        }
        entry.is_gone = false;
        Ok(true)
    }

    /// A function that is gone, and that no domain has any more, nor one behind it.
    pub fn gone(&self) -> Option<Sbdf> {
        let is_free = |e: &&Entry| !matches!(e.owner, Owner::Domain(_)) && !self.leads_away(e.at);
        self.entries.iter().filter(|e| e.is_gone).find(is_free).map(|e| e.at)
    }

    /// Is a function behind the bridge at `at` not the hardware domain's? The way to it is needed to confine it until
    /// it is.
    pub fn leads_away(&self, at: Sbdf) -> bool {
        let bridge_of = |at| self.find(at)?.traits.bridge;
        let away = self.entries.iter().filter(|e| e.fixed().is_some());
        { away }.any(|e| bridges::above(e.traits.bridge, bridge_of).any(|bridge| bridge == at))
    }

    /// Configuration space of the function at `at` was written: `width` bytes at `offset`. Its base addresses are read
    /// again if it is the hardware domain that moved it. What the device says of them at any other time does not count.
    pub fn wrote(&mut self, at: Sbdf, offset: u16, width: u8, read: impl FnOnce() -> Bars) {
        if !Bars::are_at(offset, width) {
            return;
        }
        if let Some(entry) = self.entries.iter_mut().find(|e| e.at == at && e.owner == Owner::Hardware) {
            entry.bars = read();
        }
    }

    /// What confines devices here.
    pub const fn confinement(&self) -> Confinement {
        self.confinement
    }

    /// The function at `at`.
    pub fn find(&self, at: Sbdf) -> Option<&Entry> {
        self.entries.iter().find(|e| e.at == at)
    }

    /// The functions of a domain.
    pub fn of(&self, owner: Owner) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |e| e.owner == owner)
    }

    /// Those that are not the hardware domain's.
    pub fn away(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|e| e.owner != Owner::Hardware)
    }

    /// Do the registers of a function that belongs to a domain other than `who` begin in what `is_inside` means?
    pub fn has_another_inside(&self, who: u16, is_inside: impl Fn(Base) -> bool) -> bool {
        let others = self.entries.iter().filter(|e| matches!(e.owner, Owner::Domain(id) if id != who));
        { others }.any(|e| e.bars.bases().any(&is_inside))
    }

    /// Is there just one function of `who`'s, and do registers of it begin in what `is_inside` means?
    pub fn has_only_inside(&self, who: u16, is_inside: impl Fn(Base) -> bool) -> bool {
        let mut own = self.of(Owner::Domain(who));
        own.next().is_some_and(|e| e.bars.bases().any(is_inside)) && own.next().is_none()
    }

    /// Could `to` get the function at `at`?
    pub fn check(&self, at: Sbdf, to: Recipient) -> Result<Move, Refusal> {
        let entry = self.find(at).ok_or(Refusal::NoSuchFunction)?;
        if self.confinement == Confinement::Forbidden {
            return Err(Refusal::NotConfined);
        }
        if entry.traits.is_bridge {
            return Err(Refusal::Bridge);
        }
        if entry.traits.is_ours {
            return Err(Refusal::Hypervisors);
        }
        if to.is_dying {
            return Err(Refusal::Dying);
        }
        if !to.is_prepared {
            return Err(Refusal::NotPrepared);
        }
        if self.confinement == Confinement::Iommu {
            let is_put_aside = to.owner == Owner::Quarantine;
            if entry.traits.is_untranslated && !is_put_aside {
                return Err(Refusal::Untranslated);
            }
            // Also not into quarantine: the others could not be told from it, and would be blocked.
            if entry.traits.shares_identity {
                return Err(Refusal::SharedIdentity);
            }
            if entry.traits.has_firmware_memory && !is_put_aside {
                return Err(Refusal::FirmwareMemory);
            }
        }
        match entry.owner {
            Owner::Domain(id) => Err(Refusal::Taken(id)),
            _ if entry.leaving.is_some() && to.owner != Owner::Quarantine => Err(Refusal::Leaving),
            from => Ok(Move { from, to: to.owner }),
        }
    }

    /// What becomes of the function at `at` when `from` gives it up: a domain's goes into quarantine, from there it
    /// goes back to the hardware domain.
    pub fn check_return(&self, at: Sbdf, from: Owner) -> Result<Move, Refusal> {
        let entry = self.find(at).ok_or(Refusal::NoSuchFunction)?;
        match from {
            Owner::Hardware => Err(Refusal::NotOwned),
            _ if entry.owner != from => Err(Refusal::NotOwned),
            Owner::Quarantine => Ok(Move { from, to: Owner::Hardware }),
            Owner::Domain(_) => Ok(Move { from, to: Owner::Quarantine }),
        }
    }

    /// The function at `at` did not leave alone what it may not reach. Its owner cannot make it bus master again,
    /// unless that is the hardware domain, which is trusted with its devices. `None`: no such function; else whether
    /// this is new.
    pub fn stop(&mut self, at: Sbdf) -> Option<bool> {
        let entry = self.entries.iter_mut().find(|e| e.at == at)?;
        let was_stopped = entry.is_stopped;
        entry.is_stopped = entry.owner != Owner::Hardware;
        Some(!was_stopped)
    }

    /// The function at `at` has come this far on its way from its owner, who cannot use it any more. That its owner was
    /// rolled back is over.
    pub fn leaves(&mut self, at: Sbdf, so_far: reset::Leaving) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.at == at) {
            (entry.leaving, entry.silenced) = (Some(so_far), None);
        }
    }

    /// The reset of the function at `at`, whose owner is rolled back, has come this far. It has not begun to leave.
    pub fn silences(&mut self, at: Sbdf, so_far: reset::Leaving) {
        if let Some(entry) = self.entries.iter_mut().find(|e| e.at == at) {
            entry.silenced = Some(so_far);
        }
    }

    /// Records a move that one of the checks allowed.
    pub fn record(&mut self, at: Sbdf, r#move: Move) {
        let Some(entry) = self.entries.iter_mut().find(|e| e.at == at) else { return };
        debug_assert_eq!(entry.owner, r#move.from, "a move that was not checked");
        entry.owner = r#move.to;
        entry.is_stopped = false;
        (entry.leaving, entry.silenced) = (None, None);
    }
}

#[cfg(test)]
mod tests;
