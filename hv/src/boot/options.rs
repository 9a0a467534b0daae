//! The command line: where messages go, before there is a heap; then everything else (`hv_core::cmdline`).

use crate::cpu::serial;
use crate::{console, info, warn};
use hv_core::cmdline::words;
pub use hv_core::cmdline::Options;

/// Reads what decides where messages go, before there is a heap: `console=` (the first serial
/// port unless it names others only) and `com1=`.
pub fn start_console(line: &str) {
    let mut config = serial::Config::default();
    let mut wanted = true;
    for (name, value) in words(line) {
        match (name, value) {
            ("com1", Some(value)) => config = serial::Config::parse(value),
            ("console", Some(list)) => wanted = list.split(',').any(|c| c.starts_with("com1")),
            _ => {}
        }
    }
    if wanted {
        serial::init(config);
    }
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
