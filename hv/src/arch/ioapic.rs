//! I/O APICs: the wires of devices, numbered by global system interrupt (GSI); and the old 8259s, which are silenced.

use crate::arch::{acpi, vectors};
use crate::cpu::port::{inb, outb};
use crate::mem::device_frames;
use crate::mem::vmap;
use crate::sync::{Mutex, Once};
use crate::{info, warn};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
pub use hv_core::pirq::Wire;
use x86::{MachAddr, Mfn};

const SELECT: usize = 0x00;
const WINDOW: usize = 0x10;
const END: usize = 0x40;
/// The first version that has it.
const VERSION_WITH_END: u8 = 0x20;
const REG_VERSION: u8 = 1;
const REG_ENTRIES: u8 = 0x10;
/// Bits of the low half of an entry.
const ACTIVE_LOW: u32 = 1 << 13;
const LEVEL: u32 = 1 << 15;
const MASKED: u32 = 1 << 16;

/// One chip.
struct Chip {
    /// Where its registers are mapped.
    registers: usize,
    addr: u64,
    gsi_base: u32,
    pins: u32,
    version: u8,
    /// The low halves of its entries, so that masking needs no read.
    low: Vec<u32>,
}

static CHIPS: Once<Vec<Mutex<Chip>>> = Once::new();

impl Chip {
    fn read(&self, register: u8) -> u32 {
        // SAFETY: the page of registers is mapped for ever; `&self` comes from the chip's lock, so select and access
        // are not torn apart.
        unsafe {
            ((self.registers + SELECT) as *mut u32).write_volatile(register.into());
            ((self.registers + WINDOW) as *const u32).read_volatile()
        }
    }

    fn write(&self, register: u8, value: u32) {
        // SAFETY: as for `read`.
        unsafe {
            ((self.registers + SELECT) as *mut u32).write_volatile(register.into());
            ((self.registers + WINDOW) as *mut u32).write_volatile(value);
        }
    }

    /// Register of the low half of `pin`'s entry. Pins are below 240.
    #[allow(clippy::cast_possible_truncation, reason = "pins were bounded when the chip was found")]
    fn entry(pin: u32) -> u8 {
        REG_ENTRIES + 2 * pin as u8
    }

    /// Says that the interrupt of the entry with lower half `low` has ended.
    fn end(&self, low: u32) {
        if self.version >= VERSION_WITH_END {
            // SAFETY: as for `read`.
            unsafe { ((self.registers + END) as *mut u32).write_volatile(low & 0xff) };
        }
    }

    fn set_low(&mut self, pin: u32, low: u32) {
        if let Some(kept) = self.low.get_mut(pin as usize) {
            *kept = low;
            self.write(Self::entry(pin), low);
        }
    }
}

/// Finds the chips, masks every pin, and silences the 8259s.
pub fn init() {
    disable_pics();
    let listed = acpi::tables().madt.as_ref().map_or(&[][..], |madt| &madt.io_apics);
    let chips = listed.iter().filter_map(|io_apic| {
        let registers = vmap::map_device(MachAddr::new(io_apic.addr), 0x100)? as usize;
        let mut chip =
            Chip { registers, addr: io_apic.addr, gsi_base: io_apic.gsi_base, pins: 0, version: 0, low: Vec::new() };
        let [version, _, last_pin, _] = chip.read(REG_VERSION).to_le_bytes();
        if last_pin >= 120 {
            warn!("I/O APIC at {:#x} does not answer", io_apic.addr);
            return None;
        }
        chip.version = version;
        chip.pins = u32::from(last_pin) + 1;
        chip.low = alloc::vec![MASKED; chip.pins as usize];
        for pin in 0..chip.pins {
            chip.write(Chip::entry(pin) + 1, 0);
            chip.write(Chip::entry(pin), MASKED);
        }
        info!("I/O APIC: version {version:#x}, GSIs {}-{}", chip.gsi_base, chip.gsi_base + chip.pins - 1);
        Some(Mutex::new(chip))
    });
    let chips: Vec<_> = chips.collect();
    for io_apic in listed {
        let page = Mfn::containing(MachAddr::new(io_apic.addr));
        device_frames::hide(page, page);
    }
    CHIPS.call_once(|| chips);
}

fn with_pin<R>(gsi: u32, act: impl FnOnce(&mut Chip, u32) -> R) -> Option<R> {
    for chip in CHIPS.get()? {
        let mut chip = chip.lock();
        if let Some(pin) = gsi.checked_sub(chip.gsi_base).filter(|&pin| pin < chip.pins) {
            return Some(act(&mut chip, pin));
        }
    }
    None
}

/// One past the highest GSI.
pub fn gsi_end() -> u32 {
    let chips = CHIPS.get().map_or(&[][..], Vec::as_slice);
    chips.iter().map(|chip| chip.lock()).map(|chip| chip.gsi_base + chip.pins).max().unwrap_or(0)
}

