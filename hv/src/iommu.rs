//! IOMMUs: the shell around `hv_core::iommu`, for Intel's VT-d and AMD's AMD-Vi.
//!
//! Every function that a unit translates is in one of three states: confined to the hardware domain's tables, to those
//! of the domain that owns it, or blocked. One that none translates stays with the hardware domain. Without an IOMMU
//! everything here does nothing.
//!
//! The hardware domain's devices reach all memory but the hypervisor's image and boot-time tables, as under Xen; with
//! `iommu=dom0-strict` they reach what the hardware domain may write itself. Other domains' devices always do only
//! that.

mod amd;
mod hardware;
mod memory;
pub mod remap;
mod report;
mod vtd;

use crate::arch::ioapic;
use crate::arch::limited::Limited;
use crate::arch::pci::{self, Sbdf};
use crate::cpu::percpu::this_cpu;
use crate::mem::frames;
use crate::sync::{Mutex, Once};
use crate::{info, warn};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use core::sync::atomic::{AtomicBool, Ordering};
use hardware::{Confined, Hardware};
use hv_core::allowance::CALL;
use hv_core::cmdline::Options;
use hv_core::frame::FrameType;
use hv_core::iommu::{Access, AnyFormat, DmaSpace, Forget, Narrowed, TableMem, Tables, Widened};
use hv_core::passthrough::{confined_to, Owner};
pub use report::{add as add_reports, handle_faults, has_news, init as init_reports};
use x86::Mfn;
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;
use xen_abi::memory::E820Entry;

/// Id of the hardware domain's tables when they do not follow its frames. Id 0 is not used.
const HARDWARE_ID: u16 = 1;
/// Tables, and entries of the list of what is granted, that are freed between two looks at what else there is to do.
const FREE_STEPS: u32 = 256;

/// What an active IOMMU is.
struct Iommu {
    hardware: Box<dyn Hardware>,
    /// Where the hardware domain's devices are confined, once it is known.
    home: Once<Confined>,
    ids: Mutex<BTreeSet<u16>>,
    is_told_of_additions: bool,
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

/// How many domains the hardware can tell apart are in use, those that are always among them.
pub fn nr_domains() -> usize {
    active().map_or(0, |i| i.ids.lock().len())
}

/// What a domain's devices reach: nothing of its own, or its tables, if there is an IOMMU and it may have devices.
/// Their lock is taken after all others but the allocator's and the IOMMU's own.
pub struct DomainDma {
    domain: DomId,
    /// There are some, or were: a look without the lock.
    is_tracked: AtomicBool,
    tables: Mutex<Option<OwnTables>>,
}

/// A domain's tables.
struct OwnTables {
    id: u16,
    space: DmaSpace<AnyFormat>,
}

/// Finds and starts the units; all functions are the hardware domain's, which does not run yet. `hardware_domain`: what
/// its devices reach.
pub fn init(options: &Options, machine_map: &[E820Entry], hardware_domain: &DomainDma) {
    let found = if options.iommu.is_enabled { vtd::find().or_else(amd::find) } else { None };
    if found.is_none() && options.iommu.is_required {
        panic!("iommu=required, but this machine has no IOMMU that can be used");
    }
    let Some(mut hardware) = found else {
        IOMMU.call_once(|| None);
        return;
    };
    pci::separate();
    let is_strict = options.iommu.is_dom0_strict;
    let home = Once::new();
    if !is_strict {
        let tables = memory::hardware_tables(&*hardware, machine_map).expect("out of memory for the IOMMU's tables");
        let confined = Confined { root: tables.root(), levels: tables.levels(), id: HARDWARE_ID, is_home: true };
        home.call_once(|| confined);
    }
    for f in pci::functions().iter() {
        confine_all(&*hardware, f.at, home.get().copied());
    }
    hardware.enable(options.iommu.has_intremap);
    if hardware.hides_ends() {
        ioapic::ends_are_hidden();
    }
    info!(
        "IOMMU: {}, {} unit(s), {} levels; domain 0's devices reach {}",
        hardware.name(),
        hardware.nr_units(),
        hardware.levels(),
        if is_strict { "its own memory" } else { "all memory but the hypervisor's image" }
    );
    if hardware.remaps_interrupts() {
        info!("IOMMU: interrupts are remapped, and none but a device's own is let through");
    } else {
        warn!("IOMMU: interrupts are not remapped: a domain with a device can raise any interrupt vector");
    }
    let is_told_of_additions = hardware.is_told_of_additions();
    let ids = Mutex::new(BTreeSet::from([0, HARDWARE_ID]));
    IOMMU.call_once(|| Some(Iommu { hardware, home, ids, is_told_of_additions }));
    if is_strict {
        adopt_hardware_domain(hardware_domain);
    }
}

impl Iommu {
    fn allocate_id(&self) -> Option<u16> {
        let mut ids = self.ids.lock();
        let end = u16::try_from(self.hardware.nr_domain_ids()).unwrap_or(u16::MAX);
        let id = (HARDWARE_ID + 1..end).find(|id| !ids.contains(id))?;
        ids.insert(id);
        Some(id)
    }
}

/// Is there an IOMMU, and the function behind none of its units?
pub fn is_untranslated(at: Sbdf) -> bool {
    active().is_some_and(|i| !i.hardware.translates(at))
}

/// Has the firmware reserved memory for the function?
pub fn has_firmware_memory(at: Sbdf) -> bool {
    active().is_some_and(|i| i.hardware.has_firmware_memory(at))
}

/// Does the IOMMU see another function's identity on what this one does?
pub fn shares_identity(at: Sbdf) -> bool {
    active().is_some_and(|i| i.hardware.shares_identity(at))
}

/// Is the function part of the IOMMU, and so the hypervisor's to drive?
pub fn is_unit(at: Sbdf) -> bool {
    active().is_some_and(|i| i.hardware.is_unit(at))
}

/// All that a function is seen as is confined, while all functions are the hardware domain's.
fn confine_all(hardware: &dyn Hardware, at: Sbdf, to: Option<Confined>) {
    hardware.identities(at).into_iter().flatten().for_each(|id| hardware.confine(at, id, to));
}

/// The function at `at` is `owner`'s now, a domain with `dma` if it is one without all. Afterwards it reaches nothing
/// of the one before. What others are seen as, too, follows all their owners, which `owner_of` says.
pub fn follow(at: Sbdf, owner: Owner, dma: Option<&DomainDma>, owner_of: impl Fn(Sbdf) -> Option<Owner>) {
    let Some(iommu) = active() else { return };
    let functions = pci::functions();
    for id in iommu.hardware.identities(at).into_iter().flatten() {
        let others = functions.iter().map(|f| f.at).filter(|other| *other != at && other.segment == at.segment);
        let sharers = others.filter(|other| iommu.hardware.identities(*other).contains(&Some(id)));
        let to = match confined_to(sharers.filter_map(&owner_of).chain([owner])) {
            Owner::Hardware => iommu.home.get().copied(),
            Owner::Quarantine => None,
            Owner::Domain(_) => dma.and_then(|dma| dma.tables.lock().as_ref().map(|own| own.confined(false))),
        };
        iommu.hardware.confine(at, id, to);
    }
}

impl DomainDma {
    /// No tables yet.
    pub fn new(domain: DomId) -> Self {
        Self { domain, is_tracked: AtomicBool::new(false), tables: Mutex::new(None) }
    }

