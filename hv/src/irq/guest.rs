//! Interrupts that belong to guests: the shell around `hv_core::pirq`, and the chips as it sees them.
//!
//! The tables' lock comes after any domain's event lock; an interrupt that fires lets go of it before it tells anybody.

use crate::arch::pci::{self, Sbdf};
use crate::arch::{ioapic, lapic, msi, smp, tsc, vectors};
use crate::cpu::percpu::this_cpu;
use crate::cpu::serial;
use crate::domain::event::Receiver;
use crate::domain::ports::GuestPage;
use crate::domain::vcpu::{self, Vcpu};
use crate::domain::{self, passthrough, Domain};
use crate::iommu::remap;
use crate::mem::frames;
use crate::sched::{timers, Cause};
use crate::sync::{Mutex, MutexGuard, Once};
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use hv_core::pcicfg::layout::Msi;
use hv_core::pirq::{Deliveries, Interrupts, Irq, IrqChip, Kind, Saved, Turn, Wire};
use xen_abi::errno::Errno;
use xen_abi::event::Port;

/// The CPU that takes an interrupt at first.
const FIRST_CPU: u32 = 0;
/// Messages of all domains together.
const NR_MESSAGES: u32 = 1024;
/// First serial port: its registers.
const COM1: u16 = 0x3f8;
/// First serial port: its ISA interrupt.
const SERIAL_ISA_IRQ: u8 = 4;

/// A device's message: what [`IrqChip`] calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiSource {
    /// The function.
    pub at: Sbdf,
    /// Which of its messages.
    pub which: Which,
}

/// A message of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Plain MSI.
    Msi(Msi),
    /// This entry of its table, which has been mapped.
    Entry(u16),
}

/// Where a line goes.
#[derive(Clone, Copy)]
struct Route {
    vector: u8,
    cpu: u32,
}

impl Route {
    fn apic_id(&self) -> u32 {
        smp::apic_id(self.cpu as usize)
    }

    /// What the device writes to raise line `irq`.
    fn message(&self, irq: Irq, at: Sbdf) -> msi::Message {
        match remap::set_message(irq, self.vector, self.apic_id(), at) {
            Some(remapped) => msi::Message::remapped(remapped),
            None => msi::Message::new(self.apic_id(), self.vector),
        }
    }
}

/// The interrupt controllers.
pub struct Chips {
    /// Of each line that has one.
    routes: Vec<Option<Route>>,
}

impl Chips {
    fn free(&mut self, irq: Irq) {
        if let Some(route) = self.routes.get_mut(irq as usize).and_then(Option::take) {
            vectors::release(route.vector);
        }
    }

    fn route(&mut self, irq: Irq) -> Option<&mut Route> {
        self.routes.get_mut(irq as usize)?.as_mut()
    }

    fn program(irq: Irq, route: Route, source: MsiSource) -> Option<()> {
        let message = route.message(irq, source.at);
        match source.which {
            Which::Entry(entry) => {
                let table = msi::MsixTable::of(source.at)?;
                table.enable();
                table.set(entry, message)
            }
            Which::Msi(cap) => {
                msi::set_msi_masked(source.at, cap, true);
                msi::enable_msi(source.at, cap, message);
                Some(())
            }
        }
    }

    fn set_masked(irq: Irq, source: Option<MsiSource>, masked: bool) {
        match source {
            None if masked => ioapic::mask(irq),
            None => ioapic::unmask(irq),
            Some(source) => {
                if !masked {
                    remap::hold(irq, false);
                }
                match source.which {
                    Which::Msi(cap) => msi::set_msi_masked(source.at, cap, masked),
                    Which::Entry(entry) => {
                        let _ = msi::MsixTable::of(source.at).and_then(|t| t.set_masked(entry, masked));
                    }
                }
                // Many devices cannot mask their MSI; and one that was told to write where the message goes raises it
                // past its own mask.
                if masked {
                    remap::hold(irq, true);
                }
            }
        }
    }
}

impl IrqChip for Chips {
    type Msi = MsiSource;

    fn default_wire(&self, gsi: u32) -> Wire {
        let wire = ioapic::default_wire(gsi);
        Wire { level: wire.level, active_low: wire.active_low }
    }

    fn allocate(&mut self, irq: Irq) -> Result<(), Errno> {
        if is_own_gsi(irq) {
            return Err(Errno::EBUSY);
        }
        let slot = self.routes.get_mut(irq as usize).ok_or(Errno::EINVAL)?;
        let vector = vectors::allocate(vectors::Owner::Line(irq)).ok_or(Errno::ENOSPC)?;
        *slot = Some(Route { vector, cpu: FIRST_CPU });
        Ok(())
    }

