//! What an L1 entry may map, and changing one.
//!
//! The checks (in this order): flags against the list of the level; the frame is RAM of the domain it should be of, or
//! I/O memory that the domain may map; a writable mapping takes the frame's writable type. A guest reads back what was
//! changed: supervisor pages become user pages marked [`PteFlags::GUEST_KERNEL`] (a PV kernel runs in ring 3), the
//! global bit goes (so that loading CR3 flushes all of a guest), RAM is always write-back, I/O memory never cached.

use super::update::{Accessed, Owners};
use super::{IoAccess, Locked, Mmu, MmuEnv, MmuError, Slot};
use x86::pte::PTE_ADDR_MASK;
use x86::{Mfn, Pte, PteFlags};
use xen_abi::layout::DomId;

/// Flags any L1 entry may have.
const ALLOWED: u64 = PteFlags::P
    .union(PteFlags::RW)
    .union(PteFlags::US)
    .union(PteFlags::A)
    .union(PteFlags::D)
    .union(PteFlags::G)
    .union(PteFlags::AVL)
    .union(PteFlags::AVL_HIGH)
    .union(PKEY)
    .union(PteFlags::NX)
    .bits();
/// Bits 59-62: protection keys, or free for software where those are off, as they are for PV guests.
const PKEY: PteFlags = PteFlags::from_bits_retain(0xf << 59);
/// Flags that choose the cache attribute.
const CACHE: u64 = PteFlags::PWT.union(PteFlags::PCD).union(PteFlags::PSE_PAT).bits();
/// Flags that an entry may change while it keeps its frame and its references: none of them can add write access.
pub(super) const HARMLESS: u64 = ALLOWED & !(PteFlags::P.bits() | PteFlags::RW.bits());

const RW: u64 = PteFlags::RW.bits();

/// Makes a present entry fit for a guest that runs in ring 3.
#[inline]
const fn adjust(new: Pte) -> Pte {
    let new = Pte(new.0 & !PteFlags::G.bits());
    if new.contains(PteFlags::US) {
        new
    } else {
        new.with(PteFlags::US.union(PteFlags::GUEST_KERNEL))
    }
}

