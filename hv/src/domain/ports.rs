//! A domain's event channels as data, and the pages that events are written to.

use crate::domain::memory::mmu_env::mmu;
use crate::domain::memory::DomainMm;
use crate::mem::frames;
use crate::sync::{Mutex, MutexGuard};
use hv_core::evtchn::{EventChannels, PageWords};
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::event::{Port, NR_PORTS_FIFO};

/// A domain's event channels, locked.
pub type Channels = EventChannels<GuestPage>;

/// A domain's event channels.
pub struct DomainEvents {
    channels: Mutex<Channels>,
}

impl DomainEvents {
    /// No ports, for a domain with up to `max_vcpus` vCPUs. `None` when out of memory.
    pub fn new(domid: u16, max_vcpus: u32) -> Option<Self> {
        let mut channels = EventChannels::new(domid, NR_PORTS_FIFO - 1, frames::grow_tables);
        channels.set_vcpus(max_vcpus).ok()?;
        Some(Self { channels: Mutex::new(channels) })
    }

    /// Sets the highest port that may be allocated, as the tools want it.
    pub fn set_max_ports(&self, max_port: Port) {
        self.lock().set_max_port(max_port);
    }

    /// Locks them. Lock order: see the module's documentation.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock()
    }
}

/// A page of a domain that the hypervisor writes events to. It stays the domain's, and writable, until this is dropped.
pub struct GuestPage {
    mfn: Mfn,
    words: *mut u8,
}

// SAFETY: the words are reached only as atomics.
unsafe impl Send for GuestPage {}

impl GuestPage {
    /// Its frame.
    pub fn mfn(&self) -> Mfn {
        self.mfn
    }

    /// Takes hold of frame `gfn` of the domain with `mm`. EINVAL if it is not the domain's or cannot be written.
    pub fn take(mm: &DomainMm, gfn: u64) -> Result<Self, Errno> {
        let mfn = Mfn::new(gfn);
        let words = mm.take_writable(mfn).ok_or(Errno::EINVAL)?;
        Ok(Self { mfn, words })
    }
}

impl Drop for GuestPage {
    fn drop(&mut self) {
        drop(mmu().writable_from_kept(self.mfn));
    }
}

impl AsRef<PageWords> for GuestPage {
    #[inline]
    fn as_ref(&self) -> &PageWords {
        // SAFETY: the direct-map address of a whole page that `take_writable` holds; page-aligned; atomics tolerate
        // that the guest writes at the same time.
        unsafe { &*self.words.cast::<PageWords>() }
    }
}
