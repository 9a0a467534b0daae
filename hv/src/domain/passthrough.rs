//! PCI functions change hands: the shell around `hv_core::passthrough`.
//!
//! The table's lock is held while the hardware follows, while a message is mapped for an owner, and while configuration
//! space is written, so that none of these sees a function half way. It comes before the lock of the interrupts.

pub mod link;
pub mod roll_back;

use crate::arch::pci::{self, command, reg, Sbdf};
use crate::arch::pci_reset;
use crate::domain::{watch, Domain, DomainRef};
use crate::mem::device_frames;
use crate::sync::{Mutex, Once};
use crate::{info, iommu, irq, sched, warn};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use hv_core::cmdline::Options;
use hv_core::passthrough::reset::{Leaving, Left};
use hv_core::passthrough::{isolation, Confinement, Entry, Move, Owner, Ownership, Recipient, Refusal, Traits};
use hv_core::pcicfg::layout::{self, Layout};
use hv_core::pcicfg::{self, Bars, Base, Function};
use x86::{MachAddr, Mfn};
use xen_abi::errno::Errno;

static OWNERSHIP: Once<Mutex<Ownership>> = Once::new();

/// Who gives or takes a function.
pub enum Party {
    /// No domain.
    Nobody,
    /// This one, never the hardware domain.
    Domain(DomainRef),
}

impl Party {
    fn owner(&self) -> Owner {
        match self {
            Self::Nobody => Owner::Quarantine,
            Self::Domain(d) => owner_of(d),
        }
    }
    fn recipient(&self) -> Recipient {
        match self {
            Self::Nobody => Recipient::QUARANTINE,
            Self::Domain(d) => Recipient {
                owner: owner_of(d),
                is_prepared: d.may_own_devices.load(Ordering::Acquire),
                is_dying: d.is_dying(),
            },
        }
    }
}

fn owner_of(d: &Domain) -> Owner {
    if d.is_hardware {
        Owner::Hardware
    } else {
        Owner::Domain(d.id)
    }
}

/// Everything found is the hardware domain's. Says loudly if devices could leave it without being confined.
pub fn init(options: &Options) {
    let confinement = match (iommu::is_active(), options.is_passthrough_unsafe) {
        (true, _) => Confinement::Iommu,
        (false, true) => Confinement::Unsafe,
        (false, false) => Confinement::Forbidden,
    };
    match confinement {
        Confinement::Iommu => {}
        Confinement::Unsafe => {
            warn!("*** passthrough=unsafe: a domain that gets a device can read and write ALL memory through it ***");
        }
        Confinement::Forbidden => info!("No IOMMU: devices stay with domain 0 (passthrough=unsafe allows otherwise)"),
    }
    let functions = pci::functions();
    let functions = functions.iter().map(|f| (f.at, traits(f), bars(f)));
    OWNERSHIP.call_once(|| Mutex::new(Ownership::new(functions, confinement)));
}

fn traits(f: &pci::Function) -> Traits {
    Traits {
        is_bridge: f.layout.header != 0,
        bridge: f.bridge,
        is_untranslated: iommu::is_untranslated(f.at),
        shares_identity: f.identity_bridge().is_some() || iommu::shares_identity(f.at),
        is_ours: iommu::is_unit(f.at),
        has_firmware_memory: iommu::has_firmware_memory(f.at),
    }
}

fn bars(f: &pci::Function) -> Bars {
    Bars::read(&pci::Space(f.at), f.layout.header)
}