impl<E: MmuEnv> Mmu<'_, E> {
    /// Changes the entry at `slot` of a validated L1 table of `who.table`, whose MMU lock is `_lock`.
    #[inline]
    pub(super) fn update_l1(
        &self,
        slot: Slot,
        new: Pte,
        who: Owners,
        ad: Accessed,
        _lock: Locked<'_>,
    ) -> Result<(), MmuError> {
        let old = self.env.read(slot);
        if !new.is_present() {
            self.store(slot, old, new, ad);
            self.put_l1e(old);
            return Ok(());
        }
        self.check_l1_flags(new, who.table)?;
        let new = adjust(new);
        let diff = old.0 ^ new.0;
        if old.is_present() && diff & !(HARMLESS | RW) == 0 {
            if diff & RW == 0 {
                self.store(slot, old, new, ad);
                return Ok(());
            }
            if let Some(frame) = self.frame(new.mfn()) {
                if !new.is_writable() {
                    self.store(slot, old, new, ad);
                    self.put_writable_type(frame);
                    return Ok(());
                }
                if who.frame == who.table && frame.owner() == who.table {
                    self.get_writable_type(new.mfn(), frame, who.table).map_err(|_| MmuError::Unmappable)?;
                    self.store(slot, old, new, ad);
                    return Ok(());
                }
            }
        }
        let new = self.get_l1e(new, who)?;
        self.store(slot, old, new, ad);
        self.put_l1e(old);
        Ok(())
    }

    /// Like [`Self::update_l1`], but only if the entry still is `old`.
    pub(super) fn update_l1_if(
        &self,
        slot: Slot,
        old: Pte,
        new: Pte,
        who: Owners,
        _lock: Locked<'_>,
    ) -> Result<(), MmuError> {
        let new = if new.is_present() {
            self.check_l1_flags(new, who.table)?;
            self.get_l1e(adjust(new), who)?
        } else {
            new
        };
        match self.env.cmpxchg(slot, old, new) {
            Ok(()) => {
                self.put_l1e(old);
                Ok(())
            }
            Err(_) => {
                self.put_l1e(new);
                Err(MmuError::Changed)
            }
        }
    }

    /// Validates an entry of a table that is being promoted and takes its references. Returns the entry to store.
    #[inline]
    pub(super) fn adopt_l1e(&self, entry: Pte, dom: DomId) -> Result<Pte, MmuError> {
        self.check_l1_flags(entry, dom)?;
        self.get_l1e(adjust(entry), Owners::both(dom))
    }

    /// Does an adopted entry map I/O memory? Only such an entry has an attribute of the cache.
    #[inline]
    pub(super) const fn is_adopted_io(adopted: Pte) -> bool {
        adopted.0 & CACHE != 0
    }

    #[inline]
    fn check_l1_flags(&self, new: Pte, dom: DomId) -> Result<(), MmuError> {
        let strange = new.0 & !(ALLOWED | PTE_ADDR_MASK);
        if strange == 0 || (strange & !CACHE == 0 && self.env.cache_control(dom)) {
            Ok(())
        } else {
            Err(MmuError::BadFlags)
        }
    }

    /// Takes the references of a present entry; says what entry to write instead.
    #[inline(always)]
    pub(super) fn get_l1e(&self, new: Pte, who: Owners) -> Result<Pte, MmuError> {
        let mfn = new.mfn();
        let Some(frame) = self.frame(mfn) else {
            return self.io_l1e(new, who);
        };
        if new.is_writable() {
            self.get_frame_writable(mfn, frame, who.frame).map_err(|_| MmuError::Unmappable)?;
            if who.frame != who.table {
                frame.mark_foreign();
            }
        } else if !frame.get(who.frame) {
            return Err(MmuError::Unmappable);
        }
        Ok(Pte(new.0 & !CACHE))
    }

    #[cold]
    fn io_l1e(&self, new: Pte, who: Owners) -> Result<Pte, MmuError> {
        let mfn = new.mfn();
        if mfn == NO_FRAME {
            return Err(MmuError::InvalidFrame);
        }
        let mut access = self.env.io_access(who.table, mfn);
        // Asking takes long: not twice for the same domain.
        if who.frame != who.table && who.frame != DomId::IO {
            access = access.min(self.env.io_access(who.frame, mfn));
        }
        if access == IoAccess::Denied {
            return Err(MmuError::IoDenied);
        }
        let new = if access == IoAccess::ReadOnly { new.without(PteFlags::RW) } else { new };
        Ok(uncached(new))
    }

    /// Drops the references of an entry that is no longer in its table.
    #[inline]
    pub(super) fn put_l1e(&self, old: Pte) {
        if !old.is_present() {
            return;
        }
        let mfn = old.mfn();
        let Some(frame) = self.frame(mfn) else { return };
        if old.is_writable() {
            self.put_writable_type(frame);
        }
        self.put_frame(mfn, frame);
    }

    /// Stores `new` where `old` was; only the CPU's accessed and dirty bits can have changed meanwhile.
    #[inline]
    pub(super) fn store(&self, slot: Slot, old: Pte, new: Pte, ad: Accessed) {
        match ad {
            Accessed::Overwrite => self.env.write(slot, new),
            Accessed::Preserve => {
                let kept = PteFlags::A.union(PteFlags::D).bits();
                let mut now = old;
                while let Err(seen) = self.env.cmpxchg(slot, now, Pte(new.0 | now.0 & kept)) {
                    now = seen;
                }
            }
        }
    }
}

/// What Linux writes for "no frame": all address bits set.
const NO_FRAME: Mfn = Pte(PTE_ADDR_MASK).mfn();

/// The entry with a cache attribute fit for I/O memory. Attributes, by PAT, PCD, PWT: 0 write-back, 1 write-through,
/// 2 uncached-minus, 3 uncached, 4 write-combining, 5 write-protect, 6 and 7 uncached.
const fn uncached(new: Pte) -> Pte {
    let pcd_pwt = PteFlags::PCD.union(PteFlags::PWT);
    let pwt = new.contains(PteFlags::PWT);
    let pcd = new.contains(PteFlags::PCD);
    let pat = new.contains(PteFlags::PSE_PAT);
    match (pat, pcd, pwt) {
        (false, false, false) => new.with(pcd_pwt),
        (_, false, true) => new.with(PteFlags::PCD),
        _ => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_memory_is_never_cached() {
        let attr = |pte: Pte| {
            u8::from(pte.contains(PteFlags::PSE_PAT)) << 2
                | u8::from(pte.contains(PteFlags::PCD)) << 1
                | u8::from(pte.contains(PteFlags::PWT))
        };
        let make = |n: u64| Pte((n & 1) << 3 | (n >> 1 & 1) << 4 | (n >> 2) << 7);
        let got: [u8; 8] = core::array::from_fn(|n| attr(uncached(make(n as u64))));
        assert_eq!(got, [3, 3, 2, 3, 4, 7, 6, 7]);
    }
}
