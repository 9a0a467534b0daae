//! From the first CPU with memory to the first guest: all other parts are started here, in order.

use super::{dom0, BootInfo, Module, Region};
use crate::arch::{self, descriptor, fpu, idt, lfence, machine_check, pat, smap, stacks};
use crate::cpu::percpu;
use crate::cpu::screen::{self, Kind};
use crate::{channel, domain, error, hypercall, iommu, irq, panic, pv, sched, trap, twin};
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use xen_abi::dom0::VgaConsoleInfo;
use xen_abi::memory::E820Entry;

/// Everything after the memory is set up. Runs on the first CPU: moves from its boot stack to its own.
pub fn start(boot: BootInfo) -> ! {
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
extern "C" fn start_on_stack(boot: &mut BootInfo) -> ! {
    if let Some(feature) = hv_core::cpuid::missing_feature(&arch::cpu_policy::Processor) {
        error!("This processor lacks a feature that Tandem needs: {feature}");
        panic::stop();
    }
    smap::init(&boot.options);
    // SAFETY: no other CPU runs, and none has called the code that is changed.
    unsafe { trap::patches::apply(&boot.options) };
    init_cpu();
    hypercall::xen_version::set_command_line(&boot.command_line);
    hypercall::memory_op::set_machine_map(machine_map(&boot.memory_map));
    arch::init(&boot.options, boot.acpi_root);
    arch::efi::init(boot.efi.take());
    pv::mmio_ro::init().expect("boot-time ranges are few");
    sched::set_preempt_delay_us(boot.options.preempt_delay_us);
    sched::online();
    arch::start_other_cpus(&boot.options, start_ap);
    domain::owners::install();
    channel::install();
    twin::init(&boot.options);
    twin::net::install_work();
    let console = console_info(boot);
    let domain0 = dom0::start(&boot.options, &mut boot.modules, console, percpu::online_count() as u32);
    boot.modules.drain(..).for_each(Module::release);
    // Now it is known which memory the hypervisor keeps.
    iommu::init(&boot.options, &machine_map(&boot.memory_map), &domain0.dma);
    if iommu::is_active() {
        iommu::init_reports();
    }
    domain::passthrough::init(&boot.options);
    irq::init_serial();
    arch::finish_init();
    // Only now is the scale of time known.
    domain::for_each(|d| d.vcpus().for_each(pv::time::update_time_info));
    pv::time::set_wall_clock(arch::rtc::seconds_since_1970() * 1_000_000_000, arch::tsc::now_ns());
    if !boot.options.is_screen_kept && crate::cpu::screen::release() {
        crate::info!("The screen is domain 0's from now on (vga=keep keeps it)");
    }
    enter()
}

/// What domain 0 is told about the screen: as much as there is of it when it gets it.
fn console_info(boot: &BootInfo) -> Option<VgaConsoleInfo> {
    let is_efi = crate::arch::efi::firmware().is_some();
    match boot.screen? {
        Kind::Text => {
            let (x, y) = screen::cursor();
            Some(VgaConsoleInfo::Text {
                font_height: 16,
                cursor_x: x as u16,
                cursor_y: y as u16,
                rows: 25,
                columns: 80,
            })
        }
        Kind::Pixels(format) => {
            let bytes = format.bytes()?;
            let [red, green, blue] = format.colours;
            let used = red.1 + green.1 + blue.1;
            let rest = if format.bits > used { (used, format.bits - used) } else { (0, 0) };
            Some(VgaConsoleInfo::Framebuffer {
                is_efi,
                width: u16::try_from(format.width).ok()?,
                height: u16::try_from(format.height).ok()?,
                bytes_per_line: u16::try_from(format.pitch).ok()?,
                bits_per_pixel: format.bits.into(),
                base: format.base,
                size: u32::try_from(if is_efi { bytes } else { bytes.div_ceil(1 << 16) }).ok()?,
                colours: [red.0, red.1, green.0, green.1, blue.0, blue.1, rest.0, rest.1],
            })
        }
    }
}

/// The firmware's memory map in the form of the ABI.
fn machine_map(regions: &[Region]) -> Vec<E820Entry> {
    regions.iter().map(|r| E820Entry { addr: r.start, size: r.bytes, kind: r.kind }).collect()
}

/// What the other CPUs do once they are up. Runs on their own stacks.
fn start_ap() -> ! {
    init_cpu();
    sched::online();
    enter()
}

fn enter() -> ! {
    // SAFETY: that is what it is for.
    unsafe { sched::run::enter_first(trap::enter_guest) }
}

/// Sets up what every CPU has: descriptor tables, entry points, machine checks, memory types, FPU, scheduling.
fn init_cpu() {
    descriptor::init_cpu();
    // SAFETY: entry.S is written for these ways in.
    unsafe { idt::load(&trap::entry_points()) };
    machine_check::init_cpu();
    pat::init_cpu();
    lfence::init_cpu();
    smap::init_cpu();
    fpu::init_cpu();
    pv::control_regs::init_cpu();
    percpu::set_online();
}
