//! IOMMUs: the shell around `hv_core::iommu`. One kind so far, Intel's VT-d.
//!
//! Every function the machine has is in one of three states: confined to the hardware domain's tables, to those of the
//! domain that owns it, or blocked. Without an IOMMU everything here does nothing.
//!
//! The hardware domain's devices reach all memory but the hypervisor's image and boot-time tables, as under Xen; with
//! `iommu=dom0-strict` they reach what the hardware domain may write itself. Other domains' devices always do only that.

mod memory;
pub mod remap;
mod report;
mod vtd;

use crate::arch::pci::{self, Sbdf};
use crate::arch::{acpi, lapic};
use crate::domain::Domain;
use crate::mem::frames;
use crate::sync::{Mutex, Once};
use crate::{info, warn};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use hv_core::cmdline::Options;
use hv_core::frame::FrameType;
use hv_core::iommu::dmar::Dmar;
use hv_core::iommu::vtd::{Invalidation, SecondLevel};
use hv_core::iommu::{Access, DmaSpace, Narrowed, Tables};
use hv_core::passthrough::Owner;
pub use report::handle_faults;
use vtd::Unit;
use x86::{MachAddr, Mfn};
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;
use xen_abi::memory::E820Entry;

/// Id of the hardware domain's tables when they do not follow its frames. Id 0 is not used.
const HARDWARE_ID: u16 = 1;
/// Tables freed between two looks at what else there is to do.
const FREE_STEPS: u32 = 256;

/// What an active IOMMU is.
struct Iommu {
    units: Vec<Unit>,
    dmar: Dmar,
    /// Levels of everyone's tables.
    levels: u32,
    /// Context entry of the hardware domain, once it is known.
    hardware: Once<Confined>,
    is_strict: bool,
    ids: Mutex<BTreeSet<u16>>,
    nr_ids: u32,
    caches_absence: bool,
    /// The table of interrupts, if they are remapped.
    remapping: Option<remap::Table>,
}

/// What a context entry says.
#[derive(Clone, Copy)]
struct Confined {
    root: Mfn,
    levels: u32,
    id: u16,
}

static IOMMU: Once<Option<Iommu>> = Once::new();
/// Does any domain have tables that follow its frames?
static IS_TRACKING: AtomicBool = AtomicBool::new(false);
/// Frames were taken out of tables since the last flush of all translations.
static RELEASED: AtomicBool = AtomicBool::new(false);
/// Held during such a flush.
static FLUSH: Mutex<()> = Mutex::new(());

fn active() -> Option<&'static Iommu> {
    IOMMU.get()?.as_ref()
}

/// Is there one in use?
pub fn is_active() -> bool {
    active().is_some()
}

/// A domain's tables.
pub struct DomainDma {
    id: u16,
    space: DmaSpace<SecondLevel>,
}

/// Finds and starts the units; all functions are the hardware domain's, which does not run yet.
pub fn init(options: &Options, machine_map: &[E820Entry]) {
    let found = if options.iommu.is_enabled { Iommu::find() } else { None };
    if found.is_none() && options.iommu.is_required {
        panic!("iommu=required, but this machine has no IOMMU that can be used");
    }
    let Some(mut iommu) = found else {
        IOMMU.call_once(|| None);
        return;
    };
    iommu.is_strict = options.iommu.is_dom0_strict;
    if !iommu.is_strict {
        let tables = memory::hardware_tables(&iommu, machine_map).expect("out of memory for the IOMMU's tables");
        let confined = Confined { root: tables.root(), levels: tables.levels(), id: HARDWARE_ID };
        iommu.hardware.call_once(|| confined);
    }
    for f in pci::functions() {
        iommu.set_context(f.at, iommu.hardware.get().copied());
    }
    let fits = |u: &Unit| !lapic::is_x2apic() || u.capabilities.has_x2apic_interrupts();
    let can_remap = iommu.units.iter().all(|u| u.capabilities.can_remap_interrupts() && fits(u));
    if options.iommu.has_intremap && can_remap && remap::knows_io_apics(&iommu) {
        iommu.remapping = remap::Table::new();
    }
    iommu.units.iter().for_each(|u| u.enable(iommu.remapping.as_ref()));
    acpi::hide_dmar();
    let is_strict = iommu.is_strict;
    info!(
        "IOMMU: VT-d, {} unit(s), {} levels; domain 0's devices reach {}",
        iommu.units.len(),
        iommu.levels,
        if iommu.is_strict { "its own memory" } else { "all memory but the hypervisor's image" }
    );
    if iommu.remapping.is_some() {
        info!("IOMMU: interrupts are remapped, and none but a device's own is let through");
    } else {
        warn!("IOMMU: interrupts are not remapped: a domain with a device can raise any interrupt vector");
    }
    IOMMU.call_once(|| Some(iommu));
    if is_strict {
        crate::domain::for_each(adopt_hardware_domain);
    }
}