    fn route_gsi(&mut self, irq: Irq, wire: Wire) -> Result<(), Errno> {
        let route = *self.route(irq).ok_or(Errno::EINVAL)?;
        let wire = ioapic::Wire { level: wire.level, active_low: wire.active_low };
        let target = remap::target(irq, route.vector, route.apic_id(), wire.level);
        ioapic::route(irq, route.vector, &target, wire).ok_or(Errno::EINVAL)
    }

    fn route_msi(&mut self, irq: Irq, source: MsiSource) -> Result<(), Errno> {
        let route = *self.route(irq).ok_or(Errno::EINVAL)?;
        Self::program(irq, route, source).ok_or(Errno::EINVAL)
    }

    fn reprogram(&mut self, irq: Irq, source: MsiSource) {
        if let Some(route) = self.route(irq) {
            let _ = Self::program(irq, *route, source);
        }
    }

    fn steer(&mut self, irq: Irq, source: Option<MsiSource>, cpu: u32) {
        let Some(route) = self.route(irq) else { return };
        // Neither a wire nor a message has room for more.
        if route.cpu == cpu || smp::apic_id(cpu as usize) >= 0xff {
            return;
        }
        route.cpu = cpu;
        let route = *route;
        match source {
            _ if remap::steer(irq, route.apic_id()) => {}
            None => ioapic::steer(irq, route.apic_id()),
            Some(MsiSource { at, which: Which::Msi(cap) }) => msi::steer_msi(at, cap, route.message(irq, at)),
            Some(MsiSource { at, which: Which::Entry(entry) }) => {
                let _ = msi::MsixTable::of(at).and_then(|table| table.steer(entry, route.message(irq, at)));
            }
        }
    }

    fn unroute(&mut self, irq: Irq, source: Option<MsiSource>) {
        match source {
            Some(MsiSource { at, which: Which::Msi(cap) }) => msi::disable_msi(at, cap),
            // The other entries of the table stay in use.
            _ => Self::set_masked(irq, source, true),
        }
        remap::clear(irq);
        self.free(irq);
    }

    fn unmask(&mut self, irq: Irq, source: Option<MsiSource>) {
        Self::set_masked(irq, source, false);
    }

    fn mask(&mut self, irq: Irq, source: Option<MsiSource>) {
        Self::set_masked(irq, source, true);
    }
}

/// Does the hypervisor use this wire itself?
fn is_own_gsi(gsi: u32) -> bool {
    serial::port() == Some(COM1) && ioapic::isa_wire(SERIAL_ISA_IRQ).0 == gsi
}

/// Who takes interrupts of a domain's, instead of the domain: told of domain, port and pirq, it says whether it does.
/// It lies above, so it is installed.
static TAKER: Once<fn(&Domain, Port, u32) -> bool> = Once::new();

/// Says who takes interrupts of domains'.
pub fn install_taker(taker: fn(&Domain, Port, u32) -> bool) {
    TAKER.call_once(|| taker);
}

/// All guests' interrupts.
pub type GuestInterrupts = Interrupts<Chips, GuestPage>;

static INTERRUPTS: Once<Mutex<GuestInterrupts>> = Once::new();

/// All guests' interrupts, locked. Made when first asked for, after the chips were found.
#[inline]
pub fn lock() -> MutexGuard<'static, GuestInterrupts> {
    let table = INTERRUPTS.call_once(|| {
        let nr_gsis = ioapic::gsi_end();
        let chips = Chips { routes: vec![None; (nr_gsis + NR_MESSAGES) as usize] };
        Mutex::new(Interrupts::new(chips, nr_gsis, NR_MESSAGES))
    });
    table.lock()
}

/// As [`lock`], for operations of `d`, which gets its pirqs if it has none yet. ENOMEM. EINVAL: it is dying, and has
/// them no more.
pub fn lock_for(d: &Domain) -> Result<MutexGuard<'static, GuestInterrupts>, Errno> {
    let mut table = lock();
    if table.nr_pirqs(d.id) == 0 {
        // Under the lock: what a dying domain has is taken back once.
        if d.is_dying() {
            return Err(Errno::EINVAL);
        }
        if !frames::has_headroom() {
            return Err(Errno::ENOMEM);
        }
        table.add_domain(d.id, if d.is_hardware { Kind::Hardware } else { Kind::Guest })?;
    }
    Ok(table)
}

/// May `d` bind what `pirq` stands for? A message is its own once mapped; a wire must be permitted.
fn may_bind(d: &Domain, irq: Irq) -> bool {
    irq >= ioapic::gsi_end() || d.io.allows_irq(irq)
}

/// Connects a pirq of `d` to a new port. EPERM, EINVAL, EEXIST, EBUSY, ENOSPC.
pub fn bind(d: &Domain, pirq: u32, share: bool) -> Result<u32, Errno> {
    let irq = lock_for(d)?.irq_of(d.id, pirq).ok_or(Errno::EINVAL)?;
    if !may_bind(d, irq) {
        return Err(Errno::EPERM);
    }
    let mut wake = None;
    let port = d.events.lock().bind_pirq(pirq, |port| {
        wake = lock_for(d)?.bind(d.id, pirq, port, share)?;
        Ok(())
    });
    arm(wake);
    port
}

