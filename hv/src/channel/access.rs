//! What the state machines need of guests: their grants, the bytes of granted frames, and pages of rings.

use crate::cpu;
use crate::domain::grant::{self, Refs};
use crate::domain::lent::LentPage;
use crate::domain::{self, Domain};
use crate::mem::phys_to_virt;
use crate::sync::MutexGuard;
use ::channel::grants::{Frames, Grants};
use ::channel::offload::checksum::Eights;
use hv_core::evtchn::PageWords;
use hv_core::grant::audit::Named;
use hv_core::grant::{GrantTable, Use};
use x86::{Mfn, PAGE_SIZE};
use xen_abi::grant::GntStatus;

/// A frame that a grant in use holds, or a card. The default is none: nothing is read from it or written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held(u64);

impl Held {
    /// A frame of RAM that a card holds, for as long as what is made of it is in use.
    pub fn by_card(mfn: Mfn) -> Self {
        Self(mfn.raw())
    }

    /// Its frame number.
    pub fn mfn(self) -> u64 {
        self.0
    }
}

/// The grants of a guest to its back end.
pub struct GuestGrants<'a> {
    /// The guest.
    pub guest: &'a Domain,
    /// The domain that they are for.
    pub backend: u16,
}

impl<'a> GuestGrants<'a> {
    /// Them, for what needs several at one time: nobody else uses grants of this guest meanwhile.
    #[inline]
    pub fn locked(&self) -> LockedGrants<'a> {
        LockedGrants { table: self.guest.grants.table(), backend: self.backend }
    }
}

impl Grants for GuestGrants<'_> {
    type Frame = Held;

    #[inline]
    fn pin(&mut self, gref: u32, writable: bool) -> Result<Held, GntStatus> {
        grant::pin(self.guest, self.backend, gref, writable).map(|mfn| Held(mfn.raw()))
    }

    #[inline]
    fn unpin(&mut self, gref: u32, writable: bool) {
        grant::unpin(self.guest, gref, writable);
    }

    #[inline]
    fn use_once(&mut self, gref: u32, writable: bool, f: impl FnOnce(Held)) -> Result<(), GntStatus> {
        self.locked().use_once(gref, writable, f)
    }
}

/// The grants of a guest to its back end, with its table locked.
pub struct LockedGrants<'a> {
    table: MutexGuard<'a, GrantTable<LentPage>>,
    backend: u16,
}

impl Grants for LockedGrants<'_> {
    type Frame = Held;

    #[inline(always)]
    fn pin(&mut self, gref: u32, writable: bool) -> Result<Held, GntStatus> {
        self.table.pin(&Refs, self.backend, gref, Use::host(writable)).map(Held)
    }

    #[inline(always)]
    fn unpin(&mut self, gref: u32, writable: bool) {
        self.table.unpin(&Refs, gref, Use::host(writable));
    }

    #[inline(always)]
    fn use_once(&mut self, gref: u32, writable: bool, f: impl FnOnce(Held)) -> Result<(), GntStatus> {
        self.table.use_once(&Refs, self.backend, gref, writable, |frame| f(Held(frame)))
    }
}

/// The bytes of frames in use, in the direct map.
pub struct Bytes;

impl Bytes {
    /// Where `len` bytes of a frame are. `None`: not in one frame.
    #[inline]
    fn place(frame: Held, offset: u16, len: usize) -> Option<*mut u8> {
        let is_inside = frame.0 != 0 && usize::from(offset) + len <= PAGE_SIZE;
        is_inside.then(|| phys_to_virt(Mfn::new(frame.0).addr()).wrapping_add(offset.into()))
    }
}

impl Frames<Held> for Bytes {
    #[inline]
    fn read(&self, frame: Held, offset: u16, to: &mut [u8]) {
        if let Some(from) = Self::place(frame, offset, to.len()) {
            // SAFETY: inside a frame of RAM that is held: by a grant in use (`Held` comes from `pin`, and what has it
            // is dropped before `unpin`), or by a card (`by_card`); what a guest writes meanwhile is only bytes.
            unsafe { cpu::copy(from, to.as_mut_ptr(), to.len()) };
        }
    }