impl Iommu {
    fn find() -> Option<Self> {
        let dmar = Dmar::parse(&acpi::read_table(acpi::tables().dmar?)?)?;
        if dmar.units.is_empty() {
            return None;
        }
        let units: Option<Vec<Unit>> = dmar.units.iter().map(Unit::new).collect();
        let units = units.or_else(|| {
            warn!("IOMMU: a unit lacks what is needed: none is used");
            None
        })?;
        let levels = units.iter().filter_map(|u| u.capabilities.levels()).min()?;
        let nr_ids = units.iter().map(|u| u.capabilities.nr_domain_ids()).min()?;
        let caches_absence = units.iter().any(|u| u.capabilities.caches_absence());
        let ids = Mutex::new(BTreeSet::from([0, HARDWARE_ID]));
        let hardware = Once::new();
        Some(Self { units, dmar, levels, hardware, is_strict: false, ids, nr_ids, caches_absence, remapping: None })
    }

    /// Confines the function at `at`, or blocks it. Afterwards it has no access that it had by the old entry only.
    fn set_context(&self, at: Sbdf, to: Option<Confined>) {
        let chain = chain(at);
        let Some(unit) = self.dmar.unit_of(&chain, |bus, devfn| secondary(at.segment, bus, devfn)) else { return };
        let Some(unit) = self.units.get(unit) else { return };
        unit.set_context(at, to);
        // Behind a bridge that hides identities it is the bridge's, or that of the first function of its bus, that is seen.
        if let Some(bridge) = pci::function(at).and_then(|f| f.identity_bridge()) {
            unit.set_context(bridge.at, to);
            unit.set_context(Sbdf::new(at.segment, pci::read8(bridge.at, pci::reg::SECONDARY_BUS), 0), to);
        }
    }

    fn invalidate(&self, what: Invalidation) {
        self.units.iter().for_each(|u| u.invalidate(&[what]));
    }

    fn allocate_id(&self) -> Option<u16> {
        let mut ids = self.ids.lock();
        let end = u16::try_from(self.nr_ids).unwrap_or(u16::MAX);
        let id = (HARDWARE_ID + 1..end).find(|id| !ids.contains(id))?;
        ids.insert(id);
        Some(id)
    }
}

/// The function and the bridges above it.
fn chain(at: Sbdf) -> Vec<Sbdf> {
    let mut chain = alloc::vec![at];
    let mut next = pci::function(at).and_then(|f| f.bridge);
    while let Some(bridge) = next {
        chain.push(bridge);
        next = pci::function(bridge).and_then(|f| f.bridge);
    }
    chain
}

/// The bus behind a bridge.
fn secondary(segment: u16, bus: u8, devfn: u8) -> Option<u8> {
    let f = pci::function(Sbdf::new(segment, bus, devfn)).filter(|f| f.header == 1)?;
    Some(pci::read8(f.at, pci::reg::SECONDARY_BUS))
}

/// Has the firmware reserved memory for the function?
pub fn has_firmware_memory(at: Sbdf) -> bool {
    active().is_some_and(|i| i.dmar.has_reserved(&chain(at), |bus, devfn| secondary(at.segment, bus, devfn)))
}

/// The function at `at` is `owner`'s now. Afterwards it reaches nothing of the one before.
pub fn follow(at: Sbdf, owner: Owner) {
    let Some(iommu) = active() else { return };
    let to = match owner {
        Owner::Hardware => iommu.hardware.get().copied(),
        Owner::Quarantine => None,
        Owner::Domain(id) => crate::domain::find(id).and_then(|d| d.dma.lock().as_ref().map(DomainDma::confined)),
    };
    iommu.set_context(at, to);
}

impl DomainDma {
    fn confined(&self) -> Confined {
        Confined { root: self.space.tables.root(), levels: self.space.tables.levels(), id: self.id }
    }
}

/// Gives a new domain tables that follow its frames. `None`: out of memory or of ids.
pub fn prepare(d: &Domain) -> Option<()> {
    let Some(iommu) = active() else { return Some(()) };
    let tables = Tables::new(&memory::Direct, iommu.levels)?;
    let Some(id) = iommu.allocate_id() else {
        frames::free(tables.root(), 0);
        return None;
    };
    *d.dma.lock() = Some(DomainDma { id, space: DmaSpace::new(tables) });
    IS_TRACKING.store(true, Ordering::Release);
    Some(())
}

