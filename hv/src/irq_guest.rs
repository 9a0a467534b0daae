//! Interrupts that belong to guests: the shell around `hv_core::pirq`, and the chips as it sees them.
//!
//! The tables' lock comes after any domain's event lock; an interrupt that fires lets go of it before it tells anybody.

use crate::arch::pci::{self, Sbdf};
use crate::arch::{ioapic, lapic, msi, serial, tsc, vectors};
use crate::domain::{self, Domain};
use crate::event::GuestPage;
use crate::iospace;
use crate::sched::timers;
use crate::sync::{Mutex, MutexGuard, Once};
use alloc::vec;
use alloc::vec::Vec;
use hv_core::pirq::{Deliveries, Interrupts, Irq, IrqChip, Wire};
use x86::{Mfn, PAGE_SIZE};
use xen_abi::errno::Errno;

/// The CPU that takes guests' interrupts.
const CPU: usize = 0;
/// Messages of all domains together.
const NR_MESSAGES: u32 = 1024;
/// pirqs of the hardware domain, wires included, unless there are more wires.
const HARDWARE_DOMAIN_PIRQS: u32 = 208;
/// pirqs of any other domain above the wires.
const MESSAGES_PER_DOMAIN: u32 = 32;
/// First serial port: its registers.
const COM1: u16 = 0x3f8;
/// First serial port: its ISA interrupt.
const SERIAL_ISA_IRQ: u8 = 4;

/// A device's message: what [`IrqChip`] calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsiSource {
    /// The function.
    pub at: Sbdf,
    /// Offset of its capability.
    pub cap: u16,
    /// Entry of the MSI-X table; `None`: plain MSI.
    pub entry: Option<u16>,
}

/// The interrupt controllers.
pub struct Chips {
    apic_id: u32,
    /// Vector of each line, on [`CPU`].
    vectors: Vec<Option<u8>>,
}

impl Chips {
    fn allocate(&mut self, irq: Irq) -> Result<u8, Errno> {
        let slot = self.vectors.get_mut(irq as usize).ok_or(Errno::EINVAL)?;
        let vector = vectors::allocate(CPU, irq).ok_or(Errno::ENOSPC)?;
        *slot = Some(vector);
        Ok(vector)
    }

    fn free(&mut self, irq: Irq) {
        if let Some(vector) = self.vectors.get_mut(irq as usize).and_then(Option::take) {
            vectors::release(CPU, vector);
        }
    }

    fn program(&mut self, vector: u8, source: MsiSource) -> Option<()> {
        let message = msi::Message::new(self.apic_id, vector);
        match source.entry {
            Some(entry) => {
                let table = table_of(source)?;
                table.enable();
                table.set(entry, message)
            }
            None => {
                msi::set_msi_masked(source.at, source.cap, true);
                msi::enable_msi(source.at, source.cap, message);
                Some(())
            }
        }
    }

    fn set_masked(irq: Irq, source: Option<MsiSource>, masked: bool) {
        match source {
            None if masked => ioapic::mask(irq),
            None => ioapic::unmask(irq),
            Some(MsiSource { at, cap, entry: None }) => {
                msi::set_msi_masked(at, cap, masked);
            }
            Some(source @ MsiSource { entry: Some(entry), .. }) => {
                let _ = table_of(source).and_then(|t| t.set_masked(entry, masked));
            }
        }
    }
}

fn table_of(source: MsiSource) -> Option<msi::MsixTable> {
    let (addr, _) = msi::msix_table_addr(source.at, source.cap)?;
    msi::MsixTable::map(source.at, source.cap, addr)
}

impl IrqChip for Chips {
    type Msi = MsiSource;

    fn default_wire(&self, gsi: u32) -> Wire {
        let wire = ioapic::default_wire(gsi);
        Wire { level: wire.level, active_low: wire.active_low }
    }

    fn route_gsi(&mut self, irq: Irq, wire: Wire) -> Result<(), Errno> {
        if is_own_gsi(irq) {
            return Err(Errno::EBUSY);
        }
        let vector = self.allocate(irq)?;
        let wire = ioapic::Wire { level: wire.level, active_low: wire.active_low };
        ioapic::route(irq, vector, self.apic_id, wire).ok_or_else(|| {
            self.free(irq);
            Errno::EINVAL
        })
    }

    fn route_msi(&mut self, irq: Irq, source: MsiSource) -> Result<(), Errno> {
        let vector = self.allocate(irq)?;
        self.program(vector, source).ok_or_else(|| {
            self.free(irq);
            Errno::EINVAL
        })
    }