/// The hardware domain says that there is a function, which is its own then. ENODEV: nothing answers there; EBUSY: it
/// is in the place of one that was pulled out while a domain had it, and still has; ENOMEM.
pub fn add(at: Sbdf) -> Result<(), Errno> {
    let mut table = ownership().lock();
    let layout = || pci::function(at).map(|f| f.layout);
    if table.came_back(at, || Layout::read(&pci::Space(at)) == layout())? {
        return Ok(());
    }
    if !crate::mem::frames::has_headroom() {
        return Err(Errno::ENOMEM);
    }
    let f = pci::add(at).ok_or(Errno::ENODEV)?;
    let traits = traits(f);
    table.add(at, traits, bars(f))?;
    if traits.is_untranslated {
        warn!("{at} is behind no unit of the IOMMU, which stops it or lets it reach all memory");
    }
    iommu::add_reports(at);
    confine(&table, at, Owner::Hardware, None);
    info!("{at} appeared");
    Ok(())
}

/// It says that it is gone. EBUSY: another domain has it, or one behind it is not the hardware domain's, and it is
/// forgotten when that has been given up;
/// ENODEV: there was none.
pub fn remove(at: Sbdf) -> Result<(), Errno> {
    let mut table = ownership().lock();
    forget(&mut table, at)?;
    forget_gone(&mut table);
    Ok(())
}

/// The same, for functions that were gone before, and that no domain has any more.
fn forget_gone(table: &mut Ownership) {
    while let Some(at) = table.gone() {
        info!("{at} is gone");
        if forget(table, at).is_err() {
            return;
        }
    }
}

fn forget(table: &mut Ownership, at: Sbdf) -> Result<(), Errno> {
    let Entry { owner, bars, .. } = table.remove(at)?;
    irq::guest::unmap_messages(at);
    confine(table, at, Owner::Quarantine, None);
    if owner != Owner::Hardware {
        unwatch_messages(table, at, &bars);
    }
    pci::remove(at);
    Ok(())
}

/// The IOMMU follows the function to `owner`, a domain if it is `d`'s.
fn confine(table: &Ownership, at: Sbdf, owner: Owner, d: Option<&Domain>) {
    iommu::follow(at, owner, d.map(|d| &d.dma), |other| table.find(other).map(|e| e.owner));
}

fn ownership() -> &'static Mutex<Ownership> {
    OWNERSHIP.call_once(|| Mutex::new(Ownership::new(core::iter::empty(), Confinement::Forbidden)))
}

/// May devices be given to domains at all?
pub fn is_possible() -> bool {
    ownership().lock().confinement() != Confinement::Forbidden
}

/// Does an IOMMU keep domains' devices from others' memory?
pub fn is_confining() -> bool {
    ownership().lock().confinement() == Confinement::Iommu
}

/// What the registers of functions are in.
#[derive(Clone, Copy)]
pub enum Registers {
    /// Frames, from the first to the last.
    Frames(Mfn, Mfn),
    /// Ports, from the first to the last.
    Ports(u32, u32),
}

impl Registers {
    fn begin_at(self, base: Base) -> bool {
        match (self, base) {
            (Self::Frames(first, last), Base::Memory(addr)) => {
                (first..=last).contains(&Mfn::containing(MachAddr::new(addr)))
            }
            (Self::Ports(first, last), Base::Port(port)) => (first..=last).contains(&port.into()),
            _ => false,
        }
    }
}

/// Are there registers of another domain's device than `d`'s?
pub fn has_others(d: &Domain, registers: Registers) -> bool {
    ownership().lock().has_another_inside(d.id, |base| registers.begin_at(base))
}

/// Does `d` have just one function, with registers there?
pub fn has_only(d: &Domain, registers: Registers) -> bool {
    ownership().lock().has_only_inside(d.id, |base| registers.begin_at(base))
}

/// How many functions `d` has.
pub fn nr_functions(d: &Domain) -> usize {
    ownership().lock().of(owner_of(d)).count()
}

/// How many are not the hardware domain's.
pub fn nr_away() -> usize {
    ownership().lock().away().count()
}

/// Whose is the function?
pub fn owner(at: Sbdf) -> Option<Owner> {
    ownership().lock().find(at).map(|e| e.owner)
}

