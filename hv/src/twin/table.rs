//! The twins that are loaded, or being loaded, each in a place.
//!
//! Lock order: a twin's place, an instance's slot, then what is [`Common`], of which one lock is held at a time (but
//! what is lent is locked inside what is held); before the domain's locks. They are rows 30 and 110 of
//! `docs/architecture.md`.

use super::common::Common;
use super::counts::{Counts, Ending};
use super::frames::Frames;
use super::instance::{self, Instance, Slot, MAX_TWINS};
use super::space::Mirror;
use crate::cpu::percpu;
use crate::domain::Domain;
use crate::mem::{self, copy};
use crate::sync::{Mutex, MutexGuard, RwLock};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use hv_core::places::Places;
use twin_abi::op::{TwinLoad, MAX_TWINS_EACH};
use twin_verify::{Policy, Refusal, Verifier};
use x86::PAGE_SIZE;
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;

/// An image of which a part is copied.
pub struct Copying {
    /// What is there. Its memory was taken at once.
    bytes: Vec<u8>,
    pub policy: Policy,
    pub common: Common,
    pub owner: u16,
    pub request: TwinLoad,
    pub seat: Seat,
}

impl Copying {
    /// So much is copied at once: where it comes from may be registers of a device, which answers a read in a
    /// microsecond, or in ten.
    const PORTION: usize = PAGE_SIZE;

    /// Nothing is copied yet. Errors: ENOMEM, also if the memory would be of the reserve.
    pub fn new(request: TwinLoad, policy: Policy, common: Common, owner: u16, seat: Seat) -> Result<Self, Errno> {
        if !mem::frames::has_beside_reserve(u64::from(request.image_bytes).div_ceil(PAGE_SIZE as u64)) {
            return Err(Errno::ENOMEM);
        }
        let mut bytes: Vec<u8> = Vec::new();
        bytes.try_reserve_exact(request.image_bytes as usize).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { bytes, policy, common, owner, request, seat })
    }

    /// Copies some more of what the running domain has. `true`: that was the last. Errors: EFAULT.
    pub fn go_on(&mut self) -> Result<bool, Errno> {
        let (all, done) = (self.request.image_bytes as usize, self.bytes.len());
        let upto = all.min(done + Self::PORTION);
        // There is room for all.
        self.bytes.resize(upto, 0);
        copy::from_guest(&mut self.bytes[done..], self.request.image.wrapping_add(done as u64))?;
        Ok(upto == all)
    }

    /// It is all there: its verification begins. Errors: the rule that it breaks.
    pub fn finish(self) -> Result<Verifying, Refusal> {
        let Self { bytes, policy, common, owner, request, seat } = self;
        let image = ImageBytes(Box::into_raw(bytes.into_boxed_slice()));
        // SAFETY: `Verifying` and `Loaded` drop what refers to the bytes before the bytes.
        let verifier = Verifier::new(unsafe { image.get() }, &policy)?;
        Ok(Verifying { verifier, making: None, common, owner, request, mirror: None, failed: None, image, seat })
    }
}

/// An image in memory of the hypervisor's own. What refers to it must go first.
pub struct ImageBytes(*mut [u8]);

// SAFETY: the bytes are only this value's, and do not change.
unsafe impl Send for ImageBytes {}
// SAFETY: as above.
unsafe impl Sync for ImageBytes {}

impl ImageBytes {
    /// The bytes.
    ///
    /// # Safety
    /// 1. The result is no longer used when `self` is dropped.
    pub unsafe fn get(&self) -> &'static [u8] {
        // SAFETY: from `Box::into_raw`; valid until the drop (1).
        unsafe { &*self.0 }
    }
}

