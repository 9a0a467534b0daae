//! One file per hardware thing.

pub mod acpi;
pub mod cpu_policy;
pub mod descriptor;
pub mod efi;
pub mod fpu;
pub mod idt;
pub mod ioapic;
pub mod ipi;
pub mod lapic;
pub mod lfence;
pub mod limited;
pub mod machine_check;
pub mod msi;
pub mod pat;
pub mod pci;
pub mod pci_reset;
pub mod reboot;
pub mod rtc;
pub mod secret;
pub mod side_channels;
pub mod smap;
pub mod smp;
pub mod stacks;
pub mod timer_hw;
pub mod tlb;
pub mod tsc;
pub mod tsc_warp;
pub mod vectors;

use hv_core::cmdline::Options;
use x86::MachAddr;

/// Finds and silences the machine's interrupt controllers and buses. The first CPU must have its memory; no interrupt
/// may be let in before the IDT is loaded. `acpi_root`: where the loader says that the ACPI root table is, and whether
/// it is the XSDT.
pub fn init(options: &Options, acpi_root: Option<(MachAddr, bool)>) {
    if options.noacpi {
        acpi::do_without();
    } else {
        acpi::init(acpi_root);
    }
    lapic::init(options.x2apic);
    smp::init();
    ioapic::init();
    pci::init();
    msi::init();
    pci_reset::init();
    side_channels::report();
}

/// Starts the other CPUs, as many as the options allow; each goes on in `then`. Then starts to measure time.
pub fn start_other_cpus(options: &Options, then: fn() -> !) {
    let limit = if options.nosmp { 1 } else { options.maxcpus.unwrap_or(u32::MAX).max(1) };
    if limit > 1 {
        smp::start_others(limit as usize, then);
    }
    tsc::init();
}

/// Ends the measurement of time; after this timers work. Late in the boot this costs next to nothing, see `tsc`.
pub fn finish_init() {
    tsc::calibrate();
    timer_hw::init();
    crate::info!("{} us since the start", tsc::now_ns() / 1000);
}