    fn reprogram(&mut self, irq: Irq, source: MsiSource) {
        if let Some(Some(vector)) = self.vectors.get(irq as usize).copied() {
            let _ = self.program(vector, source);
        }
    }

    fn unroute(&mut self, irq: Irq, source: Option<MsiSource>) {
        match source {
            Some(MsiSource { at, cap, entry: None }) => msi::disable_msi(at, cap),
            // The other entries of the table stay in use.
            _ => Self::set_masked(irq, source, true),
        }
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

/// All guests' interrupts.
pub type GuestInterrupts = Interrupts<Chips, GuestPage>;

static INTERRUPTS: Once<Mutex<GuestInterrupts>> = Once::new();

/// All guests' interrupts, locked. Made when first asked for, after the chips were found.
#[inline]
pub fn lock() -> MutexGuard<'static, GuestInterrupts> {
    let table = INTERRUPTS.call_once(|| {
        let nr_gsis = ioapic::gsi_end();
        let apic_id = crate::arch::percpu::cpu(CPU).map_or(0, |c| c.apic_id.get());
        let chips = Chips { apic_id, vectors: vec![None; (nr_gsis + NR_MESSAGES) as usize] };
        Mutex::new(Interrupts::new(chips, nr_gsis, NR_MESSAGES))
    });
    table.lock()
}

/// As [`lock`], for operations of `d`, which gets its pirqs if it has none yet.
pub fn lock_for(d: &Domain) -> Result<MutexGuard<'static, GuestInterrupts>, Errno> {
    let mut table = lock();
    if table.nr_pirqs(d.id) == 0 {
        let messages = if d.is_hardware {
            HARDWARE_DOMAIN_PIRQS.saturating_sub(ioapic::gsi_end()).max(MESSAGES_PER_DOMAIN)
        } else {
            MESSAGES_PER_DOMAIN
        };
        table.add_domain(d.id, messages)?;
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
    d.events.lock().bind_pirq(pirq, |port| lock_for(d)?.bind(d.id, pirq, port, share))
}

/// A port of `d` that was connected to `pirq` is closed.
pub fn unbind(d: &Domain, pirq: u32) {
    lock().unbind(d.id, pirq);
}

/// `d` goes away: all its interrupts are taken back.
pub fn release_domain(d: &Domain) {
    lock().remove_domain(d.id);
}

/// Line `irq` fired on this CPU. Ends the interrupt at the local APIC.
pub fn handle(irq: Irq) {
    let told = lock().fired(irq, tsc::now_ns());
    lapic::eoi();
    if let Some(until) = told.held_until_ns {
        timers::arm_irq_release(until);
    }
    deliver(&told);
}

/// The time at which the storm guard lets lines fire again has come.
pub fn release_held() {
    let now = tsc::now_ns();
    loop {
        let released = lock().release_held(now);
        match released {
            Some(told) => deliver(&told),
            None => break,
        }
    }
    if lock().has_held() {
        timers::arm_irq_release(now.saturating_add(10_000_000));
    }
}

fn deliver(told: &Deliveries) {
    for x in told.iter() {
        let Some(d) = domain::find(x.dom) else { continue };
        let raised = d.events.lock().raise_pirq(&*d, x.port, x.pirq);
        if !raised {
            // The port was closed meanwhile: nobody will answer.
            let _ = lock().eoi(x.dom, x.pirq);
        }
    }
}

/// Gives `d` a pirq for entry `entry` of function `at`'s MSI-X table, or for its MSI if that is `None`. ENODEV: no such
/// function or capability. Others as `Interrupts::map_msi`.
pub fn map_msi(d: &Domain, at: Sbdf, entry: Option<u16>, wanted: Option<u32>) -> Result<u32, Errno> {
    let function = pci::function(at).ok_or(Errno::ENODEV)?;
    let cap = if entry.is_some() { function.msix } else { function.msi }.ok_or(Errno::ENODEV)?;
    if entry.is_some() {
        let (addr, bytes) = msi::msix_table_addr(at, cap).ok_or(Errno::EINVAL)?;
        if !d.is_hardware {
            // Whoever writes the table chooses where the device writes: that is the hypervisor alone.
            let first = addr / PAGE_SIZE as u64;
            let last = (addr + bytes.max(1) - 1) / PAGE_SIZE as u64;
            iospace::watch_frames(Mfn::new(first), Mfn::new(last))?;
        }
    }
    lock_for(d)?.map_msi(d.id, MsiSource { at, cap, entry }, wanted)
}

/// Programs all messages of function `at` again, after it was reset.
pub fn restore_msi(at: Sbdf) {
    lock().reprogram(|source| source.at == at);
}
