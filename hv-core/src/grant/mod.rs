//! Grant tables, version 1: a domain lets others map, copy from or to, or fill its pages.
//!
//! Two halves. [`GrantTable`] is the granter's: the entries that it writes (shared, read as atomics, never believed
//! twice) and an *active* entry for each, which only the hypervisor writes: who uses the grant, which frame it was when
//! first used, and how often it is in use, by kind. [`Maptrack`] is the mapper's: what each handle stands for.
//!
//! Each is in a lock of its own. Lock order: the mapper's MMU lock (for its page tables), the mapper's maptrack, the
//! granter's table. A map is: handle, pin, page-table entry; failure undoes what was done, in reverse. An unmap is:
//! page-table entry cleared and the handle's flag with it, TLBs flushed by the caller, then unpinned; the handle is
//! free when nothing of it is left. Between the steps other vCPUs of a guest may try the same handle: each step works
//! on the flags that are still set.
//!
//! While an entry is pinned its frame and user are those of the active entry, whatever the guest writes meanwhile.

pub mod audit;
mod copy;
mod maptrack;
#[cfg(any(test, feature = "fuzzing"))]
pub mod oracle;
mod snapshot;
mod table;
#[cfg(test)]
mod tests;

pub use copy::{check_copy, CopySide};
pub use maptrack::{Mapping, Maptrack, Retired};
pub use snapshot::Saved;
pub use table::GrantTable;

pub use crate::evtchn::DomId;
use crate::evtchn::PageWords;
use xen_abi::grant::{GntStatus, GNTMAP_CONTAINS_PTE, GNTMAP_DEVICE_MAP, GNTMAP_GUEST_AVAIL_MASK, GNTMAP_HOST_MAP};
use xen_abi::grant::{GNTMAP_APPLICATION_MAP, GNTMAP_READONLY};

/// A frame of shared entries: hypervisor memory that the granter may map.
pub trait SharedFrame: AsRef<PageWords> {
    /// Its machine frame number.
    fn mfn(&self) -> u64;
}

/// References to granted frames.
pub trait FrameRefs {
    /// Takes a reference to frame `frame`, which must be RAM of `owner`; with `writable` one that also makes it (or
    /// keeps it) a writable page. `false`: that cannot be.
    fn take(&self, owner: DomId, frame: u64, writable: bool) -> bool;
    /// Gives back what one `take` took, or what was made of it.
    fn give_back(&self, frame: u64, writable: bool);
    /// Makes a reference to a frame of `owner` one that is also for writing. `false`: that cannot be; it stays what it
    /// is.
    fn make_writable(&self, owner: DomId, frame: u64) -> bool;
    /// Makes a reference for writing one that is not.
    fn make_readable(&self, frame: u64);
}

/// A way of using a grant. Each is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// By a device rather than a CPU.
    pub device: bool,
    /// For writing.
    pub writable: bool,
}

impl Use {
    /// By a CPU.
    pub const fn host(writable: bool) -> Use {
        Use { device: false, writable }
    }
    /// By a device.
    pub const fn device(writable: bool) -> Use {
        Use { device: true, writable }
    }
}

/// The flags of a map request, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapFlags {
    /// `GNTMAP_HOST_MAP`.
    pub host: bool,
    /// `GNTMAP_DEVICE_MAP`.
    pub device: bool,
    /// Not `GNTMAP_READONLY`.
    pub writable: bool,
    /// `GNTMAP_APPLICATION_MAP`.
    pub application: bool,
    /// `GNTMAP_CONTAINS_PTE`.
    pub contains_pte: bool,
    /// The available bits for the page-table entry.
    pub available: u16,
}

