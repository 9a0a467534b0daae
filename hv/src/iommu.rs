//! IOMMUs: the shell around `hv_core::iommu`, for Intel's VT-d and AMD's AMD-Vi.
//!
//! Every function the machine has is in one of three states: confined to the hardware domain's tables, to those of the
//! domain that owns it, or blocked. Without an IOMMU everything here does nothing.
//!
//! The hardware domain's devices reach all memory but the hypervisor's image and boot-time tables, as under Xen; with
//! `iommu=dom0-strict` they reach what the hardware domain may write itself. Other domains' devices always do only that.

mod amd;
mod memory;
pub mod remap;
mod report;
mod vtd;

use crate::arch::pci::{self, Sbdf};
use crate::arch::{acpi, ioapic};
use crate::console::Limited;
use crate::mem::frames;
use crate::sync::{Mutex, Once};
use crate::{info, warn};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use hv_core::cmdline::Options;
use hv_core::frame::FrameType;
use hv_core::iommu::{Access, AnyFormat, DmaSpace, Fault, Forget, Narrowed, Remapped, Tables};
use hv_core::passthrough::Owner;
pub use report::handle_faults;
use x86::{MachAddr, Mfn};
use xen_abi::errno::Errno;
use xen_abi::layout::DomId;
use xen_abi::memory::E820Entry;

/// Id of the hardware domain's tables when they do not follow its frames. Id 0 is not used.
const HARDWARE_ID: u16 = 1;
/// Tables freed between two looks at what else there is to do.
const FREE_STEPS: u32 = 256;

/// Reads of a register or of memory until a unit is taken for broken: seconds.
const PATIENCE: u32 = 1 << 28;

/// All units of the machine, which are of one kind.
trait Hardware: Send + Sync {
    /// What the kind is called.
    fn name(&self) -> &'static str;
    /// How many units.
    fn nr_units(&self) -> usize;
    /// The form of entries of their tables.
    fn format(&self) -> AnyFormat;
    /// Levels of everyone's tables.
    fn levels(&self) -> u32;
    /// The highest level of table whose entries may map a page.
    fn largest_page_level(&self) -> u32;
    /// Ids of domains are below this.
    fn nr_domain_ids(&self) -> u32;
    /// They may remember that something is not mapped.
    fn caches_absence(&self) -> bool;
    /// First and last addresses of what the firmware lets devices use for ever.
    fn firmware_memory(&self) -> Vec<(MachAddr, MachAddr)>;
    /// Is some of it for this function?
    fn has_firmware_memory(&self, at: Sbdf) -> bool;
    /// Do they see another function's identity on what this one does?
    fn shares_identity(&self, _at: Sbdf) -> bool {
        false
    }
    /// Is the function a unit itself?
    fn is_unit(&self, _at: Sbdf) -> bool {
        false
    }
    /// Starts the units, which confine functions from then on, and remap interrupts if that is wanted and possible.
    fn enable(&mut self, remaps_interrupts: bool);
    /// Are interrupts remapped?
    fn remaps_interrupts(&self) -> bool;
    /// Confines a function, or blocks it. Afterwards it has no access that it had by what was said before.
    fn confine(&self, at: Sbdf, to: Option<Confined>);
    /// Lets all units forget translations; when this returns, they have.
    fn forget(&self, what: Forget);
    /// Takes the accesses that were stopped since the last time, with their segment.
    fn take_faults(&self, tell: &mut dyn FnMut(u16, Result<Fault, Strange>));
    /// What the function is stopped from is not reported any more, until it is confined anew.
    fn silence(&self, at: Sbdf);
    /// Lets a source raise a line. `None`: interrupts are not remapped.
    fn set_interrupt(&self, line: u32, interrupt: Interrupt) -> Option<Remapped>;
    /// Sends a line to another CPU. `false`: it is not remapped.
    fn steer(&self, line: u32, apic_id: u32) -> bool;
    /// Nobody raises a message that was set for now, and who tries is not reported; or it is raised again.
    fn hold(&self, line: u32, held: bool);
    /// Nobody may raise the line any more.
    fn clear_interrupt(&self, line: u32);
    /// May an I/O APIC not be told of the end of a level-triggered interrupt by the CPU that took it?
    fn hides_ends(&self) -> bool {
        false
    }
}

/// An event that is no access that was stopped.
struct Strange {
    code: u8,
    words: [u64; 2],
}

