//! The command line: where messages go, before there is a heap; then everything else (`hv_core::cmdline`).

use crate::boot::multiboot::Loaded;
use crate::cpu::{screen, serial};
use crate::mem::phys_to_virt;
use crate::{console, info, warn};
pub use hv_core::cmdline::Options;
use hv_core::cmdline::{words, Consoles};
use x86::MachAddr;

/// Reads what decides where messages go, before there is a heap: `console=` (the first serial port and the screen,
/// unless it names others that there are) and `com1=`. The screen's memory, if it is used.
pub fn start_console(loaded: &Loaded) -> Option<(u64, u64)> {
    let mut config = serial::Config::default();
    let mut consoles = Consoles { serial: true, screen: true };
    for (name, value) in words(loaded.command_line()) {
        match (name, value) {
            ("com1", Some(value)) => config = serial::Config::parse(value),
            ("console", Some(list)) => consoles = Consoles::named(list),
            _ => {}
        }
    }
    let is_missing = consoles.serial && !serial::init(config);
    let screen = start_screen(loaded.screen.filter(|_| consoles.screen));
    if is_missing {
        info!("No serial port at {:#x}", config.port);
    }
    screen
}

/// Starts messages to the screen, if it is this. Its memory.
fn start_screen(kind: Option<screen::Kind>) -> Option<(u64, u64)> {
    let kind = kind?;
    // The page tables show the first 4 GiB in the direct map; they are global memory types, which keep devices
    // uncached.
    let (start, bytes) = kind.memory().filter(|(start, bytes)| start + bytes <= 1 << 32 && *bytes <= 1 << 30)?;
    // SAFETY: mapped until `mem::init` says where it is from then on.
    unsafe { screen::start(kind, phys_to_virt(MachAddr::new(start))) };
    Some((start, bytes))
}

/// Parses the whole line, says what is wrong with it, and applies what concerns messages.
pub fn parse(line: &str) -> Options {
    let (options, complaints) = Options::parse(line);
    console::set_levels(&options);
    crate::panic::set_noreboot(options.noreboot);
    for complaint in complaints {
        if complaint.is_warning() {
            warn!("Command line: {complaint}");
        } else {
            info!("Command line: {complaint}");
        }
    }
    options
}