impl Drop for ImageBytes {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`, dropped once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Who has which place. Locked last.
static OWNERS: Mutex<Places<MAX_TWINS, { MAX_TWINS_EACH as usize }>> = Mutex::new(Places::new());

/// That a place is somebody's; it is free when this is dropped.
pub struct Seat(u32);

impl Seat {
    /// A place for `owner`. `None` if there is none for it.
    pub fn take(owner: DomId) -> Option<Self> {
        #[allow(clippy::cast_possible_truncation, reason = "at most MAX_TWINS")]
        OWNERS.lock().take(owner).map(|number| Self(number as u32))
    }

    /// Its number.
    pub const fn number(&self) -> u32 {
        self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        OWNERS.lock().give_back(self.0 as usize);
    }
}

/// What is in a place.
pub enum State {
    /// An image that is being copied.
    Copying(Copying),
    /// An image that is being verified.
    Verifying(Verifying),
    /// A twin.
    Ready(Loaded),
}

/// An image that is being verified. Fields that refer to others come first.
pub struct Verifying {
    pub verifier: Verifier<'static>,
    /// What is made of it when it is verified, as far as that is made.
    pub making: Option<Making>,
    pub common: Common,
    pub owner: u16,
    pub request: TwinLoad,
    /// What the twin will see, as far as that is made.
    pub mirror: Option<Mirror>,
    /// It will not be loaded, because of this: what was made goes back.
    pub failed: Option<Errno>,
    pub image: ImageBytes,
    pub seat: Seat,
}

/// The code of a twin, and its instances, which are made one at a time.
pub struct Making {
    pub instances: Vec<Instance>,
    /// `None` when it is taken down.
    pub code: Option<Frames>,
}

/// A twin that is loaded. Fields that refer to others come first.
pub struct Loaded {
    /// `twin_abi::op::MODE_*`.
    pub mode: u32,
    pub instances: Vec<Instance>,
    pub code: Option<Frames>,
    pub mirror: Mirror,
    pub common: Common,
    /// The domain whose driver it is.
    pub owner: u16,
    pub budget: u64,
    pub functions: u32,
    pub counts: Counts,
    pub aborts: AtomicU64,
    pub disabled: AtomicBool,
    /// It is to be taken down, or is: who does not use it yet does not begin to. Set under the lock of its place,
    /// whichever way that is held.
    pub is_going: AtomicBool,
    /// What the instances' gates refer to.
    pub _image: ImageBytes,
    pub _seat: Seat,
}

impl Verifying {
    /// Gives back what was made, and what was taken of the domain's. ERESTART: to be called again.
    pub fn give_up(&mut self, d: &Domain) -> Result<(), Errno> {
        if let Some(Making { instances, code }) = &mut self.making {
            if !take_down(self.seat.number() as usize, code, instances) {
                return Err(Errno::ERESTART);
            }
            self.making = None;
        }
        self.mirror.as_mut().map_or(Ok(()), |mirror| mirror.release(d))
    }
}

impl State {
    /// What it sees, if that is made.
    pub fn mirror(&self) -> Option<&Mirror> {
        match self {
            Self::Copying(_) => None,
            Self::Verifying(verifying) => verifying.mirror.as_ref(),
            Self::Ready(loaded) => Some(&loaded.mirror),
        }
    }

    /// Whose it is.
    pub fn owner(&self) -> u16 {
        match self {
            Self::Copying(copying) => copying.owner,
            Self::Verifying(verifying) => verifying.owner,
            Self::Ready(loaded) => loaded.owner,
        }
    }
}

/// A place for a twin.
pub type Place = RwLock<Option<State>>;
/// All places.
pub static TWINS: [Place; MAX_TWINS] = [const { Place::new(None) }; MAX_TWINS];

impl Loaded {
    /// Takes the mappings away, then what was mapped, an instance at a time. `true`: that was the last.
    pub fn take_down(&mut self, number: usize) -> bool {
        take_down(number, &mut self.code, &mut self.instances)
    }

    /// Is it to be taken down?
    pub fn is_going(&self) -> bool {
        self.is_going.load(Ordering::SeqCst)
    }

    /// It, if it may run. Errors: EIO if it is disabled. Running it takes no memory, nor does its abort, so that it
    /// does not come to an end because others have taken all.
    pub fn usable(&self) -> Result<&Self, Errno> {
        if self.disabled.load(Ordering::Acquire) {
            return Err(Errno::EIO);
        }
        Ok(self)
    }

    /// An instance that nobody uses: this CPU's own, or another one's.
    pub fn free_instance(&self) -> Option<(usize, MutexGuard<'_, Slot>)> {
        let count = self.instances.len();
        let own = percpu::this_cpu().cpu as usize;
        let numbers = (0..count).map(|n| (own + n) % count);
        numbers.into_iter().find_map(|number| {
            let slot = self.instances[number].lock_free()?;
            Some((number, slot))
        })
    }

    /// An invocation was aborted: there is no other. `false`: it was disabled before.
    pub fn disable(&self, ending: Ending) -> bool {
        self.aborts.fetch_add(1, Ordering::Relaxed);
        self.counts.ending.lock().get_or_insert(ending);
        !self.disabled.swap(true, Ordering::AcqRel)
    }
}

/// Takes away the mappings of twin `number`, then what was mapped: an instance at a time, for each is some dozen
/// frames. `true`: that was the last.
fn take_down(number: usize, code: &mut Option<Frames>, instances: &mut Vec<Instance>) -> bool {
    if code.is_some() {
        instance::unmap(number);
        *code = None;
    }
    instances.pop();
    instances.is_empty()
}

/// The place of twin `number`.
pub fn place(number: u32) -> Result<&'static Place, Errno> {
    TWINS.get(number as usize).ok_or(Errno::ENOENT)
}

/// The twin of `d` in `place`, if it is one that can run.
pub fn ready<'a>(place: &'a Option<State>, d: &Domain) -> Result<&'a Loaded, Errno> {
    match place {
        Some(State::Ready(loaded)) if loaded.owner == d.id && !loaded.is_going() => Ok(loaded),
        _ => Err(Errno::ENOENT),
    }
}

/// Does something with what the twin in place `number`, which does not go meanwhile, shares with others.
#[inline(always)]
pub fn with_common<R>(number: usize, work: impl FnOnce(&Common) -> R) -> Option<R> {
    match TWINS[number].read().as_ref() {
        Some(State::Ready(loaded)) => Some(work(&loaded.common)),
        _ => None,
    }
}