/// The GSI of ISA interrupt `irq`, and how it signals.
pub fn isa_wire(irq: u8) -> (u32, Wire) {
    let overrides = acpi::tables().madt.as_ref().map_or(&[][..], |madt| &madt.overrides);
    match overrides.iter().find(|o| o.irq == irq) {
        Some(o) => (o.gsi, Wire { level: o.level, active_low: o.active_low }),
        None => (irq.into(), Wire { level: false, active_low: false }),
    }
}

/// How `gsi` signals if nobody says more: as an override says, ISA style below 16, PCI style above.
pub fn default_wire(gsi: u32) -> Wire {
    let overrides = acpi::tables().madt.as_ref().map_or(&[][..], |madt| &madt.overrides);
    match overrides.iter().find(|o| o.gsi == gsi) {
        Some(o) => Wire { level: o.level, active_low: o.active_low },
        None if gsi < 16 => Wire { level: false, active_low: false },
        None => Wire { level: true, active_low: true },
    }
}

/// Must the chips be told of the end of a level-triggered interrupt, because the vector that a CPU announces does not
/// reach them?
static ENDS_ARE_HIDDEN: AtomicBool = AtomicBool::new(false);

/// From now on the chips are told of the end of each level-triggered interrupt.
pub fn ends_are_hidden() {
    ENDS_ARE_HIDDEN.store(true, Ordering::Relaxed);
}

/// Where an entry sends its interrupt, as its two halves have it.
pub struct Target {
    /// The upper half.
    pub high: u32,
    /// Bits of the lower half, besides the vector and how the wire signals.
    pub low: u32,
}

impl Target {
    /// CPU `apic_id`: fixed delivery, physical destination.
    pub fn cpu(apic_id: u32) -> Self {
        Self { high: apic_id << 24, low: 0 }
    }
}

/// Routes `gsi` to `vector` of `target`; stays masked until [`unmask`].
pub fn route(gsi: u32, vector: u8, target: &Target, wire: Wire) -> Option<()> {
    let mut low = u32::from(vector) | MASKED;
    low |= if wire.level { LEVEL } else { 0 };
    low |= if wire.active_low { ACTIVE_LOW } else { 0 };
    with_pin(gsi, |chip, pin| {
        // Masked while the halves disagree.
        chip.set_low(pin, MASKED);
        chip.write(Chip::entry(pin) + 1, target.high);
        chip.set_low(pin, low | target.low);
    })
}

/// Sends `gsi` to CPU `apic_id` from now on. The vector stays, and the destination is one register: nothing is torn.
pub fn steer(gsi: u32, apic_id: u32) {
    with_pin(gsi, |chip, pin| chip.write(Chip::entry(pin) + 1, Target::cpu(apic_id).high));
}

/// Masks `gsi`.
#[inline]
pub fn mask(gsi: u32) {
    with_pin(gsi, |chip, pin| {
        let low = chip.low[pin as usize];
        chip.set_low(pin, low | MASKED);
    });
}

/// Lets `gsi` through.
#[inline]
pub fn unmask(gsi: u32) {
    with_pin(gsi, |chip, pin| {
        let low = chip.low[pin as usize];
        if low & LEVEL != 0 && ENDS_ARE_HIDDEN.load(Ordering::Relaxed) {
            chip.end(low);
        }
        chip.set_low(pin, low & !MASKED);
    });
}

/// What a guest may know of the registers of the chip at `addr`: identity, version, and entries as the hypervisor
/// programmed them, which name entries of an IOMMU's table if they are remapped. `None` if there is no such chip or
/// register.
pub fn read_register(addr: u64, register: u32) -> Option<u32> {
    let chips = CHIPS.get()?.iter().map(|chip| chip.lock());
    let chip = { chips }.find(|chip| chip.addr == addr)?;
    let register = u8::try_from(register).ok()?;
    (register < 3 || register >= REG_ENTRIES && u32::from(register - REG_ENTRIES) < 2 * chip.pins)
        .then(|| chip.read(register))
}

/// The GSI whose entry has its upper half, which says where it is sent, in that register. `None` if none has.
pub fn gsi_of_destination(addr: u64, register: u32) -> Option<u32> {
    let chips = CHIPS.get()?.iter().map(|chip| chip.lock());
    let chip = { chips }.find(|chip| chip.addr == addr)?;
    let half = register.checked_sub(u32::from(REG_ENTRIES))?;
    (half % 2 == 1 && half < 2 * chip.pins).then(|| chip.gsi_base + half / 2)
}

const PIC_MASTER: u16 = 0x20;
const PIC_SLAVE: u16 = 0xa0;

/// Moves the 8259s' vectors out of the exceptions and masks all their inputs.
fn disable_pics() {
    for (port, base, wiring) in [(PIC_MASTER, vectors::PIC_BASE, 4), (PIC_SLAVE, vectors::PIC_BASE + 8, 2)] {
        // SAFETY: an 8259 raises interrupts and nothing else; from here on none.
        unsafe {
            outb(port, 0x11); // initialise, with a fourth word
            outb(port + 1, base);
            outb(port + 1, wiring);
            outb(port + 1, 1); // 8086 mode
            outb(port + 1, 0xff);
        }
        // Reading back gives slow chips their time.
        let _ = inb(port + 1);
    }
}
