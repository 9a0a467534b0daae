//! The bootable image, and the only crate with `unsafe` and assembly.
#![no_std]
#![no_main]

extern crate alloc;

mod arch;
mod boot;
mod console;
mod mem;
mod panic;
mod sync;

/// Everything after the machine is up. Runs on the first CPU, on its boot stack.
pub fn start(boot: boot::BootInfo) -> ! {
    info!("{} modules, {} regions; nothing to run", boot.modules.len(), boot.memory_map.len());
    panic::stop()
}
