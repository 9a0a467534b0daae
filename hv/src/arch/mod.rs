//! One file per hardware thing.

pub mod acpi;
pub mod descriptor;
pub mod fpu;
pub mod idt;
pub mod ioapic;
pub mod ipi;
pub mod lapic;
pub mod machine_check;
pub mod msi;
pub mod pci;
pub mod pci_reset;
pub mod reboot;
pub mod rtc;
pub mod side_channels;
pub mod smp;
pub mod stacks;
pub mod timer_hw;
pub mod tlb;
pub mod tsc;
pub mod vectors;

use crate::boot::BootInfo;

/// Finds and silences the machine's interrupt controllers and buses. The first CPU must have its memory; no interrupt may
/// be let in before the IDT is loaded.
pub fn init(boot: &BootInfo) {
    acpi::init(boot.acpi_root.filter(|_| !boot.options.noacpi));
    lapic::init(boot.options.x2apic);
    smp::init();
    ioapic::init();
    pci::init();
    msi::init();
    pci_reset::init();
    side_channels::report();
}

/// Starts the other CPUs, as many as the options allow; each ends in `crate::start_ap`. Then starts to measure time.
pub fn start_other_cpus(boot: &BootInfo) {
    let limit = if boot.options.nosmp { 1 } else { boot.options.maxcpus.unwrap_or(u32::MAX).max(1) };
    if limit > 1 {
        smp::start_others(limit as usize);
    }
    tsc::init();
}

/// Ends the measurement of time; after this timers work. Late in the boot this costs next to nothing, see `tsc`.
pub fn finish_init() {
    tsc::calibrate();
    timer_hw::init();
    crate::info!("{} us since the start", tsc::now_ns() / 1000);
}
