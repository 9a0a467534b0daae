//! The bootable image, and the only crate with `unsafe` and assembly.
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod audit;
mod boot;
mod console;
mod cpu;
mod debug_keys;
mod domain;
mod hypercall;
mod iommu;
mod irq;
mod mem;
mod panic;
mod pv;
mod sched;
mod sync;
mod trap;
mod twin;

use crate::arch::{descriptor, fpu, idt, smap, stacks};
use crate::cpu::percpu;
use crate::sync::Once;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use xen_abi::memory::E820Entry;

static COMMAND_LINE: Once<String> = Once::new();

/// The hypervisor's command line.
pub fn command_line() -> &'static str {
    COMMAND_LINE.get().map_or("", |s| s)
}

/// Everything after the memory is set up. Runs on the first CPU: moves from its boot stack to its own.
pub fn start(boot: boot::BootInfo) -> ! {
    let block = stacks::map(0).expect("memory for a stack");
    // SAFETY: the block was just mapped, zeroed, and never goes.
    let stack_pointer = unsafe { percpu::init_block(block, 0, 0) };
    let mut boot = ManuallyDrop::new(boot);
    // SAFETY: the new stack is empty; the old one, on which `boot` stays, is not used by anything else again.
    unsafe {
        core::arch::asm!("mov rsp, {}", "xor ebp, ebp", "call {}", in(reg) stack_pointer, sym start_on_stack,
            in("rdi") &raw mut *boot, options(noreturn))
    }
}

/// The rest of [`start`], on the first CPU's own stack.
extern "C" fn start_on_stack(boot: &mut boot::BootInfo) -> ! {
    if let Some(feature) = hv_core::cpuid::missing_feature(&pv::cpu_policy::Processor) {
        error!("This processor lacks a feature that Tandem needs: {feature}");
        panic::stop();
    }
    smap::init(&boot.options);
    // SAFETY: no other CPU runs, and none has called the code that is changed.
    unsafe { trap::patches::apply(&boot.options) };
    init_cpu();
    COMMAND_LINE.call_once(|| boot.command_line.clone());
    hypercall::memory_op::set_machine_map(machine_map(&boot.memory_map));
    arch::init(&boot.options, boot.acpi_root);
    pv::mmio_ro::init().expect("boot-time ranges are few");
    sched::online();
    arch::start_other_cpus(&boot.options, start_ap);
    domain::owners::install();
    boot::dom0::start(&boot.options, &mut boot.modules, percpu::online_count() as u32);
    boot.modules.drain(..).for_each(boot::Module::release);
    // Now it is known which memory the hypervisor keeps.
    let domain0 = domain::find(0).expect("just built");
    iommu::init(&boot.options, &machine_map(&boot.memory_map), &domain0.dma);
    drop(domain0);
    domain::passthrough::init(&boot.options);
    irq::init_serial();
    arch::finish_init();
    // Only now is the scale of time known.
    domain::for_each(|d| d.vcpus().for_each(pv::time::update_time_info));
    pv::time::set_wall_clock(arch::rtc::seconds_since_1970() * 1_000_000_000, arch::tsc::now_ns());
    sched::enter_first()
}

/// The firmware's memory map in the form of the ABI.
fn machine_map(regions: &[boot::Region]) -> Vec<E820Entry> {
    regions.iter().map(|r| E820Entry { addr: r.start, size: r.bytes, kind: r.kind }).collect()
}

/// What the other CPUs do once they are up. Runs on their own stacks.
pub fn start_ap() -> ! {
    init_cpu();
    sched::online();
    sched::enter_first()
}

/// Sets up what every CPU has: descriptor tables, entry points, FPU, scheduling.
pub fn init_cpu() {
    descriptor::init_cpu();
    // SAFETY: entry.S is written for these ways in.
    unsafe { idt::load(&trap::entry_points()) };
    smap::init_cpu();
    fpu::init_cpu();
    pv::control_regs::init_cpu();
    percpu::set_online();
}

/// Console input is waiting: the domain that owns the console is told.
pub fn console_input() {
    domain::event::raise_global_virq(xen_abi::event::VIRQ_CONSOLE);
}