impl MapFlags {
    /// Decodes the flags. `BadGntref` (as Xen answers) if a bit is unknown or there is nothing to map.
    pub fn decode(flags: u32) -> Result<MapFlags, GntStatus> {
        const KNOWN: u32 = GNTMAP_DEVICE_MAP
            | GNTMAP_HOST_MAP
            | GNTMAP_READONLY
            | GNTMAP_APPLICATION_MAP
            | GNTMAP_CONTAINS_PTE
            | GNTMAP_GUEST_AVAIL_MASK;
        if flags & !KNOWN != 0 || flags & (GNTMAP_DEVICE_MAP | GNTMAP_HOST_MAP) == 0 {
            return Err(GntStatus::BadGntref);
        }
        let [.., low, high] = flags.to_le_bytes();
        Ok(MapFlags {
            host: flags & GNTMAP_HOST_MAP != 0,
            device: flags & GNTMAP_DEVICE_MAP != 0,
            writable: flags & GNTMAP_READONLY == 0,
            application: flags & GNTMAP_APPLICATION_MAP != 0,
            contains_pte: flags & GNTMAP_CONTAINS_PTE != 0,
            available: u16::from_le_bytes([low, high]),
        })
    }
}

/// First half of a map: a handle for the grant, pinned for what `flags` ask. Returns handle and frame. The caller
/// writes the page-table entry next, and calls [`map_undo`] if it cannot. `NoDeviceSpace`: no handle left.
pub fn map<P: SharedFrame>(
    track: &mut Maptrack,
    table: &mut GrantTable<P>,
    refs: &impl FrameRefs,
    mapper: DomId,
    gref: u32,
    flags: MapFlags,
) -> Result<(u32, u64), GntStatus> {
    let handle = track.allocate().ok_or(GntStatus::NoDeviceSpace)?;
    let pinned = pin_all(table, refs, mapper, gref, flags);
    match pinned {
        Ok(frame) => {
            let mapping = Mapping {
                granter: table.dom(),
                incarnation: table.incarnation(),
                gref,
                frame,
                host: flags.host,
                device: flags.device,
                writable: flags.writable,
                by_entry: flags.contains_pte,
            };
            track.set(handle, mapping);
            Ok((handle, frame))
        }
        Err(e) => {
            track.free(handle);
            Err(e)
        }
    }
}

fn pin_all<P: SharedFrame>(
    table: &mut GrantTable<P>,
    refs: &impl FrameRefs,
    mapper: DomId,
    gref: u32,
    flags: MapFlags,
) -> Result<u64, GntStatus> {
    let mut frame = 0;
    if flags.host {
        frame = table.pin(refs, mapper, gref, Use::host(flags.writable))?;
    }
    if flags.device {
        match table.pin(refs, mapper, gref, Use::device(flags.writable)) {
            Ok(f) => frame = f,
            Err(e) => {
                if flags.host {
                    table.unpin(refs, gref, Use::host(flags.writable));
                }
                return Err(e);
            }
        }
    }
    Ok(frame)
}

/// The page-table entry of a fresh handle could not be written: what is left of the map is undone.
pub fn map_undo<P: SharedFrame>(track: &mut Maptrack, table: &mut GrantTable<P>, refs: &impl FrameRefs, handle: u32) {
    if let Some(retired) = track.retire(handle, true, true) {
        unmap_finish(track, table, refs, retired);
    }
}

/// Last half of an unmap, after the flush: the uses end, and the handle if nothing of it is left. A table of another
/// domain, which got the granter's number after it, is left alone.
pub fn unmap_finish<P: SharedFrame>(
    track: &mut Maptrack,
    table: &mut GrantTable<P>,
    refs: &impl FrameRefs,
    retired: Retired,
) {
    if retired.mapping.incarnation != table.incarnation() {
        return track.abandon(retired);
    }
    let Retired { handle, mapping, host, device, last } = retired;
    if host {
        table.unpin(refs, mapping.gref, Use::host(mapping.writable));
    }
    if device {
        table.unpin(refs, mapping.gref, Use::device(mapping.writable));
    }
    if last {
        track.free(handle);
    }
}