/// Ends the function's accesses to memory; the hardware domain may let it begin again, another owner may not. `true`:
/// it is known, and they had not been ended.
pub fn stop_master(at: Sbdf) -> bool {
    let mut table = ownership().lock();
    let Some(is_new) = table.stop(at) else { return false };
    let was = pci::read16(at, reg::COMMAND);
    pci::write16(at, reg::COMMAND, was & !command::BUS_MASTER);
    is_new && was & command::BUS_MASTER != 0
}

/// Could `to` get the function?
pub fn test(at: Sbdf, to: &Party) -> Result<(), Errno> {
    ownership().lock().check(at, to.recipient()).inspect_err(|why| refused(at, to, *why))?;
    Ok(())
}

/// Gives the function to `to`. ERESTART: to be called again.
pub fn assign(at: Sbdf, to: &Party) -> Result<(), Errno> {
    let mut table = ownership().lock();
    let r#move = table.check(at, to.recipient()).inspect_err(|why| refused(at, to, *why))?;
    if r#move.from == r#move.to {
        return Ok(());
    }
    carry_out(&mut table, at, r#move)?;
    if let Party::Domain(d) = to {
        if !d.drives_devices.load(Ordering::Relaxed) {
            // What it had before is another one's by now, or nobody's.
            d.left_unreset.store(false, Ordering::Relaxed);
        }
        d.is_bereft.store(false, Ordering::Relaxed);
        sched::set_driver(d, true);
    }
    match to {
        Party::Domain(d) if table.confinement() == Confinement::Unsafe => {
            warn!("*** {at} goes to d{} WITHOUT AN IOMMU: its driver can read and write all memory ***", d.id);
        }
        Party::Domain(d) => {
            info!("{at} goes to d{}", d.id);
            say_who_is_near(&table, at);
        }
        Party::Nobody => info!("{at} is put aside"),
    }
    Ok(())
}

/// Functions that reach each other past the IOMMU should have one owner.
fn say_who_is_near(table: &Ownership, at: Sbdf) {
    let places: Vec<isolation::Place> = pci::functions().iter().map(|f| pci::place(f)).collect();
    let owner = |at| table.find(at).map(|e| e.owner);
    for other in isolation::group(at, &places).filter(|other| owner(*other) != owner(at)) {
        warn!("{at} and {other} can reach each other past the IOMMU, and do not have the same owner");
    }
}

fn refused(at: Sbdf, to: &Party, why: Refusal) {
    match to {
        Party::Domain(d) => warn!("{at} cannot go to d{}: {why}", d.id),
        Party::Nobody => warn!("{at} cannot be put aside: {why}"),
    }
}

/// Has `from` the function? ENODEV: it has not.
pub fn check_return(at: Sbdf, from: &Party) -> Result<(), Errno> {
    ownership().lock().check_return(at, from.owner())?;
    Ok(())
}

