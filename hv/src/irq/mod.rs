//! Interrupts of the machine: to the hypervisor's own handlers or to guests.

pub mod guest;

use crate::arch::limited::Limited;
use crate::arch::vectors::Owner;
use crate::arch::{ioapic, lapic, smp, vectors};
use crate::cpu::percpu::{pending, this_cpu};
use crate::cpu::port;
use crate::cpu::requests;
use crate::cpu::{self, serial};
use crate::iommu::remap;
use crate::{console, info, iommu, panic};
use core::sync::atomic::{AtomicU64, Ordering};
use xen_abi::regs::CpuUserRegs;

/// ISA interrupt of the first serial port.
const SERIAL_ISA_IRQ: u8 = 4;

/// Messages of a device that nobody programmed, or that no CPU understands: where messages are not remapped, a driver
/// domain's device sends as many as it is told to.
static STRAY: Limited = Limited::new();

/// Handles interrupt `vector`.
pub fn handle(vector: u8) {
    match vector {
        vectors::TIMER => {
            lapic::eoi();
            this_cpu().raise(pending::TIMER);
        }
        vectors::KICK => {
            lapic::eoi();
            requests::answer();
        }
        vectors::APIC_ERROR => {
            lapic::eoi();
            let (cpu, errors) = (this_cpu().cpu, lapic::take_errors());
            STRAY.warn(format_args!("CPU {cpu}: local APIC error {errors:#x}"));
        }
        // Not in service, so no EOI; the 8259s raise theirs when noise hits a masked pin. But where messages are not
        // remapped a device can send one of these vectors, and without EOI all others would wait behind it for ever.
        vectors::SPURIOUS | vectors::PIC_BASE..=vectors::PIC_LAST => {
            if lapic::is_in_service(vector) {
                lapic::eoi();
            }
        }
        _ => match vectors::owner(vector) {
            Some(Owner::Serial) => {
                lapic::eoi();
                this_cpu().raise(pending::CONSOLE);
            }
            Some(Owner::Iommu) => {
                lapic::eoi();
                iommu::handle_faults();
            }
            Some(Owner::Line(line)) => guest::handle(line),
            None => {
                lapic::eoi();
                if !vectors::was_on_its_way(vector) {
                    STRAY.warn(format_args!("CPU {}: stray interrupt, vector {vector:#x}", this_cpu().cpu));
                }
            }
        },
    }
}

/// NMIs of the machine so far, and those of them that interrupted a twin's code.
static NMIS: AtomicU64 = AtomicU64::new(0);
static NMIS_IN_TWINS: AtomicU64 = AtomicU64::new(0);
/// Those that interrupted a guest on a segment that was gone when it was to go on: entry.S counts them.
pub static NMIS_THAT_FAULTED: AtomicU64 = AtomicU64::new(0);

/// Handles an NMI: another CPU's panic, or the machine's complaint about memory or buses. It is told of the first, the
/// second, the fourth and so on.
pub fn nmi(regs: &CpuUserRegs, is_in_twin: bool) {
    if panic::is_under_way() {
        cpu::halt_forever();
    }
    let count = NMIS.fetch_add(1, Ordering::Relaxed) + 1;
    let in_twins = NMIS_IN_TWINS.fetch_add(is_in_twin.into(), Ordering::Relaxed) + u64::from(is_in_twin);
    if !count.is_power_of_two() {
        return;
    }
    let (cpu, reason, rip) = (this_cpu().cpu, port::inb(0x61), regs.rip);
    let faulted = NMIS_THAT_FAULTED.load(Ordering::Relaxed);
    // It may have interrupted whoever holds the console's lock.
    console::print_interrupting(format_args!(
        "Warning: CPU {cpu}: NMI of the machine, reason {reason:#x}, at {rip:#x}; {count} so far, {in_twins} of them in twins, {faulted} with no way back to their guest's segment"
    ));
}

/// Lets the serial port interrupt the first CPU when bytes arrive.
pub fn init_serial() {
    if serial::port() != Some(serial::COM1) {
        return;
    }
    let (gsi, wire) = ioapic::isa_wire(SERIAL_ISA_IRQ);
    let Some(vector) = vectors::allocate(Owner::Serial) else { return };
    if ioapic::route(gsi, vector, &remap::target(gsi, vector, smp::apic_id(0), wire.level), wire).is_some() {
        serial::enable_receive_interrupt();
        ioapic::unmask(gsi);
        info!("Serial port: GSI {gsi}");
    }
}