/// An interrupt: fixed delivery, physical destination.
#[derive(Clone, Copy)]
struct Interrupt {
    vector: u8,
    apic_id: u32,
    is_level: bool,
    source: Source,
}

/// What raises it.
#[derive(Clone, Copy)]
enum Source {
    Function(Sbdf),
    /// With this id.
    IoApic(u8),
}

/// What an active IOMMU is.
struct Iommu {
    hardware: Box<dyn Hardware>,
    /// Where the hardware domain's devices are confined, once it is known.
    home: Once<Confined>,
    ids: Mutex<BTreeSet<u16>>,
    caches_absence: bool,
}

/// What devices are confined to.
#[derive(Clone, Copy)]
struct Confined {
    root: Mfn,
    levels: u32,
    id: u16,
    /// It is the hardware domain's.
    is_home: bool,
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

/// What a domain's devices reach: nothing of its own, or its tables, if there is an IOMMU and it may have devices. Their lock
/// is taken after all others but the allocator's and the IOMMU's own.
pub struct DomainDma {
    domain: DomId,
    tables: Mutex<Option<OwnTables>>,
}

/// A domain's tables.
struct OwnTables {
    id: u16,
    space: DmaSpace<AnyFormat>,
}

/// Finds and starts the units; all functions are the hardware domain's, which does not run yet. `hardware_domain`: what its
/// devices reach.
pub fn init(options: &Options, machine_map: &[E820Entry], hardware_domain: &DomainDma) {
    let found = if options.iommu.is_enabled { vtd::find().or_else(amd::find) } else { None };
    if found.is_none() && options.iommu.is_required {
        panic!("iommu=required, but this machine has no IOMMU that can be used");
    }
    let Some(mut hardware) = found else {
        IOMMU.call_once(|| None);
        return;
    };
    report::init();
    pci::separate();
    let is_strict = options.iommu.is_dom0_strict;
    let home = Once::new();
    if !is_strict {
        let tables = memory::hardware_tables(&*hardware, machine_map).expect("out of memory for the IOMMU's tables");
        let confined = Confined { root: tables.root(), levels: tables.levels(), id: HARDWARE_ID, is_home: true };
        home.call_once(|| confined);
    }
    for f in pci::functions().iter() {
        hardware.confine(f.at, home.get().copied());
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
    let caches_absence = hardware.caches_absence();
    let ids = Mutex::new(BTreeSet::from([0, HARDWARE_ID]));
    IOMMU.call_once(|| Some(Iommu { hardware, home, ids, caches_absence }));
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

/// Can all I/O APICs be told apart? If the firmware does not say what their accesses look like, nothing is remapped.
fn knows_io_apics(is_described: impl Fn(u8) -> bool) -> bool {
    let Some(madt) = acpi::tables().madt.as_ref() else { return false };
    let all = ioapic::gsi_end() > 0 && madt.io_apics.iter().all(|chip| is_described(chip.id));
    if !all {
        warn!("IOMMU: the firmware does not describe every I/O APIC");
    }
    all
}

fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    for _ in 0..PATIENCE {
        if is_done() {
            return;
        }
        core::hint::spin_loop();
    }
    panic!("IOMMU: {what} does not end");
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
    pci::function(Sbdf::new(segment, bus, devfn))?.secondary()
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

/// The function at `at` appeared, for the hardware domain.
pub fn add(at: Sbdf) {
    report::add(at);
    follow(at, Owner::Hardware, None);
}

/// The function at `at` is `owner`'s now, a domain with `dma` if it is one without all. Afterwards it reaches nothing of the
/// one before.
pub fn follow(at: Sbdf, owner: Owner, dma: Option<&DomainDma>) {
    let Some(iommu) = active() else { return };
    let to = match owner {
        Owner::Hardware => iommu.home.get().copied(),
        Owner::Quarantine => None,
        Owner::Domain(_) => dma.and_then(|dma| dma.tables.lock().as_ref().map(|own| own.confined(false))),
    };
    iommu.hardware.confine(at, to);
}

impl DomainDma {
    /// No tables yet.
    pub fn new(domain: DomId) -> Self {
        Self { domain, tables: Mutex::new(None) }
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
    let Some(iommu) = active() else { return Some(()) };
    let tables = Tables::new(&memory::Direct, iommu.hardware.levels(), iommu.hardware.format())?;
    let Some(id) = iommu.allocate_id() else {
        frames::free_table(tables.root());
        return None;
    };
    *dma.tables.lock() = Some(OwnTables { id, space: DmaSpace::new(tables) });
    IS_TRACKING.store(true, Ordering::Release);
    Some(())
}

/// Confines the devices of the hardware domain, which is built and does not run yet, to its own memory.
fn adopt_hardware_domain(dma: &DomainDma) {
    let Some(iommu) = active() else { return };
    prepare(dma).expect("out of memory for the IOMMU's tables");
    for mfn in (0..frames::end().raw()).map(Mfn::new) {
        let Some(frame) = frames::frame(mfn) else { continue };
        if frame.owner() == dma.domain && frame.usage().ty() == FrameType::Writable && !frame.count().is_heap() {
            allow(dma, mfn);
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
    pci::functions().iter().for_each(|f| iommu.hardware.confine(f.at, Some(confined)));
}

/// Frees the tables of a domain that is dying and has no device any more. ERESTART: to be called again.
pub fn release(dma: &DomainDma) -> Result<(), Errno> {
    let (Some(iommu), mut tables) = (active(), dma.tables.lock()) else { return Ok(()) };
    let Some(own) = tables.as_mut() else { return Ok(()) };
    if !own.space.free_some(&memory::Direct, FREE_STEPS) {
        return Err(Errno::ERESTART);
    }
    iommu.hardware.forget(Forget::Domain(own.id));
    iommu.ids.lock().remove(&own.id);
    *tables = None;
    Ok(())
}

/// Does any domain have tables that follow its frames? If not, the next three need not be called.
#[inline(always)]
pub fn is_tracking() -> bool {
    IS_TRACKING.load(Ordering::Relaxed)
}

fn with_space<R>(dma: &DomainDma, act: impl FnOnce(&Iommu, &mut OwnTables) -> R) -> Option<R> {
    Some(act(active()?, dma.tables.lock().as_mut()?))
}

/// There is no memory for the tables that would let the devices of the domain with `dma` reach the frame. A guest can bring that about at will.
pub fn warn_out_of_reach(dma: &DomainDma, mfn: Mfn) {
    static LIMITED: Limited = Limited::new();
    let (id, frame) = (dma.domain.0, mfn.raw());
    LIMITED
        .warn(format_args!("d{id}: out of memory for the IOMMU's tables: its devices do not reach frame {frame:#x}"));
}

/// A frame of the domain with `dma` became writable.
pub fn allow(dma: &DomainDma, mfn: Mfn) {
    with_space(dma, |iommu, own| {
        if own.space.allow_own(&memory::Direct, mfn).is_err() {
            warn_out_of_reach(dma, mfn);
        } else if iommu.caches_absence {
            iommu.hardware.forget(Forget::Page(own.id, mfn));
        }
    });
}

/// It is not any more, and no device reaches it when this returns.
pub fn forbid(dma: &DomainDma, mfn: Mfn) {
    with_space(dma, |iommu, own| {
        if own.space.forbid_own(&memory::Direct, mfn) == Narrowed(true) {
            iommu.hardware.forget(Forget::Page(own.id, mfn));
        }
    });
}

/// It leaves the domain: no device reaches it after the next [`flush_released`].
pub fn forbid_later(dma: &DomainDma, mfn: Mfn) {
    with_space(dma, |_, own| {
        if own.space.forbid_own(&memory::Direct, mfn) == Narrowed(true) {
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
            iommu.hardware.forget(Forget::All);
        }
    }
}

/// A frame of another domain's was granted to the one with `dma`. The caller has seen to it that there is memory for the list of
/// what is granted, which cannot report that there was none. `false`: devices do not reach the frame, but it is in the list.
pub fn grant(dma: &DomainDma, mfn: Mfn, writable: bool) -> bool {
    let done = with_space(dma, |iommu, own| {
        let done = own.space.grant(&memory::Direct, mfn, writable).is_ok();
        if iommu.caches_absence {
            iommu.hardware.forget(Forget::Page(own.id, mfn));
        }
        done
    });
    done.unwrap_or(true)
}

/// The grant ends. The caller flushes ([`flush_released`]) before it gives the frame back.
pub fn revoke(dma: &DomainDma, mfn: Mfn, writable: bool) {
    with_space(dma, |_, own| {
        if own.space.revoke(&memory::Direct, mfn, writable) == Narrowed(true) {
            RELEASED.store(true, Ordering::Release);
        }
    });
}
