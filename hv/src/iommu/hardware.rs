//! What the two kinds of IOMMU have in common, as the rest sees them.

use crate::arch::pci::{self, Sbdf};
use crate::arch::{acpi, ioapic, tsc};
use crate::sync::Mutex;
use crate::warn;
use alloc::vec::Vec;
use hv_core::iommu::{AnyFormat, Fault, Forget, Remapped};
use hv_core::rate::Rate;
use x86::{MachAddr, Mfn};

/// Reads of a register or of memory until a unit is taken for broken: seconds.
const PATIENCE: u32 = 1 << 28;

/// All units of the machine, which are of one kind.
pub trait Hardware: Send + Sync {
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
    /// They must be told of what becomes mapped.
    fn is_told_of_additions(&self) -> bool;
    /// First and last addresses of what the firmware lets devices use for ever.
    fn firmware_memory(&self) -> Vec<(MachAddr, MachAddr)>;
    /// Is the function behind one of the units? If not, nothing confines it.
    fn translates(&self, at: Sbdf) -> bool;
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
    /// Under which source ids the unit of the function sees what it does: its own, or what the firmware says instead,
    /// and those of a bridge that hides it.
    fn identities(&self, at: Sbdf) -> [Option<u16>; 3];
    /// Confines one of the function's identities, or blocks it, if a unit translates it. Afterwards it has no access
    /// that it had by what was said before.
    fn confine(&self, at: Sbdf, id: u16, to: Option<Confined>);
    /// Lets all units forget translations; when this returns, they have.
    fn forget(&self, what: Forget);
    /// Takes the accesses that were stopped since the last time, with the unit that did.
    fn take_faults(&self, tell: &mut dyn FnMut(Reporter, Result<Fault, Strange>));
    /// Whether an access was stopped and not taken yet.
    fn has_faults(&self) -> bool;
    /// What `source` is stopped from is not reported any more by the unit that did, until it is confined anew. There
    /// may be no such function.
    fn silence(&self, by: Reporter, source: Sbdf);
    /// Lets a source raise a line. `None`: interrupts are not remapped.
    fn set_interrupt(&self, line: u32, interrupt: Interrupt) -> Option<Remapped>;
    /// Sends a line to another CPU. `false`: it is not remapped.
    fn steer(&self, line: u32, apic_id: u32) -> bool;
    /// The APIC id of the CPU that a line is sent to. `None`: it is not remapped, or was not set.
    fn destination(&self, line: u32) -> Option<u32>;
    /// Nobody raises a message that was set for now, and who tries is not reported; or it is raised again.
    fn hold(&self, line: u32, held: bool);
    /// Nobody may raise the line any more.
    fn clear_interrupt(&self, line: u32);
    /// May an I/O APIC not be told of the end of a level-triggered interrupt by the CPU that took it?
    fn hides_ends(&self) -> bool {
        false
    }
}

/// A unit that reports an event.
#[derive(Clone, Copy)]
pub struct Reporter {
    /// Which of all.
    pub unit: usize,
    pub segment: u16,
}

/// An event that is no access that was stopped.
pub struct Strange {
    pub code: u8,
    pub words: [u64; 2],
}

/// An interrupt: fixed delivery, physical destination.
#[derive(Clone, Copy)]
pub struct Interrupt {
    pub vector: u8,
    pub apic_id: u32,
    pub is_level: bool,
    pub source: Source,
}

/// What raises it.
#[derive(Clone, Copy)]
pub enum Source {
    Function(Sbdf),
    /// With this id.
    IoApic(u8),
}

/// What devices are confined to.
#[derive(Clone, Copy)]
pub struct Confined {
    pub root: Mfn,
    pub levels: u32,
    pub id: u16,
    /// It is the hardware domain's.
    pub is_home: bool,
}

/// Can all I/O APICs be told apart? If the firmware does not say what their accesses look like, nothing is remapped.
pub fn knows_io_apics(is_described: impl Fn(u8) -> bool) -> bool {
    let Some(madt) = acpi::tables().madt.as_ref() else { return false };
    let all = ioapic::gsi_end() > 0 && madt.io_apics.iter().all(|chip| is_described(chip.id));
    if !all {
        warn!("IOMMU: the firmware does not describe every I/O APIC");
    }
    all
}

/// A unit of the segment had no room for all that it stopped. A device can bring that about at will, again and again:
/// it is said once in a second.
pub fn warn_of_loss(segment: u16) {
    static SAID: Mutex<Rate> = Mutex::new(Rate::new(1, 1_000_000_000));
    if SAID.lock().count(tsc::now_ns()).is_said {
        warn!("IOMMU: more accesses were stopped than a unit of segment {segment} can tell of");
    }
}

/// Waits until `is_done`, which the hardware brings about; `what` it is, for the panic if it never does.
pub fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    for _ in 0..PATIENCE {
        if is_done() {
            return;
        }
        core::hint::spin_loop();
    }
    panic!("IOMMU: {what} does not end");
}

/// The function and the bridges above it.
pub fn chain(at: Sbdf) -> Vec<Sbdf> {
    let above = pci::function(at).into_iter().flat_map(pci::Function::above);
    core::iter::once(at).chain(above).collect()
}

/// The source ids that a bridge puts on what the function does, if one hides it: its own, or that of the first function
/// of its bus.
pub fn hiding(at: Sbdf) -> [Option<u16>; 2] {
    let bridge = pci::function(at).and_then(pci::Function::identity_bridge);
    let first = bridge.and_then(|b| b.secondary()).map(|bus| u16::from(bus) << 8);
    [bridge.map(|b| b.at.source_id()), first]
}

/// The bus behind a bridge.
pub fn secondary(segment: u16, bus: u8, devfn: u8) -> Option<u8> {
    pci::function(Sbdf::new(segment, bus, devfn))?.secondary()
}