/// Takes the function from `from`. ERESTART: to be called again.
pub fn deassign(at: Sbdf, from: &Party) -> Result<(), Errno> {
    let mut table = ownership().lock();
    let r#move = table.check_return(at, from.owner())?;
    carry_out(&mut table, at, r#move)?;
    forget_gone(&mut table);
    if let Party::Domain(d) = from {
        let has_more = table.of(owner_of(d)).next().is_some();
        sched::set_driver(d, has_more);
        drop(table);
        if !has_more {
            watch::tell_of_loss(d);
        }
    }
    Ok(())
}

/// All functions of a domain that is dying are put aside. Afterwards none of them accesses memory. ERESTART: to be
/// called again.
pub fn release_domain(d: &Domain) -> Result<(), Errno> {
    let mut table = ownership().lock();
    // No list of them: a domain can be destroyed when there is no memory.
    for at in pci::functions().iter().map(|f| f.at) {
        if table.find(at).is_none_or(|e| e.owner != owner_of(d)) {
            continue;
        }
        if let Ok(r#move) = table.check_return(at, owner_of(d)) {
            carry_out(&mut table, at, r#move)?;
        }
    }
    // Not before: the list of functions is being read above.
    forget_gone(&mut table);
    Ok(())
}

/// The domain's other functions that share this one's identity on the bus.
pub fn group(at: Sbdf, d: &Domain) -> Vec<Sbdf> {
    let identity = |at: Sbdf| pci::function(at).and_then(|f| f.identity_bridge()).map(|b| b.at);
    let own = identity(at);
    let table = ownership().lock();
    let same = |other: Sbdf| other != at && own.is_some() && identity(other) == own;
    table.of(owner_of(d)).map(|e| e.at).filter(|&other| same(other)).collect()
}

/// Does `act`, which is told the base addresses, while `d` owns the function. EPERM: it does not.
pub fn while_owned<R>(at: Sbdf, d: &Domain, act: impl FnOnce(&Bars) -> Result<R, Errno>) -> Result<R, Errno> {
    let table = ownership().lock();
    match table.find(at) {
        Some(entry) if entry.is_usable_by(owner_of(d)) => act(&entry.bars),
        _ => Err(Errno::EPERM),
    }
}

/// Writes `width` (1, 2 or 4) bytes of the function's configuration space, as far as it is anybody's to write.
pub fn write_config(at: Sbdf, offset: u16, width: u8, value: u32) {
    write_in(&mut ownership().lock(), at, offset, width, value);
}

/// The same, of a function of `d`'s. EPERM: it is not.
pub fn write_owned(at: Sbdf, d: &Domain, offset: u16, width: u8, value: u32) -> Result<(), Errno> {
    let mut table = ownership().lock();
    table.find(at).filter(|entry| entry.is_usable_by(owner_of(d))).ok_or(Errno::EPERM)?;
    write_in(&mut table, at, offset, width, value);
    Ok(())
}

fn write_in(table: &mut Ownership, at: Sbdf, offset: u16, width: u8, value: u32) {
    let entry = table.find(at);
    // Of one that is not known, or not any more, messages are the hypervisor's all the same.
    let unknown = || Layout::read(&pci::Space(at)).map_or_else(Function::default, |layout| Function::of(&layout));
    let filter = pci::function(at).map_or_else(unknown, |f| Function {
        is_ours: entry.is_some_and(|e| e.traits.is_ours),
        is_abandoned: entry.is_some_and(|e| has_stopped(e.owner)),
        buses: f.buses().filter(|_| table.leads_away(at)).map(|[own, first, ..]| [own, first]),
        fixed: entry.and_then(Entry::fixed),
        ..Function::of(&f.layout)
    });
    let held = || pci::read(at, offset, pci::Width::of(width));
    if let Some(value) = filter.filter(offset, width, value).written(value, held) {
        pci::write(at, offset, pci::Width::of(width), value);
        table.wrote(at, offset, width, || Bars::read(&pci::Space(at), filter.header));
        if let Some(f) =
            pci::function(at).filter(|f| f.layout.header == 1 && (reg::BUSES..reg::BUSES + 3).contains(&offset))
        {
            f.learn_buses();
        }
    }
}

/// Nobody of the owner's answers the function, not now or never again. The tools pause a domain before they destroy it.
fn has_stopped(owner: Owner) -> bool {
    match owner {
        Owner::Hardware => false,
        Owner::Quarantine => true,
        Owner::Domain(id) => crate::domain::find(id).is_none_or(|d| d.has_stopped() || d.pause_count() != 0),
    }
}

/// Makes the hardware follow `move`, and records it. ENOMEM: nothing has changed. ERESTART: the function is its old
/// owner's no more, and has not arrived.
fn carry_out(table: &mut Ownership, at: Sbdf, r#move: Move) -> Result<(), Errno> {
    let bars = table.find(at).map(|e| e.bars).unwrap_or_default();
    if r#move.to == Owner::Quarantine {
        leave(table, at, r#move.from, &bars)?;
        confine(table, at, r#move.to, None);
    } else {
        begin_change(at, r#move.from, &bars)?;
        let domain = match r#move.to {
            Owner::Domain(id) => crate::domain::find(id),
            _ => None,
        };
        confine(table, at, r#move.to, domain.as_deref());
        link::arrives(at, r#move.to, &bars);
        let was = pci::read16(at, reg::COMMAND);
        pci::write16(at, reg::COMMAND, was & !command::INTX_DISABLE);
    }
    table.record(at, r#move);
    if r#move.to == Owner::Hardware {
        unwatch_messages(table, at, &bars);
    }
    Ok(())
}

/// Ends the function's accesses to memory and its interrupts, and resets it: for a while, then ERESTART.
fn leave(table: &mut Ownership, at: Sbdf, from: Owner, bars: &Bars) -> Result<(), Errno> {
    let so_far = table.find(at).and_then(|e| e.leaving);
    if so_far.is_none() {
        begin_change(at, from, bars)?;
        link::leaves(at);
        let was = pci::read16(at, reg::COMMAND);
        pci::write16(at, reg::COMMAND, pcicfg::silent(was));
    }
    let mut leaving = so_far.unwrap_or(Leaving::NEW);
    let left = pci_reset::go_on(at, bars, &mut leaving);
    table.leaves(at, leaving);
    if let (Some(Left::AsItWas | Left::Lost), Owner::Domain(id)) = (left, from) {
        if let Some(d) = crate::domain::find(id) {
            d.left_unreset.store(true, Ordering::Relaxed);
        }
    }
    left.map(|_| ()).ok_or(Errno::ERESTART)
}

/// The function's owner gets no messages of it any more, and if it was the hardware domain, what others may do with it
/// is limited from now on. ENOMEM: nothing has changed.
fn begin_change(at: Sbdf, from: Owner, bars: &Bars) -> Result<(), Errno> {
    if from == Owner::Hardware {
        watch_messages(at, bars)?;
        limit(at);
    }
    irq::guest::unmap_messages(at);
    Ok(())
}

/// What goes wrong at the function is not reported any more, as that can stop the machine, and it accesses memory under
/// its own name only. Its new owner cannot change that.
fn limit(at: Sbdf) {
    const CONTROL: u16 = 8;
    const REPORTS: u16 = 0x0f;
    const PHANTOMS: u16 = 1 << 9;
    let was = pci::read16(at, reg::COMMAND);
    pci::write16(at, reg::COMMAND, was & !command::SERR);
    if let Some(cap) = pci::function(at).and_then(|f| f.layout.express).map(|e| e.cap) {
        let was = pci::read16(at, cap + CONTROL);
        pci::write16(at, cap + CONTROL, was & !(REPORTS | PHANTOMS));
    }
}

/// Frames of the function's table of messages.
fn message_frames(at: Sbdf, bars: &Bars) -> Option<(Mfn, Mfn)> {
    let (first, last) = pci::function(at)?.layout.msix?.table(bars)?;
    let frames = (Mfn::containing(MachAddr::new(first)), Mfn::containing(MachAddr::new(last)));
    device_frames::may_be_registers(frames.0, frames.1).then_some(frames)
}

/// Whoever writes the table chooses where the device writes: from now on that is the hypervisor alone.
fn watch_messages(at: Sbdf, bars: &Bars) -> Result<(), Errno> {
    match message_frames(at, bars) {
        Some((first, last)) => device_frames::watch_table(first, last),
        None => Ok(()),
    }
}

fn unwatch_messages(table: &Ownership, at: Sbdf, bars: &Bars) {
    let Some((first, last)) = message_frames(at, bars) else { return };
    // Others may have their tables in the same frames: those are watched without a gap.
    let others =
        || table.away().filter_map(|e| message_frames(e.at, &e.bars)).map(|(first, last)| (first.raw(), last.raw()));
    for frame in layout::unshared((first.raw(), last.raw()), others) {
        device_frames::unwatch_table(Mfn::new(frame));
    }
}
