//! Frames of devices that the hypervisor keeps to itself, entirely or for writing. Whoever drives such a device says so here.

use crate::sync::RwLock;
use hv_core::rangeset::RangeSet;
use x86::Mfn;
use xen_abi::errno::Errno;

/// Frames that nobody may write, though they may map them: configuration space and MSI-X tables that the hypervisor
/// watches.
static READ_ONLY_FRAMES: RwLock<RangeSet> = RwLock::new(RangeSet::new());
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

/// Ends [`watch`].
pub fn unwatch(first: Mfn, last: Mfn) {
    // A failure leaves them watched: their writers are slower, that is all.
    let _ = READ_ONLY_FRAMES.write().remove(first.raw(), last.raw());
}

/// May no domain map it?
pub fn is_hidden(mfn: Mfn) -> bool {
    HIDDEN_FRAMES.read().contains(mfn.raw())
}

/// Is it a frame that only the hypervisor writes?
pub fn is_watched(mfn: Mfn) -> bool {
    READ_ONLY_FRAMES.read().contains(mfn.raw())
}