    #[inline(always)]
    fn write(&self, frame: Held, offset: u16, from: &[u8]) {
        if let Some(to) = Self::place(frame, offset, from.len()) {
            // SAFETY: as above; the grant is in use for writing, or the frame is its card's; no Rust object lies there.
            unsafe { cpu::copy(from.as_ptr(), to, from.len()) };
        }
    }

    #[inline]
    fn read_word(&self, frame: Held, offset: u16) -> u64 {
        // SAFETY: as in `read`.
        Self::place(frame, offset, size_of::<u64>()).map_or(0, |from| unsafe { from.cast::<u64>().read_unaligned() })
    }

    #[inline]
    fn write_word(&self, frame: Held, offset: u16, word: u64) {
        if let Some(to) = Self::place(frame, offset, size_of::<u64>()) {
            // SAFETY: as in `write`.
            unsafe { to.cast::<u64>().write_unaligned(word) };
        }
    }

    #[inline]
    fn copy(&self, from: Held, from_offset: u16, to: Held, to_offset: u16, len: u16) {
        let len = usize::from(len);
        if let (Some(from), Some(to)) = (Self::place(from, from_offset, len), Self::place(to, to_offset, len)) {
            // SAFETY: as above, both; they may be the same frame.
            unsafe { cpu::copy(from, to, len) };
        }
    }

    #[inline]
    fn sum(&self, frame: Held, offset: u16, len: u16) -> Eights {
        let mut sum = Eights::default();
        let Some(from) = Self::place(frame, offset, len.into()) else { return sum };
        // SAFETY: inside a frame of RAM that is held, as above.
        sum.add(unsafe { cpu::sum_words(from, usize::from(len / 8)) });
        let rest = usize::from(len % 8);
        if rest != 0 && len >= 8 {
            // SAFETY: as above; these are the last eight bytes of those.
            let last = unsafe { from.add(usize::from(len) - 8).cast::<u64>().read_unaligned() };
            sum.add(last >> (64 - 8 * rest));
        } else if rest != 0 {
            let mut last = [0; 8];
            self.read(frame, offset, &mut last[..rest]);
            sum.add(u64::from_le_bytes(last));
        }
        sum
    }
}

/// A page of a ring, or one that a disk's bytes go through: a grant that is in use for writing until this is dropped.
pub struct RingPage {
    granter: u16,
    /// Which of the domains of that number.
    incarnation: u32,
    backend: u16,
    gref: u32,
    mfn: Mfn,
}

impl RingPage {
    /// Begins to use grant `gref` of `guest` to `backend`. Errors are those of a grant copy.
    pub fn take(guest: &Domain, backend: u16, gref: u32) -> Result<Self, GntStatus> {
        let incarnation = guest.grants.table().incarnation();
        let mfn = grant::pin(guest, backend, gref, true)?;
        Ok(Self { granter: guest.id, incarnation, backend, gref, mfn })
    }

    /// Its frame, which is held until the drop.
    pub fn held(&self) -> Held {
        Held(self.mfn.raw())
    }

    /// The use, for the audit.
    pub fn named(&self) -> Named {
        let Self { granter, incarnation, backend, gref, mfn } = *self;
        Named { granter, incarnation, gref, user: backend, frame: mfn.raw() }
    }
}

impl Drop for RingPage {
    fn drop(&mut self) {
        // The granter stays in the list while a frame of it is in use.
        if let Some(guest) = domain::find(self.granter).filter(|d| d.grants.table().incarnation() == self.incarnation) {
            grant::unpin(&guest, self.gref, true);
        }
    }
}

impl AsRef<PageWords> for RingPage {
    #[inline]
    fn as_ref(&self) -> &PageWords {
        // SAFETY: a whole frame of RAM in the direct map, which the grant holds until the drop; page-aligned; the
        // guest's writes are met by atomics.
        unsafe { &*phys_to_virt(self.mfn.addr()).cast::<PageWords>() }
    }
}
