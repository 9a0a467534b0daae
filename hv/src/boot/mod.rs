//! From the loader's entry point to the first Rust function, and what the loader handed over.

pub mod dom0;
pub mod multiboot;
pub mod options;
mod start;

use crate::arch::efi::Firmware;
use crate::cpu::percpu::STACK_SIZE;
use crate::cpu::screen;
use crate::mem::{self, phys_to_virt};
use crate::{console, info, warn};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::arch::global_asm;
use core::cell::UnsafeCell;
use hv_core::cmdline::{kernel_line, parts};
use multiboot::Loaded;
pub use multiboot::Region;
pub use options::Options;
use x86::{MachAddr, Mfn};

/// The top of each CPU's stack that entry code keeps for itself.
pub const STACK_RESERVED: u64 = 1024;

/// The first CPU's stack until memory is set up.
#[repr(C, align(131072))]
pub struct BootStack(UnsafeCell<[u8; STACK_SIZE]>);

// SAFETY: only its address is used from Rust; the contents belong to the CPU that runs on it.
unsafe impl Sync for BootStack {}

/// The first CPU's stack until memory is set up. It has the form of a stack block, for `this_cpu`.
#[link_section = ".bss.boot_stack"]
pub static BOOT_STACK: BootStack = BootStack(UnsafeCell::new([0; STACK_SIZE]));

global_asm!(
    include_str!("entry.S"),
    stack = sym BOOT_STACK,
    stack_top = const STACK_SIZE as u64 - STACK_RESERVED,
    boot_main = sym boot_main,
);

/// A file that the boot loader put into memory. Its frames are reserved until [`Module::release`].
#[derive(Debug)]
pub struct Module {
    /// Where it is.
    pub start: MachAddr,
    /// Its length in bytes.
    pub len_bytes: usize,
    /// Its command line, without the file's name.
    pub command_line: String,
}

impl Module {
    /// Its contents.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the loader put the module into RAM, which is in the direct map; its frames are reserved while `self`
        // lives, so nothing writes them.
        unsafe { core::slice::from_raw_parts(phys_to_virt(self.start), self.len_bytes) }
    }

    /// First frame, and one past the last.
    pub fn frames(&self) -> (Mfn, Mfn) {
        let end = (self.start.raw() + self.len_bytes as u64).next_multiple_of(4096);
        (Mfn::containing(self.start), Mfn::containing(MachAddr::new(end)))
    }

    /// Gives its frames to the allocator.
    pub fn release(self) {
        let (start, end) = self.frames();
        mem::frames::free_range(start, end);
    }
}

/// What the rest of the hypervisor starts from.
pub struct BootInfo {
    /// The hypervisor's command line, without what is for domain 0's kernel.
    pub command_line: String,
    /// The options in it.
    pub options: Options,
    /// dom0's kernel, its initrd, and what else was loaded, in order.
    pub modules: Vec<Module>,
    /// The firmware's memory map, unchanged.
    pub memory_map: Vec<Region>,
    /// Address of the ACPI root table as the loader passed it, and whether it is the XSDT.
    pub acpi_root: Option<(MachAddr, bool)>,
    /// What UEFI firmware told.
    pub efi: Option<Box<Firmware>>,
    /// What the screen is.
    pub screen: Option<screen::Kind>,
}

/// First Rust function. `magic` and `info` are the loader's EAX and EBX.
extern "C" fn boot_main(magic: u32, info: u32) -> ! {
    crate::arch::tsc::start();
    let Some(mut loaded) = Loaded::new(magic, info) else {
        crate::cpu::serial::init(Default::default());
        panic!("not started by a Multiboot loader (magic {magic:#x})");
    };
    let screen = options::start_console(&loaded);
    info!("Tandem {} (Xen 4.17 PV interface)", env!("CARGO_PKG_VERSION"));
    info!("Loader: {}; options: {}", loaded.loader(), loaded.command_line());
    for region in loaded.regions() {
        info!("  {:#014x}-{:#014x} {}", region.start, region.start + region.bytes, kind_name(region.kind));
    }
    if loaded.are_regions_cut {
        warn!("The memory map is longer than that: what follows is not known, and memory there is not used");
    }
    mem::init(&loaded.usable, loaded.modules().iter().map(|m| (m.start, m.bytes)), screen);
    let efi = loaded.efi.take().map(Box::new);
    start::start(describe(&loaded, efi))
}

fn describe(loaded: &Loaded, efi: Option<Box<Firmware>>) -> BootInfo {
    let (own_line, for_kernel) = parts(loaded.command_line());
    let mut modules: Vec<Module> = loaded
        .modules()
        .iter()
        .map(|m| Module {
            start: MachAddr::new(m.start),
            len_bytes: m.bytes as usize,
            command_line: loaded.module_command_line(m).into(),
        })
        .collect();
    if let Some(kernel) = modules.first_mut() {
        kernel.command_line = kernel_line(&kernel.command_line, for_kernel);
    }
    for (i, module) in modules.iter().enumerate() {
        info!("Module {i}: {} KiB at {:#x} '{}'", module.len_bytes >> 10, module.start.raw(), module.command_line);
    }
    let mib = |frames: u64| frames >> 8;
    info!("Memory: {} MiB, {} MiB free", mib(mem::frames::total()), mib(mem::frames::free_count()));
    let options = options::parse(own_line);
    console::init_ring(options.conring_bytes);
    BootInfo {
        command_line: own_line.into(),
        options,
        modules,
        memory_map: loaded.regions().to_vec(),
        acpi_root: loaded.acpi_root.map(|(addr, is_xsdt)| (MachAddr::new(addr), is_xsdt)),
        efi,
        screen: loaded.screen,
    }
}

/// Name of an E820 type.
const fn kind_name(kind: u32) -> &'static str {
    match kind {
        1 => "usable",
        3 => "ACPI data",
        4 => "ACPI NVS",
        5 => "unusable",
        _ => "reserved",
    }
}