/// Confines the devices of the hardware domain, which is built and does not run yet, to its own memory.
fn adopt_hardware_domain(d: &Domain) {
    let Some(iommu) = active() else { return };
    prepare(d).expect("out of memory for the IOMMU's tables");
    for mfn in (0..frames::end().raw()).map(Mfn::new) {
        let Some(frame) = frames::frame(mfn) else { continue };
        if frame.owner() == DomId(d.id) && frame.usage().ty() == FrameType::Writable && !frame.count().is_heap() {
            allow(d, mfn);
        }
    }
    let mut dma = d.dma.lock();
    let Some(dma) = dma.as_mut() else { return };
    for r in &iommu.dmar.reserved {
        let (first, last) = (Mfn::containing(MachAddr::new(r.first)), Mfn::containing(MachAddr::new(r.last)));
        let _ = dma.space.tables.map(&memory::Direct, first, last.add(1), Access::ReadWrite, 1);
    }
    let confined = dma.confined();
    iommu.hardware.call_once(|| confined);
    pci::functions().iter().for_each(|f| iommu.set_context(f.at, Some(confined)));
}

/// Frees the tables of a domain that is dying and has no device any more. ERESTART: to be called again.
pub fn release(d: &Domain) -> Result<(), Errno> {
    let (Some(iommu), mut dma) = (active(), d.dma.lock()) else { return Ok(()) };
    let Some(own) = dma.as_mut() else { return Ok(()) };
    if !own.space.free_some(&memory::Direct, FREE_STEPS) {
        return Err(Errno::ERESTART);
    }
    iommu.invalidate(Invalidation::Domain(own.id));
    iommu.ids.lock().remove(&own.id);
    *dma = None;
    Ok(())
}

/// Does any domain have tables that follow its frames? If not, the next three need not be called.
#[inline(always)]
pub fn is_tracking() -> bool {
    IS_TRACKING.load(Ordering::Relaxed)
}

fn with_space<R>(d: &Domain, act: impl FnOnce(&Iommu, &mut DomainDma) -> R) -> Option<R> {
    Some(act(active()?, d.dma.lock().as_mut()?))
}

/// `d`'s frame became writable.
pub fn allow(d: &Domain, mfn: Mfn) {
    with_space(d, |iommu, dma| {
        if dma.space.allow_own(&memory::Direct, mfn).is_err() {
            warn!("d{}: out of memory for the IOMMU's tables: its devices do not reach frame {:#x}", d.id, mfn.raw());
        } else if iommu.caches_absence {
            iommu.invalidate(Invalidation::Page(dma.id, mfn));
        }
    });
}

/// It is not any more, and no device reaches it when this returns.
pub fn forbid(d: &Domain, mfn: Mfn) {
    with_space(d, |iommu, dma| {
        if dma.space.forbid_own(&memory::Direct, mfn) == Narrowed(true) {
            iommu.invalidate(Invalidation::Page(dma.id, mfn));
        }
    });
}

/// It leaves `d`: no device reaches it after the next [`flush_released`].
pub fn forbid_later(d: &Domain, mfn: Mfn) {
    with_space(d, |_, dma| {
        if dma.space.forbid_own(&memory::Direct, mfn) == Narrowed(true) {
            RELEASED.store(true, Ordering::Release);
        }
    });
}

/// No device reaches what was taken from it with [`forbid_later`] or [`revoke`] before.
pub fn flush_released() {
    if !is_tracking() {
        return;
    }
    // Who finds the mark gone waits for the flush of the one who took it.
    let _flush = FLUSH.lock();
    if RELEASED.swap(false, Ordering::AcqRel) {
        if let Some(iommu) = active() {
            iommu.invalidate(Invalidation::Translations);
        }
    }
}

/// A frame of another domain's was granted to `d`.
pub fn grant(d: &Domain, mfn: Mfn, writable: bool) -> bool {
    // The list of what is granted cannot report that it did not get memory.
    if !frames::has_headroom() {
        return false;
    }
    let done = with_space(d, |iommu, dma| {
        let done = dma.space.grant(&memory::Direct, mfn, writable).is_ok();
        if iommu.caches_absence {
            iommu.invalidate(Invalidation::Page(dma.id, mfn));
        }
        done
    });
    done.unwrap_or(true)
}

/// The grant ends. The caller flushes ([`flush_released`]) before it gives the frame back.
pub fn revoke(d: &Domain, mfn: Mfn, writable: bool) {
    with_space(d, |_, dma| {
        if dma.space.revoke(&memory::Direct, mfn, writable) == Narrowed(true) {
            RELEASED.store(true, Ordering::Release);
        }
    });
}