/// Connects `d`'s pirqs as they were once, or some of them if that fails. Errors: `Interrupts::go_back`.
pub fn go_back(d: &Domain, saved: &Saved<MsiSource>) -> Result<(), Errno> {
    let mut table = lock();
    let done = table.go_back(d.id, saved, tsc::now_ns());
    let wake = table.next_wake();
    drop(table);
    arm(wake);
    done
}

/// Has [`expire`] called at this time.
#[inline]
fn arm(wake: Option<u64>) {
    if let Some(wake) = wake {
        timers::arm_irq_release(wake);
    }
}

/// Port `port` of `d`, which was connected to `pirq`, is closed.
pub fn unbind(d: &Domain, pirq: u32, port: Port) {
    lock().unbind(d.id, pirq, port);
}

/// `d` goes away: all its interrupts are taken back.
pub fn release_domain(d: &Domain) {
    lock().remove_domain(d.id);
}

/// Line `irq` fired on this CPU. Ends the interrupt at the local APIC.
pub fn handle(irq: Irq) {
    let told = lock().fired(irq, tsc::now_ns());
    lapic::eoi();
    arm(told.wake_ns);
    deliver(&told);
}

/// The time that the tables asked for has come: lines that were held may fire again.
pub fn expire() {
    let now = tsc::now_ns();
    loop {
        let released = lock().expire(now);
        match released {
            Some(told) => deliver(&told),
            None => break,
        }
    }
    let wake = lock().next_wake();
    arm(wake);
}

fn deliver(told: &Deliveries) {
    let is_running = |dom| vcpu::current(this_cpu()).is_some_and(|v| v.domain().id == dom);
    for (x, turn) in told.turns(is_running) {
        let Some(d) = domain::find(x.dom) else { continue };
        if TAKER.get().is_some_and(|takes| takes(&d, x.port, x.pirq)) {
            continue;
        }
        if told.may_be_alone() {
            // What the domain finds nobody hears.
            lock().found(x.dom, x.pirq, false);
        }
        let raised = match turn {
            Turn::Now => d.events.lock().raise_pirq(&*d, x.port, x.pirq),
            Turn::AfterRunning => d.events.lock().raise_pirq(&Receiver(&d, Cause::Sharer), x.port, x.pirq),
        };
        match raised.and_then(|vcpu| d.vcpu(vcpu)) {
            Some(v) => follow(v, x.pirq),
            None => {
                // The port was closed meanwhile: nobody will answer.
                let _ = lock().eoi(x.dom, x.pirq, tsc::now_ns());
            }
        }
    }
}

/// `pirq` of the vCPU's domain fired on this CPU. If the vCPU is elsewhere, that is a detour.
fn follow(v: &Vcpu, pirq: u32) {
    let cpu = v.processor.load(Ordering::Relaxed);
    if cpu != this_cpu().cpu {
        lock().made_detour(v.domain().id, pirq, cpu);
    }
}

/// `pirq` is for vCPU `v` of its domain from now on: it goes to the CPU on which that is.
pub fn steer(v: &Vcpu, pirq: u32) {
    lock().steer(v.domain().id, pirq, v.processor.load(Ordering::Relaxed));
}

/// Gives `d` a pirq for entry `entry` of function `at`'s MSI-X table, or for its MSI if that is `None`. ENODEV: no such
/// function or capability. EPERM: it is not the domain's. Others as `Interrupts::map_msi`.
pub fn map_msi(d: &Domain, at: Sbdf, entry: Option<u16>, wanted: Option<u32>) -> Result<u32, Errno> {
    let layout = &pci::function(at).ok_or(Errno::ENODEV)?.layout;
    // It cannot change hands before the message is recorded as the domain's.
    passthrough::while_owned(at, d, |bars| {
        let which = match entry {
            None => Which::Msi(layout.msi.ok_or(Errno::ENODEV)?),
            Some(entry) => {
                let msix = layout.msix.ok_or(Errno::ENODEV)?;
                let (addr, _) = msix.table(bars).ok_or(Errno::EINVAL)?;
                msi::MsixTable::map(at, msix, addr).ok_or(Errno::EINVAL)?;
                Which::Entry(entry)
            }
        };
        lock_for(d)?.map_msi(d.id, MsiSource { at, which }, wanted)
    })
}

/// Takes all pirqs for messages of function `at` back from whoever has them.
pub fn unmap_messages(at: Sbdf) {
    let mut table = lock();
    while let Some((dom, pirq)) = table.find_msi(|source| source.at == at) {
        if table.unmap(dom, pirq).is_err() {
            break;
        }
    }
}

/// Programs all messages of function `at` again, after it was reset.
pub fn restore_msi(at: Sbdf) {
    lock().reprogram(|source| source.at == at);
}