    /// Do tables follow what the domain may reach? It has them before it runs, or never.
    #[inline(always)]
    pub fn is_tracked(&self) -> bool {
        self.is_tracked.load(Ordering::Relaxed)
    }

    /// Has the domain tables of its own?
    pub fn has_tables(&self) -> bool {
        self.tables.lock().is_some()
    }
}

impl OwnTables {
    fn confined(&self, is_home: bool) -> Confined {
        let tables = &self.space.tables;
        Confined { root: tables.root(), levels: tables.levels(), id: self.id, is_home }
    }
}

/// Gives a new domain tables that follow its frames. `None`: out of memory or of ids.
pub fn prepare(dma: &DomainDma) -> Option<()> {
    prepare_in(dma, &memory::OfDomain)
}

fn prepare_in(dma: &DomainDma, mem: &impl TableMem) -> Option<()> {
    let Some(iommu) = active() else { return Some(()) };
    let tables = Tables::new(mem, iommu.hardware.levels(), iommu.hardware.format())?;
    let Some(id) = iommu.allocate_id() else {
        frames::free_table(tables.root());
        return None;
    };
    *dma.tables.lock() = Some(OwnTables { id, space: DmaSpace::new(tables) });
    dma.is_tracked.store(true, Ordering::Release);
    IS_TRACKING.store(true, Ordering::Release);
    Some(())
}

/// Confines the devices of the hardware domain, which is built and does not run yet, to its own memory.
fn adopt_hardware_domain(dma: &DomainDma) {
    let Some(iommu) = active() else { return };
    prepare_in(dma, &memory::Direct).expect("out of memory for the IOMMU's tables");
    for mfn in (0..frames::end().raw()).map(Mfn::new) {
        let Some(frame) = frames::frame(mfn) else { continue };
        if frame.owner() == dma.domain && frame.usage().ty() == FrameType::Writable && !frame.count().is_heap() {
            allow_in(dma, mfn, &memory::Direct);
        }
    }
    let mut tables = dma.tables.lock();
    let Some(own) = tables.as_mut() else { return };
    for (first, last) in iommu.hardware.firmware_memory() {
        let (first, last) = (Mfn::containing(first), Mfn::containing(last));
        let _ = own.space.tables.map(&memory::Direct, first, last.add(1), Access::ReadWrite, 1);
    }
    let confined = own.confined(true);
    iommu.home.call_once(|| confined);
    pci::functions().iter().for_each(|f| confine_all(&*iommu.hardware, f.at, Some(confined)));
}

/// Frees the tables of a domain that is dying and has no device any more. ERESTART: to be called again.
pub fn release(dma: &DomainDma) -> Result<(), Errno> {
    let (Some(iommu), mut tables) = (active(), dma.tables.lock()) else { return Ok(()) };
    let Some(own) = tables.as_mut() else { return Ok(()) };
    if !own.space.free_some(&memory::OfDomain, FREE_STEPS) {
        return Err(Errno::ERESTART);
    }
    forget(iommu, Forget::Domain(own.id));
    iommu.ids.lock().remove(&own.id);
    *tables = None;
    Ok(())
}

/// The units forget translations before this returns.
fn forget(iommu: &Iommu, what: Forget) {
    iommu.hardware.forget(what);
    this_cpu().allowance.spend(CALL);
}

/// Does any domain have tables that follow its frames? If not, the next three need not be called.
#[inline(always)]
pub fn is_tracking() -> bool {
    IS_TRACKING.load(Ordering::Relaxed)
}

fn with_space<R>(dma: &DomainDma, act: impl FnOnce(&Iommu, &mut OwnTables) -> R) -> Option<R> {
    Some(act(active()?, dma.tables.lock().as_mut()?))
}

/// The domain with `dma` is about to get the `count` frames from `first`, or a grant of them. `false`: there is no
/// memory for the tables that let its devices reach them, so it does not get them.
pub fn make_room(dma: &DomainDma, first: Mfn, count: u64) -> bool {
    with_space(dma, |_, own| own.space.make_room(&memory::OfDomain, first, count).is_ok()).unwrap_or(true)
}

/// There is no memory for the tables that would let the devices of the domain with `dma` reach the frame. A guest can
/// bring that about at will.
pub fn warn_out_of_reach(dma: &DomainDma, mfn: Mfn) {
    static LIMITED: Limited = Limited::new();
    let (id, frame) = (dma.domain.0, mfn.raw());
    LIMITED
        .warn(format_args!("d{id}: out of memory for the IOMMU's tables: its devices do not reach frame {frame:#x}"));
}

/// Devices of a domain may do more with a frame than before: the units hear of it, if they have to.
fn tell_of_more(iommu: &Iommu, own: &OwnTables, mfn: Mfn, widened: Widened) {
    if iommu.is_told_of_additions || widened == Widened(true) {
        forget(iommu, Forget::Page(own.id, mfn));
    }
}

/// A frame of the domain with `dma` became writable.
pub fn allow(dma: &DomainDma, mfn: Mfn) {
    allow_in(dma, mfn, &memory::OfDomain);
}

fn allow_in(dma: &DomainDma, mfn: Mfn, mem: &impl TableMem) {
    with_space(dma, |iommu, own| match own.space.allow_own(mem, mfn) {
        Err(_) => warn_out_of_reach(dma, mfn),
        Ok(widened) => tell_of_more(iommu, own, mfn, widened),
    });
}

/// It is not any more, and no device reaches it when this returns.
pub fn forbid(dma: &DomainDma, mfn: Mfn) {
    with_space(dma, |iommu, own| {
        if own.space.forbid_own(&memory::OfDomain, mfn) == Narrowed(true) {
            forget(iommu, Forget::Page(own.id, mfn));
        }
    });
}

/// It leaves the domain: no device reaches it after the next [`flush_released`].
pub fn forbid_later(dma: &DomainDma, mfn: Mfn) {
    with_space(dma, |_, own| {
        if own.space.forbid_own(&memory::OfDomain, mfn) == Narrowed(true) {
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
            forget(iommu, Forget::All);
        }
    }
}

/// A frame of another domain's was granted to the one with `dma`. The caller has seen to it that there is memory for
/// the list of what is granted, which cannot report that there was none. `false`: devices do not reach the frame, but
/// it is in the list.
pub fn grant(dma: &DomainDma, mfn: Mfn, writable: bool) -> bool {
    let done = with_space(dma, |iommu, own| {
        let done = own.space.grant(&memory::OfDomain, mfn, writable);
        tell_of_more(iommu, own, mfn, done.unwrap_or(Widened(false)));
        done.is_ok()
    });
    done.unwrap_or(true)
}

/// The grant ends. The caller flushes ([`flush_released`]) before it gives the frame back.
pub fn revoke(dma: &DomainDma, mfn: Mfn, writable: bool) {
    with_space(dma, |_, own| {
        if own.space.revoke(&memory::OfDomain, mfn, writable) == Narrowed(true) {
            RELEASED.store(true, Ordering::Release);
        }
    });
}
